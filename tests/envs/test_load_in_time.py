"""Load in time over capacity: what a tuple adds, what partitioners decide by it, what the workers hold."""

import pickle

import numpy as np
import pytest

from dalton.envs.cluster import Cluster
from dalton.envs.contract import LoadAware
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import candidates, family
from dalton.envs.window import TICKS, Window, amount, pace_of
from dalton.experiments.registry import make, ready_names

LOAD_AWARE = [name for name in ready_names() if isinstance(make(name, n_workers=2), LoadAware)]
WINDOWS = [None, Window(400, 100), Window(8.0, 2.0, "time")]


def stream(length, seed=0):
    rng = np.random.default_rng(seed)
    shares = np.arange(1, 61) ** -1.2
    keys = rng.choice(60, length, p=shares / shares.sum())
    return keys, np.cumsum(rng.exponential(0.02, length)), 0.001 * (1 + keys % 5)


def test_what_a_tuple_adds():
    costs = np.array([2.0, 0.25e-9, 0.0, 1.6e-9])
    assert [amount(None, costs, i, 0) for i in range(4)] == [1, 1, 1, 1]
    pace = pace_of("time", [1.0, 4.0], 2)
    assert pace.tolist() == [1e9, 0.25e9]
    assert [amount(pace, costs, i, 0) for i in range(4)] == [2_000_000_000, 1, 1, 2]
    assert amount(pace, costs, 0, 1) == 500_000_000
    assert pace_of("tuples", [1.0, 4.0], 2) is None


@pytest.mark.parametrize("name", LOAD_AWARE)
def test_equal_costs_and_capacities_change_no_decision(name):
    keys, times, _ = stream(5_000)
    # A power of two of nanoseconds scales every load without rounding.
    costs = np.full(len(keys), 2**20 / TICKS)
    partitioner = make(name, n_workers=8)
    by_tuples = partitioner.route(keys, times)
    loads = partitioner.loads.load.copy()
    partitioner.measure("time")
    np.testing.assert_array_equal(partitioner.route(keys, times, costs), by_tuples)
    np.testing.assert_array_equal(partitioner.loads.load, loads << 20)


@pytest.mark.parametrize("name", [name for name in ready_names() if not make(name, n_workers=2).executes])
def test_costs_do_not_matter_to_load_in_tuples(name):
    keys, times, costs = stream(3_000)
    partitioner, other = make(name, n_workers=8), make(name, n_workers=8)
    for each in (partitioner, other):
        if each.lookahead == "stream":
            each.prepare(*np.unique(keys, return_counts=True))
    np.testing.assert_array_equal(partitioner.route(keys, times, costs), other.route(keys, times))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_pkg_by_definition(window):
    keys, times, costs = stream(2_000)
    capacity = [1.0, 2.0, 0.5, 4.0, 1.0]
    partitioner = make("pkg", n_workers=5, window=window)
    partitioner.measure("time", capacity)
    workers = partitioner.route(keys, times, costs)
    choices = candidates(keys, family(0, 2), 5)
    sent = []  # (slide, worker, seconds)
    for i in range(len(keys)):
        at = 0 if window is None else int((times[i] if window.by == "time" else i) // window.slide)
        first = 0 if window is None else at - window.n_slides + 1
        load = np.zeros(5)
        for slide, worker, seconds in sent:
            load[worker] += seconds if slide >= first else 0
        one, two = choices[:, i]
        # Loads are whole nanoseconds.
        best = two if round(load[two] * 1e9) < round(load[one] * 1e9) else one
        assert workers[i] == best, i
        sent.append((at, best, costs[i] / capacity[best]))
        sent = [entry for entry in sent if entry[0] >= first]
    np.testing.assert_allclose(
        partitioner.loads.load, [1e9 * sum(s for _, w, s in sent if w == i) for i in range(5)], atol=1e3
    )


@pytest.mark.parametrize("name", ["pkg", "w_choices", "porc", "ch", "dkg", "dagreedy"])
def test_time_is_balanced_where_costs_differ_and_workers_too(name):
    # Heavy keys cost ten times as much; worker 0 is four times as strong as the others.
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2_000, 40_000)
    keys[::3] = rng.integers(0, 20, len(keys[::3]))
    times = np.arange(len(keys)) / 1_000
    costs = np.where(keys < 10, 0.010, 0.001)
    capacity = np.array([4.0, 1.0, 1.0, 1.0])

    def worst(measure):
        partitioner = make(name, n_workers=4)
        partitioner.measure(measure, capacity)
        workers = partitioner.route(keys, times, costs)
        seconds = np.bincount(workers, costs, minlength=4) / capacity
        return seconds.max() / seconds.mean()

    # Blind to it all the weak workers need at least 1.2 times the mean; the margin is a fifth of the excess.
    assert worst("tuples") > 1.2
    assert worst("time") - 1 < 0.8 * (worst("tuples") - 1)


