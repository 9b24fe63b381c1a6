"""The frozen policy: hot keys are spread by fixed weights, all other keys are hashed.

The choice for a tuple depends on nothing but its key, its position and the number of the task that routes it,
so that it needs no state in Spark SQL and is the same whenever a task runs again:

    u = (A · position + H(task, key)) mod 2³²,   A = ⌊2³² / φ⌋

and u selects a worker by the key's weights. For consecutive tuples u is a Kronecker sequence, the evenest of
all: after m tuples of a key in a row every worker is within O(log m) of its share. Where the key is every
p-th tuple it is at most √5 p tuples off; a round of fixed length might be in step with p. H shifts the
sequences of keys and tasks against each other, so that many short tasks do not all begin with one worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import BLOCK, Costs, Keys, Partitioner, Times, Workers
from dalton.envs.errors import ConfigError, check_int, check_real, shown
from dalton.envs.hashing import candidates, composed, family, hash32, member
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, capacity_for, find

Split = Mapping[int, Mapping[int, float]]
"""Hot keys, and for each the weights of its workers."""

GOLDEN = 2654435769
"""A: 2³² over the golden ratio, and odd."""
TURNS = 1 << 30
"""Positions repeat after this many tuples, which keeps A times a position within a bigint."""
WHOLE = 1 << 32
SPREADING = 1
"""The hash function that shifts the sequences, among those of a seed; number 0 is that of cold keys."""


class Cells(NamedTuple):
    """The weights as alias tables (Walker 1977): one multiplication and one comparison select a worker.

    The k workers of a key have k cells. ``u k / 2³²`` selects a cell, and the remainder ``u k mod 2³²``, if
    below the cell's limit, its first worker, else its second.
    """

    keys: NDArray[np.int64]
    """``(H,)`` hot keys, ascending."""
    start: NDArray[np.int64]
    """``(H + 1,)`` the first cell of every key, and the end of the last."""
    limit: NDArray[np.int64]
    """``(E,)`` from 0 to 2³²."""
    first: NDArray[np.int32]
    """``(E,)`` workers of the split, ascending within a key."""
    second: NDArray[np.int32]
    """``(E,)``."""


def check_split(split: Split, n_workers: int) -> dict[int, dict[int, float]]:
    """The split with keys and workers in ascending order, or raise `ConfigError`."""
    if not isinstance(split, Mapping) or not all(isinstance(row, Mapping) for row in split.values()):
        raise ConfigError(f"split = {shown(split)}: expected weights of workers for each key")
    checked = {}
    for key in sorted(check_int("split: key", key, low=-(2**63), high=2**63 - 1) for key in split):
        weights = {
            check_int(f"split[{key}]: worker", worker, low=0, high=n_workers - 1): check_real(
                f"split[{key}][{worker}]", weight, above=0
            )
            for worker, weight in sorted(split[key].items())
        }
        if not weights:
            raise ConfigError(f"split[{key}] = {{}}: expected a weight for one worker or more")
        checked[key] = weights
    return checked


def cells(split: Split) -> Cells:
    """The alias tables of a split as `check_split` returns it."""
    start = np.cumsum([0, *(len(row) for row in split.values())])
    limit = np.full(start[-1], WHOLE, np.int64)
    workers = [worker for row in split.values() for worker in row]
    first, second = np.array(workers, np.int32), np.array(workers, np.int32)
    for low, row in zip(start, split.values(), strict=False):
        # Whole numbers of sum k · 2³², so that nothing is left over.
        weights = np.array(list(row.values()))
        parts = np.floor(weights / weights.sum() * len(row) * WHOLE).astype(np.int64)
        parts[np.argmax(parts)] += len(row) * WHOLE - parts.sum()
        small = [j for j in range(len(parts)) if parts[j] < WHOLE]
        large = [j for j in range(len(parts)) if parts[j] > WHOLE]
        while small:
            j, giver = small.pop(), large[-1]
            limit[low + j], second[low + j] = parts[j], first[low + giver]
            parts[giver] -= WHOLE - parts[j]
            if parts[giver] <= WHOLE:
                large.pop()
                if parts[giver] < WHOLE:
                    small.append(giver)
    return Cells(np.array(list(split), np.int64), start, limit, first, second)


def task_member(seed: int, task: int) -> np.uint32:
    """The composed seed of H(task, .): Spark SQL's ``hash(lit(s), spark_partition_id(), id)``."""
    return composed(task, int(member(seed, SPREADING)))


@kernel
def _deal(c: Any, table: Any, mark: Any, shift: Any, position: Any, homes: Any, keys: Any, out: Any) -> None:
    whole = np.int64(WHOLE - 1)
    at = position[0]
    for i in range(len(keys)):
        row = mark[find(table, mark, keys[i])]
        worker = homes[i]
        if row != EMPTY:
            turn = (at & np.int64(TURNS - 1)) * np.int64(GOLDEN)
            u = (turn + np.int64(hash32(keys[i], shift))) & whole
            x = u * (c.start[row + 1] - c.start[row])
            cell = c.start[row] + (x >> np.int64(32))
            worker = c.first[cell] if (x & whole) < c.limit[cell] else c.second[cell]
        out[i] = worker
        at += 1
    position[0] = at


class SplitTable(Partitioner):
    """Spreads the keys of a split table by their weights and hashes all others; learns nothing.

    In a Spark job, the rows of input partition ``task`` get the workers that this partitioner gives them.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the hashed workers and where sequences begin.
        split: Hot keys, and for each the weights of its workers; they need not have sum 1.
        task: Number of the task, from 0.
    """

    forwards = True

    def __init__(self, *, n_workers: int, seed: int = 0, split: Split, task: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.split = check_split(split, self.n_workers)
        self.task = check_int("task", task, low=0, high=2**31 - 1)
        self.reset()

    @property
    def max_workers_per_key(self) -> int:
        """The workers of the most split key."""
        return max((len(row) for row in self.split.values()), default=1)

    def _reset(self) -> None:
        self.members = family(self.seed, 1)
        self.shift = task_member(self.seed, self.task)
        self.cells = cells(self.split)
        self.position = np.zeros(1, np.int64)
        slots = capacity_for(len(self.split), minimum=16)
        self.table, self.mark = np.zeros(slots, np.int64), np.full(slots, EMPTY, np.int32)
        for row, key in enumerate(self.split):
            slot = find(self.table, self.mark, key)
            self.table[slot], self.mark[slot] = key, row

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        for low in range(0, len(keys), BLOCK):
            part = slice(low, low + BLOCK)
            homes = candidates(keys[part], self.members, self.n_workers)[0]
            _deal(self.cells, self.table, self.mark, self.shift, self.position, homes, keys[part], out[part])
