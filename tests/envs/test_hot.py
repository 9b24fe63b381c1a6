"""Rows of hot keys against a dict that keeps every tuple of every slide."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dalton.envs.hashing import member, worker_of
from dalton.envs.hot import NEVER, cool, heat, hot_rows, more_rows, row_of
from dalton.envs.table import EMPTY, find

LOW, HIGH = -(2**63), 2**63 - 1
SEED = member(3)
N, WINDOW = 4, 3
KEYS = [LOW, -1, 0, 1, 2, 3, HIGH]
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=150)


def counted(counts: Counter) -> tuple[np.ndarray, np.ndarray]:
    """Counts as a table with free slots in between, as `heat` reads them."""
    keys, values = np.zeros(2 * len(counts) + 1, np.int64), np.full(2 * len(counts) + 1, EMPTY, np.int32)
    keys[1::2], values[1::2] = list(counts), list(counts.values())
    return keys, values


def heated(rows, counts, least, now):
    """`heat`, on as many more rows as it asks for."""
    keys, values = counted(counts)
    while not heat(keys, values, least, now, SEED, *rows):
        rows = more_rows(rows)
    return rows


def row(rows, now, key) -> int:
    return int(row_of(rows.table, rows.mark, rows.until, now, key))


def check_structure(rows) -> None:
    """Every occupied row is indexed under its key, and nothing else is."""
    taken = rows.mark != EMPTY
    index = dict(zip(rows.table[taken].tolist(), rows.mark[taken].tolist(), strict=True))
    assert index == {int(rows.keys[r]): r for r in np.flatnonzero(rows.until != NEVER)}
    for key, r in index.items():
        assert rows.mark[find(rows.table, rows.mark, key)] == r


class Model:
    """Every tuple as (slide, key, worker); hot keys and where they have been follow by definition."""

    def __init__(self):
        self.tuples = []
        self.hot = {}

    def ends(self, now, least):
        counts = Counter(key for slide, key, _ in self.tuples if slide == now)
        self.hot[now + 1] = {key for key, c in counts.items() if c > least}
        return counts

    def holders(self, now, key):
        return [
            any(k == key and w == worker and now - WINDOW < slide for slide, k, worker in self.tuples)
            for w in range(N)
        ]


# A stream is slides of (key, step): a hot key goes `step` workers beyond its hashed one, others to that.
SLIDES = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, N - 1)), max_size=14), min_size=2, max_size=9
)


def run(slides, gaps, least, size):
    rows, model, now = hot_rows(N, size), Model(), 0
    for tuples, gap in zip(slides, gaps, strict=True):
        for key in KEYS:
            assert (row(rows, now, key) != EMPTY) == (key in model.hot.get(now, set()))
        for key, step in tuples:
            at = row(rows, now, key)
            worker = worker_of(key, SEED, N)
            if at != EMPTY:
                held = model.holders(now, key)
                assert [bool(stamp > now - WINDOW) for stamp in rows.stamps[at]] == held
                worker = (worker + step) % N
                rows.stamps[at, worker] = now
            model.tuples.append((now, key, worker))
        # As in the schemes: rows that can no longer matter go first; after a gap nothing is hot.
        cool(*rows[:4], now + gap - WINDOW)
        counts = model.ends(now, least)
        if gap == 1:
            rows = heated(rows, counts, least, now)
        else:
            model.hot[now + gap] = set()
        check_structure(rows)
        now += gap
        # What is left was hot in the window or is hot now.
        assert all(until > now - WINDOW for until in rows.until[rows.until != NEVER])
    return rows


@FIXED
@given(SLIDES, st.data(), st.integers(0, 3), st.sampled_from([1, 2, 8]))
def test_hot_keys_and_their_stamps_match_the_definitions(slides, data, least, size):
    gaps = data.draw(
        st.lists(st.sampled_from([1, 1, 1, 1, 2, 3, 5]), min_size=len(slides), max_size=len(slides))
    )
    run(slides, gaps, least, size)


@pytest.mark.parametrize("seed", range(6))
def test_long_streams_match_the_definitions(seed):
    rng = np.random.default_rng(seed)
    gaps = rng.choice([1, 1, 1, 1, 1, 1, 2, 4], 40).tolist()
    hot = rng.choice(KEYS, (40, 3))
    slides = [
        [(int(key), int(rng.integers(N))) for key in [*rng.choice(row, 9), *rng.choice(KEYS, 3)]]
        for row in hot
    ]
    rows = run(slides, gaps, 2, 1)
    # It grew from one row, and no further than seven keys can need.
    assert len(rows.keys) in (4, 8)


def test_a_key_is_hot_in_the_slide_after_it_was_counted_more_often_than_least():
    rows = heated(hot_rows(N), Counter({5: 4, 6: 3, 7: 9}), 3, 10)
    assert row(rows, 11, 5) != EMPTY != row(rows, 11, 7)
    assert row(rows, 11, 6) == row(rows, 11, 99) == EMPTY
    # Neither in the slide of the counts nor after the next.
    assert row(rows, 10, 5) == row(rows, 12, 5) == EMPTY
    # Where it was counted it was at its hashed worker.
    stamps = rows.stamps[row(rows, 11, 5)].tolist()
    home = worker_of(5, SEED, N)
    assert [stamps[w] == (10 if w == home else NEVER) for w in range(N)] == [True] * N


def test_a_fraction_of_the_tuples_can_be_the_least():
    rows = heated(hot_rows(N), Counter({5: 4, 6: 3}), 3.5, 0)
    assert row(rows, 1, 5) != EMPTY
    assert row(rows, 1, 6) == EMPTY


def test_a_key_that_stays_hot_keeps_its_stamps_and_gets_none():
    rows = heated(hot_rows(N), Counter({5: 4}), 3, 0)
    at = row(rows, 1, 5)
    away = (worker_of(5, SEED, N) + 1) % N
    rows.stamps[at, away] = 1
    before = rows.stamps[at].tolist()
    rows = heated(rows, Counter({5: 4}), 3, 1)
    # In slide 1 it was hot and may not have been at its hashed worker: only the scheme knows.
    assert row(rows, 2, 5) == at
    assert rows.stamps[at].tolist() == before


def test_a_key_hot_again_has_its_old_stamps_and_one_for_the_time_between():
    rows = heated(hot_rows(N), Counter({5: 4}), 3, 0)
    at = row(rows, 1, 5)
    home = worker_of(5, SEED, N)
    away = (home + 1) % N
    rows.stamps[at, away] = 1
    rows = heated(rows, Counter({5: 1}), 3, 1)
    assert row(rows, 2, 5) == EMPTY
    cool(*rows[:4], 3 - WINDOW)
    rows = heated(rows, Counter({5: 4}), 3, 2)
    assert row(rows, 3, 5) == at
    assert rows.stamps[at, [home, away]].tolist() == [2, 1]


@pytest.mark.parametrize(("oldest", "kept"), [(4, True), (5, False), (6, False)])
def test_cooling_frees_rows_last_hot_in_oldest_or_before(oldest, kept):
    rows = heated(hot_rows(N), Counter({5: 4, 6: 4}), 3, 4)
    rows = heated(rows, Counter({6: 4}), 3, 5)
    cool(*rows[:4], oldest)
    check_structure(rows)
    assert (rows.until != NEVER).sum() == (2 if kept else 1 if oldest < 6 else 0)
    assert (row(rows, 5, 5) != EMPTY) == kept
    assert (row(rows, 6, 6) != EMPTY) == (oldest < 6)


def test_a_freed_row_is_given_to_the_next_key_without_its_stamps():
    rows = heated(hot_rows(N, 1), Counter({5: 4}), 3, 0)
    rows.stamps[0] = 1
    cool(*rows[:4], 1)
    rows = heated(rows, Counter({6: 4}), 3, 1)
    assert len(rows.keys) == 1
    assert row(rows, 2, 6) == 0
    home = worker_of(6, SEED, N)
    assert rows.stamps[0].tolist() == [1 if w == home else NEVER for w in range(N)]


def test_heat_on_too_few_rows_says_so_and_can_be_called_again():
    keys, values = counted(Counter(dict.fromkeys(range(7), 4)))
    rows = hot_rows(N, 3)
    assert not heat(keys, values, 3, 0, SEED, *rows)
    check_structure(rows)
    rows = more_rows(rows)
    assert len(rows.keys) == 6
    check_structure(rows)
    assert not heat(keys, values, 3, 0, SEED, *rows)
    rows = more_rows(rows)
    assert heat(keys, values, 3, 0, SEED, *rows)
    check_structure(rows)
    assert sorted(row(rows, 1, key) for key in range(7)) == list(range(7))
    for key in range(7):
        stamps = rows.stamps[row(rows, 1, key)]
        assert np.flatnonzero(stamps == 0).tolist() == [worker_of(key, SEED, N)]


@FIXED
@given(st.integers(1, 9), st.lists(st.integers(LOW, HIGH), min_size=1, max_size=30, unique=True))
@example(1, KEYS)
def test_more_rows_keep_what_there_is_in_place(size, keys):
    rows = heated(hot_rows(N, size), Counter(dict.fromkeys(keys, 1)), 0, 0)
    rows.stamps[:, 1] = np.arange(len(rows.keys))
    more = more_rows(rows)
    assert len(more.keys) == 2 * len(rows.keys)
    check_structure(more)
    for key in keys:
        assert row(more, 1, key) == row(rows, 1, key)
        assert more.stamps[row(more, 1, key)].tolist() == rows.stamps[row(rows, 1, key)].tolist()
    assert (more.until[len(rows.keys) :] == NEVER).all()
    assert (more.stamps[len(rows.keys) :] == NEVER).all()
