"""Every check catches partitioners that break what it is about, and only those."""

import itertools
import pickle

import numpy as np
import pytest

from dalton.envs.checks import CHECKS, CheckFailedError, check_partitioner
from dalton.envs.contract import Partitioner


class Correct(Partitioner):
    """Round robin over two workers per key, one after the other; all that can go wrong is below."""

    def __init__(self, *, n_workers, seed=0):
        super().__init__(n_workers=n_workers, seed=seed)
        self.reset()

    @property
    def max_workers_per_key(self):
        return min(2, self.n_workers)

    def _reset(self):
        self.turn = np.zeros(1, np.int64)

    def _route(self, keys, times, costs, out):
        turns = self.turn[0] + np.arange(len(keys))
        out[:] = self.choose(keys, turns)
        self.turn += len(keys)

    def choose(self, keys, turns):
        return (keys % 1_000_003 + self.seed + turns % 2) % self.n_workers


class OffByOne(Correct):
    def choose(self, keys, turns):
        return super().choose(keys, turns) + 1


class Negative(Correct):
    def choose(self, keys, turns):
        return super().choose(keys, turns) - 1


class WrongDtype(Correct):
    def route(self, keys, times=None, costs=None):
        return super().route(keys, times, costs).astype(np.int64)


class TooFew(Correct):
    def route(self, keys, times=None, costs=None):
        return super().route(keys, times, costs)[:-1]


class Fixed(Correct):
    """Ignores how many workers there are."""

    def choose(self, keys, turns):
        return keys % 2


class Unseeded(Correct):
    def choose(self, keys, turns):
        return (np.random.default_rng().integers(0, 2, len(keys)) + keys) % self.n_workers


class HiddenGlobal(Correct):
    """Draws from a generator that all partitioners share."""

    rng = np.random.default_rng(0)

    def choose(self, keys, turns):
        return (HiddenGlobal.rng.integers(0, 2, len(keys)) + keys) % self.n_workers


class SeedOfItsOwn(Correct):
    """Every object made has another seed than it was told."""

    made = itertools.count()

    def __init__(self, *, n_workers, seed=0):
        self.salt = next(self.made)
        super().__init__(n_workers=n_workers, seed=seed)

    def choose(self, keys, turns):
        return (keys + self.salt + turns % 2) % self.n_workers


class NotReset(Correct):
    """Remembers over a reset how far it was."""

    def _reset(self):
        self.turn = getattr(self, "turn", np.ones(1, np.int64))
        self.turn[0] |= 1

    def choose(self, keys, turns):
        return (keys + (turns > 20_000)) % self.n_workers


class SeedNotReset(Correct):
    """``reset(seed)`` does not reach what was made from the seed."""

    def __init__(self, *, n_workers, seed=0):
        self.shift = seed
        super().__init__(n_workers=n_workers, seed=seed)

    def choose(self, keys, turns):
        return (keys + self.shift + turns % 2) % self.n_workers


class ResetsSeed(Correct):
    """``reset()`` goes back to seed 0."""

    def reset(self, seed=None):
        super().reset(seed)
        if seed is None and hasattr(self, "ready"):
            self.seed = 0
        self.ready = True


class CountsInBatch(Correct):
    """Starts anew with every batch."""

    def choose(self, keys, turns):
        return (keys + np.arange(len(keys)) % 2) % self.n_workers


class LooksAhead(Correct):
    """Decides by what comes later in the batch."""

    def choose(self, keys, turns):
        return (keys + (keys > keys.mean())) % self.n_workers


class BatchWithoutTimes(Correct):
    """Depends on the cut of the stream only where there are no times."""

    def _route(self, keys, times, costs, out):
        super()._route(keys, times, costs, out)
        if not len(times):
            out[:] = (out + len(keys)) % self.n_workers

    @property
    def max_workers_per_key(self):
        return self.n_workers


class LooksAheadAsDeclared(LooksAhead):
    lookahead = "batch"


class Unpicklable(Correct):
    def _reset(self):
        super()._reset()
        self.step = lambda keys: keys


