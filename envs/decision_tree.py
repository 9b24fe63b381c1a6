"""Histograms of a streaming parallel decision tree (Ben-Haim and Tom-Tov, JMLR 11, 2010; PKG Section 4.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dalton.envs.applications import CellApplication, Floats, Ints
from dalton.envs.errors import check_int
from dalton.envs.kernel import kernel

POINTS = np.arange(1, 20) / 20.0


@kernel
def _shrink(centres: Any, counts: Any, size: Any) -> None:
    """Replace the two closest bins of ``size`` sorted ones by their weighted mean; of equals the first."""
    best = 0
    for j in range(1, size - 1):
        if centres[j + 1] - centres[j] < centres[best + 1] - centres[best]:
            best = j
    both = counts[best] + counts[best + 1]
    centres[best] = (centres[best] * counts[best] + centres[best + 1] * counts[best + 1]) / both
    counts[best] = both
    for j in range(best + 1, size - 1):
        centres[j], counts[j] = centres[j + 1], counts[j + 1]


@kernel
def add_point(centres: Any, counts: Any, size: Any, x: Any, weight: Any) -> Any:
    """Add ``weight`` tuples of value ``x`` to a histogram (Algorithm 1); returns its number of bins.

    Args:
        centres: ``(B + 1,)`` the centres, increasing; one place more than bins.
        counts: ``(B + 1,)`` tuples of every bin.
        size: Bins in use.
        x: The value.
        weight: Its tuples.
    """
    at = size
    while at > 0 and centres[at - 1] >= x:
        at -= 1
    if at < size and centres[at] == x:
        counts[at] += weight
        return size
    for j in range(size, at, -1):
        centres[j], counts[j] = centres[j - 1], counts[j - 1]
    centres[at], counts[at] = x, weight
    if size + 1 < len(centres):
        return size + 1
    _shrink(centres, counts, size + 1)
    return size


@kernel
def below(centres: Any, counts: Any, size: Any, b: Any) -> Any:
    """Estimated tuples with a value of at most ``b`` (Algorithm 3: trapezoids between the centres).

    A bin has half of its tuples on either side of its centre. Outside the first and the last centre, where
    the paper leaves it open, that half counts as being at the centre.
    """
    if size == 0 or b < centres[0]:
        return 0.0
    total = 0.0
    for j in range(size):
        if j == size - 1 or b < centres[j + 1]:
            if j == size - 1:
                return total + counts[j]
            part = (b - centres[j]) / (centres[j + 1] - centres[j])
            height = counts[j] + (counts[j + 1] - counts[j]) * part
            return total + counts[j] / 2.0 + (counts[j] + height) / 2.0 * part
        total += counts[j]
    return total


@kernel
def _add_all(centres: Any, counts: Any, sizes: Any, rows: Any, values: Any) -> None:
    for i in range(len(rows)):
        row = rows[i]
        x = values[i] - np.floor(values[i])
        sizes[row] = add_point(centres[row], counts[row], sizes[row], x, 1.0)


@kernel
def _merge(centres: Any, counts: Any, sizes: Any, groups: Any, merged: Any, tuples: Any, bins: Any) -> None:
    for row in range(len(groups)):
        g = groups[row]
        for j in range(sizes[row]):
            bins[g] = add_point(merged[g], tuples[g], bins[g], centres[row, j], counts[row, j])


@kernel
def _ranks(centres: Any, counts: Any, sizes: Any, points: Any, out: Any) -> None:
    for row in range(len(sizes)):
        for j in range(len(points)):
            out[row, j] = below(centres[row], counts[row], sizes[row], points[j])


class Ranks(NamedTuple):
    """What the merged histograms say of every feature and class."""

    keys: Ints
    """``(D,)`` features in increasing order."""
    below: Floats
    """``(D, C, P)`` estimated tuples up to each of the points 0.05, 0.10, ..., 0.95."""
    tuples: Floats
    """``(D, C)`` tuples."""

    def splits(self) -> Floats:
        """The test value of every feature, shape ``(D,)``: the point of the least Gini impurity."""
        right = self.tuples[:, :, None] - self.below
        impurity = np.zeros((len(self.keys), self.below.shape[2]))
        for side in (self.below, right):
            total = side.sum(axis=1)
            impurity += total - np.square(side).sum(axis=1) / np.maximum(total, 1e-9)
        best: Floats = POINTS[impurity.argmin(axis=1)] if len(self.keys) else np.empty(0)
        return best


class DecisionTree(CellApplication):
    """Histograms of every feature and class, from which a tree's root takes its test (PKG Section 4.1).

    A key is a feature, a tuple one value of it with its class. Every worker has a histogram of at most B bins
    for each feature and class of its tuples. To try a split, those of a feature and class are merged: n of
    them with shuffle grouping, two with PKG.

    Args:
        n_workers: Number of workers n.
        bins: Bins B of a histogram.
    """

    def __init__(self, *, n_workers: int, bins: int = 32) -> None:
        self.bins = check_int("application.bins", bins, low=2)
        super().__init__(n_workers=n_workers)

    centres: Floats
    counts: Floats
    sizes: Ints

    def reset(self) -> None:
        """Forget all histograms."""
        super().reset()
        self.centres, self.counts = np.zeros((2, 0, self.bins + 1))
        self.sizes = np.zeros(0, np.int64)

    def _observe(self, rows: Ints, values: Floats) -> None:
        need, have = self.cells.used, len(self.sizes)
        if need > have:
            more = max(need, 2 * have) - have
            self.sizes = np.concatenate([self.sizes, np.zeros(more, np.int64)])
            empty = np.zeros((more, self.bins + 1))
            self.centres = np.concatenate([self.centres, empty])
            self.counts = np.concatenate([self.counts, empty])
        _add_all(self.centres, self.counts, self.sizes, rows, values)

    @property
    def memory(self) -> Ints:
        """Bins in use on every worker, shape ``(n,)``."""
        used = self.cells.used
        held = np.bincount(self.cells.workers, self.sizes[:used], minlength=self.n_workers)
        return held.astype(np.int64)

    def answer(self) -> Ranks:
        """The merged histograms, at the points."""
        keys, codes, labels = self.cells.keys, self.cells.codes, self.cells.labels
        shape = len(keys), self.classes
        groups = codes * self.classes + labels
        merged, tuples = np.zeros((2, len(keys) * self.classes, self.bins + 1))
        bins = np.zeros(len(keys) * self.classes, np.int64)
        _merge(self.centres, self.counts, self.sizes, groups, merged, tuples, bins)
        ranks = np.empty((len(bins), len(POINTS)))
        _ranks(merged, tuples, bins, POINTS, ranks)
        order = np.argsort(keys)
        totals = (tuples * (np.arange(self.bins + 1) < bins[:, None])).sum(axis=1)
        return Ranks(keys[order], ranks.reshape(*shape, len(POINTS))[order], totals.reshape(shape)[order])

    def error(self, single: DecisionTree) -> float:
        """Mean over points of |F̂ - F|, F the share of values up to a point, weighted by tuples."""
        mine, other = self.answer(), single.answer()
        whole = other.tuples.sum()
        return float(np.abs(mine.below - other.below).mean(axis=2).sum() / whole) if whole else 0.0
