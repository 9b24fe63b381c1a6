"""The oracle: the least maximal load ⌈m/n⌉, with few (key, worker) pairs, against an exhaustive search."""

import math
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest

from dalton.baselines.oracle import Oracle
from dalton.envs.hashing import candidates, family


def splits(count, rooms):
    """All ways to put ``count`` tuples into ``rooms``, as the rooms left and the number of parts."""
    if not rooms:
        if count == 0:
            yield (), 0
        return
    for here in range(min(count, rooms[0]) + 1):
        for left, parts in splits(count - here, rooms[1:]):
            yield (rooms[0] - here, *left), parts + (here > 0)


@cache
def fewest_pairs(counts, rooms):
    """The fewest pairs with which keys of ``counts`` fit into ``rooms``, over all integer splits."""
    if not counts:
        return 0
    return min(
        (
            parts + fewest_pairs(counts[1:], tuple(sorted(left)))
            for left, parts in splits(counts[0], rooms)
            if sum(left) >= sum(counts[1:])
        ),
        default=math.inf,
    )


def pairs_of(keys, workers):
    return len(set(zip(keys, workers, strict=True)))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("counts", [(1,), (5,), (2, 1), (3, 3), (4, 2), (3, 2, 1), (2, 2, 2), (3, 1, 1, 1)])
def test_the_search_for_the_fewest_pairs_is_right(counts, n):
    # Against all n^m ways to send every tuple.
    keys = [key for key, count in enumerate(counts) for _ in range(count)]
    capacity = math.ceil(len(keys) / n)
    expected = min(
        pairs_of(keys, workers)
        for workers in product(range(n), repeat=len(keys))
        if max(Counter(workers).values()) <= capacity
    )
    assert fewest_pairs(counts, (capacity,) * n) == expected


def check(counts, n, seed):
    """Route a batch with ``counts``; checks all bounds, returns how many pairs there are above the fewest."""
    capacity = math.ceil(sum(counts) / n)
    bound = sum(math.ceil(count / capacity) for count in counts)
    optimum = fewest_pairs(tuple(sorted(counts, reverse=True)), (capacity,) * n)
    assert bound <= optimum
    keys = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    workers = Oracle(n_workers=n, seed=seed).route(keys)
    assert np.bincount(workers, minlength=n).max() == capacity, counts
    pairs = pairs_of(keys.tolist(), workers.tolist())
    assert optimum <= pairs <= bound + n - 1, counts
    return pairs - optimum


