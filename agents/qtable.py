"""The Q-table: a row of action values per hot key, with its fragments and its argmax at hand.

Actions are stored from the key's hashed worker on, action j of a key being worker (H(k) + j) mod n, so that
"the first of the largest" is the tie rule of the bandit: ties fall to the hashed worker, then clockwise. The
argmax is kept, with a bound on all other values: a row is scanned only when its best value falls below it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.frequency import NEVER
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, capacity_for, find, remove

FREE = np.iinfo(np.int64).min


class QTable(NamedTuple):
    """R rows, some of them free."""

    table: NDArray[np.int64]
    """Keys of the index from key to row."""
    mark: NDArray[np.int32]
    """Rows of that index."""
    keys: NDArray[np.int64]
    """``(R,)`` key of every row."""
    until: NDArray[np.int64]
    """``(R,)`` the last STATS_WIN in which the key is hot; FREE where the row is free."""
    home: NDArray[np.int32]
    """``(R,)`` the key's hashed worker."""
    visits: NDArray[np.int64]
    """``(R,)`` decisions since the key became hot."""
    tuples: NDArray[np.int64]
    """``(R,)`` tuples in the current STATS_WIN."""
    share: NDArray[np.float64]
    """``(R,)`` n f / L in the STATS_WIN before: the number of workers that the key would keep busy."""
    q: NDArray[np.float64]
    """``(R, n)`` values of the actions, from the hashed worker on."""
    best: NDArray[np.int64]
    """``(R,)`` the first action with the largest value."""
    bound: NDArray[np.float64]
    """``(R,)`` no other action has a value above it."""
    stamps: NDArray[np.int32]
    """``(R, n)`` the last slide in which the key went to each worker (by worker, not by action)."""
    ages: NDArray[np.int32]
    """``(R, W/s)`` workers whose stamp is of that slide, by slide mod W/s."""
    fragments: NDArray[np.int64]
    """``(R,)`` ||X_w(k)||: workers with a stamp in the window."""
    sent: NDArray[np.float64]
    """``(R, n)`` tuples sent to each worker since the key became hot, `faded` up to the stamp's slide."""
    spare: NDArray[np.int64]
    """``(R + 1,)`` the number of free rows, and which."""


def qtable(n: int, slides: int, rows: int = 16) -> QTable:
    """A table of ``rows`` free rows for ``n`` workers and a window of ``slides`` slides."""
    slots = capacity_for(rows, minimum=16)
    return QTable(
        table=np.zeros(slots, np.int64),
        mark=np.full(slots, EMPTY, np.int32),
        keys=np.zeros(rows, np.int64),
        until=np.full(rows, FREE),
        home=np.zeros(rows, np.int32),
        visits=np.zeros(rows, np.int64),
        tuples=np.zeros(rows, np.int64),
        share=np.zeros(rows),
        q=np.zeros((rows, n)),
        best=np.zeros(rows, np.int64),
        bound=np.zeros(rows),
        stamps=np.full((rows, n), NEVER, np.int32),
        ages=np.zeros((rows, slides), np.int32),
        fragments=np.zeros(rows, np.int64),
        sent=np.zeros((rows, n)),
        spare=np.concatenate([[rows], np.arange(rows)[::-1]]),
    )


def more_rows(old: QTable) -> QTable:
    """Twice as many rows, the present ones in their places."""
    rows, n = old.q.shape
    new = qtable(n, old.ages.shape[1], 2 * rows)
    for name in set(QTable._fields) - {"table", "mark", "spare"}:
        getattr(new, name)[:rows] = getattr(old, name)
    free = np.flatnonzero(new.until == FREE)[::-1]
    new.spare[0] = len(free)
    new.spare[1 : 1 + len(free)] = free
    _index(new.table, new.mark, new.keys, new.until)
    return new


@kernel
def _index(table: Any, mark: Any, keys: Any, until: Any) -> None:
    for row in range(len(keys)):
        if until[row] != FREE:
            slot = find(table, mark, keys[row])
            table[slot] = keys[row]
            mark[slot] = row


@kernel
def row_of(t: Any, key: Any) -> Any:
    """The key's row, or EMPTY."""
    return np.int64(t.mark[find(t.table, t.mark, key)])


