"""``dalton compare``: partitioners × workloads × numbers of workers × seeds, on paired streams."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from dalton.envs.contract import LoadAware
from dalton.envs.errors import ConfigError, check_int
from dalton.envs.progress import progress
from dalton.experiments import tracking
from dalton.experiments.execute import execute, new_folder, read_record, write_record
from dalton.experiments.records import METRICS, Record, bound, grouped, summarise
from dalton.experiments.registry import partitioner_config
from dalton.experiments.report import write_report
from dalton.experiments.settings import Job, Params, grid, tracking_of
from dalton.experiments.tracking import Store

log = logging.getLogger("dalton")

# Of the report's columns those that fit a terminal.
COLUMNS = (
    "max_over_mean",
    "replication",
    "ns_per_tuple",
    "throughput",
    "completion_mean",
    "completion_p99",
    "offered_spread",
    "answer_error",
    "answer_memory",
)


class Outcome(NamedTuple):
    """What a worker process sends back."""

    record: Record | None
    failure: str
    """The traceback, if there is no record."""
    began: float
    ended: float


def work(job: Job) -> Outcome:
    """Run a job in a worker process."""
    began = time.time()
    try:
        record, failure = execute(job, show_progress=False), ""
    except Exception:
        record, failure = None, traceback.format_exc()
    return Outcome(record, failure, began, time.time())


def compare(settings: Params, folder: Path, command: str) -> int:
    """Run a comparison, print its table, write its report, record all; returns how many runs failed."""
    jobs = grid(settings)
    where = tracking_of(settings["tracking"])
    processes = processes_of(settings["jobs"])
    store = Store(where) if where.enabled else None
    if settings["resume"] and store is None:
        raise ConfigError("resume = true: expected tracking, where it is known what is done")
    title = str(settings["title"] or "Comparison")
    folder.mkdir(parents=True, exist_ok=True)
    parent = None
    if store is not None:
        sweep = hashlib.sha256("\n".join(sorted(job.identity for job in jobs)).encode()).hexdigest()[:16]
        tags = {"kind": "comparison", **({"paper": settings["paper"]} if settings["paper"] else {})}
        parent = store.begin_parent(title, sweep, resume=settings["resume"], tags=tags)
    status = tracking.FAILED
    try:
        records, failed = _run_all(jobs, store, parent, folder, processes, resume=settings["resume"])
        if records:
            _present(jobs, records, folder, title, command, store, parent)
        status = tracking.FAILED if failed else tracking.FINISHED
    except KeyboardInterrupt:
        status = tracking.KILLED
        raise
    finally:
        if store is not None:
            store.end_parent(parent, status)
            if store.lost is not None:
                log.warning("tracking stopped (%s); the results are in %s", store.lost, folder)
    return failed


def processes_of(jobs: object) -> int:
    """The checked number of worker processes; None is one per core."""
    return check_int("jobs", (os.cpu_count() or 1) if jobs is None else jobs, low=1)


def _run_all(
    jobs: list[Job], store: Store | None, parent: str | None, folder: Path, processes: int, *, resume: bool
) -> tuple[list[Record], int]:
    """Run what is missing; returns the records in the order of the jobs, and how many jobs failed."""
    done: dict[str, Record] = {}
    if resume and store is not None and parent is not None:
        done = _done_before(jobs, store, parent)
        log.info("%d of %d runs were done before", len(done), len(jobs))
    missing = [job for job in jobs if job.identity not in done]
    failed = 0
    with (
        pool_of(min(processes, max(1, len(missing)))) as pool,
        progress("comparing", len(jobs), "runs") as advance,
    ):
        advance(len(jobs) - len(missing))
        waiting = {pool.submit(work, job): job for job in missing}
        for future in as_completed(waiting):
            job, outcome = waiting[future], future.result()
            if outcome.record is None:
                failed += 1
                log.error("%s failed: %s", job.title, outcome.failure.strip().splitlines()[-1])
            else:
                done[job.identity] = outcome.record
            _keep(job, outcome, store, parent, folder)
            advance(1)
    return [done[job.identity] for job in jobs if job.identity in done], failed


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which an interruption stops at once."""
    # Started fresh: a fork of a process with threads, as MLflow's, may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_quiet)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise


