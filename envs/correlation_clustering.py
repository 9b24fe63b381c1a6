"""Correlation clustering: quadratic combiners, and reducers that compare clusters (Dalton Section 5).

Items of the same key are compared, e.g. the voters of a postcode. The weight of a pair is +1 if the two look
like the same entity and -1 if not; a clustering should have the positive pairs inside and the negative ones
across.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.applications import Application, Floats, Ints, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.hashing import mix64
from dalton.envs.kernel import kernel
from dalton.envs.window import check_workers


@kernel
def weight(x: Any, y: Any, entities: Any, noise: Any) -> Any:
    """+1 if x and y are of the same of ``entities`` equal parts of [0, 1), else -1; ``noise`` of them wrong.

    Whether it is wrong is a hash of the two, the same whenever they are compared.
    """
    same = np.int64(x * entities) == np.int64(y * entities)
    low, high = np.uint64(min(x, y) * 2.0**53), np.uint64(max(x, y) * 2.0**53)
    drawn = (
        np.float64(np.int64(mix64(low * np.uint64(0x9E3779B97F4A7C15) + high) >> np.uint64(11))) * 2.0**-53
    )
    return 1 if same == (drawn >= noise) else -1


@kernel
def vote(items: Any, entities: Any, noise: Any, votes: Any, out: Any) -> Any:
    """VOTE (Elsner and Schudy, ILP-NLP 2009): an item joins the cluster with the largest positive net weight.

    Args:
        items: ``(m,)`` in order of arrival.
        entities: Number of entities.
        noise: Probability that a weight is wrong.
        votes: ``(m,)`` room for the net weights.
        out: ``(m,)`` the clusters, from 0 on.

    Returns:
        The number of clusters.
    """
    clusters = 0
    for i in range(len(items)):
        for c in range(clusters):
            votes[c] = 0
        for j in range(i):
            votes[out[j]] += weight(items[i], items[j], entities, noise)
        best = clusters
        for c in range(clusters):
            if votes[c] > 0 and (best == clusters or votes[c] > votes[best]):
                best = c
        out[i] = best
        clusters = max(clusters, best + 1)
    return clusters


@kernel
def _vote_all(items: Any, starts: Any, entities: Any, noise: Any, votes: Any, out: Any, sizes: Any) -> None:
    for cell in range(len(starts) - 1):
        part = slice(starts[cell], starts[cell + 1])
        sizes[cell] = vote(items[part], entities, noise, votes, out[part])


@kernel
def greedy(items: Any, clusters: Any, entities: Any, noise: Any, net: Any, joined: Any) -> None:
    """GREEDY: join the two clusters with the largest positive net weight between them, while there are any.

    Args:
        items: ``(m,)``.
        clusters: ``(m,)`` the cluster of every item; replaced by the joined one, which has the number of the
            first of its parts.
        entities: Number of entities.
        noise: Probability that a weight is wrong.
        net: ``(c, c)`` room for the net weights.
        joined: ``(c,)`` room for what became of every cluster.
    """
    c = len(joined)
    net[:] = 0
    for i in range(len(items)):
        for j in range(i):
            if clusters[i] != clusters[j]:
                w = weight(items[i], items[j], entities, noise)
                net[clusters[i], clusters[j]] += w
                net[clusters[j], clusters[i]] += w
    for a in range(c):
        joined[a] = a
    while True:
        one, other, most = 0, 0, 0
        for a in range(c):
            for b in range(a + 1, c):
                if joined[a] == a and joined[b] == b and net[a, b] > most:
                    one, other, most = a, b, net[a, b]
        if most == 0:
            break
        for a in range(c):
            net[one, a] += net[other, a]
            net[a, one] = net[one, a]
            if joined[a] == other:
                joined[a] = one
    for i in range(len(items)):
        clusters[i] = joined[clusters[i]]


class Clusters(NamedTuple):
    """The merged clustering of all items, in order of arrival."""

    keys: Ints
    """``(m,)``."""
    clusters: Ints
    """``(m,)`` numbers that mean something among items of the same key only."""


class CorrelationClustering(Application):
    """Clusters the items of every key: VOTE on the workers, GREEDY where a key was split (Dalton Section 5).

    A worker compares an item with all that it has of the key, so its work grows with the square of a key's
    tuples, unlike the load that the reward knows; and to merge, clusters of different workers are compared
    item by item.

    Args:
        n_workers: Number of workers n.
        entities: Entities of a key.
        noise: Probability that two items are compared wrongly.
    """

    def __init__(self, *, n_workers: int, entities: int = 4, noise: float = 0.05) -> None:
        super().__init__(n_workers=n_workers)
        self.entities = check_int("application.entities", entities, low=1)
        self.noise = check_real("application.noise", noise, low=0, high=1)
        self.reset()

    def reset(self) -> None:
        """Forget all items."""
        self.batches: list[tuple[Ints, Workers, Floats]] = []
        self._voted: tuple[Any, ...] | None = None

    def observe(self, keys: Ints, workers: Workers, values: Floats) -> None:
        """Take the tuples of a batch, shapes ``(m,)``; the fraction of a value is the item."""
        check_workers(workers, self.n_workers)
        self.batches.append((keys.copy(), workers.copy(), values - np.floor(values)))
        self._voted = None

    def _cells(self) -> tuple[Any, ...]:
        """Keys and items in order of arrival, and VOTE's clusters in that of the cells, which are contiguous.

        Clusters are looked for when they are asked for: VOTE takes items in order of arrival, then as now.
        """
        if self._voted is None:
            empty = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0))
            keys, workers, items = (np.concatenate(part) for part in zip(empty, *self.batches, strict=True))
            order = np.lexsort((np.arange(len(keys)), workers, keys))
            changed = (np.diff(keys[order]) != 0) | (np.diff(workers[order]) != 0)
            starts = (
                np.concatenate([[0], np.flatnonzero(changed) + 1, [len(keys)]]) if len(keys) else np.zeros(1)
            )
            starts = starts.astype(np.int64)
            sizes, clusters = np.zeros(len(starts) - 1, np.int64), np.zeros(len(keys), np.int64)
            votes = np.zeros(len(keys), np.int64)
            _vote_all(items[order], starts, self.entities, self.noise, votes, clusters, sizes)
            self._voted = keys, workers, items, order, starts, sizes, clusters
        return self._voted

    @property
    def memory(self) -> Ints:
        """Items of every worker, shape ``(n,)``."""
        return np.bincount(self._cells()[1], minlength=self.n_workers)

    @property
    def work(self) -> Ints:
        """Pairs that every worker compares, shape ``(n,)``, and one operation per item."""
        _, workers, _, order, starts, _, _ = self._cells()
        items = np.diff(starts)
        pairs = items * (items - 1) // 2 + items
        owner = workers[order][starts[:-1]]
        return np.bincount(owner, pairs, minlength=self.n_workers).astype(np.int64)

    @property
    def merged(self) -> int:
        """Clusters of the workers."""
        return int(self._cells()[5].sum())

    def answer(self) -> Clusters:
        """The clustering: VOTE's of a key on one worker, else the workers' clusters joined by GREEDY."""
        keys, _, items, order, starts, sizes, voted = self._cells()
        clusters = voted.copy()
        firsts = keys[order][starts[:-1]]
        bounds = np.concatenate([[0], np.flatnonzero(np.diff(firsts)) + 1, [len(firsts)]])
        for low, high in itertools.pairwise(bounds):
            if high - low < 2:
                continue
            # Clusters of different cells are different: number them on.
            offsets = np.cumsum(sizes[low:high]) - sizes[low:high]
            part = slice(starts[low], starts[high])
            clusters[part] += np.repeat(offsets, np.diff(starts[low : high + 1]))
            count = int(sizes[low:high].sum())
            room = np.empty((count, count), np.int64), np.empty(count, np.int64)
            greedy(items[order[part]], clusters[part], self.entities, self.noise, *room)
        out = np.empty(len(keys), np.int64)
        out[order] = clusters
        return Clusters(keys, out)

    def error(self, single: CorrelationClustering) -> float:
        """Share of the pairs of items of the same key that one of the two has in a cluster, not the other.

        That is 1 minus the Rand index.
        """
        keys, mine = self.answer()
        _, other = single.answer()
        together = _pairs(keys, mine) + _pairs(keys, other) - 2 * _pairs(keys, mine, other)
        return together / max(1, _pairs(keys))


def _pairs(*columns: NDArray[np.int64]) -> int:
    """Pairs of items that agree in all columns."""
    _, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())
