"""Every text format, line by line: what a line becomes, and why a malformed one is none."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812

from dalton.pipeline.formats import FORMATS, instant, instant_of


def at(*moment):
    """Seconds since 1970 of a moment in UTC."""
    return datetime(*moment, tzinfo=UTC).timestamp()


@pytest.fixture
def parse(spark):
    """Reasons, and the other columns, of lines of a format."""

    def read(name, by, lines, *files):
        parsed = FORMATS[name].parse(F.col("line"), F.col("file"), by)
        columns = [column.alias(field) for field, column in parsed._asdict().items() if column is not None]
        rows = list(zip(lines, files or ["any.txt"] * len(lines), strict=True))
        frame = spark.createDataFrame(rows, "line string, file string").coalesce(1)
        return [row.asDict() for row in frame.select(*columns).collect()]

    return read


def good(rows):
    return [row for row in rows if row["reason"] is None]


def reasons(rows):
    return [row["reason"] for row in rows]


VIEWS = ["en.m Main_Page 42 0", "de Katze 1 7", "www.wd Q1 3 0"]


def test_page_views_by_page(parse):
    rows = parse("pageviews", "page", VIEWS, *["pageviews-20240131-130000.gz"] * 3)
    assert reasons(rows) == [None] * 3
    assert [row["keys"] for row in rows] == [["en.m Main_Page"], ["de Katze"], ["www.wd Q1"]]
    assert [row["repeats"] for row in rows] == [42, 1, 3]
    assert {(row["time"], row["span"]) for row in rows} == {(at(2024, 1, 31, 12), 3600.0)}


def test_page_views_by_language(parse):
    rows = parse("pageviews", "language", VIEWS, *["pageviews-20240131-130000.gz"] * 3)
    assert [row["keys"] for row in rows] == [["en"], ["de"], ["www"]]


def test_malformed_page_views(parse):
    file = "pageviews-20240131-130000"
    form = "expected project, page, views and bytes"
    name = "expected the hour in the name of the file, as in pageviews-20240131-130000.gz"
    cases = [
        ("en Main_Page 42", file, form),
        ("en Main Page 42 0", file, form),
        ("en Main_Page -1 0", file, form),
        ("en A\x01B 1 0", file, form),
        ("en Main_Page 0 0", file, "expected at least one view"),
        ("en Main_Page 1 0", "views.gz", name),
        ("en Main_Page 1 0", "pageviews-20241331-130000", name),
    ]
    lines, files, expected = zip(*cases, strict=True)
    assert reasons(parse("pageviews", "page", lines, *files)) == list(expected)


def test_clickstream(parse):
    lines = ["other-search\tCat\texternal\t150000000", "Dog\tCat\tlink\t10"]
    rows = parse("clickstream", "target", lines, *["clickstream-enwiki-2024-02.tsv.gz"] * 2)
    assert [row["keys"] for row in rows] == [["Cat"], ["Cat"]]
    assert [row["repeats"] for row in rows] == [150_000_000, 10]
    assert {(row["time"], row["span"]) for row in rows} == {(at(2024, 2, 1), 29 * 86400.0)}
    rows = parse("clickstream", "source", lines, *["2015_02_clickstream.tsv"] * 2)
    assert [row["keys"] for row in rows] == [["other-search"], ["Dog"]]
    assert {(row["time"], row["span"]) for row in rows} == {(at(2015, 2, 1), 28 * 86400.0)}


def test_malformed_clickstream(parse):
    lines = ["Dog\tCat\tlink", "Dog\tCat\tlink\tmany", "Dog\tCat\tlink\t0", "Dog\tCat\tlink\t1"]
    files = [*["clickstream-enwiki-2024-02.tsv"] * 3, "clickstream.tsv"]
    found = reasons(parse("clickstream", "target", lines, *files))
    assert found[0].startswith("expected source, target")
    assert found[1:3] == ["expected a whole number >= 1 as count"] * 2
    assert found[3].startswith("expected the month in the name of the file")


OLD = (
    r'{"created_at": "Wed Aug 27 13:08:45 +0000 2008", "text": "Hello #World $AAPL it\u0027s, http://t.co/x"}'
)
NEW = '{"created_at": "2020-01-01T00:00:01.500Z", "text": "#Żółw&#xa; ＃ŻÓŁW #2020 a#b $brk.b $5 x$y $AAPL"}'
LONG = '{"time": "2020-01-01T00:00:00+01:00", "text": "cut…", "extended_tweet": {"full_text": "whole"}}'


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("word", [["hello", "world", "aapl", "it's"], None, ["whole"]]),
        ("hashtag", [["world"], ["żółw", "żółw"], []]),
        ("cashtag", [["AAPL"], ["BRK.B", "AAPL"], []]),
    ],
)
def test_tweets(parse, by, keys):
    rows = parse("tweets", by, [OLD, NEW, LONG])
    assert reasons(rows) == [None] * 3
    for row, expected in zip(rows, keys, strict=True):
        assert expected is None or row["keys"] == expected
    times = [at(2008, 8, 27, 13, 8, 45), at(2020, 1, 1, 0, 0, 1, 500_000), at(2019, 12, 31, 23)]
    assert [row["time"] for row in rows] == times


def test_malformed_tweets(parse):
    lines = ['{"text": "cut', '{"delete": {"status": 1}}', '{"text": "when?"}', "5"]
    expected = ["expected JSON", "expected a text", "expected a time", "expected a text"]
    assert reasons(parse("tweets", "word", lines)) == expected


def test_edges(parse):
    lines = ["# Nodes: 3", "0\t1", "  2 3  ", "4 5 -1", "% comment"]
    for by, keys in (("source", ["0", "2", "4"]), ("target", ["1", "3", "5"])):
        rows = parse("edges", by, lines)
        assert reasons(rows) == [None] * 5
        assert [key for row in rows for key in row["keys"]] == keys
        assert "time" not in rows[0]


def test_malformed_edges(parse):
    lines = ["x 3", "5", "99999999999999999999 1"]
    expected = ["expected source and target"] * 2 + ["expected a node below 2**63"]
    assert reasons(parse("edges", "source", lines)) == expected


def test_temporal_edges(parse):
    rows = parse("temporal_edges", "target", ["1 2 1082040961", "1 2 10.5", "1 2", "1 2 x"])
    assert [(row["keys"], row["time"]) for row in good(rows)] == [(["2"], 1082040961.0), (["2"], 10.5)]
    assert reasons(rows)[2:] == ["expected source, target and time"] * 2


COMMON = '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
COMBINED = r'::1 - - [10/Oct/2000:13:55:36 +0000] "GET /a?b=\"c\" HTTP/1.1" 304 - "http://x/" "Mozilla \"y\""'
SPACED = 'h - John Doe [10/Oct/2000:13:55:36 +0000] "POST /form" 500 0'


@pytest.mark.parametrize(
    ("by", "keys"),
    [("host", ["127.0.0.1", "::1", "h"]), ("url", ["/apache_pb.gif", r"/a?b=\"c\"", "/form"])],
)
def test_access_logs(parse, by, keys):
    rows = parse("access_log", by, [COMMON, COMBINED, SPACED])
    assert [row["keys"] for row in rows] == [[key] for key in keys]
    assert [row["value"] for row in rows] == [2326.0, 0.0, 0.0]
    assert [row["time"] for row in rows] == [at(2000, 10, 10, 20, 55, 36)] + [
        at(2000, 10, 10, 13, 55, 36)
    ] * 2


def test_malformed_access_logs(parse):
    no_request = 'h - - [10/Oct/2000:13:55:36 +0000] "-" 408 -'
    lines = ["garbage", COMMON.replace("Oct", "Okt"), no_request, COMMON[:60]]
    form = "expected the common or combined log format"
    time = "expected a time as 10/Oct/2000:13:55:36 -0700"
    assert reasons(parse("access_log", "host", lines)) == [form, time, None, form]
    assert reasons(parse("access_log", "url", lines)) == [form, time, "expected a request with a URL", form]


def test_a_very_long_request_is_no_harm(parse):
    line = COMMON.replace("/apache_pb.gif", "/" + r"\"a" * 100_000)
    (row,) = parse("access_log", "url", [line])
    assert row["reason"] is None
    assert len(row["keys"][0]) == 300_001


TIMES = {
    "2020-01-01": at(2020, 1, 1),
    "2020-01-01 12:30": at(2020, 1, 1, 12, 30),
    "2020-01-01T00:00:00.25": at(2020, 1, 1) + 0.25,
    "2020-01-01T00:00:00Z": at(2020, 1, 1),
    "2020-01-01T00:00:00+02:00": at(2019, 12, 31, 22),
    "yesterday": None,
    "2020-13-01": None,
    "12:30": None,
    "2020": None,
    "": None,
}


def test_times_do_not_depend_on_the_session(spark):
    frame = spark.createDataFrame([(text,) for text in TIMES], "text string")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = frame.select("text", instant(F.col("text")).alias("time")).collect()
        (german,) = frame.limit(1).select(instant_of(F.lit("01.02.2020 03:04"), "dd.MM.yyyy HH:mm")).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert {row.text: row.time for row in found} == TIMES
    assert german == at(2020, 2, 1, 3, 4)
