"""Expensive work per key, where Spark has no help: a hot key's rows are worked on by several tasks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from dalton.agents.export import Policy
from dalton.envs.errors import ConfigError, check_choice
from dalton.pipeline.aggregation import PLACED
from dalton.pipeline.routing import place, policy_of

STYLES = ("pandas", "arrow")


def split_apply(
    df: DataFrame,
    key: str,
    func: Callable[..., Any],
    merge: Callable[..., Any],
    policy: Policy | str | os.PathLike[str],
    *,
    schema: T.StructType | str,
    merged: T.StructType | str | None = None,
    style: str = "pandas",
    n_workers: int | None = None,
    mode: str = "frozen",
    order: str = "auto",
) -> DataFrame:
    """Apply a function to the rows of every key, a hot key's rows in several parts, and merge the results.

    As ``df.groupBy(key).applyInPandas(func, schema)`` if ``merge`` makes of the results for the parts of a
    key the result for the whole.

    Args:
        df: The rows.
        key: Name of the key column.
        func: Takes the rows of a key on one worker, as a pandas data frame or an Arrow table (or the key as a
            tuple, and the rows), and returns rows of ``schema``.
        merge: Takes all that ``func`` returned for a key, in the same form, and returns rows of ``merged``.
            It is also called for keys in one part.
        policy: A policy, or the path of its file.
        schema: Columns that ``func`` returns; the key is one of them.
        merged: Columns that ``merge`` returns; None for the same.
        style: ``pandas`` (``applyInPandas``) or ``arrow`` (``applyInArrow``).
        n_workers: See `dalton.pipeline.route`; so are the others.
        mode: See `route`.
        order: See `route`.
    """
    chosen = policy_of(policy, n_workers)
    check_choice("style", style, STYLES)
    columns = (
        schema if isinstance(schema, T.StructType) else df.sparkSession.createDataFrame([], schema).schema
    )
    if key not in columns.names:
        names = ", ".join(columns.names)
        raise ConfigError(f"schema = {names}: expected the key {key} among the columns, to merge by")
    placed = place(df, key, chosen, column=PLACED, mode=mode, order=order)
    parts, work, whole = placed.groupBy(PLACED, key), _without_worker(func, style), merged or columns
    if style == "arrow":
        return parts.applyInArrow(work, columns).groupBy(key).applyInArrow(merge, whole)
    return parts.applyInPandas(work, columns).groupBy(key).applyInPandas(merge, whole)


def _without_worker(func: Callable[..., Any], style: str) -> Callable[..., Any]:
    """The function as Spark calls it: neither the key nor the rows show the worker."""
    name, pandas = PLACED, style == "pandas"

    def rows_only(rows: Any) -> Any:
        return func(rows.drop(columns=name) if pandas else rows.drop_columns([name]))

    def with_key(key: Any, rows: Any) -> Any:
        return func(key[1:], rows.drop(columns=name) if pandas else rows.drop_columns([name]))

    return with_key if len(inspect.signature(func).parameters) == 2 else rows_only
