"""Full knowledge: the greedy scheduler of OSG, fed with exact execution times."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.baselines.executing import Executing
from dalton.envs.contract import Costs, Keys, Times, Workers
from dalton.envs.kernel import kernel
from dalton.envs.servers import execute
from dalton.envs.window import lightest


@kernel
def _greedy(total: Any, clocks: Any, times: Any, costs: Any, out: Any) -> None:
    free, idle, leg, begins, speed = clocks
    for i in range(len(out)):
        op = lightest(total)
        out[i] = op
        if len(times) > 0:
            begin, end = execute(free, idle, leg, begins, speed, op, times[i], costs[i])
            # A worker that has failed for good never begins.
            total[op] += end - begin if begin < np.inf else np.inf
        else:
            total[op] += costs[i] / speed[op, 0]


class FullKnowledge(Executing):
    """The worker with the least cumulated execution time, which is known exactly (OSG Section 5.1).

        P(t) = argmin_op C_op,   C_op = sum of w_{t',op} over the tuples t' sent to op so far

    w_{t,op} is the time in which worker op executes tuple t: cost over capacity, at the time at which it will
    be executed. A tie takes the first worker. This is the Greedy Online Scheduler of OSG Section 3.1: where
    workers are equal, its makespan is at most 2 - 1/k times the least possible (Theorem 4.2). It cannot be
    had in practice, since it must know what a tuple costs before anybody has executed it.

    Args:
        n_workers: Number of workers n; k in the paper.
        seed: Not used; there is nothing to draw.
    """

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.total = np.zeros(self.n_workers)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        stamps, work = self._clock(times, costs, len(keys))
        _greedy(self.total, self.clocks, stamps, work, out)
