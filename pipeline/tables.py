"""Tables to keys: CSV, JSON lines and Parquet by column, and presets of them."""

from __future__ import annotations

import math
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dalton.envs.errors import ConfigError, check_choice
from dalton.pipeline.formats import Parsed, first_reason, instant, instant_of, seconds

FILE, BLOCK, LINE = "__file", "__block", "__line"
"""Columns beside those of the input: path of the file, first byte of the part of it, text of the line."""
CORRUPT = "__corrupt"
LOOK = 1000  # lines of JSON in which the names of columns are looked for


class Columns(NamedTuple):
    """Names of the columns of a stream, and how a text is cut and its times are read."""

    key: str | None = None
    time: str | None = None
    value: str | None = None
    cost: str | None = None
    time_format: str | None = None
    separator: str | None = None


ROLES = Columns._fields[:4]


class Table(NamedTuple):
    """A kind of file, and what is known of its columns."""

    kind: str
    what: str
    columns: Columns = Columns()
    encoding: str = "UTF-8"
    key_type: str = "auto"


VOTERS = Columns(key="zip_code", separator="\t")
TABLES = {
    "csv": Table("csv", "CSV with a header, by column."),
    "json": Table("json", "JSON lines, by column, or by a.b inside a column."),
    "parquet": Table("parquet", "Parquet, by column."),
    # A post code is no number: some begin with 0.
    "voters": Table("csv", "Voter registry of North Carolina (Dalton §5).", VOTERS, "ISO-8859-1", "string"),
}


class Rows(NamedTuple):
    """Rows as they were read, with FILE, BLOCK and LINE, and what they become."""

    frame: DataFrame
    parsed: Parsed
    integers: bool | None
    """Whether the keys are integers; None if their texts decide."""


def placed(frame: DataFrame) -> DataFrame:
    """Add where in the input a row is; to be called on the reader's frame itself."""
    place = F.col("_metadata.file_path").alias(FILE), F.col("_metadata.file_block_start").alias(BLOCK)
    return frame.select("*", *place)


def read_table(spark: SparkSession, paths: list[str], table: Table, given: Columns) -> Rows:
    """Read a table by the columns given; those left out are the table's own, if it has any."""
    pairs = zip(given, table.columns, strict=True)
    columns = Columns(*(own if mine is None else mine for mine, own in pairs))
    if columns.key is None:
        raise ConfigError(f"key = None: a {table.kind} table needs the name of the column of keys")
    if table.kind == "csv":
        return _csv(spark, paths, table, columns)
    return (_json if table.kind == "json" else _parquet)(spark, paths, columns)


def _csv(spark: SparkSession, paths: list[str], table: Table, columns: Columns) -> Rows:
    form = {"header": "true", "sep": columns.separator or ",", "encoding": table.encoding}
    names = spark.read.options(**form).csv(paths).columns
    schema = T.StructType([T.StructField(name, T.StringType()) for name in [*names, CORRUPT]])
    # Without pruning every row is cut to the end, and so a row with too few or too many fields is noticed.
    strict = {"columnNameOfCorruptRecord": CORRUPT, "enforceSchema": "false", "columnPruning": "false"}
    frame = placed(spark.read.schema(schema).options(**form, **strict).csv(paths))
    for field, name in _used(columns):
        check_choice(field, name, names)
    line = F.coalesce(F.col(CORRUPT), F.to_csv(F.struct(*map(_quoted, names)), {"sep": form["sep"]}))
    roles = {field: _quoted(name) for field, name in _used(columns)}
    broken = (F.col(CORRUPT).isNotNull(), f"expected {len(names)} fields")
    return Rows(frame.withColumn(LINE, line), _parsed(roles, {}, columns, broken), None)


