"""Rows for hot keys: which keys were frequent in the slide that ended, and where they have been since.

A key is hot in a slide if it was counted often enough in the slide before. Hot keys have a row of n stamps,
the last slide in which the key went to each worker, so that a decision reads the key's fragments at once.
Other keys go to their hashed worker and need no row. A key that cools keeps its row for as long as one of
its stamps can lie in the window; when it becomes hot again, the tuples it had in between, all of them at the
hashed worker, are accounted for by one stamp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.hashing import worker_of
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, capacity_for, find, remove

NEVER = np.iinfo(np.int32).min


class HotRows(NamedTuple):
    """R rows, some of them free."""

    table: NDArray[np.int64]
    """Keys of the index from key to row."""
    mark: NDArray[np.int32]
    """Rows of that index."""
    keys: NDArray[np.int64]
    """``(R,)`` key of every row."""
    until: NDArray[np.int32]
    """``(R,)`` the last slide in which the key is hot; NEVER where the row is free."""
    stamps: NDArray[np.int32]
    """``(R, n)`` the last slide in which the key went to the worker."""


def hot_rows(n: int, size: int = 64) -> HotRows:
    """``size`` free rows for ``n`` workers."""
    slots = capacity_for(size, minimum=16)
    return HotRows(
        np.zeros(slots, np.int64),
        np.full(slots, EMPTY, np.int32),
        np.zeros(size, np.int64),
        np.full(size, NEVER, np.int32),
        np.full((size, n), NEVER, np.int32),
    )


@kernel
def row_of(table: Any, mark: Any, until: Any, now: Any, key: Any) -> Any:
    """The row of ``key`` if it is hot in slide ``now``, else EMPTY."""
    row = mark[find(table, mark, key)]
    if row != EMPTY and until[row] == now:
        return np.int64(row)
    return np.int64(EMPTY)


@kernel
def cool(table: Any, mark: Any, keys: Any, until: Any, oldest: Any) -> None:
    """Free the rows of keys that were last hot in slide ``oldest`` or before."""
    for row in range(len(keys)):
        if until[row] != NEVER and until[row] <= oldest:
            remove(table, mark, find(table, mark, keys[row]))
            until[row] = NEVER


@kernel
def heat(
    counted: Any,
    counts: Any,
    least: Any,
    now: Any,
    seed: Any,
    table: Any,
    mark: Any,
    keys: Any,
    until: Any,
    stamps: Any,
) -> Any:
    """Make hot in slide ``now`` + 1 what was counted more than ``least`` times in slide ``now``.

    Returns False if there are too few rows; it can then be called again on more of them.
    """
    rows, n = stamps.shape
    free = 0
    for i in range(len(counted)):
        if counts[i] == EMPTY or counts[i] <= least:
            continue
        slot = find(table, mark, counted[i])
        if mark[slot] == EMPTY:
            while free < rows and until[free] != NEVER:
                free += 1
            if free == rows:
                return False
            table[slot] = counted[i]
            mark[slot] = free
            keys[free] = counted[i]
            for w in range(n):
                stamps[free, w] = NEVER
        row = mark[slot]
        if until[row] < now:
            stamps[row, worker_of(counted[i], seed, n)] = now
        until[row] = now + 1
    return True


@kernel
def _index(table: Any, mark: Any, keys: Any, until: Any) -> None:
    for row in range(len(keys)):
        if until[row] != NEVER:
            slot = find(table, mark, keys[row])
            table[slot] = keys[row]
            mark[slot] = row


def more_rows(old: HotRows) -> HotRows:
    """Twice as many rows, the present ones in their places."""
    rows, n = old.stamps.shape
    new = hot_rows(n, 2 * rows)
    new.keys[:rows], new.until[:rows], new.stamps[:rows] = old.keys, old.until, old.stamps
    _index(new.table, new.mark, new.keys, new.until)
    return new
