"""``dalton/MicroBatchPartition-v0`` against numbers by hand, plain Python and the simulator."""

import copy
import itertools
import math
import re
from collections import Counter
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dalton.envs.contract import Partitioner
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import member, worker_of
from dalton.envs.micro_batch import TAIL, MicroBatchPartitionEnv, deal_weighted
from dalton.envs.simulate import simulate
from dalton.envs.window import Window
from dalton.envs.workloads import Workload, make_workload
from dalton.experiments import make

MICRO = "dalton.envs:dalton/MicroBatchPartition-v0"
ZIPF = {"name": "zipf", "n_keys": 30, "exponent": 1.3, "n_tuples": 410}
SMALL = {"workload": ZIPF, "n_workers": 4, "batch_size": 50, "window_batches": 3}
SWAP = {"name": "swap", "n_hot": 3, "n_keys": 30, "every": 70, "n_tuples": 400}
GRADUAL = {"name": "gradual", "z1": 2.5, "step": 60, "n_keys": 30, "n_tuples": 400}
HALVES = np.full((4, 4), 0.5)


class Recorded(Workload):
    """A stream given as a list; it has no seed, and perhaps cannot be read to its end."""

    name = "recorded"

    def __init__(self, *, keys, readable=math.inf):
        super().__init__(n_tuples=len(keys))
        self.keys, self.readable = np.asarray(keys, np.int64), readable

    def _keys(self, lo, hi):
        if hi > self.readable:
            raise ConfigError("line 51: expected a key")
        return self.keys[lo:hi]


class Given(Partitioner):
    """Routes as it is told."""

    workers, routed = (), 0

    def _reset(self):
        self.routed = 0

    def _route(self, keys, times, costs, out):
        out[:] = np.resize(self.workers[self.routed :], len(keys))
        self.routed += len(keys)


def keys_of(spec, seed):
    """The keys of the first episode after ``reset(seed=seed)``: the stream's seed is the first draw."""
    drawn = {} if isinstance(spec, Recorded) else {"seed": int(np.random.default_rng(seed).integers(2**31))}
    workload = make_workload(spec, **drawn)
    return next(workload.chunks(workload.n_tuples)).keys.tolist()


def dealt(rows, weights, homes=None, load=None, p1=0.5):
    """Workers, mean reward and loads for tuples of the given rows."""
    weights = np.array(weights, np.float64)
    load = np.array(load or [0] * weights.shape[1])
    homes = np.array(homes or [0] * len(rows), np.int32)
    out, held = np.empty(len(rows), np.int32), np.zeros(weights.shape, np.int64)
    gain = deal_weighted(
        np.array(rows), homes, weights, np.zeros(weights.shape), load, held, p1, None, np.empty(0), out
    )
    return out.tolist(), gain, load.tolist()


