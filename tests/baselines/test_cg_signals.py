"""Virtual workers follow the workers' signals: who hears what when, and who gives what to whom."""

import pickle
from collections import deque

import numpy as np
import pytest

from dalton.baselines.cg import ConsistentGrouping
from dalton.baselines.porc import PowerOfRandomChoices

BUSY, FINE, IDLE = 0.9, 0.8, 0.7


@pytest.fixture
def source(keys_with):
    """A source with three workers of two virtual ones each, which sends a tuple to a virtual worker."""

    class Source(ConsistentGrouping):
        def send(self, virtual, now):
            return int(self.route([keys[virtual]], [now])[0])

        @property
        def owners(self):
            return self.owner.tolist()

    keys = keys_with([(v,) for v in range(6)], n=6)

    def make(**given):
        # With a slack of 10 no virtual worker is ever full: a key goes to its first.
        return Source(
            **{"n_workers": 3, "virtual": 2, "epsilon": 10.0, "delay": 1.0, "spill": False, **given}
        )

    return make


def test_a_signal_comes_with_the_acknowledgement_of_the_next_tuple(source):
    cg = source()
    assert cg.send(3, 9.0) == 0
    cg.report([BUSY, FINE, IDLE])
    assert cg.send(0, 10.0) == 0  # acknowledged at 11: worker 0 is busy
    assert cg.send(2, 10.5) == 2  # at 11.5: worker 2 is idle
    assert cg.send(3, 11.4) == 0  # half of the pair is not heard yet
    assert cg.owners == [0, 1, 2, 0, 1, 2]
    # The last of the virtual workers 0 and 3, which came together, moves; this tuple follows it already.
    assert cg.send(3, 11.5) == 2
    assert cg.owners == [0, 1, 2, 2, 1, 2]
    assert cg.moves == 1
    # Both must ask again for more.
    assert [cg.send(v, 20.0 + v) for v in range(6)] == [0, 1, 2, 2, 1, 2]


def test_who_is_sent_nothing_is_not_heard(source):
    cg = source(delay=0.0)
    cg.report([BUSY, FINE, IDLE])
    for now in range(20):
        assert cg.send(now % 2, float(now)) == now % 2
    assert cg.moves == 0
    cg.send(2, 20.0)
    assert cg.send(3, 20.0) == 2
    assert cg.moves == 1


def test_first_come_first_served_on_both_sides(keys_with):
    cg = ConsistentGrouping(n_workers=4, virtual=3, epsilon=10.0, delay=0.0, spill=False)
    at = keys_with([(w,) for w in range(4)], n=12)  # virtual workers that move last

    def hear(worker, now):
        cg.route([at[worker], at[worker]], [now, now])

    cg.report([BUSY, BUSY, FINE, FINE])
    hear(1, 1.0)
    hear(0, 2.0)
    cg.report([BUSY, BUSY, IDLE, FINE])
    hear(0, 3.0)  # repeats itself: both keep their places
    hear(1, 4.0)
    hear(2, 5.0)
    assert np.bincount(cg.owner).tolist() == [3, 2, 4, 3], "worker 1 was first"
    cg.report([FINE, FINE, FINE, IDLE])
    hear(0, 6.0)  # withdraws
    hear(3, 7.0)
    assert cg.moves == 1
    cg.report([FINE, BUSY, IDLE, IDLE])
    hear(2, 8.0)
    hear(1, 9.0)  # 3 has waited longer than 2
    assert np.bincount(cg.owner).tolist() == [3, 1, 4, 4]
    cg.report([FINE, BUSY, IDLE, FINE])
    hear(1, 10.0)
    assert np.bincount(cg.owner).tolist() == [3, 1, 4, 4], "nobody gives its last virtual worker"


