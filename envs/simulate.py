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

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from dalton.envs.progress import progress
from dalton.envs.queueing import Queue, QueueMeter, Queues, QueueSlide, QueueSpec
from dalton.envs.window import DEFAULT_WINDOW, TICKS, Window, WindowSpec, check_capacity
from dalton.envs.workloads import Chunk, Workload

if TYPE_CHECKING:
    import pandas as pd

VIEWS = ("global", "local", "probing")
CHUNK = 1 << 18


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


class Piece(NamedTuple):
    """Consecutive tuples of one slide, with no probe between them."""

    slide: int
    chunk: Chunk
    probe: bool
    """Whether the loads are probed before it."""
    last: bool
    """Whether the slide ends with it."""


def _pieces(chunks: Iterator[Chunk], window: Window, interval: float) -> Iterator[Piece]:
    """The stream cut at the ends of slides and at probes.

    A piece waits for the next tuple to know whether it is the last of its slide.
    """
    held: Piece | None = None
    tick = None
    for chunk in chunks:
        if not len(chunk.keys):
            continue
        times = _clock(chunk, window)
        cuts = {0, len(chunk.keys), *_steps(chunk, times, window.slide), *_steps(chunk, times, interval)}
        for low, high in itertools.pairwise(sorted(cuts)):
            at = chunk.start + low if times is None else float(times[low])
            previous, tick = tick, _number(at, interval)
            probe = previous not in (None, tick)
            piece = Piece(_number(at, window.slide), _cut(chunk, low, high), probe, last=False)
            if held is not None:
                yield held._replace(last=held.slide != piece.slide)
            held = piece
    if held is not None:
        yield held._replace(last=True)


def _clock(chunk: Chunk, window: Window) -> NDArray[np.float64] | None:
    """Arrival times where the window is in time; None where it counts tuples."""
    if window.by == "count":
        return None
    if chunk.times is None:
        raise ConfigError("window.by = 'time': expected a workload with times, not arrivals = 'count'")
    return chunk.times


def _number(at: float, step: float) -> int:
    """The interval that holds ``at``, by the same floor(t / s) as the workers' windows."""
    return 0 if step == np.inf else math.floor(at / step)


def _steps(chunk: Chunk, times: NDArray[np.float64] | None, step: float) -> NDArray[np.int64]:
    """Where in the chunk an interval of ``step`` begins."""
    if step == np.inf:
        return np.empty(0, np.int64)
    if times is not None:
        return np.flatnonzero(np.diff(np.floor(times / step))) + 1
    length = int(step)
    return np.arange(-chunk.start % length, len(chunk.keys), length)


def _cut(chunk: Chunk, low: int, high: int) -> Chunk:
    columns: Any = (None if column is None else column[low:high] for column in chunk[1:])
    return Chunk(chunk.start + low, *columns)