SEQUENCES = {
    # Credits before the choice (after it, the chosen one has 1 less).
    "3 to 1": ([0.75, 0.25], [0, 0, 1, 0]),  # .75 .25, .5 .5, .25 .75, 1 0
    "2 to 1 to 1": ([0.5, 0.25, 0.25], [0, 1, 2, 0]),  # .5 .25 .25, 0 .5 .5, .5 -.25 .75, 1 0 0
    # In eighths: 5 1 2, 2 2 4, 7 3 -2, 4 4 0, 1 5 2, 6 -2 4, 3 -1 6, 8 0 0.
    "5 to 1 to 2": ([0.625, 0.125, 0.25], [0, 2, 0, 0, 1, 0, 2, 0]),
    "equal": ([0.25] * 4, [0, 1, 2, 3]),
    "the last alone": ([0.0, 0.0, 1.0], [2]),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_smooth_weighted_round_robin_by_hand(case):
    weights, wanted = SEQUENCES[case]
    # All credits are 0 again after a round.
    workers, _, load = dealt([0] * (3 * len(wanted)), [weights], homes=[1] * (3 * len(wanted)))
    assert workers == 3 * wanted
    assert load == [workers.count(w) for w in range(len(weights))]


def test_keys_are_dealt_apart_and_cold_or_zero_rows_hashed():
    rows = [0, 1, TAIL, 0, 2, 1, 0, 2, TAIL, 0]
    workers, _, load = dealt(rows, [[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 0]], homes=[2] * 8 + [1, 1])
    assert workers == [0, 1, 2, 0, 2, 2, 1, 2, 1, 0]
    assert load == [3, 3, 4]


def test_reward_by_hand():
    # Worker 0 has 4 of 5 tuples: CI = 1.5/4, CA = 1/2. A cold tuple goes to 0. Then worker 1 has 2 of 7:
    # CI = -1.5/3.5, CA = 1. The mean of -(3/16 + 1/4) and -(-3/14 + 1/2) is -81/224.
    workers, gain, load = dealt([0, TAIL, 0], [[0.5, 0.5]], load=[3, 1])
    assert (workers, gain, load) == ([0, 0, 1], pytest.approx(-81 / 224), [5, 2])
    assert dealt([0, TAIL, 0], [[0.5, 0.5]], load=[3, 1], p1=1.0)[1] == pytest.approx(-(3 / 8 - 3 / 7) / 2)
    assert dealt([0, TAIL, 0], [[0.5, 0.5]], load=[3, 1], p1=0.0)[1] == pytest.approx(-(1 / 2 + 1) / 2)
    # A hot key that is hashed is rewarded as well; without a hot tuple there is nothing to reward.
    assert dealt([0], [[0, 0]], homes=[1])[1] == pytest.approx(-(0.5 * 0.5 + 0.5 * 0.5))
    assert dealt([TAIL, TAIL], [[0.5, 0.5]])[1] == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_every_prefix_is_spread_as_the_weights_say(n):
    # The richest has at least the mean, 1/n, before it pays: nobody is ever 1 ahead. Let A_k be the mean of
    # the k largest credits. The payer is among them, then A_k does not rise; or it is not, then A_k is at
    # most A_(k+1) + 1/(k+1). As A_n = 0, nobody is ever more than 1/2 + ... + 1/n behind; below 1 for n <= 3.
    behind = sum(1 / k for k in range(2, n + 1))
    rng = np.random.default_rng(n)
    for sharp in (0.0, 1.0, 3.0, 8.0):
        weights = rng.exponential(size=n) ** sharp
        weights /= weights.sum()
        workers = np.array(dealt([0] * 1_000, [weights])[0])
        ahead = np.cumsum(workers[:, None] == np.arange(n), axis=0) - np.outer(np.arange(1, 1_001), weights)
        assert ahead.max() <= 1 - 1 / n + 1e-9
        assert ahead.min() >= -behind - 1e-9


class Plain:
    """The environment by definition, from the list of all tuples sent."""

    def __init__(self, keys, n_workers, batch_size, window_batches, hot_factor=1.0, p1=0.5, hash_seed=0, **_):
        self.n, self.m, self.p1 = n_workers, batch_size, p1
        self.hot_keys, self.kept = Fraction(hot_factor) * n_workers, window_batches
        self.keys, self.hash_seed, self.sent = keys, hash_seed, []
        self.take(0)

    def take(self, at):
        self.batch = self.keys[at * self.m : (at + 1) * self.m]
        counts = Counter(self.batch)
        hot = [key for key in counts if counts[key] * self.hot_keys >= self.m]
        self.hot = sorted(hot, key=lambda key: (-counts[key], self.batch.index(key)))

    def home(self, key):
        return worker_of(np.int64(key), member(self.hash_seed), self.n)

    def last(self, batches):
        return self.sent[max(0, len(self.sent) - batches * self.m) :]

    def load(self, pairs):
        return [sum(worker == w for _, worker in pairs) for w in range(self.n)]

    def observation(self, h):
        # The window of the loads is the one that the next batch ends: all but that batch.
        load = self.load(self.last(self.kept - 1))
        tail = self.load([(key, self.home(key)) for key in self.batch if key not in self.hot])
        held = set(self.last(self.kept))
        rows = self.hot + [None] * (h - len(self.hot))
        parts = {
            "shares": [self.batch.count(key) / self.m for key in rows],
            "fragments": [[(key, w) in held for w in range(self.n)] for key in rows],
            "load": [x / (sum(load) / self.n or 1) for x in load],
            "tail": [x / (self.m / self.n) for x in tail],
        }
        return {k: np.array(v, np.int8 if k == "fragments" else np.float32) for k, v in parts.items()}

    def send(self, action):
        """Reward of the batch: the worker furthest behind its weight is next, then Eq. 3 and 4."""
        window, gains, given, past = self.last(self.kept - 1), [], {}, len(self.sent)
        for key in self.batch:
            row = [Fraction(float(x)) for x in action[self.hot.index(key)]] if key in self.hot else [0]
            worker = self.home(key)
            if any(row):
                mine = given.setdefault(key, [])
                due = [x / sum(row) * (len(mine) + 1) - mine.count(w) for w, x in enumerate(row)]
                worker = due.index(max(due))
                mine.append(worker)
            self.sent.append((key, worker))
            if key in self.hot:
                load = self.load(window + self.sent[past:])
                mine, average = load[worker], sum(load) / self.n
                held = len({w for k, w in self.sent[past:] if k == key})
                imbalance = (mine - average) / max(mine, average)
                gains.append(-self.p1 * imbalance - (1 - self.p1) * held / self.n)
        return sum(gains) / len(gains) if gains else 0.0


def tables(shape, seed=0):
    """Random split tables, rows of zeros among them, in 64ths of 1, 1/2 or 1/8: all credits are exact."""
    rng = np.random.default_rng(seed)
    while True:
        parts = rng.multinomial(64, rng.dirichlet([0.5] * shape[1]), size=shape[0])
        yield (parts / 64 * rng.choice([1, 0.5, 0.125, 0], (shape[0], 1))).astype(np.float32)


FEW = [-(2**63), 2**63 - 1, -1, -(2**63), 0, -(2**63), -1, 7] * 8
PLAIN = {
    "zipf": {},
    "one worker": {"n_workers": 1, "hot_factor": 4},
    "one batch in the window": {"window_batches": 1},
    "a long window": {"window_batches": 20},
    "many hot keys": {"hot_factor": 2.75, "n_workers": 3, "p1": 0.25},
    "few hot keys": {"hot_factor": 0.5, "hash_seed": 3, "n_workers": 7},
    "never hot": {"hot_factor": 1e-320},
    "all hot": {"hot_factor": 1e308, "batch_size": 20},
    "batches of one tuple": {"batch_size": 1, "p1": 1.0, "workload": ZIPF | {"n_tuples": 30}},
    "swap": {"workload": SWAP},
    "gradual": {"workload": GRADUAL, "p1": 0.0},
    "sources": {"workload": ZIPF | {"n_sources": 3, "arrivals": "poisson", "cost_mean": 2.0}},
    "any key": {"workload": Recorded(keys=FEW), "batch_size": 8},
    # With n = 2 and m = 4, both keys of a batch reach m / n; the first to appear is first.
    "threshold": {"workload": Recorded(keys=[2, 1, 1, 2, 5, 5, 6, 5]), "n_workers": 2, "batch_size": 4},
}


@pytest.mark.parametrize("case", PLAIN)
def test_observation_reward_and_metrics_by_definition(case):
    params = SMALL | PLAIN[case]
    env = gymnasium.make(MICRO, **params).unwrapped
    plain = Plain(keys_of(params["workload"], 5), **params)
    check_env(env)
    h, n = env.shape
    assert (h, n) == (math.ceil(min(plain.hot_keys, plain.m)), plain.n)
    observation, info = env.reset(seed=5)
    batches, rows, kept, hot = len(plain.keys) // plain.m, [], [], 0
    for at, action in zip(range(batches), tables(env.shape), strict=False):
        kept.append((observation, copy.deepcopy(observation)))
        assert info["keys"] == plain.hot
        np.testing.assert_equal(observation, plain.observation(h))
        hot += len(plain.hot)
        observation, reward, terminated, truncated, info = env.step(action)
        assert reward == pytest.approx(plain.send(action), abs=1e-12)
        assert (terminated, truncated) == (False, at == batches - 1)
        rows.append(info["slide"])
        plain.take(min(at + 1, batches - 1))
    # After the last batch: its own keys again, and its consequences.
    np.testing.assert_equal(observation, plain.observation(h))
    np.testing.assert_equal(*zip(*kept, strict=True))  # earlier observations are as they were
    assert (hot > 0) == (case != "never hot")
    given = Given(n_workers=n)
    sent, given.workers = zip(*plain.sent, strict=True)
    simulated = simulate(given, Recorded(keys=sent), window=Window(plain.kept * plain.m, plain.m))
    for name in rows[0]:
        np.testing.assert_allclose([row[name] for row in rows], simulated.column(name), err_msg=name)


def small(**more):
    return MicroBatchPartitionEnv(**SMALL | more)


def run(env, seed=0, actions=None):
    """All that an episode returns, by default for random tables."""
    rows, actions = [env.reset(seed=seed)], actions or tables(env.shape)
    while len(rows) == 1 or not rows[-1][3]:
        rows.append(env.step(next(actions)))
    return rows


def test_a_table_of_zeros_is_key_grouping_also_when_there_are_many_keys():
    spec = {"name": "zipf", "n_keys": 100_000, "exponent": 0.9, "n_tuples": 20_000}
    env = MicroBatchPartitionEnv(workload=spec, n_workers=6, batch_size=2_500, window_batches=4, hash_seed=9)
    rows = run(env, 1, itertools.repeat(np.zeros(env.shape)))[1:]
    keys = Recorded(keys=keys_of(spec, 1))
    simulated = simulate(make("kg", n_workers=6, seed=9), keys, window=Window(10_000, 2_500))
    for name in rows[0][4]["slide"]:
        assert [row[4]["slide"][name] for row in rows] == simulated.column(name).tolist()


def test_rows_are_scaled_whatever_their_type():
    one, other = small(), small()
    table = np.random.default_rng(0).random((4, 4))
    counts = np.array([[1, 0, 1, 1]] * 4)
    pairs = [(table, table * scales) for scales in ([[1], [0.5], [0.25], [0.125]], 2.0**-60)]
    pairs += [(counts, same) for same in (counts / 3, counts.astype(np.float32), counts > 0, counts.tolist())]
    for first, second in pairs:
        for env in (one, other):
            env.reset(seed=2)
        np.testing.assert_equal(one.step(first), other.step(second))


@pytest.mark.parametrize("workload", [ZIPF, SWAP, GRADUAL], ids=lambda spec: spec["name"])
def test_same_seed_same_trajectory(workload):
    one, other = (small(workload=workload) for _ in range(2))
    wanted = run(one, 8)
    np.testing.assert_equal(run(other, 8), wanted)
    # Nothing is left of an earlier episode, over or not.
    np.testing.assert_equal(run(one, 8), wanted)
    other.reset(seed=3)
    for _ in range(4):
        other.step(HALVES)
    np.testing.assert_equal(run(other, 8), wanted)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(run(other, 9), wanted)


def test_reset_without_a_seed_goes_on_with_the_generator():
    episodes = [[run(env, seed) for seed in (6, None, None)] for env in (small(), small())]
    np.testing.assert_equal(*episodes)
    assert len({str(episode) for episode in episodes[0]}) == 3


def test_a_trace_is_the_same_in_every_episode(tmp_path):
    keys = keys_of(ZIPF, 0)
    np.savez(tmp_path / "trace.npz", key=np.array(keys))
    wanted = run(small())
    for workload in ({"name": "trace", "path": tmp_path / "trace.npz"}, Recorded(keys=keys)):
        env = small(workload=workload)
        for seed in (0, 1, None):
            np.testing.assert_equal(run(env, seed), wanted)


@pytest.mark.parametrize(
    ("batch_size", "limit", "batches"), [(50, None, 8), (50, 3, 3), (50, 99, 8), (410, None, 1), (41, 10, 10)]
)
def test_an_episode_is_truncated_at_its_limit(batch_size, limit, batches):
    env = small(batch_size=batch_size, max_batches=limit)
    for seed in (0, None):
        # Before the first reset, and after an end.
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"^step\(\) was called .*\Z"):
            env.step(HALVES)
        rows = run(env, seed)[1:]
        assert [row[2:4] for row in rows] == [(False, False)] * (batches - 1) + [(False, True)]
        assert [row[4]["slide"]["slide"] for row in rows] == list(range(batches))


