"""Consistent hashing with bounded loads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.hashing import hash32, member
from dalton.envs.kernel import kernel
from dalton.envs.window import WindowSpec, amount, put, tick


@kernel
def _points(seed: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = np.int64(hash32(i, seed)) + 2**31


@kernel
def _clockwise(
    s: Any, circle: Any, seed: Any, epsilon: Any, keys: Any, times: Any, costs: Any, out: Any
) -> None:
    load, ring, clock, edge, pace = s
    points, owner, starts, shift = circle
    total = load.sum()
    n = len(load)
    for i in range(len(keys)):
        if tick(load, ring, clock, edge, times, i) > 0:
            total = load.sum()
        here = np.int64(hash32(keys[i], seed)) + 2**31
        at = starts[here >> shift]
        while at < len(points) and points[at] < here:
            at += 1
        if at == len(points):
            at = 0
        added = amount(pace, costs, i, owner[at])
        capacity = np.int64(np.ceil((1.0 + epsilon) * (total + added) / n))
        while load[owner[at]] >= capacity:
            at += 1
            if at == len(points):
                at = 0
        added = amount(pace, costs, i, owner[at])
        put(load, ring, clock, owner[at], added)
        total += added
        out[i] = owner[at]


class BoundedConsistentHashing(LoadAware):
    """Consistent hashing with bounded loads: the next worker on a ring that has room (SODA 2018).

    Of Mirrokni, Thorup and Zadimoghaddam, compared in CG Section V. Workers and keys are points of a ring. A
    key goes to the first worker clockwise from it whose load is below the capacity ⌈(1 + ε) t / n⌉, t
    counting this tuple (on the first worker, where load is time over capacity); some worker always is.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the points.
        epsilon: Slack ε of the capacity, in (0, 10].
        points: Points per worker on the ring.
        window: Window of the load; None counts since the start.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        epsilon: float = 0.01,
        points: int = 100,
        window: WindowSpec = None,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.epsilon = check_real("epsilon", epsilon, above=0, high=10)
        self.points = check_int("points", points, low=1, high=100_000)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        places = np.empty(self.n_workers * self.points, np.int64)
        _points(member(self.seed, 1), places)
        order = np.argsort(places, kind="stable")
        places = places[order]
        owner = (order // self.points).astype(np.int32)
        # The ring cut into about as many equal arcs as points: where to start looking for a key's successor.
        bits = max(1, math.ceil(math.log2(len(places))))
        shift = 32 - bits
        starts = np.searchsorted(places, np.arange(1 << bits) << shift)
        self.circle = places, owner, starts, shift
        self.member = member(self.seed)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        _clockwise(self.loads, self.circle, self.member, self.epsilon, keys, times, costs, out)
