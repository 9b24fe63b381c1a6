"""The throughput model against times worked out by hand, and the shapes of the paper's figures."""

import math

import numpy as np
import pytest

from dalton.envs.errors import ConfigError
from dalton.envs.hashing import member, worker_of
from dalton.envs.simulate import Result, Slide, simulate
from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments import make
from dalton.experiments import throughput as module
from dalton.experiments.throughput import STAGES, Calibration, Costs, calibrate, explain, throughput

WINDOW = Window(40, 20)


def slide(number, tuples, ns, merged, split):
    zeros = dict.fromkeys(Slide._fields, 0)
    given = {"slide": number, "tuples": tuples, "aggregation_cost": merged, "aggregation_split": split}
    return Slide(**zeros | given | {"ns_per_tuple": ns})


def result_of(slides, loads, window=WINDOW, n_reducers=2, **settings):
    loads = np.array(loads, np.int64)
    settings = {"window": window, "n_reducers": n_reducers, **settings}
    return Result("p", "w", slides, loads, loads.sum(axis=0), settings)


# Windows of two slides on three workers. Pairs per reducer: all, and those of split keys.
HAND = result_of(
    [slide(0, 20, 5.0, 9.0, 2.0), slide(1, 20, 6.0, 12.0, 4.0), slide(2, 10, 7.0, 8.0, 0.0)],
    [[10, 6, 4], [16, 12, 12], [9, 9, 12]],
)


def test_times_of_every_stage_by_hand():
    flow = throughput(HAND, Costs(combine_ns=10, merge_ns=50, n_reducers=2, n_partitioners=4))
    # Combiners: 10 ns x 2 windows x tuples x share of the busiest worker, 10/20, 16/40 and 12/30.
    wanted = [
        [5 * 20 / 4, 10 * 2 * 20 * 0.5, 50 * 9],
        [6 * 20 / 4, 10 * 2 * 20 * 0.4, 50 * 12],
        [7 * 10 / 4, 10 * 2 * 10 * 0.4, 50 * 8],
    ]
    np.testing.assert_allclose(flow.seconds, np.array(wanted) / 1e9)
    assert flow.tuples.tolist() == [20, 20, 10]


def test_rates_and_bottlenecks_by_hand():
    flow = throughput(HAND, Costs(combine_ns=10, merge_ns=20, n_reducers=2), route_ns=9, warm_up=0)
    # ns: partitioner 180, 180, 90; combiners 200, 160, 80; reducers 180, 240, 160.
    np.testing.assert_allclose(flow.per_slide, [20 / 200e-9, 20 / 240e-9, 10 / 160e-9])
    np.testing.assert_allclose(flow.limits[1], [20 / 180e-9, 20 / 160e-9, 20 / 240e-9])
    assert flow.bottlenecks == ["combiners", "reducers", "reducers"]
    assert flow.bottleneck == "reducers"
    assert flow.summary == pytest.approx(
        {
            "throughput": 50 / 600e-9,
            "limit_partitioner": 50 / 450e-9,
            "limit_combiners": 50 / 440e-9,
            "limit_reducers": 50 / 580e-9,
            "bottleneck_partitioner": 0.0,
            "bottleneck_combiners": 200 / 600,
            "bottleneck_reducers": 400 / 600,
        }
    )
    assert all(type(value) is float for value in flow.summary.values())


def test_full_windows_cost_the_load_of_the_busiest_worker():
    # The second window is full, two slides of 20: then the time is combine_ns max_i L_i.
    flow = throughput(HAND, Costs(combine_ns=10, n_reducers=2))
    assert flow.seconds[1, 1] == pytest.approx(10e-9 * 16)


def test_with_forwarding_only_split_keys_are_merged():
    flow = throughput(HAND, Costs(merge_ns=50, n_reducers=2, forwarding=True))
    np.testing.assert_allclose(flow.seconds[:, 2], np.array([2, 4, 0]) * 50e-9)
    assert flow.limits[2, 2] == math.inf


def test_windows_that_are_not_full_do_not_count():
    costs = Costs(combine_ns=10, merge_ns=20, n_reducers=2)
    flow = throughput(HAND, costs, route_ns=0)
    assert flow.warm_up == 1
    assert flow.summary["throughput"] == pytest.approx(30 / 400e-9)
    assert flow.summary["bottleneck_reducers"] == 1.0
    assert len(flow.per_slide) == 3
    assert throughput(HAND, costs, warm_up=2).summary["throughput"] == pytest.approx(10 / 160e-9)
    # A stream shorter than the window has its last slide.
    long = result_of(HAND.slides, HAND.loads, Window(400, 20))
    assert throughput(long, costs).warm_up == 2


def test_capacities_divide_the_load():
    # Relative to their mean, 2, the capacities are 0.5, 1 and 1.5: 10, 6 and 4 tuples are 20, 6 and 2.67.
    uneven = result_of(HAND.slides, HAND.loads, capacity=[1.0, 2.0, 3.0])
    flow = throughput(uneven, Costs(combine_ns=10, n_reducers=2))
    assert flow.seconds[0, 1] == pytest.approx(10e-9 * 2 * 20 * 20 / 20)


