"""Sustainable throughput of a stage: the slowest of partitioner, combiners and reducers.

The dataflow is that of Dalton Section 2: partitioners send tuples to n combiners, which aggregate them per
key and window; when a window ends, the partial results go, by hash of the key, to m reducers. All of them
work at the same time, so in the long run the slowest decides. Costs are times per unit of work (`Costs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dalton.envs.errors import ConfigError, check_flag, check_int, check_real
from dalton.envs.kernel import kernel
from dalton.envs.simulate import Result
from dalton.envs.table import EMPTY, capacity_for, encode, find
from dalton.envs.window import DEFAULT_WINDOW, Window
from dalton.envs.workloads import make_workload
from dalton.experiments.benchmark import fastest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STAGES = ("partitioner", "combiners", "reducers")
COMBINE_NS = 1000.0
MERGE_NS = 2000.0


@dataclass(frozen=True)
class Costs:
    """What a unit of work costs, in nanoseconds, and how many share it. `explain` says why these defaults."""

    combine_ns: float = COMBINE_NS
    """Time of a combiner per tuple and window that holds the tuple."""
    merge_ns: float = MERGE_NS
    """Time of a reducer per (key, worker) pair of a window."""
    n_reducers: int = 1
    """Reducers m, over which keys are hashed."""
    n_partitioners: int = 1
    """Partitioners that route at the same time, each an equal part of the tuples."""
    forwarding: bool = False
    """Whether keys on one worker skip the reducers (Section 4.2)."""

    def __post_init__(self) -> None:
        for name in ("combine_ns", "merge_ns"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), low=0))
        for name in ("n_reducers", "n_partitioners"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low=1))
        check_flag("forwarding", self.forwarding)


@dataclass(frozen=True)
class Throughput:
    """What `throughput` found; stages are in the order of `STAGES`."""

    tuples: Floats = field(repr=False)
    """``(slides,)`` tuples of every slide."""
    seconds: Floats = field(repr=False)
    """``(slides, 3)`` time that every stage needs for a slide."""
    warm_up: int
    """Slides at the start that the totals leave out."""

    @property
    def limits(self) -> Floats:
        """Tuples/s that every stage could sustain, shape ``(slides, 3)``; infinite where it does nothing."""
        return _rate(self.tuples[:, None], self.seconds)

    @property
    def per_slide(self) -> Floats:
        """Tuples/s of every slide, shape ``(slides,)``: the least of its limits."""
        return _rate(self.tuples, self.seconds.max(axis=1, initial=0.0))

    @property
    def bottlenecks(self) -> list[str]:
        """The slowest stage of every slide; of equals the first."""
        return [STAGES[at] for at in self.seconds.argmax(axis=1)]

    @property
    def bottleneck(self) -> str:
        """The stage that is the slowest for most of the time; of equals the first."""
        return STAGES[int(np.argmax(self._shares()))]

    def _shares(self) -> Floats:
        """Share of the time in which each stage is the slowest, shape ``(3,)``."""
        seconds = self.seconds[self.warm_up :]
        slowest = seconds.argmax(axis=1)
        times = seconds.max(axis=1, initial=0.0)
        shares = np.array([times[slowest == stage].sum() for stage in range(len(STAGES))])
        shares /= max(times.sum(), np.finfo(np.float64).tiny)
        return shares

    @property
    def summary(self) -> dict[str, float]:
        """Tuples/s over the slides after the warm-up, and what limits them.

        ``throughput`` is Σ_t x_t / Σ_t T_t (see `throughput`), ``limit_<stage>`` the same with T_t the time
        of one stage, ``bottleneck_<stage>`` the share of Σ_t T_t in which the stage is the slowest.
        """
        tuples, seconds = self.tuples[self.warm_up :].sum(), self.seconds[self.warm_up :]
        totals = [seconds.max(axis=1, initial=0.0).sum(), *seconds.sum(axis=0)]
        names = ["throughput", *(f"limit_{stage}" for stage in STAGES)]
        rates = _rate(np.full(len(totals), tuples), np.array(totals))
        found = dict(zip(names, rates.tolist(), strict=True))
        shares = zip(STAGES, self._shares().tolist(), strict=True)
        return found | {f"bottleneck_{stage}": share for stage, share in shares}


def _rate(tuples: Floats, seconds: Floats) -> Floats:
    """Tuples per second; infinite in no time, NaN without tuples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate: Floats = tuples / seconds
    return rate


