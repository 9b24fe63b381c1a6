"""How often keys occur: exact counts, over a stream or a tumbling window, and the SpaceSaving summary."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.hashing import spread
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, capacity_for, find, remove

Ints = NDArray[np.int64]


@kernel
def count(table: Any, mark: Any, used: Any, key: Any) -> None:
    """Count ``key`` in a `KeyMap` whose values are counts (needs room: not `is_full`)."""
    slot = find(table, mark, key)
    if mark[slot] == EMPTY:
        table[slot] = key
        mark[slot] = 0
        used[0] += 1
    mark[slot] += 1


RECENT = np.dtype([("key", np.int64), ("window", np.int32), ("count", np.int32), ("last", np.int32)])
"""A key, the tumbling window of its count, the count, the slide in which it was last seen.

A slot of an earlier window counts as free: nothing has to be cleared when a window begins.
"""
NEVER = np.iinfo(np.int32).min


@kernel
def _recent_slot(slots: Any, window: Any, key: Any) -> Any:
    mask = len(slots) - 1
    at = spread(key) & mask
    while slots[at].window == window and slots[at].key != key:
        at = (at + 1) & mask
    return at


@kernel
def count_recent(slots: Any, used: Any, window: Any, slide: Any, key: Any) -> Any:
    """Count a tuple in tumbling window number ``window`` (>= 1); needs room, as a `KeyMap` does.

    Returns:
        The tuples of the key in the window, this one included, and the slide of the one before (NEVER if
        this is the first).
    """
    at = _recent_slot(slots, window, key)
    last, f = np.int64(NEVER), np.int64(1)
    if slots[at].window != window:
        slots[at].key = key
        slots[at].window = window
        slots[at].count = 1
        used[0] += 1
    else:
        last = np.int64(slots[at].last)
        slots[at].count += 1
        f = np.int64(slots[at].count)
    slots[at].last = slide
    return f, last


@kernel
def _move_recent(old: Any, new: Any, window: Any) -> None:
    for i in range(len(old)):
        if old[i].window == window:
            new[_recent_slot(new, window, old[i].key)] = old[i]


def grown_recent(slots: NDArray[Any], window: int) -> NDArray[Any]:
    """A copy of twice the size, with the counts of the window."""
    new = np.zeros(2 * len(slots), RECENT)
    _move_recent(slots, new, window)
    return new


class SpaceSaving(NamedTuple):
    """The c most frequent keys of a stream, approximately (Metwally, Agrawal, El Abbadi, ICDT 2005).

    Every estimate is at least the true count f and at most f + m / c after m tuples; every key with
    f > m / c is monitored. A min-heap over the counts finds the entry to replace in O(log c).
    """

    keys: Ints
    """``(c,)`` key of every entry."""
    counts: Ints
    """``(c,)`` estimated count."""
    errors: Ints
    """``(c,)`` by how much the estimate may be too high."""
    heap: Ints
    """``(c,)`` entries, the one with the least count first."""
    place: Ints
    """``(c,)`` where an entry is in the heap."""
    table: Ints
    """Keys of the index from key to entry."""
    mark: NDArray[np.int32]
    """Entries of that index."""
    size: Ints
    """Entries in use, tuples seen."""


def space_saving(capacity: int) -> SpaceSaving:
    """An empty summary of ``capacity`` entries."""
    slots = capacity_for(capacity, minimum=16)
    keys, counts, errors, heap, place = np.zeros((5, capacity), np.int64)
    table, mark = np.zeros(slots, np.int64), np.full(slots, EMPTY, np.int32)
    return SpaceSaving(keys, counts, errors, heap, place, table, mark, np.zeros(2, np.int64))


@kernel
def _sink(counts: Any, heap: Any, place: Any, size: Any, entry: Any) -> None:
    at = place[entry]
    while 2 * at + 1 < size[0]:
        child = 2 * at + 1
        if child + 1 < size[0] and counts[heap[child + 1]] < counts[heap[child]]:
            child += 1
        if counts[heap[child]] >= counts[entry]:
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = entry
    place[entry] = at


@kernel
def _rise(counts: Any, heap: Any, place: Any, entry: Any) -> None:
    at = place[entry]
    while at > 0 and counts[heap[(at - 1) // 2]] > counts[entry]:
        heap[at] = heap[(at - 1) // 2]
        place[heap[at]] = at
        at = (at - 1) // 2
    heap[at] = entry
    place[entry] = at


@kernel
def offer(summary: Any, key: Any) -> Any:
    """Count ``key``; returns its entry."""
    keys, counts, errors, heap, place, table, mark, size = summary
    size[1] += 1
    slot = find(table, mark, key)
    if mark[slot] != EMPTY:
        entry = np.int64(mark[slot])
        counts[entry] += 1
        _sink(counts, heap, place, size, entry)
        return entry
    if size[0] < len(keys):
        entry = size[0]
        size[0] += 1
        counts[entry] = 1
        place[entry] = entry
        _rise(counts, heap, place, entry)
    else:
        entry = heap[0]
        remove(table, mark, find(table, mark, keys[entry]))
        slot = find(table, mark, key)
        errors[entry] = counts[entry]
        counts[entry] += 1
        _sink(counts, heap, place, size, entry)
    keys[entry] = key
    table[slot] = key
    mark[slot] = entry
    return entry


@kernel
def clear(summary: Any) -> None:
    """Forget everything."""
    summary.counts[:] = 0
    summary.errors[:] = 0
    summary.mark[:] = EMPTY
    summary.size[:] = 0
