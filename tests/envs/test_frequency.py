"""Counts against a Counter, and the guarantees of SpaceSaving against the true counts and a plain model."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dalton.envs.frequency import count, offer, space_saving
from dalton.envs.table import EMPTY, KeyMap, find, is_full

LOW, HIGH = -(2**63), 2**63 - 1
KEYS = [LOW, -1, 0, 1, 2, 3, 5, 8, 13, HIGH]
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=150)


def entries(summary) -> dict[int, tuple[int, int]]:
    """Estimated count and error of every monitored key."""
    used = int(summary.size[0])
    rows = zip(summary.keys[:used], summary.counts[:used], summary.errors[:used], strict=True)
    found = {int(key): (int(estimate), int(error)) for key, estimate, error in rows}
    assert len(found) == used, "a key has two entries"
    return found


def check_structure(summary) -> None:
    """The heap is one, its inverse is right, and the index knows exactly the monitored keys."""
    used = int(summary.size[0])
    heap = summary.heap[:used]
    assert sorted(heap.tolist()) == list(range(used))
    assert summary.place[heap].tolist() == list(range(used))
    for at in range(1, used):
        assert summary.counts[heap[(at - 1) // 2]] <= summary.counts[heap[at]]
    taken = summary.mark != EMPTY
    index = dict(zip(summary.table[taken].tolist(), summary.mark[taken].tolist(), strict=True))
    assert index == {int(key): entry for entry, key in enumerate(summary.keys[:used])}
    for key, entry in index.items():
        assert summary.mark[find(summary.table, summary.mark, key)] == entry


def check_guarantees(summary, truth: Counter, capacity: int) -> None:
    """Metwally et al., Lemmas 3.2 to 3.4 and Theorem 3.5, by the true counts ``truth``."""
    m = truth.total()
    found = entries(summary)
    assert summary.size[1] == m
    # Every tuple raises one count by one, so the counts add up to m.
    assert sum(estimate for estimate, _ in found.values()) == m
    least = min(estimate for estimate, _ in found.values()) if len(found) == capacity else 0
    assert least <= m / capacity
    for key, (estimate, error) in found.items():
        assert truth[key] <= estimate <= truth[key] + m / capacity
        assert estimate - error <= truth[key]
        assert error <= least
    for key, f in truth.items():
        assert key in found or f <= least
        if f > m / capacity:
            assert key in found


class Model:
    """SpaceSaving in words: a full summary renames the entry of the least count, which one is given."""

    def __init__(self, capacity):
        self.capacity, self.kept = capacity, {}

    def offer(self, key, evicted):
        if key in self.kept:
            estimate, error = self.kept[key]
            self.kept[key] = estimate + 1, error
        elif len(self.kept) < self.capacity:
            self.kept[key] = 1, 0
        else:
            estimate, _ = self.kept.pop(evicted)
            assert estimate <= min((e for e, _ in self.kept.values()), default=estimate)
            self.kept[key] = estimate + 1, estimate


@FIXED
@given(st.integers(1, 7), st.lists(st.sampled_from(KEYS), min_size=1, max_size=80))
@example(1, [1, 2, 1, 2, 2])
@example(3, [0, 0, 1, 2, 3, 0, LOW, HIGH])
def test_summary_matches_the_model_and_its_guarantees_after_every_tuple(capacity, keys):
    summary, model, truth = space_saving(capacity), Model(capacity), Counter()
    for key in keys:
        before = set(entries(summary))
        entry = offer(summary, key)
        assert summary.keys[entry] == key
        gone = before - set(entries(summary))
        assert len(gone) <= 1
        truth[key] += 1
        model.offer(key, next(iter(gone), None))
        assert entries(summary) == model.kept
        check_structure(summary)
        check_guarantees(summary, truth, capacity)


@pytest.mark.parametrize("capacity", [1, 10, 100, 1_000])
@pytest.mark.parametrize("exponent", [1.05, 1.5, 3.0])
def test_guarantees_hold_on_a_skewed_stream(capacity, exponent):
    rng = np.random.default_rng(capacity)
    keys = rng.zipf(exponent, 6_000) * 0x9E3779B97F4A7C1 % 2**40
    summary, truth = space_saving(capacity), Counter()
    for start in range(0, len(keys), 1_500):
        part = keys[start : start + 1_500].tolist()
        for key in part:
            offer(summary, key)
        truth.update(part)
        check_structure(summary)
        check_guarantees(summary, truth, capacity)


def test_a_summary_that_holds_every_key_is_exact():
    rng = np.random.default_rng(1)
    keys = rng.integers(-20, 20, 3_000).tolist()
    summary = space_saving(40)
    for key in keys:
        offer(summary, key)
    assert entries(summary) == {key: (f, 0) for key, f in Counter(keys).items()}


def test_hand_derived_evictions():
    # Two entries. a a b: {a: 2, b: 1}. c takes the place of b with count 1 + 1, error 1. b takes the place
    # of one of a and c, both at 2: count 3, error 2. Then the other one at 2 gives way to d: count 3, error 2
    # as well.
    summary = space_saving(2)
    a, b, c, d = 10, 20, 30, 40
    for key in (a, a, b):
        offer(summary, key)
    assert entries(summary) == {a: (2, 0), b: (1, 0)}
    offer(summary, c)
    assert entries(summary) == {a: (2, 0), c: (2, 1)}
    offer(summary, b)
    assert entries(summary)[b] == (3, 2)
    offer(summary, d)
    assert entries(summary) == {b: (3, 2), d: (3, 2)}
    assert summary.size.tolist() == [2, 6]


@FIXED
@given(st.lists(st.one_of(st.sampled_from(KEYS), st.integers(LOW, HIGH)), max_size=60))
def test_count_is_exact(keys):
    table = KeyMap()
    for key in keys:
        count(table.keys, table.mark, table.used, key)
    taken = table.mark != EMPTY
    counted = dict(zip(table.keys[taken].tolist(), table.mark[taken].tolist(), strict=True))
    assert counted == Counter(keys)
    assert table.used[0] == len(counted)


def test_count_is_exact_across_growth():
    rng = np.random.default_rng(2)
    keys = (rng.zipf(1.2, 10_000) % 4_000).tolist()
    table = KeyMap()
    for key in keys:
        if is_full(table.keys, table.used):
            table.grow()
        count(table.keys, table.mark, table.used, key)
    truth = Counter(keys)
    assert len(table.keys) > 1_024
    assert table.used[0] == len(truth)
    assert {key: int(table.mark[find(table.keys, table.mark, key)]) for key in truth} == truth
