"""Greedy-d: the least loaded of d hashed candidates, a tie takes the first (PKG Eq. 1)."""

import pytest

from dalton.baselines.pkg import PartialKeyGrouping
from dalton.envs.hashing import candidates, family

COUNT = {"size": 60, "slide": 20}
TIME = {"size": 10, "slide": 2, "by": "time"}


def test_hand_derived_decisions(keys_with):
    # a may go to 0 or 1, b to 1 or 2: they share worker 1.
    a, b = keys_with([(0, 1), (1, 2)], n=4)
    # load before: 000   100   110   111   121   221   321   331   332   333
    stream = [a, a, b, b, a, a, a, b, b, b]
    expected = [0, 1, 2, 1, 0, 0, 1, 2, 2, 1]
    assert PartialKeyGrouping(n_workers=4).route(stream).tolist() == expected


def test_hand_derived_decisions_with_three_choices(keys_with):
    # The second candidate is the first again, so c has two workers: a tie at 0:0 takes 3, then 1, then 3.
    c, d = keys_with([(3, 3, 1), (1, 0, 2)], n=4)
    # load of 0123 before: 0000  0001  0101  0102; d: 0202 -> 0 (0 < 2), 1202 -> 2, 1212 -> 0 (first of 1:1).
    stream = [c, c, c, c, d, d, d]
    assert PartialKeyGrouping(n_workers=4, d=3).route(stream).tolist() == [3, 1, 3, 1, 0, 2, 0]


def test_hand_derived_decisions_with_a_window(keys_with):
    # Slides of 2 tuples, a window of 2 slides: b b | a a | a a | b b, and b can only go to 0. Load of 0 and 1
    # before each tuple, after expiry:
    a, b = keys_with([(0, 1), (0, 0)], n=2)
    # 00 -> 0, 10 -> 0 | 20 -> 1, 21 -> 1 | 22 - 20 = 02 -> 0, 12 -> 0 | 22 - 02 = 20 -> 0, 30 -> 0.
    # Since the start, the third pair would see 22 and 32 and go to 0 and 1.
    stream = [b, b, a, a, a, a, b, b]
    windowed = PartialKeyGrouping(n_workers=2, window={"size": 4, "slide": 2})
    assert windowed.route(stream).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert PartialKeyGrouping(n_workers=2).route(stream).tolist() == [0, 0, 1, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("window", [None, COUNT, TIME], ids=["start", "count", "time"])
@pytest.mark.parametrize(("n", "d"), [(1, 2), (2, 2), (5, 2), (64, 2), (8, 3), (8, 20)])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, ticking, tally, n, d, window, seed):
    keys, times = zipf(3_000, seed=seed), ticking(3_000, seed=seed)
    choices = candidates(keys, family(seed, d), n).T.tolist()
    reference, expected = tally(n, window), []
    for key, time, hashed in zip(keys.tolist(), times.tolist(), choices, strict=True):
        reference.arrive(time)
        best = min(hashed, key=lambda w: reference.load[w])
        reference.send(key, best)
        expected.append(best)
    partitioner = PartialKeyGrouping(n_workers=n, seed=seed, d=d, window=window)
    assert partitioner.route(keys, times).tolist() == expected
    assert partitioner.loads.load.tolist() == reference.load
    assert partitioner.max_workers_per_key == min(d, n)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"d": 1}, "d"),
        ({"d": 65_536}, "d"),
        ({"d": 2.5}, "d"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
        ({"window": 10}, "window"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(PartialKeyGrouping, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