def test_a_change_of_measure_forgets_and_no_change_does_not():
    keys, times, costs = stream(500)
    partitioner = make("pkg", n_workers=4)
    partitioner.route(keys, times, costs)
    before = partitioner.loads.load.copy()
    partitioner.measure("tuples", [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(partitioner.loads.load, before)
    partitioner.measure("time", [1.0, 2.0, 3.0, 4.0])
    assert partitioner.loads.load.sum() == 0
    partitioner.route(keys, times, costs)
    before = partitioner.loads.load.copy()
    partitioner.measure("time", [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(partitioner.loads.load, before)
    partitioner.reset()
    assert partitioner.loads.pace.tolist() == (1e9 / np.arange(1, 5)).tolist(), "the measure stays"
    copy = pickle.loads(pickle.dumps(partitioner))
    np.testing.assert_array_equal(copy.route(keys, times, costs), partitioner.route(keys, times, costs))


def test_without_costs_every_tuple_takes_a_second():
    partitioner = make("sg", n_workers=2)
    partitioner.measure("time", [1.0, 2.0])
    assert partitioner.route([1, 2, 3]).tolist() == [0, 1, 0]
    greedy = make("on_greedy", n_workers=2)
    greedy.measure("time", [1.0, 4.0])
    # Loads 0 and 0, 1 and 0, 1 and 1/4, 1 and 1/2, 1 and 3/4, 1 and 1.
    assert greedy.route([1, 2, 3, 4, 5, 6]).tolist() == [0, 1, 1, 1, 1, 0]
    assert greedy.loads.load.tolist() == [2_000_000_000, 1_000_000_000]


@pytest.mark.parametrize("name", ["kg", "pkg", "dalton"])
@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([1.0], "costs has shape (1,): expected the shape of keys, (2,)"),
        ([1.0, -0.5], "costs[1] = -0.5: expected seconds from 0 to 1000000"),
        ([np.inf, 1.0], "costs[0] = inf: expected seconds from 0 to 1000000"),
        ([np.nan, 1.0], "costs[0] = nan: expected seconds from 0 to 1000000"),
        (["a", "b"], "costs = ['a', 'b']: expected seconds, one number per tuple"),
    ],
)
def test_bad_costs_are_one_clear_line_and_route_nothing(name, costs, message):
    partitioner = make(name, n_workers=2)
    with pytest.raises(ConfigError) as caught:
        partitioner.route([1, 2], None, costs)
    assert str(caught.value) == message
    assert partitioner.route([1, 2]).tolist() == make(name, n_workers=2).route([1, 2]).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tuple",), "measure = 'tuple': unknown (did you mean 'tuples'?); known: time, tuples"),
        (("time", [1.0]), "capacity = [1.0]: expected 2 numbers > 0, one per worker"),
        (("time", [1.0, 0.0]), "capacity = [1.0, 0.0]: expected 2 numbers > 0, one per worker"),
    ],
)
@pytest.mark.parametrize("name", ["kg", "pkg"])
def test_bad_measures_are_one_clear_line(name, given, message):
    with pytest.raises(ConfigError) as caught:
        make(name, n_workers=2).measure(*given)
    assert str(caught.value) == message


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_workers_keep_their_time_exactly(window):
    keys, times, costs = stream(3_000)
    workers = make("kg", n_workers=4).route(keys)
    capacity = np.array([1.0, 3.0, 0.7, 2.0])
    cluster = Cluster(n_workers=4, window=window, measure="time", capacity=capacity)
    for part in (slice(0, 777), slice(777, 778), slice(778, None)):
        cluster.observe(keys[part], workers[part], times[part], costs[part])
    ticks = (costs * (1e9 / capacity)[workers] + 0.5).astype(np.int64)
    live = np.ones(3_000, bool)
    if window is not None:
        numbers = (times if window.by == "time" else np.arange(3_000)) // window.slide
        live = numbers > numbers[-1] - window.n_slides
    state, total = cluster.measured
    for w in range(4):
        assert state.load[w] == ticks[live & (workers == w)].sum()
        assert total[w] == ticks[workers == w].sum()
    assert cluster.loads.load.tolist() == np.bincount(workers[live], minlength=4).tolist()


def test_a_probe_hands_over_load_as_it_is_measured():
    keys, times, costs = stream(1_000)
    partitioner = make("pkg", n_workers=4, window=Window(400, 100))
    partitioner.measure("time", [1.0, 2.0, 1.0, 2.0])
    workers = partitioner.route(keys, times, costs)
    cluster = Cluster(n_workers=4, window=Window(400, 100), measure="time", capacity=[1.0, 2.0, 1.0, 2.0])
    cluster.observe(keys, workers, times, costs)
    wanted = partitioner.loads.load.copy()
    partitioner.loads.load[:] = 0
    partitioner.probe(*cluster.measured)
    np.testing.assert_array_equal(partitioner.loads.load, wanted)
