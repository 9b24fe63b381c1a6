"""Dense numbers for the (key, worker, class) triples that occur: where applications keep partial results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, KeyMap, find, is_full

Ints = NDArray[np.int64]


@kernel
def _number(table: Any, mark: Any, used: Any, key: Any) -> Any:
    """The number of ``key``, a new one if it has none (needs room: not `is_full`)."""
    slot = find(table, mark, key)
    if mark[slot] == EMPTY:
        table[slot] = key
        mark[slot] = used[0]
        used[0] += 1
    return np.int64(mark[slot])


@kernel
def _rows(
    table: Any,
    mark: Any,
    used: Any,
    cells: Any,
    places: Any,
    rows: Any,
    shape: Any,
    keys: Any,
    workers: Any,
    labels: Any,
    out: Any,
) -> Any:
    n, classes = shape
    for i in range(len(keys)):
        if is_full(table, used) or is_full(cells, rows):
            return i
        code = _number(table, mark, used, keys[i])
        out[i] = _number(cells, places, rows, (code * n + workers[i]) * classes + labels[i])
    return len(keys)


class Cells:
    """Cells in order of first appearance; a cell is a key, a worker and a class."""

    def __init__(self, n_workers: int, classes: int) -> None:
        self.shape = n_workers, classes
        self._keys, self._cells = KeyMap(), KeyMap()

    @property
    def used(self) -> int:
        """Number of cells R."""
        return int(self._cells.used[0])

    def rows(self, keys: Ints, workers: NDArray[np.int32], labels: Ints) -> Ints:
        """The cell of every tuple, shape ``(m,)``; new ones get the next numbers."""
        n, classes = self.shape
        for name, given, most in (("worker", workers, n), ("class", labels, classes)):
            if len(given) and (given.min() < 0 or given.max() >= most):
                bad = given[(given < 0) | (given >= most)][0]
                raise ConfigError(f"{name} = {bad}: expected a whole number from 0 to {most - 1}")
        out = np.empty(len(keys), np.int64)
        done = 0
        while done < len(keys):
            k, c, part = self._keys, self._cells, slice(done, None)
            tables = (k.keys, k.mark, k.used, c.keys, c.mark, c.used)
            done += _rows(*tables, self.shape, keys[part], workers[part], labels[part], out[part])
            for table in (k, c):
                if is_full(table.keys, table.used):
                    table.grow()
        return out

    @property
    def keys(self) -> Ints:
        """Distinct keys in order of first appearance, shape ``(K,)``."""
        return _by_number(self._keys)

    @property
    def codes(self) -> Ints:
        """Which of `keys` a cell has, shape ``(R,)``."""
        n, classes = self.shape
        return _by_number(self._cells) // (n * classes)

    @property
    def workers(self) -> Ints:
        """Worker of every cell, shape ``(R,)``."""
        n, classes = self.shape
        return _by_number(self._cells) // classes % n

    @property
    def labels(self) -> Ints:
        """Class of every cell, shape ``(R,)``."""
        return _by_number(self._cells) % self.shape[1]


def _by_number(table: KeyMap) -> Ints:
    filled = table.mark != EMPTY
    out = np.empty(int(table.used[0]), np.int64)
    out[table.mark[filled]] = table.keys[filled]
    return out