def test_without_slides_there_is_no_throughput():
    flow = throughput(result_of([], np.empty((0, 3))), Costs(n_reducers=2))
    assert math.isnan(flow.summary["throughput"])
    assert flow.bottlenecks == []
    assert flow.per_slide.shape == (0,)
    assert flow.limits.shape == (0, 3)
    assert flow.summary["bottleneck_reducers"] == 0.0


def test_work_that_costs_nothing_has_no_limit():
    flow = throughput(HAND, Costs(combine_ns=0, merge_ns=0, n_reducers=2), route_ns=0)
    assert flow.summary["throughput"] == math.inf


def test_the_measured_time_of_the_partitioner_is_the_default():
    stream = make_workload("zipf", n_tuples=2_000, n_keys=100)
    result = simulate(make("pkg", n_workers=4), stream, window=Window(400, 200))
    flow = throughput(result, Costs(combine_ns=0, merge_ns=0))
    np.testing.assert_allclose(flow.seconds[:, 0], result.column("ns_per_tuple") * 200 / 1e9)
    assert set(flow.bottlenecks) == {"partitioner"}
    assert throughput(result, Costs(), route_ns=3).seconds[:, 0] == pytest.approx(200 * 3e-9)


@pytest.mark.parametrize("n_reducers", [1, 3])
@pytest.mark.parametrize("forwarding", [False, True])
def test_a_simulation_by_definition(n_reducers, forwarding):
    window, costs = Window(600, 200), Costs(3, 7, n_reducers, 2, forwarding)
    stream = make_workload("zipf", n_tuples=2_100, n_keys=300, exponent=1.1)
    keys = next(stream.chunks(2_100)).keys
    workers = make("pkg", n_workers=5).route(keys)
    result = simulate(make("pkg", n_workers=5), stream, window=window, n_reducers=n_reducers)
    flow = throughput(result, costs, route_ns=11)
    for t in range(11):
        inside = range(max(0, 200 * (t - 2)), min(2_100, 200 * (t + 1)))
        x = 200 if t < 10 else 100
        pairs = {(int(keys[i]), int(workers[i])) for i in inside}
        holders = {key: sum(k == key for k, _ in pairs) for key, _ in pairs}
        merged = [0] * n_reducers
        for key, _ in pairs:
            if holders[key] > 1 or not forwarding:
                merged[worker_of(np.int64(key), member(0, 65535), n_reducers)] += 1
        load = np.bincount(workers[inside.start : inside.stop], minlength=5)
        wanted = [11 * x / 2, 3 * 3 * x * load.max() / len(inside), 7 * max(merged)]
        np.testing.assert_allclose(flow.seconds[t], np.array(wanted) / 1e9)


@pytest.mark.parametrize("field", ["combine_ns", "merge_ns"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "3", True])
def test_times_are_numbers_not_below_zero(field, value, refused):
    assert refused(Costs, **{field: value}).startswith(f"{field} = ")


