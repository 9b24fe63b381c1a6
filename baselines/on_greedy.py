"""On-Greedy: a new key goes to the least loaded worker and stays."""

from __future__ import annotations

from typing import Any

from dalton.baselines.sticky import Sticky
from dalton.envs.contract import Costs, Keys, Times, Workers
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, find, is_full
from dalton.envs.window import amount, lightest, put


@kernel
def _on_greedy(s: Any, table: Any, mark: Any, used: Any, keys: Any, costs: Any, out: Any) -> Any:
    load, ring, clock, _, pace = s
    for i in range(len(keys)):
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            if is_full(table, used):
                return i
            table[slot] = keys[i]
            mark[slot] = lightest(load)
            used[0] += 1
        out[i] = mark[slot]
        put(load, ring, clock, out[i], amount(pace, costs, i, out[i]))
    return len(keys)


class OnlineGreedy(Sticky):
    """The least loaded of all workers when the key is new, then always that (PKG Section 5.1).

        P(k) = argmin_i L_i(first occurrence of k), a tie takes the first worker

    Args:
        n_workers: Number of workers n.
        seed: Not used; there is nothing to draw.
    """

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        r = self.routes
        r.drive(
            len(keys),
            lambda i: i + _on_greedy(self.loads, r.keys, r.mark, r.used, keys[i:], costs[i:], out[i:]),
        )
