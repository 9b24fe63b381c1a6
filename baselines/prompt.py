"""Prompt: balanced micro-batches by cutting frequent keys and a zigzag over the blocks."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from dalton.baselines.batch import deal, fit_part, parts, put_part
from dalton.envs.contract import Costs, Keys, Partitioner, Times, Workers
from dalton.envs.kernel import kernel
from dalton.envs.table import encode


@kernel
def _zigzag(order: Any, counts: Any, cut: Any, room: Any, rest: Any, block: Any, plan: Any) -> None:
    """Give every key's first ``cut`` tuples to the next block, there and back; ``rest`` is left over."""
    n = len(room)
    for i in range(len(order)):
        code = order[i]
        turn, step = i // n, i % n
        worker = step if turn % 2 == 0 else n - 1 - step
        size = min(counts[code], cut, room[worker])
        if size > 0:
            put_part(plan, room, code, worker, size)
        block[code] = worker
        rest[code] = counts[code] - size


@kernel
def _residuals(order: Any, rest: Any, block: Any, room: Any, plan: Any) -> None:
    for i in range(len(order)):
        if rest[order[i]] > 0:
            fit_part(plan, room, order[i], block[order[i]], rest[order[i]], True)


class Prompt(Partitioner):
    """Micro-batches of equal size and cardinality (Prompt, Abdelhamid et al., SIGMOD 2020, Algorithm 2).

    With m tuples of K keys in the batch, a block should get P_size = m/n tuples and P_k = K/n keys. Keys come
    by decreasing count; each gives at most S_cut = ⌈P_size / P_k⌉ tuples to the next block in zigzag order.
    What is left of a key goes to a block that holds it already, else to the best fitting one, and is cut
    again only if it fits nowhere. No block exceeds ⌈m/n⌉.

    Args:
        n_workers: Number of blocks n.
        seed: Not used; there is nothing to draw.
    """

    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "batch"

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    def _reset(self) -> None:
        """Nothing is kept between batches."""

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        batch = encode(keys)
        n, size = self.n_workers, len(batch.distinct)
        plan = parts(2 * size + n)
        room = np.full(n, math.ceil(len(keys) / n))
        rest, block = np.zeros(size, np.int64), np.zeros(size, np.int64)
        order = np.argsort(-batch.counts, kind="stable")
        _zigzag(order, batch.counts, math.ceil(len(keys) / size), room, rest, block, plan)
        _residuals(np.argsort(-rest, kind="stable"), rest, block, room, plan)
        deal(batch, plan, out)
