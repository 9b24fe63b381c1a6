"""CSV, JSON and Parquet by column: roles, types of keys and times, and rows that are set aside."""

from datetime import UTC, date, datetime

import pandas as pd
import pytest

from dalton.envs.hashing import key_ids
from dalton.pipeline.tables import TABLES, Columns, read_table

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def read(spark, tmp_path):
    """What the rows of a file become: (reason, keys, time, value, cost), None for what is not there."""

    def rows(form, content, **columns):
        path = tmp_path / f"raw.{form}"
        if isinstance(content, pd.DataFrame):
            content.to_parquet(path)
        else:
            path.write_bytes(content.encode("latin-1" if form == "voters" else "utf-8"))
        found = read_table(spark, [str(path)], TABLES[form], Columns(**columns))
        parsed = {role: column for role, column in found.parsed._asdict().items() if column is not None}
        table = found.frame.select(
            *(column.alias(role) for role, column in parsed.items()), "__line"
        ).collect()
        return [row.asDict() for row in table], found.integers

    return rows


def test_csv(read):
    text = 'user,when,"a.b",c\n7,2020-01-01T12:00:00Z,1.5,2\n"x, y",1577880000.5,-3,0\n'
    rows, integers = read("csv", text, key="user", time="when", value="a.b", cost="c")
    assert integers is None
    assert [row["reason"] for row in rows] == [None, None]
    assert [row["keys"] for row in rows] == [["7"], ["x, y"]]
    assert [row["time"] for row in rows] == [NOON.timestamp(), NOON.timestamp() + 0.5]
    assert [(row["value"], row["cost"]) for row in rows] == [(1.5, 2.0), (-3.0, 0.0)]


def test_malformed_rows_of_a_csv(read):
    lines = ["1;1;1;1", "1;1;1", "1;1;1;1;1", ";1;1;1", "1;noon;1;1", "1;1;many;1", "1;1;NaN;1", "1;1;1;-1"]
    rows, _ = read(
        "csv", "k;t;v;c\n" + "\n".join(lines), key="k", time="t", value="v", cost="c", separator=";"
    )
    assert [row["reason"] for row in rows] == [
        None,
        "expected 4 fields",
        "expected 4 fields",
        "expected a key in column 'k'",
        "expected a time in column 't'",
        "expected a number in column 'v'",
        "expected a number in column 'v'",
        "expected a number >= 0 in column 'c'",
    ]
    assert [row["__line"] for row in rows[1:]] == lines[1:]


def test_a_time_format(read):
    rows, _ = read(
        "csv", "k,t\n1,01.02.2020 03:04\n1,2020-02-01\n", key="k", time="t", time_format="dd.MM.yyyy HH:mm"
    )
    assert rows[0]["time"] == datetime(2020, 2, 1, 3, 4, tzinfo=UTC).timestamp()
    assert rows[1]["reason"] == "expected a time in column 't'"


def test_json(read):
    lines = [
        '{"user": {"id": 7}, "t": 1}',
        '{"user": {"id": "x"}, "t": "2020-01-01T12:00:00Z"}',
        '{"t": 3}',
        '{"user"',
    ]
    rows, integers = read("json", "\n".join(lines), key="user.id", time="t")
    assert integers is None
    assert [row["reason"] for row in rows] == [
        None,
        None,
        "expected a key in column 'user.id'",
        "expected JSON",
    ]
    assert [row["keys"] for row in rows[:2]] == [["7"], ["x"]]
    assert [row["time"] for row in rows[:2]] == [1.0, NOON.timestamp()]


def test_parquet_has_types(read):
    times = pd.Series([NOON, None]).astype("datetime64[us, UTC]")
    table = pd.DataFrame(
        {"k": [1, 2], "t": times, "s": ["a", None], "d": [date(2020, 1, 1)] * 2, "x": [1.5, 2.5]}
    )
    rows, integers = read("parquet", table, key="k", time="t", value="x")
    assert integers is True
    assert rows[0]["time"] == NOON.timestamp()
    assert [row["reason"] for row in rows] == [None, "expected a time in column 't'"]
    rows, integers = read("parquet", table, key="s", time="d")
    assert integers is False
    assert [row["reason"] for row in rows] == [None, "expected a key in column 's'"]
    assert rows[0]["time"] == datetime(2020, 1, 1, tzinfo=UTC).timestamp()


def test_types_that_are_no_keys_or_times(read, refused):
    table = pd.DataFrame({"x": [1.5], "list": [[1]], "k": [1]})
    assert refused(read, "parquet", table, key="x") == "key has type double: expected integers or strings"
    text = refused(read, "parquet", table, key="k", time="list")
    assert text == "time has type array<bigint>: expected seconds, dates or timestamps"
    assert "known: k, list, x" in refused(read, "parquet", table, key="q")
    assert "key = 'usr': unknown (did you mean 'user'?)" in refused(read, "json", '{"user": 1}', key="usr")


def test_voters_by_post_code(read):
    header = '"county_id"\t"city"\t"zip_code"\t"registr_dt"\n'
    text = header + '"1"\t"Cañón"\t"02134"\t"05/06/2007"\n"1"\t"X"\t""\t"x"\n'
    rows, _ = read("voters", text)
    assert [row["keys"] for row in rows[:1]] == [["02134"]]
    assert rows[1]["reason"] == "expected a key in column 'zip_code'"
    assert "Cañón" in rows[0]["__line"]
    rows, _ = read("voters", text, time="registr_dt", time_format="MM/dd/yyyy")
    assert rows[0]["time"] == datetime(2007, 5, 6, tzinfo=UTC).timestamp()
    assert TABLES["voters"].key_type == "string"


def test_ids_are_those_of_the_project(spark):
    names = ["", "a", "żółw", "x" * 100, "7"]
    frame = spark.createDataFrame([(name,) for name in names], "name string")
    found = {row.name: row.id for row in frame.selectExpr("name", "xxhash64(name) as id").collect()}
    assert found == dict(zip(names, key_ids(names).tolist(), strict=True))
