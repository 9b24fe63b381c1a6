"""Dalton for micro-batches: hot by the batch's own counts, fragments of the batch, loads of the window."""

import inspect
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from dalton.agents.dalton import Dalton
from dalton.agents.microbatch import DaltonMicroBatch
from dalton.agents.qtable import FREE, row_of
from dalton.envs.table import EMPTY
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


def test_by_hand(keys_at):
    # n = 2, a window of 20 tuples in slides of 10; batches of 4: 4 / 2 = 2 tuples make a key hot, from its
    # first tuple on. Q starts at 0, above every reward here, gamma = 1/2.
    a, b = keys_at([0, 1], n=2)
    p = DaltonMicroBatch(
        n_workers=2, window={"size": 20, "slide": 10}, epsilon=0, gamma=0.5, initial_q=0.0, p1=0.5
    )
    # a is hot. To 0 (hashed, tie): loads 1 0, avg 1/2: CI = (1/2)/1 = 1/2, CA = 1/2: R = -1/2, Q = -1/4 0.
    # To 1: loads 1 1: CI = 0, CA = 2/2: R = -1/2, Q = -1/4 -1/4. b: hashed to 1, loads 1 2.
    # To 0 by the tie: loads 2 2: CI = 0, CA = 1: R = -1/2, Q = -3/8 -1/4.
    workers, forward = p.route_and_forward([a, a, b, a])
    assert workers.tolist() == [0, 1, 1, 0]
    np.testing.assert_array_equal(p.rewards, [-1 / 2, -1 / 2, nan, -1 / 2])
    assert forward.tolist() == [False, False, True, False]
    assert values(p, a).tolist() == [-3 / 8, -1 / 4]
    # The next batch: a is hot by its own two tuples, and Q is kept. To 1: loads 2 3, avg 5/2, CI = 1/6. In
    # this batch a is on 1 only: CA = 1/2. R = -(1/12 + 1/4) = -1/3, Q(1) = -1/4 + (-1/3 + 1/4)/2 = -7/24.
    # To 1: loads 2 4, avg 3: CI = 1/4, CA = 1/2: R = -3/8, Q(1) = -7/24 + (-3/8 + 7/24)/2 = -1/3.
    # b is hot too, Q = 0 0: to 1: loads 2 5, avg 7/2: CI = (3/2)/5 = 3/10, CA = 1/2: R = -2/5, Q = 0 -1/5 by
    # worker. To 0: loads 3 5, avg 4: CI = -1/4, CA = 1: R = 1/8 - 1/2 = -3/8, Q = -3/16 -1/5.
    assert p.route([a, a, b, b]).tolist() == [1, 1, 1, 0]
    np.testing.assert_allclose(p.rewards, [-1 / 3, -3 / 8, -2 / 5, -3 / 8], rtol=1e-15)
    np.testing.assert_allclose(values(p, a), [-3 / 8, -1 / 3], rtol=1e-15)
    np.testing.assert_allclose(values(p, b), [-3 / 16, -1 / 5], rtol=1e-15)
    assert not p.forward.any()
    # One tuple of a among four: hot because it was in the batch before. Loads 3 6, avg 9/2: CI = 1/4,
    # CA = 1/2: R = -3/8, Q(1) = -1/3 + (-3/8 + 1/3)/2 = -17/48. The others are hashed.
    others = keys_at([0] * 9, n=2)[1:]
    assert p.route([a, *others[:3]]).tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(p.rewards, [-3 / 8, nan, nan, nan], rtol=1e-15)
    np.testing.assert_allclose(values(p, a), [-3 / 8, -17 / 48], rtol=1e-15)
    # Now it is forgotten: hashed, and on one worker in this batch.
    assert p.route([a, *others[3:6]]).tolist() == [0, 0, 0, 0]
    assert np.isnan(p.rewards).all()
    assert p.forward.all()
    assert row_of(p.qtable, a) == row_of(p.qtable, b) == EMPTY
    # Hot again, Q = 0 0. To 0 by the tie: loads 11 6, avg 17/2: CI = (5/2)/11 = 5/22, CA = 1/2: R = -4/11,
    # Q(0) = -2/11. To 1: loads 11 7, avg 9: CI = -2/9, CA = 1: R = 1/9 - 1/2 = -7/18, Q(1) = -7/36.
    assert p.route([a, a]).tolist() == [0, 1]
    np.testing.assert_allclose(values(p, a), [-2 / 11, -7 / 36], rtol=1e-15)