def test_a_vector_form_takes_copies_with_different_numbers_of_hot_keys():
    vector = gymnasium.make_vec(MICRO, num_envs=3, **SMALL)
    singles = [small() for _ in range(3)]
    seen, info = vector.reset(seed=0)
    rows, differ = [single.reset(seed=e) for e, single in enumerate(singles)], False
    for action, _ in zip(tables((4, 4)), range(7), strict=False):
        assert info["keys"].tolist() == [row[-1]["keys"] for row in rows]
        differ |= len(set(map(len, info["keys"]))) > 1
        for e, row in enumerate(rows):
            np.testing.assert_equal({name: part[e] for name, part in seen.items()}, row[0])
        seen, rewards, *_, info = vector.step(np.stack([action] * 3))
        rows = [single.step(action) for single in singles]
        assert rewards.tolist() == [row[1] for row in rows]
    assert differ


BAD_ACTIONS = {
    "too few rows": HALVES[:3],
    "one number": 0.5,
    "negative": np.where(np.eye(4), -1e-6, 0.5),
    "above 1": np.where(np.eye(4), 1.0 + 1e-6, 0.5),
    "NaN": np.where(np.eye(4), math.nan, 0.5),
    "huge": [[10**400] * 4] * 4,
    "None": None,
    "ragged": [[0.5], [0.5, 0.5], [], [1]],
    "text": "0.5",
    "texts": HALVES.astype(str),
    "complex": HALVES + 0.5j,
}


