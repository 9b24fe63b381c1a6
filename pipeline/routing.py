"""Routing rows by a policy: the worker of every row, and rows on their workers.

**What is guaranteed.** A task that runs again, or whose lost output is computed again, sends every row where
it went before. The worker of a row is a function of its key, its input partition and its position there, so
the order of rows in a partition must be the same each time. It is, where rows come from files, collections
or ranges, possibly projected and filtered. After a shuffle it is not: rows come in the order in which blocks
happen to arrive. There, the rows of a partition are sorted by their content first, as Spark itself does
before a round-robin ``repartition``: rows of equal content are interchangeable, and still go to several
workers. ``order`` says which it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dalton.agents.export import Policy
from dalton.envs.errors import ConfigError, check_choice
from dalton.envs.hashing import SPARK_SEED
from dalton.pipeline.lookup import Lookup

if TYPE_CHECKING:
    import pyarrow as pa

MODES = ("frozen", "adaptive")
ORDERS = ("auto", "given", "sorted")
WORKER = "worker"
# Columns on the way, dropped again.
ID, TIME, POSITION, SLOT, POINT = (f"__dalton_{name}" for name in ("id", "time", "position", "slot", "point"))
WHOLE_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.BooleanType)
HASHED = (
    T.StringType,
    T.CharType,
    T.VarcharType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DecimalType,
)
# Nodes of a logical plan that give the rows of a partition in the same order each time.
SETTLED = {
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "LocalRelation",
    "LogicalRDD",
    "LogicalRelation",
    "MapInArrow",
    "MapInPandas",
    "OneRowRelation",
    "Project",
    "Range",
    "StreamingRelation",
    "StreamingRelationV2",
    "SubqueryAlias",
    "Union",
    "UnresolvedHint",
    "View",
    "ResolvedHint",
}


def policy_of(policy: Policy | str | os.PathLike[str], n_workers: int | None = None) -> Policy:
    """A policy, or the one in a file, if it is for ``n_workers``."""
    found = policy if isinstance(policy, Policy) else Policy.load(policy)
    found.check_workers(n_workers)
    return found


def key_id(df: DataFrame, key: str) -> Column:
    """The int64 id of a key column (`dalton.envs.hashing`).

    Whole numbers are themselves; texts, bytes, dates, times and decimals are their ``xxhash64``. A null is
    42, which is what ``xxhash64`` makes of it.
    """
    check_choice("key", key, df.columns)
    kind = df.schema[key].dataType
    column = F.col(_quoted(key))
    if isinstance(kind, WHOLE_NUMBERS):
        return F.coalesce(column.cast("bigint"), F.lit(SPARK_SEED).cast("bigint"))
    if isinstance(kind, HASHED):
        return F.xxhash64(column)
    raise ConfigError(
        f"key = {key}: has type {kind.simpleString()}; "
        "expected whole numbers, text, bytes, dates, times or decimals"
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def route(
    df: DataFrame,
    key: str,
    policy: Policy | str | os.PathLike[str],
    n_workers: int | None = None,
    *,
    mode: str = "frozen",
    column: str = WORKER,
    order: str = "auto",
    time: str | None = None,
) -> DataFrame:
    """Add the worker of every row, from 0 to n - 1.

    Args:
        df: The rows.
        key: Name of the key column; nulls are a key like any other.
        policy: A policy, or the path of its file.
        n_workers: The number of workers, to be sure that the policy is for it.
        mode: ``frozen`` decides by the split table, in plain Spark SQL. ``adaptive`` goes on learning, in a
            Python process per task; each task is a partitioner of its own.
        column: Name of the new column.
        order: Whether partitions have the same order of rows each time: ``given``, or ``sorted`` to make it
            so at the cost of a sort; ``auto`` sorts unless the plan has only files, collections, projections,
            filters and the like. For a source that keeps no order (a database) say ``sorted``.
        time: A column of times, for agents whose window is in time; only adaptive.
    """
    chosen = policy_of(policy, n_workers)
    check_choice("mode", mode, MODES)
    if len(set(df.columns)) < len(df.columns):
        raise ConfigError(f"columns = {', '.join(df.columns)}: expected different names")
    if column in df.columns:
        raise ConfigError(f"column = {column}: the rows have one of that name; expected another")
    identified = settled(df, order).withColumn(ID, key_id(df, key))
    if mode == "adaptive":
        return _adaptive(identified, df.schema, chosen, column, time)
    return _frozen(identified, chosen, column).select(*(_quoted(name) for name in df.columns), column)


def place(df: DataFrame, key: str, policy: Policy, *, column: str, mode: str, order: str) -> DataFrame:
    """Route, and send every row to its worker: partition i has exactly the rows of worker i."""
    routed = route(df, key, policy, mode=mode, column=column, order=order)
    return routed.repartitionById(policy.n_workers, F.col(column))


def _frozen(df: DataFrame, policy: Policy, column: str) -> DataFrame:
    lookup, key = Lookup(policy), F.col(ID)
    home = lookup.home(key)
    if not lookup.any:
        return df.withColumn(column, home)
    # One projection after another, so that nothing is computed twice.
    slot, point = F.col(SLOT), F.col(POINT)
    found = df.withColumns({POSITION: F.monotonically_increasing_id(), SLOT: lookup.slot(key)})
    pointed = found.withColumn(POINT, lookup.point(key, slot, F.col(POSITION)))
    worker = F.when(lookup.is_hot(key, slot), lookup.choice(slot, point)).otherwise(home)
    return pointed.withColumn(column, worker)


def _adaptive(
    df: DataFrame, schema: T.StructType, policy: Policy, column: str, time: str | None
) -> DataFrame:
    by_time = policy.params["window"]["by"] == "time"
    if by_time and time is None:
        raise ConfigError("time = None: the policy's window is in time; expected a column of times")
    if by_time:
        check_choice("time", time, schema.names)
        df = df.withColumn(TIME, F.col(_quoted(str(time))).cast("double"))
    out = T.StructType([*schema.fields, T.StructField(column, T.IntegerType())])
    return df.mapInArrow(_learning(policy, len(schema), by_time, column), out)


def _learning(policy: Policy, width: int, by_time: bool, column: str) -> Callable[[Any], Any]:
    """Routes the Arrow batches of a task with an agent of its own."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        agent = policy.agent(task=context.partitionId() if context else 0)
        latest = -np.inf
        for batch in batches:
            times = None
            if by_time and batch.num_rows:
                # A late row is routed when it comes; one without a time too.
                times = batch.column(width + 1).to_numpy(zero_copy_only=False)
                times = np.fmax.accumulate(np.concatenate([[latest], times]))[1:]
                latest = times[-1]
            workers = agent.route(batch.column(width).to_numpy(), times)
            columns = [*batch.columns[:width], pyarrow.array(workers, pyarrow.int32())]
            yield pyarrow.RecordBatch.from_arrays(columns, [*batch.schema.names[:width], column])

    return task


def settled(df: DataFrame, order: str) -> DataFrame:
    """The rows with an order in each partition that is the same each time."""
    check_choice("order", order, ORDERS)
    if order == "given" or (order == "auto" and _is_settled(df)):
        return df
    contents = [_comparable(field) for field in df.schema.fields]
    return df.sortWithinPartitions(F.xxhash64(*contents), *contents)


def _is_settled(df: DataFrame) -> bool:
    # Micro-batches are replayed by their sources in order, and cannot be sorted.
    return df.isStreaming or _all_settled(df._jdf.queryExecution().analyzed())


def _all_settled(node: Any) -> bool:
    coalesced = node.nodeName() == "Repartition" and not node.shuffle()
    if not (coalesced or node.nodeName() in SETTLED) or "JDBCRelation" in node.simpleString(1):
        return False
    children = node.children()
    return all(_all_settled(children.apply(i)) for i in range(children.size()))


def _comparable(field: T.StructField) -> Column:
    """A column by which rows can be sorted; maps have no order of their own."""
    column = F.col(_quoted(field.name))
    return F.to_json(column) if "map<" in field.dataType.simpleString() else column
