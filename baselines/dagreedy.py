"""DAGreedy: score every worker by its load and by whether it holds the key."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.contract import Costs, Keys, LoadAware, Times, Workers
from dalton.envs.errors import ConfigError, check_real
from dalton.envs.frequency import count
from dalton.envs.hashing import member, worker_of
from dalton.envs.hot import cool, heat, hot_rows, more_rows, row_of
from dalton.envs.kernel import kernel
from dalton.envs.table import EMPTY, KeyMap, is_full
from dalton.envs.window import BASE, DEFAULT_WINDOW, HEAD, SLIDE, WindowSpec, amount, put, slides_ahead, tick


@kernel
def _best(load: Any, stamps: Any, row: Any, oldest: Any, start: Any, bonus: Any, weight: Any) -> Any:
    """Argmax of bonus [w holds the key] - weight L_w, from ``start`` on; a tie takes the first met."""
    n = len(load)
    best, top = start, -np.inf
    for part in range(2):
        low, high = (start, n) if part == 0 else (0, start)
        for w in range(low, high):
            score = -weight * load[w]
            if stamps[row, w] > oldest:
                score += bonus
            if score > top:
                best, top = w, score
    return best


@kernel
def _tuples(pace: Any, ring: Any, clock: Any, counts: Any) -> Any:
    """Tuples of the current slide: its load, or if that is time the sum of the key counts."""
    if pace is None:
        return ring[clock[HEAD]].sum()
    total = 0
    for slot in range(len(counts)):
        if counts[slot] != EMPTY:
            total += counts[slot]
    return total


@kernel
def _dagreedy(
    s: Any,
    rows: Any,
    counted: Any,
    counts: Any,
    used: Any,
    seed: Any,
    hot: Any,
    keep: Any,
    keys: Any,
    times: Any,
    costs: Any,
    out: Any,
) -> Any:
    load, ring, clock, edge, pace = s
    table, mark, row_keys, until, stamps = rows
    slides, n = ring.shape
    total = load.sum()
    for i in range(len(keys)):
        if is_full(counted, used):
            return i
        ahead = slides_ahead(clock, edge, times, i)
        if ahead > 0:
            now = clock[SLIDE] - clock[BASE]
            cool(table, mark, row_keys, until, now + ahead - slides)
            # After a gap the slide before this tuple is empty, and nothing is hot.
            if ahead == 1:
                least = _tuples(pace, ring, clock, counts) / hot
                if not heat(counted, counts, least, now, seed, table, mark, row_keys, until, stamps):
                    return i
            counts[:] = EMPTY
            used[0] = 0
            tick(load, ring, clock, edge, times, i)
            total = load.sum()
        else:
            tick(load, ring, clock, edge, times, i)
        now = clock[SLIDE] - clock[BASE]
        key = keys[i]
        count(counted, counts, used, key)
        best = worker_of(key, seed, n)
        row = row_of(table, mark, until, now, key)
        if row != EMPTY:
            best = _best(load, stamps, row, now - slides, best, keep * total / n, 1.0 - keep)
            stamps[row, best] = now
        added = amount(pace, costs, i, best)
        put(load, ring, clock, best, added)
        total += added
        out[i] = best
    return len(keys)


class DAGreedy(LoadAware):
    """Hot keys to the worker with the best score of load and key locality (DAGreedy, BeyondMR 2018).

    DAGreedy of Pacaci and Özsu, as Dalton Section 5 compares against it. A key is hot in a slide if its count
    in the slide before is above L / (hot_factor n), L that slide's tuples. A hot key goes to

        argmax_w  α [w holds k in the window] - (1 - α) (L_w - avg) / avg

    over all n workers, O(n) per tuple; a tie takes the first from the hashed worker on. Other keys go to
    their hashed worker. α = 0.5 and hot_factor = 100 are those of Dalton's comparison.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the hashed worker.
        window: Window of load and fragments; its slide is the interval of the key counts.
        hot_factor: How far below the fair share L/n a key counts as hot.
        alpha: Weight α of keeping a key together, in [0, 1].
    """

    forwards = True

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        window: WindowSpec = DEFAULT_WINDOW,
        hot_factor: float = 100.0,
        alpha: float = 0.5,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        if self.window is None:
            raise ConfigError(
                "window = None: dagreedy needs a window, its slide is when key counts are taken"
            )
        self.hot_factor = check_real("hot_factor", hot_factor, above=0)
        self.alpha = check_real("alpha", alpha, low=0, high=1)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        self.member = member(self.seed)
        self.counts = KeyMap()
        self.rows = hot_rows(self.n_workers)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        hot = self.hot_factor * self.n_workers
        done = 0
        while True:
            c = self.counts
            done += _dagreedy(
                self.loads,
                self.rows,
                c.keys,
                c.mark,
                c.used,
                self.member,
                hot,
                self.alpha,
                keys[done:],
                times[done:],
                costs[done:],
                out[done:],
            )
            if done == len(keys):
                return
            if is_full(c.keys, c.used):
                c.grow()
            else:
                self.rows = more_rows(self.rows)
