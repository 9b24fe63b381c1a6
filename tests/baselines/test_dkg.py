"""DKG: the least loaded of a slice of the ring, which grows for old keys and shrinks, in stream time."""

import math

import numpy as np
import pytest

from dalton.baselines.dkg import DynamicKeyGrouping
from dalton.envs.hashing import candidates, family

# Four workers: ideal 25 %, growth above 30 %, idle below 20 %. Promotions every second, checks at any time.
QUICK = {"n_workers": 4, "warm_up": 0, "promotion": 1, "check_interval": 0, "rate": 2}
HALVES = np.arange(100) / 2


def steps(partitioner, keys, times=None):
    """Decisions one by one, as distances from the home of the key of interest, worker 1, and its pool."""
    taken = []
    for i, key in enumerate(keys):
        now = None if times is None else times[i : i + 1]
        worker = int(partitioner.route([key], now)[0])
        taken.append(((worker - 1) % partitioner.n_workers, partitioner.pool(keys[0])))
    return [step for step, _ in taken], [pool for _, pool in taken]


@pytest.fixture
def hot_and_cold(keys_with):
    """A key at home in 1, and 20 others at home two workers on."""
    return keys_with([(1,), *[(3,)] * 20], n=4)


@pytest.mark.parametrize("timed", [True, False])
def test_hand_derived_growth_and_shrinking(hot_and_cold, timed):
    # Two tuples a second, by times or by position / rate.
    a, *cold = hot_and_cold
    times = HALVES if timed else None
    # Promotions at 1, 2, 3, 4 s; with the fourth a is old, at tuple 8. Until then it has two workers in turn:
    # loads 4 4 0 0. Tuple 8: both have 50 % > 30 and the next has 0: a third one, which gets all until
    # 4 4 4 0, tuple 12: 33 % > 30, the fourth one. 4 4 4 4 at tuple 16, and there are no more.
    partitioner = DynamicKeyGrouping(**QUICK)
    taken, pools = steps(partitioner, [a] * 17, times)
    assert taken == [0, 1] * 4 + [2] * 4 + [3] * 4 + [0]
    assert pools == [2] * 8 + [3] * 4 + [4] * 5
    # 20 other keys, one tuple each, load the workers two and three on: 5 4 14 14, and never a.
    partitioner.route(cold, None if times is None else times[17:37])
    assert partitioner.loads.load.tolist() == [14, 5, 4, 14]
    assert partitioner.pool(a) == 4
    # Now a is rare. Two of its four are below 20 %: three; again two of three: two, and no fewer.
    rest = None if times is None else times[37:]
    assert steps(partitioner, [a] * 4, rest) == ([1, 0, 1, 0], [3, 2, 2, 2])


def test_position_over_rate_is_the_time_where_there_are_none(zipf):
    keys = zipf(3_000, n_keys=40, s=1.5)
    fields = {"n_workers": 8, "promotion": 2, "warm_up": 3, "check_interval": 1, "distinct_keys": 20}
    for rate in (50, 64):
        timeless, timed = (DynamicKeyGrouping(**fields, rate=rate) for _ in range(2))
        assert timeless.route(keys).tolist() == timed.route(keys, np.arange(3_000) / rate).tolist()
        hot = int(np.unique_counts(keys).values[np.unique_counts(keys).counts.argmax()])
        assert timeless.pool(hot) == timed.pool(hot) > 2


@pytest.mark.parametrize(("later", "pool"), [(3.9, 2), (4.0, 3), (4.5, 3), (3_000.0, 3)])
def test_promotions_happen_in_stream_time_across_a_gap(hot_and_cold, later, pool):
    # Eight tuples within 0.7 s, then one: the fourth promotion is due at 4 s.
    a = hot_and_cold[0]
    partitioner = DynamicKeyGrouping(**QUICK)
    assert steps(partitioner, [a] * 8, np.arange(8) / 10)[1] == [2] * 8
    assert steps(partitioner, [a], np.array([later])) == ([0 if pool == 2 else 2], [pool])


