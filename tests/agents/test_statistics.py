"""Frequency statistics against exact counts per STATS_WIN."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.agents.statistics import (
    ACTIVE,
    EXACT,
    SKETCH,
    begin,
    grown_stats,
    has_place,
    observe,
    stats,
)
from dalton.envs.frequency import NEVER


def feed(s, keys, slide=0):
    """Observe the keys, growing as the agent does; the statistic and f after each."""
    f = []
    for key in keys:
        if not has_place(s):
            s = grown_stats(s)
        f.append(observe(s, slide, key)[0])
    return s, f


def running(keys):
    """The count of every tuple's key, it included."""
    counts, f = Counter(), []
    for key in keys:
        counts[key] += 1
        f.append(counts[key])
    return f


KEYS = st.one_of(st.integers(-3, 20), st.sampled_from([-(2**63), 2**63 - 1]))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.lists(KEYS, max_size=60), min_size=1, max_size=6))
def test_exact_is_a_counter_per_window(windows):
    s = stats("exact", 8, 0)
    for keys in windows:
        begin(s)
        s, f = feed(s, keys)
        assert f == running(keys)
        assert s.used[0] == len(set(keys))


def test_exact_tells_the_slide_of_the_tuple_before():
    s = stats("exact", 8, 0)
    begin(s)
    # A STATS_WIN over three slides: f and the slide of the key's last tuple.
    sent = [(0, 5), (0, 6), (1, 5), (1, 5), (2, 6), (2, 7), (2, 5)]
    assert [observe(s, slide, key) for slide, key in sent] == [
        (1, NEVER),
        (1, NEVER),
        (2, 0),
        (3, 1),
        (2, 0),
        (1, NEVER),
        (4, 1),
    ]
    # What was before is another STATS_WIN's.
    begin(s)
    assert observe(s, 3, 5) == (1, NEVER)
    assert observe(s, 3, 5) == (2, 3)


@pytest.mark.parametrize("kind", ["exact", "hybrid"])
def test_exact_grows_in_mid_window(zipf, kind):
    # 1024 slots take 716 keys.
    keys = zipf(6_000, n_keys=3_000, s=0.3, seed=1).tolist()
    s = stats(kind, 8, 10_000)
    begin(s)
    s, f = feed(s, keys)
    assert f == running(keys)
    assert s.used[0] == len(set(keys)) > 2_000
    assert len(s.seen) == 4_096
    # The next one begins with nothing, and what has grown stays so.
    begin(s)
    s, f = feed(s, keys[:500])
    assert f == running(keys[:500])
    assert len(s.seen) == 4_096


@pytest.mark.parametrize("hot_keys", [2, 8, 64, 640])
@pytest.mark.parametrize("s", [0.0, 1.0, 1.5])
def test_sketch_is_never_below_and_seldom_far_above(zipf, hot_keys, s):
    # Four rows of at least 4 e c n columns: for at most e**-4 = 1.8 % of the keys, in expectation, more than
    # L / (4 c n) too high. Measured: 0.7 % at most, mostly none.
    length = 10_000
    spread = zipf(length, n_keys=5_000, s=s, seed=2)
    dense = np.unique(spread, return_inverse=True)[1]
    for keys in (spread.tolist(), dense.tolist()):
        sketch = stats("sketch", hot_keys, 0)
        begin(sketch)
        sketch, f = feed(sketch, keys)
        exact = running(keys)
        assert all(estimate >= count for estimate, count in zip(f, exact, strict=True))
        # At the end, when most is in it: the estimate of a further tuple, without that.
        counts = Counter(keys)
        above = 0
        for i, (key, count) in enumerate(counts.items()):
            estimate = observe(sketch, 0, key)[0] - 1
            # The tuples of this loop are in it too.
            assert estimate >= count
            above += estimate - count > (length + i) / (4 * hot_keys)
        assert above <= 0.018 * len(counts)


