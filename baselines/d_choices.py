"""D-Choices: the head of the distribution gets d choices, the tail two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.baselines.pkg import least_of
from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.frequency import SpaceSaving, offer, space_saving
from dalton.envs.hashing import family
from dalton.envs.kernel import kernel
from dalton.envs.window import amount, lightest, put


@kernel
def _head_and_tail(
    s: Any, summary: Any, members: Any, d: Any, theta: Any, keys: Any, costs: Any, out: Any
) -> None:
    load, ring, clock, _, pace = s
    counts, size = summary.counts, summary.size
    for i in range(len(keys)):
        entry = offer(summary, keys[i])
        if counts[entry] < theta * size[1]:
            best = least_of(load, members, 2, keys[i])
        elif d < len(load):
            best = least_of(load, members, d, keys[i])
        else:
            best = lightest(load)
        put(load, ring, clock, best, amount(pace, costs, i, best))
        out[i] = best


def choices_for(head: NDArray[np.float64], n: int, epsilon: float) -> int:
    """The least d that lets the head be balanced, or n if none does (Section IV-A of the paper).

    For every prefix of the h most frequent keys of the head H, the b_h workers that they reach are expected
    to hold no more than their share:

        Σ_{i≤h} p_i + (b_h/n)^d Σ_{h<i≤|H|} p_i + (b_h/n)^2 Σ_{i>|H|} p_i <= b_h (1/n + ε),
        b_h = n - n ((n - 1)/n)^(h d)

    Args:
        head: Shares p_1 >= p_2 >= ... of the keys of the head, shape ``(|H|,)``.
        n: Number of workers.
        epsilon: Tolerated imbalance ε, as a fraction of the stream.
    """
    if not len(head):
        return min(2, n)
    prefix = np.cumsum(head)
    rest, tail = prefix[-1] - prefix, max(0.0, 1.0 - prefix[-1])
    h = np.arange(1, len(head) + 1)
    for d in range(max(2, int(np.ceil(head[0] / (1 / n + epsilon)))), n):
        reach = 1 - ((n - 1) / n) ** (h * d)  # b_h / n
        if np.all(prefix + reach**d * rest + reach**2 * tail <= n * reach * (1 / n + epsilon)):
            return d
    return n


class HeadChoices(LoadAware):
    """What D-Choices and W-Choices share: a SpaceSaving summary tells the head from the tail.

    A key is in the head while its estimated share is at least θ. Keys of the tail have two choices.
    """

    summary: SpaceSaving

    def __init__(self, *, n_workers: int, seed: int, theta: float | None, capacity: int | None) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.theta = None if theta is None else check_real("theta", theta, low=1e-6, high=1)
        self.capacity = None if capacity is None else check_int("capacity", capacity, low=1, high=2**31 - 1)
        # θ = 1/(5n) is the paper's choice. Four entries per possible head key keep the error at θ/4.
        self._theta = self.theta or 1 / (5 * n_workers)
        self._capacity = self.capacity or int(np.ceil(4 / self._theta))

    def _reset(self) -> None:
        super()._reset()
        self.summary = space_saving(self._capacity)
        self.members = family(self.seed, max(2, self.n_workers))

    def head(self) -> NDArray[np.float64]:
        """Estimated shares of the keys of the head, decreasing."""
        counts = np.sort(self.summary.counts)[::-1]
        total = max(1, int(self.summary.size[1]))
        return counts[counts >= self._theta * total] / total

    def _send(self, d: int, keys: Keys, costs: Costs, out: Workers) -> None:
        _head_and_tail(self.loads, self.summary, self.members, d, self._theta, keys, costs, out)


class DChoices(HeadChoices):
    """Frequent keys have as many choices as their share needs, the others two (D-Choices, ICDE 2016).

    Nasir et al., "When two choices are not enough". A key of the head goes to the least loaded of d hashed
    candidates, d the least that `choices_for` finds sufficient for the estimated head; when d reaches n all
    workers are candidates (W-Choices). d is computed again every ``refresh`` tuples.

    Args:
        n_workers: Number of workers n.
        seed: Chooses H_1 ... H_n.
        theta: Share θ that makes a key part of the head; None for 1/(5n).
        epsilon: Tolerated imbalance ε.
        capacity: Entries of the SpaceSaving summary; None for 4/θ.
        refresh: Tuples between two computations of d.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        theta: float | None = None,
        epsilon: float = 1e-4,
        capacity: int | None = None,
        refresh: int = 10_000,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, theta=theta, capacity=capacity)
        self.epsilon = check_real("epsilon", epsilon, above=0, high=1)
        self.refresh = check_int("refresh", refresh, low=1)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.d = min(2, self.n_workers)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        done = 0
        while done < len(keys):
            stop = done + self.refresh - int(self.summary.size[1]) % self.refresh
            self._send(self.d, keys[done:stop], costs[done:stop], out[done:stop])
            if stop <= len(keys):
                self.d = choices_for(self.head(), self.n_workers, self.epsilon)
            done = stop
