"""Is a job skewed, and what would help? ``dalton spark diagnose``, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dalton.agents.dalton import Dalton
from dalton.baselines.d_choices import DChoices
from dalton.baselines.dagreedy import DAGreedy
from dalton.baselines.kg import KeyGrouping
from dalton.baselines.pkg import PartialKeyGrouping
from dalton.baselines.w_choices import WChoices
from dalton.envs.contract import Partitioner
from dalton.envs.errors import ConfigError, check_choice, check_int
from dalton.envs.metrics import max_over_mean, replication
from dalton.envs.progress import progress
from dalton.envs.window import Window

Loads = NDArray[np.float64]

TRACKED, HEAVIEST = 20_000, 2_000
"""Keys that the sketch follows, and those of them that are looked at."""
MAX_SAMPLE = 100_000
SLIDES = 20  # of the sample: after each, Dalton looks anew which keys are hot
EVEN = 1.25
"""Rows of the busiest task over the mean up to which a job counts as even."""
SHOWN = 10


CANDIDATES: dict[str, Callable[[int, Window], Partitioner]] = {
    "kg": lambda n, window: KeyGrouping(n_workers=n),
    "pkg": lambda n, window: PartialKeyGrouping(n_workers=n),
    "d_choices": lambda n, window: DChoices(n_workers=n),
    "w_choices": lambda n, window: WChoices(n_workers=n),
    "dagreedy": lambda n, window: DAGreedy(n_workers=n, window=window),
    "dalton": lambda n, window: Dalton(n_workers=n, window=window),
    "dalton_share": lambda n, window: Dalton(n_workers=n, window=window, hot_factor=20.0, explore="share"),
}
"""How the partitioners that are tried are made, for a number of tasks and the window of a sample."""


class HotKey(NamedTuple):
    """A key with more rows than a task has on average."""

    key: Any
    rows: int
    share: float
    task: int
    """The task that Spark's hash partitioning sends it to."""


class Gain(NamedTuple):
    """What a partitioner does with the sample."""

    partitioner: str
    straggler: float
    """Rows of the busiest task over the mean."""
    pairs_per_key: float
    """Tasks that hold a key, on average: what has to be merged."""
    gain: float
    """How many times fewer rows the busiest task has than is predicted of Spark's hash partitioning."""


