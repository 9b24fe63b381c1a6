"""The runtimes ``cooperative`` and ``ray``: partitioners that learn one policy, measured like any other."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from dalton.agents.cooperation import Cooperation
from dalton.agents.dalton import Dalton
from dalton.agents.forwarding import Forwarding, recalled
from dalton.agents.member import warm_up
from dalton.agents.protocol import Round
from dalton.agents.supervisor import RayRouter, connected, import_ray
from dalton.envs.cluster import Cluster
from dalton.envs.contract import Partitioner, Workers
from dalton.envs.errors import ConfigError
from dalton.envs.simulate import Result, drive
from dalton.envs.window import Window
from dalton.envs.workloads import Chunk, Workload
from dalton.experiments.registry import partitioner_config, partitioner_names

if TYPE_CHECKING:
    from dalton.experiments.settings import Job

# Series of the rounds that are recorded through time.
SERIES = ("time", "dsync", "disagreement")


class Outcome(NamedTuple):
    """What a run of cooperating partitioners measured."""

    result: Result
    rounds: pd.DataFrame
    """A row per round, columns as in `Round`."""
    summary: dict[str, float]
    """What there is to say besides the result's summary."""


def cooperating_names() -> list[str]:
    """Partitioners that can cooperate."""
    return [name for name in partitioner_names() if partitioner_config(name)[0] is Dalton]


def _params(job: Job) -> dict[str, Any]:
    """Parameters of a `Member`: a message names the most frequent keys, so a hybrid statistic stays exact."""
    given = dict(job.params)
    if given.get("statistics") == "hybrid":
        given["statistics"] = "exact"
    return {**given, "n_workers": job.cluster.n_workers, "seed": job.seed}


def check(job: Job, workload: Workload) -> None:
    """Refuse what cannot cooperate, in one line, before anything runs."""
    allowed = cooperating_names()
    if job.partitioner not in allowed:
        raise ConfigError(
            f"partitioner = {job.partitioner}: runtime={job.runtime.name} needs one that cooperates, "
            f"{' or '.join(allowed)}; the others run with runtime=simulator and view local"
        )
    if job.runtime.name == "ray":
        import_ray(local=job.runtime.address is None)  # type: ignore[union-attr]
        _ray_router(job, None, workload)
    else:
        _InProcess(job, workload)


class _InProcess:
    """The router of runtime=cooperative."""

    def __init__(self, job: Job, workload: Workload) -> None:
        settings = {key: value for key, value in asdict(job.runtime).items() if key != "name"}
        self.all = Cooperation(n_partitioners=workload.n_sources, **settings, **_params(job))
        self.seconds = 0.0

    def route(self, chunk: Chunk) -> Workers:
        started = time.perf_counter()
        workers = self.all.route(chunk.keys, chunk.sources, chunk.times)
        self.seconds += time.perf_counter() - started
        return workers

    def probe(self, cluster: Cluster) -> None:
        """Nothing to take."""


def _ray_router(job: Job, ray: Any, workload: Workload) -> RayRouter:
    settings = asdict(job.runtime)
    for name in ("name", "address", "num_cpus"):
        del settings[name]
    return RayRouter(ray, workload, **settings, **_params(job))


def run(job: Job, partitioner: Partitioner, workload: Workload, *, show_progress: bool = True) -> Outcome:
    """Run a job whose runtime is ``cooperative`` or ``ray``."""
    window = Window.of(job.cluster.window)
    assert window is not None
    if job.cluster.queue is not None:
        raise ConfigError(f"runtime.name = {job.runtime.name!r}: expected 'simulator' with cluster.queue")
    rounds: list[Round]
    with ExitStack() as stack:
        router: Any
        if job.runtime.name == "ray":
            address, cpus = job.runtime.address, job.runtime.num_cpus  # type: ignore[union-attr]
            ray = stack.enter_context(connected(address, cpus))
            router = stack.enter_context(_ray_router(job, ray, workload))
        else:
            router = _InProcess(job, workload)
            warm_up(router.all.members[0].params)
        result = drive(
            router,
            workload,
            name=repr(partitioner),
            n_workers=job.cluster.n_workers,
            window=window,
            n_reducers=job.cluster.n_reducers,
            capacity=job.cluster.capacity,
            application=job.application,
            show_progress=show_progress,
            label=f"{workload.n_sources} x {type(partitioner).__name__} on {type(workload).__name__}",
            settings={"runtime": job.runtime.name},
        )
        if isinstance(router, RayRouter):
            rounds, forwarding = [one for _, one in sorted(router.rounds.items())], router.forwarding
            faults = {"restarts": router.restarts, "reducer_restarts": router.reducer_restarts}
        else:
            rounds, forwarding, faults = router.all.rounds, router.all.forwarding, {}
    result, share = with_forwarding(result, forwarding)
    table = pd.DataFrame(rounds, columns=list(Round._fields))
    summary = {"rounds": float(len(rounds)), "rounds_silent": float((table["silent"] > 0).sum())}
    summary |= {f"round_{name}": float(table[name].mean()) for name in SERIES if rounds}
    summary |= {"forwarding": share, "partitioners": float(workload.n_sources)}
    return Outcome(result, table, summary | {name: float(value) for name, value in faults.items()})


def with_forwarding(result: Result, forwarding: Forwarding) -> tuple[Result, float]:
    """The result with pairs merged as key forwarding allows, and the share of slides that forward.

    In a slide that forwards, keys that are on one worker skip the reducers; the few that were recalled
    although they are on one worker again are taken to skip them too.
    """
    tables = forwarding.tables()
    ends = [slide.seen for slide in result.slides]
    slides, on = [], 0
    for slide, end, following in zip(result.slides, ends, [*ends[1:], ends[-1] if ends else 0], strict=True):
        forwards = recalled(tables, end, following) is not None
        on += forwards
        slides.append(slide if forwards else slide._replace(aggregation_split=slide.aggregation_cost))
    return replace(result, slides=slides), on / max(1, len(slides))
