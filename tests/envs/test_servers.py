"""FIFO servers: hand-worked examples, an exact reference, queueing facts, histograms."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.envs.errors import ConfigError
from dalton.envs.servers import Histogram, Servers


def spent(workers, times, costs, **given):
    n = given.pop("n_workers", 2)
    return Servers(n_workers=n, **given).serve(np.array(workers, np.int32), times, costs).tolist()


def test_the_worked_example_of_osg_section_2():
    # a, b, a a second apart, a costs 10 s and b 1 s: round robin against the better schedule.
    times, costs = [0.0, 1.0, 2.0], [10.0, 1.0, 10.0]
    assert spent([0, 1, 0], times, costs) == [10.0, 1.0, 18.0]
    assert spent([0, 1, 1], times, costs) == [10.0, 1.0, 10.0]


def test_service_takes_cost_over_capacity():
    assert spent([0, 1, 1], [0.0, 0.0, 1.0], [4.0, 4.0, 4.0], capacity=[2.0, 0.5]) == [2.0, 8.0, 15.0]


def test_a_change_of_capacity_reaches_the_tuple_in_service():
    # 10 s of work: 4 s at capacity 1, then 6 s of work at capacity 2.
    assert spent([0], [0.0], [10.0], schedule=[(4.0, 0, 2.0)]) == [7.0]
    assert spent([0], [0.0], [10.0], schedule=[(4.0, 0, 0.5)]) == [16.0]
    # Two changes within one tuple, given in any order; the other worker goes on as it was.
    steps = [(6.0, 0, 1.0), (4.0, 0, 0.5)]
    assert spent([0, 1], [0.0, 0.0], [10.0, 10.0], schedule=steps) == [11.0, 10.0]


def test_a_change_while_the_worker_is_idle():
    assert spent([0, 0], [0.0, 5.0], [1.0, 1.0], schedule=[(3.0, 0, 0.25)]) == [1.0, 4.0]


def test_changes_before_the_first_tuple_and_at_the_moment_of_an_arrival():
    assert spent([0], [10.0], [1.0], schedule=[(3.0, 0, 0.25)]) == [4.0]
    assert spent([0], [3.0], [1.0], schedule=[(3.0, 0, 0.25)]) == [4.0]
    assert spent([0], [3.0], [1.0], schedule=[(3.0, 0, 9.0), (3.0, 0, 0.25)]) == [4.0], (
        "the last given counts"
    )


def test_the_queue_of_a_failed_worker_waits_for_its_recovery():
    steps = [(1.0, 0, 0.0), (10.0, 0, 1.0)]
    # In service at the failure (1 s done, 2 left), queued before it, and sent to it meanwhile.
    assert spent([0, 0, 0], [0.0, 0.5, 4.0], [3.0, 1.0, 1.0], schedule=steps) == [12.0, 12.5, 10.0]


def test_a_worker_that_never_recovers_keeps_its_queue():
    servers = Servers(n_workers=2, schedule=[(1.0, 0, 0.0)])
    out = servers.serve(np.array([0, 0, 1, 0], np.int32), [0.0, 0.5, 0.5, 7.0], [1.0, 1.0, 2.0, 1.0])
    assert out.tolist() == [1.0, np.inf, 2.0, np.inf]
    assert servers.queued(7.0).tolist() == servers.queued(1e9).tolist() == [2, 0]
    assert servers.ended == 2.5
    assert servers.worked(7.0).tolist() == [1.0, 2.0]
    assert servers.provided(7.0).tolist() == [1.0, 7.0]


def test_queue_lengths_and_work_by_hand():
    servers = Servers(n_workers=2, capacity=[1.0, 2.0])
    servers.serve(np.array([0, 0, 1], np.int32), [0.0, 1.0, 2.0], [4.0, 1.0, 8.0])
    # Worker 0 is done at 4 and 5, worker 1 works from 2 to 6.
    for now, queued, worked in [(2.0, [2, 1], [2, 0]), (4.0, [1, 1], [4, 4]), (5.5, [0, 1], [5, 7])]:
        assert servers.worked(now).tolist() == worked
        assert servers.queued(now).tolist() == queued
    assert servers.provided(5.5).tolist() == [5.5, 11.0]
    assert servers.arrived.tolist() == [2, 1]


STREAMS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=40
)
STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.sampled_from([0, 1, 2, 4])), max_size=6)


def exact(workers, times, costs, capacity, steps):
    """When every tuple is done, in fractions: walk through the legs of its worker's schedule."""
    free = [Fraction(0)] * len(capacity)
    ends = []
    for w, at, work in zip(workers, times, costs, strict=True):
        now, left = max(free[w], Fraction(at)), Fraction(work)
        own = sorted((step for step in steps if step[1] == w), key=lambda step: step[0])
        while True:
            speed = Fraction(([capacity[w]] + [c for begin, _, c in own if begin <= now])[-1])
            until = next((Fraction(begin) for begin, _, _ in own if begin > now), None)
            if speed and (until is None or left <= speed * (until - now)):
                now += left / speed
                break
            if until is None:
                now = None
                break
            left, now = left - speed * (until - now), until
        if now is None:
            free[w] = Fraction(10**12)
            ends.append(np.inf)
        else:
            free[w] = now
            ends.append(np.inf if now >= 10**12 else float(now))
    return np.array(ends)


