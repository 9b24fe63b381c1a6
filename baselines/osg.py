"""Online shuffle grouping: greedy scheduling by execution times that the workers sketch and report."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.baselines.executing import Executing, Floats, Ints
from dalton.envs.contract import BLOCK, Costs, Keys, Times, Workers
from dalton.envs.errors import ConfigError, check_int, check_real, shown
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
DONE, TOOK, CLAIM, ASKED = range(4)
FIRST, LAST = range(2)
ROOM = 64
u = np.uint64
"""Of an index: signed ones may count from the end, which costs a choice each."""


class Queued(NamedTuple):
    """Tuples sent and not yet executed: a ring of Q places for every instance, Q a power of two."""

    tuples: Floats
    """``(k, Q, 4)`` when the tuple is done (-inf without a clock), w_{t,op}, and of a synchronisation request
    that it carries the scheduler's C^[op] (NaN if none) and the epoch."""
    cells: NDArray[np.int32]
    """``(k, Q, r)`` its cells (see `Instances`)."""
    ends: Ints
    """``(2, k)`` tuples ever executed, and ever sent: the place of tuple j is j mod Q."""
    due: Floats
    """``(k,)`` when the next one is done; inf if there is none."""


class Instances(NamedTuple):
    """What the k operator instances keep (OSG Listing 3.1, Fig. 2)."""

    sketch: Floats
    """``(k, r c, 2)`` the count-min matrices F and W; cell c i + h_i(t) is that of tuple t in row i."""
    snapshot: Floats
    """``(k, r c)`` S, the ratios W/F when last looked at; 0 where F is."""
    state: Ints
    """``(k,)`` START or STABILIZING."""
    executed: Ints
    """``(k,)`` tuples since the last look, of N."""
    total: Floats
    """``(k,)`` cumulated execution time."""
    began: Floats
    """When the first tuple came; NaN before."""


class Scheduler(NamedTuple):
    """What the scheduler keeps (OSG Listing 3.2, Fig. 3)."""

    known: Floats
    """``(k, r c, 2)`` F and W/F as last received."""
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


class Rule(NamedTuple):
    """The parameters that kernels need."""

    columns: int
    period: int
    tolerance: float
    count_idle: bool


@kernel
def _look(o: Any, op: Any, tolerance: Any) -> Any:
    """Compare W/F with the snapshot (OSG Eq. 1) and replace it; returns whether they are stable."""
    sketch, snapshot = o.sketch, o.snapshot
    change, whole = 0.0, 0.0
    for cell in range(snapshot.shape[1]):
        count = sketch[op, cell, COUNT]
        ratio = sketch[op, cell, TIME] / count if count > 0.0 else 0.0
        if snapshot[op, cell] > 0.0:
            change += abs(snapshot[op, cell] - ratio)
        whole += snapshot[op, cell]
        snapshot[op, cell] = ratio
    return change <= tolerance * whole


@kernel
def _send(o: Any, s: Any, op: Any, columns: Any) -> None:
    """Instance ``op`` sends F and W to the scheduler and begins anew (OSG Figs. 2.C, 3.A, 3.B, 3.F)."""
    sketch, known, mode = o.sketch, s.known, s.mode
    count, time = 0.0, 0.0
    for cell in range(columns):
        count += sketch[op, cell, COUNT]
        time += sketch[op, cell, TIME]
    for cell in range(sketch.shape[1]):
        seen = sketch[op, cell, COUNT]
        known[op, cell, COUNT] = seen
        known[op, cell, TIME] = sketch[op, cell, TIME] / seen if seen > 0.0 else time / count
        sketch[op, cell, COUNT] = 0.0
        sketch[op, cell, TIME] = 0.0
    s.messages[MATRICES] += 1
    s.heard[op] = 1
    for other in range(len(s.heard)):
        if s.heard[other] == 0:
            return
    mode[PHASE] = SEND_ALL
    mode[TURN] = 0
    mode[EPOCH] += 1
    mode[REPLIED] = 0


@kernel
def _reply(s: Any, op: Any, real: Any, claim: Any, epoch: Any) -> None:
    """Instance ``op`` answers a request; the last answer corrects C^ (OSG Figs. 3.D, 3.E)."""
    s.messages[REPLIES] += 1
    if epoch != s.mode[EPOCH]:
        return
    s.delta[op] = real - claim
    s.mode[REPLIED] += 1
    if s.mode[REPLIED] == len(s.delta):
        for w in range(len(s.delta)):
            s.estimate[w] += s.delta[w]
        s.mode[PHASE] = RUN


