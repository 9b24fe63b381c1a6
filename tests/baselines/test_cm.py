"""CM: of two candidates the one with fewer distinct keys in the window, a tie takes the first."""

import pytest

from dalton.baselines.cm import CardinalityMinimising
from dalton.envs.hashing import candidates, family

WINDOWS = {
    "start": None,
    "count": {"size": 60, "slide": 20},
    "tumbling": {"size": 50},
    "time": {"size": 12, "slide": 3, "by": "time"},
}


def test_hand_derived_decisions(keys_with):
    a, b, c = keys_with([(0, 1), (0, 1), (1, 2)], n=3)
    partitioner = CardinalityMinimising(n_workers=3, window=None)
    # Distinct keys before:  000 -> 0, 100: a -> 1, 110: a -> 0, 110: a -> 0 (tuples do not count, keys do),
    # 110: b -> 0, 210: b -> 1, 220: c -> 2, 221: c -> 2, 221: a -> 0.
    assert partitioner.route([a, a, a, a, b, b, c, c, a]).tolist() == [0, 1, 0, 0, 0, 1, 2, 2, 0]


def test_hand_derived_decisions_with_a_window(keys_with):
    # Slides of 2 tuples, a window of 2 slides. y and z only go to 0, x only to 1, a to 0 or 1.
    a, x, y, z = keys_with([(0, 1), (1, 1), (0, 0), (0, 0)], n=2)
    partitioner = CardinalityMinimising(n_workers=2, window={"size": 4, "slide": 2})
    # y z | x a: keys 20, then 21 -> a to 1. x a: slide 0 has left: 0 has none, 1 has x and a, so a -> 0.
    # x a: slide 1 has left: 0 has a, 1 has x, a tie, so a -> 0.
    assert partitioner.route([y, z, x, a, x, a, x, a]).tolist() == [0, 0, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, ticking, tally, n, window, seed):
    length = 2_000 if window is None else 3_000
    keys, times = zipf(length, n_keys=120, seed=seed), ticking(length, seed=seed)
    choices = candidates(keys, family(seed, 2), n).T.tolist()
    reference, expected = tally(n, window), []
    for key, time, hashed in zip(keys.tolist(), times.tolist(), choices, strict=True):
        reference.arrive(time)
        best = min(hashed, key=reference.cardinality)
        reference.send(key, best)
        expected.append(best)
    partitioner = CardinalityMinimising(n_workers=n, seed=seed, window=window)
    assert partitioner.route(keys, times).tolist() == expected
    assert partitioner.max_workers_per_key == min(2, n)


def test_more_keys_than_the_first_tables_hold(zipf):
    keys = zipf(4_000, n_keys=4_000, s=0.3, seed=3)
    choices = candidates(keys, family(3, 2), 8).T.tolist()
    held, expected = [set() for _ in range(8)], []
    for key, hashed in zip(keys.tolist(), choices, strict=True):
        best = min(hashed, key=lambda w: len(held[w]))
        held[best].add(key)
        expected.append(best)
    assert sum(map(len, held)) > 2_500
    assert CardinalityMinimising(n_workers=8, seed=3, window=None).route(keys).tolist() == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"n_workers": 2**15}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
        ({"window": {"size": 4, "slide": 0}}, "window.slide"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(CardinalityMinimising, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