@settings(deadline=None, max_examples=150)
@given(STREAMS, STEPS, st.integers(1, 40))
def test_against_exact_arithmetic_and_conserved_for_every_cut(stream, steps, size):
    workers = np.array([w for w, _, _ in stream], np.int32)
    times = np.cumsum([gap for _, gap, _ in stream]).astype(float)
    costs = np.array([cost for _, _, cost in stream], float)
    capacity = [1.0, 2.0, 0.5]
    ends = exact(workers, times.astype(int).tolist(), costs.astype(int).tolist(), capacity, steps)
    servers = Servers(n_workers=3, capacity=capacity, schedule=steps)
    whole = servers.serve(workers, times, costs)
    np.testing.assert_allclose(times + whole, ends, rtol=1e-12)
    cut = Servers(n_workers=3, capacity=capacity, schedule=steps)
    parts = [slice(i, i + size) for i in range(0, len(workers), size)]
    np.testing.assert_array_equal(
        whole, np.concatenate([cut.serve(workers[p], times[p], costs[p]) for p in parts])
    )
    last = times[-1]
    for now in (last, last + 3.0, last + 1e6):
        queued = servers.queued(now)
        completed = [np.count_nonzero((workers == w) & (times + whole <= now)) for w in range(3)]
        assert (queued + completed).tolist() == servers.arrived.tolist()
    never = np.isinf(whole)
    done = [costs[(workers == w) & ~never].sum() for w in range(3)]
    assert np.all(servers.worked(last + 1e6) >= np.array(done) - 1e-6)
    if not never.any():
        np.testing.assert_allclose(servers.worked(last + 1e6), done, atol=1e-6)


def test_evenly_spaced_equal_tuples_never_wait_below_capacity_and_wait_ever_longer_above():
    m, gap = 1_000, 0.5
    times = np.arange(m) * gap
    workers = np.zeros(m, np.int32)
    below = Servers(n_workers=1).serve(workers, times, np.full(m, 0.25))
    np.testing.assert_array_equal(below, 0.25)
    servers = Servers(n_workers=1)
    above = servers.serve(workers, times, np.full(m, 0.75))
    np.testing.assert_array_equal(above, 0.75 + np.arange(m) * 0.25)
    # Of 999 gaps of 0.5 s the worker used all: 666 tuples of 0.75 s are done.
    assert servers.queued(times[-1]).tolist() == [m - 666]
    assert servers.worked(times[-1]).tolist() == servers.provided(times[-1]).tolist() == [499.5]


def test_m_m_1():
    # Utilisation 0.7, service rate 1: times in the system are exponential with mean 1 / (1 - 0.7). With 10**6
    # tuples the mean varies by 0.5 % and the 99th percentile by 1.2 % (standard deviations over 20 seeds).
    rng = np.random.default_rng(7)
    m = 1_000_000
    times = np.cumsum(rng.exponential(1 / 0.7, m))
    servers, found = Servers(n_workers=1), Histogram()
    found.add(servers.serve(np.zeros(m, np.int32), times, rng.exponential(1.0, m)))
    scale = 1 / 0.3
    assert found.mean == pytest.approx(scale, rel=0.03)
    for percent in (50, 90, 99):
        assert found.percentile(percent) == pytest.approx(-scale * np.log(1 - percent / 100), rel=0.04)
    share = servers.worked(times[-1]) / servers.provided(times[-1])
    assert share[0] == pytest.approx(0.7, rel=0.01)