@pytest.mark.parametrize("origin", [-1_000.0, 0.0, 1.7e9])
def test_promotions_count_from_the_first_tuple(hot_and_cold, origin):
    a = hot_and_cold[0]
    pools = steps(DynamicKeyGrouping(**QUICK), [a] * 17, HALVES + origin)[1]
    assert pools == [2] * 8 + [3] * 4 + [4] * 5


def test_every_fourth_promotion_is_to_the_old_space_also_after_a_gap(hot_and_cold):
    # As long as a is alone, promotions at 1 ... 6 s are due at 6.5; the next to the old space is the eighth.
    a, b, *_ = hot_and_cold
    partitioner = DynamicKeyGrouping(**{**QUICK, "distinct_keys": 20})
    partitioner.route([a], [0.0])
    partitioner.route([b] * 6, [6.5, 6.6, 6.7, 6.8, 6.9, 8.0])
    assert partitioner.pool(b) == 3


def test_no_growth_during_the_warm_up(hot_and_cold):
    pools = steps(DynamicKeyGrouping(**{**QUICK, "warm_up": 6.5}), [hot_and_cold[0]] * 16, HALVES)[1]
    # Old since 4 s, but 6.5 s have passed at tuple 13 only.
    assert pools == [2] * 13 + [3] * 3


def test_one_check_per_interval(hot_and_cold):
    # Checked at 0 and then after more than 1.5 s, so at 2, 4 (now old), 6 and 8.
    pools = steps(DynamicKeyGrouping(**{**QUICK, "check_interval": 1.5}), [hot_and_cold[0]] * 17, HALVES)[1]
    assert pools == [2] * 8 + [3] * 4 + [4] * 5
    pools = steps(DynamicKeyGrouping(**{**QUICK, "check_interval": 4.5}), [hot_and_cold[0]] * 32, HALVES)[1]
    # At 0, 5, 10 and 15: at tuple 10 loads are 5 5 and a third one joins. At tuple 20 they are 7 7 6, where
    # the least is not above 30 %, at tuple 30 they are 10 10 10.
    assert pools == [2] * 10 + [3] * 20 + [4] * 2


def test_only_a_lighter_worker_joins(keys_with):
    # a has 0 and 1, c has 1 and 2. In turn they load 100 110 210 211 221 222, so after twelve tuples 4 4 4 0.
    a, c = keys_with([(0,), (1,)], n=4)
    partitioner = DynamicKeyGrouping(**QUICK)
    partitioner.route([a, c] * 6, np.arange(12) / 20)
    assert partitioner.loads.load.tolist() == [4, 4, 4, 0]
    # Both are old. The two of a have 33 % > 30, but so has 2, the next one. For c the next one is 3.
    assert partitioner.route([a], [5.0]).tolist() == [0]
    assert partitioner.pool(a) == 2
    assert partitioner.route([c], [5.1]).tolist() == [3]
    assert partitioner.pool(c) == 3


def test_a_more_frequent_key_takes_the_place_in_the_old_space(keys_with):
    # distinct_keys = 10: one place. a is old from 4 s on and has three workers at 4 s. b is more frequent by
    # 8 s, the next promotion to the old space, so a cannot grow any more, b can.
    a, b = keys_with([(0,), (0,)], n=4)
    partitioner = DynamicKeyGrouping(**{**QUICK, "distinct_keys": 10})
    partitioner.route([a] * 8, np.arange(8) / 10)
    partitioner.route([a], [4.0])
    assert partitioner.pool(a) == 3
    partitioner.route([b] * 12, np.linspace(5, 5.5, 12))
    assert partitioner.pool(b) == 2
    partitioner.route([b], [8.0])
    # Loads 10 10 1 0 before: b's two are above 30 %, the third is lighter.
    assert partitioner.pool(b) == 3
    # Nine of b later a, in the teenage space, stays at three although all of its workers are above 30 %.
    partitioner.route([b] * 9, np.full(9, 8.0))
    assert partitioner.loads.load.tolist() == [11, 10, 10, 0]
    partitioner.route([a], [8.5])
    assert partitioner.pool(a) == 3
    # b, in the old space, finds 11 11 10 0 and takes the fourth.
    partitioner.route([b], [8.6])
    assert partitioner.pool(b) == 4


