"""The queue model in the simulator: arrivals, schedules, what is measured, and that it is off by default."""

import pickle

import numpy as np
import pytest

from dalton.envs.errors import ConfigError
from dalton.envs.queueing import Change, Queue, QueueSlide
from dalton.envs.servers import Servers
from dalton.envs.simulate import Slide, simulate
from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments.registry import make

WINDOW = Window(1_000, 250)
COSTS = {"cost_mean": 0.01, "cost_spread": 0.9}


def zipf(**params):
    return make_workload("zipf", **{"n_tuples": 3_100, "n_keys": 200, "exponent": 1.2, **COSTS, **params})


def run(name="pkg", workload=None, n=4, **given):
    return simulate(make(name, n_workers=n), workload or zipf(), **{"window": WINDOW, **given})


def measured(result):
    return [row._replace(ns_per_tuple=0.0, disagreement=0.0) for row in result.slides]


def test_it_is_off_by_default_and_changes_nothing_else():
    off, on = run(), run(queue={"rate": 500.0})
    assert off.queue is None
    assert off.settings.keys() == {"window", "view", "probe_every", "n_reducers", "capacity"}
    assert measured(off) == measured(on)
    assert list(off.to_pandas()) == list(Slide._fields)
    assert list(on.to_pandas()) == [*Slide._fields, *QueueSlide._fields]
    assert len(on.to_pandas()) == len(on.queue.slides) == len(on.slides)
    more = on.summary().keys() - off.summary().keys()
    assert {"completion_mean", "completion_p99", "queue", "utilisation", "makespan"} <= more
    assert off.summary().keys() < on.summary().keys()


@pytest.mark.parametrize("chunk_size", [64, 999, 10_000])
def test_every_column_by_definition(chunk_size):
    capacity = np.array([1.0, 2.0, 0.5, 1.0])
    steps = [(2.0, 1, 0.0), (4.0, 1, 1.0), (3.0, 0, 0.5)]
    changes = [{"at": at, "worker": worker, "capacity": c} for at, worker, c in steps]
    queue = {"rate": 400.0, "schedule": changes}
    result = run(capacity=capacity, queue=queue, chunk_size=chunk_size)
    chunk = next(zipf().chunks(10_000))
    times = np.arange(3_100) / 400.0
    workers = make("pkg", n_workers=4).route(chunk.keys)
    servers = Servers(n_workers=4, capacity=capacity, schedule=steps)
    spent = servers.serve(workers, times, chunk.costs)
    ends = times + spent
    completed, before, start = 0, np.zeros((2, 4)), 0
    for row in result.queue.slides:
        stop = min(start + 250, 3_100)
        now = times[stop - 1]
        own = spent[start:stop]
        assert row.end == now
        assert row.completion_mean == pytest.approx(own.mean())
        assert (row.completion_min, row.completion_max) == (own.min(), own.max())
        for percent in (50, 95, 99):
            wanted = np.percentile(own, percent, method="inverted_cdf")
            assert getattr(row, f"completion_p{percent}") == pytest.approx(wanted, rel=1 / 128)
        there = (ends > now) & (np.arange(3_100) < stop)
        queued = np.bincount(workers[there], minlength=4)
        assert (row.queue, row.queue_max) == (queued.sum(), queued.max())
        assert row.completed == stop - queued.sum() - completed
        completed = stop - queued.sum()
        done, able = np.zeros(4), np.zeros(4)
        grid = np.linspace(times[0], now, 4_001)
        for w in range(4):
            legs = sorted([(-1.0, w, capacity[w]), *(step for step in steps if step[1] == w)])
            speeds = np.array([[c for at, _, c in legs if at <= moment][-1] for moment in grid[:-1]])
            able[w] = speeds.sum() * (grid[1] - grid[0])
            done[w] = chunk.costs[:stop][(workers[:stop] == w) & ~there[:stop]].sum()
        assert row.utilisation_min <= row.utilisation <= row.utilisation_max <= 1 + 1e-9
        # Work done lies between the tuples that are done and, with those in service, one tuple each more.
        share = row.utilisation * (able - before[1]).sum()
        assert share == pytest.approx((done - before[0]).sum(), abs=4 * 2 * 0.019 + 0.01)
        before, start = np.array([done, able]), stop
    summary = result.summary()
    assert summary["completion_mean"] == pytest.approx(spent.mean())
    assert summary["completion_max"] == spent.max()
    assert summary["makespan"] == ends.max()
    assert summary["completion_rate"] == pytest.approx(3_100 / ends.max())
    assert summary["arrival_rate"] == 400.0
    assert summary["unfinished"] == 0
    assert summary["queue"] == pytest.approx(np.mean([row.queue for row in result.queue.slides]))
    assert result.column("queue_max").max() == summary["queue_max"]
    assert result.queue.utilisation.shape == (len(result.slides), 4)


