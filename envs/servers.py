"""Workers as FIFO servers: when every tuple is done, how long the queues are, how busy the workers.

Tuple i of a worker arrives at a_i, has the cost w_i (seconds of work at capacity 1), and is done at

    d_i = max(a_i, d_{i-1}) + w_i / c,   completion time l(i) = d_i - a_i   (OSG Section 2),

c the worker's capacity (Lindley's recursion). Where the capacity changes in time, the last term is the time
in which the worker provides w_i: a tuple in service goes on at the new speed, with nothing lost. A worker
that has failed has the capacity 0: its queue, and what is sent to it meanwhile, waits until it recovers. If
it never does, these tuples stay in the queue, and no completion time counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.envs.errors import check_int, check_real
from dalton.envs.kernel import kernel
from dalton.envs.window import accept_costs, accept_times, check_capacity, check_workers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Step = tuple[float, int, float]
"""From a time in seconds on, a worker has another capacity."""

NOBODY = -1
# Bins of the histogram: the upper bits of a float64, which are its exponent and 6 bits of its mantissa.
BIN_SHIFT = 46
LEAST_BIN = int(np.float64(2.0**-30).view(np.int64)) >> BIN_SHIFT
BINS = 63 * 64
COUNT, TOTAL, LEAST, MOST = range(4)


class QueueState(NamedTuple):
    """n servers as arrays. The unfinished tuples of a worker are a chain through a pool shared by all."""

    free: Floats
    """``(n,)`` when the last tuple so far is done; inf if never, NaN before the first tuple of all."""
    idle: Floats
    """``(n,)`` work that could have been done while there was none."""
    leg: Ints
    """``(n,)`` leg of the schedule that holds ``free``."""
    begins: Floats
    """``(n, S + 1)`` when each leg begins: -inf, the changes in order, inf."""
    speed: Floats
    """``(n, S)`` capacity in each leg."""
    sent: Floats
    """``(n,)`` work sent to it so far."""
    length: Ints
    """``(n,)`` tuples in the chain."""
    ends: Ints
    """``(2, n)`` first and last of the chain."""
    done: Floats
    """``(P,)`` when the tuple of a place in the pool is done."""
    following: Ints
    """``(P,)`` next place in the chain, or in that of free places."""
    spare: Ints
    """First free place."""


@kernel
def _leave(q: Any, worker: Any, now: Any) -> None:
    """Take out of the chain of ``worker`` what is done by ``now``."""
    while q.length[worker] > 0 and q.done[q.ends[0, worker]] <= now:
        place = q.ends[0, worker]
        q.ends[0, worker] = q.following[place]
        q.length[worker] -= 1
        q.following[place] = q.spare[0]
        q.spare[0] = place


@kernel
def _leave_all(q: Any, now: Any) -> None:
    for worker in range(len(q.length)):
        _leave(q, worker, now)


@kernel
def execute(free: Any, idle: Any, leg: Any, begins: Any, speed: Any, worker: Any, now: Any, work: Any) -> Any:
    """A worker executes a tuple that arrives at ``now``, after those before; returns when, from and to."""
    at = leg[worker]
    begin = free[worker]
    if begin < now:
        while begins[worker, at + 1] <= now:
            idle[worker] += speed[worker, at] * (begins[worker, at + 1] - begin)
            begin = begins[worker, at + 1]
            at += 1
        idle[worker] += speed[worker, at] * (now - begin)
        begin = now
    end = begin
    if begin < np.inf:
        last = begin
        end = last + work / speed[worker, at] if speed[worker, at] > 0.0 else np.inf
        while end > begins[worker, at + 1]:
            work = max(0.0, work - speed[worker, at] * (begins[worker, at + 1] - last))
            at += 1
            last = begins[worker, at]
            end = last + work / speed[worker, at] if speed[worker, at] > 0.0 else np.inf
        leg[worker] = at
    free[worker] = end
    return begin, end


@kernel
def _serve(q: Any, workers: Any, times: Any, costs: Any, out: Any) -> Any:
    """Fill ``out`` with completion times until done or until the pool is full; returns how many were."""
    free, idle, begins, speed = q.free, q.idle, q.begins, q.speed
    for i in range(len(workers)):
        if q.spare[0] == NOBODY:
            return i
        w, now = workers[i], times[i]
        _leave(q, w, now)
        q.sent[w] += costs[i]
        _, last = execute(free, idle, q.leg, begins, speed, w, now, costs[i])
        out[i] = last - now
        place = q.spare[0]
        q.spare[0] = q.following[place]
        q.done[place] = last
        if q.length[w] == 0:
            q.ends[0, w] = place
        else:
            q.following[q.ends[1, w]] = place
        q.ends[1, w] = place
        q.length[w] += 1
    return len(workers)


@kernel
def _tally(spent: Any, bits: Any, counts: Any, sums: Any) -> None:
    """Add completion times to a histogram; ``bits`` are the same numbers as int64."""
    for i in range(len(spent)):
        if spent[i] < np.inf:
            at = (bits[i] >> BIN_SHIFT) - LEAST_BIN
            counts[min(max(at, 0), BINS - 1)] += 1
            sums[COUNT] += 1.0
            sums[TOTAL] += spent[i]
            sums[LEAST] = min(sums[LEAST], spent[i])
            sums[MOST] = max(sums[MOST], spent[i])


class Histogram:
    """Completion times as a histogram with bins of 1.6 % from 1 ns to 270 years: memory does not grow."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.sums = np.array([0.0, 0.0, np.inf, -np.inf])

    def add(self, spent: Floats) -> None:
        """Take completion times in seconds, shape ``(m,)``; inf is not counted."""
        _tally(spent, spent.view(np.int64), self.counts, self.sums)

    def merge(self, other: Histogram) -> None:
        """Take the completion times of another histogram."""
        self.counts += other.counts
        self.sums[:LEAST] += other.sums[:LEAST]
        self.sums[LEAST] = min(self.sums[LEAST], other.sums[LEAST])
        self.sums[MOST] = max(self.sums[MOST], other.sums[MOST])

    @property
    def mean(self) -> float:
        """Mean, NaN without any."""
        return float(self.sums[TOTAL] / self.sums[COUNT]) if self.sums[COUNT] else np.nan

    @property
    def least(self) -> float:
        """The shortest, NaN without any."""
        return float(self.sums[LEAST]) if self.sums[COUNT] else np.nan

    @property
    def most(self) -> float:
        """The longest, NaN without any."""
        return float(self.sums[MOST]) if self.sums[COUNT] else np.nan

    def percentile(self, percent: float) -> float:
        """The smallest time that ``percent`` of all do not exceed, to 0.8 %; NaN without any."""
        if not self.sums[COUNT]:
            return np.nan
        at = int(np.searchsorted(np.cumsum(self.counts), np.ceil(percent / 100.0 * self.sums[COUNT])))
        low, high = (np.array([at, at + 1], np.int64) + LEAST_BIN << BIN_SHIFT).view(np.float64)
        return float(np.clip((low + high) / 2.0, self.least, self.most))


