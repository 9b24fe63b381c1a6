"""Joins with split keys give the rows of a plain join."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from dalton.envs.hashing import key_ids
from dalton.pipeline import split_join
from dalton.pipeline.join import HOW, _replicated

SPLIT = {0: {0: 1.0, 1: 1.0, 2: 1.0}, 1: {1: 1.0, 3: 2.0}, 42: {0: 1.0, 3: 1.0}}

keys = st.one_of(st.none(), st.integers(0, 4))
values = st.one_of(st.none(), st.integers(0, 2))
sides = st.lists(st.tuples(keys, values), max_size=40)


def table(df):
    return sorted(map(tuple, df.collect()), key=repr)


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(sides, sides)
def test_every_join_is_that_of_plain_spark(spark, splitting, how, one, other):
    left, right = spark.createDataFrame(one, "k bigint, a int"), spark.createDataFrame(other, "k int, b int")
    wanted = left.join(right, "k", how)
    found = split_join(left, right, "k", splitting(SPLIT), how)
    assert found.columns == wanted.columns
    assert table(found) == table(wanted)


def test_keys_of_text(spark, splitting):
    policy = splitting({int(key_ids(["hot"])[0]): {0: 1.0, 2: 1.0, 3: 1.0}})
    left = spark.range(3000).selectExpr("if(id % 3 = 0, 'hot', cast(id % 50 as string)) as k", "id as v")
    right = spark.createDataFrame([("hot", 1), ("hot", 2), ("7", 3), ("none", 4)], "k string, w int")
    for how in HOW:
        assert table(split_join(left, right, "k", policy, how)) == table(left.join(right, "k", how))


def test_the_other_side_is_on_exactly_the_workers_of_its_key(spark, splitting):
    policy = splitting(SPLIT)
    right = spark.range(6).selectExpr("if(id = 5, null, id) as k")
    found = {}
    for key, worker in _replicated(right, "k", policy).collect():
        found.setdefault(key, []).append(worker)
    homes = policy.partitioner().route([2, 3, 4]).tolist()
    assert {key: sorted(workers) for key, workers in found.items()} == {
        0: [0, 1, 2],
        1: [1, 3],
        2: [homes[0]],
        3: [homes[1]],
        4: [homes[2]],
    }


@pytest.mark.parametrize("how", HOW)
def test_rows_are_joined_where_they_were_placed(spark, splitting, plan, how):
    left = spark.range(4000).selectExpr("if(id % 2 = 0, 0, id) as k", "id as v")
    right = spark.range(100).selectExpr("id as k", "id as w")
    joined = split_join(left, right, "k", splitting(SPLIT), how)
    exchanges = [line for line in plan(joined).splitlines() if "Exchange" in line]
    assert len(exchanges) == 2
    assert all("shufflepartitionidpassthrough" in line for line in exchanges)
    if how != "anti":
        at = joined.where("k = 0").groupBy(F.spark_partition_id().alias("at")).count().collect()
        assert sorted(row["at"] for row in at) == [0, 1, 2]
        assert all(abs(row["count"] - 667) < 40 for row in at)


@pytest.mark.parametrize("name", ["left_outer", "leftsemi", "left_anti"])
def test_sparks_other_names_for_them(spark, splitting, name):
    left, right = spark.range(9).toDF("k"), spark.range(3, 20).toDF("k")
    assert table(split_join(left, right, "k", splitting(SPLIT), name)) == table(left.join(right, "k", name))


def test_a_mistake_is_one_line(spark, splitting, refused):
    left, right = spark.range(3).toDF("k"), spark.range(3).selectExpr("cast(id as string) as k")
    policy = splitting(SPLIT)
    assert "how = 'full': unknown; known: anti, inner, left, semi" in refused(
        split_join, left, left, "k", policy, "full"
    )
    assert "key = k: has types bigint and string; expected the same" in refused(
        split_join, left, right, "k", policy
    )
    assert "key = 'j': unknown" in refused(split_join, left, right, "j", policy)
