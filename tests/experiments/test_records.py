"""Means, intervals and paired differences against scipy and numbers worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dalton import make, make_workload, simulate
from dalton.experiments.records import (
    ANSWER_METRICS,
    METRICS,
    QUEUE_METRICS,
    Record,
    bound,
    grouped,
    interval,
    paired,
    single,
    summarise,
)


def fake(partitioner, seed, *, workload="w", n=2, **summary):
    return Record(partitioner, workload, n, seed, summary, pd.DataFrame(), np.empty((0, n), np.int64))


@pytest.fixture(scope="module")
def real():
    records = []
    for seed in range(3):
        stream = make_workload("zipf", n_tuples=4000, n_keys=200, exponent=1.4, seed=seed)
        for name in ("kg", "pkg", "sg", "oracle"):
            result = simulate(
                make(name, n_workers=4, seed=seed),
                stream,
                window={"size": 1000, "slide": 250},
                show_progress=False,
            )
            records.append(Record.of(result, partitioner=name, workload="zipf 1.4", seed=seed))
    return records


def test_record_of_a_result():
    result = simulate(
        make("sg", n_workers=3),
        make_workload("uniform", n_tuples=90),
        window={"size": 30, "slide": 30},
        show_progress=False,
    )
    record = Record.of(result, partitioner="sg", workload="u", seed=7, throughput=5, shifts=[30])
    assert (record.n_workers, record.seed, record.shifts) == (3, 7, (30,))
    assert record.summary == pytest.approx({**result.summary(), "throughput": 5.0}, nan_ok=True)
    assert list(record.slides["seen"]) == [30, 60, 90]
    assert record.loads.tolist() == [[10, 10, 10]] * 3


def test_interval_by_hand():
    # Mean 2, s = 1, t(0.975, 2) = 4.303.
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_interval_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=7)
    mean, half = interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high))


def test_interval_of_few_values():
    assert interval([3.0, 3.0]) == (3, 0)
    mean, half = interval([5.0])
    assert mean == 5
    assert math.isnan(half)
    assert all(map(math.isnan, interval([])))
    assert interval([1.0, math.nan, 3.0]) == interval([1.0, 3.0])


def test_summary_of_real_runs(real):
    table = summarise(real).set_index("partitioner")
    assert set(table.index) == {"kg", "pkg", "sg", "oracle"}
    assert list(table["seeds"]) == [3] * 4
    for name in table.index:
        for metric in METRICS.keys() - QUEUE_METRICS.keys() - ANSWER_METRICS.keys():
            values = [r.summary.get(metric, math.nan) for r in real if r.partitioner == name]
            assert tuple(table.loc[name, [metric, f"{metric}_ci"]]) == pytest.approx(
                interval(values), nan_ok=True
            )
    assert table["throughput"].isna().all()
    assert not set(table) & set(QUEUE_METRICS), "no queue model, none of its metrics"


def test_best_first_and_settings_in_order():
    records = [
        fake("slow", 0, max_over_mean=2.0, replication=1.0),
        fake("dear", 0, max_over_mean=1.0001, replication=3.0),
        fake("good", 0, max_over_mean=1.0004, replication=2.0),
        fake("unknown", 0),
        fake("x", 0, workload="a", n=8),
        fake("x", 0, workload="a", n=4),
    ]
    table = summarise(records)
    assert list(table["partitioner"]) == ["good", "dear", "slow", "unknown", "x", "x"]
    assert list(table["n_workers"]) == [2, 2, 2, 2, 4, 8]
    assert list(single(records[:4])[1]) == ["good", "dear", "slow", "unknown"]


def test_summary_of_nothing_has_the_columns():
    assert list(summarise([])) == list(summarise([fake("a", 0)]))


def test_paired_interval_by_hand():
    # Differences 1, 2, 3 between streams that differ by far more.
    records = [fake("kg", seed, m=100.0 * seed) for seed in range(3)]
    records += [fake("a", seed, m=100.0 * seed + 1 + seed) for seed in range(3)]
    table = paired(records, "m", "kg")
    assert table.loc[0, ["partitioner", "seeds"]].tolist() == ["a", 3]
    assert (table.loc[0, "difference"], table.loc[0, "difference_ci"]) == pytest.approx(interval([1, 2, 3]))


def test_pairs_are_of_the_same_seed():
    records = [fake("kg", 0, m=1.0), fake("kg", 1, m=5.0), fake("a", 1, m=7.0), fake("a", 2, m=90.0)]
    records += [fake("b", 9, m=0.0), fake("a", 0, m=math.nan)]
    table = paired(records, "m", "kg")
    assert list(table["partitioner"]) == ["a"]
    assert table.loc[0, ["difference", "seeds"]].tolist() == [2, 1]
    assert math.isnan(table.loc[0, "difference_ci"])


def test_paired_best_first():
    low = [fake(name, 0, max_over_mean=v) for name, v in (("kg", 2.0), ("a", 3.0), ("b", 1.0))]
    assert list(paired(low, "max_over_mean", "kg")["partitioner"]) == ["b", "a"]
    high = [fake(name, 0, throughput=v) for name, v in (("kg", 2.0), ("a", 3.0), ("b", 1.0))]
    assert list(paired(high, "throughput", "kg")["partitioner"]) == ["a", "b"]


def test_paired_refuses_what_is_unknown(real, refused):
    assert "reference = 'pgk': unknown (did you mean 'pkg'?)" in refused(paired, real, "pairs", "pgk")
    assert "metric = 'pears': unknown" in refused(paired, real, "pears", "kg")


def test_a_run_twice_is_refused(real, refused):
    assert "kg on zipf 1.4, 4 workers" in refused(grouped, [*real, real[0]])


def test_one_setting_is_asked_for(real, refused):
    assert "not 2" in refused(single, [*real, fake("a", 0)])
    assert "not 0" in refused(single, [])


def test_bound_is_the_same_whoever_was_measured(real):
    bounds = [bound(r for r in real if r.partitioner == name) for name in ("kg", "pkg", "sg", "oracle")]
    assert np.ptp(bounds, axis=0) == pytest.approx([0, 0], abs=1e-12)
    load, pairs = bounds[0]
    table = summarise(real).set_index("partitioner")
    assert 1 <= load <= table.loc["oracle", "max_over_mean"]
    assert 1 < pairs <= table.loc["oracle", "replication"]


def test_metric_text():
    assert METRICS["throughput"].text(2.5e6) == "2.50"
    assert METRICS["max_over_mean"].text(math.nan) == "–"
