"""Routing is the same when tasks fail, when shuffle files are lost, and when rows come in another order."""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812

from dalton.pipeline import place, route

HOT = {7: {0: 1.0, 2: 3.0}, 8: {1: 1.0, 2: 1.0, 3: 1.0}}
N_ROWS = 40_000


@pytest.fixture
def files(spark, tmp_path):
    """Rows in four files: a hot key with values, and one whose rows are all identical."""
    rows = spark.range(0, N_ROWS, 1, 4).selectExpr(
        "case when id % 4 = 0 then 7 when id % 4 = 1 then 8 else id end as k",
        "case when id % 4 = 1 then 0 else id end as v",
    )
    rows.write.parquet(str(tmp_path / "rows"))
    return str(tmp_path / "rows")


def counted(df):
    """How often every row went to every worker."""
    return Counter(tuple(row) for row in df.select("k", "v", "worker").collect())


def watching(folder, fails):
    """A step before the routing that notes every run of a task, and fails in the first of them if told to."""

    def step(batches):
        context = TaskContext.get()
        (Path(folder) / f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        for i, batch in enumerate(batches):
            if fails and context.attemptNumber() == 0 and (i > 0 or batch.num_rows < 10_000):
                raise RuntimeError("fails on purpose")
            yield batch

    return step


@pytest.mark.parametrize("mode", ["frozen", "adaptive"])
def test_a_task_that_fails_and_runs_again(spark, files, splitting, mode, tmp_path):
    policy = splitting(HOT)
    runs = {}
    for fails in (False, True):
        seen = tmp_path / f"seen-{fails}"
        seen.mkdir()
        rows = spark.read.parquet(files)
        df = rows.mapInArrow(watching(seen, fails), rows.schema)
        runs[fails] = (
            counted(place(df, "k", policy, column="worker", mode=mode, order="auto")),
            len(list(seen.iterdir())),
        )
    assert runs[True][0] == runs[False][0]
    assert runs[True][1] > runs[False][1], "no task failed"
    assert runs[False][0].total() == N_ROWS


def losing(local_dir, marker):
    """A step behind the shuffle; the first task to have read its rows deletes all shuffle files there are."""

    def step(batches):
        yield from batches
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            for path in Path(local_dir).rglob("shuffle_*"):
                path.unlink(missing_ok=True)

    return step


def through_a_loss(spark, files, placed_of, local_dir, tmp_path):
    """What arrives if the shuffle's files are lost while they are read, and how many map tasks ran."""
    seen = tmp_path / "seen"
    seen.mkdir()
    rows = spark.read.parquet(files)
    placed = placed_of(rows.mapInArrow(watching(seen, False), rows.schema))
    arrived = placed.mapInArrow(losing(str(local_dir), str(tmp_path / "lost")), placed.schema)
    return counted(arrived), len(list(seen.iterdir())), rows.rdd.getNumPartitions()


@pytest.mark.parametrize("mode", ["frozen", "adaptive"])
def test_shuffle_files_that_are_lost_and_computed_again(spark, files, splitting, mode, local_dir, tmp_path):
    policy = splitting(HOT)
    wanted = counted(route(spark.read.parquet(files), "k", policy, mode=mode))
    arrived, ran, parts = through_a_loss(
        spark,
        files,
        lambda df: place(df, "k", policy, column="worker", mode=mode, order="auto"),
        local_dir,
        tmp_path,
    )
    assert ran > parts, "nothing was computed again"
    assert arrived == wanted


def test_the_loss_is_noticed_if_routing_is_random(spark, files, local_dir, tmp_path):
    def anywhere(batches):
        for batch in batches:
            workers = pa.array([os.urandom(1)[0] % 4 for _ in range(batch.num_rows)], pa.int32())
            yield pa.RecordBatch.from_arrays([*batch.columns, workers], ["k", "v", "worker"])

    def placed(df):
        return df.mapInArrow(anywhere, "k bigint, v bigint, worker int").repartitionById(4, F.col("worker"))

    # Spark compares checksums of what was computed again, and gives up where it cannot undo the difference.
    with pytest.raises(Py4JJavaError, match="indeterminate output"):
        through_a_loss(spark, files, placed, local_dir, tmp_path)


@pytest.mark.parametrize("mode", ["frozen", "adaptive"])
def test_after_a_shuffle_the_order_of_rows_does_not_matter(spark, files, splitting, mode):
    policy = splitting(HOT)
    rows = spark.read.parquet(files)
    # The same rows in the same partitions, in two orders.
    orders = [rows.repartition(3, "k").sortWithinPartitions(F.col("v") * sign) for sign in (1, -1)]
    first, second = (counted(route(df, "k", policy, mode=mode)) for df in orders)
    assert first == second
    given = [counted(route(df, "k", policy, mode=mode, order="given")) for df in orders]
    assert given[0] != given[1]


def test_identical_rows_are_spread_by_the_weights(spark, files, splitting):
    # With and without a shuffle before; 10,000 rows of key 8 are equal in every column.
    rows = spark.read.parquet(files)
    for df in (rows, rows.repartition(3, "k")):
        found = counted(route(df, "k", splitting(HOT)))
        assert [found[8, 0, worker] for worker in (1, 2, 3)] == pytest.approx([3333] * 3, abs=150)


def test_only_what_may_change_its_order_is_sorted(spark, files, splitting, plan):
    policy = splitting(HOT)
    rows = spark.read.parquet(files)
    rows.createOrReplaceTempView("rows")
    settled = (
        rows,
        rows.where("v > 3").selectExpr("k", "v + 1 as v"),
        spark.sql("select * from rows where k > 1"),
        rows.union(rows),
        rows.coalesce(1),
        rows.selectExpr("k", "explode(array(v, v)) as v"),
    )
    unsettled = (
        rows.repartition(3),
        rows.distinct(),
        rows.join(rows.select("k"), "k"),
        rows.orderBy("v"),
        rows.limit(9),
    )
    assert all("Sort [xxhash64" not in plan(route(df, "k", policy)) for df in settled)
    assert all("Sort [xxhash64" in plan(route(df, "k", policy)) for df in unsettled)
    assert "Sort [xxhash64" in plan(route(rows, "k", policy, order="sorted"))


def test_rows_with_maps_can_be_sorted(spark, splitting):
    df = (
        spark.range(100)
        .selectExpr("id % 3 as k", "map('a', id) as m", "array(map(id, 'b')) as n")
        .repartition(2)
    )
    assert route(df, "k", splitting({0: {0: 1.0, 1: 1.0}})).count() == 100
