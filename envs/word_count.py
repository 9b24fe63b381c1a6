"""Applications that count: windowed word count, and the counts of a naïve Bayes classifier."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.applications import CellApplication

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Counts(NamedTuple):
    """Tuples per key and class."""

    keys: Ints
    """``(K,)`` in increasing order."""
    counts: Ints
    """``(K, C)``."""


class NaiveBayes(CellApplication):
    """How often a word goes with a class, a counter per word, class and worker (PKG Sections 2.1 and 3.1).

    Partial counts add up to the exact ones whatever the partitioner: key grouping has a counter per word and
    class, PKG at most 2, shuffle grouping up to n.

    Args:
        n_workers: Number of workers n.
    """

    counts: Ints

    def reset(self) -> None:
        """Forget all counts."""
        super().reset()
        self.counts = np.zeros(0, np.int64)

    def _observe(self, rows: Ints, values: Floats) -> None:
        more = np.bincount(rows, minlength=self.cells.used)
        more[: len(self.counts)] += self.counts
        self.counts = more

    def answer(self) -> Counts:
        """The merged counts."""
        keys, labels = self.cells.keys, self.cells.labels
        totals = np.zeros((len(keys), self.classes), np.int64)
        np.add.at(totals, (self.cells.codes, labels), self.counts)
        order = np.argsort(keys)
        return Counts(keys[order], totals[order])

    def error(self, single: NaiveBayes) -> float:
        """Σ |f̂ - f| / Σ f over words and classes: 0, since counts are exact."""
        mine, other = self.answer(), single.answer()
        if not np.array_equal(mine.keys, other.keys):
            return 1.0
        return float(np.abs(mine.counts - other.counts).sum() / max(1, other.counts.sum()))

    def predict(self, words: Ints) -> int:
        """The likeliest class of a document: argmax_C log P(C) + Σ_i log P(x_i | C), counts plus one."""
        keys, counts = self.answer()
        per_class = counts.sum(axis=0)
        likelihood = np.log((per_class + 1.0) / (per_class.sum() + len(per_class)))
        at = np.searchsorted(keys, words)
        known = at < len(keys)
        known[known] = keys[at[known]] == words[known]
        found = np.zeros((len(words), self.classes), np.int64)
        found[known] = counts[at[known]]
        likelihood += np.log((found + 1.0) / (per_class + len(keys) + 1.0)).sum(axis=0)
        return int(np.argmax(likelihood))


class WordCount(NaiveBayes):
    """Tuples per key: a counter per key and worker (Dalton Section 5; PKG Section 6).

    Args:
        n_workers: Number of workers n.
    """

    classes: ClassVar[int] = 1

    def observe(self, keys: Ints, workers: NDArray[np.int32], values: Floats) -> None:
        """Take the tuples of a batch, shapes ``(m,)``; values are not looked at."""
        super().observe(keys, workers, np.zeros(len(keys)))
