"""W-Choices: the head of the distribution may go anywhere, the tail has two choices."""

from __future__ import annotations

from dalton.baselines.d_choices import HeadChoices
from dalton.envs.contract import Costs, Keys, Times, Workers


class WChoices(HeadChoices):
    """Frequent keys go to the least loaded of all workers, others have two choices (W-Choices, ICDE 2016).

    Nasir et al., "When two choices are not enough":

        P_t(k) = argmin_i L_i(t) over all workers if k is in the head, over H_1(k), H_2(k) if not

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 and H_2.
        theta: Share θ that makes a key part of the head; None for 1/(5n).
        capacity: Entries of the SpaceSaving summary; None for 4/θ.
    """

    def __init__(
        self, *, n_workers: int, seed: int = 0, theta: float | None = None, capacity: int | None = None
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, theta=theta, capacity=capacity)
        self.reset()

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        self._send(self.n_workers, keys, costs, out)
