"""Static power of two choices: a key chooses once."""

from __future__ import annotations

from typing import Any

from dalton.baselines.pkg import least_of
from dalton.baselines.sticky import Sticky
from dalton.envs.contract import Costs, Keys, Times, Workers
from dalton.envs.hashing import family
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, find, is_full
from dalton.envs.window import amount, put


@kernel
def _potc(s: Any, table: Any, mark: Any, used: Any, members: Any, keys: Any, costs: Any, out: Any) -> Any:
    load, ring, clock, _, pace = s
    for i in range(len(keys)):
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            if is_full(table, used):
                return i
            table[slot] = keys[i]
            mark[slot] = least_of(load, members, 2, keys[i])
            used[0] += 1
        out[i] = mark[slot]
        put(load, ring, clock, out[i], amount(pace, costs, i, out[i]))
    return len(keys)


class StaticTwoChoices(Sticky):
    """The less loaded of two hashed workers when the key is new, then always that (PKG Section 3.1).

        P(k) = argmin_{i in {H_1(k), H_2(k)}} L_i(first occurrence of k)

    The price is a routing table with an entry per key, here 17 to 34 bytes, and on a real system agreement
    between the sources.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 and H_2.
    """

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.members = family(self.seed, 2)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        r = self.routes
        r.drive(
            len(keys),
            lambda i: (
                i + _potc(self.loads, r.keys, r.mark, r.used, self.members, keys[i:], costs[i:], out[i:])
            ),
        )
