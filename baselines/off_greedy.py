"""Off-Greedy: know the key counts, place the most frequent keys first."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from dalton.baselines.sticky import Sticky
from dalton.envs.contract import Costs, Keys, Times, Workers
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, encode, find, is_full


@kernel
def _place(table: Any, mark: Any, used: Any, plan: Any, heap: Any, keys: Any, counts: Any) -> Any:
    """Give every new key to the worker with the least planned load, held in a binary heap."""
    n = len(heap)
    for i in range(len(keys)):
        slot = find(table, mark, keys[i])
        if mark[slot] != EMPTY:
            continue
        if is_full(table, used):
            return i
        worker = heap[0]
        table[slot] = keys[i]
        mark[slot] = worker
        used[0] += 1
        plan[worker] += counts[i]
        at = 0
        while 2 * at + 1 < n:
            child = 2 * at + 1
            if child + 1 < n and plan[heap[child + 1]] < plan[heap[child]]:
                child += 1
            if plan[heap[child]] >= plan[worker]:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = worker
    return len(keys)


@kernel
def _look_up(table: Any, mark: Any, keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = mark[find(table, mark, keys[i])]


class OfflineGreedy(Sticky):
    """Keys by decreasing count, known beforehand, each to the least loaded worker (PKG Section 5.1).

    A tie takes any of them. The counts of the whole stream come with `prepare`. A key that was not among them
    is placed when its first batch arrives, by the batch's counts and in the same way.

    Args:
        n_workers: Number of workers n.
        seed: Not used; there is nothing to draw.
    """

    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "stream"

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.plan = np.zeros(self.n_workers, np.int64)
        self.heap = np.arange(self.n_workers)

    def prepare(self, keys: Keys, counts: Keys) -> None:
        """Place ``keys``, shape ``(K,)``, by decreasing ``counts``; equal counts in the given order."""
        order = np.argsort(-counts, kind="stable")
        r, ordered, weights = self.routes, keys[order], counts[order]
        r.drive(
            len(ordered),
            lambda i: i + _place(r.keys, r.mark, r.used, self.plan, self.heap, ordered[i:], weights[i:]),
        )

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        batch = encode(keys)
        self.prepare(batch.distinct, batch.counts)
        _look_up(self.routes.keys, self.routes.mark, keys, out)
