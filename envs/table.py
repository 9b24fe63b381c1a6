"""Open addressing over int64 keys: the one hash table of the project.

A table is two arrays of a power-of-two length, ``keys`` (int64) and ``mark`` (int32, ``EMPTY`` where the
slot is free, otherwise the caller's value), probed linearly from ``spread(key)``. Any int64 is a valid key.
Kernels stop when a table is full and say how far they came; Python grows it and calls again
(`KeyMap.drive`), so no kernel allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.hashing import spread
from dalton.envs.kernel import kernel

EMPTY = -1
# Linear probing stays short up to this share of occupied slots; a rehash aims at half of it.
MAX_FILL = 0.7


@kernel
def find(keys: Any, mark: Any, key: Any) -> Any:
    """Slot of ``key``, or the free slot where it belongs."""
    mask = len(keys) - 1
    slot = spread(key) & mask
    while mark[slot] != EMPTY and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def is_full(keys: Any, used: Any) -> Any:
    """Whether a new key needs a larger table; if so the kernel returns and Python calls `KeyMap.grow`."""
    return used[0] >= np.int64(len(keys) * MAX_FILL)


@kernel
def remove(keys: Any, mark: Any, slot: Any) -> None:
    """Free ``slot`` and shift back the entries that probed past it (no tombstones)."""
    mask = len(keys) - 1
    hole = slot
    probe = (slot + 1) & mask
    while mark[probe] != EMPTY:
        home = spread(keys[probe]) & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            keys[hole] = keys[probe]
            mark[hole] = mark[probe]
            hole = probe
        probe = (probe + 1) & mask
    mark[hole] = EMPTY


@kernel
def _reinsert(old_keys: Any, old_mark: Any, keys: Any, mark: Any) -> None:
    for i in range(len(old_keys)):
        if old_mark[i] != EMPTY:
            slot = find(keys, mark, old_keys[i])
            keys[slot] = old_keys[i]
            mark[slot] = old_mark[i]


@kernel
def _encode(keys: Any, table: Any, mark: Any, used: Any, codes: Any, distinct: Any, counts: Any) -> Any:
    for i in range(len(keys)):
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            if is_full(table, used):
                return i
            table[slot] = keys[i]
            mark[slot] = used[0]
            distinct[used[0]] = keys[i]
            counts[used[0]] = 0
            used[0] += 1
        codes[i] = mark[slot]
        counts[mark[slot]] += 1
    return len(keys)


def capacity_for(entries: int, minimum: int = 1024) -> int:
    """The power of two at which ``entries`` fill half of what is allowed."""
    return max(minimum, 1 << int(np.ceil(np.log2(max(entries, 1) * 2 / MAX_FILL))))


class KeyMap:
    """Growable map from int64 key to a non-negative int32 value; 17 to 34 bytes per key."""

    def __init__(self) -> None:
        self.keys: NDArray[np.int64] = np.zeros(1024, np.int64)
        self.mark: NDArray[np.int32] = np.full(1024, EMPTY, np.int32)
        self.used: NDArray[np.int64] = np.zeros(1, np.int64)

    def grow(self) -> None:
        """Double the table."""
        old_keys, old_mark = self.keys, self.mark
        self.keys = np.zeros(2 * len(old_keys), np.int64)
        self.mark = np.full(2 * len(old_keys), EMPTY, np.int32)
        _reinsert(old_keys, old_mark, self.keys, self.mark)

    def drive(self, total: int, step: Callable[[int], int]) -> None:
        """Call ``step(done)``, which returns how far it came, until ``total``; grow in between."""
        done = 0
        while True:
            done = step(done)
            if done >= total:
                return
            self.grow()


class Encoded(NamedTuple):
    """Keys of a batch as dense codes in order of first appearance."""

    codes: NDArray[np.int64]
    """``(m,)`` code of every tuple."""
    distinct: NDArray[np.int64]
    """``(K,)`` key of every code."""
    counts: NDArray[np.int64]
    """``(K,)`` tuples of every code."""


def encode(keys: NDArray[np.int64]) -> Encoded:
    """Dense codes and counts of a batch; what ``np.unique`` gives, without its sort."""
    table = KeyMap()
    codes = np.empty(len(keys), np.int64)
    distinct = np.empty(len(keys), np.int64)
    counts = np.empty(len(keys), np.int64)
    table.drive(
        len(keys),
        lambda done: (
            done + _encode(keys[done:], table.keys, table.mark, table.used, codes[done:], distinct, counts)
        ),
    )
    size = int(table.used[0])
    return Encoded(codes, distinct[:size].copy(), counts[:size].copy())