def _whole_slides(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces joined to whole slides, for partitioners that must see one before deciding."""
    held: list[Piece] = []
    for piece in pieces:
        held.append(piece)
        if piece.last:
            columns = zip(*(part.chunk[1:] for part in held), strict=True)
            joined: Any = (None if parts[0] is None else np.concatenate(parts) for parts in columns)
            chunk = Chunk(held[0].chunk.start, *joined)
            yield Piece(piece.slide, chunk, any(part.probe for part in held), last=True)
            held = []


class _Sources:
    """The partitioners of all sources behind one ``route``."""

    def __init__(self, partitioner: Partitioner, n_sources: int, view: str) -> None:
        many = n_sources if view != "global" else 1
        self.all = [partitioner, *(_twin(partitioner) for _ in range(many - 1))]
        self.seconds = 0.0
        # Compiled or loaded from the cache before anything is timed, with enough keys and time to reach also
        # what runs only now and then.
        _twin(partitioner).route(np.arange(2000), np.linspace(0.0, 1000.0, 2000), np.full(2000, 0.001))

    def prepare(self, workload: Workload, chunk_size: int) -> None:
        counts = WindowCounts(1)
        for chunk in workload.chunks(chunk_size):
            counts.observe(chunk.keys)
        counts.close(0)
        _, keys, tuples = counts.past[0]
        for partitioner in self.all:
            partitioner.prepare(keys, tuples)

    def route(self, chunk: Chunk) -> Workers:
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
    """A new one with the same parameters and the same measure of load."""
    twin = type(partitioner)(**partitioner.params)
    if partitioner.pace is not None:
        twin.measure("time", TICKS / partitioner.pace)
    return twin


def simulate(
    partitioner: Partitioner,
    workload: Workload,
    *,
    window: WindowSpec = DEFAULT_WINDOW,
    view: str = "global",
    probe_every: float | None = None,
    n_reducers: int = 1,
    capacity: ArrayLike | None = None,
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
        capacity: Relative capacities of the workers, shape ``(n,)``; equal if None.
        measure: The load that partitioners see: ``tuples``, or ``time``, which is cost over capacity.
        queue: The queue model (a `Queue` or its fields); None for none. It gives every tuple a time and a
            cost, which the partitioners and a window in time see too.
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
    n = partitioner.n_workers
    strength = check_capacity(capacity, n)
    partitioner.measure(measure, strength)
    model = Queue.of(queue)
    meter = None if model is None else QueueMeter(model, workload, strength)
    computed = make_application(application, n)
    judge = None if computed is None else ApplicationMeter(computed[0], computed[1] or span.n_slides)
    if (view == "probing") != (probe_every is not None):
        raise ConfigError(
            f"probe_every = {probe_every}: expected a number for view 'probing' and none otherwise"
        )
    interval = _interval(probe_every, span)
    sources = _Sources(partitioner, workload.n_sources, view)
    shadow = _Sources(_twin(partitioner), 1, "global") if compare_global else None
    cluster = Cluster(n_workers=n, window=span, n_reducers=n_reducers, measure=measure, capacity=strength)
    counts = WindowCounts(span.n_slides)
    if partitioner.lookahead == "stream":
        for group in filter(None, (sources, shadow)):
            group.prepare(workload, chunk_size)
    chunks = workload.chunks(chunk_size) if meter is None else meter.chunks(chunk_size)
    pieces = _pieces(chunks, span, interval)
    if partitioner.lookahead == "batch":
        pieces = _whole_slides(pieces)
    slides: list[Slide] = []
    loads: list[Keys] = []
    tuples = differing = 0
    label = f"{type(partitioner).__name__} on {type(workload).__name__}"
    with progress(label, workload.n_tuples, "tuples", show=show_progress) as advance:
        for slide, chunk, probe, last in pieces:
            if probe:
                sources.probe(cluster)
            workers = sources.route(chunk)
            if shadow is not None:
                differing += disagreement(workers, shadow.route(chunk))
            cluster.observe(chunk.keys, workers, _clock(chunk, span), chunk.costs)
            sent = None if judge is None else judge.observe(slide, chunk.start, chunk.keys, workers)
            if meter is not None:
                meter.observe(chunk, workers, sent)
            counts.observe(chunk.keys)
            tuples += len(chunk.keys)
            advance(len(chunk.keys))
            if last:
                counts.close(slide)
                share = differing / tuples if shadow is not None else np.nan
                nanoseconds = 1e9 * sources.seconds / tuples
                slides.append(_measure(slide, tuples, cluster, counts, strength, share, nanoseconds))
                loads.append(cluster.loads.load.copy())
                if meter is not None:
                    meter.close()
                sources.seconds, tuples, differing = 0.0, 0, 0
    settings = {"window": span, "view": view, "probe_every": probe_every, "n_reducers": n_reducers}
    settings["capacity"] = None if capacity is None else strength.tolist()
    if measure != "tuples":
        settings["measure"] = measure
    if model is not None:
        settings["queue"] = model
    if application is not None:
        settings["application"] = application
    table = np.array(loads, np.int64).reshape(-1, n)
    queues = None if meter is None else meter.result()
    answers = None if judge is None else judge.result()
    total = cluster.total.copy()
    return Result(repr(partitioner), repr(workload), slides, table, total, settings, queues, answers)


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
