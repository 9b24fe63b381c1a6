"""Raw files to a stream that replays: order, ids, statistics, sample, and what happens when it goes wrong."""

import bz2
import gzip
import json

import numpy as np
import pandas as pd
import pytest

from dalton.envs.hashing import key_ids
from dalton.envs.workloads import make_workload
from dalton.pipeline.datasets import ingest, sample_ranges
from dalton.pipeline.tables import Columns


@pytest.fixture
def run(spark, tmp_path):
    """Ingest into a folder of the test's own."""

    def call(paths, out="out", **options):
        places = str(paths) if not isinstance(paths, list) else [str(path) for path in paths]
        return ingest(spark, places, str(tmp_path / out), show_progress=False, **options)

    return call


def replayed(folder):
    (chunk,) = make_workload("trace", path=str(folder)).chunks(1 << 30)
    return chunk


def set_aside(folder):
    rows = [json.loads(line) for part in folder.glob("*.json") for line in part.read_text().splitlines()]
    return sorted((row["line"], row["reason"]) for row in rows)


def test_counted_lines_become_as_many_tuples(run, tmp_path):
    lines = ["en Main_Page 9000 0", "de Katze 10 0", "oops", "en.m Cat 1 0", ""]
    for hour, text in ((13, lines), (12, ["en Main_Page 5 0"])):
        with gzip.open(tmp_path / f"pageviews-20240131-{hour}0000.gz", "wt") as file:
            file.write("\n".join(text) + "\n")
    found = run(tmp_path / "pageviews-*.gz", format="pageviews", by="language")
    assert (found.lines, found.malformed, found.without_key) == (6, 1, 1)
    assert (found.stream.messages, found.stream.keys) == (9016, 2)
    assert [(heavy.name, heavy.messages) for heavy in found.stream.top] == [("en", 9006), ("de", 10)]
    chunk = replayed(tmp_path / "out" / "stream")
    assert np.array_equal(np.unique(chunk.keys), np.unique(key_ids(["en", "de"])))
    hour = 1706698800.0  # 11:00, the hour before the earlier file's
    assert np.all(chunk.times[:5] < hour + 3600)
    assert np.all((chunk.times[5:] >= hour + 3600) & (chunk.times < hour + 7200)[5:])
    # A key's tuples are spread over its hour, not in a burst.
    spread = chunk.times[chunk.keys == key_ids(["de"])[0]]
    assert np.allclose(np.diff(spread), 360.0)
    assert set_aside(tmp_path / "out" / "malformed") == [("oops", "expected project, page, views and bytes")]
    whole = run(tmp_path / "pageviews-*.gz", "lines", format="pageviews", expand=False)
    assert whole.stream.messages == 4
    values = pd.read_parquet(tmp_path / "lines" / "stream")["value"]
    assert values.tolist() == [5.0, 9000.0, 10.0, 1.0]


@pytest.fixture
def numbered(tmp_path):
    """Files whose rows are numbered in the order of names and lines; sizes and compression differ."""
    folder, row = tmp_path / "raw", 0
    folder.mkdir()
    for i, count in enumerate([5, 3000, 1, 800]):
        text = "user,row\n" + "".join(f"u{j % 7},{j}\n" for j in range(row, row + count))
        if i == 3:
            (folder / f"{i}.csv.bz2").write_bytes(bz2.compress(text.encode()))
        else:
            (folder / f"{i}.csv").write_text(text)
        row += count
    return folder


