"""The simulator: drives partitioners over a workload and measures every slide.

Three views of the load (PKG Section 5.1), which are the driver's choice and not the partitioner's:

- ``global`` (G): one partitioner routes the tuples of all sources, and so knows the load of all;
- ``local`` (L): every source has its own, which knows what it has sent itself;
- ``probing`` (LP): as local, and every ``probe_every`` the real loads replace the own estimate.

So is the measure of the load: tuples, or the time that the workers need for them. With a queue model
(`dalton.envs.queueing`) every tuple also has a completion time, with an application
(`dalton.envs.applications`) the workers also have answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dalton.envs.applications import Answers, ApplicationMeter, ApplicationSpec, make_application
from dalton.envs.cluster import Cluster
from dalton.envs.contract import Keys, Partitioner, Workers
from dalton.envs.errors import ConfigError, check_choice, check_int, check_real
from dalton.envs.metrics import (
    WindowCounts,
    aggregation_cost,
    capacity_imbalance,
    disagreement,
    excess,
    imbalance,
    max_over_mean,
    mean_of,
    replication,
    std_dev,
)
from dalton.envs.monitor import Monitor
from dalton.envs.pieces import CHUNK, Piece, clock_of, pieces_of, whole_slides
from dalton.envs.progress import progress
from dalton.envs.queueing import Queue, QueueMeter, Queues, QueueSlide, QueueSpec
from dalton.envs.window import DEFAULT_WINDOW, TICKS, CapacitySpec, Window, WindowSpec, check_capacity
from dalton.envs.workloads import Chunk, Workload

if TYPE_CHECKING:
    import pandas as pd

VIEWS = ("global", "local", "probing")


class Slide(NamedTuple):
    """Metrics at the end of a slide that had tuples, over the window unless said otherwise.

    They are defined in `dalton.envs.metrics`.
    """

    slide: int
    """Number of the slide: its start divided by its length."""
    tuples: int
    """Tuples in this slide."""
    seen: int
    """Tuples since the start."""
    imbalance: float
    """max - mean load, in tuples."""
    imbalance_total: float
    """max - mean load since the start, in tuples."""
    imbalance_capacity: float
    """max - mean of load over capacity: in tuples (of mean capacity), or in seconds if load is time."""
    max_over_mean: float
    """max / mean load."""
    std_dev: float
    """Standard deviation of the workers' shares, per cent."""
    keys: int
    """Distinct keys."""
    pairs: int
    """(key, worker) pairs: counters in memory on all workers together."""
    pairs_max: int
    """Pairs on the worker that has most."""
    replication: float
    """Pairs per key."""
    aggregation_cost: float
    """Pairs merged by the busiest reducer."""
    aggregation_split: float
    """As aggregation_cost with key forwarding: only pairs of keys on two workers or more are merged."""
    regret_load: float
    """Maximal load above the oracle's, as a fraction of it."""
    regret_pairs: float
    """Pairs above the lower bound at the oracle's load, as a fraction of it."""
    disagreement: float
    """Share of this slide's tuples that the global view would send elsewhere; NaN if not measured."""
    ns_per_tuple: float
    """Time of the partitioner in this slide."""


