"""An interrupted sweep or comparison leaves no run behind that seems to run, and is taken up again."""

import contextlib
import signal
import time

import pytest

from dalton.experiments import app

LENGTH = 2_000_000
STREAM = (f"workload.n_tuples={LENGTH}", "workload.n_keys=1000", "cluster.n_workers=4")
LONG = (*STREAM, "cluster.window.size=20000", "cluster.window.slide=2000")
KINDS = {
    "sweep": ("run", "-m", "partitioner=kg,pkg", "seed=0,1", *LONG),
    "comparison": ("compare", "partitioners=[kg,pkg]", "seeds=2", "jobs=2", *LONG),
}
# The jobs of a sweep begin their runs themselves; those of a comparison are recorded when they are done.
ALIVE = {"sweep": {"FINISHED", "RUNNING"}, "comparison": {"FINISHED"}}


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_sweep_is_killed_and_resumes_with_what_is_missing(kind, place):
    command = KINDS[kind]
    done = place.interrupted(*command, when=lambda statuses: ALIVE[kind] <= set(statuses))
    assert done.code == 130
    assert done.err.splitlines()[-1] == "Interrupted"
    assert "Traceback" not in done.err
    parent, children = place.family()
    assert parent.info.status == "KILLED"
    assert {run.info.status for run in children} <= {"FINISHED", "KILLED"}
    kept = {run.info.run_id for run in children if run.info.status == "FINISHED"}
    assert 1 <= len(kept) < 4
    assert not list(place.folder.glob("outputs/**/.result.*")), "no half-written results"
    complete = len(place.results())

    resumed = place.here(*command, "resume=true", "hydra.launcher.n_jobs=1")
    assert resumed.code == 0, resumed.err
    again, children = place.family()
    assert again.info.run_id == parent.info.run_id
    assert again.info.status == "FINISHED"
    assert {run.info.status for run in children} == {"FINISHED"}
    jobs = {(run.data.tags["partitioner"], run.data.tags["seed"]) for run in children}
    assert len(jobs) == len(children) == 4
    assert kept < {run.info.run_id for run in children}, "what was finished is not run again"
    assert len(place.results()) - complete == 4 - len(kept)
    assert {record.summary["tuples"] for record in place.results()} == {LENGTH}


def test_an_interrupted_run_is_killed(place):
    with place.running("run", "partitioner=kg", *LONG[1:], "workload.n_tuples=50000000") as child:
        place.until(lambda: "RUNNING" in place.statuses(children=False), child)
        child.terminate()
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert (out, err.strip()) == ("", "Interrupted")
    (run,) = place.runs()
    assert run.info.status == "KILLED"
    assert place.results() == []
    assert not list(place.folder.glob("outputs/**/.result.*"))


def test_an_interruption_that_is_lost_comes_again(monkeypatch):
    monkeypatch.setattr(app, "AGAIN", 0.05)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, app._interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # as Python does in a clean-up
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