@kernel
def _done(q: Any, o: Any, s: Any, op: Any, rule: Any) -> None:
    """Instance ``op`` has executed its next tuple (OSG Listing 3.1, Fig. 2)."""
    tuples, sketch = q.tuples, o.sketch
    mask = tuples.shape[1] - 1
    i, place = u(op), u(q.ends[FIRST, op] & mask)
    took, claim = tuples[i, place, TOOK], tuples[i, place, CLAIM]
    for row in range(q.cells.shape[2]):
        cell = u(q.cells[i, place, row])
        sketch[i, cell, COUNT] += 1.0
        sketch[i, cell, TIME] += took
    o.total[i] += took
    if claim == claim:
        real = o.total[i]
        if rule.count_idle and tuples[i, place, DONE] > -np.inf:
            real = tuples[i, place, DONE] - o.began[0]
        _reply(s, op, real, claim, np.int64(tuples[i, place, ASKED]))
    q.ends[FIRST, i] += 1
    following = u(q.ends[FIRST, i] & mask)
    q.due[i] = tuples[i, following, DONE] if q.ends[FIRST, i] < q.ends[LAST, i] else np.inf
    o.executed[i] += 1
    if o.executed[i] == rule.period:
        o.executed[i] = 0
        stable = _look(o, op, rule.tolerance)
        if o.state[i] == START:
            o.state[i] = STABILIZING
        elif stable:
            o.state[i] = START
            _send(o, s, op, rule.columns)


@kernel
def _estimated(known: Any, cells: Any, i: Any, op: Any, columns: Any) -> Any:
    """The estimated execution time of tuple ``i`` on ``op`` (OSG Listing 3.2, UPDATE)."""
    best = u(cells[0, i])
    least = known[op, best, COUNT]
    for row in range(1, cells.shape[0]):
        cell = u(row * columns + cells[row, i])
        count = known[op, cell, COUNT]
        if count < least:
            least = count
            best = cell
    return known[op, best, TIME]


@kernel
def _schedule(
    q: Any, o: Any, s: Any, clocks: Any, cells: Any, times: Any, costs: Any, rule: Any, first: Any, out: Any
) -> Any:
    """Fill ``out`` from ``first`` on until done or until a ring is full; returns how far it is filled."""
    free, idle, leg, begins, speed = clocks
    tuples, ends, due, mode, estimate = q.tuples, q.ends, q.due, s.mode, s.estimate
    k, size, _ = tuples.shape
    clocked = len(times) > 0
    now = -np.inf
    if clocked and np.isnan(o.began[0]):
        o.began[0] = times[0]
    for i in range(first, len(out)):
        if clocked:
            now = times[i]
        op = lightest(due)
        while due[op] <= now:
            _done(q, o, s, op, rule)
            op = lightest(due)
        phase = mode[PHASE]
        op = mode[TURN] if phase <= SEND_ALL else lightest(estimate)
        w = u(op)
        if ends[LAST, w] - ends[FIRST, w] == size:
            return i
        claim = np.nan
        if phase != ROUND_ROBIN:
            estimate[w] += _estimated(s.known, cells, i, w, rule.columns)
        if phase <= SEND_ALL:
            mode[TURN] = op + 1 if op + 1 < k else 0
            if phase == SEND_ALL:
                claim = estimate[w]
                s.messages[REQUESTS] += 1
                if op + 1 == k:
                    mode[PHASE] = WAIT_ALL
        place = u(ends[LAST, w] & (size - 1))
        if clocked:
            begin, end = execute(free, idle, leg, begins, speed, w, now, costs[i])
            tuples[w, place, TOOK] = end - begin
            tuples[w, place, DONE] = end
        else:
            tuples[w, place, TOOK] = costs[i] / speed[w, 0]
            tuples[w, place, DONE] = -np.inf
        tuples[w, place, CLAIM] = claim
        tuples[w, place, ASKED] = mode[EPOCH]
        for row in range(cells.shape[0]):
            q.cells[w, place, row] = row * rule.columns + cells[row, i]
        if ends[FIRST, w] == ends[LAST, w]:
            due[w] = tuples[w, place, DONE]
        ends[LAST, w] += 1
        out[i] = op
    return len(out)


