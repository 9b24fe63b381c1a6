"""Aggregates with split keys are those of a plain groupBy."""

import datetime
import decimal
import math

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from dalton.pipeline import Aggregate, split_aggregate

SPLIT = {0: {0: 1.0, 1: 1.0, 2: 1.0}, 1: {1: 1.0, 3: 2.0}, 42: {0: 1.0, 3: 1.0}}
SCHEMA = "k bigint, i int, l bigint, d double, m decimal(12,2), s string, t timestamp"
AGGS = {
    "n": "count(*)",
    "n_i": "count(i)",
    "sum_i": "sum(i)",
    "sum_l": "sum(l)",
    "sum_d": "sum(d)",
    "sum_m": "sum(m)",
    "sum_of": "sum(cast(i as bigint) * 2 + l)",
    "min_s": "min(s)",
    "max_d": "max(d)",
    "max_t": "max(t)",
    "avg_i": "avg(i)",
    "avg_m": "avg(m)",
    "mean_d": "mean(d)",
    "std": "stddev(d)",
    "std_pop": "stddev_pop(i)",
    "var": "variance(d)",
    "var_pop": "var_pop(d)",
    "list_i": "collect_list(i)",
    "set_s": "collect_set(s)",
    "distinct_s": "approx_count_distinct(s)",
    "distinct_m": "approx_count_distinct(m)",
}
START = datetime.datetime(2022, 11, 1)


def maybe(values):
    return st.one_of(st.none(), values)


# Few keys and values, so that there are ties and repeated rows; a null key is as hot as the others.
rows = st.tuples(
    maybe(st.integers(0, 3)),
    maybe(st.integers(-(2**31), 2**31 - 1)),
    maybe(st.integers(-(2**40), 2**40)),
    maybe(st.floats(-1e6, 1e6)),
    maybe(st.decimals(-(10**9), 10**9, places=2)),
    maybe(st.sampled_from(["", "a", "b", "é"])),
    maybe(st.integers(0, 7200).map(lambda seconds: START + datetime.timedelta(seconds=seconds))),
)


