"""Online shuffle grouping: decisions by hand, the protocol against a plain model, bounds on messages."""

import math
import pickle

import numpy as np
import pytest

from dalton.baselines.osg import OnlineShuffleGrouping
from dalton.envs.checks import CHECKS
from dalton.envs.hashing import candidates
from dalton.envs.servers import Servers

TINY = {"period": 1, "error": 1.0, "miss": 0.5}  # a look after every tuple, 1 row of 3 columns
NUMBERS = ("matrices", "requests", "replies")


@pytest.fixture
def ab(keys_with):
    """Keys in two different cells."""
    return keys_with([(0,), (1,)], 3)


def test_hand_derived_decisions(ab):
    """Without times: a takes 10 s, b takes 1 s, each is executed before the next one comes."""
    a, b = ab
    osg = OnlineShuffleGrouping(n_workers=2, **TINY)
    cost = {a: 10.0, b: 1.0}

    def send(*keys):
        return osg.route(keys, costs=[cost[key] for key in keys]).tolist()

    # Round robin. Worker 0 executes a twice: snapshot, then no change, so it sends W/F = 10 for a (and its
    # mean 10 for what it has not seen); worker 1 likewise 1 for b, and 1 for all else.
    assert send(a, b, a, b) == [0, 1, 0, 1]
    assert osg.phase == "ROUND ROBIN"  # the last b is executed when the next tuple comes
    # Send all: C^ = (10, 1) travels with these two; a on worker 1 is estimated by its mean.
    assert send(a, a) == [0, 1]
    assert osg.phase == "WAIT ALL"
    assert osg.scheduler.estimate.tolist() == [10.0, 1.0]
    # Replies: C = (30, 12), so Delta = (20, 11). Then b to worker 1, at 1 s.
    assert send(b) == [1]
    assert osg.phase == "RUN"
    assert osg.scheduler.delta.tolist() == [20.0, 11.0]
    assert osg.scheduler.estimate.tolist() == [30.0, 13.0]
    # Worker 1 has looked at (a) and (a, b): b is new and left out of Eq. 1, a is the same, so it sends; all
    # are asked again, worker 0 first.
    assert send(a) == [0]
    assert osg.phase == "SEND ALL"
    assert osg.scheduler.estimate.tolist() == [40.0, 13.0]
    # Worker 0 executes it, replies, looks, sends too: a third epoch begins, again with worker 0.
    assert send(a) == [0]
    assert osg.scheduler.estimate.tolist() == [50.0, 13.0]
    assert osg.messages == dict(zip(NUMBERS, (4, 4, 3), strict=True))


def test_workers_report_when_the_tuple_is_done():
    osg = OnlineShuffleGrouping(n_workers=1, **TINY)
    sent = []
    for time in (0.0, 1.0, 19.5, 20.0):  # 10 s each: done at 10, 20, 30, ...
        osg.route([7], [time], [10.0])
        sent.append(osg.messages["matrices"])
    assert sent == [0, 0, 0, 1]


@pytest.mark.parametrize(("count_idle", "estimate"), [(True, 50.0), (False, 30.0)])
def test_replies_count_idle_time_or_not(count_idle, estimate):
    osg = OnlineShuffleGrouping(n_workers=1, **TINY, count_idle=count_idle)
    # Arrivals every 20 s, 10 s each. The third carries the request; it is done 50 s after the start.
    osg.route([7] * 3, [100.0, 120.0, 140.0], [10.0] * 3)
    assert osg.phase == "WAIT ALL"
    osg.route([7], [160.0], [10.0])
    assert osg.scheduler.estimate.tolist() == [estimate + 10.0]


class Instance:
    def __init__(self, plain):
        self.plain, self.total, self.free, self.queue = plain, 0.0, -math.inf, []
        self.begin()

    def begin(self):
        shape = (self.plain.rows, self.plain.columns)
        self.f, self.w, self.s = np.zeros(shape), np.zeros(shape), None

    def execute(self, done, took, cells, request):
        """Listing 3.1 and Fig. 2; returns the matrices if they are sent."""
        for row, column in enumerate(cells):
            self.f[row, column] += 1
            self.w[row, column] += took
        self.total += took
        if request is not None:
            self.plain.reply(self, self.total if done is None else done - self.plain.began, *request)
        if self.f[0].sum() % self.plain.period:
            return
        ratio = np.divide(self.w, self.f, out=np.zeros_like(self.w), where=self.f > 0)
        stable = self.s is not None and (
            np.abs(self.s - ratio)[self.s > 0].sum() <= self.plain.tolerance * self.s.sum()
        )
        if stable:
            self.plain.receive(self, self.f, self.w)
            self.begin()
        else:
            self.s = ratio


