"""Dalton: by hand, against Algorithm 1 in plain Python, and by the properties the paper states."""

import inspect
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.agents.dalton import Dalton
from dalton.agents.qtable import FREE, row_of
from dalton.envs.simulate import simulate
from dalton.envs.table import EMPTY
from dalton.envs.workloads import make_workload
from dalton.experiments import make

nan = np.nan


def values(partitioner, key):
    """Q(k, .) by worker."""
    t, row = partitioner.qtable, row_of(partitioner.qtable, key)
    assert row != EMPTY
    return np.roll(t.q[row], t.home[row])


def rows_in_use(partitioner):
    t = partitioner.qtable
    return {int(key): int(until) for key, until in zip(t.keys, t.until, strict=True) if until != FREE}


def hot_keys(partitioner, window):
    """Keys that reached the threshold in STATS_WIN number ``window``, the current one."""
    return [key for key, until in rows_in_use(partitioner).items() if until == window + 1]


def test_three_updates_by_hand(keys_at):
    # n = 2, slides of 4, a window of 2; STATS_WIN = 4. L of the first is 4, so 2 tuples make a key hot.
    a, b = keys_at([0, 1], n=2)
    p = Dalton(n_workers=2, window={"size": 8, "slide": 4}, epsilon=0, gamma=0.5)
    # a: f = 1, hashed to 0. a: f = 2, hot; Q = (-2, -2), a tie: hashed worker 0. 2 tuples, all on 0: avg = 1,
    # CI = (2 - 1)/2 = 1/2, CA = 1/2, R = -(1/4 + 1/4) = -1/2; Q(a, 0) = -2 + 0.5 (-1/2 + 2) = -5/4.
    assert p.route([a, a]).tolist() == [0, 0]
    np.testing.assert_array_equal(p.rewards, [nan, -1 / 2])
    assert p.forward.tolist() == [True, False]
    assert values(p, a).tolist() == [-5 / 4, -2]
    # a: 3 tuples on 0, avg = 3/2: CI = (3/2)/3 = 1/2, R = -1/2; Q = -5/4 + 0.5 (-1/2 + 5/4) = -7/8.
    # b: f = 1, hashed to 1.
    assert p.route([a, b]).tolist() == [0, 1]
    np.testing.assert_array_equal(p.rewards, [-1 / 2, nan])
    assert p.forward.tolist() == [False, True]
    assert values(p, a).tolist() == [-7 / 8, -2]
    # The next slide and STATS_WIN; a stays hot. Loads become 4 1, avg = 5/2: CI = (3/2)/4 = 3/8,
    # R = -(3/16 + 1/4) = -7/16; Q = -7/8 + 0.5 (-7/16 + 7/8) = -21/32.
    assert p.route([a]).tolist() == [0]
    assert p.rewards.tolist() == [-7 / 16]
    assert values(p, a).tolist() == [-21 / 32, -2]
    assert row_of(p.qtable, b) == EMPTY