def _rings(k: int, size: int, rows: int) -> Queued:
    cells = np.zeros((k, size, rows), np.int32)
    return Queued(np.zeros((k, size, 4)), cells, np.zeros((2, k), np.int64), np.full(k, np.inf))


def _grown(q: Queued) -> Queued:
    """The same tuples in rings of twice the size."""
    k, size, rows = q.cells.shape
    new = _rings(k, 2 * size, rows)._replace(ends=q.ends, due=q.due)
    for op in range(k):
        waiting = np.arange(q.ends[FIRST, op], q.ends[LAST, op])
        new.tuples[op, waiting % (2 * size)] = q.tuples[op, waiting % size]
        new.cells[op, waiting % (2 * size)] = q.cells[op, waiting % size]
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
    turn that carry C^[op] to every worker; WAIT ALL until all have replied with Delta_op = C_op - C^[op],
    where C_op is their true time at that tuple, whereupon C^ += Delta; RUN. New matrices bring it back to
    SEND ALL, in a new epoch; replies to an older one change nothing (Figs. 2 and 3).

    The scheduler never sees ``costs``: they are what a worker measures when it executes the tuple, and reach
    it only in F, W and Delta. With times and costs, a worker is the FIFO server of `dalton.envs.servers`: it
    updates its matrices and replies when the tuple is done, and the scheduler knows by the next arrival;
    messages take no time of their own. Without times every tuple is executed before the next one comes;
    without costs all take the same. Of several sources each has workers of its own in this respect: it waits
    for its own tuples only.

    Where the paper leaves a choice:

    - C_op, which it calls cumulated execution time. The sum of execution times knows nothing of the time in
      which a worker had nothing to do. A correction by it sends a burst to a worker that was idle, to make up
      for what nobody waits for: with 105 % of the capacity needed that is worse than round robin. In the
      authors' published code a worker answers with its clock: when, since the start, the tuple is done. So
      it does here; ``count_idle = False`` is the sum. They are the same while no worker is ever idle.
    - r = ceil(log2(1/delta)), which gives its 2 rows for 0.25 and 4 for 0.1; c = ceil(e/epsilon), 55 for 0.05
      where it speaks of 54.
    - Cells that were empty at the snapshot are left out of Eq. 1, where they have no ratio: with many columns
      a new cell is no sign of change, and counting it would keep the matrices from ever being sent.
    - A tuple whose least F is 0 was not executed by this worker lately; the estimate is the worker's mean.
    - Replies that come while requests are still being sent count; a round robin starts at worker 0.

    Args:
        n_workers: Number of workers n; k in the paper.
        seed: Chooses h_1 ... h_r, the same for all workers.
        period: N, tuples that a worker executes between two looks at its matrices.
        tolerance: mu of Eq. 1.
        error: epsilon of the count-min matrices, from which the columns follow.
        miss: delta of the count-min matrices, the probability of a larger error; the rows follow.
        count_idle: Whether C_op counts the time in which the worker was idle.
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
        count_idle: bool = True,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.period = check_int("period", period, low=1)
        self.tolerance = check_real("tolerance", tolerance, low=0)
        self.error = check_real("error", error, low=1e-6, high=math.e)
        self.miss = check_real("miss", miss, low=1e-9, high=0.5)
        if not isinstance(count_idle, bool):
            raise ConfigError(f"count_idle = {shown(count_idle)}: expected true or false")
        self.count_idle = count_idle
        self.rows = math.ceil(math.log2(1 / self.miss))
        self.columns = math.ceil(math.e / self.error)
        self.reset()

    def _reset(self) -> None:
        super()._reset()
        k, shape = self.n_workers, (self.n_workers, self.rows * self.columns)
        self.members = family(self.seed, self.rows)
        self.queued = _rings(k, ROOM, self.rows)
        self.instances = Instances(
            sketch=np.zeros((*shape, 2)),
            snapshot=np.zeros(shape),
            state=np.full(k, START),
            executed=np.zeros(k, np.int64),
            total=np.zeros(k),
            began=np.full(1, np.nan),
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
        rule = Rule(self.columns, self.period, self.tolerance, self.count_idle)
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
