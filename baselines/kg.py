"""Key grouping: hash the key."""

from __future__ import annotations

from dalton.envs.contract import Costs, Keys, Partitioner, Times, Workers
from dalton.envs.hashing import hash_workers, member


class KeyGrouping(Partitioner):
    """Hashing: every tuple of a key goes to worker H(k) mod n (PKG Section 2.2).

    No split and no merge; the straggler gets at least the share p1 of the most frequent key.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H.
    """

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    @property
    def max_workers_per_key(self) -> int:
        """One."""
        return 1

    def _reset(self) -> None:
        self.member = member(self.seed)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        hash_workers(keys, self.member, self.n_workers, out)
