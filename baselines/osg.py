"""Online shuffle grouping: greedy scheduling by execution times that the workers sketch and report."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.baselines.executing import Executing, Floats, Ints
from dalton.envs.contract import BLOCK, Costs, Keys, Times, Workers
from dalton.envs.errors import check_int, check_real
from dalton.envs.hashing import candidates, family
from dalton.envs.kernel import kernel
from dalton.envs.servers import execute
from dalton.envs.window import lightest

START, STABILIZING = range(2)
ROUND_ROBIN, SEND_ALL, WAIT_ALL, RUN = range(4)
PHASES = ("ROUND ROBIN", "SEND ALL", "WAIT ALL", "RUN")
MATRICES, REQUESTS, REPLIES = range(3)
PHASE, TURN, EPOCH, REPLIED = range(4)
COUNT, TIME = range(2)
ROOM = 64


class Queued(NamedTuple):
    """Tuples sent and not yet executed: a ring of Q places for every instance, Q a power of two."""

    done: Floats
    """``(k, Q)`` when the tuple is executed; -inf without a clock."""
    took: Floats
    """``(k, Q)`` w_{t,op}, the time it takes."""
    cells: NDArray[np.int32]
    """``(k, Q, r)`` its columns h_1(t) ... h_r(t)."""
    claim: Floats
    """``(k, Q)`` the scheduler's C^[op], if the tuple carries a synchronisation request; else NaN."""
    epoch: Ints
    """``(k, Q)`` epoch of that request."""
    ends: Ints
    """``(2, k)`` tuples ever executed, and ever sent: the place of tuple j is j mod Q."""
    due: Floats
    """``(k,)`` when the next one is executed; inf if there is none."""


class Instances(NamedTuple):
    """What the k operator instances keep (OSG Listing 3.1, Fig. 2)."""

    sketch: Floats
    """``(k, r, c, 2)`` the count-min matrices F and W, cell by cell."""
    snapshot: Floats
    """``(k, r, c)`` S, the ratios W/F when last looked at; 0 where F is."""
    state: Ints
    """``(k,)`` START or STABILIZING."""
    executed: Ints
    """``(k,)`` tuples since the last look, of N."""
    total: Floats
    """``(k,)`` C_op, cumulated execution time."""


class Scheduler(NamedTuple):
    """What the scheduler keeps (OSG Listing 3.2, Fig. 3)."""

    known: Floats
    """``(k, r, c, 2)`` F and W/F as last received."""
    heard: Ints
    """``(k,)`` whether they were ever received."""
    estimate: Floats
    """``(k,)`` C^, estimated cumulated execution times."""
    delta: Floats
    """``(k,)`` the replies Delta_op = C_op - C^[op] of this epoch."""
    mode: Ints
    """Phase, whose turn it is in a round robin, epoch, replies in this epoch."""
    messages: Ints
    """Pairs of matrices, piggy-backed requests and replies, so far."""


@kernel
def _look(o: Any, op: Any, tolerance: Any) -> Any:
    """Compare W/F with the snapshot (OSG Eq. 1) and replace it; returns whether they are stable."""
    sketch, snapshot = o.sketch, o.snapshot
    change, whole = 0.0, 0.0
    _, r, c, _ = sketch.shape
    for i in range(r):
        for j in range(c):
            count = sketch[op, i, j, COUNT]
            ratio = sketch[op, i, j, TIME] / count if count > 0.0 else 0.0
            change += abs(snapshot[op, i, j] - ratio)
            whole += snapshot[op, i, j]
            snapshot[op, i, j] = ratio
    return change <= tolerance * whole


@kernel
def _send(o: Any, s: Any, op: Any) -> None:
    """Instance ``op`` sends F and W to the scheduler and begins anew (OSG Fig. 2.C, 3.A, 3.B, 3.F)."""
    sketch, known, mode = o.sketch, s.known, s.mode
    k, r, c, _ = sketch.shape
    count, time = 0.0, 0.0
    for j in range(c):
        count += sketch[op, 0, j, COUNT]
        time += sketch[op, 0, j, TIME]
    for i in range(r):
        for j in range(c):
            seen = sketch[op, i, j, COUNT]
            known[op, i, j, COUNT] = seen
            known[op, i, j, TIME] = sketch[op, i, j, TIME] / seen if seen > 0.0 else time / count
            sketch[op, i, j, COUNT] = 0.0
            sketch[op, i, j, TIME] = 0.0
    s.heard[op] = 1
    s.messages[MATRICES] += 1
    if mode[PHASE] == ROUND_ROBIN and s.heard.sum() < k:
        return
    mode[PHASE] = SEND_ALL
    mode[TURN] = 0
    mode[EPOCH] += 1
    mode[REPLIED] = 0


