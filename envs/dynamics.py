"""The kernels behind the environments: N independent streams and clusters, stepped together.

Every array has a leading dimension N, and one kernel call takes all copies from one decision to the next. A
copy stops where Python must do something: its tuples run out, a slide ends and is to be measured, its table
is full, the episode is over. `dalton.envs.copies` sees to that and calls again.

Load, keys and pairs are those of `dalton.envs.cluster`, laid out for decisions in which any key may be split:
a row per key with a stamp per worker. The load vector, the number of keys and the pairs of every worker are
columns of one ring, since all of them are subtracted when a slide expires. Where load is time over capacity,
two more columns hold tuples and their costs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.cluster import row_before
from dalton.envs.hashing import spread
from dalton.envs.hotness import FOLLOWING, LEAST, NUMBER, TUPLES, begin_window, stats_span
from dalton.envs.kernel import kernel, prefetch
from dalton.envs.reward import reward
from dalton.envs.table import MAX_FILL, capacity_for
from dalton.envs.window import (
    BASE,
    BY_TIME,
    HEAD,
    POSITION,
    SLIDE,
    TICKS,
    Window,
    amount,
    load_state,
    slides_ahead,
    tick,
)

CHUNK = 4096
FREE = -1
# What a copy waits for; DECISION is the agent.
DECISION, TUPLES_OUT, SLIDE_END, NO_ROOM, OVER = range(5)
BAD_ACTION = -1
ROWS = 4096
# Columns of `ints`: the clock of a LoadState, then: next tuple in the chunk, tuples in the chunk, what is
# waited for, whether the slide's end was seen to, tuples left in the episode, the row of the present key,
# rows in use, number of STATS_WINs begun, present STATS_WIN counted from 1, the first one's number; then H
# hot keys, then the last STATS_WIN in which each of them is hot.
AT, SIZE, STATUS, SEEN, LEFT, ROW, USED, BEGUN, PRESENT, FIRST, HOT_KEYS = range(4, 15)
# Columns of `floats`: the edge of a LoadState, the STATS_WIN, the settings that kernels need (which would
# cost as much as an array each if they were arguments), the times of the chunk.
SPAN, P1, LIMIT, ONLY_HOT, QUANTUM, TIMES = 4, 9, 10, 11, 12, 13
# Columns of a row of `table`: the halves of the key, the STATS_WIN of its last tuple, its count there, the
# last slide, the last STATS_WIN in which it is hot, then the last slide at each worker. Slides and STATS_WINs
# count from 1; a row of zeros is free. Rows begin with a cache line: with up to 10 workers they are one.
LOW, HIGH, RECENT, COUNT, LAST, UNTIL, STAMPS = range(7)
LINE = 16


class State(NamedTuple):
    """N copies of everything. Few arrays, since each costs time in every call."""

    ring: NDArray[np.int32] | NDArray[np.int64]
    """``(N, 1 + W/s, 2 n + 2)`` load per worker, of all, distinct keys, pairs per worker: in the window,
    then per slide (of keys and pairs: by their last). Where load is time, int64, and then come the tuples and
    the nanoseconds of their costs: ``(N, 1 + W/s, 2 n + 4)``."""
    table: NDArray[np.int32]
    """``(N, rows, 6 + n or more)`` what is known of keys, by open addressing."""
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    chunk: NDArray[np.int64]
    """``(N, 2, CHUNK)`` keys of the tuples to come, and their hashed workers."""
    costs: NDArray[np.float64] | None
    """``(N, CHUNK)`` their costs in seconds; None where load counts tuples."""
    pace: NDArray[np.float64] | None
    """``(n,)`` see `dalton.envs.window.LoadState`."""


class Rules(NamedTuple):
    """What kernels go by, the same in all copies."""

    window: Window
    stats_window: float | None
    """Length of a STATS_WIN; None for one slide."""
    hot_keys: float
    """c n: a key is hot from a share of 1 / (c n) on."""
    p1: float = 0.5
    only_hot: bool = False
    quantum: int = 1

    @property
    def max_hot(self) -> int:
        """The most keys that are hot at once: those of this STATS_WIN and of the one before."""
        return 2 * math.ceil(self.hot_keys)


def new_state(count: int, n: int, rules: Rules, pace: NDArray[np.float64] | None = None) -> State:
    """Arrays for ``count`` copies with ``n`` workers; `begin` starts each of them."""
    shape = (count, 1 + rules.window.n_slides, 2 * n + 2 if pace is None else 2 * n + 4)
    return State(
        ring=np.zeros(shape, np.int32) if pace is None else np.zeros(shape, np.int64),
        table=new_table(count, ROWS, n),
        ints=np.zeros((count, HOT_KEYS + 2 * rules.max_hot), np.int64),
        floats=np.zeros((count, TIMES + CHUNK)),
        chunk=np.zeros((count, 2, CHUNK), np.int64),
        costs=None if pace is None else np.ones((count, CHUNK)),
        pace=pace,
    )


def begin(c: State, e: int, rules: Rules, n_tuples: int) -> None:
    """Let copy ``e`` begin anew with an empty cluster, and be over after ``n_tuples``."""
    for array in (c.ring, c.table, c.ints):
        array[e] = 0
    c.ints[e, STATUS], c.ints[e, LEFT] = TUPLES_OUT, n_tuples
    c.ints[e, HOT_KEYS + rules.max_hot :] = FREE
    edge, span = load_state(1, rules.window).edge, stats_span(rules.window, rules.stats_window)
    c.floats[e, :TIMES] = *edge, *span, rules.p1, rules.hot_keys, rules.only_hot, rules.quantum


class Views(NamedTuple):
    """What agents see and get, of all copies."""

    real: NDArray[np.float32]
    """``(N, n + 1)`` loads over their mean, share of the key; where load is time, then the tuple's cost."""
    binary: NDArray[np.int8]
    """``(N, n + 1)`` fragments of the key, whether it is hot."""
    rewards: NDArray[np.float64]
    over: NDArray[np.bool_]
    """``(N,)`` whether the episode is over."""


