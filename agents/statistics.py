"""Which keys are hot: frequency statistics over a tumbling window STATS_WIN (Dalton Sections 3.3 and 5.3).

A statistic estimates f, the tuples of a key in the current STATS_WIN, while the tuples pass. All of them are
one `Stats` with arrays only for the kind in use. A new one is a kind below, its arrays in `stats`, and its
branch in `observe` and `begin`.

- ``exact``: a count per key, in a table whose slots carry the number of their STATS_WIN.
- ``sketch``: a count-min sketch (Cormode and Muthukrishnan). f is never too low, and too high by more than
  e / columns of the window's tuples with probability e**-rows; sized here to resolve a quarter of the
  threshold. (The authors' 40 columns cannot tell a hot key from a cold one above a few workers.)
- ``hybrid``: exact while a window has few distinct keys, a sketch after one that had many.
- ``space_saving``: the SpaceSaving summary, four entries per possible hot key.
- ``given``: none; what is hot is decided from outside (micro-batches).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.frequency import (
    NEVER,
    RECENT,
    SpaceSaving,
    clear,
    count_recent,
    grown_recent,
    offer,
    space_saving,
)
from dalton.envs.hashing import mix64
from dalton.envs.kernel import kernel
from dalton.envs.table import is_full

KINDS = ("exact", "sketch", "hybrid", "space_saving", "given")
EXACT, SKETCH, HYBRID, SUMMARY, GIVEN = range(5)
SKETCH_ROWS = 4
KIND, ACTIVE, LIMIT, WINDOW = range(4)


class Stats(NamedTuple):
    """Arrays of a statistic."""

    mode: NDArray[np.int64]
    """The kind, the kind in use now (a hybrid changes it), its limit, the number of STATS_WINs begun."""
    seen: NDArray[Any]
    """Slots of the exact counts (`RECENT`)."""
    used: NDArray[np.int64]
    """Slots in use in this STATS_WIN."""
    sketch: NDArray[np.int32]
    """``(rows, columns)``, columns a power of two."""
    touched: NDArray[np.int8]
    """Cells to which a key of the current STATS_WIN hashes: a hybrid's idea of how many there are."""
    summary: SpaceSaving


def stats(kind: str, hot_keys: float, limit: int) -> Stats:
    """An empty statistic.

    Args:
        kind: One of KINDS.
        hot_keys: The most keys that can be hot, c n: what sketch and summary must tell apart.
        limit: Distinct keys in a STATS_WIN above which a hybrid sketches the next.
    """
    code = KINDS.index(kind)
    active = EXACT if code == HYBRID else code
    columns = 1 << math.ceil(math.log2(4 * math.e * hot_keys)) if code in (SKETCH, HYBRID) else 1
    summary = space_saving(math.ceil(4 * hot_keys) if code == SUMMARY else 1)
    mode = np.array([code, active, limit, 0])
    seen = np.zeros(1024 if active == EXACT else 4, RECENT)
    sketch = np.zeros((SKETCH_ROWS, columns), np.int32)
    # Linear counting is good to within a few per cent while a cell has a key or two.
    touched = np.zeros(1 << max(6, (limit - 1).bit_length()) if code == HYBRID else 1, np.int8)
    return Stats(mode, seen, np.zeros(1, np.int64), sketch, touched, summary)


@kernel
def has_place(s: Any) -> Any:
    """Whether one more key fits; if not, the kernel returns and Python calls `grown_stats`."""
    return s.mode[ACTIVE] != EXACT or not is_full(s.seen, s.used)


@kernel
def observe(s: Any, slide: Any, key: Any) -> Any:
    """Count a tuple; returns f with it, and the slide in which the key was last seen before (or NEVER).

    That slide is looked for in this STATS_WIN only, where a key that becomes hot has been before unless one
    tuple is enough for it.
    """
    active = s.mode[ACTIVE]
    if active == EXACT:
        return count_recent(s.seen, s.used, s.mode[WINDOW], slide, key)
    f, last = np.int64(0), np.int64(NEVER)
    if active == SKETCH:
        rows, columns = s.sketch.shape
        # Two halves of one hash make the rows' columns (Kirsch and Mitzenmacher, 2006).
        h = mix64(key)
        step = (h >> np.uint64(32)) | np.uint64(1)
        f = np.int64(2**31)
        for row in range(rows):
            column = np.int64(h & np.uint64(columns - 1))
            s.sketch[row, column] += 1
            f = min(f, np.int64(s.sketch[row, column]))
            h += step
        if s.mode[KIND] == HYBRID:
            s.touched[np.int64(step >> np.uint64(1)) & (len(s.touched) - 1)] = 1
    elif active == SUMMARY:
        entry = offer(s.summary, key)
        f = s.summary.counts[entry]
    if f > 1:
        last = np.int64(slide)
    return f, last


@kernel
def begin(s: Any) -> None:
    """Begin a STATS_WIN."""
    mode, sketch = s.mode, s.sketch
    if mode[KIND] == HYBRID:
        if mode[ACTIVE] == EXACT:
            many = s.used[0] > mode[LIMIT]
        else:
            # Linear counting (Whang et al., 1990): distinct keys from the cells that none hashed to.
            cells = len(s.touched)
            empty = cells - s.touched.sum()
            many = empty == 0 or -cells * np.log(empty / cells) > mode[LIMIT]
        s.touched[:] = 0
        mode[ACTIVE] = SKETCH if many else EXACT
    s.used[0] = 0
    mode[WINDOW] += 1
    if mode[ACTIVE] == SKETCH:
        sketch[:] = 0
    elif mode[ACTIVE] == SUMMARY:
        clear(s.summary)


def grown_stats(s: Stats) -> Stats:
    """A copy with room for more keys."""
    return s._replace(seen=grown_recent(s.seen, int(s.mode[WINDOW])))
