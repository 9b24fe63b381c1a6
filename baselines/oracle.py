"""The offline bound: least maximal load, and close to the fewest (key, worker) pairs at that load."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from dalton.baselines.batch import deal, fit_part, parts, put_part
from dalton.envs.contract import Costs, Keys, Partitioner, Times, Workers
from dalton.envs.hashing import hash_workers, member
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, KeyMap, encode, find, is_full


@kernel
def _recall(table: Any, mark: Any, keys: Any, home: Any) -> None:
    """Overwrite the hashed worker by the one that got the key last."""
    for i in range(len(keys)):
        worker = mark[find(table, mark, keys[i])]
        if worker != EMPTY:
            home[i] = worker


@kernel
def _remember(table: Any, mark: Any, used: Any, keys: Any, workers: Any) -> Any:
    for i in range(len(keys)):
        if is_full(table, used):
            return i
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            used[0] += 1
        table[slot] = keys[i]
        mark[slot] = workers[i]
    return len(keys)


@kernel
def _fill_whole(order: Any, rest: Any, home: Any, capacity: Any, room: Any, plan: Any) -> None:
    """Give keys with ``capacity`` tuples or more whole workers, from the home worker on."""
    n = len(room)
    for i in range(len(order)):
        code = order[i]
        worker = np.int64(home[code])
        while rest[code] >= capacity:
            while room[worker] < capacity:
                worker = (worker + 1) % n
            put_part(plan, room, code, worker, capacity)
            rest[code] -= capacity


@kernel
def _fit_rest(order: Any, rest: Any, home: Any, room: Any, plan: Any) -> None:
    for i in range(len(order)):
        if rest[order[i]] > 0:
            fit_part(plan, room, order[i], np.int64(home[order[i]]), rest[order[i]], False)


class Oracle(Partitioner):
    """The offline bound: least maximal load with close to the fewest pairs, knowing all counts beforehand.

    It sees a whole batch; the simulator hands it a slide at a time. With m tuples the least possible maximal
    load is C = ⌈m/n⌉, and an assignment that reaches it has at least Σ_k ⌈c_k/C⌉ pairs. Here keys with c_k >=
    C get whole workers; what remains is placed by decreasing size, where the key last was (at first: hashed)
    if it fits there, else at the next worker where it fits, and is cut only if there is none. Every cut fills
    a worker and the last worker needs none, so the pairs are

        Σ_k ⌈c_k/C⌉ <= optimum <= pairs <= Σ_k ⌈c_k/C⌉ + n - 1.

    (McNaughton's wrap-around rule has the same n - 1; finding the optimum is bin packing.)

    Args:
        n_workers: Number of workers n.
        seed: Chooses the hashed worker.
    """

    forwards = True
    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "batch"

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        self.member = member(self.seed)
        self.homes = KeyMap()

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        batch = encode(keys)
        n = self.n_workers
        plan = parts(len(batch.distinct) + 2 * n)
        capacity = math.ceil(len(keys) / n)
        room = np.full(n, capacity)
        home = np.empty(len(batch.distinct), np.int32)
        hash_workers(batch.distinct, self.member, n, home)
        h = self.homes
        _recall(h.keys, h.mark, batch.distinct, home)
        rest = batch.counts.copy()
        _fill_whole(np.argsort(-rest, kind="stable"), rest, home, capacity, room, plan)
        _fit_rest(np.argsort(-rest, kind="stable"), rest, home, room, plan)
        deal(batch, plan, out)
        used = int(plan.used[0])
        codes, first = np.unique(plan.code[:used], return_index=True)
        keys, workers = batch.distinct[codes], plan.worker[first]
        h.drive(len(keys), lambda i: i + _remember(h.keys, h.mark, h.used, keys[i:], workers[i:]))
