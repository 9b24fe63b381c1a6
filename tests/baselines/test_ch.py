"""Consistent hashing with bounded loads: clockwise to the first worker below ⌈(1 + ε) t / n⌉."""

import math
import struct
from fractions import Fraction
from itertools import count

import mmh3
import numpy as np
import pytest

from dalton.baselines.ch import BoundedConsistentHashing
from dalton.envs.hashing import member

COUNT = {"size": 60, "slide": 20}
TIME = {"size": 10, "slide": 2, "by": "time"}


def place(value, seed, index):
    """A point of the ring of 2^32: a hashed key (index 0) or the hashed number of a worker's point (1)."""
    return mmh3.hash(struct.pack("<q", value), int(member(seed, index)), signed=True) + 2**31


def ring(n, seed, points):
    """(point, worker) around the ring; worker w has the points w points ... (w + 1) points - 1."""
    return sorted((place(i, seed, 1), i // points) for i in range(n * points))


def clockwise(circle, at):
    """Workers in the order in which they are met from ``at`` on, once around."""
    start = next((i for i, (point, _) in enumerate(circle) if point >= at), 0)
    return [worker for _, worker in circle[start:] + circle[:start]]


def test_hand_derived_decisions():
    # Three workers with one point each; a key before the first of them meets them as x, y, z.
    circle = ring(3, 0, 1)
    x, y, z = (worker for _, worker in circle)
    key = next(key for key in count() if place(key, 0, 0) < circle[0][0])
    # ⌈1.01 t / 3⌉ for t = 1 ... 9 is 1 1 2 2 2 3 3 3 4. Loads of x y z before each tuple, first below it:
    # 000 -> x, 100 -> y, 110 -> x, 210 -> y, 220 -> z, 221 -> x, 321 -> y, 331 -> z, 332 -> x.
    expected = [x, y, x, y, z, x, y, z, x]
    partitioner = BoundedConsistentHashing(n_workers=3, epsilon=0.01, points=1)
    assert partitioner.route([key] * 9).tolist() == expected


def test_hand_derived_decisions_around_the_end_of_the_ring():
    # A key behind the last point starts at the first; one between the first two meets y, z, x.
    circle = ring(3, 0, 1)
    x, y, z = (worker for _, worker in circle)
    last = next(key for key in count() if place(key, 0, 0) > circle[2][0])
    second = next(key for key in count() if circle[0][0] < place(key, 0, 0) < circle[1][0])
    third = next(key for key in count() if circle[1][0] < place(key, 0, 0) < circle[2][0])
    # ε = 0.5: ⌈0.5 t⌉ = 1 1 2 2 3 3. third: 000 -> z; third: 001, z is full, beyond the end -> x;
    # last: 101 -> x; second: 201 -> y; last: 211 -> x; third: 311 -> z.
    partitioner = BoundedConsistentHashing(n_workers=3, epsilon=0.5, points=1)
    assert partitioner.route([third, third, last, second, last, third]).tolist() == [z, x, x, y, x, z]


def test_a_key_on_a_point_belongs_to_it():
    # Among 100 000 keys and 200 000 points some hashes agree; take those with another worker behind them.
    circle = ring(2, 0, 100_000)
    following = {point: i for i, (point, _) in enumerate(circle)}
    hits = [key for key in range(100_000) if place(key, 0, 0) in following]
    owners = {key: circle[following[place(key, 0, 0)]][1] for key in hits}
    telling = [k for k in hits if circle[(following[place(k, 0, 0)] + 1) % len(circle)][1] != owners[k]]
    assert telling
    for key in telling:
        partitioner = BoundedConsistentHashing(n_workers=2, points=100_000)
        assert partitioner.route([key]).tolist() == [owners[key]]


@pytest.mark.parametrize("window", [None, COUNT, TIME], ids=["start", "count", "time"])
@pytest.mark.parametrize(
    ("n", "epsilon", "points"), [(1, 0.25, 1), (2, 0.25, 3), (8, 0.01, 100), (8, 0.5, 5), (64, 0.01, 20)]
)
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, ticking, tally, n, epsilon, points, window, seed):
    keys, times = zipf(3_000, seed=seed), ticking(3_000, seed=seed)
    circle, slack = ring(n, seed, points), 1 + Fraction(str(epsilon))
    order = {key: clockwise(circle, place(key, seed, 0)) for key in np.unique(keys).tolist()}
    state, expected, overflown = tally(n, window), [], 0
    for key, time in zip(keys.tolist(), times.tolist(), strict=True):
        state.arrive(time)
        capacity = math.ceil(slack * (sum(state.load) + 1) / n)
        best = next(w for w in order[key] if state.load[w] < capacity)
        overflown += best != order[key][0]
        state.send(key, best)
        expected.append(best)
        assert max(state.load) <= capacity or window is not None
    partitioner = BoundedConsistentHashing(
        n_workers=n, seed=seed, epsilon=epsilon, points=points, window=window
    )
    assert partitioner.route(keys, times).tolist() == expected
    assert overflown > (300 if n >= 8 else 3) or n == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 10.5}, "epsilon"),
        ({"points": 0}, "points"),
        ({"points": 100_001}, "points"),
        ({"window": {"size": 5, "slide": 2}}, "window.size"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(BoundedConsistentHashing, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
