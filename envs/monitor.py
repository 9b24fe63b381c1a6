"""Workers that watch how busy they are, for partitioners that listen to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dalton.envs.servers import Servers
from dalton.envs.window import TICKS
from dalton.envs.workloads import Chunk

Floats = NDArray[np.float64]
Workers = NDArray[np.int32]


class Monitor:
    """Measures utilisation in time slots, while a stream is routed.

        U_w = work sent to w in the slot / work that w could do in it   (CG Table III)

    It is above 1 while a queue grows, and NaN for a worker that could do nothing. Slots count from the first
    tuple; of several that pass between two tuples the last is reported, which had none.

    Args:
        slot: Length of a slot in seconds.
        servers: The workers, with their capacities through time.
    """

    def __init__(self, slot: float, servers: Servers) -> None:
        self.slot, self.servers = slot, servers
        self.began = np.nan
        self.number = 0
        # In whole nanoseconds, whose sum does not depend on how the stream is cut.
        self.work = np.zeros(servers.n_workers)

    def drive(
        self, chunk: Chunk, send: Callable[[Chunk], Workers], report: Callable[[Floats], None]
    ) -> Workers:
        """Route a chunk with times and costs slot by slot: ``send`` routes, ``report`` gets utilisation."""
        assert chunk.times is not None
        assert chunk.costs is not None
        if np.isnan(self.began):
            self.began = float(chunk.times[0])
        numbers = np.floor((chunk.times - self.began) / self.slot)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        workers = np.empty(len(numbers), np.int32)
        for low, high in itertools.pairwise(cuts):
            self._enter(int(numbers[low]), report)
            workers[low:high] = send(chunk.part(low, high))
            work = np.rint(chunk.costs[low:high] * TICKS)
            self.work += np.bincount(workers[low:high], work, minlength=len(self.work))
        return workers

    def _enter(self, number: int, report: Callable[[Floats], None]) -> None:
        if number == self.number:
            return
        if number > self.number + 1:
            self.work[:] = 0.0
        ends = self.began + self.slot * np.array([number - 1, number])
        room = self.servers.capacity_between(*ends)
        share = np.full(len(room), np.nan)
        np.divide(self.work / TICKS, room, out=share, where=room > 0)
        report(share)
        self.work[:] = 0.0
        self.number = number
