"""PoRC: salts 1, 2, ... until the hashed bin has room; the memo of the kernel changes no decision."""

from fractions import Fraction

import numpy as np
import pytest

from dalton.baselines.porc import PowerOfRandomChoices
from dalton.envs.hashing import candidates, family

COUNT = {"size": 400, "slide": 100}
TIME = {"size": 100, "slide": 20, "by": "time"}


def test_hand_derived_decisions(keys_with):
    # The salts of k give the bins 0, 0, 1; ε = 0.5 on 3 bins: a bin is full with t / 2 or more.
    k, x = keys_with([(0, 0, 1), (2, 1)], n=3)
    # t / 2:  0.5 1.0 1.5 2.0 2.5 3.0 3.5; load of 0 and 1 before: 00 -> 0, 10: 0 is full, twice -> 1,
    # 11 -> 0, 21: full -> 1, 22 -> 0, 32: full -> 1, 33 -> 0.
    partitioner = PowerOfRandomChoices(n_workers=3, epsilon=0.5)
    assert partitioner.route([k] * 7).tolist() == [0, 1, 0, 1, 0, 1, 0]
    # x: 2 has room for long (4.0 to 6.0, loads 0 to 4): five tuples without looking at 1.
    assert partitioner.route([x] * 5).tolist() == [2, 2, 2, 2, 2]


def naive(tally, keys, times, n, seed, epsilon, window):
    """Algorithm 1 of CG as printed, from the first salt for every tuple; also how often it went beyond it."""
    salts = candidates(np.unique(keys), family(seed, 32 * n), n).T.tolist()
    bins = dict(zip(np.unique(keys).tolist(), salts, strict=True))
    state, decisions, depths = tally(n, window), [], []
    slack = 1 + Fraction(str(epsilon))
    for key, time in zip(keys.tolist(), times.tolist(), strict=True):
        state.arrive(time)
        full = slack * (sum(state.load) + 1) / n
        depth, best = next(
            ((i, w) for i, w in enumerate(bins[key]) if state.load[w] < full),
            (32 * n, state.load.index(min(state.load))),
        )
        state.send(key, best)
        decisions.append(best)
        depths.append(depth)
    return decisions, np.array(depths)


@pytest.mark.parametrize("window", [None, COUNT, TIME], ids=["start", "count", "time"])
@pytest.mark.parametrize("epsilon", [0.01, 0.5])
@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize(("s", "seed"), [(0.8, 0), (1.4, 7), (2.0, 1)])
def test_every_decision_is_that_of_the_naive_search(zipf, ticking, tally, n, epsilon, window, s, seed):
    keys, times = zipf(4_000, s=s, seed=seed), ticking(4_000, seed=seed)
    expected, depths = naive(tally, keys, times, n, seed, epsilon, window)
    partitioner = PowerOfRandomChoices(n_workers=n, seed=seed, epsilon=epsilon, window=window)
    # In two batches: the memo lives on between them.
    workers = np.concatenate(
        [partitioner.route(keys[p], times[p]) for p in (slice(1_234), slice(1_234, None))]
    )
    assert workers.tolist() == expected
    # The search is really needed, and goes beyond what a cell of the memo remembers in the worst case.
    assert (depths > 0).sum() > 100
    assert depths.max() > (64 if (n, epsilon) == (64, 0.01) and s > 1 else 2)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_bins(zipf, ticking, tally, n):
    keys, times = zipf(2_000, s=1.4, seed=n), ticking(2_000)
    expected, _ = naive(tally, keys, times, n, 3, 0.25, None)
    assert PowerOfRandomChoices(n_workers=n, seed=3, epsilon=0.25).route(keys).tolist() == expected


def test_keys_that_share_a_cell_of_the_memo(ticking, tally):
    # Multiples of the inverse of the golden multiplier modulo 2^64 all fall into the first cells; three keys
    # that alternate take the cell from each other.
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    keys = [(inverse * j + 2**63) % 2**64 - 2**63 for j in (1, 2, 3)]
    rng = np.random.default_rng(0)
    stream = np.array(keys)[rng.choice(3, 3_000, p=[0.5, 0.3, 0.2])]
    expected, _ = naive(tally, stream, ticking(3_000), 16, 0, 0.01, None)
    assert PowerOfRandomChoices(n_workers=16, epsilon=0.01).route(stream).tolist() == expected


def test_a_probe_makes_the_memo_forget_what_was_full(keys_with):
    # ε = 0.5 on 3 bins: a bin is full with t / 2 or more. The salts of k give 0, 1: k k k k go to 0 1 0 1.
    # Then the workers report 2 0 2.
    (k,) = keys_with([(0, 1)], n=3)
    partitioner = PowerOfRandomChoices(n_workers=3, epsilon=0.5)
    assert partitioner.route([k] * 4).tolist() == [0, 1, 0, 1]
    partitioner.probe(partitioner.loads, np.array([2, 0, 2]))
    # t = 5: 0 has 2 < 2.5. t = 6: 0 has 3, full, 1 has room.
    assert partitioner.route([k, k]).tolist() == [0, 1]


def test_every_decision_after_a_probe_is_that_of_the_naive_search(zipf):
    # The workers report other loads of the same sum, so that levels go on but full bins are others.
    n, epsilon = 16, 0.01
    keys = zipf(3_000, s=1.6)
    bins = candidates(keys, family(0, 32 * n), n).T.tolist()
    partitioner, load, expected, found = PowerOfRandomChoices(n_workers=n), [0] * n, [], []
    for t, choices in enumerate(bins):
        if t % 100 == 50:
            load = load[1:] + load[:1]
            partitioner.probe(partitioner.loads, np.array(load))
        full = Fraction(101, 100) * (t + 1) / n
        expected.append(next((w for w in choices if load[w] < full), load.index(min(load))))
        load[expected[-1]] += 1
        found += partitioner.route(keys[t : t + 1]).tolist()
    assert partitioner.epsilon == epsilon
    assert found == expected


@pytest.mark.parametrize("epsilon", [0.01, 0.5])
@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("s", [0.5, 1.2, 3.0])
def test_imbalance_is_at_most_epsilon_m_over_n_plus_1_at_every_tuple(zipf, n, epsilon, s):
    keys = zipf(5_000, s=s, seed=n)
    workers = PowerOfRandomChoices(n_workers=n, seed=2, epsilon=epsilon).route(keys)
    loads = np.cumsum(np.eye(n, dtype=np.int64)[workers], axis=0)
    m = np.arange(1, len(keys) + 1)
    assert (loads.max(axis=1) - m / n <= epsilon * m / n + 1 + 1e-9).all()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 11}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(PowerOfRandomChoices, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