@dataclass(frozen=True)
class Result:
    """What a simulation measured."""

    partitioner: str
    """The call that makes the partitioner."""
    workload: str
    """The call that makes the workload."""
    slides: list[Slide] = field(repr=False)
    loads: NDArray[np.int64] = field(repr=False)
    """``(slides, n)`` tuples per worker in the window, at the end of every slide."""
    total: NDArray[np.int64] = field(repr=False)
    """``(n,)`` tuples per worker since the start."""
    settings: dict[str, Any] = field(default_factory=dict)
    queue: Queues | None = field(default=None, repr=False)
    """What the queue model measured, if there was one."""
    answers: Answers | None = field(default=None, repr=False)
    """What the application answered, if there was one."""

    def column(self, name: str) -> NDArray[np.float64]:
        """One metric of all slides, shape ``(slides,)``."""
        rows: list[Any] = self.slides
        if self.queue is not None and name in QueueSlide._fields:
            rows = self.queue.slides
        return np.array([getattr(row, name) for row in rows], np.float64)

    def summary(self) -> dict[str, float]:
        """One number per metric: means over slides, except where the name says otherwise.

        ``imbalance_fraction`` is the PKG papers' measure: the mean over slides of the imbalance since the
        start, divided by the tuples of the stream.
        """
        tuples = self.column("tuples")
        m = float(tuples.sum())
        means = {name: mean_of(self.column(name)) for name in Slide._fields[3:-2]}
        weights = tuples / m if m else tuples
        return {
            "tuples": m,
            **{name: value for name, value in means.items() if name != "imbalance_total"},
            "imbalance_fraction": means["imbalance_total"] / m if m else 0.0,
            "max_over_mean_worst": float(np.max(self.column("max_over_mean"), initial=1.0)),
            "max_over_mean_total": max_over_mean(self.total),
            "disagreement": float(weights @ self.column("disagreement")),
            # The median: a slide takes less than a time slice, and some wait for other processes.
            "ns_per_tuple": float(np.median(self.column("ns_per_tuple"))) if m else math.nan,
            **(self.queue.summary() if self.queue else {}),
            **(self.answers.summary() if self.answers else {}),
        }

    def to_pandas(self) -> pd.DataFrame:
        """The slides as a data frame, a row per slide."""
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError(
                "pandas is not installed: expected it for to_pandas; pip install dalton[data]"
            ) from None
        table = pd.DataFrame(self.slides, columns=list(Slide._fields))
        if self.queue is not None:
            table = table.join(pd.DataFrame(self.queue.slides, columns=list(QueueSlide._fields)))
        if self.answers is not None:
            # A slide has the numbers of the period that it belongs to.
            at = np.searchsorted(self.answers.column("slide"), table["slide"])
            table["answer_error"] = self.answers.column("error")[at]
            table["answer_work"] = self.answers.imbalance[at]
        return table


class Router(Protocol):
    """What `drive` drives: everything between a stream and the workers."""

    seconds: float
    """Time spent routing since it was last set to 0."""

    def route(self, chunk: Chunk) -> Workers:
        """The worker of every tuple."""

    def probe(self, cluster: Cluster) -> None:
        """Take the real loads."""


class _Sources:
    """The partitioners of all sources behind one ``route``."""

    def __init__(
        self, partitioner: Partitioner, n_sources: int, view: str, meter: QueueMeter | None = None
    ) -> None:
        many = n_sources if view != "global" else 1
        self.all = [partitioner, *(_twin(partitioner) for _ in range(many - 1))]
        self.seconds = 0.0
        self.monitor: Monitor | None = None
        if meter is not None and partitioner.slot is not None:
            self.monitor = Monitor(partitioner.slot, meter.servers)
        # Compiled or loaded from the cache before anything is timed, with enough keys and time to reach also
        # what runs only now and then.
        twin = _twin(partitioner)
        twin.report(np.zeros(twin.n_workers))
        twin.route(np.arange(2000), np.linspace(0.0, 1000.0, 2000), np.full(2000, 0.001))

    def prepare(self, workload: Workload, chunk_size: int) -> None:
        counts = WindowCounts(1)
        for chunk in workload.chunks(chunk_size):
            counts.observe(chunk.keys)
        counts.close(0)
        _, keys, tuples = counts.past[0]
        for partitioner in self.all:
            partitioner.prepare(keys, tuples)

    def route(self, chunk: Chunk) -> Workers:
        if self.monitor is None:
            return self._send(chunk)
        return self.monitor.drive(chunk, self._send, self._report)

    def _report(self, utilisation: NDArray[np.float64]) -> None:
        for partitioner in self.all:
            partitioner.report(utilisation)

    def _send(self, chunk: Chunk) -> Workers:
        started = time.perf_counter()
        if len(self.all) == 1:
            workers = self.all[0].route(chunk.keys, chunk.times, chunk.costs)
        else:
            workers = np.empty(len(chunk.keys), np.int32)
            assert chunk.sources is not None
            for source, partitioner in enumerate(self.all):
                own = np.flatnonzero(chunk.sources == source)
                times = None if chunk.times is None else chunk.times[own]
                costs = None if chunk.costs is None else chunk.costs[own]
                workers[own] = partitioner.route(chunk.keys[own], times, costs)
        self.seconds += time.perf_counter() - started
        return workers

    def probe(self, cluster: Cluster) -> None:
        for partitioner in self.all:
            partitioner.probe(*cluster.measured)


