"""`dalton run`: single runs and sweeps, their failures, and every named experiment in its small form."""

import numpy as np
import pytest

from dalton.experiments.app import small as small_form
from dalton.experiments.execute import TIMES, read_record
from dalton.experiments.registry import options
from dalton.experiments.tracking import SERIES

HERE = "hydra.launcher.n_jobs=1"


def steady(run):
    """The metrics of a run that do not depend on the speed of the machine, with its loads."""
    return {
        name: value for name, value in run.data.metrics.items() if not name.split("/")[-1].startswith(TIMES)
    }


def test_a_run_gives_what_it_gave_in_sweeps_on_one_and_on_four_processes(sweep, parallel, place, small):
    swept, spread = sweep[0], parallel[0]
    for _ in range(2):
        assert place.here("run", "partitioner=dalton", "workload.exponent=1.0", "seed=1", *small).code == 0
    first, second = place.runs()

    def same(other):
        identity = first.data.tags["dalton.identity"]
        (found,) = [run for run in other.family()[1] if run.data.tags["dalton.identity"] == identity]
        return found

    before = same(swept)
    for run in (second, before, same(spread)):
        assert run.data.params == first.data.params
        assert steady(run) == steady(first)
    assert len(steady(first)) > 15
    assert {"max_over_mean", "slide/max_over_mean", "replication"} <= set(steady(first))
    loads = [read_record(at.artifacts(run)).loads for at, run in [(swept, before), (place, first)]]
    np.testing.assert_array_equal(*loads)
    assert "mlflow.parentRunId" not in first.data.tags


def test_a_run_says_what_came_out_and_leaves_its_results(place, small):
    done = place.here("run", "partitioner=pkg", "tracking=none", *small)
    assert (done.code, done.out) == (0, "")
    (line,) = done.err.splitlines()
    (record,) = place.results()
    load, pairs = record.summary["max_over_mean"], record.summary["replication"]
    title = "pkg · zipf n_keys=1000 · n=4 · seed 0"
    assert line.endswith(f"{title}: max/mean load {load:.3f}, pairs per key {pairs:.3f}")
    assert not (place.folder / "mlflow.db").exists()
    (folder,) = place.folder.glob("outputs/*/*/result")
    assert (folder / "balance.png").exists()


def test_two_runs_of_the_same_second_do_not_share_a_folder(place, small):
    for seed in (0, 1):
        place.here("run", "partitioner=kg", "tracking=none", f"seed={seed}", *small)
    assert {record.seed for record in place.results()} == {0, 1}


# What goes wrong, and where: before the run can start, or while it runs.
FAILING = {
    "refused": ("seed=0,-1,1", "seed"),
    "failing": ("cluster.capacity=null,[1,1],[1,2,3,4]", "capacity"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_job_that_fails_is_recorded_and_the_others_finish(case, place, small):
    values, word = FAILING[case]
    done = place.here("run", "-m", "partitioner=kg", values, HERE, *small)
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("Error: ")
    assert word in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    parent, children = place.family()
    assert parent.info.status == "FAILED"
    assert sorted(run.info.status for run in children) == ["FAILED", "FINISHED", "FINISHED"]
    (failed,) = [run for run in children if run.info.status == "FAILED"]
    trace = (place.artifacts(failed) / "traceback.txt").read_text()
    assert trace.startswith("Traceback (most recent call last)")
    assert word in trace.splitlines()[-1]
    assert len(place.results()) == 2


def test_eight_jobs_on_four_processes_start_on_no_store_and_lose_nothing(parallel):
    place, done = parallel
    assert done.code == 0, done.err
    assert "tracking stopped" not in done.err
    parent, children = place.family()
    assert len(children) == 8
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert len({run.data.tags["dalton.identity"] for run in children}) == 8
    for run in children:
        record = read_record(place.artifacts(run))
        finite = {name for name, value in record.summary.items() if np.isfinite(value)}
        assert set(run.data.metrics) == finite | {f"slide/{name}" for name in SERIES}
        assert run.data.metrics["slide/max_over_mean"] == record.slides["max_over_mean"].iloc[-1]
    assert len(place.results()) == 8


def test_a_sweep_that_is_complete_resumes_with_nothing(place, small):
    sweep = ("run", "-m", "partitioner=kg", "seed=0,1", HERE, *small)
    assert place.here(*sweep).code == 0
    before, kept = place.family()
    done = place.here(*sweep, "resume=true")
    assert done.code == 0, done.err
    assert done.err.count("done before") == 2
    parent, children = place.family()
    assert parent.info.run_id == before.info.run_id
    assert parent.info.status == "FINISHED"
    assert {run.info.run_id for run in children} == {run.info.run_id for run in kept}
    assert len(place.results()) == 2


def test_a_sweep_without_tracking_leaves_its_results(place, small):
    done = place.here("run", "-m", "partitioner=kg,pkg", "tracking=none", HERE, *small)
    assert done.code == 0, done.err
    assert {record.partitioner for record in place.results()} == {"kg", "pkg"}
    assert not (place.folder / "mlflow.db").exists()


def test_a_trace_is_run_as_any_workload(place, small):
    np.savez(place.folder / "clicks.npz", key=np.arange(30_000) % 7)
    trace = ("workload=trace", "workload.path=clicks.npz")
    done = place.here("run", "partitioner=sg", *trace, "tracking=none", *small[:3])
    assert done.code == 0, done.err
    (record,) = place.results()
    assert record.workload == "trace clicks.npz"
    assert set(record.slides["keys"]) == {7}
    assert record.summary["max_over_mean"] == pytest.approx(1.0, abs=0.01)


def test_the_small_form_is_chosen_by_testing():
    class Root:
        testing = True

    assert small_form(1, 2, _root_=Root) == 1
    Root.testing = False
    assert small_form(1, 2, _root_=Root) == 2


# The others have tests of their own.
@pytest.mark.parametrize("name", sorted({*options("experiment")} - {"ablation", "deep_vs_bandit"}))
def test_an_experiment_runs_in_its_small_form(name, place):
    done = place.here("run", f"experiment={name}", "testing=true", "tracking=none", "workload.n_tuples=60000")
    assert done.code == 0, done.err
    records = place.results()
    assert len({(r.partitioner, r.workload, r.n_workers) for r in records}) == len(records) > 1
    assert max(r.summary["tuples"] for r in records) <= 120_000
    assert all(np.isfinite(r.summary["throughput"]) and r.summary["max_over_mean"] >= 1 for r in records)
    (report,) = place.folder.glob("outputs/*/*/report.html")
    assert f"experiment={name}" in report.read_text()
    assert "bound" in done.out
