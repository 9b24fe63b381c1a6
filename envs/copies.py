"""N copies of stream and cluster, of which an environment has one and a vector of them many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import InvalidAction
from numpy.typing import NDArray

from dalton.envs.dynamics import (
    AT,
    BAD_ACTION,
    CHUNK,
    DECISION,
    HOT_KEYS,
    LEFT,
    NO_ROOM,
    OVER,
    PRESENT,
    SEEN,
    SIZE,
    STAMPS,
    STATUS,
    TIMES,
    TUPLES_OUT,
    Rules,
    Views,
    begin,
    expired,
    grown,
    new_state,
    row_of,
    step_all,
    views,
)
from dalton.envs.errors import ConfigError, check_int, check_real
from dalton.envs.hashing import hash_workers, member
from dalton.envs.hotness import check_stats_window
from dalton.envs.metrics import WindowCounts, excess, max_over_mean, replication
from dalton.envs.window import POSITION, SLIDE, CapacitySpec, Window, WindowSpec, check_capacity, pace_of
from dalton.envs.workloads import Chunk, Workload, make_workload

# Tuples, slides and STATS_WINs of an episode are counted in 32 bits: half the memory that a step touches.
MOST = 2**31 - 2
NO_ACTIONS = np.empty(0, np.int64)


class Settings:
    """Checked parameters of an environment's streams and clusters.

    Args:
        workload: Name or specification of a workload.
        n_workers: Number of workers n.
        window: Window of load and fragments.
        hot_factor: c in the threshold of a hot key (`dalton.envs.hotness`).
        stats_window: Length of a STATS_WIN; None for one slide.
        p1: Weight of balance in the reward.
        only_hot: Hash cold keys inside the environment, so that every step is a decision about a hot one.
        quantum: q of the observed loads: they change every q tuples (Dalton, key idea 2).
        max_tuples: Tuples after which an episode is truncated; None for the workload's length.
        max_windows: Windows after which it is truncated; None for no such limit. Only for windows by count.
        hash_seed: Chooses the hashed worker.
        measure: What load is: ``tuples``, or ``time``, which is cost over capacity.
        capacity: Capacities of the workers (`check_capacity`); 1 if None. Not used for tuples.
    """

    def __init__(
        self,
        *,
        workload: Any,
        n_workers: int,
        window: WindowSpec,
        hot_factor: float,
        stats_window: float | None,
        p1: float,
        only_hot: bool,
        quantum: int,
        max_tuples: int | None,
        max_windows: int | None,
        hash_seed: int,
        measure: str,
        capacity: CapacitySpec,
    ) -> None:
        self.workload: Workload = make_workload(workload)
        self.n = check_int("n_workers", n_workers, low=1)
        span = Window.of(window)
        if span is None:
            raise ConfigError("window = None: an environment needs a window, its slides are what is measured")
        if span.by == "time" and self.workload.arrivals == "count":
            raise ConfigError("window.by = 'time': expected a workload with times, not arrivals = 'count'")
        self.window = span
        self.rules = Rules(
            window=span,
            hot_keys=check_real("hot_factor", hot_factor, above=0) * self.n,
            stats_window=check_stats_window(span, stats_window),
            p1=check_real("p1", p1, low=0, high=1),
            only_hot=bool(only_hot),
            quantum=check_int("quantum", quantum, low=1),
        )
        limit = min(self.workload.n_tuples, MOST)
        if max_tuples is not None:
            limit = min(limit, check_int("max_tuples", max_tuples, low=1))
        if max_windows is not None:
            if span.by == "time":
                raise ConfigError(
                    f"max_windows = {max_windows}: expected none with a window in time; use max_tuples"
                )
            limit = min(limit, check_int("max_windows", max_windows, low=1) * int(span.size))
        self.max_tuples = limit
        self.hash_seed = check_int("hash_seed", hash_seed, low=0)
        self.capacity = check_capacity(capacity, self.n)
        self.pace = pace_of(measure, capacity, self.n)
        if self.pace is not None and self.rules.quantum > 1:
            raise ConfigError(f"quantum = {quantum}: expected 1 where load is time, a quantum is of tuples")


class Copies:
    """N copies of stream and cluster."""

    step: ClassVar[Any] = staticmethod(step_all)
    """The kernel that takes all copies to their next decisions."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.settings = settings
        self.count = count
        self.workloads = [settings.workload] * count
        slides = settings.window.n_slides
        self.state = new_state(count, settings.n, settings.rules, settings.pace)
        self.member = member(settings.hash_seed)
        self.streams: list[Iterator[Chunk]] = [iter(())] * count
        self.counts = [WindowCounts(slides) for _ in range(count)]
        self.counted = np.zeros(count, np.int64)
        self.starts = np.zeros(count)
        self.ended: dict[int, dict[str, float]] = {}
        self.any_over = False

    def restart(self, e: int, seed: int) -> None:
        """Begin an episode of copy ``e`` on the stream of ``seed``."""
        s = self.settings
        begin(self.state, e, s.rules, s.max_tuples)
        workload = self.workloads[e]
        if "seed" in workload.params:
            workload = make_workload(workload, seed=seed)
        self.streams[e] = workload.chunks(CHUNK)
        self.counts[e] = WindowCounts(s.window.n_slides)
        self.counted[e] = 0

    def act(self, actions: NDArray[np.int64]) -> Views:
        """Send the present tuples and go on to the next decisions; copies that are over get reward 0.

        Without actions (an empty array) only go on. The views returned are new with every call.

        Raises:
            InvalidAction: An action is no worker; nothing was done.
        """
        n = self.settings.n
        seen = views(self.count, n, self.settings.pace is not None)
        waiting = self.step(self.state, actions, seen)
        if waiting == BAD_ACTION:
            self.check(actions)
        self.any_over = False
        while waiting:
            done = [self._see_to(int(e)) for e in np.flatnonzero(self.state.ints[:, STATUS] != DECISION)]
            if not any(done):
                self.any_over = True
                break
            waiting = self.step(self.state, NO_ACTIONS, seen)
        return seen

    def check(self, actions: NDArray[np.int64]) -> None:
        """Raise InvalidAction if an action is no worker."""
        n = self.settings.n
        bad = actions[(actions < 0) | (actions >= n)]
        if len(bad):
            raise InvalidAction(f"action = {bad[0]}: expected a whole number from 0 to {n - 1}")

    def _see_to(self, e: int) -> bool:
        """Do what copy ``e`` waits for; False if it is over."""
        c = self.state
        status = c.ints[e, STATUS]
        if status == TUPLES_OUT:
            self._count(e)
            self._refill(e)
        elif status == NO_ROOM:
            self.state = grown(self.state, self.settings.n)
        else:
            if not c.ints[e, SEEN]:
                self._count(e)
                self.counts[e].close(int(c.ints[e, SLIDE]))
                self.ended[e] = self._measure(e)
                c.ints[e, SEEN] = 1
            return bool(status != OVER)
        return True

    def _refill(self, e: int) -> None:
        c = self.state
        chunk = next(self.streams[e], None)
        if chunk is None:
            c.ints[e, LEFT] = 0
            return
        m = len(chunk.keys)
        c.chunk[e, 0, :m] = chunk.keys
        hash_workers(chunk.keys, self.member, self.settings.n, c.chunk[e, 1, :m])
        if chunk.times is not None:
            if c.ints[e, POSITION] == 0:
                self.starts[e] = chunk.times[0]
            s = self.settings
            unit = min(s.window.slide, s.rules.stats_window or s.window.slide)
            if s.window.by == "time" and chunk.times[-1] - self.starts[e] > MOST * unit:
                raise ConfigError(f"times: expected a stream of at most {MOST} slides of {unit:g}")
            c.floats[e, TIMES : TIMES + m] = chunk.times
        if c.costs is not None and chunk.costs is not None:
            c.costs[e, :m] = chunk.costs
        c.ints[e, AT], c.ints[e, SIZE], self.counted[e] = 0, m, 0

    def _count(self, e: int) -> None:
        """Let the oracle's counts come up with the tuples that were sent."""
        at = int(self.state.ints[e, AT])
        self.counts[e].observe(self.state.chunk[e, 0, self.counted[e] : at])
        self.counted[e] = at

    def _measure(self, e: int) -> dict[str, float]:
        """Metrics of the slide that ended; see `dalton.envs.metrics`."""
        n = self.settings.n
        totals = self.state.ring[e, 0]
        load, keys, pairs = totals[:n], int(totals[n + 1]), int(totals[n + 2 : 2 * n + 2].sum())
        best_load, best_pairs = self.counts[e].bound(n)
        if self.settings.pace is not None:
            # Work can be divided as capacity is: no worker then needs longer than the others.
            best_load = totals[2 * n + 3] / self.settings.capacity.sum()
        return {
            "slide": float(self.state.ints[e, SLIDE]),
            "max_over_mean": max_over_mean(load),
            "replication": replication(pairs, keys),
            "regret_load": excess(float(load.max()), best_load),
            "regret_pairs": excess(pairs, best_pairs),
        }

    def holders(self, e: int, key: int) -> NDArray[np.bool_]:
        """X_w(key) of copy ``e``, shape ``(n,)``."""
        c, n = self.state, self.settings.n
        held: NDArray[np.bool_] = c.table[e, row_of(c.table, e, key), STAMPS : STAMPS + n] > expired(c, e)
        return held

    def hot(self, e: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Keys of the H hot entries of copy ``e``, and which of them are hot now."""
        c, size = self.state, self.settings.rules.max_hot
        until = c.ints[e, HOT_KEYS + size :]
        return c.ints[e, HOT_KEYS : HOT_KEYS + size], until >= c.ints[e, PRESENT]
