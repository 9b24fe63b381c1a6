"""DAGreedy: hot keys by a score of holding and load over all workers, others to their hashed worker."""

from collections import Counter
from fractions import Fraction

import pytest

from dalton.baselines.dagreedy import DAGreedy
from dalton.envs.hashing import candidates, family

WINDOWS = {
    "count": {"size": 160, "slide": 40},
    "tumbling": {"size": 64},
    "time": {"size": 48, "slide": 12, "by": "time"},
    "tumbling time": {"size": 20, "by": "time"},
}


def test_hand_derived_decisions(keys_with):
    # Slides of 4, a window of 2 slides, n = 2, hot_factor 1: a key is hot with more than 4 / 2 = 2 tuples in
    # the slide before. α = 0.5: the score is 0.5 [holds] - 0.5 (L - avg) / avg.
    a, b = keys_with([(0,), (0,)], n=2)
    partitioner = DAGreedy(n_workers=2, window={"size": 8, "slide": 4}, hot_factor=1, alpha=0.5)
    # Slide 0: nothing is hot, all to 0. Loads 4 0. a has 3 tuples, b one: a is hot in slide 1.
    assert partitioner.route([a, a, a, b]).tolist() == [0, 0, 0, 0]
    # Slide 1, avg = 2: 0 holds a: 0.5 - 0.5 (4 - 2)/2 = 0; 1 does not: -0.5 (0 - 2)/2 = 0.5. So 1, which then
    # holds it too: loads 4 1, avg 2.5: 0.5 - 0.3 against 0.5 + 0.3, so 1 again. b is cold: to 0. Loads 5 2,
    # both hold a: 1.
    assert partitioner.route([a, a, b, a]).tolist() == [1, 1, 0, 1]
    # Slide 2: slide 0 has left, loads 1 3, a had 3 and is hot. Only 1 holds a now (slide 1). avg = 2:
    # 0: -0.5 (1 - 2)/2 = 0.25; 1: 0.5 - 0.5 (3 - 2)/2 = 0.25. A tie takes the hashed worker, 0.
    # Then both hold it, loads 2 3: 0. 3 3: a tie, 0. b -> 0.
    assert partitioner.route([a, a, a, b]).tolist() == [0, 0, 0, 0]


def test_hand_derived_decisions_of_a_key_that_cools(keys_with):
    # As above; a is hot in slide 1 and has one tuple there, at worker 1. In slide 2 it is not hot: hashed.
    a, b = keys_with([(0,), (0,)], n=2)
    partitioner = DAGreedy(n_workers=2, window={"size": 8, "slide": 4}, hot_factor=1, alpha=0.5)
    partitioner.route([a, a, a, b])
    assert partitioner.route([a, b, b, b]).tolist() == [1, 0, 0, 0]
    # Now b is hot: held by 0, loads 3 1, avg 2: 0.5 - 0.25 = 0.25 against 0.25: a tie, hashed worker 0.
    # Then 4 1, avg 2.5: 0.5 - 0.3 against 0.3: 1. Both hold it: 1 until 4 4.
    assert partitioner.route([b, b, a, a]).tolist() == [0, 1, 0, 0]


def test_equal_to_the_threshold_is_not_hot(keys_with):
    # Slides of 4, n = 2: two tuples are not above 4 / 2. Loads 4 0 would send a hot key to 1.
    a, b = keys_with([(0,), (0,)], n=2)
    for stream, then in (([a, a, b, b], [0, 0]), ([a, a, a, b], [1, 0])):
        partitioner = DAGreedy(n_workers=2, window={"size": 8, "slide": 4}, hot_factor=1)
        partitioner.route(stream)
        assert partitioner.route([a, b]).tolist() == then


def test_after_a_gap_in_time_nothing_is_hot(keys_with):
    (a,) = keys_with([(0,)], n=2)
    window = {"size": 8, "slide": 4, "by": "time"}
    for later, expected in ((4.0, 1), (7.9, 1), (8.0, 0)):
        partitioner = DAGreedy(n_workers=2, window=window, hot_factor=1)
        assert partitioner.route([a, a, a], [0.0, 1.0, 3.9]).tolist() == [0, 0, 0]
        assert partitioner.route([a], [later]).tolist() == [expected]


def reference(tally, keys, times, n, seed, window, hot_factor, alpha):
    """The rule in exact arithmetic; scores are multiplied by the average, which may be 0."""
    hashed = candidates(keys, family(seed, 1), n)[0].tolist()
    state, decisions, hot, counts, n_hot = tally(n, window), [], set(), Counter(), 0
    alpha = Fraction(alpha)
    for key, time, home in zip(keys.tolist(), times.tolist(), hashed, strict=True):
        passed = state.arrive(time)
        if passed:
            least = Fraction(counts.total()) / (Fraction(hot_factor) * n)
            hot = {k for k, c in counts.items() if c > least} if passed == 1 else set()
            counts = Counter()
        counts[key] += 1
        best = home
        if key in hot:
            n_hot += 1
            average, held = Fraction(sum(state.load), n), state.holders(key)
            score = [
                alpha * average * (w in held) - (1 - alpha) * (state.load[w] - average) for w in range(n)
            ]
            best = max(((home + j) % n for j in range(n)), key=lambda w: score[w])
        state.send(key, best)
        decisions.append(best)
    return decisions, n_hot


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize(
    ("n", "hot_factor", "alpha"),
    [(1, 1, 0.5), (2, 4, 0.5), (4, 100, 0.5), (8, 2, 0.25), (8, 4, 0.75), (5, 4, 0.5), (16, 2, 0), (8, 1, 1)],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, ticking, tally, n, hot_factor, alpha, window, seed):
    keys, times = zipf(2_000, n_keys=80, s=1.0, seed=seed), ticking(2_000, seed=seed)
    expected, n_hot = reference(tally, keys, times, n, seed, window, hot_factor, alpha)
    partitioner = DAGreedy(n_workers=n, seed=seed, window=window, hot_factor=hot_factor, alpha=alpha)
    assert partitioner.route(keys, times).tolist() == expected
    assert n_hot > 100 or n == 1


def test_more_hot_keys_and_counted_keys_than_the_first_tables_hold(zipf, ticking, tally):
    # hot_factor 100: in slides of 1500 every key counted twice is hot, hundreds of them.
    keys, times = zipf(4_500, n_keys=1_500, s=0.2, seed=5), ticking(4_500)
    window = {"size": 3_000, "slide": 1_500}
    expected, n_hot = reference(tally, keys, times, 8, 5, window, 100, 0.5)
    partitioner = DAGreedy(n_workers=8, seed=5, window=window)
    assert partitioner.route(keys).tolist() == expected
    assert n_hot > 800
    assert len(partitioner.rows.keys) > 64
    assert len(partitioner.counts.keys) > 1_024


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"window": None}, "window"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
        ({"hot_factor": 0}, "hot_factor"),
        ({"hot_factor": "100"}, "hot_factor"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(DAGreedy, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