def throughput(
    result: Result, costs: Costs, *, route_ns: float | None = None, warm_up: int | None = None
) -> Throughput:
    """How many tuples/s the stage of a simulation could sustain.

    In slide t with x_t tuples, and the window w that ends with it,

        T_partitioner = route_ns x_t / P                            P partitioners (Section 4),
        T_combiners   = combine_ns (W/s) x_t max_i L_i(w) / L(w)    L_i the load of combiner i (Eq. 1),
        T_reducers    = merge_ns max_j A_j(w)                       A_j the pairs of reducer j (Eq. 2),

    and the throughput is Σ_t x_t / Σ_t T_t with T_t the largest of the three. A combiner adds a tuple to the
    partial result of each of the W/s windows that hold it (Sections 2 and 3.3; Flink's windows do), while of
    these windows one ends with every slide, and only its pairs are merged: with full windows T_combiners is
    combine_ns max_i L_i(w), and both are costs of the window w. An engine that adds a tuple once, to its
    slide, has combine_ns s/W instead. Queues are taken to even out what is uneven within a window, but not
    more. Where workers differ in capacity, L_i is divided by c_i, of mean 1.

    With forwarding, A_j counts only the pairs of keys that are on two combiners or more in w (Section 4.2).
    That takes a partitioner that knows which keys it splits; the paper has it for Dalton and DAGreedy.

    Args:
        result: A simulation with ``n_reducers`` as in the costs.
        costs: Time per unit of work.
        route_ns: Time of a partitioner per tuple; what the simulation measured, slide by slide, if None.
        warm_up: Slides at the start that the totals leave out; if None the W/s - 1 that end before the first
            full window, or all but one.

    Returns:
        Times and rates per slide and in total.
    """
    window, n_reducers = result.settings.get("window"), result.settings.get("n_reducers")
    if not isinstance(window, Window) or n_reducers != costs.n_reducers:
        raise ConfigError(f"n_reducers = {costs.n_reducers}: expected {n_reducers}, as it was simulated")
    slides = len(result.slides)
    most = max(0, slides - 1)
    skipped = (
        min(window.n_slides - 1, most) if warm_up is None else check_int("warm_up", warm_up, low=0, high=most)
    )
    tuples = result.column("tuples")
    routing = result.column("ns_per_tuple") if route_ns is None else check_real("route_ns", route_ns, low=0)
    merged = result.column("aggregation_split" if costs.forwarding else "aggregation_cost")
    seconds = np.empty((slides, len(STAGES)))
    seconds[:, 0] = routing * tuples / costs.n_partitioners
    seconds[:, 1] = costs.combine_ns * window.n_slides * tuples * _busiest(result)
    seconds[:, 2] = costs.merge_ns * merged
    return Throughput(tuples, seconds / 1e9, skipped)


def _busiest(result: Result) -> Floats:
    """max_i L_i / c_i over L, shape ``(slides,)``: the part of the work that the busiest combiner has."""
    capacity = result.settings.get("capacity")
    relative = 1.0 if capacity is None else np.array(capacity) / np.mean(capacity)
    busiest: Floats = (result.loads / relative).max(axis=1, initial=0.0) / result.loads.sum(axis=1)
    return busiest


@kernel
def _fold(keys: Any, values: Any, table: Any, mark: Any, sums: Any) -> None:
    """Add every value to the sum of its key; a combiner does this per tuple, a reducer per pair."""
    for i in range(len(keys)):
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            table[slot] = keys[i]
            mark[slot] = 0
            sums[slot] = 0
        sums[slot] += values[i]