def test_a_split_key_by_hand(keys_at):
    # n = 3, slides of 3, a window of 2; STATS_WIN = 6, so 6 / 3 = 2 tuples make a key hot. Q starts at 0,
    # above every reward here: each worker is tried once without exploring.
    (a,) = keys_at([0], n=3)
    p = Dalton(
        n_workers=3, window={"size": 6, "slide": 3}, stats_window=6, epsilon=0, gamma=0.5, initial_q=0.0
    )
    # a (hashed, 0); then hot, Q = 0 0 0, to 0: loads 2 0 0, avg 2/3: CI = (4/3)/2 = 2/3, CA = 1/3: R = -1/2.
    # Q = -1/4 0 0. To 1: loads 2 1 0, avg 1: CI = 0, CA = 2/3: R = -1/3, Q(1) = -1/6.
    # Slide 1: to 2: loads 2 1 1, avg 4/3: CI = (1 - 4/3)/(4/3) = -1/4, CA = 1: R = 1/8 - 1/2 = -3/8,
    # Q(2) = -3/16. To 1: loads 2 2 1, avg 5/3: CI = (1/3)/2 = 1/6: R = -1/12 - 1/2 = -7/12,
    # Q(1) = -1/6 + 0.5 (-7/12 + 1/6) = -3/8. To 2: loads 2 2 2: CI = 0, R = -1/2, Q(2) = -3/16 - 5/32.
    assert p.route([a] * 6).tolist() == [0, 0, 1, 2, 1, 2]
    np.testing.assert_allclose(p.rewards, [nan, -1 / 2, -1 / 3, -3 / 8, -7 / 12, -1 / 2], rtol=1e-15)
    np.testing.assert_allclose(values(p, a), [-1 / 4, -3 / 8, -11 / 32], rtol=1e-15)
    # Slide 2: slide 0 has left. Loads 0 1 2, a on 1 and 2. To 0: loads 1 1 2, avg 4/3: CI = -1/4, CA = 3/3:
    # R = -3/8, Q(0) = -1/4 + 0.5 (-3/8 + 1/4) = -5/16. It remains the best: loads 2 1 2, avg 5/3: CI = 1/6,
    # R = -7/12, Q(0) = -5/16 + 0.5 (-7/12 + 5/16) = -43/96.
    assert p.route([a, a]).tolist() == [0, 0]
    np.testing.assert_allclose(p.rewards, [-3 / 8, -7 / 12], rtol=1e-15)
    np.testing.assert_allclose(values(p, a), [-43 / 96, -3 / 8, -11 / 32], rtol=1e-15)


def test_ties_fall_to_the_hashed_worker_then_clockwise(keys_at):
    # p1 = 0 and gamma = 1: Q(k, a) becomes -fragments/n, below the initial 0. With 5 workers (L = 10: hot
    # from the second tuple on) the key visits them all from the hashed one on, Q = -1/5, ..., -1. Then the
    # first is the best, and becomes -1: the second, and so on, each falls to -1; then all are equal.
    n = 5
    for home in range(n):
        (a,) = keys_at([home], n=n)
        settings = {"epsilon": 0, "gamma": 1, "p1": 0, "initial_q": 0.0}
        p = Dalton(n_workers=n, window={"size": 10}, **settings)
        around = [(home + j) % n for j in range(n)]
        assert p.route([a] * 10).tolist() == [home, *around, *around[:4]]
        assert values(p, a)[around].tolist() == [-1, -1, -1, -1, -1]
        # Slide 1: only this tuple is in the window, and all values are equal.
        assert p.route([a]).tolist() == [home]


def reference(
    bandit, held, keys, times, homes, window, stats_window=None, hot_factor=1.0, max_split=None, **params
):
    """Algorithm 1, tuple by tuple, with dictionaries."""
    n, by_time = params["n"], window.get("by") == "time"
    slide = window.get("slide", window["size"])
    length = Fraction(stats_window or slide)
    agent, state = bandit(**params), held(n, window["size"], slide)
    counts, number, load_before, home_of = Counter(), None, None, {}
    until, share, out = {}, {}, {"workers": [], "rewards": [], "forward": [], "least": []}
    for i, (key, home) in enumerate(zip(keys.tolist(), homes, strict=True)):
        now = times[i] if by_time else i
        if (latest := math.floor(Fraction(now) / length)) != number:
            # L is that of the STATS_WIN before, if there is one with tuples; the first by count is all of it.
            load_before = counts.total() if number is not None and latest == number + 1 else 0
            if number is None and not by_time:
                load_before = length
            least = math.ceil(load_before / (Fraction(hot_factor) * n)) if load_before else math.inf
            share = {k: counts[k] * n / load_before if load_before else 0.0 for k in until}
            counts, number = Counter(), latest
        if state.arrive(now):
            # A key that is neither hot nor anywhere but on its hashed worker has nothing left to remember.
            for k in [k for k in until if until[k] < number and not state.holders(k) - {home_of[k]}]:
                del until[k], agent.values[k]
                share.pop(k, None)
        counts[key] += 1
        home_of[key] = home
        if counts[key] >= least:
            if until.get(key, -math.inf) < number:
                agent.forget(key)
            until[key] = number + 1
        reward, worker = nan, home
        hot = until.get(key, -math.inf) >= number
        if hot:
            # n f / L of this STATS_WIN so far, L rounded up to c n times the threshold, or of the one before.
            busy = 0.0 if least == math.inf else counts[key] * n / (hot_factor * n * least)
            busy = max(share.get(key, 0.0), busy)
            worker = agent.choose(key, home, state.load, state.holders(key), busy, max_split)
        state.send(key, worker)
        fragments = len(state.holders(key))
        if hot:
            reward = agent.learn(key, worker, state.load[worker], sum(state.load), fragments)
        out["workers"].append(worker)
        out["rewards"].append(reward)
        out["forward"].append(not hot and fragments == 1)
        out["least"].append(least)
    out["values"] = {k: agent.values[k] for k in until if until[k] >= number}
    out["rows"] = until
    return out


