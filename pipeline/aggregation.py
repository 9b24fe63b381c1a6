"""Two-phase aggregation: a hot key's rows are aggregated on several workers, and the parts merged."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dalton.agents.export import Policy
from dalton.envs.errors import ConfigError, check_choice, shown
from dalton.pipeline.routing import place, policy_of

PANE = "__dalton_pane"
PLACED = "__dalton_worker"


class Aggregate(NamedTuple):
    """An aggregate in two phases.

    For example the geometric mean of a column x, with two numbers per part:

        Aggregate(
            F.struct(F.sum(F.ln("x")).alias("logs"), F.count("x").alias("rows")),
            lambda part: F.exp(F.sum(part["logs"]) / F.sum(part["rows"])),
        )
    """

    partial: Column
    """An aggregate of rows: what a worker knows of a key."""
    merge: Callable[[Column], Column]
    """From the column of parts to an aggregate of them: the result."""


def _average(x: Column, exact: bool) -> Aggregate:
    # As Spark: decimals are summed as such, everything else as double.
    part = F.struct(F.sum(x if exact else x.cast("double")).alias("sum"), F.count(x).alias("rows"))
    return Aggregate(part, lambda p: F.sum(p["sum"]) / F.nullif(F.sum(p["rows"]), F.lit(0)))


def _moments(x: Column, finish: Callable[[Column, Column], Column]) -> Aggregate:
    """Variances from (n, mean, M2) of the parts, merged as Spark does it (Chan, Golub and LeVeque 1979)."""
    rows = F.count(x)
    part = F.struct(
        rows.cast("double").alias("n"),
        F.avg(x.cast("double")).alias("mean"),
        (F.var_pop(x) * rows).alias("m2"),
    )

    def both(a: Column, b: Column) -> Column:
        n = a["n"] + b["n"]
        delta = b["mean"] - a["mean"]
        mean = a["mean"] + delta * b["n"] / n
        m2 = a["m2"] + b["m2"] + delta * delta * a["n"] * b["n"] / n
        return F.struct(n.alias("n"), mean.alias("mean"), m2.alias("m2"))

    def merge(parts: Column) -> Column:
        known = F.filter(F.collect_list(parts), lambda part: part["n"] > 0)
        zero = F.struct(F.lit(0.0).alias("n"), F.lit(0.0).alias("mean"), F.lit(0.0).alias("m2"))
        return F.aggregate(known, zero, both, lambda all_: finish(all_["m2"], all_["n"]))

    return Aggregate(part, merge)


def _population(m2: Column, n: Column) -> Column:
    return F.when(n > 0, m2 / n)


def _sample(m2: Column, n: Column) -> Column:
    return F.when(n > 1, m2 / (n - 1))


def _sketch(x: Column) -> Aggregate:
    # Of hashes, since a sketch would leave out empty texts, and takes few types.
    part = F.hll_sketch_agg(F.when(x.isNotNull(), F.xxhash64(x)))
    return Aggregate(part, lambda p: F.hll_sketch_estimate(F.hll_union_agg(p)))


def _gathered(parts: Column) -> Column:
    return F.flatten(F.collect_list(parts))


KNOWN: dict[str, Callable[[Column, T.DataType], Aggregate]] = {
    "count": lambda x, kind: Aggregate(F.count(x), F.sum),
    "sum": lambda x, kind: Aggregate(F.sum(x), F.sum),
    "min": lambda x, kind: Aggregate(F.min(x), F.min),
    "max": lambda x, kind: Aggregate(F.max(x), F.max),
    "avg": lambda x, kind: _average(x, isinstance(kind, T.DecimalType)),
    "var_pop": lambda x, kind: _moments(x, _population),
    "var_samp": lambda x, kind: _moments(x, _sample),
    "stddev_pop": lambda x, kind: _moments(x, lambda m2, n: F.sqrt(_population(m2, n))),
    "stddev_samp": lambda x, kind: _moments(x, lambda m2, n: F.sqrt(_sample(m2, n))),
    "collect_list": lambda x, kind: Aggregate(F.collect_list(x), _gathered),
    "collect_set": lambda x, kind: Aggregate(F.collect_set(x), lambda p: F.array_distinct(_gathered(p))),
    "approx_count_distinct": lambda x, kind: _sketch(x),
}
ALIASES = {"mean": "avg", "stddev": "stddev_samp", "std": "stddev_samp", "variance": "var_samp"}


def split_aggregate(
    df: DataFrame,
    key: str,
    aggs: Mapping[str, str | Aggregate],
    policy: Policy | str | os.PathLike[str],
    window: Sequence[str] | None = None,
    *,
    n_workers: int | None = None,
    mode: str = "frozen",
    order: str = "auto",
) -> DataFrame:
    """Aggregate by key with hot keys on several workers: what ``df.groupBy(key).agg(...)`` gives.

    Rows are placed on their workers, aggregated there, and the parts merged by key. Equal to the plain
    result: counts, sums of whole numbers and decimals, least and largest, averages of decimals, collected
    sets and lists (up to their order, which Spark does not promise). Sums, averages and variances of
    floating-point numbers are equal up to rounding, which depends on the order of addition in Spark anyway.
    ``approx_count_distinct`` is made by mergeable HLL sketches (``hll_sketch_agg``), not by the HLL++ that
    Spark keeps to itself: it is exact to a few hundred values and within a few per cent above.

    Plain sums of hot keys do not need this: Spark combines them before the shuffle.

    Args:
        df: The rows.
        key: Name of the key column.
        aggs: Names and aggregates, such as ``{"visits": "count(*)", "mean": "avg(seconds)"}``; the argument
            is any SQL expression. Or an `Aggregate` of your own.
        policy: A policy, or the path of its file.
        window: Time column and length of windows, and for sliding ones their slide, such as ``("time",
            "10 minutes", "5 minutes")``. Rows are aggregated once, in panes that the windows are made of.
        n_workers: See `dalton.pipeline.route`; so are the others.
        mode: See `route`.
        order: See `route`.

    Returns:
        The key, ``window`` if there is one, and a column for each aggregate.
    """
    chosen = policy_of(policy, n_workers)
    if not isinstance(aggs, Mapping) or not aggs:
        raise ConfigError(f"aggs = {shown(aggs)}: expected names and aggregates")
    for name in aggs:
        if name in (key, "window"):
            raise ConfigError(f"aggs: {name}: expected a name that is not {key} or window")
    placed = place(df, key, chosen, column=PLACED, mode=mode, order=order)
    groups = [F.col(key)]
    panes: list[Column] = []
    if window is not None:
        length, slide, pane = _window(df, window)
        panes = [F.window(window[0], pane).alias(PANE)]
        groups.append(
            F.window(F.col(PANE)["start"], length, slide).alias("window")
            if slide
            else F.col(PANE).alias("window")
        )
    plans = {name: _aggregate(df, name, given) for name, given in aggs.items()}
    parts = placed.groupBy(PLACED, key, *panes).agg(
        *(plan.partial.alias(name) for name, plan in plans.items())
    )
    merged = parts.groupBy(*groups).agg(
        *(plan.merge(F.col(name)).alias(name) for name, plan in plans.items())
    )
    texts = {name: given for name, given in aggs.items() if isinstance(given, str)}
    plain = df.select(*(F.expr(given).alias(name) for name, given in texts.items())).schema
    return merged.withColumns({name: F.col(name).cast(plain[name].dataType) for name in texts})


def _aggregate(df: DataFrame, name: str, given: str | Aggregate) -> Aggregate:
    if isinstance(given, Aggregate):
        return given
    call = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", given, re.DOTALL) if isinstance(given, str) else None
    if call is None:
        raise ConfigError(f"aggs: {name} = {shown(given)}: expected such as 'sum(x)', or an Aggregate")
    function = ALIASES.get(call[1].lower(), call[1].lower())
    check_choice(f"aggs: {name}", function, KNOWN)
    argument = call[2].strip()
    if re.match(r"distinct\b", argument, re.IGNORECASE):
        raise ConfigError(
            f"aggs: {name} = {given}: distinct cannot be merged; expected approx_count_distinct(x)"
        )
    x = F.lit(1) if argument == "*" else F.expr(argument)
    return KNOWN[function](x, df.select(x.alias("x")).schema["x"].dataType)


def _window(df: DataFrame, window: Sequence[str]) -> tuple[str, str | None, str]:
    """Length, slide (None where windows tumble) and pane: the longest time of which both are multiples."""
    if isinstance(window, str) or not 2 <= len(window) <= 3:
        raise ConfigError(f"window = {shown(window)}: expected time column, length and perhaps slide")
    check_choice("window", window[0], df.columns)
    length = window[1]
    if len(window) == 2 or window[2] == length:
        return length, None, length
    slide = window[2]
    return length, slide, f"{math.gcd(_microseconds(df, length), _microseconds(df, slide))} microseconds"


def _microseconds(df: DataFrame, duration: str) -> int:
    query = "SELECT unix_micros(timestamp_micros(0) + CAST(:length AS INTERVAL)) AS length"
    try:
        length = int(df.sparkSession.sql(query, args={"length": duration}).collect()[0]["length"])
    except Exception as error:
        reason = shown(str(error).splitlines()[0])
        raise ConfigError(f"window: {shown(duration)}: expected such as '10 minutes' ({reason})") from None
    return length
