"""What is measured: one definition of each quantity, with its source.

Symbols: n workers; L_i tuples of worker i; c_i its capacity, mean 1; m tuples in all; K distinct keys; c_k
tuples of key k; a *pair* is a (key, worker) with at least one tuple. Windowed quantities are over the tuples
of the window, at the end of a slide.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.envs.frequency import count
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, KeyMap, find, is_full, remove

Loads = NDArray[Any]
Ints = NDArray[np.int64]


def imbalance(load: Loads) -> float:
    """I = max_i L_i - avg_i L_i in tuples (PKG Section 2.1). ``load`` has shape ``(n,)``."""
    return float(load.max() - load.mean())


def max_over_mean(load: Loads) -> float:
    """max_i L_i / avg_i L_i: how much longer the slowest worker takes than the average one; 1 if empty."""
    mean = load.mean()
    return float(load.max() / mean) if mean else 1.0


def capacity_imbalance(load: Loads, capacity: Loads) -> float:
    """max_i L_i/c_i - avg_i L_i/c_i, capacities scaled to mean 1 (CG Section III). Shapes ``(n,)``.

    Where load is time, it is over capacity already, and this is its `imbalance`.
    """
    return imbalance(load / (capacity / capacity.mean()))


def std_dev(load: Loads) -> float:
    """Standard deviation over workers of their share of the tuples, in per cent (DKG's STD_DEV)."""
    total = load.sum()
    return float(np.std(100.0 * load / total)) if total else 0.0


def replication(pairs: int, keys: int) -> float:
    """Pairs per distinct key, at least 1: what splitting costs in memory and merging (DKG's DIST_COST)."""
    return pairs / keys if keys else 1.0


def aggregation_cost(merges: Loads) -> float:
    """Γ = max_j A_j, A_j the pairs that reducer j merges (Dalton Eq. 2). ``merges`` has shape ``(m,)``.

    With key forwarding (Dalton Section 4.2) these are the pairs of split keys only: a key on one worker goes
    to the output directly.
    """
    return float(merges.max())


def least_load(tuples: int, n: int) -> int:
    """⌈m/n⌉, the smallest possible maximal load: with splitting every assignment up to it exists."""
    return -(-tuples // n)


def least_pairs(keys: int, heavy: Ints, capacity: int) -> int:
    """A lower bound on the pairs of any assignment with no load above C = ``capacity``: Σ_k ⌈c_k / C⌉.

    Args:
        keys: Number of distinct keys K.
        heavy: Counts of the keys with c_k > C; the others need one pair each. Shape ``(h,)``.
        capacity: The maximal load C.
    """
    return keys + int(np.sum(-(-heavy // max(1, capacity)) - 1))


def excess(value: float, bound: float) -> float:
    """Regret as a fraction of the bound: (value - bound) / bound, 0 if the bound is 0."""
    return value / bound - 1.0 if bound else 0.0


def disagreement(workers: NDArray[np.int32], others: NDArray[np.int32]) -> int:
    """Tuples that two partitioners send to different workers (PKG Fig. 6 shows their percentage)."""
    return int(np.count_nonzero(workers != others))


@kernel
def _count_all(table: Any, mark: Any, used: Any, keys: Any) -> Any:
    for i in range(len(keys)):
        if is_full(table, used):
            return i
        count(table, mark, used, keys[i])
    return len(keys)


@kernel
def _add(table: Any, mark: Any, used: Any, keys: Any, counts: Any) -> Any:
    """Add ``counts``, which may be negative; a key whose count becomes 0 leaves the table."""
    for i in range(len(keys)):
        if is_full(table, used):
            return i
        slot = find(table, mark, keys[i])
        if mark[slot] == EMPTY:
            table[slot] = keys[i]
            mark[slot] = 0
            used[0] += 1
        mark[slot] += counts[i]
        if mark[slot] == 0:
            remove(table, mark, slot)
            used[0] -= 1
    return len(keys)


class WindowCounts:
    """Exact tuples per key in a sliding window of ``n_slides`` slides: what the bounds are made of."""

    def __init__(self, n_slides: int) -> None:
        self.n_slides = n_slides
        self.window = KeyMap()
        self.current = KeyMap()
        self.past: deque[tuple[int, Ints, Ints]] = deque()

    def observe(self, keys: Ints) -> None:
        """Count tuples of the current slide."""
        t = self.current
        t.drive(len(keys), lambda i: i + _count_all(t.keys, t.mark, t.used, keys[i:]))

    def close(self, slide: int) -> None:
        """End the current slide, which has number ``slide``, and drop those that its window does not hold."""
        filled = self.current.mark != EMPTY
        keys, counts = self.current.keys[filled], self.current.mark[filled].astype(np.int64)
        self.current = KeyMap()
        self.past.append((slide, keys, counts))
        self._add(keys, counts)
        while self.past[0][0] <= slide - self.n_slides:
            _, old, gone = self.past.popleft()
            self._add(old, -gone)

    def _add(self, keys: Ints, counts: Ints) -> None:
        t = self.window
        t.drive(len(keys), lambda i: i + _add(t.keys, t.mark, t.used, keys[i:], counts[i:]))

    def heavy(self, least: int) -> Ints:
        """Counts above ``least`` in the window, in no order."""
        return self.window.mark[self.window.mark > least].astype(np.int64)

    def bound(self, n: int) -> tuple[int, int]:
        """The least maximal load for ``n`` workers, and the fewest pairs at that load (a lower bound)."""
        tuples = int(sum(counts.sum() for _, _, counts in self.past))
        capacity = least_load(tuples, n)
        return capacity, least_pairs(int(self.window.used[0]), self.heavy(capacity), capacity)


def mean_of(values: NDArray[np.float64]) -> float:
    """The mean, NaN without values."""
    return float(np.mean(values)) if len(values) else math.nan
