"""Finished simulations, and what their seeds say together: means, intervals, paired differences.

Intervals are 95 % Student-t intervals of a mean over seeds: mean ± t(0.975, k - 1) · s / √k for k seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dalton.envs.errors import ConfigError, check_choice
from dalton.envs.simulate import Result

CONFIDENCE = 0.95


class Metric(NamedTuple):
    """How a number of `Record.summary` is shown."""

    label: str
    spec: str
    """Format of the scaled value."""
    scale: float = 1.0
    higher: bool = False
    """Whether more is better."""

    def text(self, value: float) -> str:
        """The value as it is printed; a dash if it was not measured."""
        return "–" if math.isnan(value) else f"{value * self.scale:{self.spec}}"


METRICS = {
    "max_over_mean": Metric("max/mean load", ".3f"),
    "max_over_mean_worst": Metric("worst max/mean load", ".2f"),
    "replication": Metric("pairs per key", ".3f"),
    "regret_load": Metric("load regret", ".1%"),
    "regret_pairs": Metric("pairs regret", ".1%"),
    "aggregation_cost": Metric("pairs at the busiest reducer", ",.0f"),
    "pairs_max": Metric("most keys on a worker", ",.0f"),
    "ns_per_tuple": Metric("ns per tuple", ".1f"),
    "throughput": Metric("M tuples/s", ".2f", scale=1e-6, higher=True),
}
QUEUE_METRICS = {
    "completion_mean": Metric("mean completion time, ms", ",.2f", scale=1e3),
    "completion_p99": Metric("p99 completion time, ms", ",.2f", scale=1e3),
    "completion_rate": Metric("k tuples/s completed", ",.2f", scale=1e-3, higher=True),
    "queue_max": Metric("longest queue", ",.0f"),
    "utilisation": Metric("utilisation", ".1%", higher=True),
    "offered_spread": Metric("spread of utilisation", ".3f"),
}
"""Those of simulations with a queue model."""
ANSWER_METRICS = {
    "answer_error": Metric("error of the answer", ".2e"),
    "answer_memory": Metric("counters in memory", ",.0f"),
    "answer_merged": Metric("partial results merged", ",.0f"),
    "answer_work": Metric("max/mean operations", ".3f"),
}
"""Those of simulations with an application."""
METRICS |= QUEUE_METRICS | ANSWER_METRICS


@dataclass(frozen=True, eq=False)
class Record:
    """One finished simulation."""

    partitioner: str
    workload: str
    """A short label, like ``zipf 1.4``."""
    n_workers: int
    seed: int
    summary: dict[str, float] = field(repr=False)
    """`Result.summary`, and ``throughput`` in tuples/s if it is known."""
    slides: pd.DataFrame = field(repr=False)
    """`Result.to_pandas`, a row per slide."""
    loads: NDArray[np.int64] = field(repr=False)
    """``(slides, n)`` tuples per worker in the window, at the end of every slide."""
    shifts: tuple[int, ...] = ()
    """Tuple positions at which the distribution changes: the first tuple of each new one."""
    changes: tuple[int, ...] = ()
    """Tuple positions at which capacities change (`dalton.envs.queueing.Queue.schedule`)."""
    rounds: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    """A row per round of cooperating partitioners (`dalton.agents.protocol.Round`); empty for others."""

    @property
    def marks(self) -> tuple[int, ...]:
        """Tuple positions at which the stream or a worker changes."""
        return tuple(sorted({*self.shifts, *self.changes}))

    @classmethod
    def of(
        cls,
        result: Result,
        *,
        partitioner: str,
        workload: str,
        seed: int,
        throughput: float | None = None,
        shifts: Sequence[int] = (),
    ) -> Record:
        """The record of a simulation's result."""
        summary = result.summary()
        if throughput is not None:
            summary["throughput"] = float(throughput)
        n = result.loads.shape[1]
        return cls(
            partitioner, workload, n, seed, summary, result.to_pandas(), result.loads, tuple(map(int, shifts))
        )


Setting = tuple[str, int]
Runs = dict[str, list[Record]]


def grouped(records: Iterable[Record]) -> dict[Setting, Runs]:
    """Records by (workload, n_workers), then by partitioner, then ordered by seed.

    Workloads and partitioners keep the order in which they come, numbers of workers ascend.

    Raises:
        ConfigError: A simulation is there twice, which would make every interval too narrow.
    """
    groups: dict[str, dict[int, Runs]] = {}
    for record in records:
        runs = groups.setdefault(record.workload, {}).setdefault(record.n_workers, {})
        runs.setdefault(record.partitioner, []).append(record)
    ordered = {(workload, n): sizes[n] for workload, sizes in groups.items() for n in sorted(sizes)}
    for (workload, n), runs in ordered.items():
        for name, same in runs.items():
            same.sort(key=lambda record: record.seed)
            if len({record.seed for record in same}) < len(same):
                raise ConfigError(f"records: {name} on {workload}, {n} workers, has a seed more than once")
    return ordered


