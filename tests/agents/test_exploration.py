"""Exploration: the generator, and where each rule sends a tuple on hand-made states."""

from collections import Counter

import numpy as np
import pytest

from dalton.agents.exploration import FRAGMENTS, LEAST_LOADED, RULES, SHARE, SPARE, UNIFORM, draw, explore
from dalton.envs.frequency import NEVER

N = 8


def generator(state=1):
    return np.array([state], np.uint64)


def stamps_of(*workers, slide=10, rest=NEVER):
    """Last slides of a key that is on the given workers."""
    stamps = np.full(N, rest, np.int32)
    stamps[list(workers)] = slide
    return stamps


def pick(rule, load, stamps, fragments, share=0.0, random=None, oldest=5):
    random = generator() if random is None else random
    return explore(rule, random, np.array(load), stamps, oldest, fragments, share)


def test_the_generator_by_hand():
    # Knuth's MMIX: x <- 6364136223846793005 x + 1442695040888963407 mod 2**64; the upper 53 bits.
    random, state = generator(7), 7
    for _ in range(5):
        state = (6364136223846793005 * state + 1442695040888963407) % 2**64
        assert draw(random) == (state >> 11) / 2**53
        assert random[0] == state


def test_extreme_draws_are_in_range():
    # The states before 0 and before 2**64 - 1, whose upper bits are all zeros and all ones.
    inverse = pow(6364136223846793005, -1, 2**64)
    for state, expected in ((0, 0.0), (2**64 - 1, 1 - 2**-53)):
        before = (state - 1442695040888963407) * inverse % 2**64
        assert draw(generator(before)) == expected
        for rule in (UNIFORM, FRAGMENTS):
            worker = pick(rule, [0] * N, stamps_of(2, 6), 2, random=generator(before))
            first, last = (0, N - 1) if rule == UNIFORM else (2, 6)
            assert worker == (last if expected else first)


def test_draws_are_uniform():
    # χ² of 50 000 draws in 64 cells: 63 expected, standard deviation sqrt(126) = 11.2. Measured 57 to 88 for
    # these seeds; the bound is at five standard deviations. So are pairs of draws in 8 x 8 cells.
    for seed in (1, 2**63, 0xDEADBEEF):
        random = generator(seed)
        draws = np.array([draw(random) for _ in range(50_000)])
        assert draws.min() >= 0
        assert draws.max() < 1
        pairs = np.floor(draws[0::2] * 8) * 8 + np.floor(draws[1::2] * 8)
        for cells in (np.floor(draws * 64), pairs):
            counts = np.bincount(cells.astype(int), minlength=64)
            expected = len(cells) / 64
            assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * 11.2


def test_uniform_takes_any_worker_alike():
    # 16 000 picks, 2000 per worker: standard deviation sqrt(16 000 · 1/8 · 7/8) = 42; five of them.
    random = generator(3)
    counts = Counter(pick(UNIFORM, [9] * 7 + [0], stamps_of(1), 1, random=random) for _ in range(16_000))
    assert set(counts) == set(range(N))
    assert all(abs(count - 2_000) < 210 for count in counts.values())


@pytest.mark.parametrize(
    ("load", "expected"),
    [([5, 4, 3, 2, 1, 6, 7, 8], 4), ([3, 1, 1, 3, 1, 3, 3, 3], 1), ([0] * 8, 0), ([1] * 7 + [0], 7)],
)
def test_least_loaded_takes_the_first_with_the_least(load, expected):
    random = generator()
    assert pick(LEAST_LOADED, load, stamps_of(2), 1, random=random) == expected
    assert random[0] == 1  # nothing is drawn


def test_fragments_takes_only_workers_that_hold_the_key():
    # On 1, 4 and 6; 3 had it in a slide that has left the window (5 is the last that has). Three alike: 4000
    # of 12 000, standard deviation sqrt(12 000 · 1/3 · 2/3) = 52; five of them.
    stamps = stamps_of(1, 4, 6)
    stamps[[3, 4]] = 5, 6
    random = generator(4)
    counts = Counter(pick(FRAGMENTS, [0] * N, stamps, 3, random=random) for _ in range(12_000))
    assert set(counts) == {1, 4, 6}
    assert all(abs(count - 4_000) < 260 for count in counts.values())


def test_fragments_of_a_key_that_is_nowhere_takes_any_worker():
    random = generator(5)
    stamps = stamps_of(rest=5)
    assert {pick(FRAGMENTS, [0] * N, stamps, 0, random=random) for _ in range(300)} == set(range(N))


@pytest.mark.parametrize(
    ("share", "fragments", "splits"),
    [
        # Up to ⌈n f / L⌉ + 4 workers.
        (0.0, 3, True),
        (0.0, 4, False),
        (0.2, 4, True),
        (0.2, 5, False),
        (1.0, 4, True),
        (1.0, 5, False),
        (2.5, 6, True),
        (2.5, 7, False),
        (8.0, 7, True),
    ],
)
def test_share_splits_while_the_key_needs_more_workers(share, fragments, splits):
    # 7 is the lightest; of those that hold the key the last, fragments - 1, is.
    assert SPARE == 4
    load = [20, 19, 18, 17, 16, 15, 14, 1]
    random = generator()
    worker = pick(SHARE, load, stamps_of(*range(fragments)), fragments, share, random)
    assert worker == (7 if splits else fragments - 1)
    assert random[0] == 1


def test_share_takes_the_lightest_holder_and_the_first_of_equals():
    # On 1, 2, 4, 5 and 6; 0, 3 and 7 are lighter, and 3 and 7 had the key before the window.
    stamps = stamps_of(1, 2, 4, 5, 6)
    stamps[[3, 7]] = 5, 4
    assert pick(SHARE, [0, 9, 5, 0, 4, 4, 8, 0], stamps, 5, 1.0) == 4
    assert pick(SHARE, [0, 3, 5, 0, 4, 4, 8, 0], stamps, 5, 1.0) == 1


def test_codes_are_the_places_of_the_names():
    assert [RULES[code] for code in (UNIFORM, LEAST_LOADED, FRAGMENTS, SHARE)] == [
        "uniform",
        "least_loaded",
        "fragments",
        "share",
    ]