def test_a_run_with_a_queue_is_the_same_for_every_cut():
    first, second = (run(queue={"rate": 450.0}, chunk_size=size) for size in (64, 5_000))
    assert first.queue.slides == second.queue.slides
    assert first.queue.summary() == second.queue.summary()


def test_over_provisioning_is_the_rate_that_the_workers_could_bear_over_the_rate():
    capacity = [1.0, 2.0, 0.5, 1.0]
    costs = np.concatenate([chunk.costs for chunk in zipf().chunks(500)])
    for percent in (80.0, 100.0, 125.0):
        result = run(capacity=capacity, queue={"over_provisioning": percent})
        rate = result.summary()["arrival_rate"]
        assert rate == pytest.approx(4.5 / costs.mean() * 100 / percent)
    # Work that arrives over work that could be done: 80 % with 125, whatever the partitioner.
    result = run("sg", workload=zipf(n_tuples=20_000), queue={"over_provisioning": 125.0})
    assert result.summary()["utilisation"] == pytest.approx(0.8, abs=0.02)


def test_without_costs_tuples_take_the_service_time():
    result = run("sg", zipf(cost_mean=None, cost_spread=0.0), queue={"rate": 100.0, "service": 0.02})
    assert result.column("completion_min") == pytest.approx(0.02)
    assert result.column("completion_max") == pytest.approx(0.02)
    assert result.summary()["utilisation"] == pytest.approx(100 * 0.02 / 4, rel=0.01)
    fitting = run("sg", zipf(cost_mean=None, cost_spread=0.0), queue={"over_provisioning": 200.0})
    assert fitting.summary()["arrival_rate"] == pytest.approx(4 / 0.001 / 2)


def test_a_stream_with_times_keeps_them_or_is_brought_to_the_rate():
    stream = zipf(arrivals="poisson", rate=300.0)
    own = run(workload=stream, queue={})
    times = next(stream.chunks(10_000)).times
    assert own.column("end").tolist() == times[[*range(249, 3_100, 250), 3_099]].tolist()
    assert own.summary()["arrival_rate"] == pytest.approx(3_099 / (times[-1] - times[0]))
    faster = run(workload=stream, queue={"rate": 600.0})
    np.testing.assert_allclose(faster.column("end"), own.column("end") / 2)
    even = run(workload=zipf(arrivals="constant", rate=300.0), queue={"rate": 600.0})
    assert even.queue.slides == run(queue={"rate": 600.0}).queue.slides


def test_windows_in_time_and_partitioners_see_the_times_of_the_queue_model():
    window = Window(4.0, 1.0, "time")
    result = run("dkg", window=window, queue={"rate": 100.0})
    assert [row.tuples for row in result.slides] == [100] * 31
    timed = run("dkg", zipf(arrivals="constant", rate=100.0), window=window)
    np.testing.assert_array_equal(result.loads, timed.loads)


def test_a_change_at_a_tuple_is_one_at_its_arrival():
    by_tuple = run(queue={"rate": 400.0, "schedule": [{"at_tuple": 1_000, "worker": 2, "capacity": 0.25}]})
    by_time = run(queue=Queue(rate=400.0, schedule=(Change(worker=2, capacity=0.25, at=2.5),)))
    assert by_tuple.queue.slides == by_time.queue.slides
    assert by_tuple.queue.slides != run(queue={"rate": 400.0}).queue.slides
    own = zipf(arrivals="constant", rate=400.0)
    again = run(workload=own, queue={"schedule": [{"at_tuple": 1_000, "worker": 2, "capacity": 0.25}]})
    assert again.queue.slides == by_time.queue.slides