def test_a_key_not_seen_for_long_starts_anew(hot_and_cold):
    a, b, *_ = hot_and_cold
    for forget, pool in ((20, 2), (40, 4)):
        partitioner = DynamicKeyGrouping(**QUICK, forget=forget)
        steps(partitioner, [a] * 17, HALVES)
        assert partitioner.pool(a) == 4
        partitioner.route([b], [32.0])
        assert partitioner.pool(a) == pool


def test_a_key_cut_from_the_baby_space_starts_anew(keys_with):
    # distinct_keys = 10: 5 babies survive a promotion, of which 4 rise. Six keys with 6 ... 1 tuples: the
    # last is cut, and its count with it.
    keys = keys_with([(0,)] * 6, n=4)
    partitioner = DynamicKeyGrouping(**{**QUICK, "distinct_keys": 10})
    stream = np.repeat(keys, [6, 5, 4, 3, 2, 1])
    partitioner.route(stream, np.linspace(0, 0.9, len(stream)))
    partitioner.route([keys[0]], [1.0])
    counts = dict(zip(partitioner.items["key"].tolist(), partitioner.items["count"].tolist(), strict=True))
    assert [counts.get(key, 0) for key in keys] == [7, 5, 4, 3, 2, 0]
    spaces = dict(zip(partitioner.items["key"].tolist(), partitioner.items["space"].tolist(), strict=True))
    assert [spaces[key] for key in keys[:5]] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(("n", "pool"), [(1, 1), (2, 2), (3, 3), (4, 4), (8, 7), (20, 14), (100, 50)])
def test_the_pool_of_the_only_key_grows_until_its_share_is_low_enough(n, pool):
    # It shares the stream evenly among p workers and grows while 100 / p > ideal + √ideal: n = 8 has 16.04 %,
    # which six exceed and seven do not; n = 20 has 7.24 %, 13 and 14; n = 100 has 2 %, 49 and 50.
    partitioner = DynamicKeyGrouping(**{**QUICK, "n_workers": n})
    workers = partitioner.route(np.zeros(6_000, np.int64), np.arange(6_000) / 8)
    assert partitioner.pool(0) == pool
    assert len(np.unique(workers)) == pool
    assert partitioner.pool(99) == min(2, n)


