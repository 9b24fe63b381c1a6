"""Windowed cluster state: the load vector L_w and the fragmentation vector X_w of Dalton Section 3.3.

Fragmentation stamps every (key, worker) pair with the last slide in which it occurred: the bit 1(k, w)_i is
set while that stamp lies in the window, so expiry touches no key. The numbers of live keys and pairs are kept
the same way: a ring counts the stamps of every slide, a stamp that moves on leaves its old count, and a slide
that expires takes its count with it. A key is split while the second latest of its workers' stamps lies in
the window: split keys are counted by that stamp. All of it is O(1) per tuple and O(n) per slide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.envs.errors import ConfigError, check_int
from dalton.envs.hashing import member, spread, worker_of
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, MAX_FILL, capacity_for
from dalton.envs.window import (
    BASE,
    HEAD,
    SLIDE,
    Floats,
    Ints,
    LoadState,
    Window,
    WindowSpec,
    accept_costs,
    accept_times,
    amount,
    check_workers,
    load_state,
    pace_of,
    put,
    tick,
)

Table = NDArray[Any]

MAX_WORKERS = 2**15 - 1
MAX_STAMP = 2**30
UNSPLIT = -1


def _slot(n_slides: int) -> np.dtype[Any]:
    """A slot: a key, its first worker, the gap, the last slide in which that worker got it, the last of all.

    The gap is how many slides before the last of all the second latest of its workers got the key, at most
    W/s, or `UNSPLIT` if it has had no further worker.
    """
    gap = np.int16 if n_slides < 2**15 else np.int32
    fields = [("key", np.int64), ("home", np.int16), ("gap", gap), ("stamp", np.int32), ("last", np.int32)]
    return np.dtype(fields)


PAIR = np.dtype([("key", np.int64), ("worker", np.int32), ("stamp", np.int32)])
"""A further worker of a key, and the last slide in which the key went there."""


class Fragments(NamedTuple):
    """X_w as arrays: a slot per key with its first worker, further workers in an overflow table.

    20 bytes per slot, 35 to 70 % of the slots occupied: 29 to 57 bytes per unsplit key. ``ring`` and
    ``totals`` have m + n + m + m columns: distinct keys per reducer, pairs per worker (the memory counters;
    M_w of CG Section III), pairs per reducer (A_j of Dalton Eq. 2), split keys per reducer. With one reducer,
    the pairs of worker w are in column 1 + w.
    """

    slots: Table
    more: Table
    used: Ints
    """Occupied entries of the two tables."""
    ring: Ints
    """``(W/s, n + 3 m)`` counts by last slide."""
    totals: Ints
    """``(n + 3 m,)`` counts in the window."""
    shape: Ints
    """n, m and the hash seed that sends a key to its reducer."""


def _empty_tables(slots: int, more: int, n_slides: int) -> tuple[Table, Table]:
    tables = np.zeros(slots, _slot(n_slides)), np.zeros(more, PAIR)
    tables[0]["home"] = EMPTY
    tables[1]["worker"] = EMPTY
    return tables


def fragments(n: int, window: Window | None, n_reducers: int = 1, reducer_seed: int = 0) -> Fragments:
    """An empty fragmentation vector; pairs are hashed over ``n_reducers`` reducers by key."""
    check_int("n_workers", n, low=1, high=MAX_WORKERS)
    rows = window.n_slides if window else 1
    columns = n + 3 * n_reducers
    shape = np.array([n, n_reducers, reducer_seed])
    ring = np.zeros((rows, columns), np.int64)
    return Fragments(
        *_empty_tables(1024, 1024, rows), np.zeros(2, np.int64), ring, np.zeros(columns, np.int64), shape
    )


@kernel
def expire(ring: Any, totals: Any, head: Any, passed: Any) -> None:
    """Drop the keys and pairs whose last slide left the window when ``passed`` slides went by."""
    rows, columns = ring.shape
    for step in range(min(passed, rows)):
        row = (head - step) % rows
        for c in range(columns):
            totals[c] -= ring[row, c]
            ring[row, c] = 0


@kernel
def has_room(slots: Any, more: Any, used: Any, clock: Any) -> Any:
    """Whether one more key, pair and slide fit; if not, the kernel returns and Python calls `grown`."""
    return (
        used[0] < np.int64(len(slots) * MAX_FILL)
        and used[1] < np.int64(len(more) * MAX_FILL)
        and clock[SLIDE] - clock[BASE] < MAX_STAMP
    )


@kernel
def slot_of(slots: Any, key: Any) -> Any:
    """Where ``key`` is, or the free slot where it belongs."""
    mask = len(slots) - 1
    at = spread(key) & mask
    while slots[at].home != EMPTY and slots[at].key != key:
        at = (at + 1) & mask
    return at


@kernel
def _pair_of(more: Any, key: Any, worker: Any) -> Any:
    mask = len(more) - 1
    at = spread(np.uint64(key) + np.uint64(worker + 1) * np.uint64(0xBF58476D1CE4E5B9)) & mask
    while more[at].worker != EMPTY and (more[at].key != key or more[at].worker != worker):
        at = (at + 1) & mask
    return at


@kernel
def holds(slots: Any, more: Any, at: Any, oldest: Any, key: Any, worker: Any) -> Any:
    """The bit 1(key, w)_worker: whether ``worker`` got ``key`` in a slide later than ``oldest``.

    ``at`` is the key's `slot_of`.
    """
    if slots[at].home == EMPTY or slots[at].last <= oldest:
        return False
    if slots[at].home == worker:
        return slots[at].stamp > oldest
    if slots[at].gap == UNSPLIT:
        return False
    pair = _pair_of(more, key, worker)
    return more[pair].worker != EMPTY and more[pair].stamp > oldest


@kernel
def row_before(head: Any, slides: Any, rows: Any) -> Any:
    """The ring's row ``slides`` before ``head``, without the division of a modulo."""
    row = head - slides
    return row if row >= 0 else row + rows