def test_the_first_batch_adapts():
    # Half of the batch is one key, hot from its first tuple on. Hashing puts it on one of 16 workers, 8.5
    # times the mean; exploring sends half of it to the least loaded one, and the values follow.
    keys = np.where(np.arange(4_000) % 2, np.arange(4_000), -1)
    p = DaltonMicroBatch(n_workers=16, epsilon=0.5, explore="least_loaded")
    load, hashed = (np.bincount(each.route(keys), minlength=16) for each in (p, make("kg", n_workers=16)))
    assert hashed.max() > 8 * hashed.mean()
    # Measured 1.01.
    assert load.max() < 1.2 * load.mean()
    assert np.isfinite(p.rewards).sum() == 2_000


def test_threshold_is_reached_not_passed(keys_at):
    # m / (c n) = 10 / 4 = 2.5: three tuples make a key hot, two do not; of 8 two do.
    a, *others = keys_at([0] * 9, n=4)
    for batch, hot in (([a] * 2 + others, False), ([a] * 3 + others[:7], True), ([a] * 2 + others[:6], True)):
        p = DaltonMicroBatch(n_workers=4)
        p.route(batch)
        assert list(rows_in_use(p)) == ([a] if hot else [])


def reference(bandit, held, batches, times, homes, window, hot_factor=1.0, max_split=None, **params):
    """The rule, batch by batch and tuple by tuple, with dictionaries."""
    n, by_time = params["n"], window.get("by") == "time"
    agent, state = bandit(**params), held(n, window["size"], window.get("slide", window["size"]))
    hot_before, share, position = set(), {}, 0
    workers, rewards, forward = [], [], []
    for keys in batches:
        counts = Counter(keys)
        reached = {k for k, f in counts.items() if f >= Fraction(len(keys)) / (Fraction(hot_factor) * n)}
        for key in reached - hot_before:
            agent.forget(key)
        hot = reached | hot_before
        # A key that is hot only from the batch before keeps its share of that one.
        share = {k: counts[k] * (n / len(keys)) if k in reached else share[k] for k in hot}
        hot_before, on = reached, {k: set() for k in hot}
        for key in keys:
            state.arrive(times[position] if by_time else position)
            worker, reward = homes[position], nan
            if key in hot:
                worker = agent.choose(key, homes[position], state.load, on[key], share[key], max_split)
                on[key].add(worker)
            state.send(key, worker)
            if key in hot:
                reward = agent.learn(key, worker, state.load[worker], sum(state.load), len(on[key]))
            workers.append(worker)
            rewards.append(reward)
            forward.append(key not in hot)
            position += 1
    return workers, rewards, forward, {k: agent.values[k] for k in hot}