def _quiet() -> None:
    """A worker that is interrupted ends without a word: its parent says what happened."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _done_before(jobs: list[Job], store: Store, parent: str) -> dict[str, Record]:
    found = store.finished(parent)
    records = {}
    for job in jobs:
        if job.identity in found:
            with tempfile.TemporaryDirectory() as folder:
                records[job.identity] = read_record(store.artifacts(found[job.identity], Path(folder)))
    return records


def _keep(job: Job, outcome: Outcome, store: Store | None, parent: str | None, folder: Path) -> None:
    """Write a finished run to disk, then to MLflow."""
    home = folder / "runs" / re.sub(r"[^\w.=-]+", "_", job.title)
    with new_folder(home) as draft:
        if outcome.record is None:
            (draft / "traceback.txt").write_text(outcome.failure, encoding="utf-8")
        else:
            write_record(draft, job, outcome.record)
    if store is None:
        return
    run = store.start(job.title, tags=tracking.job_tags(job), parent=parent, began=outcome.began)
    store.log_params(run, job.flat())
    if outcome.record is None:
        store.log_text(run, outcome.failure, "traceback.txt")
    else:
        store.log_record(run, outcome.record, home)
    store.end(run, tracking.FAILED if outcome.record is None else tracking.FINISHED, ended=outcome.ended)


def _present(
    jobs: list[Job],
    records: list[Record],
    folder: Path,
    title: str,
    command: str,
    store: Store | None,
    parent: str | None,
) -> None:
    console = Console()
    for table in tables(records):
        console.print(table)
    report = folder / "report.html"
    write_report(report, records, title=title, command=command)
    if store is not None and parent is not None:
        store.call(store.client.log_artifact, parent, str(report))
        store.call(store.client.log_artifacts, parent, str(folder / "figures"), "figures")
    lines = ["Balance costs pairs: max/mean load 1 is perfect, pairs per key 1 means that no key was split."]
    best = best_online(jobs, records)
    if best is not None:
        params = ", ".join(f"{name}={value}" for name, value in best.params.items() if name != "window")
        lines.append(f"Best throughput of those that adapt online: {best.partitioner_label} ({params})")
    lines += ["", f"Report:       {report}"]
    if store is not None and store.lost is None:
        lines.append(f"Runs:         {store.where}")
    lines += [
        "Your stream:  dalton compare workload=trace workload.path=FILE (.npz, .parquet, .csv)",
        "A sweep:      dalton run -m partitioner=pkg,dalton workload.exponent=1.0,1.5 seed=0,1",
        "The papers:   dalton run experiment=scalability (and others: dalton list experiments)",
    ]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def best_online(jobs: list[Job], records: list[Record]) -> Job | None:
    """A job of the partitioner with the best mean throughput among those that go by the load they see."""
    online = {}
    for job in jobs:
        cls, _ = partitioner_config(job.partitioner)
        if issubclass(cls, LoadAware) and cls.lookahead == "none":
            online[job.partitioner_label] = job
    table = summarise(records)
    table = table[table["partitioner"].isin(online)]
    if table.empty or table["throughput"].isna().all():
        return None
    return online[str(table.groupby("partitioner", sort=False)["throughput"].mean().idxmax())]


def tables(records: list[Record]) -> Iterator[Table]:
    """A table per workload and number of workers: mean ± half of the 95 % interval, best in bold."""
    everything = summarise(records)
    for (workload, n), runs in grouped(records).items():
        rows = everything[(everything["workload"] == workload) & (everything["n_workers"] == n)]
        shown = [name for name in COLUMNS if name in rows and rows[name].notna().any()]
        seeds = int(rows["seeds"].max())
        table = Table(
            "partitioner",
            *(METRICS[name].label for name in shown),
            title=f"{workload}, {n} workers, {seeds} seed{'s' * (seeds != 1)} (mean ± 95 % interval)",
        )
        table.columns[0].no_wrap = True
        for column in table.columns[1:]:
            column.justify = "right"
        online = rows[rows["partitioner"] != "oracle"]
        best = {name: online[name].max() if METRICS[name].higher else online[name].min() for name in shown}
        for _, row in rows.iterrows():
            cells = []
            for name in shown:
                text = METRICS[name].text(row[name])
                half = row[f"{name}_ci"]
                if half == half:
                    text += f" ± {METRICS[name].text(half)}"
                cells.append(f"[bold]{text}[/]" if row[name] == best[name] else text)
            table.add_row(str(row["partitioner"]), *cells)
        load, pairs = bound([record for same in runs.values() for record in same])
        limits = {"max_over_mean": load, "replication": pairs}
        table.add_section()
        table.add_row(
            "bound", *(METRICS[name].text(limits[name]) if name in limits else "" for name in shown)
        )
        yield table
