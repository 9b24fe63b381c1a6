"""Round robin, the baseline of OSG."""

from __future__ import annotations

import numpy as np

from dalton.baselines.sg import ShuffleGrouping


class RoundRobin(ShuffleGrouping):
    """Tuple t to worker t mod n (OSG Section 2): shuffle grouping that starts at worker 0 with every seed.

    Args:
        n_workers: Number of workers n; k in the paper.
        seed: Not used; runs that differ in the seed alone differ in nothing.
    """

    def _reset(self) -> None:
        self.next = np.zeros(1, np.int64)