WINDOWS = {
    "count": {"size": 400, "slide": 100},
    "tumbling": {"size": 130},
    "time": {"size": 40, "slide": 10, "by": "time"},
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("n", [2, 8, 13])
@pytest.mark.parametrize(
    "params",
    [
        {"epsilon": 0.0, "initial_q": 0.0},
        {"epsilon": 0.3, "explore": "uniform"},
        {"epsilon": 0.5, "epsilon_decay": 0.05, "explore": "least_loaded", "p1": 0.8},
        {"epsilon": 0.5, "explore": "fragments", "gamma": 0.3},
        {"epsilon": 0.5, "explore": "share", "hot_factor": 2.5},
        {"epsilon": 0.5, "explore": "uniform", "max_split": 2, "hot_factor": 4.0},
    ],
    ids=["greedy", "uniform", "least_loaded", "fragments", "share", "max_split"],
)
def test_random_batches_match_the_rule(bandit, held, homes, zipf, window, n, params):
    rng = np.random.default_rng(n)
    keys = zipf(3_000, n_keys=80, s=2.0 if n == 2 else 1.1, seed=n)
    # Others are heavy every 500 tuples; batches of 10 to 300 tuples; times with gaps.
    keys += np.arange(3_000) // 500 % 3
    times = np.cumsum(rng.integers(0, 3, 3_000) / 8) + np.where(np.arange(3_000) > 1_500, 95.0, 0.0)
    cuts = np.cumsum(rng.integers(10, 300, 40))
    batches = [part.tolist() for part in np.split(keys, cuts[cuts < 3_000])]
    expected = reference(bandit, held, batches, times, homes(keys, n, 5), window, n=n, seed=5, **params)
    p = DaltonMicroBatch(n_workers=n, seed=5, window=window, **params)
    workers, rewards, forward, at = [], [], [], 0
    for batch in batches:
        some, flags = p.route_and_forward(batch, times[at : at + len(batch)])
        at += len(batch)
        workers += some.tolist()
        forward += flags.tolist()
        rewards += p.rewards.tolist()
    assert np.flatnonzero(np.array(workers) != expected[0]).tolist() == []
    np.testing.assert_allclose(rewards, expected[1], rtol=0, atol=1e-12)
    assert forward == expected[2]
    assert set(rows_in_use(p)) == set(expected[3])
    for key, by_worker in expected[3].items():
        np.testing.assert_allclose(values(p, key), by_worker, rtol=0, atol=1e-12)
    assert 500 < np.isfinite(rewards).sum() < 3_000


def test_an_empty_batch_changes_nothing(keys_at):
    a, *others = keys_at([0] * 5, n=2)
    p, q = (DaltonMicroBatch(n_workers=2, epsilon=0) for _ in range(2))
    for partitioner in (p, q):
        partitioner.route([a] * 4)
    assert p.route([]).tolist() == []
    for partitioner in (p, q):
        partitioner.route([a, *others])
    # a is still hot from the batch before, which is not the empty one.
    assert np.isfinite(p.rewards[0])
    assert p.rewards.tolist()[0] == q.rewards.tolist()[0]


def test_many_hot_keys_and_long_batches(zipf):
    # c n = 300 of 40 000 tuples in one batch, more than is hashed at once: 134 tuples make a key hot.
    keys = zipf(40_000, n_keys=400, s=0.7, seed=9)
    p = DaltonMicroBatch(n_workers=3, hot_factor=100.0)
    p.route(keys)
    hot = {key for key, f in Counter(keys.tolist()).items() if f >= math.ceil(40_000 / 300)}
    assert 32 < len(hot) <= 300
    assert set(rows_in_use(p)) == hot
    np.testing.assert_array_equal(np.isfinite(p.rewards), np.isin(keys, list(hot)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_workers", 0),
        ("seed", -1),
        ("window", None),
        ("epsilon", 2),
        ("epsilon_decay", -1),
        ("gamma", 0),
        ("p1", 1.5),
        ("initial_q", math.nan),
        ("hot_factor", 0),
        ("explore", "best"),
        ("max_split", 0),
    ],
)
def test_bad_parameters(refused, field, value):
    assert refused(DaltonMicroBatch, **{"n_workers": 3, field: value}).startswith(f"{field} = ")


def test_parameters_are_those_of_dalton_without_the_statistics():
    left_out = {"statistics", "stats_window", "hybrid_limit"}
    own, whole = (inspect.signature(cls).parameters for cls in (DaltonMicroBatch, Dalton))
    assert own == {name: parameter for name, parameter in whole.items() if name not in left_out}