def _twin(partitioner: Partitioner) -> Partitioner:
    """A new one with the same parameters, the same measure of load and the same workers."""
    twin = type(partitioner)(**partitioner.params)
    if partitioner.pace is not None:
        twin.measure("time", TICKS / partitioner.pace)
    if partitioner.employed is not None:
        twin.employ(*partitioner.employed)
    return twin


def simulate(
    partitioner: Partitioner,
    workload: Workload,
    *,
    window: WindowSpec = DEFAULT_WINDOW,
    view: str = "global",
    probe_every: float | None = None,
    n_reducers: int = 1,
    capacity: CapacitySpec = None,
    measure: str = "tuples",
    queue: QueueSpec = None,
    application: ApplicationSpec = None,
    compare_global: bool = False,
    show_progress: bool = True,
    chunk_size: int = CHUNK,
) -> Result:
    """Route a workload and measure every slide.

    Args:
        partitioner: Routes the tuples of the first source, or of all of them, going on from its present
            state. Further sources get new ones with the same parameters.
        workload: The stream.
        window: The workers' window; slides are the unit of measurement.
        view: ``global``, ``local`` or ``probing``.
        probe_every: Interval of probing, in tuples or in seconds as the window is.
        n_reducers: Reducers that merge the pairs, by hash of the key.
        capacity: Relative capacities of the workers, shape ``(n,)``, or ``{"strong": y, "times": z}`` (see
            `check_capacity`); equal if None.
        measure: The load that partitioners see: ``tuples``, or ``time``, which is cost over capacity.
        queue: The queue model (a `Queue` or its fields); None for none. It gives every tuple a time and a
            cost, which the partitioners and a window in time see too. Partitioners with a ``slot`` are told
            how busy the workers are.
        application: What the workers compute (a name, or its parameters with ``name`` and ``every``); None
            for nothing.
        compare_global: Also route by the global view, to measure the disagreement with it.
        show_progress: Show a progress bar if it takes long.
        chunk_size: Tuples generated at a time; it changes nothing but memory and speed.

    Returns:
        Metrics of every slide that had tuples.
    """
    check_choice("view", view, VIEWS)
    span = Window.of(window)
    if span is None:
        raise ConfigError("window = None: the simulator needs a window, its slides are what is measured")
    strength = check_capacity(capacity, partitioner.n_workers)
    partitioner.measure(measure, strength)
    model = Queue.of(queue)
    meter = None if model is None else QueueMeter(model, workload, strength)
    partitioner.employ(strength, () if meter is None else meter.steps)
    if (view == "probing") != (probe_every is not None):
        raise ConfigError(
            f"probe_every = {probe_every}: expected a number for view 'probing' and none otherwise"
        )
    interval = _interval(probe_every, span)
    sources = _Sources(partitioner, workload.n_sources, view, meter)
    shadow = _Sources(_twin(partitioner), 1, "global", meter) if compare_global else None
    if partitioner.lookahead == "stream":
        for group in filter(None, (sources, shadow)):
            group.prepare(workload, chunk_size)
    chunks = workload.chunks(chunk_size) if meter is None else meter.chunks(chunk_size)
    pieces = pieces_of(chunks, span, interval)
    if partitioner.lookahead == "batch":
        pieces = whole_slides(pieces)
    return drive(
        sources,
        workload,
        name=repr(partitioner),
        n_workers=partitioner.n_workers,
        window=span,
        n_reducers=n_reducers,
        capacity=capacity,
        measure=measure,
        meter=meter,
        application=application,
        show_progress=show_progress,
        label=f"{type(partitioner).__name__} on {type(workload).__name__}",
        pieces=pieces,
        shadow=shadow,
        settings={"view": view, "probe_every": probe_every},
    )