def test_what_came_last_goes_first(source):
    cg = source(delay=0.0, virtual=2)
    cg.report([BUSY, FINE, IDLE])
    for v in (0, 2, 1):
        cg.send(v, 1.0)
    assert cg.owners == [0, 1, 2, 2, 1, 2]
    cg.report([FINE, IDLE, BUSY])
    for v in (1, 2, 1):
        cg.send(v, 2.0)
    assert cg.owners == [0, 1, 2, 1, 1, 2]


def test_while_a_signal_is_under_way_the_next_one_waits(source):
    cg = source(delay=10.0)
    cg.report([BUSY, FINE, IDLE])
    cg.send(0, 0.0)  # busy, heard at 10
    cg.report([FINE, FINE, IDLE])
    cg.send(0, 5.0)
    cg.send(2, 5.0)  # idle, heard at 15
    cg.send(1, 10.0)
    cg.send(0, 11.0)  # only now worker 0 says that it is well: heard at 21, too late
    assert cg.send(3, 15.0) == 2


def test_between_the_thresholds_and_without_capacity_nobody_speaks(source):
    cg = source(delay=0.0)
    for measured in ([0.85, 0.75, 0.75], [np.nan, np.nan, 0.1]):
        cg.report(measured)
        for v in range(6):
            cg.send(v, 1.0)
        assert cg.moves == 0


def test_spilling_gives_to_who_was_busy_least_recently(source):
    waiting, spilling = (source(delay=0.0, spill=spill) for spill in (False, True))
    for cg in (waiting, spilling):
        cg.report([FINE, BUSY, FINE])
        cg.send(1, 1.0)
        cg.send(1, 1.0)
    assert waiting.moves == 0
    assert spilling.owners == [0, 1, 2, 0, 0, 2], "0 and 2 were never busy"
    spilling.report([FINE, FINE, BUSY])
    for v in (1, 2, 2):
        spilling.send(v, 2.0)
    # Now 1 is well; it was busy, and after that 0 was given one.
    assert spilling.owners == [0, 1, 2, 0, 0, 1]


def test_where_all_are_busy_all_wait(source):
    cg = source(delay=0.0, spill=True)
    cg.report([FINE, FINE, BUSY])
    for v in (2, 0):
        cg.send(v, 1.0)
    assert cg.moves == 1, "0 and 1 are well"
    for now in range(2, 20):
        cg.report([BUSY, BUSY, BUSY])
        for v in (0, 1, 2):
            cg.send(v, float(now))
    # One more moved, from 0 to 1, which was not heard yet.
    assert cg.moves == 2


class Reference:
    """The same rules, a tuple at a time."""

    def __init__(self, n, virtual, delay, spill):
        self.n, self.delay, self.spill = n, delay, spill
        self.owner = [v % n for v in range(n * virtual)]
        self.came, self.moves, self.rank = [0] * len(self.owner), 0, 0
        self.says, self.coming, self.order = [None] * n, {}, [0] * n
        self.heard = [None] * n
        self.idle, self.busy = deque(), deque()

    def report(self, measured):
        self.says = ["busy" if u > 0.85 else "idle" if u < 0.75 else "fine" for u in measured]

    def move(self, giver, taker):
        own = [v for v, w in enumerate(self.owner) if w == giver]
        v = max(own, key=lambda v: (self.came[v], v))
        self.moves += 1
        self.owner[v], self.came[v] = taker, self.moves

    def last(self, worker):
        self.rank += 1
        self.order[worker] = self.rank

    def hear(self, worker, sign):
        self.heard[worker] = sign
        for name, queue in (("idle", self.idle), ("busy", self.busy)):
            if sign != name and worker in queue:
                queue.remove(worker)
            if sign == name and worker not in queue:
                queue.append(worker)
        while self.idle and self.busy:
            giver = self.busy.popleft()
            if self.owner.count(giver) > 1:
                self.move(giver, self.idle.popleft())
        if sign == "busy":
            self.last(worker)
            well = [w for w in range(self.n) if self.heard[w] != "busy"]
            if self.spill and self.busy and well and self.owner.count(self.busy[0]) > 1:
                taker = min(well, key=lambda w: (self.order[w], w))
                self.move(self.busy.popleft(), taker)
                self.last(taker)

    def send(self, virtual, now):
        while self.coming and min(self.coming.values())[0] <= now:
            worker = min(self.coming, key=lambda w: (self.coming[w][0], w))
            self.hear(worker, self.coming.pop(worker)[1])
        worker = self.owner[virtual]
        if self.says[worker] is not None and worker not in self.coming:
            self.coming[worker] = (now + self.delay, self.says[worker])
            self.says[worker] = None
        return worker