@pytest.mark.parametrize("field", ["n_reducers", "n_partitioners"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_counts_are_whole_numbers_from_one(field, value, refused):
    assert refused(Costs, **{field: value}) == f"{field} = {value}: expected a whole number >= 1"


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_forwarding_is_true_or_false(value, refused):
    assert refused(Costs, forwarding=value) == f"forwarding = {value!r}: expected true or false"


def test_costs_take_whole_floats_and_do_not_change():
    costs = Costs(n_reducers=4.0, combine_ns=5)
    assert type(costs.n_reducers) is int
    assert type(costs.combine_ns) is float
    with pytest.raises(AttributeError):
        costs.merge_ns = 3


def test_bad_arguments_are_one_clear_line(refused):
    assert refused(throughput, HAND, Costs(n_reducers=3)) == "n_reducers = 3: expected 2, as it was simulated"
    assert (
        refused(throughput, HAND, Costs(n_reducers=2), route_ns=-1) == "route_ns = -1: expected a number >= 0"
    )
    expected = "warm_up = 3: expected a whole number from 0 to 2"
    assert refused(throughput, HAND, Costs(n_reducers=2), warm_up=3) == expected
    assert refused(calibrate, n=0) == "n = 0: expected a whole number >= 1"
    with pytest.raises(ConfigError):
        throughput(Result("p", "w", [], np.empty((0, 2)), np.zeros(2)), Costs())


def test_calibration_measures_both_sides():
    found = calibrate(seed=3, n=20_000, n_workers=4, n_keys=1_000, repeat=2)
    assert isinstance(found, Calibration)
    assert found.tuples == 20_000
    # 5000 tuples on each of four workers, most of the thousand keys on each.
    assert 2_000 < found.pairs <= 4_000
    # A table operation takes between a fraction of a nanosecond and a microsecond.
    assert 0.1 < found.combine_ns < 1_000
    assert 0.1 < found.merge_ns < 1_000
    assert found.ratio == found.merge_ns / found.combine_ns
    assert calibrate(seed=3, n=20_000, n_workers=4, n_keys=1_000, repeat=2).pairs == found.pairs


def test_calibration_is_per_tuple_and_per_pair(monkeypatch):
    def folding(keys, values):
        return len(keys) * (3e-9 if (values == 1).all() else 8e-9)

    monkeypatch.setattr(module, "_folding", folding)
    found = calibrate(n=5_000, n_keys=100, repeat=1)
    assert (found.combine_ns, found.merge_ns) == pytest.approx((3.0, 8.0))


def test_folding_adds_up():
    keys, values = np.array([5, 7, 5, -1, 5]), np.array([1, 2, 3, 4, 5])
    table, mark, sums = np.zeros(8, np.int64), np.full(8, -1, np.int32), np.full(8, 99, np.int64)
    module._fold(keys, values, table, mark, sums)
    taken = mark >= 0
    assert dict(zip(table[taken].tolist(), sums[taken].tolist(), strict=True)) == {5: 9, 7: 2, -1: 4}


def test_explain_prints_what_was_measured_and_the_defaults(capsys, monkeypatch):
    fixed = Calibration(combine_ns=4.0, merge_ns=9.0, tuples=1_000, pairs=500, exponent=1.0)
    monkeypatch.setattr(module, "calibrate", lambda seed, exponent: fixed)
    explain()
    text = " ".join(capsys.readouterr().out.split())
    for part in ("4.00", "9.00", "2.25", "0.50", "combine_ns = 1000", "merge_ns = 2000", "156 ns per tuple"):
        assert part in text


def paper_rate(name, n, m, forwarding, **params):
    """Tuples/s of Word Count with n combiners and m reducers; the partitioner costs nothing."""
    window = Window(100_000, 10_000)
    own = {"window": window} if name in ("dalton", "cam", "cm", "dagreedy") else {}
    stream = make_workload("zipf", n_tuples=300_000, seed=1, **params)
    result = simulate(make(name, n_workers=n, seed=1, **own), stream, window=window, n_reducers=m)
    flow = throughput(result, Costs(n_reducers=m, forwarding=forwarding), route_ns=0)
    return flow.summary["throughput"], flow.bottleneck


UNIFORM, SKEWED = {"n_keys": 100_000, "exponent": 0.0}, {"n_keys": 100_000, "exponent": 1.5}


def test_hashing_scales_on_uniform_streams_and_not_on_skewed_ones():
    # Dalton Fig. 7: eight times the workers.
    for params, low, high in ((UNIFORM, 7.0, 8.0), (SKEWED, 1.0, 1.6)):
        few, many = (paper_rate("kg", n, m, True, **params)[0] for n, m in ((8, 1), (64, 8)))
        assert low < many / few < high


def test_splitting_everything_is_limited_by_the_reducers_on_uniform_streams():
    hashed, _ = paper_rate("kg", 64, 8, True, **UNIFORM)
    for name in ("sg", "pkg"):
        rate, bottleneck = paper_rate(name, 56, 8, False, **UNIFORM)
        assert bottleneck == "reducers"
        assert rate < 0.2 * hashed


def test_dalton_is_close_to_hashing_on_uniform_streams_and_far_above_on_skewed_ones():
    # Of 64 workers Dalton has 56 as combiners.
    assert paper_rate("dalton", 56, 8, True, **UNIFORM)[0] > 0.8 * paper_rate("kg", 64, 8, True, **UNIFORM)[0]
    dalton, _ = paper_rate("dalton", 56, 8, True, **SKEWED)
    assert dalton > 5 * paper_rate("kg", 64, 8, True, **SKEWED)[0]
    assert dalton > 3 * paper_rate("pkg", 56, 8, False, **SKEWED)[0]


def test_forwarding_helps_on_uniform_streams_only():
    # Dalton Fig. 11.
    uniform, skewed = (
        paper_rate("dalton", 28, 4, True, **params)[0] / paper_rate("dalton", 28, 4, False, **params)[0]
        for params in (UNIFORM, SKEWED)
    )
    assert uniform > 2
    assert 1 <= skewed < 1.1


def test_splitting_only_hot_keys_helps_without_forwarding():
    # Dalton Fig. 11, non-hybrid: every key is hot.
    params = {"n_keys": 20_000, "exponent": 0.9}
    window = Window(100_000, 10_000)
    rates = []
    for hot_factor in (1_000.0, 1.0):
        stream = make_workload("zipf", n_tuples=300_000, seed=1, **params)
        agent = make("dalton", n_workers=28, seed=1, window=window, hot_factor=hot_factor, statistics="exact")
        result = simulate(agent, stream, window=window, n_reducers=4)
        rates.append(throughput(result, Costs(n_reducers=4), route_ns=0).summary["throughput"])
    assert rates[1] > 1.05 * rates[0]


def test_stages_are_the_columns():
    assert STAGES == ("partitioner", "combiners", "reducers")
    assert throughput(HAND, Costs(n_reducers=2)).limits.shape == (3, len(STAGES))