@kernel
def _reply(o: Any, s: Any, op: Any, claim: Any, epoch: Any) -> None:
    """Instance ``op`` answers a request; the last answer corrects C^ (OSG Fig. 3.D, 3.E)."""
    s.messages[REPLIES] += 1
    if epoch != s.mode[EPOCH]:
        return
    s.delta[op] = o.total[op] - claim
    s.mode[REPLIED] += 1
    if s.mode[REPLIED] == len(s.delta):
        for w in range(len(s.delta)):
            s.estimate[w] += s.delta[w]
        s.mode[PHASE] = RUN


@kernel
def _done(q: Any, o: Any, s: Any, op: Any, period: Any, tolerance: Any) -> None:
    """Instance ``op`` has executed its next tuple (OSG Listing 3.1, Fig. 2)."""
    mask = q.done.shape[1] - 1
    place = q.ends[0, op] & mask
    took, claim = q.took[op, place], q.claim[op, place]
    for i in range(o.sketch.shape[1]):
        column = q.cells[op, place, i]
        o.sketch[op, i, column, COUNT] += 1.0
        o.sketch[op, i, column, TIME] += took
    o.total[op] += took
    if claim == claim:
        _reply(o, s, op, claim, q.epoch[op, place])
    q.ends[0, op] += 1
    q.due[op] = q.done[op, (place + 1) & mask] if q.ends[0, op] < q.ends[1, op] else np.inf
    o.executed[op] += 1
    if o.executed[op] == period:
        o.executed[op] = 0
        stable = _look(o, op, tolerance)
        if o.state[op] == START:
            o.state[op] = STABILIZING
        elif stable:
            o.state[op] = START
            _send(o, s, op)


@kernel
def _estimate(s: Any, cells: Any, i: Any, op: Any) -> None:
    """Add the estimated execution time of tuple ``i`` on ``op`` to C^ (OSG Listing 3.2, UPDATE)."""
    known = s.known
    best = known[op, 0, cells[0, i], COUNT]
    row = 0
    for j in range(1, cells.shape[0]):
        count = known[op, j, cells[j, i], COUNT]
        if count < best:
            best = count
            row = j
    s.estimate[op] += known[op, row, cells[row, i], TIME]


@kernel
def _schedule(
    q: Any, o: Any, s: Any, clocks: Any, cells: Any, times: Any, costs: Any, rule: Any, first: Any, out: Any
) -> Any:
    """Fill ``out`` from ``first`` on until done or until a ring is full; returns how far it is filled."""
    free, idle, leg, begins, speed = clocks
    mode, due, ends = s.mode, q.due, q.ends
    k, size = q.done.shape
    period, tolerance = np.int64(rule[0]), rule[1]
    now = -np.inf
    for i in range(first, len(out)):
        if len(times) > 0:
            now = times[i]
        op = lightest(due)
        while due[op] <= now:
            _done(q, o, s, op, period, tolerance)
            op = lightest(due)
        claim = np.nan
        phase = mode[PHASE]
        op = mode[TURN] if phase <= SEND_ALL else lightest(s.estimate)
        if ends[1, op] - ends[0, op] == size:
            return i
        if phase != ROUND_ROBIN:
            _estimate(s, cells, i, op)
        if phase <= SEND_ALL:
            mode[TURN] = op + 1 if op + 1 < k else 0
        if phase == SEND_ALL:
            claim = s.estimate[op]
            s.messages[REQUESTS] += 1
            if op + 1 == k:
                mode[PHASE] = WAIT_ALL
        begin, end = 0.0, costs[i] / speed[op, 0]
        if len(times) > 0:
            begin, end = execute(free, idle, leg, begins, speed, op, now, costs[i])
        place = ends[1, op] & (size - 1)
        q.took[op, place] = end - begin
        q.done[op, place] = end if len(times) > 0 else -np.inf
        q.claim[op, place] = claim
        q.epoch[op, place] = mode[EPOCH]
        for j in range(cells.shape[0]):
            q.cells[op, place, j] = cells[j, i]
        if ends[0, op] == ends[1, op]:
            due[op] = q.done[op, place]
        ends[1, op] += 1
        out[i] = op
    return len(out)


def _rings(k: int, size: int, rows: int) -> Queued:
    return Queued(
        done=np.empty((k, size)),
        took=np.empty((k, size)),
        cells=np.empty((k, size, rows), np.int32),
        claim=np.empty((k, size)),
        epoch=np.empty((k, size), np.int64),
        ends=np.zeros((2, k), np.int64),
        due=np.full(k, np.inf),
    )


def _grown(q: Queued) -> Queued:
    """The same tuples in rings of twice the size."""
    k, size, rows = q.cells.shape
    new = _rings(k, 2 * size, rows)._replace(ends=q.ends, due=q.due)
    for op in range(k):
        tuples = np.arange(q.ends[0, op], q.ends[1, op])
        for old, fresh in zip(q[:5], new[:5], strict=True):
            fresh[op, tuples % (2 * size)] = old[op, tuples % size]
    return new


