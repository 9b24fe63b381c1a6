"""The Q-table against a plain dictionary: rows, argmax with its tie rule, fragments of the window."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.agents.qtable import (
    FREE,
    forget_values,
    more_rows,
    qtable,
    release,
    row_of,
    set_value,
    stamp,
    take_row,
    turn,
)
from dalton.envs.table import EMPTY


def check_argmax(t, row, model):
    """``best`` is the first of the largest; ``bound`` is not below any other value."""
    assert t.q[row].tolist() == model
    best = int(t.best[row])
    assert best == model.index(max(model))
    assert all(t.bound[row] >= value for j, value in enumerate(model) if j != best)
    assert t.bound[row] <= max(model)


def test_a_new_row_is_empty():
    t = qtable(n=3, slides=2, rows=4)
    row = take_row(t, -7, 2)
    forget_values(t, row, -2.0)
    assert row_of(t, -7) == row
    assert row_of(t, 7) == EMPTY
    assert t.keys[row] == -7
    assert t.home[row] == 2
    assert t.fragments[row] == t.tuples[row] == t.share[row] == t.visits[row] == 0
    check_argmax(t, row, [-2.0, -2.0, -2.0])
    assert t.spare[0] == 3


def test_nothing_of_the_last_key_remains_in_a_row_taken_again():
    t = qtable(n=3, slides=2, rows=1)
    row = take_row(t, 5, 1)
    forget_values(t, row, -2.0)
    set_value(t, row, 1, 0.5)
    for worker in range(3):
        stamp(t, row, worker, worker // 2, -2)
    t.tuples[row], t.share[row], t.visits[row], t.until[row] = 9, 2.5, 7, 3
    release(t, row)
    assert t.until[row] == FREE
    assert row_of(t, 5) == EMPTY
    assert take_row(t, 6, 0) == row
    forget_values(t, row, -2.0)
    assert row_of(t, 6) == row
    assert row_of(t, 5) == EMPTY
    assert t.fragments[row] == t.tuples[row] == t.share[row] == t.visits[row] == t.home[row] == 0
    assert t.ages[row].tolist() == [0, 0]
    check_argmax(t, row, [-2.0, -2.0, -2.0])
    # No stamp is left: the worker counts anew.
    stamp(t, row, 2, 1, -1)
    assert t.fragments[row] == 1


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    n=st.integers(1, 7),
    initial=st.sampled_from([-2.0, 0.0]),
    # Few different values, so that there are many ties.
    changes=st.lists(
        st.tuples(st.integers(0, 6), st.one_of(st.sampled_from([-1.0, -0.5, 0.0]), st.floats(-1, 1))),
        max_size=40,
    ),
)
def test_best_is_the_first_of_the_largest(n, initial, changes):
    t = qtable(n, 1, 2)
    take_row(t, 1, 0)
    row = take_row(t, 2, 0)
    other = 1 - row
    for used in (row, other):
        forget_values(t, used, initial)
    model = [initial] * n
    for action, value in changes:
        set_value(t, row, action % n, value)
        model[action % n] = value
        check_argmax(t, row, model)
    check_argmax(t, other, [initial] * n)
    forget_values(t, row, initial)
    check_argmax(t, row, [initial] * n)


def test_updates_as_the_bandit_makes_them():
    # Mostly the best action, moved by a step: the bound goes stale, which a random choice hardly ever shows.
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 64):
        t = qtable(n, 1)
        row = take_row(t, 3, 0)
        forget_values(t, row, 0.0)
        model, changed = [0.0] * n, 0
        for _ in range(1_500):
            action = int(t.best[row]) if rng.random() < 0.8 else int(rng.integers(n))
            # Rounded, so that values meet.
            model[action] = round(model[action] + 0.1 * (rng.uniform(-1, 0.5) - model[action]), 2)
            before = int(t.best[row])
            set_value(t, row, action, model[action])
            check_argmax(t, row, model)
            changed += before != t.best[row]
        assert (changed > 50) == (n > 1)


KEYS = st.one_of(st.integers(0, 30), st.sampled_from([-(2**63), 2**63 - 1, -1]))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=80))
def test_rows_are_found_after_any_takes_and_releases(changes):
    t, model = qtable(n=2, slides=1, rows=4), {}
    for key, release_it in changes:
        if key in model and release_it:
            release(t, model.pop(key))
        elif key not in model:
            if t.spare[0] == 0:
                t = more_rows(t)
            model[key] = take_row(t, key, key % 2)
        assert len(set(model.values())) == len(model)
        assert t.spare[0] == len(t.keys) - len(model)
        assert {key: row_of(t, key) for key in model} == model
    for key in (*range(31), -1, 2**63 - 1, -(2**63)):
        assert row_of(t, key) == model.get(key, EMPTY)


def test_many_takes_and_releases():
    # Far more than there are rows or slots: nothing is used up, and no probe gets lost.
    rng = np.random.default_rng(1)
    t, model = qtable(n=2, slides=1, rows=16), {}
    for key in rng.integers(-(2**63), 2**63 - 1, 3_000).tolist():
        if t.spare[0] == 0:
            for gone in rng.permutation(list(model))[: rng.integers(1, 16)].tolist():
                release(t, model.pop(gone))
        model[key] = take_row(t, key, 0)
        assert row_of(t, key) == model[key]
        assert len(t.keys) == 16
    assert {key: row_of(t, key) for key in model} == model
    assert (t.mark != EMPTY).sum() == len(model)


def test_more_rows_keeps_everything():
    n, slides = 3, 4
    t = qtable(n, slides, rows=3)
    rng = np.random.default_rng(2)
    for key in (11, -12, 13):
        row = take_row(t, key, key % n)
        forget_values(t, row, -2.0)
        for _ in range(10):
            set_value(t, row, int(rng.integers(n)), float(rng.uniform(-1, 1)))
        for slide in range(4):
            stamp(t, row, int(rng.integers(n)), slide, slide - slides)
        t.until[row], t.visits[row], t.tuples[row], t.share[row] = rng.integers(1, 9, 4)
    release(t, row_of(t, -12))
    grown = more_rows(t)
    assert grown.q.shape == (6, n)
    assert row_of(grown, -12) == EMPTY
    assert grown.spare[0] == 4
    free = set(grown.spare[1:5].tolist())
    assert free == {row for row in range(6) if grown.until[row] == FREE}
    for key in (11, 13):
        row = row_of(t, key)
        assert row_of(grown, key) == row
        for name in set(t._fields) - {"table", "mark", "spare"}:
            np.testing.assert_array_equal(getattr(grown, name)[row], getattr(t, name)[row])
    # All free rows can be taken, and the old ones are still found.
    taken = {int(take_row(grown, key, 0)) for key in range(100, 104)}
    assert taken == free
    assert grown.spare[0] == 0
    assert [row_of(grown, key) for key in (11, 13)] == [row_of(t, key) for key in (11, 13)]


class Fragments:
    """Where keys were within the window, by definition; one only on worker 0 is dropped, unless hot."""

    def __init__(self, slides):
        self.slides, self.slide, self.sent, self.until = slides, 0, defaultdict(dict), {}

    def holders(self, key):
        return {w for w, slide in self.sent[key].items() if slide > self.slide - self.slides}

    def turn(self, slide, window):
        self.slide = slide
        for key in [key for key, until in self.until.items() if until < window]:
            if not self.holders(key) - {0}:
                del self.until[key], self.sent[key]


@pytest.mark.parametrize("slides", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_fragments_expire_with_the_window(slides, seed):
    # Random tuples of 12 keys over 6 workers, which go quiet now and then; slides pass one by one or with a
    # gap (of more than the window too). A key is hot for two STATS_WINs, which are slides here.
    rng = np.random.default_rng(10 * slides + seed)
    n, t, model, dropped, gone = 6, qtable(6, slides, rows=4), Fragments(slides), 0, 0
    slide = 0
    for _ in range(250):
        awake = rng.choice(12, 3, replace=False)
        for key in rng.choice(awake, 5).tolist():
            row = row_of(t, key)
            assert (row != EMPTY) == (key in model.until)
            if row == EMPTY:
                if t.spare[0] == 0:
                    t = more_rows(t)
                row = take_row(t, key, 0)
                t.until[row] = model.until[key] = slide + 1
            worker = int(rng.integers(n))
            stamp(t, row, worker, slide, slide - slides)
            model.sent[key][worker] = slide
            assert t.fragments[row] == len(model.holders(key))
        passed = int(rng.choice([1, 1, 1, 2, slides, slides + 3]))
        slide += passed
        before = {key: len(model.holders(key)) for key in model.until}
        turn(t, slide, passed, slide)
        model.turn(slide, slide)
        dropped += len(before) - len(model.until)
        for key, many in before.items():
            row = row_of(t, key)
            assert (row == EMPTY) == (key not in model.until)
            if row != EMPTY:
                holders = model.holders(key)
                assert t.fragments[row] == t.ages[row].sum() == len(holders)
                assert {w for w in range(n) if t.stamps[row, w] > slide - slides} == holders
                gone += many > len(holders)
    # Keys were dropped, and keys that stayed lost workers (hot ones also all of them).
    assert dropped > 50
    assert gone > 20


def test_fragments_by_hand():
    # A window of 3 slides. Slide 0: to 0 and 1. Slide 1: to 1 again, which then expires with slide 1.
    t = qtable(n=4, slides=3)
    row = take_row(t, 8, 0)
    t.until[row] = 0
    for slide, worker, fragments in ((0, 0, 1), (0, 1, 2), (0, 0, 2), (1, 1, 2), (1, 3, 3)):
        stamp(t, row, worker, slide, slide - 3)
        assert t.fragments[row] == fragments
    turn(t, 2, 1, 2)
    assert t.fragments[row] == 3
    turn(t, 3, 1, 3)  # slides 1 to 3: on 1 and 3
    assert t.fragments[row] == 2
    stamp(t, row, 0, 3, 0)
    assert t.fragments[row] == 3
    turn(t, 4, 1, 4)  # slides 2 to 4: on 0
    assert t.fragments[row] == 1
    turn(t, 6, 2, 6)  # slides 4 to 6: nowhere, and no longer hot
    assert row_of(t, 8) == EMPTY


def test_a_hot_key_keeps_its_row_without_fragments():
    t = qtable(n=2, slides=1)
    hot, cold = take_row(t, 1, 0), take_row(t, 2, 0)
    t.until[hot], t.until[cold] = 5, 4
    for row in (hot, cold):
        stamp(t, row, 0, 4, 3)
    turn(t, 5, 1, 5)
    assert t.fragments[hot] == 0
    assert row_of(t, 1) == hot
    assert row_of(t, 2) == EMPTY