def test_a_pickle_taken_mid_stream_goes_on_alike():
    rng = np.random.default_rng(0)
    workers = rng.integers(0, 4, 9_000).astype(np.int32)
    times, costs = np.sort(rng.uniform(0, 100, 9_000)), rng.uniform(0, 0.1, 9_000)
    servers = Servers(n_workers=4, schedule=[(20.0, 1, 0.0), (60.0, 1, 1.0)])
    servers.serve(workers[:4_000], times[:4_000], costs[:4_000])
    copy = pickle.loads(pickle.dumps(servers))
    rest = workers[4_000:], times[4_000:], costs[4_000:]
    np.testing.assert_array_equal(servers.serve(*rest), copy.serve(*rest))
    assert servers.queued(100.0).tolist() == copy.queued(100.0).tolist()


def test_memory_is_that_of_the_queue_not_of_the_stream():
    servers = Servers(n_workers=2)
    sizes = []
    for part in range(40):
        times = part * 1_000 + np.arange(1_000.0)
        servers.serve((np.arange(1_000) % 2).astype(np.int32), times, np.full(1_000, 1.9))
        sizes.append(len(pickle.dumps(servers)))
    assert sizes[1:] == sizes[:1] * 39
    servers.serve(np.zeros(50_000, np.int32), np.full(50_000, times[-1]), np.ones(50_000))
    assert len(pickle.dumps(servers)) > 16 * 50_000
    assert servers.queued(times[-1]).sum() == 50_002


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": [0, 2]}, "worker = 2: expected a whole number from 0 to 1"),
        ({"times": [1.0, 0.0]}, "times[1] = 0.0: expected no decrease (after 1.0)"),
        ({"times": [1.0]}, "times has shape (1,): expected the shape of keys, (2,)"),
        ({"costs": [1.0, -1.0]}, "costs[1] = -1.0: expected seconds from 0 to 1000000"),
        ({"costs": [1.0, np.nan]}, "costs[1] = nan: expected seconds from 0 to 1000000"),
        ({"schedule": [(1.0, 2, 1.0)]}, "queue.schedule[0].worker = 2: expected a whole number from 0 to 1"),
        ({"schedule": [(1.0, 0, -1.0)]}, "queue.schedule[0].capacity = -1.0: expected a number >= 0"),
        ({"capacity": [1.0, 0.0]}, "capacity = [1.0, 0.0]: expected 2 numbers > 0, one per worker"),
    ],
)
def test_mistakes_are_one_clear_line(change, message):
    given = {"workers": [0, 1], "times": [0.0, 1.0], "costs": [1.0, 1.0]} | change
    with pytest.raises(ConfigError) as caught:
        spent(**given)
    assert str(caught.value) == message


def test_times_do_not_decrease_between_batches_either():
    servers = Servers(n_workers=1)
    servers.serve(np.zeros(1, np.int32), [5.0], [1.0])
    with pytest.raises(ConfigError, match="expected no decrease"):
        servers.serve(np.zeros(1, np.int32), [4.0], [1.0])
    assert servers.serve(np.zeros(0, np.int32), [], []).shape == (0,)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=200), st.integers(1, 99))
def test_percentiles_are_within_the_width_of_a_bin(values, percent):
    found = Histogram()
    found.add(np.array(values))
    wanted = np.percentile(values, percent, method="inverted_cdf")
    assert found.percentile(percent) == pytest.approx(wanted, rel=1 / 128)
    assert (found.least, found.most) == (min(values), max(values))
    assert found.mean == pytest.approx(np.mean(values))


def test_a_histogram_leaves_out_what_is_never_done_and_takes_zero():
    found = Histogram()
    found.add(np.array([0.0, np.inf, 3.0, 0.0]))
    assert (found.counts.sum(), found.mean, found.least, found.most) == (3, 1.0, 0.0, 3.0)
    assert found.percentile(50) == pytest.approx(0.0, abs=2e-9)
    assert found.percentile(100) == 3.0
    empty = Histogram()
    assert np.isnan([empty.mean, empty.least, empty.most, empty.percentile(50)]).all()


def test_merged_histograms_are_that_of_all():
    values = np.random.default_rng(1).lognormal(size=1_000)
    one, two, both = Histogram(), Histogram(), Histogram()
    one.add(values[:300])
    two.add(values[300:])
    both.add(values)
    one.merge(two)
    np.testing.assert_array_equal(one.counts, both.counts)
    np.testing.assert_allclose(one.sums, both.sums)