class PartlyPickled(Correct):
    """A copy starts from the beginning."""

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "turn"}

    def __setstate__(self, state):
        vars(self).update(state)
        self.turn = np.ones(1, np.int64)

    def choose(self, keys, turns):
        return (keys + turns // 10_000 % 2) % self.n_workers


class FieldNotInParams(Correct):
    """Another parameter decides, which ``params`` does not give again."""

    def __init__(self, *, n_workers, seed=0, shift=0):
        self.shift = shift
        super().__init__(n_workers=n_workers, seed=seed)

    @property
    def params(self):
        return {"n_workers": self.n_workers, "seed": self.seed}

    def choose(self, keys, turns):
        return (keys + self.shift + turns % 2) % self.n_workers


class SeedNotInParams(Correct):
    @property
    def params(self):
        return {"n_workers": self.n_workers}


class ParamsChange(Correct):
    """What was given is stored as something else."""

    def __init__(self, *, n_workers, seed=0, shift=0):
        self.shift = shift + 2
        super().__init__(n_workers=n_workers, seed=seed)


class SortsKeysInPlace(Correct):
    """Sorts the caller's keys, but decides as if it had not."""

    def _route(self, keys, times, costs, out):
        given = keys.copy()
        keys.sort()
        super()._route(given, times, costs, out)


class ShiftsTimesInPlace(Correct):
    def _route(self, keys, times, costs, out):
        times -= 1.0
        super()._route(keys, times, costs, out)


class WritesTheSame(Correct):
    """Leaves the keys as they were, but writes them."""

    def _route(self, keys, times, costs, out):
        keys[0] = keys[0]
        super()._route(keys, times, costs, out)


class CrashesOnEmpty(Correct):
    def route(self, keys, times=None, costs=None):
        out = super().route(keys, times, costs)
        return out[: 1 + np.flatnonzero(out >= 0)[-1]]


class TurnsOnEmpty(Correct):
    """An empty batch changes what comes next."""

    def route(self, keys, times=None, costs=None):
        if not len(keys):
            self.turn += 1
        return super().route(keys, times, costs)


class EmptyOfFloats(Correct):
    def route(self, keys, times=None, costs=None):
        return super().route(keys, times, costs) if len(keys) else np.empty(0)


class NegativeForNegativeKeys(Correct):
    def choose(self, keys, turns):
        return np.fmod(keys, self.n_workers)


class Remembers(Correct):
    """A list that grows with every tuple."""

    def _reset(self):
        super()._reset()
        self.seen = []

    def _route(self, keys, times, costs, out):
        super()._route(keys, times, costs, out)
        self.seen.extend(out.tolist())


class RemembersSlowly(Correct):
    """A list that grows with every hundredth tuple."""

    def _reset(self):
        super()._reset()
        self.seen = []

    def _route(self, keys, times, costs, out):
        super()._route(keys, times, costs, out)
        self.seen.extend(keys[::100].tolist())


class OnThree(Correct):
    """Splits over more workers than it says."""

    def choose(self, keys, turns):
        return (keys + turns % 3) % self.n_workers


class HotOnThree(Correct):
    """Splits one key over more workers than it says."""

    def choose(self, keys, turns):
        return np.where(keys == 0, turns % 3, keys) % self.n_workers


class SumsCostsByBatch(Correct):
    """Turns by the work so far, which it knows at the ends of batches only."""

    def _route(self, keys, times, costs, out):
        super()._route(keys, times, costs, out)
        if self.pace is not None:
            out[:] = (out + int(1000 * costs.sum())) % self.n_workers


class ForgetsCosts(Correct):
    """The work so far is not in its pickle."""

    def _reset(self):
        super()._reset()
        self.work = 0

    def _route(self, keys, times, costs, out):
        super()._route(keys, times, costs, out)
        if self.pace is not None:
            work = self.work + np.cumsum(np.rint(1000 * costs).astype(int))
            self.work = int(work[-1])
            out[:] = (out + work) % self.n_workers

    def __getstate__(self):
        return {**vars(self), "work": 0}


class DoublesCosts(Correct):
    def _route(self, keys, times, costs, out):
        costs *= 2.0 if len(costs) else 1.0
        super()._route(keys, times, costs, out)


class Listens(Correct):
    """Takes turns from the worker that was said to be the busiest; all that can go wrong is below."""

    slot = 1.0

    def _reset(self):
        super()._reset()
        self.busiest = 0

    def report(self, utilisation):
        self.busiest = int(np.argmax(utilisation))

    def choose(self, keys, turns):
        return (super().choose(keys, turns) + self.busiest) % self.n_workers


class ForgetsReports(Listens):
    def __getstate__(self):
        return {**vars(self), "busiest": 0}


class ReportsNotReset(Listens):
    def _reset(self):
        self.told = getattr(self, "told", 0)
        super()._reset()

    def report(self, utilisation):
        self.told += 1
        self.busiest = self.told % 5


class ChangesReports(Listens):
    def report(self, utilisation):
        super().report(utilisation)
        utilisation[:] = 0.0


ANY = Exception
SPLIT = "a key is on 3, declared 2"
RANDOM = {
    "same_seed_same_decisions": "same seed 0: tuple",
    "reset_equals_fresh": "after reset",
    "batch_equals_loop": "in batches of 1",
    "load_in_time": "after (reset|pickling)",
    "pickle_continues": "after pickling",
    "params_round_trip": "made again from params",
    "edge_cases": "after an empty batch",
}
# What must catch it, with the message or the kind of error; nothing else may.
BROKEN = {
    # A worker out of range is one of another key in the eyes of the last check.
    OffByOne: {
        "workers_in_range": "worker 1 .. 1",
        "load_in_time": "worker 1 .. 8, expected 0 .. 7",
        "edge_cases": "one worker",
        "split_bound_holds": SPLIT,
    },
    Negative: {
        "workers_in_range": "worker -1 .. -1",
        "load_in_time": "worker -1 .. 6",
        "edge_cases": "one worker",
        "split_bound_holds": ANY,
    },
    Fixed: {"workers_in_range": "1 workers: worker 0 .. 1", "edge_cases": "one worker"},
    WrongDtype: {"workers_in_range": "dtype int64, expected int32", "edge_cases": "an empty batch"},
    TooFew: {
        "workers_in_range": "shape .29999,. for 30000 tuples",
        "batch_equals_loop": ANY,
        "load_in_time": ANY,
        "edge_cases": ANY,
        "split_bound_holds": ANY,
    },
    Unseeded: RANDOM,
    HiddenGlobal: RANDOM,
    SeedOfItsOwn: {check: message for check, message in RANDOM.items() if check != "pickle_continues"},
    NotReset: {"reset_equals_fresh": "after reset..: tuple 0"},
    SeedNotReset: {"reset_equals_fresh": "after reset.seed=4.: tuple 0"},
    ResetsSeed: {"reset_equals_fresh": "after reset..: tuple 0"},
    CountsInBatch: {"batch_equals_loop": "in batches of 1: tuple 1 ", "load_in_time": "in batches of 1"},
    LooksAhead: {"batch_equals_loop": "in batches of 1", "load_in_time": "after pickling"},
    BatchWithoutTimes: {"batch_equals_loop": "in batches of 1"},
    SumsCostsByBatch: {"load_in_time": "after pickling: tuple 0"},
    ForgetsCosts: {"load_in_time": "after pickling: tuple 3"},
    DoublesCosts: {"load_in_time": ANY},
    ForgetsReports: {"reports_are_heard_alike": "in batches of 7: tuple 2357"},
    ReportsNotReset: {"reports_are_heard_alike": "after reset"},
    ChangesReports: {"reports_are_heard_alike": "the report was changed"},
    Unpicklable: {"load_in_time": ANY, "pickle_continues": ANY, "memory_stays_flat": ANY},
    PartlyPickled: {"pickle_continues": "after pickling: tuple"},
    SeedNotInParams: {"params_round_trip": "lack what was given"},
    ParamsChange: {"params_round_trip": "params .* became"},
    # Checks that route the same keys twice see that they have changed.
    SortsKeysInPlace: {**RANDOM, "input_not_changed": "keys were changed"},
    ShiftsTimesInPlace: {"input_not_changed": "times were changed"},
    WritesTheSame: {"input_not_changed": ANY},
    CrashesOnEmpty: {"edge_cases": ANY},
    TurnsOnEmpty: {"edge_cases": "after an empty batch: tuple 0"},
    EmptyOfFloats: {"edge_cases": "an empty batch: expected an empty int32 array"},
    NegativeForNegativeKeys: {"edge_cases": "keys at the ends of int64: worker out of range"},
    Remembers: {"memory_stays_flat": "state grew from .* on the same 2000 keys"},
    RemembersSlowly: {"memory_stays_flat": "state grew from"},
    OnThree: {"split_bound_holds": f"8 workers: {SPLIT}"},
    HotOnThree: {"split_bound_holds": f"8 workers: {SPLIT}"},
}


def outcome(check, factory):
    try:
        CHECKS[check](factory)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_partitioner_is_caught_by_the_checks_it_breaks_and_no_other(broken):
    found = {check: error for check in CHECKS if (error := outcome(check, broken)) is not None}
    assert set(found) == set(BROKEN[broken])
    for check, message in BROKEN[broken].items():
        if message is not ANY:
            with pytest.raises(CheckFailedError, match=message):
                raise found[check]


def test_every_check_catches_something():
    assert {check for caught in BROKEN.values() for check in caught} == set(CHECKS)


def test_every_check_but_those_of_shapes_is_the_only_one_to_catch_something():
    alone = {next(iter(caught)) for caught in BROKEN.values() if len(caught) == 1}
    # Who breaks these two breaks the edge case of one worker, or reset and pickling too.
    assert alone == set(CHECKS) - {"workers_in_range", "same_seed_same_decisions"}


@pytest.mark.parametrize("check", CHECKS)
def test_a_correct_partitioner_passes(check):
    CHECKS[check](Correct)
    CHECKS[check](Listens)


def test_a_correct_partitioner_passes_all_at_once():
    check_partitioner(Correct)
    check_partitioner(lambda **given: Correct(**given))


def test_a_parameter_that_params_does_not_give_is_caught():
    def shifted(**given):
        return FieldNotInParams(shift=3, **given)

    assert outcome("params_round_trip", FieldNotInParams) is None
    with pytest.raises(CheckFailedError, match=r"^made again from params: tuple 0"):
        CHECKS["params_round_trip"](shifted)
    assert [check for check in CHECKS if outcome(check, shifted)] == ["params_round_trip"]


def test_a_declared_lookahead_exempts_from_batch_equals_loop_only():
    assert outcome("batch_equals_loop", LooksAhead) is not None
    check_partitioner(LooksAheadAsDeclared)
    for lookahead in ("batch", "stream"):
        for broken, caught in BROKEN.items():
            exempt = type(broken.__name__, (broken,), {"lookahead": lookahead})
            free = {"batch_equals_loop", "load_in_time", "memory_stays_flat", "pickle_continues"}
            for check in set(caught) - free:
                assert outcome(check, exempt) is not None, (broken, check)
            assert outcome("batch_equals_loop", exempt) is None


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OffByOne, "^workers_in_range: 1 workers: worker 1 .. 1, expected 0 .. 0$"),
        (NotReset, "^reset_equals_fresh: after reset.*: tuple 0 goes to worker . instead of .$"),
        (OnThree, "^split_bound_holds: 8 workers: a key is on 3, declared 2$"),
        (Remembers, "^memory_stays_flat: state grew from [0-9]+ to [0-9]+ bytes on the same 2000 keys$"),
    ],
)
def test_check_partitioner_names_the_check(broken, message):
    with pytest.raises(CheckFailedError, match=message) as caught:
        check_partitioner(broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (CrashesOnEmpty, (IndexError,)),
        (Unpicklable, (AttributeError, pickle.PicklingError)),
        (WritesTheSame, (ValueError,)),
    ],
)
def test_check_partitioner_does_not_hide_a_crash(broken, error):
    with pytest.raises((CheckFailedError, *error)):
        check_partitioner(broken)


def test_the_correct_partitioner_here_has_state_worth_checking():
    p = Correct(n_workers=8, seed=1)
    keys = np.zeros(3, np.int64)
    assert p.route(keys).tolist() == [1, 2, 1]
    assert pickle.loads(pickle.dumps(p)).route(keys).tolist() == [2, 1, 2]