@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.7, 25.0])
@pytest.mark.parametrize(("n", "virtual"), [(2, 1), (3, 4), (8, 10)])
def test_every_decision_matches_the_rules_for_any_cut(zipf, n, virtual, delay, spill):
    keys = zipf(3_000, seed=n)
    rng = np.random.default_rng(n)
    times = np.cumsum(rng.exponential(0.1, len(keys)))
    virtuals = PowerOfRandomChoices(n_workers=n * virtual, seed=3).route(keys)
    reports = {at: rng.uniform(0.6, 1.0, n) for at in range(100, len(keys), 100)}
    reference, expected = Reference(n, virtual, delay, spill), []
    for at, v in enumerate(virtuals):
        if at in reports:
            reference.report(reports[at])
        expected.append(reference.send(v, times[at]))
    assert virtual == 1 or reference.moves > 3
    for size in (1, 7, 100):
        cg = ConsistentGrouping(n_workers=n, seed=3, virtual=virtual, delay=delay, spill=spill)
        found = []
        for at in range(0, len(keys), 100):
            if at in reports:
                cg.report(reports[at])
            for low in range(at, at + 100, size):
                high = min(low + size, at + 100)
                found += cg.route(keys[low:high], times[low:high]).tolist()
            if at == 1_500:
                cg = pickle.loads(pickle.dumps(cg))
        assert found == expected
        assert cg.owner.tolist() == reference.owner
        assert cg.moves == reference.moves
        assert cg.ownership.owned.tolist() == np.bincount(cg.owner, minlength=n).tolist()


def test_without_reports_nothing_changes_and_times_are_not_needed(zipf):
    keys = zipf(2_000)
    plain, timed = (ConsistentGrouping(n_workers=4) for _ in range(2))
    assert plain.route(keys).tolist() == timed.route(keys, np.arange(2_000.0)).tolist()
    assert plain.moves == timed.moves == 0


def test_reset_forgets_signals_and_moves(source):
    cg = source(delay=0.0)
    cg.report([BUSY, FINE, IDLE])
    for v in (0, 2, 1):
        cg.send(v, 1.0)
    cg.report([BUSY, BUSY, BUSY])
    cg.reset()
    assert cg.moves == 0
    assert cg.owners == [0, 1, 2, 0, 1, 2]
    assert cg.route([1, 2, 3]).shape == (3,), "nobody has anything to say: no times are needed"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"busy": 0}, "busy"),
        ({"idle": 0.9}, "idle"),
        ({"idle": -0.1}, "idle"),
        ({"slot": 0}, "slot"),
        ({"delay": -1}, "delay"),
        ({"spill": 1}, "spill"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(ConsistentGrouping, **{"n_workers": 3, **fields}).startswith(f"{field} = ")


def test_mistakes_are_one_clear_line(refused):
    cg = ConsistentGrouping(n_workers=3)
    assert refused(cg.report, [0.5, 0.5]) == "utilisation = [0.5, 0.5]: expected 3 numbers, one per worker"
    cg.report([BUSY, FINE, IDLE])
    assert refused(cg.route, [1, 2]) == "times = None: acknowledgements need the arrival time of every tuple"
    assert refused(cg.route, [1, 2], [2.0, 1.0]).startswith("times[1] = 1.0: expected no decrease")
