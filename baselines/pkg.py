"""Partial key grouping: the power of two choices, with key splitting."""

from __future__ import annotations

from typing import Any

from dalton.envs.contract import BLOCK, Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_int
from dalton.envs.hashing import candidates, family, worker_of
from dalton.envs.kernel import kernel
from dalton.envs.window import WindowSpec, amount, put, tick


@kernel
def least_of(load: Any, members: Any, d: Any, key: Any) -> Any:
    """The least loaded of the first ``d`` hashed candidates of ``key``; a tie takes the first."""
    n = len(load)
    best = worker_of(key, members[0], n)
    for j in range(1, d):
        other = worker_of(key, members[j], n)
        if load[other] < load[best]:
            best = other
    return best


@kernel
def _greedy(s: Any, choices: Any, times: Any, costs: Any, out: Any) -> None:
    load, ring, clock, edge, pace = s
    d, m = choices.shape
    for i in range(m):
        tick(load, ring, clock, edge, times, i)
        best = choices[0, i]
        for j in range(1, d):
            if load[choices[j, i]] < load[best]:
                best = choices[j, i]
        put(load, ring, clock, best, amount(pace, costs, i, best))
        out[i] = best


class PartialKeyGrouping(LoadAware):
    """The less loaded of d hashed workers, tuple by tuple (PKG Section 3).

        P_t(k) = argmin_{i in {H_1(k), ..., H_d(k)}} L_i(t)

    L is the load this partitioner itself has sent (local estimation), since the start as in the paper, or
    over a window as in Dalton's two-choices. PKG is d = 2: a key is on at most two workers.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 ... H_d.
        d: Number of choices, at least 2.
        window: Window of the load; None counts since the start.
    """

    def __init__(self, *, n_workers: int, seed: int = 0, d: int = 2, window: WindowSpec = None) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.d = check_int("d", d, low=2, high=65535)
        self.reset()

    @property
    def max_workers_per_key(self) -> int:
        """At most d."""
        return min(self.d, self.n_workers)

    def _reset(self) -> None:
        super()._reset()
        self.members = family(self.seed, self.d)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        for i in range(0, len(keys), BLOCK):
            part = slice(i, i + BLOCK)
            choices = candidates(keys[part], self.members, self.n_workers)
            _greedy(self.loads, choices, times[part], costs[part], out[part])
