"""Dynamic key grouping: a slice of the worker ring per key, grown and shrunk in stream time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.hashing import member, worker_of
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, KeyMap, capacity_for, find, is_full
from dalton.envs.window import POSITION, amount, check_order, put

ITEM = np.dtype(
    [
        ("key", np.int64),
        ("count", np.int64),
        ("seen", np.float64),
        ("checked", np.float64),
        ("pool", np.int32),
        ("space", np.int32),
    ]
)
"""A key in one of the spaces: tuples, when last seen, when last checked for scaling, its pool of workers."""
BABY, TEENAGE, OLD = range(3)
START, NEXT_CYCLE, CYCLE = range(3)
INITIAL_POOL = 2


@kernel
def _scaled(items: Any, at: Any, load: Any, total: Any, home: Any, up: Any, down: Any, ready: Any) -> Any:
    """The pool size after a check of the key of item ``at``."""
    n = len(load)
    pool: Any = min(n, np.int64(items[at].pool))
    minimum: Any = np.inf
    idle = 0
    for j in range(pool):
        share = 100.0 * load[(home + j) % n] / max(1, total)
        minimum = min(minimum, share)
        if share < down:
            idle += 1
    if ready and items[at].space == OLD and minimum > up and pool < n:
        # Only a worker lighter than every present candidate is worth another fragment.
        if 100.0 * load[(home + pool) % n] / max(1, total) < minimum:
            return pool + 1
    elif pool > INITIAL_POOL and idle >= 2:
        return pool - 1
    return pool


@kernel
def _dkg(
    s: Any,
    table: Any,
    mark: Any,
    used: Any,
    items: Any,
    clock: Any,
    spans: Any,
    seed: Any,
    keys: Any,
    times: Any,
    costs: Any,
    out: Any,
) -> Any:
    load, ring, position, _, pace = s
    warm_up, check_interval, rate, up, down = spans
    n = len(load)
    total = load.sum()
    for i in range(len(keys)):
        now = times[i] if len(times) > 0 else position[POSITION] / rate
        if now >= clock[NEXT_CYCLE] or is_full(table, used) or used[0] == len(items):
            return i
        position[POSITION] += 1
        key = keys[i]
        home = worker_of(key, seed, n)
        slot = find(table, mark, key)
        if mark[slot] == EMPTY:
            at = used[0]
            table[slot] = key
            mark[slot] = at
            used[0] += 1
            items[at].key = key
            items[at].count = 0
            items[at].checked = -np.inf
            items[at].pool = INITIAL_POOL
            items[at].space = BABY
        at = np.int64(mark[slot])
        items[at].count += 1
        items[at].seen = now
        if now - items[at].checked > check_interval:
            items[at].checked = now
            items[at].pool = _scaled(items, at, load, total, home, up, down, now - clock[START] >= warm_up)
        best = home
        for j in range(1, min(n, items[at].pool)):
            other = (home + j) % n
            if load[other] < load[best]:
                best = other
        added = amount(pace, costs, i, best)
        put(load, ring, position, best, added)
        total += added
        out[i] = best
    return len(keys)


@kernel
def _index(items: Any, table: Any, mark: Any, used: Any) -> None:
    for at in range(len(items)):
        slot = find(table, mark, items[at].key)
        table[slot] = items[at].key
        mark[slot] = at
    used[0] = len(items)


class DynamicKeyGrouping(LoadAware):
    """The least loaded of a slice of the worker ring that grows while the key is hot (DKG, TPDS 2020).

        P_t(k) = argmin_{i in [H(k), H(k) + pool(k))} L_i(t),   indices mod n

    A pool starts with 2 workers. With load_i = 100 L_i / t per cent, ideal = 100 / n, and at most one check
    per key and ``check_interval``:

    - it grows by the next ring worker if the warm-up is over, the key is in the old space, the least loaded
      candidate is above ideal + √ideal, and that worker is lighter than every candidate;
    - it shrinks by one if it has more than 2 and at least two candidates are below ideal - √ideal.

    Keys live in three spaces. Every key seen enters the baby space. Every ``promotion`` seconds it is cut to
    its most frequent half of ``distinct_keys``, of which the most frequent fill the teenage space (40 %), or
    replace less frequent ones in it; every fourth time the teenage fill the old space (10 %) alike. Keys not
    seen for ``forget`` seconds leave the upper spaces. A key that is in no space any more starts anew with 2
    workers.

    Durations are in stream time: the arrival times, or position / rate where there are none. Loads are not
    truncated to whole per cents as in the authors' code: with that, ideal - √ideal is 0 from n = 39 on and no
    load is below it.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H.
        distinct_keys: Capacity of the three spaces together.
        warm_up: Seconds before the first growth.
        promotion: Seconds between promotions.
        check_interval: Seconds between two checks of a key.
        forget: Seconds after which a key not seen leaves the teenage and old space.
        rate: Tuples per second where tuples have no times.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        distinct_keys: int = 100,
        warm_up: float = 15.0,
        promotion: float = 15.0,
        check_interval: float = 60.0,
        forget: float = 3600.0,
        rate: float = 1000.0,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.distinct_keys = check_int("distinct_keys", distinct_keys, low=10)
        self.warm_up = check_real("warm_up", warm_up, low=0)
        self.promotion = check_real("promotion", promotion, above=0)
        self.check_interval = check_real("check_interval", check_interval, low=0)
        self.forget = check_real("forget", forget, above=0)
        self.rate = check_real("rate", rate, above=0)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.member = member(self.seed)
        ideal = 100 / self.n_workers
        up, down = ideal + ideal**0.5, ideal - ideal**0.5
        self.spans = np.array([self.warm_up, self.check_interval, self.rate, up, down])
        self.index = KeyMap()
        self.items = np.zeros(1024, ITEM)
        self.clock = np.array([0.0, -np.inf, 0.0])

    def pool(self, key: int) -> int:
        """The number of candidate workers of ``key``."""
        at = self.index.mark[find(self.index.keys, self.index.mark, key)]
        return min(self.n_workers, INITIAL_POOL if at == EMPTY else int(self.items[at]["pool"]))

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        check_order(self.loads.edge, times)
        done = 0
        while True:
            index = self.index
            done += _dkg(
                self.loads,
                index.keys,
                index.mark,
                index.used,
                self.items,
                self.clock,
                self.spans,
                self.member,
                keys[done:],
                times[done:],
                costs[done:],
                out[done:],
            )
            if done == len(keys):
                return
            now = times[done] if len(times) else self.loads.clock[POSITION] / self.rate
            if now >= self.clock[NEXT_CYCLE]:
                self._promote(float(now))
            elif index.used[0] == len(self.items):
                self.items = np.concatenate([self.items, np.zeros(len(self.items), ITEM)])
            else:
                index.grow()

    def _promote(self, now: float) -> None:
        """Run the promotions due by ``now``; more than one round of four changes nothing further."""
        if self.clock[NEXT_CYCLE] == -np.inf:
            self.clock[:] = now, max(now + self.promotion, np.nextafter(now, np.inf)), 0
            return
        due = int((now - self.clock[NEXT_CYCLE]) // self.promotion) + 1
        items = self.items[: self.index.used[0]].copy()
        self.clock[CYCLE] += due - min(due, 4)
        for _ in range(min(due, 4)):
            self.clock[CYCLE] += 1
            items = self._cycle(items, now, self.clock[CYCLE] % 4 == 0)
        # Never in the past, even where a promotion interval is lost in the rounding of the time.
        self.clock[NEXT_CYCLE] = max(self.clock[NEXT_CYCLE] + due * self.promotion, np.nextafter(now, np.inf))
        self.items = np.zeros(max(1024, len(items)), ITEM)
        self.items[: len(items)] = items
        self.index = KeyMap()
        while len(self.index.keys) < capacity_for(len(items)):
            self.index.grow()
        _index(items, self.index.keys, self.index.mark, self.index.used)

    def _cycle(self, items: Any, now: float, to_old: bool) -> Any:
        items = items[(items["space"] == BABY) | (now - items["seen"] <= self.forget)]
        items = items[np.argsort(-items["count"], kind="stable")]
        babies = np.flatnonzero(items["space"] == BABY)
        items = np.delete(items, babies[self.distinct_keys * 50 // 100 :])
        _rise(items, BABY, TEENAGE, self.distinct_keys * 40 // 100)
        if to_old:
            _rise(items, TEENAGE, OLD, self.distinct_keys * 10 // 100)
        return items


def _rise(items: Any, lower: int, upper: int, room: int) -> None:
    """The ``room`` most frequent of both spaces are in the upper one after it; ``items`` by falling count."""
    both = np.flatnonzero((items["space"] == lower) | (items["space"] == upper))
    # A key already in the upper space stays against an equally frequent one.
    order = both[np.lexsort((-items["space"][both], -items["count"][both]))]
    items["space"][order[:room]] = upper
    items["space"][order[room:]] = lower