def test_tuples_of_a_worker_that_does_not_recover_stay_in_its_queue():
    schedule = [{"at": 1.0, "worker": 0, "capacity": 0.0}]
    result = run("sg", queue={"rate": 300.0, "schedule": schedule})
    summary = result.summary()
    # Of 3100 tuples a fourth goes to worker 0, about 75 of them within the first second.
    assert 690 <= summary["unfinished"] <= 705
    assert np.isfinite([summary["completion_mean"], summary["makespan"], summary["completion_p99"]]).all()
    assert result.queue.slides[-1].queue_max >= summary["unfinished"]
    assert np.isnan(result.queue.utilisation[-1, 0]), "a failed worker could do no work"
    assert summary["completion_rate"] == pytest.approx((3_100 - summary["unfinished"]) / summary["makespan"])


def test_imbalance_over_capacity_is_in_seconds_where_load_is_time():
    capacity = np.array([1.0, 2.0, 0.5, 4.0])
    result = run("pkg", capacity=capacity, measure="time")
    chunk = next(zipf().chunks(10_000))
    partitioner = make("pkg", n_workers=4)
    partitioner.measure("time", capacity)
    workers = partitioner.route(chunk.keys, None, chunk.costs)
    for row in result.slides:
        low = max(0, -(-row.seen // 250) * 250 - 1_000)
        part = slice(low, row.seen)
        seconds = np.bincount(workers[part], chunk.costs[part], minlength=4) / capacity
        assert row.imbalance_capacity == pytest.approx(seconds.max() - seconds.mean(), abs=1e-5)
    assert result.settings["measure"] == "time"
    assert result.total.tolist() == np.bincount(workers, minlength=4).tolist()
    assert result.total.tolist() != run("pkg", capacity=capacity).total.tolist()


@pytest.mark.parametrize("view", ["local", "probing"])
def test_every_source_measures_load_in_time(view):
    given = {"view": view, "probe_every": 500 if view == "probing" else None, "compare_global": True}
    stream = zipf(n_sources=3)
    result = run(workload=stream, capacity=[1.0, 1.0, 1.0, 5.0], measure="time", **given)
    total = np.zeros(4, int)
    chunk = next(stream.chunks(10_000))
    assert result.total[3] > 1.1 * run(workload=stream, **given).total[3]
    assert 0 < result.summary()["disagreement"] < 1
    if view == "local":
        for source in range(3):
            own = chunk.sources == source
            partitioner = make("pkg", n_workers=4)
            partitioner.measure("time", [1.0, 1.0, 1.0, 5.0])
            total += np.bincount(partitioner.route(chunk.keys[own], None, chunk.costs[own]), minlength=4)
        assert result.total.tolist() == total.tolist()


def test_a_result_pickles():
    result = run(queue={"rate": 450.0})
    copy = pickle.loads(pickle.dumps(result))
    assert copy.summary().items() >= {("makespan", result.queue.makespan)}
    assert copy.queue.slides == result.queue.slides


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ({"rate": 0}, "queue.rate = 0: expected a number > 0"),
        ({"over_provisioning": "full"}, "queue.over_provisioning = 'full': expected a number > 0"),
        (
            {"rate": 1.0, "over_provisioning": 1.0},
            "queue.rate = 1.0: expected none where over_provisioning is set",
        ),
        ({"rate": 1.0, "service": 0}, "queue.service = 0: expected a number > 0"),
        ({}, "queue.rate = None: a stream without times needs a rate or an over_provisioning"),
        (
            {"speed": 1},
            "queue = {'speed': 1}: expected the fields rate, over_provisioning, service",
        ),
        (7, "queue = 7: expected the fields"),
        ({"rate": 1.0, "schedule": 3}, "queue.schedule = 3: expected a list of changes"),
        ({"rate": 1.0, "schedule": [7]}, "queue.schedule[0] = 7: expected worker, capacity, and either at"),
        ({"rate": 1.0, "schedule": [{"worker": 1, "capacity": 1.0}]}, "and either at or at_tuple"),
        (
            {"rate": 1.0, "schedule": [{"worker": 1, "capacity": 1.0, "at": 1, "at_tuple": 1}]},
            "and either at or at_tuple",
        ),
        (
            {"rate": 1.0, "schedule": [{"worker": 1, "capacity": -1.0, "at": 1}]},
            "queue.schedule[0].capacity = -1.0: expected a number >= 0",
        ),
        (
            {"rate": 1.0, "schedule": [{"worker": 4, "capacity": 1.0, "at": 1}]},
            "queue.schedule[0].worker = 4: expected a whole number from 0 to 3",
        ),
    ],
)
def test_mistakes_are_one_clear_line(queue, message):
    with pytest.raises(ConfigError) as caught:
        run(queue=queue)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_times_that_are_not_ours_to_change(tmp_path):
    path = tmp_path / "trace.npz"
    np.savez(path, key=np.arange(10), time=np.arange(10.0), cost=np.zeros(10))
    trace = make_workload("trace", path=str(path))
    with pytest.raises(ConfigError, match="the trace has times of its own"):
        run(workload=trace, queue={"rate": 5.0})
    with pytest.raises(ConfigError, match="in which some tuples have a cost"):
        run(workload=trace, queue={"over_provisioning": 100.0})
    assert run(workload=trace, queue={}).summary()["completion_max"] == 0.0
    poisson = zipf(arrivals="poisson")
    with pytest.raises(ConfigError, match="expected at, in seconds, where arrivals = 'poisson'"):
        run(workload=poisson, queue={"schedule": [{"worker": 1, "capacity": 1.0, "at_tuple": 1}]})


