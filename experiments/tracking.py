"""Runs in MLflow.

A run never dies because tracking does: every call goes through `Store.call`, which remembers the first
failure and leaves out the rest. Results are written to a folder first (`dalton.experiments.execute`), and
recorded from there; what MLflow did not get is still on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton import __version__
from dalton.envs.errors import ConfigError
from dalton.experiments.cooperating import SERIES as ROUND_SERIES
from dalton.experiments.records import METRICS, Record
from dalton.experiments.settings import Job, Tracking

log = logging.getLogger("dalton")

# Metrics recorded through time, and the points of each: enough for a chart of the page, few enough not to
# cost more than the simulation (`dalton bench` shows the share). The table of all slides is an artefact.
SERIES = ("max_over_mean", "replication", "throughput")
QUEUE_SERIES = ("completion_mean", "queue", "utilisation")  # of simulations with a queue model
POINTS = 50
BATCH = 1000
PARENT = "DALTON_PARENT_RUN"
IDENTITY, SWEEP = "dalton.identity", "dalton.sweep"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
# A server that is down is found out in seconds, not in MLflow's default of minutes.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}

# What fails is said once, in a line of our own.
LOGGERS = {
    "mlflow": "WARNING",
    "mlflow.store.db.utils": "CRITICAL",
    "alembic": "WARNING",
    "urllib3": "ERROR",
}


def store_uri(tracking: Tracking) -> str:
    """The store's address: that of the settings, or a file in the working directory."""
    return tracking.uri or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


