"""Time per tuple of every partitioner beside a floor, and per step of the environments beside CartPole."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dalton.envs.cluster import Cluster
from dalton.envs.contract import Partitioner
from dalton.envs.errors import check_int
from dalton.envs.hashing import hash_workers, member
from dalton.envs.progress import progress
from dalton.envs.servers import Histogram, Servers
from dalton.envs.window import DEFAULT_WINDOW
from dalton.envs.workloads import Workload, make_workload
from dalton.experiments.registry import make

BATCH = 200_000
N_KEYS = 100_000
Keys = NDArray[np.int64]


def fastest(work: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of ``repeat`` runs."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _floor(keys: Keys, repeat: int) -> float:
    """Read the key, hash it, store a worker: nothing that routes by key can do less."""
    out = np.empty(len(keys), np.int32)
    seed = member(0)
    hash_workers(keys[:1], seed, 64, out)
    return fastest(lambda: hash_workers(keys, seed, 64, out), repeat)


def _routing(partitioner: Partitioner, keys: Keys, repeat: int) -> float:
    partitioner.route(keys[:BATCH])  # compiles, or loads from the cache

    def once() -> None:
        partitioner.reset()
        for low in range(0, len(keys), BATCH):
            partitioner.route(keys[low : low + BATCH])

    return fastest(once, repeat)


def _observing(keys: Keys, repeat: int) -> float:
    workers = np.empty(len(keys), np.int32)
    hash_workers(keys, member(0), 64, workers)

    def once() -> None:
        cluster = Cluster(n_workers=64, window=DEFAULT_WINDOW)
        for low in range(0, len(keys), BATCH):
            cluster.observe(keys[low : low + BATCH], workers[low : low + BATCH])

    once()
    return fastest(once, repeat)


def _serving(n_tuples: int, repeat: int) -> float:
    """Equal tuples in turn to 64 workers that are busy 90 % of the time, completion times counted."""
    workers = (np.arange(n_tuples) % 64).astype(np.int32)
    times, costs = np.arange(n_tuples) / 64.0, np.full(n_tuples, 0.9)

    def once() -> None:
        servers, found = Servers(n_workers=64), Histogram()
        for low in range(0, n_tuples, BATCH):
            part = slice(low, low + BATCH)
            found.add(servers.serve(workers[part], times[part], costs[part]))

    once()
    return fastest(once, repeat)


def _drain(workload: Workload) -> None:
    for _ in workload.chunks():
        pass


STREAM, CART = "dalton.envs:dalton/StreamPartition-v0", "CartPole-v1"


def _steps(env: gym.Env[Any, Any], steps: int) -> Callable[[], None]:
    env.reset(seed=0)
    actions = int(env.action_space.n)  # type: ignore[attr-defined]

    def once() -> None:
        for i in range(steps):
            _, _, terminated, truncated, _ = env.step(i % actions)
            if terminated or truncated:
                env.reset()

    return once


def _vector_steps(env: VectorEnv[Any, Any, Any], steps: int) -> Callable[[], None]:
    env.reset(seed=0)
    actions = env.action_space.sample()

    def once() -> None:
        for _ in range(steps):
            env.step(actions)

    return once


def environments(copies: int = 64, steps: int = 20_000, repeat: int = 3) -> None:
    """Measure the environments beside Gymnasium's CartPole, single and vector, in the same run."""
    singles = {name: fastest(_steps(gym.make(name), steps), repeat) / steps for name in (STREAM, CART)}
    mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
    count = steps // 10
    vectors = {}
    for name in (STREAM, CART):
        env = gym.make_vec(name, num_envs=copies, vectorization_mode=mode)
        vectors[name] = copies * count / fastest(_vector_steps(env, count), repeat)
    table = Table("environment", "one copy: us per step", f"{copies} copies: M steps/s", title="Environments")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in (STREAM, CART):
        time_ratio, rate_ratio = singles[name] / singles[CART], vectors[name] / vectors[CART]
        table.add_row(
            name.rpartition(":")[2],
            f"{1e6 * singles[name]:.2f} ({time_ratio:.2f}x)",
            f"{vectors[name] / 1e6:.2f} ({rate_ratio:.2f}x)",
        )
    Console().print(table)


def tracking(name: str = "dalton", n_tuples: int = 10_000_000, repeat: int = 3) -> None:
    """Measure what recording a run in MLflow costs, as a share of the run itself."""
    from dalton.experiments.execute import execute, write_record
    from dalton.experiments.settings import Cluster as Workers
    from dalton.experiments.settings import Job, Runtime, Tracking
    from dalton.experiments.tracking import FINISHED, Store, job_tags

    stream = {"name": "zipf", "exponent": 1.4, "n_tuples": n_tuples}
    cluster = Workers(n_workers=64, window={"size": DEFAULT_WINDOW.size, "slide": DEFAULT_WINDOW.slide})
    job = Job(name, {}, stream, cluster, Runtime(), 0, name, "zipf")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Tracking(uri=f"sqlite:///{folder}/mlflow.db"))
        result = Path(folder) / "result"
        result.mkdir()
        record = execute(job, show_progress=False)
        write_record(result, job, record)

        def once() -> None:
            run = store.start(job.title, tags=job_tags(job))
            store.log_params(run, job.flat())
            store.log_record(run, record, result)
            store.end(run, FINISHED)

        once()
        recording = fastest(once, repeat)
        running = fastest(lambda: execute(job, show_progress=False), repeat)
    Console().print(
        f"MLflow: {1e3 * recording:.0f} ms to record a run of {name} with {n_tuples:,} tuples, "
        f"which takes {running:.2f} s ({recording / running:.1%})"
    )


def run(names: list[str], counts: list[int], exponents: list[float], n_tuples: int, repeat: int) -> None:
    """Measure and print."""
    check_int("tuples", n_tuples, low=BATCH)
    check_int("repeat", repeat, low=1)
    partitioners = {(name, n): make(name, n_workers=n) for name in names for n in counts}
    workloads = {z: make_workload("zipf", n_tuples=n_tuples, n_keys=N_KEYS, exponent=z) for z in exponents}
    streams = {z: np.concatenate([c.keys for c in w.chunks()]) for z, w in workloads.items()}
    floors = {z: _floor(keys, max(5, repeat)) for z, keys in streams.items()}
    tables = {}
    with progress("benchmark", len(partitioners) * len(streams), "measurements") as advance:
        for z, keys in streams.items():
            tables[z] = Table(
                "partitioner", *(f"n = {n}" for n in counts), title=f"Zipf {z:g}: ns per tuple (x floor)"
            )
            for column in tables[z].columns[1:]:
                column.justify = "right"
            for name in names:
                cells = []
                for n in counts:
                    seconds = _routing(partitioners[name, n], keys, repeat)
                    cells.append(f"{1e9 * seconds / n_tuples:.1f} ({seconds / floors[z]:.0f}x)")
                    advance(1)
                tables[z].add_row(f"[bold]{name}[/]", *cells)
    console = Console()
    for z, keys in streams.items():
        generated = fastest(functools.partial(_drain, workloads[z]), repeat)
        observed = _observing(keys, repeat)
        served = _serving(n_tuples, repeat)
        console.print(tables[z])
        console.print(
            f"floor (read key, hash, store) {1e9 * floors[z] / n_tuples:.2f} ns per tuple; "
            f"stream generated at {n_tuples / generated / 1e6:.0f}M keys/s; "
            f"cluster state {1e9 * observed / n_tuples:.1f} ns per tuple (n = 64); "
            f"queues {n_tuples / served / 1e6:.0f}M tuples/s (n = 64)"
        )