@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_a_refused_action_changes_nothing(case):
    one, other = (small(render_mode="ansi") for _ in range(2))
    np.testing.assert_equal(one.reset(seed=1), other.reset(seed=1))
    message = r"^action = .*: expected shape \(4, 4\), from 0 to 1\Z"
    for action, _ in zip(tables((4, 4)), range(8), strict=False):
        with pytest.raises(gymnasium.error.InvalidAction, match=message):
            one.step(BAD_ACTIONS[case])
        assert one.render() == other.render()
        np.testing.assert_equal(one.step(action), other.step(action))


BAD = {
    "workload": ["zopf", None, 3],
    "n_workers": [0, -2, 2**15, 2.5, "4", None, True],
    "batch_size": [0, 10.5, 411, "50"],
    "window_batches": [0, 1.5, None],
    "hot_factor": [0, -1.0, math.nan, math.inf, "1"],
    "p1": [-0.1, 1.1, math.nan, None],
    "max_batches": [0, 2.5, "3"],
    "hash_seed": [-1, 0.5, None],
    "render_mode": ["human", 3, ["ansi"]],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD for value in BAD[field]])
def test_bad_parameters_are_one_clear_line(field, value):
    message = rf"^{field} = {re.escape(repr(value))}: (expected|unknown) .+\Z"
    with pytest.raises(gymnasium.error.Error, match=message) as caught:
        small(**{field: value})
    assert isinstance(caught.value, ConfigError)


def test_a_stream_that_breaks_is_not_blamed_on_the_action():
    env = small(workload=Recorded(keys=[0] * 200, readable=50))
    env.reset()
    with pytest.raises(ConfigError, match=r"^line 51: expected a key$"):
        env.step(HALVES)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(HALVES)
