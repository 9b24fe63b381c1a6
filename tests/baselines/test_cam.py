"""cAM: the first of two candidates that holds the key in the window, else the lighter one."""

import pytest

from dalton.baselines.cam import CardinalityAware
from dalton.envs.hashing import candidates, family

WINDOWS = {
    "start": None,
    "count": {"size": 60, "slide": 20},
    "tumbling": {"size": 50},
    "time": {"size": 12, "slide": 3, "by": "time"},
}


def test_hand_derived_decisions(keys_with):
    a, b, c = keys_with([(0, 1), (0, 1), (1, 2)], n=3)
    partitioner = CardinalityAware(n_workers=3, window=None)
    # a: nobody holds it, a tie takes 0, where it stays: loads 300. b: held nowhere, 1 is lighter: 320.
    # c: held nowhere, 2 is lighter than 1: 321. a is held by 0 and stays there although 1 is lighter.
    assert partitioner.route([a, a, a, b, b, c, a, b]).tolist() == [0, 0, 0, 1, 1, 2, 0, 1]


def test_hand_derived_decisions_with_a_window(keys_with):
    # Slides of 2 tuples, a window of 2 slides. a may go to 0 or 1, z only to 0.
    a, z = keys_with([(0, 1), (0, 0)], n=2)
    partitioner = CardinalityAware(n_workers=2, window={"size": 4, "slide": 2})
    # a z: both to 0. z z: 0. z a: slide 0 has left with the tuple of a, so a is new: load 0 is 3, so 1.
    # z a: slide 1 has left; a is held by 1, where it stays, although it would be a tie of 2 : 1 now.
    assert partitioner.route([a, z, z, z, z, a, z, a]).tolist() == [0, 0, 0, 0, 0, 1, 0, 1]
    # In slide 4 slide 2 has left, a is held since slide 3 only: it is in the window still.
    assert partitioner.route([a, a]).tolist() == [1, 1]


def test_hand_derived_decisions_of_a_key_that_moves(keys_with):
    # One slide after the other, one tuple each, a window of 3. a may go to 0 or 1; z goes to 0, y to 1.
    a, z, y = keys_with([(0, 1), (0, 0), (1, 1)], n=2)
    partitioner = CardinalityAware(n_workers=2, window={"size": 3, "slide": 1})
    # z -> 0; a: 0 has 1, so 1. y y -> 1. In slide 4 the tuple of a in slide 1 has left: nobody holds a, and
    # slides 2 and 3 have loads 0 2, so a -> 0. y -> 1. In slide 6 slide 4 is the oldest: 0 holds a.
    assert partitioner.route([z, a, y, y, a, y, a]).tolist() == [0, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, ticking, tally, n, window, seed):
    length = 2_000 if window is None else 3_000
    keys, times = zipf(length, n_keys=120, seed=seed), ticking(length, seed=seed)
    choices = candidates(keys, family(seed, 2), n).T.tolist()
    reference, expected, moved = tally(n, window), [], set()
    for key, time, hashed in zip(keys.tolist(), times.tolist(), choices, strict=True):
        reference.arrive(time)
        held = reference.holders(key)
        holding = [w for w in hashed if w in held]
        best = holding[0] if holding else min(hashed, key=lambda w: reference.load[w])
        reference.send(key, best)
        expected.append(best)
        moved.add((key, best))
    partitioner = CardinalityAware(n_workers=n, seed=seed, window=window)
    assert partitioner.route(keys, times).tolist() == expected
    assert partitioner.max_workers_per_key == min(2, n)
    # With a window, keys that were absent move; without, they never do.
    distinct = len({key for key, _ in moved})
    assert (len(moved) > distinct) == (window is not None and n > 1)


def test_more_keys_than_the_first_tables_hold(zipf, tally):
    keys = zipf(4_000, n_keys=4_000, s=0.3, seed=3)
    choices = candidates(keys, family(3, 2), 8).T.tolist()
    load, home, expected = [0] * 8, {}, []
    for key, hashed in zip(keys.tolist(), choices, strict=True):
        best = home.setdefault(key, min(hashed, key=lambda w: load[w]))
        load[best] += 1
        expected.append(best)
    assert len(home) > 2_000
    assert CardinalityAware(n_workers=8, seed=3, window=None).route(keys).tolist() == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"n_workers": 2**15}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
        ({"window": {"size": 0}}, "window.size"),
        ({"window": {"size": 4, "by": "day"}}, "window.by"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(CardinalityAware, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