def views(count: int, n: int, costs: bool = False) -> Views:
    """New arrays."""
    real, binary = np.empty((count, n + 1 + costs), np.float32), np.empty((count, n + 1), np.int8)
    return Views(real, binary, np.empty(count), np.empty(count, np.bool_))


def new_table(count: int, rows: int, n: int) -> NDArray[np.int32]:
    """Tables without keys."""
    shape = (count, rows, -(-(STAMPS + n) // LINE) * LINE)
    size = math.prod(shape)
    raw = np.zeros(size + LINE, np.int32)
    first = -raw.ctypes.data % (4 * LINE) // 4
    return raw[first : first + size].reshape(shape)


@kernel
def row_of(table: Any, e: Any, key: Any) -> Any:
    """The key's row in copy ``e``, or the free row where it belongs."""
    mask = table.shape[1] - 1
    low, high = np.int32(key), np.int32(key >> 32)
    at = spread(key) & mask
    while table[e, at, RECENT] != 0 and (table[e, at, LOW] != low or table[e, at, HIGH] != high):
        at = (at + 1) & mask
    return at


@kernel
def key_of(table: Any, e: Any, row: Any) -> Any:
    """The key of a row."""
    return np.int64(table[e, row, HIGH]) << 32 | np.int64(table[e, row, LOW]) & 0xFFFFFFFF


@kernel
def _make_hot(c: Any, e: Any, row: Any) -> None:
    """Make the key of ``row`` hot in this STATS_WIN and the next, and list it among the hot keys.

    If more keys are hot than the list holds, the last ones are not listed.
    """
    ints, window = c.ints, c.ints[e, PRESENT]
    size = (ints.shape[1] - HOT_KEYS) // 2
    until = HOT_KEYS + size
    key = key_of(c.table, e, row)
    entry = FREE
    for j in range(size):
        if ints[e, until + j] >= window:
            if ints[e, HOT_KEYS + j] == key:
                entry = j
                break
        elif entry == FREE:
            entry = j
    if entry != FREE:
        ints[e, HOT_KEYS + entry] = key
        ints[e, until + entry] = window + 1
    c.table[e, row, UNTIL] = window + 1


@kernel
def _weigh(totals: Any, slide: Any, n: Any, costs: Any, pace: Any, e: Any, i: Any, worker: Any) -> Any:
    """What tuple ``i`` of copy ``e`` adds to the load of ``worker``; where that is time, its cost is kept."""
    if pace is None:
        return np.int64(1)
    cost = np.int64(costs[e, i] * TICKS + 0.5)
    for row in (totals, slide):
        row[2 * n + 2] += 1
        row[2 * n + 3] += cost
    return amount(pace, costs[e], i, worker)


@kernel
def _look_at_cost(totals: Any, n: Any, costs: Any, pace: Any, e: Any, i: Any, v: Any) -> None:
    """The cost x of tuple ``i`` as x / (x + x̄), x̄ the mean cost in the window; 1/2 if there is none."""
    if pace is not None:
        tuples, cost = totals[2 * n + 2], costs[e, i] * TICKS
        mean = totals[2 * n + 3] / tuples if tuples > 0 else cost
        v.real[e, n + 1] = cost / (cost + mean) if cost + mean > 0.0 else 0.5


@kernel
def send(c: Any, e: Any, n: Any, row: Any, worker: Any) -> None:
    """Count the present tuple of copy ``e`` for ``worker``."""
    table, ints = c.table, c.ints
    totals, ring = c.ring[e, 0], c.ring[e, 1:]
    slides, head = len(ring), ints[e, HEAD]
    now = ints[e, SLIDE] - ints[e, BASE] + 1
    added = _weigh(totals, ring[head], n, c.costs, c.pace, e, ints[e, AT] - 1, worker)
    totals[worker] += added
    ring[head, worker] += added
    totals[n] += added
    ring[head, n] += added
    for part in range(2):
        place = LAST if part == 0 else STAMPS + worker
        column = n + 1 if part == 0 else n + 2 + worker
        old = table[e, row, place]
        if old != now:
            if old > max(0, now - slides):
                ring[row_before(head, now - old, slides), column] -= 1
            else:
                totals[column] += 1
            ring[head, column] += 1
            table[e, row, place] = now


@kernel
def advance(c: Any, e: Any, n: Any) -> Any:
    """Go on to the next tuple that needs a decision; returns what is waited for."""
    ints, table = c.ints, c.table
    clock, edge, span, times = ints[e], c.floats[e], c.floats[e, SPAN:], c.floats[e, TIMES:]
    while True:
        if ints[e, LEFT] == 0:
            return OVER
        i = ints[e, AT]
        if i == ints[e, SIZE]:
            return TUPLES_OUT
        if ints[e, USED] >= np.int64(table.shape[1] * MAX_FILL):
            return NO_ROOM
        if ints[e, SEEN] == 0 and slides_ahead(clock, edge, times, i) > 0:
            return SLIDE_END
        ints[e, SEEN] = 0
        now = times[i] if edge[BY_TIME] > 0.0 else np.float64(clock[POSITION])
        if now >= span[FOLLOWING]:
            begin_window(span, edge[LIMIT], now)
            number = np.int64(span[NUMBER])
            if ints[e, BEGUN] == 0:
                ints[e, FIRST] = number
            ints[e, BEGUN] += 1
            ints[e, PRESENT] = number - ints[e, FIRST] + 1
        tick(c.ring[e, 0], c.ring[e, 1:], clock, edge, times, i)
        key = c.chunk[e, 0, i]
        row = row_of(table, e, key)
        if table[e, row, RECENT] == 0:
            ints[e, USED] += 1
            table[e, row, LOW], table[e, row, HIGH] = np.int32(key), np.int32(key >> 32)
        if table[e, row, RECENT] != ints[e, BEGUN]:
            table[e, row, RECENT] = ints[e, BEGUN]
            table[e, row, COUNT] = 0
        table[e, row, COUNT] += 1
        span[TUPLES] += 1
        if table[e, row, COUNT] >= span[LEAST] and table[e, row, UNTIL] <= ints[e, PRESENT]:
            _make_hot(c, e, row)
        ints[e, ROW] = row
        ints[e, LEFT] -= 1
        ints[e, AT] += 1
        if i + 1 < ints[e, SIZE]:
            # The next key's row is a step of all other copies away: time enough for the memory to deliver it.
            ahead = spread(c.chunk[e, 0, i + 1]) & (table.shape[1] - 1)
            for line in range(0, table.shape[2], LINE):
                prefetch(table, e, ahead, line)
        if table[e, row, UNTIL] >= ints[e, PRESENT] or edge[ONLY_HOT] == 0.0:
            return DECISION
        send(c, e, n, row, c.chunk[e, 1, i])


@kernel
def expired(c: Any, e: Any) -> Any:
    """Stamps above it lie in the window."""
    return max(0, c.ints[e, SLIDE] - c.ints[e, BASE] + 2 - c.ring.shape[1])


@kernel
def look(c: Any, e: Any, n: Any, v: Any) -> None:
    """Fill what the agent sees of copy ``e``."""
    total = c.ring[e, 0, n]
    scale = n / total if total > 0 else 0.0
    cutoff, row, quantum = expired(c, e), c.ints[e, ROW], np.int64(c.floats[e, QUANTUM])
    for w in range(n):
        v.real[e, w] = c.ring[e, 0, w] * scale
        v.binary[e, w] = c.table[e, row, STAMPS + w] > cutoff
    if quantum > 1:
        for w in range(n):
            v.real[e, w] = c.ring[e, 0, w] // quantum * quantum * scale
    v.real[e, n] = min(1.0, c.table[e, row, COUNT] / (c.floats[e, SPAN + LEAST] * c.floats[e, LIMIT]))
    v.binary[e, n] = c.table[e, row, UNTIL] >= c.ints[e, PRESENT]
    v.over[e] = c.ints[e, STATUS] == OVER
    _look_at_cost(c.ring[e, 0], n, c.costs, c.pace, e, c.ints[e, AT] - 1, v)


@kernel
def _act(c: Any, e: Any, n: Any, a: Any) -> Any:
    """Send the present tuple of copy ``e`` to worker ``a``; returns the reward."""
    row = c.ints[e, ROW]
    send(c, e, n, row, a)
    held, cutoff = 0, expired(c, e)
    for w in range(n):
        held += c.table[e, row, STAMPS + w] > cutoff
    return reward(c.ring[e, 0, a], c.ring[e, 0, n], n, held, c.floats[e, P1])


@kernel
def step_all(c: Any, actions: Any, v: Any) -> Any:
    """Act in every copy that waits for it, go on to the next decision, look.

    Without actions (an empty array) only go on and look. Returns how many copies wait for something else, or,
    having done nothing, BAD_ACTION if an action is no worker.
    """
    waiting = 0
    n = v.binary.shape[1] - 1
    for e in range(len(actions)):
        if not 0 <= actions[e] < n:
            return BAD_ACTION
    for e in range(len(c.ints)):
        if len(actions) > 0:
            if c.ints[e, STATUS] != DECISION:
                v.rewards[e] = 0.0
                waiting += 1
                look(c, e, n, v)
                continue
            v.rewards[e] = _act(c, e, n, actions[e])
        elif c.ints[e, STATUS] == DECISION:
            continue
        c.ints[e, STATUS] = advance(c, e, n)
        waiting += c.ints[e, STATUS] != DECISION
        look(c, e, n, v)
    return waiting


@kernel
def move(old: Any, new: Any, e: Any, cutoff: Any, begun: Any) -> Any:
    """Take along the rows of copy ``e`` that matter to its window or its STATS_WIN; returns how many."""
    used = 0
    for i in range(old.shape[1]):
        recent = old[e, i, RECENT]
        if recent != 0 and (old[e, i, LAST] > cutoff or recent == begun):
            at = row_of(new, e, key_of(old, e, i))
            for column in range(old.shape[2]):
                new[e, at, column] = old[e, i, column]
            used += 1
    return used


def grown(c: State, n: int) -> State:
    """The state with tables in which there is room; keys that no longer matter are not taken along."""
    live = [
        np.count_nonzero(
            (rows[:, RECENT] != 0) & ((rows[:, LAST] > expired(c, e)) | (rows[:, RECENT] == c.ints[e, BEGUN]))
        )
        for e, rows in enumerate(c.table)
    ]
    table = new_table(len(c.table), capacity_for(int(max(live)), minimum=ROWS), n)
    for e in range(len(c.table)):
        key = key_of(c.table, e, c.ints[e, ROW])
        c.ints[e, USED] = move(c.table, table, e, expired(c, e), c.ints[e, BEGUN])
        c.ints[e, ROW] = row_of(table, e, key)
    return c._replace(table=table)