@kernel
def split(
    slots: Any,
    more: Any,
    used: Any,
    ring: Any,
    totals: Any,
    shape: Any,
    clock: Any,
    at: Any,
    key: Any,
    worker: Any,
) -> None:
    """Record that ``key`` went to ``worker`` in the current slide (needs `has_room`).

    ``at`` is the key's `slot_of`.
    """
    now = np.int32(clock[SLIDE] - clock[BASE])
    if slots[at].home == worker and slots[at].stamp == now:
        return
    head = clock[HEAD]
    rows = ring.shape[0]
    never = now - rows  # as good as a stamp from before the window
    old = np.int64(never)
    last = np.int64(never)
    second = np.int64(never)
    gap = np.int64(UNSPLIT)
    if slots[at].home == EMPTY:
        used[0] += 1
        slots[at].key = key
        slots[at].home = worker
        slots[at].gap = UNSPLIT
        slots[at].stamp = now
    else:
        last = max(last, np.int64(slots[at].last))
        gap = np.int64(slots[at].gap)
        known = slots[at].home == worker
        if known:
            old = np.int64(slots[at].stamp)
            slots[at].stamp = now
        elif gap != UNSPLIT:
            pair = _pair_of(more, key, worker)
            known = more[pair].worker != EMPTY
            if known:
                old = np.int64(more[pair].stamp)
                more[pair].stamp = now
        if old == now:
            return
        if gap != UNSPLIT:
            second = max(second, last - gap)
        if not known and slots[at].stamp <= never:
            # The first worker has left the window: its place is free for this one.
            slots[at].home = worker
            slots[at].stamp = now
        elif not known:
            pair = _pair_of(more, key, worker)
            more[pair].key = key
            more[pair].worker = worker
            more[pair].stamp = now
            used[1] += 1
            gap = np.int64(0)
    n, m = shape[0], shape[1]
    reducer = worker_of(key, shape[2], m) if m > 1 else 0
    if last != now:
        slots[at].last = now
        if last > never:
            ring[row_before(head, now - last, rows), reducer] -= 1
        else:
            totals[reducer] += 1
        ring[head, reducer] += 1
    if gap != UNSPLIT:
        # Without this worker's own stamp, the latest of the others is the last slide or, if that was its own,
        # what was the second latest.
        latest = second if old == last else last
        slots[at].gap = now - latest
        if latest != second:
            column = m + n + m + reducer
            if second > never:
                ring[row_before(head, now - second, rows), column] -= 1
            else:
                totals[column] += 1
            ring[row_before(head, now - latest, rows), column] += 1
    if old > never:
        row = row_before(head, now - old, rows)
        ring[row, m + worker] -= 1
        ring[row, m + n + reducer] -= 1
    else:
        totals[m + worker] += 1
        totals[m + n + reducer] += 1
    ring[head, m + worker] += 1
    ring[head, m + n + reducer] += 1


@kernel
def _move(slots: Any, more: Any, new_slots: Any, new_more: Any, used: Any, oldest: Any, shift: Any) -> None:
    for i in range(len(slots)):
        if slots[i].home != EMPTY and slots[i].last > oldest:
            at = slot_of(new_slots, slots[i].key)
            new_slots[at] = slots[i]
            new_slots[at].stamp = max(slots[i].stamp, oldest) - shift
            new_slots[at].last -= shift
            used[0] += 1
    for i in range(len(more)):
        if more[i].worker != EMPTY and more[i].stamp > oldest:
            at = _pair_of(new_more, more[i].key, more[i].worker)
            new_more[at] = more[i]
            new_more[at].stamp -= shift
            used[1] += 1


def grown(f: Fragments, clock: Ints) -> Fragments:
    """A copy with room for more; keys and pairs that have left the window are not taken along.

    Stamps are counted from the start of the window again, and ``clock`` is set accordingly.
    """
    oldest = int(clock[SLIDE] - clock[BASE]) - f.ring.shape[0]
    sizes = [len(f.slots), len(f.more)]
    live = [(f.slots["home"] != EMPTY) & (f.slots["last"] > oldest)]
    live += [(f.more["worker"] != EMPTY) & (f.more["stamp"] > oldest)]
    for table in range(2):
        if f.used[table] >= int(sizes[table] * MAX_FILL):
            sizes[table] = capacity_for(int(np.count_nonzero(live[table])))
    slots, more = _empty_tables(sizes[0], sizes[1], f.ring.shape[0])
    used = np.zeros(2, np.int64)
    shift = max(0, oldest)
    _move(f.slots, f.more, slots, more, used, oldest, shift)
    clock[BASE] += shift
    return f._replace(slots=slots, more=more, used=used)


