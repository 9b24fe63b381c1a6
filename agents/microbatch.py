"""Dalton for micro-batches: all tuples of a batch are seen before the first is sent."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from dalton.agents.dalton import Dalton
from dalton.agents.qtable import forget_values, more_rows, qtable, row_of, take_row, turn
from dalton.agents.statistics import stats
from dalton.envs.contract import Costs, Keys, Times, Workers
from dalton.envs.hashing import candidates
from dalton.envs.hotness import NUMBER
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, encode
from dalton.envs.window import DEFAULT_WINDOW, WindowSpec


@kernel
def _heat(t: Any, keys: Any, counts: Any, homes: Any, window: Any, share: Any, initial: Any) -> None:
    """Make ``keys`` hot in this batch and the next (there must be rows for all of them)."""
    for i in range(len(keys)):
        row = row_of(t, keys[i])
        if row == EMPTY:
            row = take_row(t, keys[i], homes[i])
        if t.until[row] < window:
            forget_values(t, row, initial)
        t.until[row] = window + 1
        t.share[row] = counts[i] * share


class DaltonMicroBatch(Dalton):
    """Dalton for micro-batches: hot keys by the batch's own counts, fragments within the batch (Section 3.4).

    Combiners aggregate per micro-batch, so what is merged is the number of workers that hold a key *in the
    batch*; loads are still those of the window. Since the whole batch is seen first, a key is hot in it if
    its count there reaches m / (c n), m the tuples of the batch, and in the next batch as well.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the hashed worker and the draws of exploration.
        window: Window of the load.
        epsilon: See `Dalton`; so are the others.
        epsilon_decay: See `Dalton`.
        gamma: See `Dalton`.
        p1: See `Dalton`.
        initial_q: See `Dalton`.
        hot_factor: See `Dalton`.
        explore: See `Dalton`.
        max_split: See `Dalton`.
    """

    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "batch"

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        window: WindowSpec = DEFAULT_WINDOW,
        epsilon: float = 0.1,
        epsilon_decay: float = 0.0,
        gamma: float = 0.1,
        p1: float = 0.5,
        initial_q: float = -2.0,
        hot_factor: float = 1.0,
        explore: str = "uniform",
        max_split: int | None = None,
    ) -> None:
        super().__init__(
            n_workers=n_workers,
            seed=seed,
            window=window,
            epsilon=epsilon,
            epsilon_decay=epsilon_decay,
            gamma=gamma,
            p1=p1,
            initial_q=initial_q,
            hot_factor=hot_factor,
            explore=explore,
            max_split=max_split,
            statistics="exact",
        )

    def _reset(self) -> None:
        super()._reset()
        self.stats = stats("given", 1, 0)
        self.qtable = qtable(self.n_workers, 1)
        self.span[:] = 0.0, np.inf, np.inf, 0.0, np.inf

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        batch = encode(keys)
        hot = np.flatnonzero(batch.counts >= math.ceil(len(keys) / (self.hot_factor * self.n_workers)))
        self.span[NUMBER] += 1
        number = int(self.span[NUMBER])
        turn(self.qtable, number, 1, number)
        while self.qtable.spare[0] <= len(hot):
            self.qtable = more_rows(self.qtable)
        homes = candidates(batch.distinct[hot], self.members, self.n_workers)[0]
        share = self.n_workers / len(keys)
        _heat(self.qtable, batch.distinct[hot], batch.counts[hot], homes, number, share, self.initial_q)
        super()._route(keys, times, costs, out)