def test_sketch_tells_heavy_keys_from_light_ones(zipf):
    # The threshold L / (c n) = 157 of 64 workers: every key above it is found, none below 3/4 of it.
    length, n = 10_000, 64
    keys = zipf(length, n_keys=20_000, s=1.0, seed=3).tolist()
    sketch = stats("sketch", n, 0)
    begin(sketch)
    sketch, f = feed(sketch, keys)
    least = math.ceil(length / n)
    found = {key for key, estimate in zip(keys, f, strict=True) if estimate >= least}
    counts = Counter(keys)
    heavy = {key for key, count in counts.items() if count >= least}
    assert 3 < len(heavy) <= n
    assert heavy <= found
    assert all(counts[key] > 0.75 * least for key in found)


@pytest.mark.parametrize("hot_keys", [2, 8, 20])
@pytest.mark.parametrize("s", [0.0, 1.0, 1.5])
def test_space_saving_is_within_its_error(zipf, hot_keys, s):
    capacity = 4 * hot_keys
    summary = stats("space_saving", hot_keys, 0)
    for seed in (4, 5):
        keys = zipf(4_000, n_keys=1_000, s=s, seed=seed).tolist()
        begin(summary)
        summary, f = feed(summary, keys)
        for m, (estimate, count) in enumerate(zip(f, running(keys), strict=True), 1):
            assert count <= estimate <= count + m / capacity
    assert len(summary.summary.keys) == capacity


@pytest.mark.parametrize("kind", ["exact", "sketch", "hybrid", "space_saving"])
def test_nothing_leaks_from_an_earlier_window(zipf, kind):
    # A hybrid with a limit of 300 counts the first three windows, sketches the next two, then counts again.
    s, modes = stats(kind, 64, 300), []
    for number, n_keys in enumerate((250, 250, 700, 700, 250, 250)):
        keys = zipf(1_500, n_keys=n_keys, s=0.1, seed=number).tolist()
        begin(s)
        s, f = feed(s, keys)
        modes.append(int(s.mode[ACTIVE]))
        # What a statistic that has seen nothing else says.
        fresh = stats({EXACT: "exact", SKETCH: "sketch"}.get(modes[-1], kind), 64, 300)
        begin(fresh)
        assert f == feed(fresh, keys)[1]
    assert kind != "hybrid" or modes == [EXACT, EXACT, EXACT, SKETCH, SKETCH, EXACT]


def test_a_window_without_tuples():
    for kind in ("exact", "sketch", "hybrid", "space_saving"):
        s = stats(kind, 4, 100)
        for _ in range(3):
            begin(s)
        s, f = feed(s, [7, 7, 8])
        assert f == [1, 2, 1]


def test_hybrid_switches_at_boundaries_both_ways():
    # c n = 64: 1024 columns. From the empty ones of a row a sketch knows how many keys there were; the
    # standard error of linear counting is below 3 % at this fill.
    limit = 500
    s = stats("hybrid", 64, limit)
    many, few, just, above = range(900), range(300), range(limit), range(limit + 1)
    for keys, active in (
        (just, EXACT),  # the first is exact
        (above, EXACT),  # 500 were not more than the limit
        (few, SKETCH),  # 501 were
        (many, EXACT),  # a sketch of 300 goes back
        (many, SKETCH),
        (many, SKETCH),  # a sketch of 900 stays
        (range(440), SKETCH),
        (range(560), EXACT),  # 440 are fewer than 500, with two standard errors to spare
        (range(560), SKETCH),
        (few, SKETCH),  # 560 are more
        ((), EXACT),
        (few, EXACT),
    ):
        begin(s)
        assert s.mode[ACTIVE] == active
        s, _ = feed(s, keys)
        assert s.mode[ACTIVE] == active  # never in mid-window


def test_hybrid_with_a_full_row_stays_a_sketch():
    # c n = 2: 32 columns, none empty after 5000 keys.
    s = stats("hybrid", 2, 100)
    for active in (EXACT, SKETCH, SKETCH):
        begin(s)
        assert s.mode[ACTIVE] == active
        s, _ = feed(s, range(5_000))


def test_given_counts_nothing():
    s = stats("given", 8, 0)
    begin(s)
    assert [observe(s, 1, 5) for _ in range(3)] == [(0, NEVER)] * 3
    assert has_place(s)
