"""``dalton/StreamPartition-v0`` against plain Python and the simulator: observation, reward, metrics."""

import math
from collections import Counter

import numpy as np
import pytest

from dalton.envs.contract import Partitioner
from dalton.envs.dynamics import ROWS
from dalton.envs.hashing import member, worker_of
from dalton.envs.simulate import simulate
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.window import Window

WINDOW = {"size": 40, "slide": 10}
SMALL = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "window": WINDOW}
METRICS = ("slide", "max_over_mean", "replication", "regret_load", "regret_pairs")


class Given(Partitioner):
    """Routes as it is told."""

    def __init__(self, *, n_workers, seed=0, workers=()):
        super().__init__(n_workers=n_workers, seed=seed)
        self.workers = workers
        self.reset()

    def _reset(self):
        self.routed = 0

    def _route(self, keys, times, costs, out):
        # Tuples beyond those given (the simulator warms up with some) go to worker 0.
        given = self.workers[self.routed : self.routed + len(keys)]
        out[:] = 0
        out[: len(given)] = given
        self.routed += len(keys)


class Plain:
    """The environment by definition, from the list of all tuples sent."""

    def __init__(self, n, window, hot_factor=1.0, stats=None, p1=0.5):
        self.n, self.window, self.p1 = n, window, p1
        self.hot_keys, self.length = hot_factor * n, stats or window.slide
        self.sent, self.until, self.number, self.slide = [], {}, None, None
        # Before the first STATS_WIN: as if there had been one of full length, where tuples are counted.
        self.counts = Counter({None: self.length}) if window.by == "count" else Counter()

    def arrive(self, key, now):
        """Take the next tuple; the metrics of the slide that it ends, if any."""
        slide, number = math.floor(now / self.window.slide), math.floor(now / self.length)
        ended = self.measure() if self.slide not in (None, slide) else None
        self.slide, self.key = slide, key
        if number != self.number:
            before = sum(self.counts.values())
            follows = number == (-1 if self.number is None else self.number) + 1
            self.least = math.ceil(before / self.hot_keys) if follows and before else math.inf
            self.number, self.counts = number, Counter()
        self.counts[key] += 1
        if self.counts[key] >= self.least:
            self.until[key] = number + 1
        return ended

    def inside(self):
        return [(k, w) for s, k, w in self.sent if self.slide - s < self.window.n_slides]

    def load(self):
        load = [0] * self.n
        for _, worker in self.inside():
            load[worker] += 1
        return load

    def holders(self, key):
        held = {w for k, w in self.inside() if k == key}
        return [int(w in held) for w in range(self.n)]

    def hot(self):
        return [key for key, until in self.until.items() if until >= self.number]

    def observation(self, quantum=1):
        load = self.load()
        mean = sum(load) / self.n
        # The expected length is the threshold times c n: L, rounded up to a multiple of c n.
        expected = self.least * self.hot_keys
        return {
            "load": [x // quantum * quantum / mean if mean else 0.0 for x in load],
            "fragments": self.holders(self.key),
            "share": [min(1.0, self.counts[self.key] / expected)],
            "hot": [int(self.key in self.hot())],
        }

    def send(self, worker):
        """The reward, Eq. 3 and 4."""
        self.sent.append((self.slide, self.key, worker))
        load = self.load()
        average = sum(load) / self.n
        imbalance = (load[worker] - average) / max(load[worker], average)
        return -(self.p1 * imbalance + (1 - self.p1) * sum(self.holders(self.key)) / self.n)

    def measure(self):
        load, inside = self.load(), self.inside()
        counts, pairs = Counter(k for k, _ in inside), len(set(inside))
        least = -(-len(inside) // self.n)
        fewest = sum(-(-c // least) for c in counts.values())
        return {
            "slide": self.slide,
            "max_over_mean": max(load) / (sum(load) / self.n),
            "replication": pairs / len(counts),
            "regret_load": (max(load) - least) / least,
            "regret_pairs": (pairs - fewest) / fewest,
        }


def assert_seen(observation, wanted):
    for name, values in wanted.items():
        assert observation[name].tolist() == pytest.approx(values, rel=1e-6), name


PLAIN = {
    "count": (Window(40, 10), {}),
    "tumbling": (Window(50, 50), {}),
    "odd": (Window(39, 13), {"hot_factor": 2.5, "p1": 0.2}),
    "statistics": (Window(40, 20), {"stats_window": 33}),
    "time": (Window(2.0, 0.5, "time"), {"stats_window": 8.0}),
    "time, tumbling": (Window(4.0, 4.0, "time"), {"hot_factor": 0.5}),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize(("n", "quantum"), [(1, 1), (3, 1), (4, 5)])
def test_observation_reward_and_metrics_by_definition(
    case, n, quantum, recorded, skewed_keys, times_with_gaps
):
    window, more = PLAIN[case]
    keys = skewed_keys(400, seed=n)
    times = times_with_gaps(400, seed=n) if window.by == "time" else None
    env = StreamPartitionEnv(
        workload=recorded(keys=keys, times=times),
        n_workers=n,
        window=window,
        quantum=quantum,
        observation="full",
        **more,
    )
    plain = Plain(n, window, more.get("hot_factor", 1.0), more.get("stats_window"), more.get("p1", 0.5))
    clock = range(400) if times is None else times.tolist()
    workers = np.random.default_rng(7).integers(n, size=400)
    observation, info = env.reset(seed=1)
    hot, rows, crowded = 0, [], False
    for i in range(400):
        ended = plain.arrive(int(keys[i]), clock[i])
        assert ("slide" in info) == (ended is not None)
        if ended:
            assert info["slide"] == pytest.approx(ended)
            rows.append(info["slide"])
        assert (info["key"], info["hashed"]) == (keys[i], worker_of(keys[i], member(0), n))
        assert_seen(observation, plain.observation(quantum))
        # Which row a hot key has is not said; the others are zero.
        wanted = [plain.holders(key) for key in plain.hot()]
        hot += len(wanted)
        listed = Counter(map(tuple, observation["hot_fragments"].tolist()))
        rows_of_hot = len(observation["hot_fragments"])
        if len(wanted) <= rows_of_hot and not crowded:
            wanted += [[0] * n] * (rows_of_hot - len(wanted))
            assert listed == Counter(map(tuple, wanted))
        else:
            # More tuples than in the STATS_WIN before: more hot keys than rows, of which some have one.
            crowded = bool(plain.hot())
            assert listed - Counter({(0,) * n: rows_of_hot}) <= Counter(map(tuple, wanted))
        observation, reward, terminated, truncated, info = env.step(int(workers[i]))
        assert reward == pytest.approx(plain.send(int(workers[i])), rel=1e-12, abs=1e-12)
        assert (terminated, truncated) == (False, i == 399)
    assert hot > 0 or n * more.get("hot_factor", 1.0) <= 1
    # After the last tuple: its own consequences, and the metrics of the slide in which it was.
    assert_seen(observation, plain.observation(quantum))
    assert info["slide"] == pytest.approx(plain.measure())
    rows.append(info["slide"])
    simulated = simulate(Given(n_workers=n, workers=workers), recorded(keys=keys, times=times), window=window)
    for name in METRICS:
        np.testing.assert_allclose([row[name] for row in rows], simulated.column(name), err_msg=name)


def test_metrics_of_a_long_stream_are_the_simulators(recorded):
    keys = np.random.default_rng(0).integers(4_000, size=10_000) * np.random.default_rng(1).integers(
        2, size=10_000
    )
    assert len(set(keys.tolist())) > 0.6 * ROWS
    window = Window(4_000, 1_000)
    workers = np.random.default_rng(2).integers(6, size=10_000)
    env = StreamPartitionEnv(workload=recorded(keys=keys), n_workers=6, window=window)
    env.reset()
    infos = [env.step(worker)[4] for worker in workers]
    rows = [info["slide"] for info in infos if "slide" in info]
    simulated = simulate(Given(n_workers=6, workers=workers), recorded(keys=keys), window=window)
    assert len(rows) == 10
    for name in METRICS:
        assert [row[name] for row in rows] == simulated.column(name).tolist()
    # A slide's end is told with the step after which its first tuple of the next is seen.
    assert [i for i, info in enumerate(infos) if "slide" in info] == list(range(999, 10_000, 1_000))


def test_only_hot_hashes_cold_tuples_by_definition(recorded, skewed_keys, loads_of):
    keys, window, n = skewed_keys(500, seed=9), Window(60, 20), 4
    env = StreamPartitionEnv(
        workload=recorded(keys=keys), n_workers=n, window=window, only_hot=True, hash_seed=3
    )
    plain, rng = Plain(n, window), np.random.default_rng(0)
    observation, info = env.reset()
    hashed, asked, ended = 0, 0, None
    for i in range(500):
        ended = plain.arrive(int(keys[i]), i) or ended
        if plain.key not in plain.hot():
            plain.send(worker_of(keys[i], member(3), n))
            hashed += 1
            continue
        assert info["key"] == keys[i]
        # Of several slides since the last decision, the last is told.
        assert info.get("slide") == (None if ended is None else pytest.approx(ended))
        ended = None
        assert_seen(observation, plain.observation())
        worker = int(rng.integers(n))
        observation, reward, _, _, info = env.step(worker)
        assert reward == pytest.approx(plain.send(worker))
        asked += 1
    assert min(hashed, asked) > 50
    assert loads_of(env) == plain.load()
    assert info["slide"] == pytest.approx(plain.measure())


def test_quantum_coarsens_only_what_is_seen(loads_of):
    one, seven = (StreamPartitionEnv(**SMALL, quantum=q) for q in (1, 7))
    fine, _ = one.reset(seed=2)
    coarse, _ = seven.reset(seed=2)
    differences = 0
    for i in range(399):
        total, load = sum(loads_of(one)), loads_of(one)
        wanted = [x // 7 * 7 * 4 / total if total else 0.0 for x in load]
        assert coarse["load"].tolist() == pytest.approx(wanted, rel=1e-6)
        differences += fine["load"].tolist() != coarse["load"].tolist()
        assert loads_of(one) == loads_of(seven)
        fine, reward, *_ = one.step(i * i % 4)
        coarse, other, *_ = seven.step(i * i % 4)
        assert reward == other
    assert differences > 300