class OnlineShuffleGrouping(Executing):
    """The worker with the least estimated cumulated execution time (OSG, Middleware 2016).

    Every worker ("operator instance") keeps two count-min matrices of r rows and c columns over the tuples it
    has executed, F of their number and W of their execution times. Every N tuples it compares the ratios W/F
    with those of N tuples before, S: when the relative change is at most mu (Eq. 1) it sends F and W to the
    scheduler and starts with empty ones. The scheduler estimates

        w^_{t,op} = W_op[i, h_i(t)] / F_op[i, h_i(t)],   i = argmin_i F_op[i, h_i(t)]

    adds it to C^[op] for every tuple t it sends to op, and sends each to argmin_op C^[op] (Listing 3.2; a tie
    takes the first). It goes through ROUND ROBIN until all workers have sent matrices; SEND ALL, k tuples in
    turn that carry C^[op] to every worker; WAIT ALL until all have replied with Delta_op = C_op - C^[op], C_op
    their true cumulated time at that tuple, whereupon C^ += Delta; RUN. New matrices bring it back to SEND
    ALL, in a new epoch; replies to an older one change nothing (Figs. 2 and 3).

    The scheduler never sees ``costs``: they are what a worker measures when it executes the tuple, and reach
    it only in F, W and Delta. With times and costs, a worker is the FIFO server of `dalton.envs.servers`: it
    updates its matrices and replies when the tuple is done, and the scheduler knows by the next arrival;
    messages take no time of their own, of which the paper says nothing. Without times every tuple is executed
    before the next one comes; without costs all take the same. Of several sources each has workers of its
    own in this respect: it waits for its own tuples only.

    Where the paper leaves a choice: r = ceil(log2(1/delta)), which gives its 2 rows for 0.25 and 4 for 0.1,
    and c = ceil(e/epsilon), 55 for 0.05 where it speaks of 54. A ratio with F = 0 counts as 0 in Eq. 1; for a
    tuple whose least F is 0, and so has not been executed by this worker lately, the estimate is the worker's
    mean. A round robin starts at worker 0.

    Args:
        n_workers: Number of workers n; k in the paper.
        seed: Chooses h_1 ... h_r, the same for all workers.
        period: N, tuples that a worker executes between two looks at its matrices.
        tolerance: mu of Eq. 1.
        error: epsilon of the count-min matrices, from which the columns follow.
        miss: delta of the count-min matrices, the probability of a larger error; the rows follow.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        period: int = 1024,
        tolerance: float = 0.05,
        error: float = 0.05,
        miss: float = 0.1,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.period = check_int("period", period, low=1)
        self.tolerance = check_real("tolerance", tolerance, low=0)
        self.error = check_real("error", error, low=1e-6, high=math.e)
        self.miss = check_real("miss", miss, low=1e-9, high=0.5)
        self.rows = math.ceil(math.log2(1 / self.miss))
        self.columns = math.ceil(math.e / self.error)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        k, shape = self.n_workers, (self.n_workers, self.rows, self.columns)
        self.members = family(self.seed, self.rows)
        self.queued = _rings(k, ROOM, self.rows)
        self.instances = Instances(
            sketch=np.zeros((*shape, 2)),
            snapshot=np.zeros(shape),
            state=np.full(k, START),
            executed=np.zeros(k, np.int64),
            total=np.zeros(k),
        )
        self.scheduler = Scheduler(
            known=np.zeros((*shape, 2)),
            heard=np.zeros(k, np.int64),
            estimate=np.zeros(k),
            delta=np.zeros(k),
            mode=np.array([ROUND_ROBIN, 0, 0, 0]),
            messages=np.zeros(3, np.int64),
        )

    @property
    def phase(self) -> str:
        """The scheduler's state: ROUND ROBIN, SEND ALL, WAIT ALL or RUN."""
        return PHASES[self.scheduler.mode[PHASE]]

    @property
    def messages(self) -> dict[str, int]:
        """Messages so far: pairs of matrices, requests (piggy-backed on tuples), replies (Theorem 3.3)."""
        return dict(zip(("matrices", "requests", "replies"), self.scheduler.messages.tolist(), strict=True))

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        stamps, work = self._clock(times, costs, len(keys))
        rule = (float(self.period), self.tolerance)
        for i in range(0, len(keys), BLOCK):
            part = slice(i, i + BLOCK)
            cells = candidates(keys[part], self.members, self.columns)
            given = cells, stamps[part], work[part], rule
            done = 0
            while True:
                state = self.queued, self.instances, self.scheduler, self.clocks
                done = _schedule(*state, *given, done, out[part])
                if done == cells.shape[1]:
                    break
                self.queued = _grown(self.queued)
