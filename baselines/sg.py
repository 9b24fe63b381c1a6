"""Shuffle grouping: round robin."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.contract import Costs, Keys, Partitioner, Times, Workers
from dalton.envs.kernel import kernel


@kernel
def _deal(start: Any, n: Any, out: Any) -> Any:
    worker = start
    for i in range(len(out)):
        out[i] = worker
        worker += 1
        if worker == n:
            worker = 0
    return worker


class ShuffleGrouping(Partitioner):
    """Round robin, whatever the key (PKG Section 2.2).

    Tuple t goes to worker (seed + t) mod n. Imbalance is at most one tuple; a frequent key is on all n
    workers, so memory and merging grow with n.

    Args:
        n_workers: Number of workers n.
        seed: Where the round starts.
    """

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        self.next = np.array([self.seed % self.n_workers])

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        self.next[0] = _deal(self.next[0], self.n_workers, out)