WINDOWS = {
    "count": {"size": 400, "slide": 100},
    "tumbling": {"size": 160},
    "time": {"size": 240, "slide": 60, "by": "time"},
}
RULES = ["uniform", "least_loaded", "fragments", "share"]


@pytest.fixture
def stream(zipf):
    """Keys, every 600 tuples others are heavy; times with ties and slide edges, two tuples a second.

    Gaps of some and of many slides end at the start of a slide of 60: a STATS_WIN with a few tuples only
    would make every key of the next one hot.
    """

    def make(length, seed=0, n=8):
        rng = np.random.default_rng(seed + 1)
        # Of few workers only a heavy key fills one.
        keys = zipf(length, n_keys=60, s=1.1 if n > 4 else 2.2, seed=seed)
        keys += np.arange(length) // 600 % 3
        times = np.cumsum(rng.integers(0, 3, length) / 2)
        for at, slides in zip(sorted(rng.choice(length, 4, replace=False)), (1, 2, 6, 50), strict=True):
            times[at:] += 60 * (math.floor(times[at] / 60) + 1 + slides) - times[at]
        return keys, times

    return make


@pytest.fixture
def compare(bandit, held, homes):
    """Route in batches of uneven length and compare every decision, reward, flag and value."""

    def run(keys, times, seed, n, window, **params):
        expected = reference(
            bandit, held, keys, times, homes(keys, n, seed), window, n=n, seed=seed, **params
        )
        # Where one tuple makes a key hot, it is not known where the key was in earlier STATS_WINs
        # (`dalton.agents.statistics.observe`), and the reference does not hold.
        assert min(expected["least"]) >= 2
        p = Dalton(n_workers=n, seed=seed, window=window, statistics="exact", **params)
        workers, forward, rewards = [], [], []
        for part in np.split(np.arange(len(keys)), [1, 8, 777, 778]):
            some, flags = p.route_and_forward(keys[part], times[part])
            workers += some.tolist()
            forward += flags.tolist()
            rewards += p.rewards.tolist()
        differing = np.flatnonzero(np.array(workers) != expected["workers"])
        assert differing.tolist() == []
        np.testing.assert_allclose(rewards, expected["rewards"], rtol=0, atol=1e-12)
        assert forward == expected["forward"]
        assert rows_in_use(p) == expected["rows"]
        for key, by_worker in expected["values"].items():
            np.testing.assert_allclose(values(p, key), by_worker, rtol=0, atol=1e-12)
        # There was something to compare.
        assert 100 < np.isfinite(rewards).sum() < len(keys)
        return expected

    return run


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("n", [2, 8, 13])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("epsilon", "decay", "max_split"), [(0.1, 0.0, None), (0.5, 0.02, None), (0.5, 0.0, 2)]
)
def test_every_decision_matches_algorithm_1(compare, stream, window, n, rule, epsilon, decay, max_split):
    seed = 3 * n + len(rule)
    keys, times = stream(2_500, seed, n)
    exploration = {"epsilon": epsilon, "epsilon_decay": decay, "explore": rule, "max_split": max_split}
    compare(keys, times, seed, n, window, **exploration)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("n", [2, 8, 13])
