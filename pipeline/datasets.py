"""Raw files to a keyed stream that replays: ``dalton spark ingest``.

The raw lines are read once, into a draft beside the output. From there the stream is sorted by (time, place
in the input), cut into parts of about equal length and written: ties, and formats without times, keep the
order of the input, whatever the number of tasks. What comes to the driver are counts: of parts, of reasons,
of the heaviest keys.

    out/stream/      time (seconds), key (id), value, cost if known, and name, the key if it was a string;
                     part after part the whole stream in order, as the workload ``trace`` replays it
    out/sample/      the same for a part of the stream, see `sample_ranges`
    out/malformed/   file, line and reason of every line that was set aside, as JSON
    out/statistics.json
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from dalton.envs.errors import ConfigError, check_choice, check_int
from dalton.envs.progress import progress
from dalton.pipeline.files import Files
from dalton.pipeline.formats import FORMATS
from dalton.pipeline.statistics import TENTHS, Statistics, measure
from dalton.pipeline.tables import BLOCK, FILE, LINE, TABLES, Columns, Rows, placed, read_table

PART_ROWS = 2_000_000
EXPLODE = 4096  # tuples made at a time from a line with a count: an array of them is in memory
KEY_TYPES = ("auto", "string", "integer")
INTEGER = r"^(0|-?[1-9]\d{0,18})$"  # as an integer is written


def ingest(
    spark: SparkSession,
    paths: str | Sequence[str],
    out: str,
    *,
    format: str,
    by: str | None = None,
    columns: Columns | None = None,
    key_type: str | None = None,
    expand: bool = True,
    sample: int = 100_000,
    seed: int = 0,
    top: int = 20,
    part_rows: int = PART_ROWS,
    overwrite: bool = False,
    show_progress: bool = True,
) -> Statistics:
    """Write a keyed stream, its statistics and a sample of it; set malformed lines aside.

    Args:
        spark: The session.
        paths: Files, folders or patterns; files may be compressed (.gz, .bz2).
        out: Folder to write, wherever Spark can write.
        format: One of `FORMATS` or `TABLES`.
        by: What the key is, of formats that offer a choice; None for the first.
        columns: Names of the columns of a table. Without times, the time is the place in the input: tuple i
            comes at second i, and a malformed line leaves its second empty.
        key_type: Of a table's keys: ``string`` (hashed to ids), ``integer`` (their own ids) or ``auto``
            (integers if all of them are). Choose the type that the job to be partitioned sees: the same key
            has another id as a string. None is ``auto``, for voters ``string``.
        expand: Make a line that counts c page views or clicks into c tuples, at even distances over its hour
            or month and from an offset hashed from the line; otherwise it is one tuple of value c.
        sample: Tuples of the sample.
        seed: Seed of the sample.
        top: Heaviest keys to name in the statistics.
        part_rows: Tuples per part of the stream, about.
        overwrite: Replace an older output, when the new one is complete.
        show_progress: Show a progress bar if it takes long.

    Raises:
        ConfigError: A path, format, column or other value is not allowed, the output exists, the input
            cannot be read, or none of its lines is well formed.
    """
    places = [paths] if isinstance(paths, str) else list(paths)
    check_choice("format", format, [*FORMATS, *TABLES])
    for field, number, low in (
        ("sample", sample, 0),
        ("seed", seed, 0),
        ("top", top, 1),
        ("part_rows", part_rows, 1),
    ):
        check_int(field, number, low=low)
    if key_type is not None:
        check_choice("key_type", key_type, KEY_TYPES)
    files = Files(spark)
    for place in places:
        files.check_found("input", place)
    bar = progress(f"ingest {format}", 4, "steps", show=show_progress)
    with files.new_folder(out, overwrite) as draft, bar as advance:
        with _readable(places):
            rows = _read(spark, places, format, by, columns)
            seen = _stage(rows, expand, f"{draft}/staged")
        advance(1)
        staged = spark.read.parquet(f"{draft}/staged")
        reasons = _set_aside(staged, f"{draft}/malformed")
        total = int(seen["tuples"])
        if not total:
            raise ConfigError(f"input = {', '.join(places)}: {_nothing(format, int(seen['lines']), reasons)}")
        kind = key_type or (TABLES[format].key_type if format in TABLES else "auto")
        integers = _are_integers(rows.integers, kind, int(seen["texts"]))
        keyed = _keyed(_in_place(staged), integers)
        _write(keyed, ["time", "position"], f"{draft}/stream", -(-total // part_rows))
        advance(1)
        stream = ranked(spark.read.parquet(f"{draft}/stream"))
        distribution = measure(stream, total, top)
        advance(1)
        ranges = sample_ranges(total, sample, seed)
        taken = sum(hi - lo for lo, hi in ranges)
        _write(stream.where(_within(ranges)), ["rank"], f"{draft}/sample", max(1, -(-taken // part_rows)))
        malformed = sum(reasons.values())
        lines, without = int(seen["lines"]), int(seen["without"])
        statistics = Statistics(format, lines, malformed, reasons, without, taken, distribution)
        files.write(f"{draft}/statistics.json", json.dumps(statistics.to_dict(), indent=2) + "\n")
        files.delete(f"{draft}/staged")
        advance(1)
    return statistics


def _read(
    spark: SparkSession, places: list[str], format: str, by: str | None, columns: Columns | None
) -> Rows:
    if format in TABLES:
        if by is not None:
            raise ConfigError(f"by = {by!r}: {format} is a table; name its column of keys instead")
        return read_table(spark, places, TABLES[format], columns or Columns())
    given = [field for field, value in (columns or Columns())._asdict().items() if value is not None]
    if given:
        value = getattr(columns, given[0])
        raise ConfigError(f"{given[0]} = {value!r}: {format} has no columns; expected none")
    known = FORMATS[format]
    by = known.by[0] if by is None else check_choice(f"by of {format}", by, known.by)
    frame = placed(spark.read.text(places)).withColumnRenamed("value", LINE)
    parsed = known.parse(F.col(LINE), F.element_at(F.split(FILE, "/"), -1), by)
    blank = F.trim(LINE) == ""
    parsed = parsed._replace(
        reason=F.when(~blank, parsed.reason),
        keys=F.when(blank | parsed.keys.isNull(), F.array().cast("array<string>")).otherwise(parsed.keys),
    )
    return Rows(frame, parsed, known.integers)


def _stage(rows: Rows, expand: bool, folder: str) -> dict[str, Any]:
    """Write a row per tuple and per malformed line, in no order but with its place; return what was seen."""
    reason, keys, time, value, repeats, span, cost = rows.parsed
    given = {"time": time, "value": value, "repeats": repeats, "span": span, "cost": cost}
    used = [column.alias(field) for field, column in given.items() if column is not None]
    place = [F.col(FILE).alias("file"), F.col(BLOCK).alias("block"), F.col(LINE).alias("line")]
    frame = rows.frame.select(*place, reason.alias("reason"), keys.alias("keys"), *used)
    lines, tuples = Observation(), Observation()
    bare = F.col("reason").isNull() & (F.size("keys") == 0)
    frame = frame.observe(lines, F.count(F.lit(1)).alias("lines"), F.count_if(bare).alias("without"))
    name = F.when(F.col("reason").isNull(), F.col("keys")).otherwise(F.array(F.lit(None).cast("string")))
    frame = frame.withColumn("name", F.explode(name)).drop("keys")
    if repeats is not None:
        frame = _expanded(frame) if expand else frame.withColumn("value", F.col("repeats").cast("double"))
    columns = {
        "serial": F.monotonically_increasing_id(),
        "line": F.when(F.col("reason").isNotNull(), F.col("line")),
    }
    if "value" not in frame.columns:
        columns["value"] = F.lit(1.0)
    frame = frame.withColumns(columns).drop("repeats", "span")
    good = F.col("reason").isNull()
    whole = F.col("name").rlike(INTEGER) & F.col("name").try_cast("bigint").isNotNull()
    found = F.count_if(good).alias("tuples"), F.count_if(good & ~whole).alias("texts")
    frame.observe(tuples, *found).write.parquet(folder)
    return {**lines.get, **tuples.get}


def _expanded(frame: DataFrame) -> DataFrame:
    """A tuple for each of ``repeats``: tuple i of c at time + span (i + u) / c, u hashed from the line."""
    c = F.when(F.col("reason").isNull(), F.col("repeats")).otherwise(1)
    blocks = F.explode(F.sequence(F.lit(0), c - 1, F.lit(EXPLODE)))
    frame = frame.withColumn("repeats", c).withColumn("__first", blocks)
    last = F.least(F.col("__first") + EXPLODE, F.col("repeats")) - 1
    frame = frame.withColumn("__i", F.explode(F.sequence(F.col("__first"), last)))
    offset = F.pmod(F.xxhash64("line"), F.lit(1 << 20)) / F.lit(float(1 << 20))
    time = F.col("time") + F.col("span") * (F.col("__i") + offset) / F.col("repeats")
    return frame.withColumn("time", time).drop("__first", "__i")


def _set_aside(staged: DataFrame, folder: str) -> dict[str, int]:
    """Write the malformed lines; return how many there are for every reason."""
    bad = staged.where("reason is not null")
    bad.select("file", "line", "reason").write.json(folder)
    return {row.reason: row["count"] for row in bad.groupBy("reason").count().orderBy("reason").collect()}


def _nothing(format: str, lines: int, reasons: dict[str, int]) -> str:
    if not lines:
        return "the input is empty"
    if not reasons:
        return f"none of {lines} lines has a key"
    reason = max(reasons, key=lambda name: reasons[name])
    return f"none of {lines} lines is of format {format!r} ({reason})"


def _are_integers(known: bool | None, kind: str, texts: int) -> bool:
    if kind == "integer" and texts:
        raise ConfigError(f"key_type = 'integer': {texts} keys are not written as integers")
    if kind == "auto":
        return not texts if known is None else known
    return kind == "integer"


def _in_place(staged: DataFrame) -> DataFrame:
    """The tuples with ``position``, their place in the input: by file, by block of it, by line."""
    # The rows of a block are written by one task, one after the other.
    blocks = staged.groupBy("file", "block").agg(F.min("serial").alias("first"), F.count("*").alias("rows"))
    earlier = Window.orderBy("file", "block").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum("rows").over(earlier), F.lit(0)).alias("before")
    joined = staged.join(F.broadcast(blocks.select("file", "block", "first", before)), ["file", "block"])
    good = joined.where("reason is null")
    return good.withColumn("position", F.col("before") + F.col("serial") - F.col("first"))


def _keyed(frame: DataFrame, integers: bool) -> DataFrame:
    key = F.col("name").cast("bigint") if integers else F.xxhash64("name")
    time = F.col("time") if "time" in frame.columns else F.col("position").cast("double").alias("time")
    name = [] if integers else [F.col("name")]
    cost = [F.col("cost")] if "cost" in frame.columns else []
    return frame.select(time, key.alias("key"), *name, "value", *cost, "position")


def _write(frame: DataFrame, order: list[str], folder: str, parts: int) -> None:
    """Write a frame in order, part after part, without what orders it besides time."""
    placed = frame.repartitionByRange(parts, *order) if parts > 1 else frame.coalesce(1)
    extra = [name for name in order if name != "time"]
    placed.sortWithinPartitions(*order).drop(*extra).write.parquet(folder)


def ranked(stream: DataFrame) -> DataFrame:
    """A stream as read from its folder, with ``rank`` 0, 1, ... in its order."""
    own = F.col("_metadata.file_name").alias(FILE), F.col("_metadata.row_index").alias("__row")
    rows = stream.select("*", *own)
    earlier = Window.orderBy(FILE).rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum("count").over(earlier), F.lit(0)).alias("__before")
    parts = rows.groupBy(FILE).count().select(FILE, before)
    found = rows.join(F.broadcast(parts), FILE).withColumn("rank", F.col("__before") + F.col("__row"))
    return found.drop(FILE, "__row", "__before")


def sample_ranges(total: int, wanted: int, seed: int) -> list[tuple[int, int]]:
    """The ranks ``[lo, hi)`` of a sample that keeps the distribution: a run out of every tenth.

    Every tenth of the stream gives a tenth of the sample, so that keys which come and go are as frequent in
    the sample as in the stream, and in the same order. What a tenth gives is one run of consecutive tuples,
    from a seeded place: windows, bursts and the order of tuples are those of the stream, which a draw of
    single tuples would thin out. Times are kept, so that there is a gap between runs.
    """
    wanted = min(wanted, total)
    rng = np.random.default_rng(seed)
    edges = [total * i // TENTHS for i in range(TENTHS + 1)]
    ranges = []
    for low, high in itertools.pairwise(edges):
        size = wanted * high // total - wanted * low // total
        start = low + int(rng.integers(high - low - size + 1))
        ranges.append((start, start + size))
    return [(low, high) for low, high in ranges if high > low]


def _within(ranges: list[tuple[int, int]]) -> Column:
    rank = F.col("rank")
    tests = ((rank >= low) & (rank < high) for low, high in ranges)
    return functools.reduce(operator.or_, tests, F.lit(False))


@contextmanager
def _readable(places: list[str]) -> Iterator[None]:
    """Turn what Spark says of an input that it cannot read into one line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
        reason = said.strip().splitlines()[0]
        raise ConfigError(f"input = {', '.join(places)}: cannot be read ({reason})") from error