class Diagnosis(NamedTuple):
    """What is known of a job with a given key and number of tasks."""

    rows: int
    keys: int
    """Distinct keys, to about 5 %."""
    n_tasks: int
    inputs: int
    """Tasks that read the input."""
    p1: float
    hot: list[HotKey]
    straggler: float
    """Predicted rows of the busiest task over the mean, under Spark's hash partitioning."""
    straggler_combined: float
    """The same with rows combined before the shuffle, over the same mean."""
    gains: list[Gain]
    sample: int
    """Rows that the gains are measured on."""

    @property
    def even(self) -> bool:
        """Whether hash partitioning is good enough."""
        return self.straggler <= EVEN

    @property
    def combining_solves(self) -> bool:
        """Whether partial aggregation before the shuffle is good enough, for what can be combined."""
        return self.straggler_combined <= EVEN

    @property
    def best(self) -> Gain:
        """The partitioner with fewest rows in the busiest task; within 10 % of it, that with fewest pairs."""
        least = min(gain.straggler for gain in self.gains)
        near = [gain for gain in self.gains if gain.straggler <= 1.1 * least]
        return min(near, key=lambda gain: gain.pairs_per_key)

    @property
    def advice(self) -> str:
        """What to do, in a few sentences."""
        hashed = f"the busiest of {self.n_tasks} tasks {self.straggler:.2f} times the mean"
        if self.even:
            return f"Leave it: hash partitioning gives {hashed}."
        best, found = self.best, f"Hash partitioning gives {hashed}."
        if self.combining_solves:
            found += (
                " For count, sum, min, max and avg Spark combines rows before the shuffle, which already "
                f"solves it: a task receives at most {self.straggler_combined:.2f} times that mean."
            )
        else:
            found += (
                " Combining before the shuffle, as for count and sum, does not solve it: "
                f"{self.straggler_combined:.2f} times that mean remain."
            )
        if best.gain < EVEN:
            return f"{found} Splitting keys would not help: the most that is gained is {best.gain:.2f} times."
        return (
            f"{found} For joins, collect_list and functions per group, {best.partitioner} gives the busiest "
            f"task {best.gain:.1f} times fewer rows, for {best.pairs_per_key:.2f} partial results per key."
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain mappings and lists, with the conclusions."""
        own: dict[str, Any] = self._asdict()
        own["hot"] = [hot._asdict() for hot in self.hot]
        own["gains"] = [gain._asdict() for gain in self.gains]
        conclusions = {"even": self.even, "combining_solves": self.combining_solves, "advice": self.advice}
        return {**own, **conclusions, "best": self.best.partitioner}


# Types of keys that Spark's sketch can follow.
_KEYS = (T.IntegralType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType)


def diagnose(
    df: DataFrame,
    key: str | Column,
    *,
    n_tasks: int | None = None,
    partitioners: Sequence[str] = tuple(CANDIDATES),
    sample: int = MAX_SAMPLE,
    seed: int = 0,
    show_progress: bool = True,
) -> Diagnosis:
    """Predict how rows grouped by a key spread over tasks, and what the partitioners would gain.

    One pass over the frame, without a shuffle of its rows. It gives a sketch of the heaviest keys (`TRACKED`
    are followed; counts are exact if there are no more keys, otherwise to about 1e-4 of the rows), and a
    sample: the rows with the smallest hashes of (place in the input, seed), in the order of the input. The
    load of a task is that of the heavy keys which Spark's own hash sends there, the other rows being spread
    evenly. If rows are combined before the shuffle, a key sends at most one row per input task.

    Args:
        df: Any frame that is not streaming.
        key: Name of a column, or an expression.
        n_tasks: Tasks n after the shuffle; None for spark.sql.shuffle.partitions.
        partitioners: Names out of `CANDIDATES`.
        sample: Rows that the partitioners route, at most `MAX_SAMPLE`.
        seed: Which rows are in the sample.
        show_progress: Show a progress bar if it takes long.
    """
    if df.isStreaming:
        raise ConfigError("df is a stream: expected a batch, e.g. what foreachBatch is given")
    if not partitioners:
        raise ConfigError(f"partitioners is empty: expected some of {', '.join(CANDIDATES)}")
    for name in partitioners:
        check_choice("partitioner", name, CANDIDATES)
    check_int("sample", sample, low=1, high=MAX_SAMPLE)
    check_int("seed", seed, low=0)
    given = df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200
    n = check_int("n_tasks", int(given) if n_tasks is None else n_tasks, low=1, high=32767)
    keyed = df.select(_column(df, key).alias("key"))
    with progress("diagnose", 1 + len(partitioners), "steps", show=show_progress) as advance:
        found = _pass(keyed, n, sample, seed)
        advance(1)
        rows = int(found["rows"])
        if not rows:
            raise ConfigError("df has no rows: expected at least one")
        counts = np.array([top.n for top in found["top"]], np.float64)
        tasks = np.array([top.task for top in found["top"]], np.int64)
        # A sketch may count a key too often.
        rest = max(0.0, rows - float(counts.sum()))
        others = max(0, found["keys"] - len(counts))
        combined_rest = min(rest, others * min(rest / max(1, others), float(found["inputs"])))
        mean = rows / n
        straggler = float(_loads(counts, tasks, rest, n).max()) / mean
        combined = _loads(np.minimum(counts, found["inputs"]), tasks, combined_rest, n)
        ids = np.array(found["sample"], np.int64)
        gains = []
        for name in partitioners:
            gains.append(_try(name, ids, n, straggler))
            advance(1)
    return Diagnosis(
        rows=rows,
        keys=max(int(found["keys"]), len(counts)),
        n_tasks=n,
        inputs=int(found["inputs"]),
        p1=float(counts[0]) / rows if len(counts) else 1.0 / max(1, others),
        hot=[HotKey(top.item, top.n, top.n / rows, top.task) for top in found["top"] if top.n > mean],
        straggler=straggler,
        straggler_combined=float(combined.max()) / mean,
        gains=gains,
        sample=len(ids),
    )


def _column(df: DataFrame, key: str | Column) -> Column:
    if isinstance(key, Column):
        column = key
    else:
        nested = key not in df.columns and key.split(".")[0] in df.columns
        column = F.col(key if nested else f"`{check_choice('key', key, df.columns)}`")
    kind = df.select(column.alias("key")).schema["key"].dataType
    if not isinstance(kind, _KEYS):
        raise ConfigError(
            f"key has type {kind.simpleString()}: expected integers, strings, dates or decimals"
        )
    return column


def _pass(keyed: DataFrame, n: int, sample: int, seed: int) -> Any:
    """All that is read of the rows: one row of counts, heaviest keys and sample."""
    whole = isinstance(keyed.schema["key"].dataType, T.IntegralType)
    key = F.col("key")
    identity = F.coalesce(key.cast("bigint"), F.lit(42)) if whole else F.xxhash64(key)  # 42: null's own hash
    place = F.monotonically_increasing_id()  # the task in the upper bits, the row in the lower 33
    rows = keyed.select("key", identity.alias("id"), place.alias("place"))
    drawn = F.array_sort(F.min_by(F.struct("place", "id"), F.xxhash64("place", F.lit(seed)), sample))
    heavy = F.expr(f"approx_top_k(key, {HEAVIEST}, {TRACKED})")
    found = rows.agg(
        F.count("*").alias("rows"),
        F.approx_count_distinct(key).alias("keys"),
        (F.shiftright(F.max("place"), 33) + 1).alias("inputs"),
        heavy.alias("top"),
        drawn.alias("sample"),
    )
    fields = f"struct(x.item as item, x.count as n, pmod(hash(x.item), {n}) as task)"
    top = F.expr(f"transform(top, x -> {fields})").alias("top")
    ids = F.expr("transform(sample, x -> x.id)").alias("sample")
    return found.select("rows", "keys", "inputs", top, ids).first()


def _loads(counts: Loads, tasks: NDArray[np.int64], rest: float, n: int) -> Loads:
    """Rows per task, shape ``(n,)``: of the heavy keys where they are hashed to, the rest evenly."""
    return np.asarray(np.bincount(tasks, counts, n) + rest / n, np.float64)


def _try(name: str, ids: NDArray[np.int64], n: int, hashed: float) -> Gain:
    """Route the sample; ``hashed`` is the straggler ratio that a gain is measured against."""
    slide = max(1, len(ids) // SLIDES)
    workers = CANDIDATES[name](n, Window(size=slide * SLIDES, slide=slide)).route(ids)
    straggler = max_over_mean(np.bincount(workers, minlength=n))
    keys, number = np.unique(ids, return_inverse=True)
    pairs = len(np.unique(number * n + workers))
    return Gain(name, straggler, replication(pairs, len(keys)), hashed / straggler)
