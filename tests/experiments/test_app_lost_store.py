"""A store that goes away does not take the results along: they are on disk, and the program says where."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

LENGTH = 5_000_000
LONG = (f"workload.n_tuples={LENGTH}", "workload.n_keys=1000", "cluster.n_workers=4")
FILES = {"config.yaml", "summary.json", "slides.parquet"}


def complete(place, count):
    """The results are there, whole, and where the program says."""
    records = place.results()
    assert len(records) == count
    for record in records:
        assert record.summary["tuples"] == LENGTH
        assert len(record.slides) == len(record.loads) == LENGTH / 20_000
    return True


def said(err):
    """The folder that the last word on tracking names."""
    (line,) = {line for line in err.splitlines() if "tracking stopped" in line}
    return Path(line.partition("the results are in ")[2])


def test_a_run_whose_store_is_deleted(place):
    with place.running("run", "partitioner=kg", *LONG) as child:
        place.until(lambda: "RUNNING" in place.statuses(children=False), child)
        (place.folder / "mlflow.db").unlink()
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert complete(place, 1)
    assert "mlflow.db is gone" in err
    assert "Traceback" not in err
    assert {path.name for path in (place.folder / said(err)).iterdir()} == {
        *FILES,
        "balance.png",
        "loads.png",
    }
    assert not (place.folder / "mlflow.db").exists(), "an empty store instead would look like lost runs"


def test_a_comparison_whose_store_is_deleted(place):
    with place.running("compare", "partitioners=[kg,pkg,sg]", "seeds=1", "jobs=1", *LONG) as child:
        place.until(lambda: "FINISHED" in place.statuses(), child)
        (place.folder / "mlflow.db").unlink()
        out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert complete(place, 3)
    home = place.folder / said(err)
    assert {path.name for path in home.iterdir()} >= {"runs", "figures", "report.html"}
    assert all({path.name for path in run.iterdir()} == FILES for run in (home / "runs").iterdir())
    assert "report.html" in out
    assert "dalton ui" not in out, "there is nothing to see"
    assert "Traceback" not in err


def test_a_sweep_whose_store_is_deleted(place):
    sweep = ("run", "-m", "partitioner=kg", "seed=0,1,2", "hydra.launcher.n_jobs=1")
    with place.running(*sweep, *LONG) as child:
        place.until(lambda: {"FINISHED", "RUNNING"} <= set(place.statuses()), child)
        (place.folder / "mlflow.db").unlink()
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert complete(place, 3)
    assert "mlflow.db is gone" in err
    assert "Traceback" not in err
    assert not (place.folder / "mlflow.db").exists()


@contextlib.contextmanager
def server(place):
    """A tracking server on a free port: its address, and how to kill it."""
    folder = place.folder
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=place.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def kill():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    try:
        yield f"http://127.0.0.1:{port}", kill
    finally:
        kill()


def answers(uri):
    try:
        urllib.request.urlopen(f"{uri}/health", timeout=2).close()
    except (OSError, urllib.error.URLError):
        return False
    return True


@pytest.mark.timeout(200)
def test_a_sweep_whose_server_is_killed(place, waiting):
    with server(place) as (uri, kill):
        waiting(lambda: answers(uri))
        sweep = ("run", "-m", "partitioner=kg", "seed=0,1,2", "hydra.launcher.n_jobs=1")
        with place.running(*sweep, f"tracking.uri={uri}", *LONG) as child:
            place.until(lambda: {"FINISHED", "RUNNING"} <= set(place.statuses()), child)
            kill()
            _, err = child.communicate(timeout=150)
    assert child.returncode == 0, err
    assert complete(place, 3)
    assert "Traceback" not in err
    for line in err.splitlines():
        if "tracking stopped" in line:
            assert (place.folder / line.partition("the results are in ")[2]).is_dir()
    _, children = place.family()
    (first,) = [run for run in children if run.info.status == "FINISHED"]
    assert first.data.tags["seed"] == "0"
    assert first.data.metrics["tuples"] == LENGTH
    kept = list((place.folder / "artifacts").glob(f"**/{first.info.run_id}/artifacts/*"))
    assert {path.name for path in kept} == {*FILES, "balance.png", "loads.png"}
