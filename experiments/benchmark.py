"""Time per tuple of every partitioner beside a floor, and per step of the environments beside CartPole."""

from __future__ import annotations

import functools
import importlib.util
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

from dalton.agents.network import read_policy
from dalton.envs.cluster import Cluster
from dalton.envs.contract import Partitioner
from dalton.envs.errors import check_int
from dalton.envs.hashing import hash_workers, member
from dalton.envs.progress import progress
from dalton.envs.servers import Histogram, Servers
from dalton.envs.window import DEFAULT_WINDOW, Window
from dalton.envs.workloads import Workload, make_workload
from dalton.experiments.registry import make

BATCH = 200_000
N_KEYS = 100_000
Keys = NDArray[np.int64]


def fastest(work: Callable[[], object], repeat: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of ``repeat`` runs."""
    times = []
    for _ in range(repeat):
        started = clock()
        work()
        times.append(clock() - started)
    return min(times)


def _floor(keys: Keys, repeat: int) -> float:
    """Read the key, hash it, store a worker: nothing that routes by key can do less."""
    out = np.empty(len(keys), np.int32)
    seed = member(0)
    hash_workers(keys[:1], seed, 64, out)
    return fastest(lambda: hash_workers(keys, seed, 64, out), repeat)


def _routing(
    partitioner: Partitioner, keys: Keys, repeat: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    partitioner.route(keys[:BATCH])  # compiles, or loads from the cache

    def once() -> None:
        partitioner.reset()
        for low in range(0, len(keys), BATCH):
            partitioner.route(keys[low : low + BATCH])

    return fastest(once, repeat, clock)


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


def on_ray(n_tuples: int = 20_000_000, repeat: int = 3) -> None:
    """Measure partitioners on Ray beside the same without Ray, and two beside one; nothing without Ray.

    Tuples/s of a partitioner that makes its own tuples and routes them, messages, saved states and the
    hand-out of the stream included.
    """
    if importlib.util.find_spec("ray") is None:
        return
    from dalton.agents.member import Member, warm_up
    from dalton.agents.supervisor import RayRouter, connected

    n = 16

    def stream(sources: int) -> Workload:
        spec = {"name": "zipf", "exponent": 1.4, "n_keys": N_KEYS}
        return make_workload("multi", sources=[spec] * sources, n_tuples=sources * n_tuples)

    def bare() -> float:
        one = Member(n_workers=n, window=DEFAULT_WINDOW)
        started = time.perf_counter()
        for chunk in stream(1).chunks():
            one.route(chunk.keys)
        return n_tuples / (time.perf_counter() - started)

    def together(ray: Any, sources: int) -> float:
        window = Window(sources * DEFAULT_WINDOW.size, sources * DEFAULT_WINDOW.slide)
        with RayRouter(ray, stream(sources), n_workers=n, window=window, batch=sources * 2_000_000) as one:
            started = time.perf_counter()
            one.drain()
            return sources * n_tuples / (time.perf_counter() - started)

    warm_up({"n_workers": n, "window": DEFAULT_WINDOW})
    bare()
    found: dict[int, list[float]] = {0: [], 1: [], 2: []}
    with connected() as ray, progress("Ray", 3 * repeat, "measurements") as advance:
        # In turn, so that what else the machine does falls on all of them.
        for _ in range(repeat):
            for sources, rates in found.items():
                rates.append(together(ray, sources) if sources else bare())
                advance(1)
    without, one, two = (max(rates) for rates in found.values())
    Console().print(
        f"Ray: one partitioner {one / 1e6:.1f}M tuples/s ({one / without:.0%} of the same without Ray), "
        f"two {two / 1e6:.1f}M ({two / one:.2f}x one)"
    )


def decisions(checkpoints: list[str], repeat: int = 3) -> None:
    """Measure trained policies where every tuple is a decision: all keys are hot.

    Beside them, on the same stream of n / 2 equally frequent keys: what decides without a network. It is the
    processor's time that counts: what takes long would else be charged for what other programs do.
    """
    check_int("repeat", repeat, low=1)
    n_tuples, window = BATCH, Window(20_000, 2_000)
    table = Table("partitioner", "n", "ns per decision", title="Every tuple is of a hot key")
    for column in table.columns[1:]:
        column.justify = "right"
    found = [(folder, read_policy(folder)) for folder in checkpoints]
    for n in sorted({policy.n_workers for _, policy in found}):
        stream = make_workload("uniform", n_tuples=n_tuples, n_keys=max(1, n // 2))
        keys = np.concatenate([chunk.keys for chunk in stream.chunks()])
        rows = {"pkg": make("pkg", n_workers=n)}
        rows |= {name: make(name, n_workers=n, window=window) for name in ("dagreedy", "dalton")}
        for folder, policy in found:
            if policy.n_workers == n:
                kind = "rllib" if policy.kind == "stream" else "rllib_batch"
                widths = "-".join(str(len(bias)) for _, bias in policy.layers)
                label = f"{kind} {Path(folder).name} ({policy.widths[0]}-{widths})"
                rows[label] = make(kind, n_workers=n, window=window, checkpoint=folder)
        times = {
            name: _routing(partitioner, keys, 10 * repeat) / n_tuples for name, partitioner in rows.items()
        }
        for name, seconds in times.items():
            table.add_row(name, str(n), f"{1e9 * seconds:.1f} ({seconds / times['dalton']:.1f}x dalton)")
    Console().print(table)


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