@pytest.mark.parametrize("initial_q", [-2.0, 0.0])
def test_every_greedy_decision_matches_algorithm_1(compare, stream, homes, window, n, initial_q):
    keys, times = stream(2_500, seed=n, n=n)
    expected = compare(keys, times, n, n, window, epsilon=0.0, initial_q=initial_q)
    # Below every reward Q keeps a key at its hashed worker; above, it tries all workers.
    assert (expected["workers"] == homes(keys, n, n)) == (initial_q == -2.0)


@pytest.mark.parametrize(
    ("window", "stats_window"),
    [
        ({"size": 400, "slide": 100}, 40),  # a part of the slide, not aligned with it
        ({"size": 400, "slide": 100}, 250),
        ({"size": 400, "slide": 100}, 900),  # longer than the window
        ({"size": 400, "slide": 100}, 63),  # of 62 or 63 tuples
        ({"size": 240, "slide": 60, "by": "time"}, 20),
        ({"size": 240, "slide": 60, "by": "time"}, 120),
        ({"size": 60, "slide": 15, "by": "time"}, 300),
    ],
)
@pytest.mark.parametrize("rule", ["uniform", "share"])
def test_stats_window_is_not_the_slide(compare, stream, window, stats_window, rule):
    for seed, n in ((1, 4), (5, 9)):
        keys, times = stream(2_500, seed, n)
        compare(keys, times, seed, n, window, stats_window=stats_window, epsilon=0.3, explore=rule)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_other_parameters(compare, stream, window):
    keys, times = stream(2_500, seed=5, n=4)
    for n, params in (
        (4, {"hot_factor": 2.5, "gamma": 1.0, "p1": 0.9}),
        (4, {"hot_factor": 0.5, "gamma": 0.01, "p1": 0.2, "initial_q": -0.4}),
        (6, {"hot_factor": 4.0, "p1": 1.0, "epsilon": 1.0, "explore": "least_loaded"}),
        (6, {"hot_factor": 4.0, "p1": 0.0, "epsilon": 0.3, "max_split": 1}),
    ):
        compare(keys, times, 5, n, window, **params)


@pytest.mark.parametrize("start", [-10_000.0, -180.0, -120.0])
def test_times_before_zero(compare, stream, start):
    # The number of a STATS_WIN may be negative, -1 and -2 too.
    keys, _ = stream(1_000, seed=6, n=4)
    times = start + np.arange(1_000) / 2
    compare(keys, times, 6, 4, {"size": 240, "slide": 60, "by": "time"}, epsilon=0.2)


def test_more_hot_keys_and_counted_keys_than_the_first_tables_hold(compare, zipf):
    # 1600 tuples a slide and c n = 400: four make a key hot, hundreds are; and more than 0.7 · 1024 keys.
    keys = zipf(6_400, n_keys=1_500, s=0.5, seed=8)
    window = {"size": 3_200, "slide": 1_600}
    expected = compare(keys, np.arange(6_400.0), 8, 8, window, hot_factor=50.0, epsilon=0.3)
    assert len(expected["rows"]) > 64


@pytest.mark.parametrize("length", [0.1, 0.3, 0.7, 1 / 3])
def test_a_tuple_on_the_edge_of_a_statistics_window(keys_at, length):
    # 43 · 0.1 is a float whose quotient by 0.1 is rounded to less than 43: its slide is 42, and so must its
    # STATS_WIN be. Otherwise 43 begins twice, the second time after one with one tuple: all keys are hot.
    assert any((m * length) / length < m for m in range(60))
    starts = np.arange(60) * length
    times = np.sort(np.concatenate([starts + part * length for part in (0, 0.3, 0.5, 0.6, 0.7)]))
    keys = np.arange(1_000, 1_300)
    (a,) = keys_at([0], n=2)
    keys[2::5] = keys[3::5] = keys[4::5] = a
    p = Dalton(n_workers=2, window={"size": 4 * length, "slide": length, "by": "time"}, epsilon=0)
    p.route(keys, times)
    # By definition: 4 to 6 tuples in each, so 2 or 3 make a key hot, in this STATS_WIN and the next.
    numbers = np.floor(times / length).astype(int).tolist()
    tuples, counts, until, hot = Counter(numbers), Counter(), -1, []
    for key, number in zip(keys.tolist(), numbers, strict=True):
        counts[key, number] += 1
        if number and counts[key, number] >= math.ceil(tuples[number - 1] / 2):
            assert key == a
            until = number + 1
        hot.append(key == a and until >= number)
    assert np.isfinite(p.rewards).tolist() == hot