class Servers:
    """The queues of all workers.

    Args:
        n_workers: Number of workers.
        capacity: Capacities at the start, shape ``(n,)``: work per second; 1 if None.
        schedule: Changes of them in any order: (seconds, worker, capacity).
    """

    def __init__(
        self, *, n_workers: int, capacity: ArrayLike | None = None, schedule: Iterable[Step] = ()
    ) -> None:
        self.n_workers = check_int("n_workers", n_workers, low=1)
        begins, speed = legs(check_capacity(capacity, self.n_workers), list(schedule))
        n, pool = self.n_workers, 1024
        self.state = QueueState(
            free=np.full(n, np.nan),
            idle=np.zeros(n),
            leg=np.zeros(n, np.int64),
            begins=begins,
            speed=speed,
            sent=np.zeros(n),
            length=np.zeros(n, np.int64),
            ends=np.full((2, n), NOBODY),
            done=np.empty(pool),
            following=np.append(np.arange(1, pool), NOBODY),
            spare=np.zeros(1, np.int64),
        )
        self.arrived = np.zeros(n, np.int64)
        """``(n,)`` tuples sent to every worker."""
        self.began = np.nan
        """When the first tuple came."""
        # Times are checked as those of a window are: a length of 1, in time, nothing seen so far.
        self._edge = np.array([0.0, 1.0, 1.0, -np.inf])

    def serve(self, workers: NDArray[np.int32], times: ArrayLike, costs: ArrayLike) -> Floats:
        """Put the tuples of a batch into the queues; the order is that of arrival.

        Args:
            workers: Worker of every tuple, shape ``(m,)``.
            times: Arrival times in seconds, shape ``(m,)``, not decreasing.
            costs: Seconds of work at capacity 1, shape ``(m,)``.

        Returns:
            Completion times in seconds, shape ``(m,)``; inf for a tuple that is never done.
        """
        check_workers(workers, self.n_workers)
        work = accept_costs(None, costs, len(workers))
        arrivals = accept_times(self._edge, times, len(workers))
        out = np.empty(len(workers))
        if not len(workers):
            return out
        if np.isnan(self.began):
            self.began = float(arrivals[0])
            self.state.free[:] = self.began
            self.state.leg[:] = np.count_nonzero(self.state.begins <= self.began, axis=1) - 1
        done = 0
        while done < len(workers):
            part = slice(done, None)
            done += _serve(self.state, workers[part], arrivals[part], work[part], out[part])
            if done < len(workers):
                self._make_room(float(arrivals[done]))
        self.arrived += np.bincount(workers, minlength=self.n_workers)
        return out

    def _make_room(self, now: float) -> None:
        """Free the places of what is done by ``now``; if these are too few, double the pool."""
        _leave_all(self.state, now)
        size = len(self.state.done)
        if 2 * int(self.state.length.sum()) < size:
            return
        following = np.append(
            self.state.following, np.append(np.arange(size + 1, 2 * size), self.state.spare)
        )
        done = np.append(self.state.done, np.empty(size))
        self.state = self.state._replace(done=done, following=following, spare=np.array([size]))

    def queued(self, now: float) -> Ints:
        """Tuples waiting or in service at ``now``, shape ``(n,)``; ``now`` not before the last arrival."""
        _leave_all(self.state, now)
        return self.state.length.copy()

    def provided(self, until: float | Floats) -> Floats:
        """Work that every worker could have done from the first arrival until a time, shape ``(n,)``."""
        return self.capacity_between(self.began, until)

    def capacity_between(self, since: float, until: float | Floats) -> Floats:
        """Work that every worker can do between two times, shape ``(n,)``."""
        begins = np.maximum(self.state.begins, since)
        ends = np.minimum(begins[:, 1:], np.broadcast_to(until, self.n_workers)[:, None])
        return np.asarray((self.state.speed * np.clip(ends - begins[:, :-1], 0.0, None)).sum(axis=1))

    def worked(self, now: float) -> Floats:
        """Work that every worker has done until ``now``, shape ``(n,)``; not before the last arrival."""
        return self.provided(np.minimum(self.state.free, now)) - self.state.idle

    @property
    def ended(self) -> float:
        """When the last of the tuples that are ever done is done."""
        finite = self.state.free[np.isfinite(self.state.free)]
        return float(np.max(finite, initial=self.began))


def legs(capacity: Floats, schedule: list[Step]) -> tuple[Floats, Floats]:
    """When every leg begins, and its capacities."""
    n = len(capacity)
    per_worker: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    for i, (at, worker, strength) in enumerate(schedule):
        check_int(f"queue.schedule[{i}].worker", worker, low=0, high=n - 1)
        check_real(f"queue.schedule[{i}].capacity", strength, low=0)
        per_worker[worker].append((check_real(f"queue.schedule[{i}].at", at), strength))
    most = max(map(len, per_worker))
    begins = np.full((n, most + 2), np.inf)
    begins[:, 0] = -np.inf
    speed = np.repeat(capacity[:, None], most + 1, axis=1)
    for w, steps in enumerate(per_worker):
        for leg, (at, strength) in enumerate(sorted(steps, key=lambda step: step[0]), 1):
            begins[w, leg] = at
            speed[w, leg:] = strength
    return begins, speed