@pytest.mark.parametrize("split", ["128m", "4k"])
def test_without_times_the_order_is_that_of_the_input(spark, run, numbered, tmp_path, split):
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", split)
    try:
        columns = Columns(key="user", value="row")
        found = run(numbered, format="csv", columns=columns, part_rows=1000, sample=500)
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    stream = tmp_path / "out" / "stream"
    assert len(list(stream.glob("*.parquet"))) == 4
    chunk = replayed(stream)
    assert chunk.times.tolist() == list(range(3806))
    assert np.array_equal(chunk.keys, key_ids([f"u{i % 7}" for i in range(3806)]))
    table = pd.concat(pd.read_parquet(part) for part in sorted(stream.glob("*.parquet")))
    assert table["value"].tolist() == list(range(3806))
    assert table["name"].tolist() == [f"u{i % 7}" for i in range(3806)]
    ranks = [i for low, high in sample_ranges(3806, 500, 0) for i in range(low, high)]
    assert replayed(tmp_path / "out" / "sample").times.tolist() == ranks
    assert found.sample == 500


def test_ties_in_time_keep_the_order_of_the_input(run, tmp_path):
    times = np.random.default_rng(0).integers(0, 20, 500)
    pd.DataFrame({"t": times, "i": range(500)}).to_csv(tmp_path / "raw.csv", index=False)
    found = run(tmp_path / "raw.csv", format="csv", columns=Columns(key="i", time="t"), part_rows=150)
    chunk = replayed(tmp_path / "out" / "stream")
    order = np.argsort(times, kind="stable")
    assert np.array_equal(chunk.keys, order)  # keys that are integers are their own ids
    assert np.array_equal(chunk.times, times[order])
    assert (found.stream.begin, found.stream.end) == (0.0, 19.0)


def test_statistics_by_definition(run, tmp_path, zipf):
    keys = np.concatenate([zipf(7_000, seed=0), zipf(3_000, seed=1)])
    pd.DataFrame({"k": keys}).to_parquet(tmp_path / "raw.parquet")
    found = run(tmp_path / "raw.parquet", format="parquet", columns=Columns(key="k"), top=5)
    counts = pd.Series(keys).value_counts()
    stream = found.stream
    assert (stream.messages, stream.keys) == (10_000, len(counts))
    assert stream.p1 == counts.iloc[0] / 10_000
    assert [heavy.messages for heavy in stream.top] == counts.iloc[:5].tolist()
    shares = pd.DataFrame({i: pd.Series(part).value_counts() for i, part in enumerate(np.split(keys, 10))})
    shares = shares.fillna(0.0) / 1000
    assert [tenth.leader.share for tenth in stream.tenths] == shares.max().tolist()
    heavy = sorted(counts.index, key=lambda key: (-counts[key], key))[:100]
    coarse = pd.concat([shares.loc[heavy], 1 - shares.loc[heavy].sum().to_frame().T])
    drift = coarse.diff(axis=1).abs().sum() / 2
    assert stream.tenths[0].drift is None
    assert [tenth.drift for tenth in stream.tenths[1:]] == pytest.approx(drift[1:].tolist())
    assert stream.tenths[7].drift > 3 * stream.tenths[6].drift, "the keys change after seven tenths"
    written = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert written == found.to_dict()
    assert written["stream"]["p1"] == stream.p1
    parts = {path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".crc"}
    assert parts == {"stream", "sample", "malformed", "statistics.json"}