def _json(spark: SparkSession, paths: list[str], columns: Columns) -> Rows:
    lines = spark.read.text(paths)
    keys = lines.limit(LOOK).select(F.explode(F.json_object_keys("value")).alias("name"))
    names = [row.name for row in keys.distinct().collect()]
    roles = {}
    for field, name in _used(columns):
        parts = [name] if name in names else name.split(".")
        check_choice(field, name if parts[0] not in names else parts[0], names)
        path = "$" + "".join(f"['{part}']" for part in parts)
        roles[field] = F.try_variant_get(F.try_parse_json(LINE), path, "string")
    broken = (F.try_parse_json(LINE).isNull(), "expected JSON")
    frame = placed(lines).withColumnRenamed("value", LINE)
    return Rows(frame, _parsed(roles, {}, columns, broken), None)


def _parquet(spark: SparkSession, paths: list[str], columns: Columns) -> Rows:
    frame = placed(spark.read.parquet(*paths))
    names = [name for name in frame.columns if name not in (FILE, BLOCK)]
    for field, name in _used(columns):
        check_choice(field, name, names)
    roles = {field: _quoted(name) for field, name in _used(columns)}
    types = {field: frame.schema[name].dataType for field, name in _used(columns)}
    key = types["key"]
    if not isinstance(key, T.IntegralType | T.StringType):
        raise ConfigError(f"key has type {key.simpleString()}: expected integers or strings")
    for field, kind in types.items():
        if field != "key" and not isinstance(kind, _ALLOWED[field]):
            raise ConfigError(f"{field} has type {kind.simpleString()}: expected {_EXPECTED[field]}")
    line = F.to_json(F.struct(*(column.alias(field) for field, column in roles.items())))
    parsed = _parsed(roles, types, columns, (F.lit(False), ""))
    return Rows(frame.withColumn(LINE, line), parsed, isinstance(key, T.IntegralType))


_NUMBERS = (T.NumericType, T.StringType)
_ALLOWED = {
    "time": (*_NUMBERS, T.DateType, T.TimestampType, T.TimestampNTZType),
    "value": _NUMBERS,
    "cost": _NUMBERS,
}
_EXPECTED = {"time": "seconds, dates or timestamps", "value": "numbers", "cost": "numbers"}
_TEXT = {"time": "a time", "value": "a number", "cost": "a number >= 0"}


def _used(columns: Columns) -> list[tuple[str, str]]:
    return [
        (field, name) for field, name in zip(Columns._fields[:4], columns, strict=False) if name is not None
    ]


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _parsed(
    roles: dict[str, Column], types: dict[str, T.DataType], columns: Columns, broken: tuple[Column, str]
) -> Parsed:
    """What a row becomes; a role without a type is text."""
    key = roles["key"].cast("string")
    checks = [broken, (key.isNull() | (key == ""), f"expected a key in column {columns.key!r}")]
    numbers = {role: roles[role].try_cast("double") for role in ROLES[2:] if role in roles}
    if "time" in roles:
        numbers["time"] = _time(roles["time"], types.get("time", T.StringType()), columns.time_format)
    for role, number in numbers.items():
        least = 0.0 if role == "cost" else -math.inf
        fine = (number >= least) & (F.abs(number) < math.inf)  # null for null, false for NaN
        text = f"expected {_TEXT[role]} in column {getattr(columns, role)!r}"
        checks.append((~F.coalesce(fine, F.lit(False)), text))
    return Parsed(
        first_reason(*checks),
        F.array(key),
        numbers.get("time"),
        numbers.get("value"),
        cost=numbers.get("cost"),
    )


def _time(column: Column, kind: T.DataType, pattern: str | None) -> Column:
    """Seconds since 1970: numbers are such seconds, and dates and times without a zone are UTC."""
    if isinstance(kind, T.TimestampType):
        return seconds(column)
    if isinstance(kind, T.NumericType):
        return column.cast("double")
    if isinstance(kind, T.StringType):
        return (
            instant_of(column, pattern) if pattern else F.coalesce(column.try_cast("double"), instant(column))
        )
    return instant(column.cast("string"))