@kernel
def take_row(t: Any, key: Any, home: Any) -> Any:
    """Give ``key`` a free row (there must be one); its fragments are empty."""
    row = t.spare[t.spare[0]]
    t.spare[0] -= 1
    slot = find(t.table, t.mark, key)
    t.table[slot] = key
    t.mark[slot] = row
    t.keys[row] = key
    t.home[row] = home
    t.until[row] = FREE + 1  # before any STATS_WIN: not hot
    t.tuples[row] = 0
    t.share[row] = 0.0
    t.fragments[row] = 0
    for w in range(t.stamps.shape[1]):
        t.stamps[row, w] = NEVER
        t.sent[row, w] = 0.0
    for slide in range(t.ages.shape[1]):
        t.ages[row, slide] = 0
    return row


@kernel
def release(t: Any, row: Any) -> None:
    """Free a row."""
    remove(t.table, t.mark, find(t.table, t.mark, t.keys[row]))
    t.until[row] = FREE
    t.spare[0] += 1
    t.spare[t.spare[0]] = row


@kernel
def forget_values(t: Any, row: Any, initial: Any) -> None:
    """Set every value of the row to ``initial``."""
    for j in range(t.q.shape[1]):
        t.q[row, j] = initial
        t.sent[row, j] = 0.0
    t.visits[row] = 0
    t.best[row] = 0
    t.bound[row] = initial


@kernel
def set_value(t: Any, row: Any, action: Any, value: Any) -> None:
    """Set one value and repair the argmax."""
    q, n = t.q, t.q.shape[1]
    q[row, action] = value
    best = np.uintp(t.best[row])
    if action == best:
        if value > t.bound[row]:
            return
    elif value < q[row, best]:
        t.bound[row] = max(t.bound[row], value)
        return
    # Both halves at once, for one value waits for another less often, and without branches on the values,
    # which cannot be predicted: cheaper than a tree even for 64 workers.
    half = n // 2
    top, rest, first = q[row, 0], -np.inf, np.int64(0)
    last, under, after = q[row, n - 1], -np.inf, np.int64(n - 1)
    for j in range(1, half):
        x, y = q[row, j], q[row, n - 1 - j]
        rest, under = max(rest, min(top, x)), max(under, min(last, y))
        first, after = np.int64(j) if x > top else first, np.int64(n - 1 - j) if y >= last else after
        top, last = max(top, x), max(last, y)
    if n % 2 == 1 and n > 1:
        x = q[row, half]
        rest = max(rest, min(top, x))
        first = np.int64(half) if x > top else first
        top = max(top, x)
    t.best[row] = after if last > top else first
    t.bound[row] = max(rest, under, min(top, last)) if n > 1 else -np.inf


@kernel
def faded(slides: Any, age: Any) -> Any:
    """What a tuple counts ``age`` slides later, (S / (S + 1))^age: on average those of S = W/s slides count.

    Unlike the counts of a window these cost no ring, and are not empty when a slide begins.
    """
    return (slides / (slides + 1.0)) ** np.float64(age)


@kernel
def stamp(t: Any, row: Any, worker: Any, slide: Any, oldest: Any) -> None:
    """Record that the row's key went to ``worker`` in ``slide``; the window holds slides after ``oldest``."""
    old = t.stamps[row, worker]
    if old == slide:
        t.sent[row, worker] += 1.0
        return
    slides = t.ages.shape[1]
    t.sent[row, worker] = 1.0 + t.sent[row, worker] * faded(slides, slide - old)
    if old > oldest:
        t.ages[row, old % slides] -= 1
    else:
        t.fragments[row] += 1
    t.ages[row, slide % slides] += 1
    t.stamps[row, worker] = slide


@kernel
def lately(t: Any, row: Any, slide: Any, out: Any) -> None:
    """Tuples of the row's key sent to each worker as they count in ``slide``, shape ``(n,)``."""
    for w in range(len(out)):
        out[w] = t.sent[row, w] * faded(t.ages.shape[1], slide - t.stamps[row, w])


@kernel
def turn(t: Any, slide: Any, passed: Any, window: Any) -> None:
    """Enter ``slide`` after ``passed`` others: drop the fragments that expire, and rows with nothing to tell.

    A key that is not hot and only on its hashed worker is where any cold key is, and needs no row.
    """
    slides = t.ages.shape[1]
    for row in range(len(t.keys)):
        if t.until[row] == FREE:
            continue
        for step in range(min(passed, slides)):
            at = (slide - step) % slides
            t.fragments[row] -= t.ages[row, at]
            t.ages[row, at] = 0
        at_home = t.fragments[row] == 1 and t.stamps[row, t.home[row]] > slide - slides
        if t.until[row] < window and (t.fragments[row] == 0 or at_home):
            release(t, row)
