"""Partitioners that go by the time in which workers execute tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.envs.contract import Costs, Partitioner, Times
from dalton.envs.servers import Step, legs
from dalton.envs.window import NO_TIMES, TICKS, check_capacity, check_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Clocks(NamedTuple):
    """When the workers, FIFO servers all, are free; what `dalton.envs.servers.execute` needs."""

    free: Floats
    """``(n,)`` when the last tuple so far is done."""
    idle: Floats
    """``(n,)`` not used."""
    leg: Ints
    """``(n,)`` leg of the schedule that holds ``free``."""
    begins: Floats
    """``(n, S + 1)`` when each leg begins."""
    speed: Floats
    """``(n, S)`` capacity in each leg."""


class Executing(Partitioner):
    """A partitioner whose workers know how long they take for a tuple: its cost over their capacity.

    `employ` says what the capacities are; without it they are those of `measure`, or 1.
    """

    executes = True
    clocks: Clocks

    def employ(self, capacity: ArrayLike | None = None, schedule: Sequence[Step] = ()) -> None:
        """Say how fast the workers execute tuples. A change forgets what was routed."""
        told = (check_capacity(capacity, self.n_workers), tuple(schedule))
        if self.employed is None or told[1] != self.employed[1] or (told[0] != self.employed[0]).any():
            self.employed = told
            self.reset()

    def _reset(self) -> None:
        n = self.n_workers
        capacity = np.ones(n) if self.pace is None else TICKS / self.pace
        strength, schedule = self.employed or (capacity, ())
        # Free since ever: the first tuple begins when it comes.
        self.clocks = Clocks(
            np.full(n, -np.inf), np.zeros(n), np.zeros(n, np.int64), *legs(strength, list(schedule))
        )
        # Times are checked as those of a window are: a length of 1, in time, nothing seen so far.
        self.edge = np.array([0.0, 1.0, 1.0, -np.inf])

    def _clock(self, times: Times, costs: Costs, length: int) -> tuple[Times, Costs]:
        """Times and costs of a batch; no times where one of them is missing, ones for missing costs."""
        if not len(costs):
            return NO_TIMES, np.ones(length)
        if len(times):
            check_order(self.edge, times)
        return times, costs