@dataclass(frozen=True)
class Calibration:
    """Measured on this machine: nanoseconds in compiled code, and what they were measured on."""

    combine_ns: float
    """Of a hash table increment per tuple."""
    merge_ns: float
    """Of adding a pair's partial result to that of its key."""
    tuples: int
    pairs: int
    exponent: float

    @property
    def ratio(self) -> float:
        """merge_ns / combine_ns: what decides where the bottleneck is."""
        return self.merge_ns / self.combine_ns


def calibrate(
    seed: int = 0,
    n: int = 200_000,
    *,
    n_workers: int = 16,
    n_keys: int = 100_000,
    exponent: float = 1.0,
    repeat: int = 5,
) -> Calibration:
    """Measure a combiner and a reducer that do nothing but their table work.

    A window of ``n`` Zipf tuples is shuffled over ``n_workers`` combiners, each with a table of its own; then
    one reducer merges all their pairs into one table. The two run the same code, the reducer with fewer
    repeated keys and a larger table. No window is measured twice, or the processor would know its branches.

    Args:
        seed: Of the stream.
        n: Tuples.
        n_workers: Combiners.
        n_keys: Keys of the Zipf distribution.
        exponent: Its exponent.
        repeat: Windows, of which the fastest counts.
    """
    length = check_int("n", n, low=1)
    windows = 1 + check_int("repeat", repeat, low=1)  # the first one compiles
    stream = make_workload("zipf", n_tuples=windows * length, n_keys=n_keys, exponent=exponent, seed=seed)
    measured = []
    for chunk in stream.chunks(length):
        shares = np.array_split(chunk.keys, check_int("n_workers", n_workers, low=1))
        partial = [encode(share) for share in shares]
        pairs = np.concatenate([part.distinct for part in partial])
        counts = np.concatenate([part.counts for part in partial])
        combine = sum(_folding(share, np.ones(len(share), np.int64)) for share in shares)
        measured.append((combine / length, _folding(pairs, counts) / len(pairs), len(pairs)))
    combine, merge, _ = np.min(measured[1:], axis=0)
    n_pairs = round(float(np.mean([pairs for _, _, pairs in measured[1:]])))
    return Calibration(1e9 * combine, 1e9 * merge, length, n_pairs, exponent)


def _folding(keys: Ints, values: Ints) -> float:
    """Seconds to fold the values, which are not seen twice, into an empty table with room for all."""
    size = capacity_for(len(np.unique(keys)))
    table, sums, mark = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, EMPTY, np.int32)
    return fastest(lambda: _fold(keys, values, table, mark, sums), 1)


def explain(seed: int = 0) -> None:
    """Measure what the work costs in compiled code and print it beside the defaults, with their reasons."""
    table = Table(
        "stream",
        "pairs per tuple",
        "combine ns",
        "merge ns",
        "ratio",
        title="Table work alone, measured here",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for exponent in (0.5, 1.0, 1.5):
        found = calibrate(seed, exponent=exponent)
        numbers = (found.pairs / found.tuples, found.combine_ns, found.merge_ns, found.ratio)
        table.add_row(f"{found.tuples:,} tuples, Zipf {exponent:g}", *(f"{number:.2f}" for number in numbers))
    n, slides = 64, DEFAULT_WINDOW.n_slides
    console = Console()
    console.print(table)
    console.print(
        f"Defaults: combine_ns = {COMBINE_NS:g} per tuple and window, merge_ns = {MERGE_NS:g} per pair.\n"
        f"Their ratio, {MERGE_NS / COMBINE_NS:g}, is the measured one at Zipf 1, rounded. It decides between "
        "combiners and reducers. A pair costs more than a tuple: its key is mostly not in the caches.\n"
        "The microsecond is a choice, not a measurement: an engine also parses, copies and sends tuples, "
        "which costs far more than the table work. It scales both stages alike; only where the partitioner, "
        "whose time is measured, becomes the bottleneck depends on it:\n"
        f"with {slides} slides per window, {n} combiners in balance take {COMBINE_NS * slides / n:.0f} ns "
        "per tuple, and a slower partitioner is the bottleneck."
    )