class Plain:
    """OSG as Section 3 tells it, one object per part."""

    def __init__(self, osg):
        self.rows, self.columns, self.members = osg.rows, osg.columns, osg.members
        self.period, self.tolerance, self.k = osg.period, osg.tolerance, osg.n_workers
        self.instances = [Instance(self) for _ in range(self.k)]
        self.known = {}
        self.estimate = [0.0] * self.k
        self.phase, self.turn, self.epoch, self.replies = "ROUND ROBIN", 0, 0, {}
        self.began, self.messages = None, dict.fromkeys(NUMBERS, 0)

    def receive(self, instance, f, w):
        self.messages["matrices"] += 1
        self.known[self.instances.index(instance)] = (f.copy(), w.copy())
        if len(self.known) == self.k:
            self.phase, self.turn, self.replies = "SEND ALL", 0, {}
            self.epoch += 1

    def reply(self, instance, real, claim, epoch):
        self.messages["replies"] += 1
        if epoch == self.epoch:
            self.replies[self.instances.index(instance)] = real - claim
            if len(self.replies) == self.k:
                for op, delta in self.replies.items():
                    self.estimate[op] += delta
                self.phase = "RUN"

    def update(self, op, cells):
        f, w = self.known[op]
        row = min(range(self.rows), key=lambda i: f[i, cells[i]])
        count = f[row, cells[row]]
        self.estimate[op] += w[row, cells[row]] / count if count else w[0].sum() / f[0].sum()

    def submit(self, key, time, cost):
        while True:
            waiting = [(i.queue[0][0] or 0.0, op) for op, i in enumerate(self.instances) if i.queue]
            due = [(done, op) for done, op in waiting if time is None or done <= time]
            if not due:
                break
            instance = self.instances[min(due)[1]]
            instance.execute(*instance.queue.pop(0))
        if self.began is None:
            self.began = time
        cells = candidates(np.array([key]), self.members, self.columns)[:, 0].tolist()
        request = None
        if self.phase in ("WAIT ALL", "RUN"):
            op = self.estimate.index(min(self.estimate))
            self.update(op, cells)
        else:
            op, self.turn = self.turn, (self.turn + 1) % self.k
            if self.phase == "SEND ALL":
                self.update(op, cells)
                self.messages["requests"] += 1
                request = (self.estimate[op], self.epoch)
                if op == self.k - 1:
                    self.phase = "WAIT ALL"
        instance = self.instances[op]
        done = None
        if time is not None:
            instance.free = done = max(instance.free, time) + cost
        instance.queue.append((done, cost, cells, request))
        return op


