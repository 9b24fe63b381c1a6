"""What diagnose predicts is what Spark then does, and the gains are those of the project's partitioners."""

import inspect
import json

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F  # noqa: N812

from dalton.envs.window import Window
from dalton.experiments import make
from dalton.pipeline import diagnose as module
from dalton.pipeline.diagnose import CANDIDATES, diagnose

ROWS, N = 100_000, 8


@pytest.fixture(scope="module")
def frame(spark, tmp_path_factory):
    """A hot key of 40 %, the rest a mild Zipf; as numbers, as names, and with an even key beside."""
    rng = np.random.default_rng(0)
    keys = np.where(rng.random(ROWS) < 0.4, 0, rng.zipf(1.3, ROWS) % 3000)
    table = pd.DataFrame({"id": keys, "name": [f"k{key}" for key in keys], "even": np.arange(ROWS) % 5000})
    path = tmp_path_factory.mktemp("frame") / "rows.parquet"
    table.to_parquet(path, row_group_size=ROWS // 4)
    return spark.read.parquet(str(path))


def tasks(frame, key, n=N):
    """Rows per task of Spark's own hash partitioning."""
    counts = frame.repartition(n, key).groupBy(F.spark_partition_id()).count().collect()
    return [row["count"] for row in counts]


@pytest.fixture(scope="module")
def found(frame):
    return diagnose(frame, "name", n_tasks=N, show_progress=False)


def test_the_straggler_is_the_one_that_spark_has(frame, found):
    assert found.straggler == pytest.approx(max(tasks(frame, "name")) / (ROWS / N), rel=0.01)
    by_id = diagnose(frame, "id", n_tasks=N, partitioners=["kg"], show_progress=False)
    assert by_id.straggler == pytest.approx(max(tasks(frame, "id")) / (ROWS / N), rel=0.01)
    assert not found.even


def test_hot_keys_are_counted_exactly(frame, found):
    counts = frame.toPandas()["name"].value_counts()
    hot = counts[counts > ROWS / N]
    assert (found.rows, found.n_tasks) == (ROWS, N)
    assert found.keys == pytest.approx(len(counts), rel=0.1)
    assert [(key.key, key.rows, key.share) for key in found.hot] == [(k, c, c / ROWS) for k, c in hot.items()]
    assert found.p1 == counts.iloc[0] / ROWS
    (placed,) = frame.sparkSession.range(1).select(F.expr(f"pmod(hash('{hot.index[0]}'), {N})")).first()
    assert found.hot[0].task == placed


def test_the_gains_are_those_of_the_sample(found):
    gains = {gain.partitioner: gain for gain in found.gains}
    assert list(gains) == list(CANDIDATES)
    assert found.sample == ROWS
    assert gains["kg"].pairs_per_key == 1.0
    assert gains["kg"].straggler >= 0.4 * N
    assert gains["dalton_share"].straggler < 1.25
    assert gains["dalton_share"].gain == found.straggler / gains["dalton_share"].straggler
    assert found.best.straggler <= 1.1 * min(gain.straggler for gain in found.gains)


def test_plain_sums_need_no_help(frame, found):
    # With rows combined, a key sends a row per input task, which is what reaches a task at most.
    combined = frame.groupBy("name", F.spark_partition_id().alias("input")).count()
    busiest = max(tasks(combined, "name"))
    assert found.combining_solves
    assert found.straggler_combined == pytest.approx(busiest / (ROWS / N), abs=0.05)
    assert "For count, sum, min, max and avg Spark combines rows before the shuffle" in found.advice


def test_an_even_key_is_left_alone(frame):
    even = diagnose(frame, "even", n_tasks=4, partitioners=["kg", "pkg"], show_progress=False)
    assert even.even
    assert even.hot == []
    assert even.advice.startswith("Leave it: hash partitioning gives the busiest of 4 tasks")


def test_missing_keys_are_a_key(spark):
    frame = spark.range(10_000).select(F.when(F.col("id") % 2 == 0, F.col("id")).alias("k"))
    found = diagnose(frame, F.col("k"), n_tasks=N, partitioners=["kg"], show_progress=False)
    assert (found.hot[0].key, found.hot[0].rows) == (None, 5_000)
    assert found.straggler == pytest.approx(max(tasks(frame, "k")) / (10_000 / N), rel=0.05)


def test_a_small_sample_is_drawn_from_all_rows(frame):
    seen = {}
    for seed in (0, 0, 1):
        found = diagnose(
            frame, "id", n_tasks=N, partitioners=["kg"], sample=4_000, seed=seed, show_progress=False
        )
        assert found.sample == 4_000
        # kg sends the hot key to one task: its share within four standard errors of the whole.
        assert found.gains[0].straggler / N > 0.4 - 4 * np.sqrt(0.24 / 4_000)
        assert seen.setdefault(seed, found.gains) == found.gains
    assert seen[0] != seen[1]


def test_it_is_one_pass(frame):
    source = frame.select(F.col("name").alias("key"))
    tracker = source.sparkSession.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    module._pass(source, N, 1000, 0)
    jobs = set(tracker.getJobIdsForGroup(None)) - before
    stages = {stage for job in jobs for stage in tracker.getJobInfo(job).stageIds}
    assert 1 <= len(stages) <= 3, "the pass, and the merge of what its tasks found"


def test_the_default_is_the_number_of_tasks_of_the_session(frame):
    found = diagnose(frame, "id", partitioners=["kg"], show_progress=False)
    assert found.n_tasks == int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions"))


def test_it_is_readable_by_machines(found):
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["straggler"] == found.straggler
    assert plain["best"] == found.best.partitioner
    assert plain["hot"][0]["key"] == "k0"


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_are_the_configured_partitioners(name):
    window = Window(size=20_000, slide=1_000)
    tried = CANDIDATES[name](N, window)
    own = (
        {"window": window} if "window" in inspect.signature(type(tried)).parameters and name != "pkg" else {}
    )
    assert repr(tried) == repr(make(name, n_workers=N, **own))


def test_mistakes_are_one_line(spark, frame, refused):
    assert "key = 'nam': unknown (did you mean 'name'?)" in refused(diagnose, frame, "nam")
    assert "n_tasks = 0: expected a whole number from 1" in refused(diagnose, frame, "id", n_tasks=0)
    assert "sample = 100001: expected" in refused(diagnose, frame, "id", sample=100_001)
    assert "'pgk': unknown" in refused(diagnose, frame, "id", partitioners=["pgk"])
    assert "partitioners is empty" in refused(diagnose, frame, "id", partitioners=[])
    assert "key has type double" in refused(diagnose, frame, F.col("id") / 2)
    assert "df has no rows" in refused(diagnose, frame.where("id < 0"), "id", show_progress=False)
    stream = spark.readStream.format("rate").load()
    assert "df is a stream" in refused(diagnose, stream, "value")
