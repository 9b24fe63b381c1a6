"""CM: among two candidates, the one with fewer distinct keys."""

from __future__ import annotations

from typing import Any

from dalton.envs.cluster import expire, has_room, slot_of, split
from dalton.envs.contract import Costs, Keys, SplitAware, Times, Workers
from dalton.envs.hashing import candidates, family
from dalton.envs.kernel import kernel
from dalton.envs.window import DEFAULT_WINDOW, HEAD, WindowSpec, amount, put, tick


@kernel
def _cm(f: Any, s: Any, choices: Any, keys: Any, times: Any, costs: Any, out: Any) -> Any:
    slots, more, used, counts, totals, shape = f
    load, ring, clock, edge, pace = s
    for i in range(len(keys)):
        if not has_room(slots, more, used, clock):
            return i
        passed = tick(load, ring, clock, edge, times, i)
        if passed > 0:
            expire(counts, totals, clock[HEAD], passed)
        key = keys[i]
        best, other = choices[0, i], choices[1, i]
        if totals[1 + other] < totals[1 + best]:
            best = other
        put(load, ring, clock, best, amount(pace, costs, i, best))
        split(slots, more, used, counts, totals, shape, clock, slot_of(slots, key), key, best)
        out[i] = best
    return len(keys)


class CardinalityMinimising(SplitAware):
    """Of two hashed workers, the one with fewer distinct keys (CM, VLDB 2017).

    CM of Katsipoulakis et al., as Dalton Section 5 compares against it:

        P_t(k) = argmin_{i in {H_1(k), H_2(k)}} ||C_i||,   C_i = distinct keys on worker i in the window

    It balances the number of keys, which is what an aggregation's memory and output cost, not the tuples.
    A tie takes the first candidate.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 and H_2.
        window: Window of the cardinality; None for everything since the start.
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
        return int(_cm(self.fragments, self.loads, choices, keys, times, costs, out))