@kernel
def _observe(f: Any, s: Any, keys: Any, workers: Any, times: Any) -> Any:
    slots, more, used, counts, totals, shape = f
    load, ring, clock, edge, _ = s
    for i in range(len(keys)):
        if not has_room(slots, more, used, clock):
            return i
        passed = tick(load, ring, clock, edge, times, i)
        if passed > 0:
            expire(counts, totals, clock[HEAD], passed)
        put(load, ring, clock, workers[i])
        at = slot_of(slots, keys[i])
        split(slots, more, used, counts, totals, shape, clock, at, keys[i], workers[i])
    return len(keys)


@kernel
def _weigh(s: Any, total: Any, workers: Any, times: Any, costs: Any) -> None:
    load, ring, clock, edge, pace = s
    for i in range(len(workers)):
        tick(load, ring, clock, edge, times, i)
        added = amount(pace, costs, i, workers[i])
        put(load, ring, clock, workers[i], added)
        total[workers[i]] += added


class Cluster:
    """What the workers hold: L_w, X_w and the counts since the start, fed with routed batches.

    With ``measure`` time it also keeps L_w as the time that the workers need, cost over ``capacity``.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        window: WindowSpec = None,
        n_reducers: int = 1,
        seed: int = 0,
        measure: str = "tuples",
        capacity: ArrayLike | None = None,
    ) -> None:
        self.n_workers = check_int("n_workers", n_workers, low=1, high=MAX_WORKERS)
        self.window = Window.of(window)
        self.total: Ints = np.zeros(self.n_workers, np.int64)
        self.loads = load_state(self.n_workers, self.window)
        reducers = check_int("n_reducers", n_reducers, low=1)
        self.fragments = fragments(self.n_workers, self.window, reducers, int(member(seed, 65535)))
        pace = pace_of(measure, capacity, self.n_workers)
        self.busy = None if pace is None else load_state(self.n_workers, self.window, pace)
        self.busy_total: Ints = np.zeros(self.n_workers, np.int64)

    def observe(
        self,
        keys: Ints,
        workers: NDArray[np.int32],
        times: Floats | None = None,
        costs: Floats | None = None,
    ) -> None:
        """Take the tuples of a batch, shapes ``(m,)``, workers in ``[0, n_workers)``, costs in seconds."""
        if keys.shape != workers.shape or keys.ndim != 1:
            raise ConfigError(f"workers has shape {workers.shape}: expected the shape of keys, {keys.shape}")
        check_workers(workers, self.n_workers)
        stamps = accept_times(self.loads.edge, times, len(keys))
        done = 0
        while done < len(keys):
            done += _observe(self.fragments, self.loads, keys[done:], workers[done:], stamps[done:])
            if done < len(keys):
                self.fragments = grown(self.fragments, self.loads.clock)
        self.total += np.bincount(workers, minlength=self.n_workers)
        if self.busy is not None:
            work = accept_costs(self.busy.pace, costs, len(keys))
            _weigh(self.busy, self.busy_total, workers, stamps, work)

    @property
    def measured(self) -> tuple[LoadState, Ints]:
        """The load vector and the load since the start, shape ``(n,)``, as ``measure`` says."""
        return (self.loads, self.total) if self.busy is None else (self.busy, self.busy_total)

    def holders(self, key: int) -> NDArray[np.bool_]:
        """X_w(key), shape ``(n,)``: the workers that hold ``key`` in the window."""
        f, clock = self.fragments, self.loads.clock
        oldest = clock[SLIDE] - clock[BASE] - len(f.ring)
        at = slot_of(f.slots, key)
        return np.array([holds(f.slots, f.more, at, oldest, key, w) for w in range(self.n_workers)])

    @property
    def n_keys(self) -> int:
        """Distinct keys in the window."""
        return int(self._totals[0].sum())

    @property
    def pairs(self) -> Ints:
        """Distinct keys per worker in the window, shape ``(n,)``."""
        return self._totals[1]

    @property
    def merges(self) -> Ints:
        """Pairs per reducer in the window, shape ``(m,)``: A_j of Dalton Eq. 2."""
        return self._totals[2]

    @property
    def merges_split(self) -> Ints:
        """Pairs per reducer of the keys on two workers or more, shape ``(m,)``.

        A_j with key forwarding (Dalton Section 4.2): a key on one worker skips the reducers.
        """
        keys, _, merges, split_keys = self._totals
        return merges - (keys - split_keys)

    @property
    def _totals(self) -> list[Ints]:
        n, m, _ = self.fragments.shape
        return np.split(self.fragments.totals, [m, m + n, m + n + m])

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state."""
        arrays = [self.total, *self.loads, *self.fragments, *(self.busy or ())]
        return sum(a.nbytes for a in arrays if a is not None)