def single(records: Iterable[Record]) -> tuple[Setting, Runs]:
    """The only (workload, n_workers) of the records, and its runs with the best partitioner first."""
    groups = grouped(records)
    if len(groups) != 1:
        raise ConfigError(f"records: expected one workload and number of workers, not {len(groups)}")
    ((setting, runs),) = groups.items()
    return setting, {name: runs[name] for name in _best_first(runs)}


def _values(runs: list[Record], metric: str) -> list[float]:
    return [record.summary.get(metric, math.nan) for record in runs]


def _best_first(runs: Runs) -> list[str]:
    """By balance as it is printed, then by pairs: a difference in the fourth digit is no merit."""

    def order(name: str) -> tuple[float, float]:
        load, pairs = (
            interval(_values(runs[name], metric))[0] for metric in ("max_over_mean", "replication")
        )
        return math.inf if math.isnan(load) else round(load, 3), math.inf if math.isnan(pairs) else pairs

    return sorted(runs, key=order)


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % Student-t interval.

    NaN values, which were not measured, are left out. The half-width is NaN for fewer than two values,
    the mean for none.
    """
    known = np.array([value for value in values if not math.isnan(value)], np.float64)
    if not len(known):
        return math.nan, math.nan
    mean = float(known.mean())
    if len(known) < 2:
        return mean, math.nan
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return mean, quantile * float(known.std(ddof=1)) / math.sqrt(len(known))


def summarise(records: Iterable[Record]) -> pd.DataFrame:
    """A row per (workload, n_workers, partitioner), the best balance first.

    Returns:
        Columns ``workload``, ``n_workers``, ``partitioner``, ``seeds``, and for every metric of `METRICS` its
        mean under its own name and the half-width of the interval under ``<metric>_ci``. Those of the queue
        model and of applications are there only if a record has them.
    """
    rows = []
    given = list(records)
    known = {name for record in given for name in record.summary}
    optional = QUEUE_METRICS | ANSWER_METRICS
    metrics = [name for name in METRICS if name in known or name not in optional]
    for (workload, n), runs in grouped(given).items():
        for name in _best_first(runs):
            row: dict[str, object] = {"workload": workload, "n_workers": n, "partitioner": name}
            row["seeds"] = len(runs[name])
            for metric in metrics:
                row[metric], row[f"{metric}_ci"] = interval(_values(runs[name], metric))
            rows.append(row)
    measured = [column for metric in metrics for column in (metric, f"{metric}_ci")]
    return pd.DataFrame(rows, columns=["workload", "n_workers", "partitioner", "seeds", *measured])


def paired(records: Iterable[Record], metric: str, reference: str) -> pd.DataFrame:
    """Mean difference of a metric to a reference partitioner, with its paired t interval over seeds.

    The same seed makes the same stream for both, so what the streams differ in cancels.

    Returns:
        A row per (workload, n_workers, partitioner) except the reference, the best first: ``difference``,
        ``difference_ci``, and ``seeds``, the number that both have. Settings without the reference have none.

    Raises:
        ConfigError: No record has the metric, or none is of the reference.
    """
    given = list(records)
    check_choice("metric", metric, {name for record in given for name in record.summary})
    check_choice("reference", reference, {record.partitioner for record in given})
    sign = -1.0 if metric in METRICS and METRICS[metric].higher else 1.0
    columns = ["workload", "n_workers", "partitioner", "difference", "difference_ci", "seeds"]
    rows: list[tuple[str, int, str, float, float, int]] = []
    for (workload, n), runs in grouped(given).items():
        known = _by_seed(runs.get(reference, []), metric)
        part = []
        for name in runs:
            own = _by_seed(runs[name], metric)
            gaps = [own[seed] - known[seed] for seed in own if seed in known]
            if name != reference and gaps:
                part.append((workload, n, name, *interval(gaps), len(gaps)))
        rows += sorted(part, key=lambda row: sign * row[3])
    return pd.DataFrame(rows, columns=columns)


def _by_seed(runs: list[Record], metric: str) -> dict[int, float]:
    values = {record.seed: record.summary.get(metric, math.nan) for record in runs}
    return {seed: value for seed, value in values.items() if not math.isnan(value)}


def bound(records: Iterable[Record]) -> tuple[float, float]:
    """What nothing can beat in one setting: the least max/mean load, and the fewest pairs per key at it.

    Both are read back from the regrets, and are means over slides and seeds as the metrics are. They are a
    bound of every window by itself; the oracle, which decides slide by slide, may need more pairs.
    """
    _, runs = single(records)
    load, pairs = [], []
    for record in {record.seed: record for same in runs.values() for record in same}.values():
        table = record.slides
        load.append(float((table["max_over_mean"] / (1 + table["regret_load"])).mean()))
        pairs.append(float((table["replication"] / (1 + table["regret_pairs"])).mean()))
    return interval(load)[0], interval(pairs)[0]
