"""Consistent grouping: PoRC over virtual workers."""

from __future__ import annotations

import numpy as np

from dalton.baselines.porc import SALTS_PER_WORKER, memo, power_of_random_choices
from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.hashing import family
from dalton.envs.window import LoadState, load_state, pace_of


class ConsistentGrouping(LoadAware):
    """PoRC over virtual workers, which belong to the workers (CG Section IV).

        virtual worker v = PoRC(k) among α n bins,   worker = owner[v]

    Every virtual worker gets the same share of the stream, so a worker's share is the number of virtual
    workers it owns: owner[v] = v mod n here, as among equal workers.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the salts of PoRC.
        virtual: Virtual workers per worker, α; the paper's 10 to 100 is a good range (Fig. 10).
        epsilon: Slack ε of PoRC.
    """

    def __init__(self, *, n_workers: int, seed: int = 0, virtual: int = 10, epsilon: float = 0.01) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.virtual = check_int("virtual", virtual, low=1, high=10_000)
        self.epsilon = check_real("epsilon", epsilon, above=0, high=10)
        self.reset()

    def _reset(self) -> None:
        bins = self.virtual * self.n_workers
        # Virtual workers are all alike, whatever the capacity of their owners.
        self.loads = load_state(bins, None, None if self.pace is None else pace_of("time", None, bins))
        self.memo = memo()
        self.members = family(self.seed, min(SALTS_PER_WORKER * bins, 65535))
        self.owner = (np.arange(bins) % self.n_workers).astype(np.int32)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        power_of_random_choices(self.loads, self.memo, self.members, self.epsilon, keys, times, costs, out)
        np.take(self.owner, out, out=out)

    def probe(self, truth: LoadState, total: Keys) -> None:
        """Nothing: the workers cannot tell the loads of virtual workers apart."""
