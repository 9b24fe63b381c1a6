"""What the schemes share that see a whole batch before they decide: cutting keys, dealing them out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import Workers
from dalton.envs.kernel import kernel
from dalton.envs.table import Encoded

Ints = NDArray[np.int64]


class Parts(NamedTuple):
    """A plan for a batch: ``size[i]`` tuples of the key with code ``code[i]`` go to ``worker[i]``."""

    code: Ints
    worker: Ints
    size: Ints
    used: Ints
    """How many parts there are."""


def parts(capacity: int) -> Parts:
    """An empty plan with place for ``capacity`` parts."""
    code, worker, size = np.empty((3, capacity), np.int64)
    return Parts(code, worker, size, np.zeros(1, np.int64))


@kernel
def put_part(plan: Any, room: Any, code: Any, worker: Any, size: Any) -> None:
    """Plan ``size`` tuples of a key for ``worker``."""
    at = plan.used[0]
    plan.code[at] = code
    plan.worker[at] = worker
    plan.size[at] = size
    plan.used[0] += 1
    room[worker] -= size


@kernel
def fit_part(plan: Any, room: Any, code: Any, preferred: Any, size: Any, tight: Any) -> None:
    """Place ``size`` tuples of a key where they fit, cutting them only if they fit nowhere.

    The preferred worker if it has room for all of them. Else, if ``tight``, the one with the least sufficient
    room (best fit), or the next from the preferred one on that has room (which changes little from batch to
    batch). If none has, the roomiest is filled and the rest placed in the same way: every cut fills a worker.
    """
    n = len(room)
    while size > 0:
        best = preferred
        for step in range(1, n):
            if room[best] >= size and not tight:
                break
            w = (preferred + step) % n
            if room[w] > room[best] if room[best] < size else room[preferred] < size <= room[w] < room[best]:
                best = w
        take = min(size, room[best])
        put_part(plan, room, code, best, take)
        size -= take


@kernel
def _deal(codes: Any, at: Any, worker: Any, left: Any, out: Any) -> None:
    for i in range(len(codes)):
        part = at[codes[i]]
        out[i] = worker[part]
        left[part] -= 1
        if left[part] == 0:
            at[codes[i]] += 1


def deal(batch: Encoded, plan: Parts, out: Workers) -> None:
    """Send the tuples of every key to its parts in turn, each until it is full."""
    used = int(plan.used[0])
    order = np.argsort(plan.code[:used], kind="stable")
    first = np.searchsorted(plan.code[order], np.arange(len(batch.distinct)))
    _deal(batch.codes, first, plan.worker[order], plan.size[order], out)
