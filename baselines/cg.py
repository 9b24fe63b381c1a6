"""Consistent grouping: PoRC over virtual workers, which move from busy workers to idle ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dalton.baselines.ownership import BUSY, FINE, IDLE, SILENT, is_quiet, ownership, to_owners
from dalton.baselines.porc import SALTS_PER_WORKER, memo, power_of_random_choices
from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import ConfigError, check_flag, check_int, check_real, shown
from dalton.envs.hashing import family
from dalton.envs.window import LoadState, check_order, load_state, pace_of


class ConsistentGrouping(LoadAware):
    """PoRC over virtual workers, which belong to the workers in proportion to their capacity (CG Section IV).

        virtual worker v = PoRC(k) among α n bins,   worker = owner[v]

    The bins are equal arcs of the hash ring, and every one gets the same share of the stream, so a worker's
    share is the number of virtual workers it owns: α at first, owner[v] = v mod n. Sources know no
    capacities. Workers do, each its own, and say so (Section IV-B): after every time slot t0 a worker
    compares its utilisation, work sent to it over work it could have done (Table III),

        U_w > ``busy``: fewer virtual workers, please;   U_w < ``idle``: more, please.

    - The signal rides on an acknowledgement (Section IV-C): a source hears it ``delay`` seconds after it sent
      that worker a tuple, the first one since the slot ended, and not before. So each source hears in its own
      time and order; in the end they agree on how much a worker can bear, not on which virtual worker is
      where.
    - A source keeps the busy and the idle workers in a queue each, first come first served. While neither is
      empty, a virtual worker of the first busy one goes to the first idle one, and both must ask again for
      more: every removal is an addition, and their number stays α n. A worker keeps its place while it
      repeats itself, and loses it when it is heard without a signal.
    - With ``spill`` a busy worker that finds none idle gives to the one that is not busy and was so least
      recently (Section V-A). Without it, it waits (Section IV-B): all others may then be between the
      thresholds and take nothing, while it stays overloaded for good. If all are busy, all wait.
    - Only later tuples follow a virtual worker (Section IV-D): nothing migrates. What its keys left behind is
      merged by the reducers, with the partial results of split keys, at the end of the window.

    Open in the paper, and here: the virtual worker that came last moves first; nobody gives its last one, as
    without tuples there are no acknowledgements to ask on; while a signal is under way, the next one waits.
    For the same reason a worker that has failed is silent, and is sent tuples until it recovers.

    The driver measures U_w and `report`s it: the simulator does where there is a queue model, with capacities
    that may differ and change. Without reports all workers are taken for equal.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the salts of PoRC.
        virtual: Virtual workers per worker, α; the paper's 10 to 100 is a good range (Fig. 10).
        epsilon: Slack ε of PoRC.
        busy: Utilisation above which a worker asks for less.
        idle: Utilisation below which it asks for more; at most ``busy``.
        slot: Time slot t0 in seconds: how long a worker watches before it speaks.
        delay: Seconds from sending a tuple until its acknowledgement.
        spill: Whether busy workers give also where none is idle; false pairs strictly as Section IV-B does.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        virtual: int = 10,
        epsilon: float = 0.01,
        busy: float = 0.85,
        idle: float = 0.75,
        slot: float = 60.0,
        delay: float = 1.0,
        spill: bool = True,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.virtual = check_int("virtual", virtual, low=1, high=10_000)
        self.epsilon = check_real("epsilon", epsilon, above=0, high=10)
        self.busy = check_real("busy", busy, above=0)
        self.idle = check_real("idle", idle, low=0, high=self.busy)
        self.slot: float = check_real("slot", slot, above=0)
        self.delay = check_real("delay", delay, low=0)
        self.spill = check_flag("spill", spill)
        self.reset()

    def _reset(self) -> None:
        bins = self.virtual * self.n_workers
        # Virtual workers are all alike, whatever the capacity of their owners.
        self.loads = load_state(bins, None, None if self.pace is None else pace_of("time", None, bins))
        self.memo = memo()
        self.members = family(self.seed, min(SALTS_PER_WORKER * bins, 65535))
        self.ownership = ownership(self.virtual, self.n_workers)

    @property
    def owner(self) -> Workers:
        """Worker of every virtual worker, shape ``(α n,)``."""
        return self.ownership.owner

    @property
    def moves(self) -> int:
        """Virtual workers moved so far."""
        return int(self.ownership.moves[0])

    def report(self, utilisation: ArrayLike) -> None:
        """Have every worker compare its utilisation of the last slot, shape ``(n,)``, with the thresholds."""
        measured = np.array(utilisation, np.float64)
        if measured.shape != (self.n_workers,):
            raise ConfigError(
                f"utilisation = {shown(utilisation)}: expected {self.n_workers} numbers, one per worker"
            )
        says = np.full(self.n_workers, FINE)
        says[measured < self.idle] = IDLE
        says[measured > self.busy] = BUSY
        says[np.isnan(measured)] = SILENT
        self.ownership.says[:] = says

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        if not is_quiet(self.ownership):
            if not len(times):
                raise ConfigError("times = None: acknowledgements need the arrival time of every tuple")
            check_order(self.loads.edge, times)
        power_of_random_choices(self.loads, self.memo, self.members, self.epsilon, keys, times, costs, out)
        to_owners(self.ownership, self.delay, self.spill, times, out)

    def probe(self, truth: LoadState, total: Keys) -> None:
        """Nothing: the workers cannot tell the loads of virtual workers apart."""
