"""The split table as constants of a Spark SQL expression: no join, no Python, no broadcast to wait for.

A perfect hash finds a key among the hot ones with two array look-ups (hash and displace: Belazzougui, Botelho
and Dietzfelbinger, ESA 2009). The key's bucket b = H_s(key) mod B has a displacement d_b, chosen such that
the slots H_{d_b}(key) mod M of all hot keys are different; a key is hot if it is the one of its slot. The
hash functions are those of `dalton.envs.hashing`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from dalton.agents.export import Policy
from dalton.agents.split_table import GOLDEN, SPREADING, TURNS, WHOLE, cells
from dalton.envs.hashing import candidates, composed, family, literal


class Slots(NamedTuple):
    """A perfect hash of H keys."""

    displacements: NDArray[np.int32]
    """``(B,)`` d of every bucket."""
    rows: NDArray[np.int64]
    """``(M,)`` the key in every slot, as its number; -1 where the slot is free."""


def perfect_hash(keys: NDArray[np.int64], seed: int) -> Slots:
    """Find displacements for different keys, the fullest buckets first; half of the slots stay free."""
    buckets, size = max(1, len(keys) // 2), max(1, 2 * len(keys))
    displacements, rows = np.zeros(buckets, np.int32), np.full(size, -1)
    bucket = candidates(keys, family(seed, 1), buckets)[0]
    counts = np.bincount(bucket, minlength=buckets)
    for b in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]:
        own = np.flatnonzero(bucket == b)
        for d in itertools.count():
            slots = candidates(keys[own], np.array([composed(d)]), size)[0]
            if len(set(slots.tolist())) == len(own) and (rows[slots] < 0).all():
                displacements[b] = d
                rows[slots] = own
                break
    return Slots(displacements, rows)


def constants(values: Iterable[int], kind: str) -> Column:
    """An array of whole numbers that the optimiser folds into one literal."""
    return F.expr(f"cast(split('{','.join(map(str, values))}', ',') as array<{kind}>)")


class Lookup:
    """Where the rows of a policy go, as columns of the key's id."""

    def __init__(self, policy: Policy) -> None:
        self.n, self.seed = policy.n_workers, policy.seed
        self.any = bool(policy.split)
        if not self.any:
            return
        table = cells(policy.split)
        slots = perfect_hash(table.keys, self.seed)
        self.buckets, self.size = len(slots.displacements), len(slots.rows)
        self.displacements = constants(slots.displacements, "int")
        # A free slot has some key that belongs into another one.
        self.keys = constants(table.keys[np.maximum(slots.rows, 0)], "bigint")
        self.start = constants(table.start[:-1][np.maximum(slots.rows, 0)], "int")
        self.length = constants(np.diff(table.start)[np.maximum(slots.rows, 0)], "int")
        self.limit = constants(table.limit, "bigint")
        self.first = constants(table.first, "int")
        self.second = constants(table.second, "int")

    def home(self, key: Column) -> Column:
        """The hashed worker."""
        return F.pmod(self._hash(key), F.lit(self.n))

    def _hash(self, key: Column) -> Column:
        return F.hash(F.lit(literal(self.seed)), key)

    def slot(self, key: Column) -> Column:
        """The slot of an id; the id is hot if it `is_hot` there."""
        displacement = F.get(self.displacements, F.pmod(self._hash(key), F.lit(self.buckets)))
        return F.pmod(F.hash(displacement, key), F.lit(self.size))

    def is_hot(self, key: Column, slot: Column) -> Column:
        """Whether the id is the hot key of its slot."""
        return F.get(self.keys, slot) == key

    def point(self, key: Column, slot: Column, position: Column) -> Column:
        """U k: where the sequence of the key's slot is at a position of this task (`split_table`)."""
        turn = position.bitwiseAND(F.lit(TURNS - 1)) * F.lit(GOLDEN)
        shift = F.hash(F.lit(literal(self.seed, SPREADING)), F.spark_partition_id(), key)
        return F.pmod(turn + shift, F.lit(WHOLE)) * F.get(self.length, slot)

    def choice(self, slot: Column, point: Column) -> Column:
        """The worker of a hot key."""
        cell = F.get(self.start, slot) + F.shiftright(point, 32).cast("int")
        low = point.bitwiseAND(F.lit(WHOLE - 1)) < F.get(self.limit, cell)
        return F.when(low, F.get(self.first, cell)).otherwise(F.get(self.second, cell))

    def workers(self, slot: Column) -> Column:
        """All workers of a hot key."""
        return F.slice(self.first, F.get(self.start, slot) + 1, F.get(self.length, slot))
