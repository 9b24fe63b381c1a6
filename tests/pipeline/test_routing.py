"""Workers in Spark SQL are those of the simulator, and rows are placed where they were routed."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from dalton.agents.split_table import cells
from dalton.envs.hashing import key_ids
from dalton.pipeline import place, route
from dalton.pipeline.lookup import perfect_hash
from dalton.pipeline.routing import key_id

TEXTS = ["", "a", "été", "日本", "x" * 100, "\x00", "42"]
NUMBERS = [0, 1, -1, 127, -128]


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "int", "bigint"])
def test_whole_numbers_are_their_own_ids(spark, kind):
    df = spark.createDataFrame([(x,) for x in NUMBERS], "k int").select(F.col("k").cast(kind).alias("k"))
    assert [row[0] for row in df.select(key_id(df, "k")).collect()] == NUMBERS


def test_texts_and_bytes_have_the_ids_of_the_simulator(spark):
    for values, kind in ((TEXTS, "string"), ([text.encode() for text in TEXTS], "binary")):
        df = spark.createDataFrame([(x,) for x in values], f"k {kind}")
        assert [row[0] for row in df.select(key_id(df, "k")).collect()] == key_ids(values).tolist()


@pytest.mark.parametrize("kind", ["bigint", "string", "date"])
def test_a_null_is_42(spark, kind):
    df = spark.createDataFrame([(None,)], f"k {kind}")
    assert df.select(key_id(df, "k")).first()[0] == 42


def test_dates_times_and_decimals_are_hashed(spark):
    row = (datetime.date(2022, 11, 1), datetime.datetime(2022, 11, 1), decimal.Decimal("1.50"))
    df = spark.createDataFrame([row], "d date, t timestamp, m decimal(10,2)")
    for name in df.columns:
        assert df.select(key_id(df, name) == F.xxhash64(name)).first()[0]


def partitions(spark, n_rows=3000, parts=3, hot=(7, -5), every=2):
    """Rows of three partitions in a known order: half of them of hot keys."""
    case = " ".join(f"when id % {every * len(hot)} = {i} then {key}" for i, key in enumerate(hot))
    return spark.range(0, n_rows, 1, parts).selectExpr(f"case {case} else id * 31 end as k", "id as v")


def by_task(routed):
    """Keys and workers of every input partition, in the order of ``v``."""
    frame = routed.toPandas().sort_values("v")
    return {task: (part.k.to_numpy(), part.worker.to_numpy()) for task, part in frame.groupby("task")}


@pytest.mark.parametrize("seed", [0, 3])
def test_frozen_is_the_split_table_of_each_task(spark, splitting, seed):
    policy = splitting({7: {0: 1.0, 2: 3.0}, -5: {1: 1.0, 2: 1.0, 3: 1.0}}, seed=seed)
    tasks = by_task(route(partitions(spark), "k", policy).withColumn("task", F.spark_partition_id()))
    assert sorted(tasks) == [0, 1, 2]
    for task, (keys, workers) in tasks.items():
        np.testing.assert_array_equal(workers, policy.partitioner(task).route(keys))
        assert set(workers[keys == 7]) == {0, 2}


ids = st.integers(-(2**63), 2**63 - 1)
rows = st.dictionaries(st.integers(0, 6), st.floats(0.01, 10), min_size=1, max_size=7)


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.dictionaries(ids, rows, max_size=60), st.lists(ids, max_size=20), st.integers(0, 2**20))
def test_any_split_table_means_the_same_in_sql(spark, splitting, split, cold, seed):
    policy = splitting(split, 7, seed)
    keys = np.array([*split, *cold, *split, 0, -1], np.int64)
    df = spark.createDataFrame(pd.DataFrame({"k": keys, "v": np.arange(len(keys))})).coalesce(1)
    workers = route(df, "k", policy).toPandas().sort_values("v").worker
    np.testing.assert_array_equal(workers, policy.partitioner().route(keys))


@pytest.mark.parametrize("size", [1, 2, 3, 100, 2000])
def test_perfect_hash_has_a_slot_for_every_key(size):
    keys = np.random.default_rng(size).integers(-(2**63), 2**63 - 1, size)
    slots = perfect_hash(keys, seed=1)
    assert sorted(slots.rows[slots.rows >= 0]) == list(range(size))
    assert len(slots.rows) == 2 * size


def test_without_hot_keys_all_are_hashed(spark, splitting):
    policy = splitting({})
    for keys, workers in by_task(
        route(partitions(spark), "k", policy).withColumn("task", F.spark_partition_id())
    ).values():
        np.testing.assert_array_equal(workers, policy.partitioner().route(keys))


def test_frozen_has_neither_python_nor_exchange_in_its_plan(spark, splitting, plan, tmp_path):
    partitions(spark).write.parquet(str(tmp_path / "rows"))
    df = spark.read.parquet(str(tmp_path / "rows"))
    text = plan(route(df, "k", splitting({7: {0: 1.0, 2: 3.0}})))
    for word in ("Python", "Arrow", "Pandas", "Exchange", "Sort"):
        assert word not in text
    assert "MapInArrow" in plan(route(df, "k", splitting({}), mode="adaptive"))


def test_adaptive_is_the_agent_of_each_task(spark, trained, zipf):
    keys = zipf(9000, n_keys=300, s=1.5)
    policy = trained(keys, name="dalton")
    more = zipf(9000, n_keys=300, s=1.5, seed=0)[::-1]
    df = spark.createDataFrame(pd.DataFrame({"k": more, "v": np.arange(len(more)), "t": "text"})).coalesce(2)
    tasks = by_task(route(df, "k", policy, mode="adaptive").withColumn("task", F.spark_partition_id()))
    assert sorted(tasks) == [0, 1]
    for task, (part, workers) in tasks.items():
        np.testing.assert_array_equal(workers, policy.agent(task).route(part))
        assert workers.dtype == np.int32


def test_adaptive_with_a_window_in_time(spark, trained, zipf, refused):
    keys = zipf(6000, n_keys=100, s=1.5)
    times = np.sort(np.random.default_rng(0).uniform(0, 60, len(keys)))
    policy = trained([], name="dalton", window={"size": 20.0, "slide": 2.0, "by": "time"})
    # Two rows come late, and one has no time.
    given_times = times.copy()
    given_times[[100, 2000]] -= 1.0
    given_times[3000] = np.nan
    frame = pd.DataFrame({"k": keys, "v": np.arange(len(keys)), "t": given_times})
    df = (
        spark.createDataFrame(frame)
        .selectExpr("k", "v", "timestamp_seconds(nanvl(t, null)) as t")
        .coalesce(1)
    )
    workers = route(df, "k", policy, mode="adaptive", time="t").toPandas().sort_values("v").worker
    seen = np.fmax.accumulate(np.trunc(given_times * 1e6) / 1e6)
    np.testing.assert_array_equal(workers, policy.agent().route(keys, seen))
    assert "time = None: the policy's window is in time" in refused(route, df, "k", policy, mode="adaptive")


def test_partition_i_has_the_rows_of_worker_i(spark, splitting):
    # Few, tiny and empty partitions, which adaptive execution would put together: nothing goes to 4 .. 15.
    policy = splitting({7: {0: 1.0, 15: 1.0}, -5: {1: 1.0, 2: 1.0}}, n_workers=16)
    df = partitions(spark).where("k in (7, -5)")
    placed = place(df, "k", policy, column="worker", mode="frozen", order="auto")
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    found = placed.withColumn("at", F.spark_partition_id()).groupBy("worker", "at").count().toPandas()
    assert (found.worker == found["at"]).all()
    assert sorted(found.worker) == [0, 1, 2, 15]
    assert found["count"].sum() == df.count()
    assert placed.rdd.getNumPartitions() == 16


def test_texts_and_nulls_are_spread_like_any_key(spark, splitting):
    ids = {text: int(key_ids([text])[0]) for text in ("a", "b")}
    policy = splitting({ids["a"]: {0: 1.0, 1: 1.0}, 42: {2: 1.0, 3: 1.0}})
    df = spark.range(4000).selectExpr("element_at(array('a', 'b', null), cast(id % 3 as int) + 1) as k")
    counts = route(df, "k", policy).groupBy("k", "worker").count().toPandas()
    found = {(None if pd.isna(row.k) else row.k, row.worker): row["count"] for _, row in counts.iterrows()}
    home = policy.partitioner().route([ids["b"]])[0]
    assert set(found) == {("a", 0), ("a", 1), (None, 2), (None, 3), ("b", home)}
    for key, worker in found:
        if key != "b":
            assert found[key, worker] == pytest.approx(667, abs=30)


def test_alias_cells_of_a_trained_policy_are_small(trained, zipf):
    # The plan holds the table as constants: a few hundred numbers for a usual policy.
    policy = trained(zipf(40_000, s=1.3), n_workers=16)
    assert 0 < len(cells(policy.split).first) < 1000


WRONG = {
    "no such key": (("kk",), {}, "key = 'kk': unknown (did you mean 'k'?)"),
    "a key of fractions": (("f",), {}, "key = f: has type double; expected whole numbers"),
    "another number of workers": (("k",), {"n_workers": 5}, "n_workers = 5: expected 4"),
    "unknown mode": (("k",), {"mode": "frosen"}, "mode = 'frosen': unknown (did you mean 'frozen'?)"),
    "unknown order": (("k",), {"order": "any"}, "order = 'any': unknown"),
    "column there already": (("k",), {"column": "v"}, "column = v: the rows have one of that name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(case, spark, splitting, refused):
    args, more, message = WRONG[case]
    df = partitions(spark).withColumn("f", F.lit(1.5))
    assert message in refused(route, df, args[0], splitting({}), **more)


def test_a_file_is_as_good_as_a_policy(spark, splitting, tmp_path, refused):
    policy = splitting({7: {0: 1.0, 2: 3.0}})
    path = policy.save(tmp_path / "p.dalton")
    both = [route(partitions(spark), "k", p).orderBy("v").toPandas() for p in (policy, str(path))]
    assert both[0].equals(both[1])
    assert "No such file" in refused(route, partitions(spark), "k", str(tmp_path / "none"))