def test_the_sample_keeps_the_distribution_through_time():
    total, wanted = 1_000_003, 50_000
    keys = np.random.default_rng(0).zipf(1.5, total) + np.arange(total) * 5 // total * 1_000_000
    ranges = sample_ranges(total, wanted, seed=3)
    assert sum(high - low for low, high in ranges) == wanted
    assert len(ranges) == 10
    assert [low * 10 // total for low, _ in ranges] == list(range(10))
    assert [(high - 1) * 10 // total for _, high in ranges] == list(range(10))
    sample = np.concatenate([keys[low:high] for low, high in ranges])
    for key, share in pd.Series(keys).value_counts(normalize=True).iloc[:8].items():
        # The keys change every two tenths, and are independent in between: four standard errors.
        assert np.mean(sample == key) == pytest.approx(share, abs=4 * np.sqrt(share / wanted))
    assert ranges == sample_ranges(total, wanted, seed=3)
    assert ranges != sample_ranges(total, wanted, seed=4)


@pytest.mark.parametrize(("total", "wanted"), [(1, 1), (7, 100), (7, 3), (10, 10), (100, 0)])
def test_small_samples(total, wanted):
    ranks = [i for low, high in sample_ranges(total, wanted, 0) for i in range(low, high)]
    assert len(ranks) == min(total, wanted)
    assert ranks == sorted(set(ranks))
    assert all(0 <= rank < total for rank in ranks)


def test_an_output_is_replaced_only_by_a_complete_one(run, refused, tmp_path):
    (tmp_path / "raw.txt").write_text("1 2\n1 3\n")
    (tmp_path / "bad.txt").write_text("nothing\n")
    assert run(tmp_path / "raw.txt", format="edges").stream.messages == 2
    assert "is there already" in refused(run, tmp_path / "raw.txt", format="edges")
    text = refused(run, tmp_path / "bad.txt", format="edges", overwrite=True)
    assert "none of 1 lines is of format 'edges' (expected source and target)" in text
    assert replayed(tmp_path / "out" / "stream").keys.tolist() == [1, 1]
    run(tmp_path / "raw.txt", format="edges", by="target", overwrite=True)
    assert replayed(tmp_path / "out" / "stream").keys.tolist() == [2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"raw.txt", "bad.txt", "out"}


def test_a_damaged_file_is_one_line(run, refused, tmp_path):
    whole = gzip.compress(b"1 2\n" * 10_000)
    (tmp_path / "raw.txt.gz").write_bytes(whole[: len(whole) // 2])
    text = refused(run, tmp_path / "raw.txt.gz", format="edges")
    assert "cannot be read" in text
    assert not (tmp_path / "out").exists()


WRONG = {
    "format": ({"format": "edge"}, "format = 'edge': unknown (did you mean 'edges'?)"),
    "by": ({"format": "edges", "by": "sauce"}, "by of edges = 'sauce': unknown (did you mean 'source'?)"),
    "by of a table": ({"format": "csv", "by": "k"}, "by = 'k': csv is a table"),
    "column": ({"format": "edges", "columns": Columns(time="t")}, "time = 't': edges has no columns"),
    "no key": ({"format": "csv"}, "key = None: a csv table needs the name"),
    "unknown column": (
        {"format": "csv", "columns": Columns(key="usr")},
        "key = 'usr': unknown (did you mean 'user'?); known: t, user",
    ),
    "key type": ({"format": "csv", "key_type": "text"}, "key_type = 'text': unknown"),
    "sample": ({"format": "csv", "sample": -1}, "sample = -1: expected a whole number >= 0"),
    "not integers": (
        {"format": "csv", "columns": Columns(key="user"), "key_type": "integer"},
        "key_type = 'integer': 1 keys are not written as integers",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(run, refused, tmp_path, case):
    (tmp_path / "raw.csv").write_text("user,t\n07,1\n8,2\n")
    options, message = WRONG[case]
    assert message in refused(run, tmp_path / "raw.csv", **options)
    assert {path.name for path in tmp_path.iterdir()} == {"raw.csv"}


def test_missing_and_empty_inputs(run, refused, tmp_path):
    assert "no such file or folder" in refused(run, tmp_path / "none", format="edges")
    assert "no such file or folder" in refused(run, tmp_path / "*.gz", format="edges")
    (tmp_path / "folder").mkdir()
    assert "the folder is empty" in refused(run, tmp_path / "folder", format="edges")
    (tmp_path / "empty").touch()
    assert "the input is empty" in refused(run, tmp_path / "empty", format="edges")
    (tmp_path / "comments").write_text("# nothing\n")
    assert "none of 1 lines has a key" in refused(run, tmp_path / "comments", format="edges")
    assert "not a path that Spark can use" in refused(run, "nowhere://x/y", format="edges")