class Reference:
    """The docstring, tuple by tuple."""

    def __init__(self, n, distinct_keys, warm_up, promotion, check_interval, forget):
        self.n, self.size, self.warm_up, self.promotion = n, distinct_keys, warm_up, promotion
        self.check_interval, self.forget = check_interval, forget
        self.load, self.start, self.cycle = [0] * n, None, 0
        self.count, self.seen, self.checked, self.pool, self.space = {}, {}, {}, {}, {}
        self.grown = self.shrunk = 0

    def leave(self, key):
        for record in (self.count, self.seen, self.checked, self.pool, self.space):
            del record[key]

    def by_count(self, *spaces):
        """Most frequent first; of equal ones, those in the higher space, then by the rank they had."""
        keys = [key for key in self.space if self.space[key] in spaces]
        return sorted(keys, key=lambda key: (-self.count[key], -spaces.index(self.space[key])))

    def promote(self, now):
        self.cycle += 1
        for key in [k for k in self.space if self.space[k] != "baby" and now - self.seen[k] > self.forget]:
            self.leave(key)
        ranked = sorted(self.space, key=lambda key: -self.count[key])
        self.space = {key: self.space[key] for key in ranked}
        for key in self.by_count("baby")[self.size // 2 :]:
            self.leave(key)
        self.fill("baby", "teenage", self.size * 40 // 100)
        if self.cycle % 4 == 0:
            self.fill("teenage", "old", self.size * 10 // 100)

    def fill(self, lower, upper, room):
        for i, key in enumerate(self.by_count(lower, upper)):
            self.space[key] = upper if i < room else lower

    def check(self, key, home, now):
        ideal, t = 100 / self.n, max(1, sum(self.load))
        shares = [100 * self.load[(home + j) % self.n] / t for j in range(self.n)]
        pool = self.pool[key]
        mine = shares[:pool]
        if (
            now - self.start >= self.warm_up
            and self.space[key] == "old"
            and min(mine) > ideal + math.sqrt(ideal)
            and pool < self.n
            and shares[pool] < min(mine)
        ):
            self.pool[key] += 1
            self.grown += 1
        elif pool > 2 and sum(share < ideal - math.sqrt(ideal) for share in mine) >= 2:
            self.pool[key] -= 1
            self.shrunk += 1

    def route(self, key, home, now):
        if self.start is None:
            self.start, self.next = now, now + self.promotion
        while now >= self.next:
            self.promote(now)
            self.next += self.promotion
        if key not in self.space:
            self.count[key], self.checked[key], self.pool[key], self.space[key] = (
                0,
                -math.inf,
                min(2, self.n),
                "baby",
            )
        self.count[key] += 1
        self.seen[key] = now
        if now - self.checked[key] > self.check_interval:
            self.checked[key] = now
            self.check(key, home, now)
        best = min(((home + j) % self.n for j in range(self.pool[key])), key=lambda w: self.load[w])
        self.load[best] += 1
        return best


@pytest.mark.parametrize(
    ("n", "distinct_keys", "n_keys", "s"),
    [
        (1, 20, 30, 1.0),
        (2, 20, 30, 1.5),
        (5, 20, 60, 1.5),
        (8, 100, 150, 1.2),
        (16, 50, 30, 2.0),
        (40, 20, 30, 1.2),
    ],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_every_decision_matches_the_rule(zipf, n, distinct_keys, n_keys, s, seed):
    # Every 1000 tuples other keys are frequent, so that pools grow and shrink.
    rng = np.random.default_rng(seed)
    keys = np.concatenate([zipf(1_000, n_keys=n_keys, s=s, seed=10 * seed + part) for part in range(5)])
    times = np.cumsum(rng.integers(0, 3, len(keys)) / 8)
    spans = {"warm_up": 5.0, "promotion": 4.0, "check_interval": 1.0, "forget": 100.0}
    reference = compare(keys, times, n, seed, distinct_keys, **spans)
    assert reference.grown > 3 or n < 3


@pytest.mark.parametrize(("n", "seed"), [(4, 0), (8, 7), (16, 3)])
def test_every_decision_matches_the_rule_while_pools_shrink(keys_with, n, seed):
    # A key at home in 0 has most of the first 400 tuples. Then 60 keys at home in the last quarter of the
    # ring have nearly all, so that most workers of the first key become idle.
    first, *others = keys_with([(0,), *[(n - 1 - j % (n // 4),) for j in range(60)]], n=n, seed=seed)
    rng = np.random.default_rng(seed)
    early = np.where(rng.random(400) < 0.7, first, rng.choice(others, 400))
    late = np.where(rng.random(3_000) < 0.05, first, rng.choice(others, 3_000))
    keys = np.concatenate([early, late])
    times = np.cumsum(rng.integers(0, 3, len(keys)) / 8)
    spans = {"warm_up": 5.0, "promotion": 4.0, "check_interval": 1.0, "forget": 100.0}
    reference = compare(keys, times, n, seed, 20, **spans)
    assert reference.grown > 0 < reference.shrunk
    assert reference.pool[first] == 2


def compare(keys, times, n, seed, distinct_keys, **spans):
    homes = candidates(keys, family(seed, 1), n)[0].tolist()
    reference = Reference(n, distinct_keys, **spans)
    expected = [reference.route(*step) for step in zip(keys.tolist(), homes, times.tolist(), strict=True)]
    partitioner = DynamicKeyGrouping(n_workers=n, seed=seed, distinct_keys=distinct_keys, **spans)
    assert partitioner.route(keys, times).tolist() == expected
    assert [partitioner.pool(key) for key in reference.pool] == list(reference.pool.values())
    return reference


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n_workers": 0}, "n_workers"),
        ({"seed": -1}, "seed"),
        ({"distinct_keys": 9}, "distinct_keys"),
        ({"warm_up": -1}, "warm_up"),
        ({"promotion": 0}, "promotion"),
        ({"check_interval": -0.5}, "check_interval"),
        ({"forget": 0}, "forget"),
        ({"rate": 0}, "rate"),
        ({"rate": float("inf")}, "rate"),
    ],
)
def test_bad_parameters(refused, fields, field):
    assert refused(DynamicKeyGrouping, **{"n_workers": 3, **fields}).startswith(f"{field} = ")
