"""cAM: among two candidates, the one that already holds the key."""

from __future__ import annotations

from typing import Any

from dalton.envs.cluster import expire, has_room, holds, slot_of, split
from dalton.envs.contract import Costs, Keys, SplitAware, Times, Workers
from dalton.envs.hashing import candidates, family
from dalton.envs.kernel import kernel
from dalton.envs.window import BASE, DEFAULT_WINDOW, HEAD, SLIDE, WindowSpec, amount, put, tick


@kernel
def _cam(f: Any, s: Any, choices: Any, keys: Any, times: Any, costs: Any, out: Any) -> Any:
    slots, more, used, counts, totals, shape = f
    load, ring, clock, edge, pace = s
    rows = len(ring)
    for i in range(len(keys)):
        if not has_room(slots, more, used, clock):
            return i
        passed = tick(load, ring, clock, edge, times, i)
        if passed > 0:
            expire(counts, totals, clock[HEAD], passed)
        key = keys[i]
        at = slot_of(slots, key)
        oldest = clock[SLIDE] - clock[BASE] - rows
        first, second = choices[0, i], choices[1, i]
        best = first
        if not holds(slots, more, at, oldest, key, first) and (
            holds(slots, more, at, oldest, key, second) or load[second] < load[first]
        ):
            best = second
        put(load, ring, clock, best, amount(pace, costs, i, best))
        split(slots, more, used, counts, totals, shape, clock, at, key, best)
        out[i] = best
    return len(keys)


class CardinalityAware(SplitAware):
    """Of two hashed workers, the one that holds the key, else the less loaded (cAM, VLDB 2017).

    cAM of Katsipoulakis et al., as Dalton Section 5 compares against it: candidates H_1(k) and H_2(k). The
    first of them that holds k within the window gets the tuple; if neither does, the one with less load in
    the window (a tie takes the first). A key therefore moves only after it has been absent for a window, and
    is split over at most two workers.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 and H_2.
        window: Window of load and fragmentation; None for everything since the start.
    """

    def __init__(self, *, n_workers: int, seed: int = 0, window: WindowSpec = DEFAULT_WINDOW) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.reset()

    @property
    def max_workers_per_key(self) -> int:
        """At most two."""
        return min(2, self.n_workers)

    def _reset(self) -> None:
        super()._reset()
        self.members = family(self.seed, 2)

    def _decide(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> int:
        choices = candidates(keys, self.members, self.n_workers)
        return int(_cam(self.fragments, self.loads, choices, keys, times, costs, out))
