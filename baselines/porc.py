"""PoRC: the power of random choices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.contract import BLOCK, Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import check_real
from dalton.envs.hashing import candidates, family, worker_of
from dalton.envs.kernel import kernel
from dalton.envs.window import LoadState, WindowSpec, amount, lightest, put, tick

SALTS_PER_WORKER = 32
CELL_BITS = 10
CELL_BINS = 64


class Memo(NamedTuple):
    """Where the searches of frequent keys ended, so that the next need not start anew.

    A bin is full while its load is at least the level ⌈(1 + ε) t / n⌉. Loads only grow, so until the level
    rises (every n / (1 + ε) tuples) or a slide expires, a full bin stays full and a key's first bin with room
    is not before the one found last. Within such an *epoch* all searches of a hot key together make one pass
    over its bins, instead of one pass each. A key holds its cell while it asks for it more often than all
    others; keys without a cell search from the start, with the same result.
    """

    keys: NDArray[np.int64]
    """``(C,)`` key of the cell."""
    votes: NDArray[np.int64]
    """``(C,)`` how much more often that key asked than others did."""
    epochs: NDArray[np.int64]
    """``(C,)`` epoch of the last search."""
    steps: NDArray[np.int64]
    """``(C,)`` salt at which it ended."""
    known: NDArray[np.int64]
    """``(C,)`` number of bins in the cell's row."""
    bins: NDArray[np.int32]
    """``(C, CELL_BINS)`` the key's bins, by salt."""
    now: NDArray[np.int64]
    """The epoch, and its level."""


def memo() -> Memo:
    """All cells free."""
    cells = 1 << CELL_BITS
    keys, votes, epochs, steps, known = np.zeros((5, cells), np.int64)
    bins = np.zeros((cells, CELL_BINS), np.int32)
    return Memo(keys, votes, epochs, steps, known, bins, np.array([1, 0]))


@kernel
def _search(memo: Any, load: Any, pace: Any, costs: Any, i: Any, level: Any, members: Any, key: Any) -> Any:
    """The first bin with room for tuple ``i`` of ``key`` after the one of the first salt, which is full."""
    keys, votes, epochs, steps, known, bins, now = memo
    n = len(load)
    cell = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - CELL_BITS))
    step = 1
    if keys[cell] != key:
        votes[cell] -= 1
        if votes[cell] >= 0:
            while step < len(members):
                best = worker_of(key, members[step], n)
                if load[best] < level:
                    return best
                step += 1
            return lightest(load)
        keys[cell] = key
        votes[cell] = 0
        known[cell] = 1
    else:
        votes[cell] += 1
        if epochs[cell] == now[0]:
            step = steps[cell]
    end = known[cell]
    while step < end and load[bins[cell, step]] >= level:
        step += 1
    if step < end:
        best = np.int64(bins[cell, step])
    else:
        best = np.int64(-1)
        while best < 0 and step < len(members):
            best = worker_of(key, members[step], n)
            if step < CELL_BINS:
                bins[cell, step] = best
                known[cell] = step + 1
            if load[best] >= level:
                best = np.int64(-1)
                step += 1
        if best < 0:
            best = np.int64(lightest(load))
    epochs[cell] = now[0]
    filled = load[best] + amount(pace, costs, i, best) >= level
    steps[cell] = step + np.int64(filled)
    return best


@kernel
def _porc(
    s: Any,
    memo: Any,
    members: Any,
    epsilon: Any,
    keys: Any,
    first: Any,
    times: Any,
    costs: Any,
    out: Any,
) -> None:
    load, ring, clock, edge, pace = s
    now = memo.now
    total = load.sum()
    n = len(load)
    for i in range(len(keys)):
        passed = tick(load, ring, clock, edge, times, i)
        if passed > 0:
            total = load.sum()
        best = np.int64(first[i])
        added = amount(pace, costs, i, best)
        level = np.int64(np.ceil((1.0 + epsilon) * (total + added) / n))
        if passed > 0 or level != now[1]:
            now[0] += 1
            now[1] = level
        if load[best] >= level:
            best = _search(memo, load, pace, costs, i, level, members, keys[i])
            added = amount(pace, costs, i, best)
        put(load, ring, clock, best, added)
        total += added
        out[i] = best


def power_of_random_choices(
    loads: LoadState,
    cells: Memo,
    members: NDArray[np.uint32],
    epsilon: float,
    keys: Keys,
    times: Times,
    costs: Costs,
    out: Workers,
) -> None:
    """Route every key to the first of its hashed bins with load below (1 + ε) t / n; CG does it too."""
    for i in range(0, len(keys), BLOCK):
        part = slice(i, i + BLOCK)
        first = candidates(keys[part], members[:1], len(loads.load))[0]
        _porc(loads, cells, members, epsilon, keys[part], first, times[part], costs[part], out[part])


class PowerOfRandomChoices(LoadAware):
    """Rehash with further salts until a worker has room (PoRC, CG Section IV-B, Algorithm 1).

        P_t(k) = H_j(k),   j = min{ j : L_{H_j(k)}(t) < (1 + ε) t / n }

    with t counted including this tuple (on its first bin, where load is time over capacity). No bin ever
    exceeds the capacity by more than the tuple that fills it, hence I(m) <= ε m / n + 1 (CG Section V-A). A
    key keeps to its first bin while that has room, so only what overflows is split. After 32 n salts, all
    full, the least loaded bin is taken: it has room, because the mean is below the capacity.

    Args:
        n_workers: Number of bins n.
        seed: Chooses the salts.
        epsilon: Slack ε of the capacity, in (0, 10].
        window: Window of the load; None counts since the start, as in the paper.
    """

    def __init__(
        self, *, n_workers: int, seed: int = 0, epsilon: float = 0.01, window: WindowSpec = None
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.epsilon = check_real("epsilon", epsilon, above=0, high=10)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.memo = memo()
        self.members = family(self.seed, min(SALTS_PER_WORKER * self.n_workers, 65535))

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        power_of_random_choices(self.loads, self.memo, self.members, self.epsilon, keys, times, costs, out)

    def probe(self, truth: LoadState, total: Keys) -> None:
        """See `LoadAware.probe`; what was full may not be any more."""
        super().probe(truth, total)
        self.memo = memo()
