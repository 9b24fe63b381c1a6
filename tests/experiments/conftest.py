"""The program in a folder of its own, as a process and in this one, and what its MLflow store then holds."""

import contextlib
import fcntl
import io
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.singleton import Singleton

import dalton.experiments.app  # noqa: F401 (its resolver must be there before Hydra's state is kept)
from dalton.experiments.cli import main
from dalton.experiments.execute import read_record

SMALL = (
    "cluster.n_workers=4",
    "cluster.window.size=20000",
    "cluster.window.slide=2000",
)
STREAM = ("workload.n_tuples=30000", "workload.n_keys=1000")


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def restored(folder):
    """Work in a folder, and undo what Hydra and the program change in their process."""
    argv, environ, here = sys.argv, dict(os.environ), Path.cwd()
    root = logging.getLogger()
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers, level = root.handlers[:], root.level
    singletons = Singleton.get_state()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environ)
        root.handlers[:] = handlers
        root.setLevel(level)
        for number, handler in signals.items():
            signal.signal(number, handler)
        Singleton.set_state(singletons)


class Place:
    """A folder in which the program runs."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @property
    def uri(self):
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def command(self):
        return [str(Path(sys.executable).parent / "dalton")]

    @property
    def environ(self):
        left = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "HYDRA"))}
        # A server would start a dozen processes for jobs of language models.
        quick = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        return {**left, **quick, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}

    def here(self, *arguments):
        """Run the program in this process."""
        out, err = io.StringIO(), io.StringIO()
        with restored(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            os.environ["COLUMNS"] = "120"
            with pytest.raises(SystemExit) as ended:
                main.main(args=list(arguments), prog_name="dalton")
        return Done(ended.value.code, out.getvalue(), err.getvalue())

    def process(self, *arguments, timeout=120):
        """Run the program as a process of its own."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def running(self, *arguments):
        """The program as leader of a process group, which is gone afterwards."""
        child = subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def interrupted(self, *arguments, when):
        """What a command says that is interrupted, as by Ctrl-C, once ``when`` of the statuses is true."""
        with self.running(*arguments) as child:
            self.until(lambda: when(self.statuses()), child)
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=60)
            return Done(child.returncode, out, err)

    def until(self, condition, child):
        """Wait for a condition while the program runs."""
        wait_for(lambda: child.poll() is not None or condition())
        assert child.poll() is None, child.communicate()

    def statuses(self, children=True):
        """Statuses of all child runs, or of those without a parent, read beside MLflow."""
        of_parent = "select run_uuid from tags where key = 'mlflow.parentRunId'"
        query = f"select status from runs where run_uuid {'' if children else 'not'} in ({of_parent})"
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self.folder}/mlflow.db?mode=ro", uri=True)) as db:
                return [status for (status,) in db.execute(query)]
        except sqlite3.Error:
            return []

    def runs(self, uri=None):
        """All runs of the store."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(uri or self.uri)
        found = client.get_experiment_by_name("dalton")
        return list(client.search_runs([found.experiment_id], max_results=1000)) if found else []

    def family(self, uri=None):
        """The only parent, and its children."""
        everything = self.runs(uri)
        (parent,) = [run for run in everything if "mlflow.parentRunId" not in run.data.tags]
        children = [run for run in everything if run is not parent]
        assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {parent.info.run_id}
        return parent, children

    def artifacts(self, run):
        """The folder of a run's artefacts."""
        return Path(run.info.artifact_uri.removeprefix("file://"))

    def results(self):
        """The records on disk."""
        found = sorted(self.folder.glob("outputs/**/summary.json"))
        return [read_record(path.parent) for path in found]


def wait_for(condition, seconds=90.0):
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def mlflow():
    """MLflow, whose import warns of what it imports itself; warnings of its use are errors, as all are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.pyfunc
        import mlflow.store.tracking.sqlalchemy_store
    return mlflow


@pytest.fixture
def place(tmp_path, mlflow):
    """An empty folder in which the program runs."""
    return Place(tmp_path)


@pytest.fixture(scope="session")
def places():
    """How a folder becomes a place."""
    return Place


@pytest.fixture(scope="session")
def waiting():
    """How a test waits for something."""
    return wait_for


@pytest.fixture(scope="session")
def small():
    """Overrides that make a run small: 4 workers, 30,000 tuples, 15 slides."""
    return (*SMALL, *STREAM)


@pytest.fixture(scope="session")
def once(tmp_path_factory, mlflow):
    """Make a place once for all tests, also for those that run in other processes of pytest-xdist."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name, *arguments):
        folder, kept = root / name, root / f"{name}.json"
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                kept.write_text(json.dumps(Place(folder).process(*arguments)))
        return Place(folder), Done(*json.loads(kept.read_text()))

    return make


@pytest.fixture(scope="session")
def sweep(once, small):
    """Three partitioners × three exponents × two seeds, from one line."""
    values = ("partitioner=kg,pkg,dalton", "workload.exponent=0.5,1.0,1.5", "seed=0,1")
    return once("sweep", "run", "-m", *values, "hydra.launcher.n_jobs=1", *small)


@pytest.fixture(scope="session")
def parallel(once, small):
    """Eight jobs on four processes, on a store that did not exist."""
    values = ("partitioner=kg,pkg,sg,dalton", "seed=0,1")
    return once("parallel", "run", "-m", *values, "hydra.launcher.n_jobs=4", *small)


@pytest.fixture(scope="session")
def ablation(once):
    """An experiment with a paper, recorded."""
    return once("ablation", "run", "experiment=ablation", "testing=true")