def settle(value):
    """A value with which equal results are equal: floats rounded, lists sorted."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) and abs(value) > 1e-4 else round(value, 4)
    if isinstance(value, list):
        return sorted(value, key=repr)
    return value


def table(df):
    return sorted(([settle(value) for value in row] for row in df.collect()), key=repr)


def plain(df, aggs, *groups):
    return df.groupBy(*groups).agg(*(F.expr(text).alias(name) for name, text in aggs.items()))


WINDOWS = {
    "none": None,
    "tumbling": ("t", "10 minutes"),
    "sliding": ("t", "10 minutes", "5 minutes"),
    "no multiple": ("t", "9 minutes", "6 minutes"),
}


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.lists(rows, min_size=30, max_size=120))
def test_every_aggregate_is_that_of_plain_spark(spark, splitting, window, data):
    df = spark.createDataFrame(data, SCHEMA)
    given_window = WINDOWS[window]
    groups = ["k"] if given_window is None else ["k", F.window(*given_window)]
    # So few values are counted exactly, which Spark's own approximation is not.
    exact = {name: text.replace("approx_count_distinct(", "count(distinct ") for name, text in AGGS.items()}
    wanted = plain(df, exact, *groups)
    found = split_aggregate(df, "k", AGGS, splitting(SPLIT), given_window)
    assert [(f.name, f.dataType) for f in found.schema] == [(f.name, f.dataType) for f in wanted.schema]
    assert table(found) == table(wanted)


def test_adaptive_aggregates_alike(spark, trained, zipf):
    keys = zipf(8000, n_keys=50, s=1.5)
    df = spark.createDataFrame(pd.DataFrame({"k": keys, "v": range(len(keys))}))
    aggs = {"n": "count(*)", "s": "sum(v)", "sd": "stddev(v)"}
    assert table(split_aggregate(df, "k", aggs, trained(keys), mode="adaptive")) == table(
        plain(df, aggs, "k")
    )


@pytest.mark.parametrize("window", WINDOWS)
def test_there_are_two_exchanges_placing_and_merging(spark, splitting, plan, window, tmp_path):
    spark.createDataFrame([(1, 2, 3, 1.0, decimal.Decimal(1), "a", START)], SCHEMA).write.parquet(
        str(tmp_path / "p")
    )
    df = spark.read.parquet(str(tmp_path / "p"))
    text = plan(split_aggregate(df, "k", AGGS, splitting(SPLIT), WINDOWS[window]))
    exchanges = [line for line in text.splitlines() if "Exchange" in line]
    assert len(exchanges) == 2
    merging, placing = exchanges
    assert "Exchange hashpartitioning(k" in merging
    assert "Exchange shufflepartitionidpassthrough(" in placing
    assert "Python" not in text


def test_approximate_counts_are_exact_for_few_values_and_close_for_many(spark, splitting):
    df = spark.range(60_000).selectExpr("id % 2 as k", "if(id % 2 = 0, id % 300, id) as v")
    aggs = {"v": "approx_count_distinct(v)"}
    found = {row.k: row.v for row in split_aggregate(df, "k", aggs, splitting(SPLIT)).collect()}
    sketched = {
        row.k: row.v
        for row in plain(df, {"v": "hll_sketch_estimate(hll_sketch_agg(xxhash64(v)))"}, "k").collect()
    }
    assert found[0] == sketched[0] == 150
    # 4096 registers have a standard error of 1.04 / 64: three of them.
    assert found[1] == pytest.approx(30_000, rel=3 * 1.04 / 64)


def test_a_function_with_a_merge_of_ones_own(spark, splitting):
    @F.pandas_udf("double")
    def product(x: pd.Series) -> float:
        return x.prod()

    df = spark.range(3000).selectExpr("id % 3 as k", "1 + (id % 7) / 1000 as x")
    mean = Aggregate(
        F.struct(F.sum(F.ln("x")).alias("logs"), F.count("x").alias("rows")),
        lambda part: F.exp(F.sum(part["logs"]) / F.sum(part["rows"])),
    )
    python = Aggregate(product("x"), F.product)
    found = split_aggregate(df, "k", {"mean": mean, "n": "count(*)"}, splitting(SPLIT))
    wanted = {"mean": "exp(avg(ln(x)))", "n": "count(*)"}
    assert table(found) == table(plain(df, wanted, "k"))
    multiplied = table(split_aggregate(df, "k", {"p": python}, splitting(SPLIT)))
    assert multiplied == table(df.groupBy("k").agg(F.product("x").alias("p")))


WRONG = {
    "nothing": ({}, {}, "aggs = {}: expected names and aggregates"),
    "unknown": ({"x": "sun(i)"}, {}, "aggs: x = 'sun': unknown (did you mean 'sum'?)"),
    "not a call": ({"x": "i + 1"}, {}, "aggs: x = 'i + 1': expected such as 'sum(x)'"),
    "distinct": ({"x": "count(distinct i)"}, {}, "aggs: x = count(distinct i): distinct cannot be merged"),
    "name of the key": ({"k": "sum(i)"}, {}, "aggs: k: expected a name that is not k or window"),
    "half a window": ({"x": "sum(i)"}, {"window": ("t",)}, "window = ('t',): expected time column, length"),
    "no such time": ({"x": "sum(i)"}, {"window": ("u", "1 hour")}, "window = 'u': unknown"),
    "no duration": ({"x": "sum(i)"}, {"window": ("t", "1 hour", "soon")}, "window: 'soon': expected such as"),
    "other workers": ({"x": "sum(i)"}, {"n_workers": 8}, "n_workers = 8: expected 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(case, spark, splitting, refused):
    aggs, more, message = WRONG[case]
    df = spark.createDataFrame([], SCHEMA)
    assert message in refused(split_aggregate, df, "k", aggs, splitting(SPLIT), **more)