class Store:
    """An MLflow store and one experiment in it, made if it does not exist, unless it should (not ``new``)."""

    def __init__(self, tracking: Tracking, *, new: bool = True) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError(
                "mlflow is not installed: expected it unless tracking=none; pip install dalton[tracking]"
            ) from None
        for name, level in LOGGERS.items():
            logging.getLogger(name).setLevel(level)
        self.uri, self.experiment = store_uri(tracking), tracking.experiment
        self.file = Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:///") else None
        self.lost: str | None = None
        if self.file is None:
            _check_reachable(self.uri)
        elif not new and not self.file.exists():
            raise ConfigError(f"{self.file} is gone")
        with _uninterrupted(), self._created_once():
            try:
                self.client = MlflowClient(self.uri)
                self.experiment_id = self._experiment()
            except Exception as error:
                raise ConfigError(f"tracking.uri = {self.uri}: {_reason(error)}") from None
        self.inode = self.file.stat().st_ino if self.file else None

    @contextlib.contextmanager
    def _created_once(self) -> Iterator[None]:
        """Let one process at a time create the tables of a new file: MLflow's own creation is not safe."""
        if self.file is None:
            yield
            return
        if not self.file.parent.is_dir() or not os.access(self.file.parent, os.W_OK):
            raise ConfigError(f"tracking.uri = {self.uri}: expected a folder that can be written to")
        mark = hashlib.sha256(str(self.file).encode()).hexdigest()[:16]
        with open(Path(tempfile.gettempdir()) / f"dalton-{os.getuid()}-{mark}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _experiment(self) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        folder = None if self.file is None else (self.file.parent / "mlruns").as_uri()
        return str(self.client.create_experiment(self.experiment, artifact_location=folder))

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client; None if it fails or something failed before."""
        if self.lost is not None:
            return None
        try:
            if self._gone():
                raise FileNotFoundError
            with _uninterrupted():
                return function(*args, **kwargs)
        except Exception as error:
            # The file may go in the midst of a call, and then SQLite's word for it is a riddle.
            self.lost = f"{self.file} is gone" if self._gone() else _reason(error)
            return None

    def _gone(self) -> bool:
        """Whether the store's file is no longer there; an empty one is SQLite's own, made by connecting."""
        if self.file is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            status = self.file.stat()
            if status.st_ino == self.inode:
                return False
            if status.st_size == 0:
                self.file.unlink()
        return True

    def start(
        self, name: str, *, tags: dict[str, str], parent: str | None = None, began: float | None = None
    ) -> str | None:
        """Begin a run; returns its id."""
        all_tags = {**environment_tags(), **tags}
        if parent:
            all_tags["mlflow.parentRunId"] = parent
        when = int(1000 * (began or time.time()))

        def begin() -> str:
            made = self.client.create_run(self.experiment_id, start_time=when, tags=all_tags, run_name=name)
            _open[made.info.run_id] = self
            return str(made.info.run_id)

        made: str | None = self.call(begin)
        return made

    def end(self, run: str | None, status: str, ended: float | None = None) -> None:
        """End a run."""
        if run is not None:
            self.call(self.client.set_terminated, run, status, end_time=int(1000 * (ended or time.time())))
            _open.pop(run, None)

    def log_params(self, run: str | None, params: dict[str, Any]) -> None:
        """Record settings."""
        from mlflow.entities import Param

        items = [Param(key, str(value)[:6000]) for key, value in params.items()]
        for low in range(0, len(items), 100):
            self.call(self.client.log_batch, run, params=items[low : low + 100])

    def log_record(self, run: str | None, record: Record, folder: Path) -> None:
        """Record the outcome and the files of ``folder``."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # MLflow's page compares runs by the metric that came first.
        names = sorted(record.summary, key=lambda name: name not in METRICS)
        metrics = [
            Metric(name, record.summary[name], now, 0)
            for name in names
            if math.isfinite(record.summary[name])
        ]
        for name in (*SERIES, *(name for name in QUEUE_SERIES if name in record.slides)):
            metrics += [Metric(f"slide/{name}", value, now, step) for step, value in thinned(record, name)]
        for name in ROUND_SERIES if len(record.rounds) else ():
            points = _means(record.rounds["position"].to_numpy(), record.rounds[name].to_numpy(float))
            metrics += [Metric(f"round/{name}", value, now, step) for step, value in points]
        for low in range(0, len(metrics), BATCH):
            self.call(self.client.log_batch, run, metrics=metrics[low : low + BATCH])
        self.call(self.client.log_artifacts, run, str(folder))

    def log_metrics(self, run: str | None, metrics: dict[str, float], step: int = 0) -> None:
        """Record single numbers, in one call."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = [Metric(key, value, now, step) for key, value in metrics.items()]
        self.call(self.client.log_batch, run, metrics=points)

    def log_text(self, run: str | None, text: str, name: str) -> None:
        """Record a text as an artefact."""
        self.call(self.client.log_text, run, text, name)

    def children(self, parent: str) -> list[Any]:
        """All runs of a parent."""
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self.call(
                self.client.search_runs,
                [self.experiment_id],
                filter_string=f"tags.mlflow.parentRunId = '{parent}'",
                max_results=1000,
                page_token=token,
            )
            found += page or []
            token = getattr(page, "token", None)
            if not token:
                return found

    def finished(self, parent: str) -> dict[str, str]:
        """Identity and id of the runs of a parent that are done."""
        return {
            run.data.tags.get(IDENTITY, ""): run.info.run_id
            for run in self.children(parent)
            if run.info.status == FINISHED
        }

    def parent_of(self, sweep: str) -> str | None:
        """The latest parent run of a sweep."""
        found = self.call(
            self.client.search_runs,
            [self.experiment_id],
            filter_string=f"tags.`{SWEEP}` = '{sweep}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return str(found[0].info.run_id) if found else None

    def begin_parent(self, name: str, sweep: str, *, resume: bool, tags: dict[str, str]) -> str | None:
        """A new parent run, or with ``resume`` the one that was left unfinished.

        Children that did not finish are deleted (as MLflow does it: one can restore them): they run again.
        """
        old = self.parent_of(sweep) if resume else None
        if old is not None:
            for run in self.children(old):
                if run.info.status != FINISHED:
                    self.call(self.client.delete_run, run.info.run_id)
            _open[old] = self
            self.call(self.client.update_run, old, status=RUNNING)
            return old
        return self.start(name, tags={SWEEP: sweep, **tags})

    def end_parent(self, parent: str | None, status: str) -> None:
        """End a parent; children that were running end with it."""
        if parent is None:
            return
        if status != FINISHED:
            for run in self.children(parent):
                if run.info.status == RUNNING:
                    self.end(run.info.run_id, status)
        self.end(parent, status)

    def artifacts(self, run: str, folder: Path) -> Path:
        """Fetch the artefacts of a run into ``folder``."""
        return Path(self.client.download_artifacts(run, "", str(folder)))

    @cached_property
    def where(self) -> str:
        """How a person looks at it."""
        return "dalton ui" if self.file == Path.cwd() / "mlflow.db" else f"dalton ui --uri {self.uri}"


# Runs that this process began and has not ended.
_open: dict[str, Store] = {}


def kill_open() -> None:
    """End the runs of this process; an interruption may come before anybody knows the id of a new one."""
    for run, store in list(_open.items()):
        store.end(run, KILLED)


def thinned(record: Record, name: str) -> list[tuple[int, float]]:
    """A series as at most POINTS means over consecutive slides: (tuples seen, value)."""
    return _means(record.slides["seen"].to_numpy(), record.slides[name].to_numpy(float))


def _means(steps: NDArray[np.int64], values: NDArray[np.float64]) -> list[tuple[int, float]]:
    """At most POINTS means over consecutive values, at the last step of each."""
    groups = np.array_split(np.arange(len(values)), min(POINTS, len(values))) if len(values) else []
    means = [(int(steps[group[-1]]), float(values[group].mean())) for group in groups]
    return [(step, value) for step, value in means if math.isfinite(value)]


def job_tags(job: Job) -> dict[str, str]:
    """Tags by which runs are found and compared."""
    tags = {
        "partitioner": job.partitioner_label,
        "workload": job.workload_label,
        "n_workers": str(job.cluster.n_workers),
        "seed": str(job.seed),
        IDENTITY: job.identity,
    }
    return {**tags, "paper": job.paper} if job.paper else tags


@lru_cache(maxsize=1)
def environment_tags() -> dict[str, str]:
    """The code and the versions a run was made with."""
    tags = {
        "mlflow.source.name": "dalton",
        "version.dalton": __version__,
        "version.python": platform.python_version(),
    }
    for package in ("numpy", "numba"):
        with contextlib.suppress(PackageNotFoundError):
            tags[f"version.{package}"] = version(package)
    home = Path(__file__).resolve().parent.parent
    commit = _git(home, "rev-parse", "HEAD")
    # A package installed inside somebody else's repository is not of that repository.
    if commit and (home / "experiments").is_dir():
        tags["mlflow.source.git.commit"] = commit
        tags["git.dirty"] = str(bool(_git(home, "status", "--porcelain"))).lower()
    return tags


def _git(folder: Path, *args: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let an interruption wait: within a query it may get lost, for exceptions of clean-ups are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            raise KeyboardInterrupt


def _check_reachable(uri: str) -> None:
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"tracking.uri = {uri}: no tracking server answers ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """The first line of an error."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return (str(cause).strip().splitlines() or [type(error).__name__])[0][:300]