def test_a_key_cools_and_is_split_until_its_tuples_leave_the_window(keys_at):
    # n = 2, slides and STATS_WINs of 10, a window of 4 slides: 5 tuples make a key hot. Q starts at 0 and
    # p1 = 0, gamma = 1: R = -fragments / 2.
    a, *others = keys_at([0] + [1] * 12, n=2)
    fill = others * 3
    p = Dalton(n_workers=2, window={"size": 40, "slide": 10}, epsilon=0, gamma=1, p1=0, initial_q=0.0)
    # STATS_WIN 0: four hashed; hot: to 0, Q = -1/2 0; to 1, on both now: Q = -1/2 -1; to 0: -1 -1; then to 0.
    assert p.route([a] * 10).tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(p.rewards, [nan] * 4 + [-1 / 2] + [-1] * 5)
    # STATS_WIN 1: still hot with one tuple, Q = -1 -1, on both.
    p.route([a, *fill[:9]])
    assert p.rewards[0] == -1
    assert values(p, a).tolist() == [-1, -1]
    # STATS_WIN 2: expired: hashed; not forwarded, for worker 1 has tuples of slide 0.
    p.route([a, *fill[:9]])
    assert math.isnan(p.rewards[0])
    assert not p.forward[0]
    assert rows_in_use(p)[a] == 1
    # STATS_WIN 3: hot again at the fifth tuple. Its values start anew: to 0 by the tie, and fragments are 2,
    # one of them of the time before it cooled.
    assert p.route([a] * 5).tolist() == [0] * 5
    np.testing.assert_array_equal(p.rewards, [nan, nan, nan, nan, -1])
    assert p.forward.tolist() == [False] * 5
    assert values(p, a).tolist() == [-1, 0]
    p.route(fill[:5])
    # STATS_WIN 4: slide 0 has left, and with it worker 1: still hot, to 1 (0 > -1), fragments 2 again.
    assert p.route([a, *fill[:9]])[0] == 1
    assert p.rewards[0] == -1
    # STATS_WINs 5 to 7: cold, on worker 1 until slide 4 leaves in slide 8.
    for _ in range(3):
        p.route([a, *fill[:9]])
        assert math.isnan(p.rewards[0])
        assert not p.forward[0]
    assert a in rows_in_use(p)
    p.route([a, *fill[:9]])
    assert p.forward[0]
    # On its hashed worker only, it is a cold key like any other; when it is hot again, Q starts at 0.
    assert a not in rows_in_use(p)
    for _ in range(4):
        p.route(fill[:10])
    assert p.route([a] * 5).tolist() == [0] * 5
    assert p.rewards[4] == -1 / 2
    assert values(p, a).tolist() == [-1 / 2, 0]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    n=st.integers(1, 6),
    windows=st.lists(st.lists(st.integers(0, 9), max_size=24), min_size=2, max_size=8),
    slides=st.integers(1, 3),
)
def test_at_most_n_keys_reach_the_threshold(n, windows, slides):
    # Theorem 3.4, for a STATS_WIN with no more tuples than the one that its threshold comes from.
    window = {"size": 10.0 * slides, "slide": 10.0, "by": "time"}
    p = Dalton(n_workers=n, window=window, statistics="exact", epsilon=0.5)
    for number, keys in enumerate(windows):
        p.route(keys, 10.0 * number + np.linspace(0, 9, len(keys)))
        if not keys:
            continue
        before = len(windows[number - 1]) if number else 0
        reached = {key for key, f in Counter(keys).items() if before and f * n >= before}
        assert set(hot_keys(p, number)) == reached
        if len(keys) <= before:
            assert len(reached) <= n
        # A row is a key that is hot or in the window, and was hot.
        recent = set().union(*windows[max(0, number - max(slides, 2) + 1) : number + 1])
        assert set(rows_in_use(p)) <= recent


