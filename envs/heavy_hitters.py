"""Heavy hitters from SpaceSaving summaries of the workers, merged (PKG Section 4.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.applications import Application, Floats, Ints, Workers
from dalton.envs.errors import check_int
from dalton.envs.frequency import SpaceSaving, offer, space_saving
from dalton.envs.kernel import kernel
from dalton.envs.word_count import WordCount


@kernel
def _offer_all(summaries: Any, keys: Any, workers: Any) -> None:
    names, counts, errors, heap, place, table, mark, size = summaries
    for i in range(len(keys)):
        w = workers[i]
        one = (names[w], counts[w], errors[w], heap[w], place[w], table[w], mark[w], size[w])
        offer(one, keys[i])


class Estimates(NamedTuple):
    """What the merged summaries say of the keys that any of them monitors."""

    keys: Ints
    """``(K,)``, the most frequent first."""
    counts: Ints
    """``(K,)`` estimated count f̂, the sum over the summaries that monitor the key."""
    errors: Ints
    """``(K,)`` by how much f̂ may be too high: the sum of their errors Δ_j."""
    summaries: Ints
    """``(K,)`` summaries that monitor the key: terms of these sums."""


class HeavyHitters(Application):
    """The k most frequent keys: every worker has a SpaceSaving summary, which are merged (PKG Section 4.2).

    The error of a key's count is at most the sum of the errors of the summaries that it went to, each at most
    m_j / c after m_j tuples: one with key grouping, two with PKG, all n with shuffle grouping. With balanced
    loads, m_j = m / n, that is m / (n c), 2 m / (n c) and m / c.

    Args:
        n_workers: Number of workers n.
        capacity: Entries c of a summary.
        top: Keys k asked for.
    """

    def __init__(self, *, n_workers: int, capacity: int = 1000, top: int = 100) -> None:
        super().__init__(n_workers=n_workers)
        self.capacity = check_int("application.capacity", capacity, low=1)
        self.top = check_int("application.top", top, low=1)
        self.reset()

    summaries: SpaceSaving
    """Arrays with a leading dimension n."""

    def reset(self) -> None:
        """Forget all counts."""
        columns = zip(*(space_saving(self.capacity) for _ in range(self.n_workers)), strict=True)
        self.summaries = SpaceSaving(*(np.stack(column) for column in columns))

    def single(self) -> WordCount:
        """What the answer is compared with: exact counts, for which one worker has memory enough."""
        return WordCount(n_workers=1)

    def observe(self, keys: Ints, workers: Workers, values: Floats) -> None:
        """Take the tuples of a batch, shapes ``(m,)``; values are not looked at."""
        _offer_all(self.summaries, keys, workers)

    @property
    def memory(self) -> Ints:
        """Entries of every worker, shape ``(n,)``."""
        return self.summaries.size[:, 0].copy()

    @property
    def work(self) -> Ints:
        """Tuples of every worker, shape ``(n,)``."""
        return self.summaries.size[:, 1].copy()

    @property
    def merged(self) -> int:
        """Entries on all workers."""
        return int(self.memory.sum())

    def answer(self) -> Estimates:
        """The merged summaries."""
        s = self.summaries
        live: NDArray[np.bool_] = np.arange(self.capacity) < s.size[:, :1]
        keys, at = np.unique(s.keys[live], return_inverse=True)
        counts, errors, summaries = np.zeros((3, len(keys)), np.int64)
        np.add.at(counts, at, s.counts[live])
        np.add.at(errors, at, s.errors[live])
        np.add.at(summaries, at, 1)
        order = np.lexsort((keys, -counts))
        return Estimates(keys[order], counts[order], errors[order], summaries[order])

    def estimate(self, keys: Ints) -> Ints:
        """f̂ of the given keys, shape ``(m,)``; 0 of one that no summary monitors."""
        found = self.answer()
        order = np.argsort(found.keys)
        at = np.minimum(np.searchsorted(found.keys, keys, sorter=order), len(order) - 1)
        known = found.keys[order[at]] == keys
        return np.where(known, found.counts[order[at]], 0)

    def error(self, single: WordCount) -> float:
        """Mean of |f̂ - f| over the k keys that are most frequent indeed, as a fraction of all tuples."""
        keys, counts = single.answer()
        if not len(keys):
            return 0.0
        most = np.argsort(-counts[:, 0], kind="stable")[: self.top]
        wrong = np.abs(self.estimate(keys[most]) - counts[most, 0])
        return float(wrong.mean() / counts.sum())