@pytest.mark.parametrize("clocked", [True, False])
@pytest.mark.parametrize(("k", "period", "error"), [(1, 7, 0.5), (3, 16, 0.3), (5, 64, 0.05), (8, 5, 2.0)])
def test_every_decision_is_that_of_the_plain_model(zipf, clocked, k, period, error):
    keys = zipf(4_000, n_keys=60, seed=k)
    # Whole numbers, and eighths, so that sums are exact in any order; halfway all keys cost something else.
    costs = 1.0 + np.abs(keys) % 13
    costs[2_000:] = 1.0 + np.abs(keys[2_000:]) % 7
    times = np.cumsum(np.random.default_rng(k).integers(0, 112 // k + 1, len(keys))) / 8
    osg = OnlineShuffleGrouping(n_workers=k, seed=3, period=period, tolerance=0.2, error=error)
    plain = Plain(osg)
    phases = set()
    for start in range(0, len(keys), 500):
        part = slice(start, start + 500)
        clock = times[part] if clocked else None
        expected = [
            plain.submit(int(keys[i]), float(times[i]) if clocked else None, float(costs[i]))
            for i in range(start, start + 500)
        ]
        assert osg.route(keys[part], clock, costs[part]).tolist() == expected
        assert osg.phase == plain.phase
        assert osg.messages == plain.messages
        phases.add(osg.phase)
    np.testing.assert_allclose(osg.scheduler.estimate, plain.estimate, rtol=1e-12)
    assert plain.epoch > 2
    assert "RUN" in phases or not clocked


@pytest.mark.parametrize("check", CHECKS)
def test_contract_through_all_states(check):
    """The defaults hardly leave round robin in a check's few tuples."""
    CHECKS[check](lambda **given: OnlineShuffleGrouping(period=16, tolerance=0.3, error=0.3, **given))


def test_cutting_the_stream_and_pickling_change_nothing(zipf):
    keys = zipf(6_000, n_keys=200)
    costs = 0.001 * (1 + np.abs(keys) % 30)
    times = np.arange(len(keys)) * costs.mean() / 4 * 0.9  # too few workers: the queues, and rings, grow

    def made():
        return OnlineShuffleGrouping(n_workers=4, period=50, tolerance=0.3)

    whole = made()
    expected = whole.route(keys, times, costs)
    assert whole.queued.tuples.shape[1] > 64
    assert len(set(np.bincount(expected))) > 1  # not round robin
    for size in (1, 7, 1_000):
        osg = made()
        parts = []
        for i in range(0, len(keys), size):
            if i == 3_000:
                osg = pickle.loads(pickle.dumps(osg))
            part = slice(i, i + size)
            parts.append(osg.route(keys[part], times[part], costs[part]))
        np.testing.assert_array_equal(np.concatenate(parts), expected)
        assert osg.messages == whole.messages


def test_a_worker_that_fails_is_never_heard_of_again():
    osg = OnlineShuffleGrouping(n_workers=2, **TINY)
    osg.employ(None, [(5.0, 1, 0.0)])
    times = np.arange(100.0)
    osg.route([7] * 100, times, [1.0] * 100)
    assert osg.queued.ends[0].tolist()[1] <= 3 < osg.queued.ends[0].tolist()[0]


@pytest.mark.parametrize("k", [2, 5, 20])
def test_messages_are_few(zipf, k):
    """OSG Theorem 3.3: at most a pair of matrices per 2 N tuples of a worker, k requests and replies each."""
    m, n = 40_000, 256
    keys = zipf(m, n_keys=400)
    costs = 0.001 * (1 + np.abs(keys) % 64)
    osg = OnlineShuffleGrouping(n_workers=k, period=n)
    osg.route(keys, np.arange(m) * costs.mean() / k, costs)
    sent = osg.messages
    assert k <= sent["matrices"] <= m / (2 * n)
    assert sent["replies"] <= sent["requests"] <= k * (sent["matrices"] - k + 1)
    assert sum(sent.values()) <= (2 * k + 1) * m / (2 * n)


def test_it_learns_the_speed_of_unequal_workers(zipf):
    """A worker twice as fast gets twice the tuples, though nobody told the scheduler."""
    keys = zipf(60_000, seed=2)
    costs = 0.001 * (1 + np.abs(keys) % 64)
    capacity = np.array([1.0, 1.0, 2.0])
    times = np.arange(len(keys)) * costs.mean() / capacity.sum() * 1.05
    osg = OnlineShuffleGrouping(n_workers=3)
    osg.employ(capacity)
    workers = osg.route(keys, times, costs)
    late = np.bincount(workers[30_000:]) / 30_000
    np.testing.assert_allclose(late, capacity / capacity.sum(), atol=0.02)
    osg_last, round_robin_last = (
        Servers(n_workers=3, capacity=capacity).serve(sent, times, costs)[-5_000:].mean()
        for sent in (workers, np.arange(len(keys), dtype=np.int32) % 3)
    )
    assert osg_last < 0.05 * round_robin_last


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"period": 0}, "period = 0: expected a whole number >= 1"),
        ({"tolerance": -0.1}, "tolerance = -0.1: expected a number >= 0"),
        ({"error": 0}, "error = 0: expected a number from 1e-06"),
        ({"miss": 0.9}, "miss = 0.9: expected a number from 1e-09 to 0.5"),
        ({"count_idle": 1}, "count_idle = 1: expected true or false"),
    ],
)
def test_bad_parameters(refused, fields, message):
    assert refused(OnlineShuffleGrouping, n_workers=2, **fields).startswith(message)


@pytest.mark.parametrize(
    ("error", "miss", "shape"), [(0.05, 0.1, (4, 55)), (0.7, 0.25, (2, 4)), (math.e, 0.5, (1, 1))]
)
def test_size_of_the_matrices(error, miss, shape):
    """OSG Fig. 1 has 2 rows of 4 for delta = 0.25 and epsilon = 0.70."""
    osg = OnlineShuffleGrouping(n_workers=2, error=error, miss=miss)
    assert (osg.rows, osg.columns) == shape