SMALL = [counts for size in range(1, 5) for counts in product(range(1, 5), repeat=size)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_all_small_cases_have_the_least_load_and_the_fewest_pairs(n):
    # Up to 4 keys with counts up to 4, four seeds each: measured 1.000 of the 1360 cases optimal.
    above = np.array([check(counts, n, seed) for counts in SMALL for seed in range(4)])
    assert above.max() <= n - 1
    assert (above == 0).mean() >= 0.99


@pytest.mark.parametrize(
    ("n", "n_keys", "high", "measured"),
    [(2, 6, 9, 0.807), (3, 6, 9, 0.927), (3, 7, 12, 0.893), (4, 6, 6, 0.96)],
)
def test_larger_cases_have_the_least_load_and_mostly_the_fewest_pairs(n, n_keys, high, measured):
    # Random counts, one seed each; the share of optimal cases as measured, with a margin for other ties.
    rng = np.random.default_rng(0)
    above = np.array([check(rng.integers(1, high + 1, n_keys).tolist(), n, seed) for seed in range(150)])
    assert above.max() <= n - 1
    assert (above == 0).mean() >= measured - 0.05


def test_hand_derived_decisions(keys_with):
    # n = 2, a five times, b twice, c once: C = 4. a fills its home 0 and has 1 left. By size b (2), a, c: b
    # fits at home, 1; a no longer does and goes to 1, and so does c, whose home 0 is full too.
    a, b, c = keys_with([(0,), (1,), (0,)], n=2)
    stream, expected = [a, b, a, c, a, b, a, a], [0, 1, 0, 1, 0, 1, 0, 1]
    assert Oracle(n_workers=2).route(stream).tolist() == expected


def test_hand_derived_cut(keys_with):
    # Counts 3 3 2, C = 4. a at home in 0; b's home 0 has only 1 left, so 1. c finds 1 and 1: cut, home first.
    a, b, c = keys_with([(0,), (0,), (1,)], n=2)
    stream, expected = [a, a, a, b, b, b, c, c], [0, 0, 0, 1, 1, 1, 1, 0]
    assert Oracle(n_workers=2).route(stream).tolist() == expected


def test_hand_derived_whole_workers(keys_with):
    # n = 3, counts 5 4 2 1: C = 4. a fills its home 0, 1 left; b fills 1, its home 0 being taken. Then c (2)
    # at home in 2, then a's last (1) and d (1): the only room is in 2.
    a, b, c, d = keys_with([(0,), (0,), (2,), (1,)], n=3)
    stream = [a] * 5 + [b] * 4 + [c] * 2 + [d]
    assert Oracle(n_workers=3).route(stream).tolist() == [0] * 4 + [2] + [1] * 4 + [2, 2] + [2]


def test_hand_derived_next_worker_and_memory(keys_with):
    # Counts 5 4 3 2 2, C = ⌈16 / 3⌉ = 6. a at home in 0, b in 2, e in 1: rooms 1 3 2. c's home 0 has too few,
    # the next worker is 1, with room to spare; d at home in 2, which it fills.
    a, b, c, d, e, x = keys_with([(0,), (2,), (0,), (2,), (1,), (0,)], n=3)
    partitioner = Oracle(n_workers=3)
    stream = [a] * 5 + [b] * 4 + [c] * 2 + [d] * 2 + [e] * 3
    assert partitioner.route(stream).tolist() == [0] * 5 + [2] * 4 + [1] * 2 + [2] * 2 + [1] * 3
    # c stays where it was, in 1, also after a batch without it; a new x is at home in 0.
    assert partitioner.route([a, a, b, b, e, e]).tolist() == [0, 0, 2, 2, 1, 1]
    assert partitioner.route([c, c, x, d]).tolist() == [1, 1, 0, 2]
    # Forgotten by a reset, c would be at home in 0 and x beside it.
    partitioner.reset()
    assert partitioner.route([c, c, x, d]).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, plan, n, s, seed):
    keys = zipf(4_000, s=s, seed=seed).tolist()
    partitioner, home = Oracle(n_workers=n, seed=seed), {}
    for batch in (keys[:999], keys[999:1_003], keys[1_003:2_000], keys[2_000:]):
        counts = Counter(batch)
        hashed = candidates(np.array(list(counts)), family(seed, 1), n)[0].tolist()
        home = dict(zip(counts, hashed, strict=True)) | home
        capacity = math.ceil(len(batch) / n)
        made, rest = plan(n, capacity), dict(counts)
        for key in sorted(rest, key=lambda key: -rest[key]):
            around = [(home[key] + j) % n for j in range(n)]
            while rest[key] >= capacity:
                made.put(key, next(w for w in around if made.room[w] == capacity), capacity)
                rest[key] -= capacity
        for key in sorted(rest, key=lambda key: -rest[key]):
            made.fit(key, home[key], rest[key], tight=False)
        # What it got first is where the next batch looks for a key first.
        home |= {key: workers[0] for key, workers in made.parts.items()}
        workers = partitioner.route(batch).tolist()
        assert workers == made.deal(batch)
        assert max(Counter(workers).values()) == capacity
        lower = sum(math.ceil(count / capacity) for count in counts.values())
        assert lower <= pairs_of(batch, workers) <= lower + n - 1


def test_consecutive_batches_agree_on_most_keys(zipf):
    # Two batches of one stream, against a second oracle that has not seen the first one.
    keys = zipf(4_000, s=0.8, n_keys=200, seed=1)
    first, second = keys[:2_000].tolist(), keys[2_000:].tolist()
    partitioner = Oracle(n_workers=8)
    before = set(zip(first, partitioner.route(first).tolist(), strict=True))
    after = set(zip(second, partitioner.route(second).tolist(), strict=True))
    afresh = set(zip(second, Oracle(n_workers=8).route(second).tolist(), strict=True))
    assert len(before & after) > 0.8 * len(after)
    assert len(before & after) > len(before & afresh)


@pytest.mark.parametrize(
    ("fields", "field"), [({"n_workers": 0}, "n_workers"), ({"n_workers": 2, "seed": -1}, "seed")]
)
def test_bad_parameters(refused, fields, field):
    assert refused(Oracle, **fields).startswith(f"{field} = ")