def test_work_offered_may_exceed_what_can_be_done():
    # Round robin over capacities of 1 and 3 at a rate of 2 seconds of work per second.
    stream = zipf(cost_mean=None, cost_spread=0.0)
    result = run("sg", stream, n=2, capacity=[1.0, 3.0], queue={"rate": 300.0, "service": 0.01})
    offered = {name: result.column(name)[1:-1] for name in ("offered_min", "offered_max")}
    assert offered["offered_max"] == pytest.approx(1.5, rel=0.01)
    assert offered["offered_min"] == pytest.approx(0.5, rel=0.01)
    assert result.column("utilisation_max")[1:-1] == pytest.approx(1.0)
    assert result.summary()["offered_spread"] == pytest.approx(1.0, rel=0.01)


def test_a_cluster_is_described_by_how_many_are_how_strong():
    described = {"strong": 1, "times": 5}
    listed = run(capacity=[2.5, 0.5, 0.5, 0.5], queue={"rate": 450.0})
    assert run(capacity=described, queue={"rate": 450.0}).queue.slides == listed.queue.slides
    changes = [{"at": 2.0, "worker": w, "capacity": c} for w, c in enumerate([1.6, 1.6, 0.4, 0.4])]
    one_by_one = run(queue={"rate": 450.0, "schedule": changes})
    for capacity in ({"strong": 2, "times": 4.0}, [1.6, 1.6, 0.4, 0.4]):
        at_once = run(queue={"rate": 450.0, "schedule": [{"at": 2.0, "capacity": capacity}]})
        assert at_once.queue.slides == one_by_one.queue.slides


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capacity": {"strong": 5, "times": 2}}, "capacity.strong = 5: expected a whole number from 0 to 4"),
        ({"capacity": {"strong": 2, "times": 0}}, "capacity.times = 0: expected a number > 0"),
        ({"capacity": {"strong": 2}}, "capacity = {'strong': 2}: expected the fields strong and times"),
        (
            {"queue": {"rate": 1.0, "schedule": [{"at": 1.0, "capacity": 2.0}]}},
            "queue.schedule[0].capacity = 2.0: expected those of all workers, where none is named",
        ),
        (
            {"queue": {"rate": 1.0, "schedule": [{"at": 1.0, "capacity": [1.0, 2.0]}]}},
            "capacity = [1.0, 2.0]: expected 4 numbers > 0, one per worker",
        ),
    ],
)
def test_mistakes_in_the_description_are_one_clear_line(given, message):
    with pytest.raises(ConfigError) as caught:
        run(**given)
    assert str(caught.value).startswith(message)