def drive(
    router: Router,
    workload: Workload,
    *,
    name: str,
    n_workers: int,
    window: Window,
    n_reducers: int = 1,
    capacity: CapacitySpec = None,
    measure: str = "tuples",
    meter: QueueMeter | None = None,
    application: ApplicationSpec = None,
    show_progress: bool = True,
    label: str = "routing",
    pieces: Iterator[Piece] | None = None,
    shadow: Router | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Result:
    """Measure every slide of a workload that ``router`` routes; `simulate` is this with a partitioner.

    Args:
        router: Routes, and knows the time it takes.
        workload: The stream.
        name: The call that makes the partitioner.
        n_workers: Number of workers n.
        window: The workers' window.
        n_reducers: See `simulate`.
        capacity: See `simulate`.
        measure: See `simulate`.
        meter: The queues in front of the workers; None for none.
        application: See `simulate`.
        show_progress: See `simulate`.
        label: What the progress bar is called.
        pieces: The stream as it is handed to the router; None to cut it where slides end.
        shadow: Another router, the disagreement with which is measured.
        settings: What else the result should know.
    """
    strength = check_capacity(capacity, n_workers)
    cluster = Cluster(
        n_workers=n_workers, window=window, n_reducers=n_reducers, measure=measure, capacity=strength
    )
    computed = make_application(application, n_workers)
    judge = None if computed is None else ApplicationMeter(computed[0], computed[1] or window.n_slides)
    counts = WindowCounts(window.n_slides)
    slides: list[Slide] = []
    loads: list[Keys] = []
    tuples = differing = 0
    with progress(label, workload.n_tuples, "tuples", show=show_progress) as advance:
        for slide, chunk, probe, last in pieces or pieces_of(workload.chunks(CHUNK), window):
            if probe:
                router.probe(cluster)
            workers = router.route(chunk)
            if shadow is not None:
                differing += disagreement(workers, shadow.route(chunk))
            cluster.observe(chunk.keys, workers, clock_of(chunk, window), chunk.costs)
            sent = None if judge is None else judge.observe(slide, chunk.start, chunk.keys, workers)
            if meter is not None:
                meter.observe(chunk, workers, sent)
            counts.observe(chunk.keys)
            tuples += len(chunk.keys)
            advance(len(chunk.keys))
            if last:
                counts.close(slide)
                share = differing / tuples if shadow is not None else np.nan
                nanoseconds = 1e9 * router.seconds / tuples
                slides.append(_measure(slide, tuples, cluster, counts, strength, share, nanoseconds))
                loads.append(cluster.loads.load.copy())
                if meter is not None:
                    meter.close()
                router.seconds, tuples, differing = 0.0, 0, 0
    known = {"window": window, **settings, "n_reducers": n_reducers}
    known["capacity"] = None if capacity is None else strength.tolist()
    if measure != "tuples":
        known["measure"] = measure
    if meter is not None:
        known["queue"] = meter.queue
    if application is not None:
        known["application"] = application
    table = np.array(loads, np.int64).reshape(-1, n_workers)
    queues = None if meter is None else meter.result()
    answers = None if judge is None else judge.result()
    return Result(name, repr(workload), slides, table, cluster.total.copy(), known, queues, answers)


def _interval(probe_every: float | None, window: Window) -> float:
    if probe_every is None:
        return np.inf
    if window.by == "count":
        return check_int("probe_every", probe_every, low=1)
    return check_real("probe_every", probe_every, above=0)


def _measure(
    slide: int,
    tuples: int,
    cluster: Cluster,
    counts: WindowCounts,
    capacity: NDArray[np.float64],
    differing: float,
    nanoseconds: float,
) -> Slide:
    load = cluster.loads.load
    pairs = int(cluster.pairs.sum())
    best_load, best_pairs = counts.bound(cluster.n_workers)
    return Slide(
        slide=slide,
        tuples=tuples,
        seen=int(cluster.total.sum()),
        imbalance=imbalance(load),
        imbalance_total=imbalance(cluster.total),
        imbalance_capacity=capacity_imbalance(load, capacity)
        if cluster.busy is None
        else imbalance(cluster.busy.load / TICKS),
        max_over_mean=max_over_mean(load),
        std_dev=std_dev(load),
        keys=cluster.n_keys,
        pairs=pairs,
        pairs_max=int(cluster.pairs.max()),
        replication=replication(pairs, cluster.n_keys),
        aggregation_cost=aggregation_cost(cluster.merges),
        aggregation_split=aggregation_cost(cluster.merges_split),
        regret_load=excess(float(load.max()), best_load),
        regret_pairs=excess(pairs, best_pairs),
        disagreement=differing,
        ns_per_tuple=nanoseconds,
    )
