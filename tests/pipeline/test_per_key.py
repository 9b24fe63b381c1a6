"""Functions of a key's rows, applied in parts and merged."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext

from dalton.pipeline import split_apply

SPLIT = {0: {0: 1.0, 1: 1.0, 2: 1.0}, 1: {1: 1.0, 3: 2.0}, 42: {0: 1.0, 3: 1.0}}
PARTS = "k bigint, longest bigint, total bigint, tasks array<int>"


@pytest.fixture
def df(spark):
    """Keys 0 to 4 and null, key 0 with half of the rows."""
    return spark.range(6000).selectExpr("if(id % 2 = 0, 0, nullif(id % 12, 11) div 2) as k", "id as v")


def row(key, longest, total, tasks):
    return pd.DataFrame({"k": key.iloc[:1], "longest": [longest], "total": [total], "tasks": [tasks]})


def summary(rows):
    """Of a key's rows in one part."""
    assert list(rows.columns) == ["k", "v"]
    task = TaskContext.get().partitionId()
    return pd.DataFrame(
        {"k": rows.k.iloc[:1], "longest": [rows.v.max()], "total": [rows.v.sum()], "tasks": [[task]]}
    )


def together(parts):
    tasks = [task for row in parts.tasks for task in row]
    return pd.DataFrame(
        {
            "k": parts.k.iloc[:1],
            "longest": [parts.longest.max()],
            "total": [parts.total.sum()],
            "tasks": [tasks],
        }
    )


def test_parts_are_made_on_the_workers_and_merged(df, splitting):
    policy = splitting(SPLIT)
    found = {row.k: row for row in split_apply(df, "k", summary, together, policy, schema=PARTS).collect()}
    whole = {row.k: row for row in df.groupBy("k").applyInPandas(summary, PARTS).collect()}
    assert {k: (row.longest, row.total) for k, row in found.items()} == {
        k: (row.longest, row.total) for k, row in whole.items()
    }
    assert sorted(found[0].tasks) == [0, 1, 2]
    assert sorted(found[1].tasks) == [1, 3]
    assert sorted(found[None].tasks) == [0, 3]
    assert len(found[2].tasks) == 1


def test_with_arrow_the_key_as_an_argument_and_other_columns_merged(df, splitting):
    def part(key, rows):
        assert len(key) == 1
        return pa.table({"k": pa.array([key[0].as_py()], pa.int64()), "sum": [pc.sum(rows["v"]).as_py()]})

    def merge(key, parts):
        return pa.table(
            {"k": pa.array([key[0].as_py()], pa.int64()), "half": [pc.sum(parts["sum"]).as_py() / 2]}
        )

    found = split_apply(
        df,
        "k",
        part,
        merge,
        splitting(SPLIT),
        schema="k bigint, sum bigint",
        merged="k bigint, half double",
        style="arrow",
    )
    wanted = df.groupBy("k").agg({"v": "sum"}).collect()
    assert {row.k: 2 * row.half for row in found.collect()} == {row[0]: row[1] for row in wanted}


def test_a_median_is_merged_from_sorted_parts(df, splitting):
    # Not a sum: what is merged may be as large as the rows.
    def part(rows):
        return rows.sort_values("v")

    def median(rows):
        return pd.DataFrame({"k": rows.k.iloc[:1], "v": [np.median(rows.v)]})

    found = split_apply(
        df, "k", part, median, splitting(SPLIT), schema=df.schema, merged="k bigint, v double"
    )
    wanted = df.selectExpr("k", "v").groupBy("k").applyInPandas(median, "k bigint, v double")
    assert sorted(map(repr, found.collect())) == sorted(map(repr, wanted.collect()))


def test_one_placing_and_one_merging_exchange(df, splitting, plan):
    text = plan(split_apply(df, "k", summary, together, splitting(SPLIT), schema=PARTS))
    exchanges = [line for line in text.splitlines() if "Exchange" in line]
    assert len(exchanges) == 2
    assert "shufflepartitionidpassthrough" in exchanges[1]


def test_a_mistake_is_one_line(df, splitting, refused):
    policy = splitting(SPLIT)
    text = refused(split_apply, df, "k", summary, together, policy, schema="key bigint, n bigint")
    assert text == "schema = key, n: expected the key k among the columns, to merge by"
    assert "style = 'polars': unknown" in refused(
        split_apply, df, "k", summary, together, policy, schema=PARTS, style="polars"
    )