@pytest.mark.parametrize("n", [2, 16, 64])
def test_at_most_n_keys_reach_the_threshold_of_a_counted_window(zipf, n):
    keys = zipf(20_000, n_keys=500, s=2.0 if n == 2 else 1.0, seed=n)
    p = Dalton(n_workers=n, window={"size": 4_000, "slide": 1_000}, statistics="exact")
    reached = []
    for number, part in enumerate(keys.reshape(-1, 1_000)):
        p.route(part)
        hot = hot_keys(p, number)
        assert set(hot) == {key for key, f in Counter(part.tolist()).items() if f >= math.ceil(1_000 / n)}
        reached.append(len(hot))
    assert 0 < max(reached) <= n


def test_uniform_keys_are_hashed():
    # 20k tuples a slide over 100k keys, about 0.2 each; 312 would make a key hot.
    workload = make_workload("uniform", n_tuples=400_000, n_keys=100_000, seed=1)
    for statistics in ("exact", "sketch", "hybrid", "space_saving"):
        p = make("dalton", n_workers=64, seed=4, statistics=statistics)
        kg = make("kg", n_workers=64, seed=4)
        for chunk in workload.chunks(100_000):
            np.testing.assert_array_equal(p.route(chunk.keys), kg.route(chunk.keys))
            assert p.forward.all()
            assert np.isnan(p.rewards).all()
        assert rows_in_use(p) == {}
    result = simulate(make("dalton", n_workers=64, seed=4), workload, show_progress=False)
    # Pairs of key and worker per key: exactly one where every key is hashed.
    assert result.column("replication").max() <= 1.01


@pytest.mark.parametrize("statistics", ["exact", "sketch", "hybrid", "space_saving"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_key_on_two_workers_is_never_forwarded(held, stream, window, statistics):
    keys, times = stream(6_000, seed=11)
    p = Dalton(n_workers=6, seed=11, window=window, epsilon=0.3, statistics=statistics, hybrid_limit=40)
    workers, forward = p.route_and_forward(keys, times)
    state = held(6, window["size"], window.get("slide", window["size"]))
    split = 0
    for i, (key, worker) in enumerate(zip(keys.tolist(), workers.tolist(), strict=True)):
        state.arrive(times[i] if "by" in window else i)
        state.send(key, worker)
        if len(state.holders(key)) > 1:
            split += 1
            assert not forward[i]
    assert split > 1_000
    # Most tuples of cold keys are.
    assert forward[np.isnan(p.rewards)].mean() > 0.5


BAD = [
    ("n_workers", 0),
    ("n_workers", 2.5),
    ("seed", -1),
    ("window", None),
    ("window", 7),
    ("epsilon", -0.1),
    ("epsilon", 1.1),
    ("epsilon", math.nan),
    ("epsilon", "0.1"),
    ("epsilon_decay", -1),
    ("epsilon_decay", math.inf),
    ("gamma", 0),
    ("gamma", 1.1),
    ("gamma", None),
    ("p1", -0.1),
    ("p1", 1.1),
    ("initial_q", math.nan),
    ("initial_q", "low"),
    ("hot_factor", 0),
    ("hot_factor", math.inf),
    ("explore", "greedy"),
    ("explore", None),
    ("max_split", 0),
    ("max_split", 1.5),
    ("statistics", "given"),
    ("statistics", "guess"),
    ("stats_window", 0),
    ("stats_window", -5),
    ("stats_window", "slide"),
    ("hybrid_limit", -1),
    ("hybrid_limit", 0.5),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_parameters(refused, field, value):
    assert refused(Dalton, **{"n_workers": 3, field: value}).startswith(f"{field} = ")


def test_bad_windows(refused):
    assert refused(Dalton, n_workers=3, window={"size": 5, "slide": 2}).startswith("window.size = 5")
    assert refused(Dalton, n_workers=3, window={"size": 5, "by": "tuples"}).startswith("window.by = ")
    assert set(inspect.signature(Dalton).parameters) == {field for field, _ in BAD}
