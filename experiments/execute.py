"""One job: build, simulate, keep the outcome in a folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from dalton.envs.simulate import Result, simulate
from dalton.envs.workloads import Workload
from dalton.experiments import cooperating
from dalton.experiments.records import Record
from dalton.experiments.settings import Job, Runtime
from dalton.experiments.throughput import Costs, throughput

LOAD = "load_"
# Metrics that depend on the speed of this machine: they differ from run to run, and nothing else does.
TIMES = ("ns_per_tuple", "throughput", "limit_partitioner", "bottleneck_", "seconds")
"""On Ray messages take real time, and so every metric does."""


def execute(job: Job, *, show_progress: bool = True) -> Record:
    """Run a job; the same job gives the same record, up to times."""
    partitioner, workload = job.build()
    cluster, runtime = job.cluster, job.runtime
    started = time.perf_counter()
    rounds, partitioners = pd.DataFrame(), cluster.n_partitioners
    extra: dict[str, float] = {}
    if isinstance(runtime, Runtime):
        result = simulate(
            partitioner,
            workload,
            window=cluster.window,
            view=runtime.view,
            probe_every=runtime.probe_every,
            n_reducers=cluster.n_reducers,
            capacity=cluster.capacity,
            measure=runtime.measure,
            queue=cluster.queue,
            application=job.application,
            compare_global=runtime.compare_global,
            show_progress=show_progress,
        )
    else:
        result, rounds, extra = cooperating.run(job, partitioner, workload, show_progress=show_progress)
        partitioners = workload.n_sources
    costs = Costs(
        combine_ns=cluster.combine_ns,
        merge_ns=cluster.merge_ns,
        n_reducers=cluster.n_reducers,
        n_partitioners=partitioners,
        forwarding=cluster.forwarding and (partitioner.forwards or partitioner.max_workers_per_key == 1),
    )
    summary = result.summary()
    flow = throughput(result, costs, route_ns=summary["ns_per_tuple"])
    summary |= {**extra, **flow.summary, "seconds": time.perf_counter() - started}
    slides = result.to_pandas()
    slides["throughput"] = flow.per_slide
    return Record(
        partitioner=job.partitioner_label,
        workload=job.workload_label,
        n_workers=cluster.n_workers,
        seed=job.seed,
        summary=summary,
        slides=slides,
        loads=result.loads,
        shifts=shifts_of(workload),
        changes=changes_of(result),
        rounds=rounds,
    )


def changes_of(result: Result) -> tuple[int, ...]:
    """Tuples at which capacities change, to a slide where the schedule is in seconds."""
    queue = result.settings.get("queue")
    if queue is None:
        return ()
    ends, seen = result.column("end"), result.column("seen")
    found = {
        change.at_tuple if change.at is None else int(np.interp(change.at, ends, seen))
        for change in queue.schedule
    }
    return tuple(sorted(found))


def shifts_of(workload: Workload) -> tuple[int, ...]:
    """Tuples at which the distribution changes at once."""
    every = getattr(workload, "every", None)
    return () if every is None else tuple(range(every, workload.n_tuples, every))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name when it is complete, in place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield draft
        if path.exists():
            shutil.rmtree(path)
        os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_record(folder: Path, job: Job, record: Record) -> None:
    """Write settings, summary and slides (with the loads) into a folder."""
    settings = {**asdict(job), "identity": job.identity}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    outcome = {
        "partitioner": record.partitioner,
        "workload": record.workload,
        "n_workers": record.n_workers,
        "seed": record.seed,
        "shifts": list(record.shifts),
        "changes": list(record.changes),
        # JSON has no NaN.
        "summary": {name: value if math.isfinite(value) else None for name, value in record.summary.items()},
    }
    (folder / "summary.json").write_text(json.dumps(outcome, indent=2), encoding="utf-8")
    loads = pd.DataFrame(record.loads, columns=[f"{LOAD}{w}" for w in range(record.n_workers)])
    pd.concat([record.slides, loads], axis=1).to_parquet(folder / "slides.parquet", index=False)
    if len(record.rounds):
        record.rounds.to_parquet(folder / "rounds.parquet", index=False)


def read_record(folder: Path) -> Record:
    """Read what `write_record` wrote."""
    outcome = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    table = pd.read_parquet(folder / "slides.parquet")
    columns = [name for name in table.columns if name.startswith(LOAD)]
    rounds = folder / "rounds.parquet"
    return Record(
        partitioner=outcome["partitioner"],
        workload=outcome["workload"],
        n_workers=outcome["n_workers"],
        seed=outcome["seed"],
        summary={name: math.nan if value is None else value for name, value in outcome["summary"].items()},
        slides=table.drop(columns=columns),
        loads=table[columns].to_numpy(np.int64),
        shifts=tuple(outcome["shifts"]),
        rounds=pd.read_parquet(rounds) if rounds.exists() else pd.DataFrame(),
        changes=tuple(outcome.get("changes", ())),
    )
