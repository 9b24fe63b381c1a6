"""The windowed state against a model that keeps every tuple and recounts from the definitions."""

import math
import pickle
import struct
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import mmh3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dalton.envs.cluster import MAX_STAMP, MAX_WORKERS, Cluster, fragments, grown, has_room
from dalton.envs.errors import ConfigError
from dalton.envs.table import EMPTY
from dalton.envs.window import BASE, LATEST, SLIDE, Window

LOW, HIGH = -(2**63), 2**63 - 1
N_WORKERS = 5
UNSEEN = 123_456_789_012
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=150)


class Model:
    """L_w, X_w and what follows from them, by definition (Dalton Section 3.3).

    The slide of a tuple is floor(time / s), or floor(position / s) with a window in tuples; the window at the
    latest tuple is its slide and the W/s - 1 before it.
    """

    def __init__(self, n, window, n_reducers=1, seed=0):
        self.n, self.window, self.n_reducers = n, window, n_reducers
        self.reducer_seed = mmh3.hash(struct.pack("<I", 65536 * seed + 65535), 42, signed=False)
        self.position = 0
        self.window_tuples = []
        self.total = [0] * n

    def observe(self, keys, workers, times):
        for i, (key, worker) in enumerate(zip(keys.tolist(), workers.tolist(), strict=True)):
            slide = 0
            if self.window is not None:
                now = self.position if self.window.by == "count" else float(times[i])
                slide = math.floor(Fraction(now) / Fraction(self.window.slide))
            self.window_tuples.append((slide, key, worker))
            self.position += 1
            self.total[worker] += 1
        if self.window is not None and self.window_tuples:
            oldest = self.window_tuples[-1][0] - round(self.window.size / self.window.slide)
            self.window_tuples = [entry for entry in self.window_tuples if entry[0] > oldest]

    def reducer(self, key):
        return mmh3.hash(struct.pack("<q", key), self.reducer_seed, signed=True) % self.n_reducers

    def expected(self):
        pairs = {(key, worker) for _, key, worker in self.window_tuples}
        workers = [worker for _, _, worker in self.window_tuples]
        copies = Counter(key for key, _ in pairs)
        return {
            "load": [workers.count(w) for w in range(self.n)],
            "n_keys": len({key for key, _ in pairs}),
            "pairs": [sum(w == worker for _, worker in pairs) for w in range(self.n)],
            "merges": [sum(self.reducer(key) == j for key, _ in pairs) for j in range(self.n_reducers)],
            "merges_split": [
                sum(self.reducer(key) == j and copies[key] > 1 for key, _ in pairs)
                for j in range(self.n_reducers)
            ],
            "total": self.total,
        }

    def holders(self, key):
        mine = {worker for _, k, worker in self.window_tuples if k == key}
        return [w in mine for w in range(self.n)]


def observed(cluster):
    return {
        "load": cluster.loads.load.tolist(),
        "n_keys": cluster.n_keys,
        "pairs": cluster.pairs.tolist(),
        "merges": cluster.merges.tolist(),
        "merges_split": cluster.merges_split.tolist(),
        "total": cluster.total.tolist(),
    }


def cuts(length, size, seed=0):
    """Starts and stops of batches of ``size``; a size of 0 cuts at random, with empty batches."""
    if size:
        edges = [*range(0, length, size), length]
    else:
        edges = [0, *sorted(np.random.default_rng(seed).integers(0, length, 25).tolist() * 2), length]
    return list(pairwise(edges))


def compare(window, keys, workers, times, size, n=N_WORKERS, n_reducers=1, seed=0, sample=40):
    """Feed both in batches of ``size`` and compare all there is after every batch."""
    cluster = Cluster(n_workers=n, window=window, n_reducers=n_reducers, seed=seed)
    model = Model(n, window, n_reducers, seed)
    distinct = np.unique(keys)
    rng = np.random.default_rng(1)
    for start, stop in cuts(len(keys), size):
        part = None if times is None else times[start:stop]
        cluster.observe(keys[start:stop], workers[start:stop], part)
        model.observe(keys[start:stop], workers[start:stop], part)
        assert observed(cluster) == model.expected(), f"after tuple {stop}"
        recent = [key for _, key, _ in model.window_tuples[-5:]]
        some = rng.choice(distinct, min(sample, len(distinct)), replace=False).tolist()
        for key in [*recent, *some, UNSEEN]:
            assert cluster.holders(key).tolist() == model.holders(key), f"holders of {key} after tuple {stop}"
    return cluster


def stream(length, n_keys, seed=0, n=N_WORKERS, split=0.5):
    """Skewed keys over all of int64; half of the tuples of a key go to its own worker, the rest anywhere."""
    rng = np.random.default_rng(seed)
    domain = np.concatenate([[LOW, -1, 0, HIGH], rng.integers(LOW, HIGH, n_keys - 4)])
    codes = (n_keys * rng.random(length) ** 2).astype(np.int64)
    away = rng.random(length) < split
    workers = np.where(away, rng.integers(0, n, length), codes % n).astype(np.int32)
    return domain[codes], workers


def clock(length, seed=0, origin=0.0, gaps=(), step=1.0):
    """Times with ties and exact slide edges, mean distance ``step``, plus a leap at each of ``gaps``."""
    rng = np.random.default_rng(seed + 100)
    distance = rng.integers(0, 5, length) * (step / 2)
    distance[0] = 0.0
    for at, leap in gaps:
        distance[at] += leap
    return origin + np.cumsum(distance)


# Small windows turn often; the large ones hold more keys and pairs than the first tables.
SMALL = {"length": 2_000, "n_keys": 80, "size": 60}
LARGE = {"length": 9_000, "n_keys": 4_000, "size": 3_000}


@pytest.mark.parametrize("ratio", [1, 3, 10])
@pytest.mark.parametrize("n_reducers", [1, 4])
@pytest.mark.parametrize(("case", "batch"), [(SMALL, 7), (SMALL, 0), (LARGE, 997), (LARGE, 9_000)])
def test_count_windows_match_the_definitions(case, batch, ratio, n_reducers):
    keys, workers = stream(case["length"], case["n_keys"], seed=ratio)
    window = Window(case["size"], case["size"] // ratio)
    assert window.n_slides == ratio
    compare(window, keys, workers, None, batch, n_reducers=n_reducers, seed=ratio)


@pytest.mark.parametrize("ratio", [1, 3, 10])
@pytest.mark.parametrize("n_reducers", [1, 4])
@pytest.mark.parametrize(("case", "batch"), [(SMALL, 7), (SMALL, 0), (LARGE, 997), (LARGE, 9_000)])
def test_time_windows_match_the_definitions(case, batch, ratio, n_reducers):
    length, size = case["length"], case["size"]
    keys, workers = stream(length, case["n_keys"], seed=ratio)
    slide = size // ratio
    # Within a slide, just a slide, into and right past the window's end, far past it.
    gaps = [
        (length // 10 * (i + 1), leap)
        for i, leap in enumerate((slide / 2, slide, size - slide, size, 7 * size))
    ]
    gaps += [(length * 7 // 10, size + slide), (length * 8 // 10, 1e6 * slide), (length * 9 // 10, 2 * slide)]
    times = clock(length, gaps=gaps)
    compare(Window(size, slide, "time"), keys, workers, times, batch, n_reducers=n_reducers, seed=ratio)


@pytest.mark.parametrize("origin", [-1_234.5, -45.0, -0.5, 7.25, 1.7e9, 1.7e12])
@pytest.mark.parametrize("ratio", [1, 3])
def test_times_need_not_start_at_zero(origin, ratio):
    keys, workers = stream(1_500, 80)
    times = clock(1_500, origin=origin, gaps=[(700, 333.0)])
    compare(Window(60, 60 // ratio, "time"), keys, workers, times, 11, n_reducers=4)


def test_fractional_slides_match_the_definitions():
    # 0.1 is no exact float; the times stay away from its multiples, where the rounding would decide.
    keys, workers = stream(2_000, 80)
    times = clock(2_000, origin=-3.0, step=0.02) + 0.003
    window = Window(0.3, 0.1, "time")
    assert window.n_slides == 3
    compare(window, keys, workers, times, 13)


@pytest.mark.parametrize("n_reducers", [1, 4])
@pytest.mark.parametrize(("case", "batch"), [(SMALL, 0), (LARGE, 997), (LARGE, 9_000)])
def test_without_a_window_everything_counts(case, batch, n_reducers):
    keys, workers = stream(case["length"], case["n_keys"])
    times = clock(case["length"], gaps=[(50, 1e9)])
    timeless = compare(None, keys, workers, None, batch, n_reducers=n_reducers, seed=9)
    timed = compare(None, keys, workers, times, batch, n_reducers=n_reducers, seed=9)
    assert timeless.loads.load.tolist() == timeless.total.tolist()
    assert observed(timed) == observed(timeless)


@pytest.mark.parametrize("n_slides", [2**15 - 1, 2**15, 40_000])
def test_windows_of_very_many_slides(n_slides):
    # Keys come back after a little less than the window, just that, or more, often to another worker.
    keys, workers = stream(600, 6)
    waits = [0, 0, 1, 1, 2, n_slides // 2, n_slides - 2, n_slides - 1, n_slides, 3 * n_slides]
    times = np.cumsum(np.random.default_rng(n_slides).choice(waits, len(keys))).astype(np.float64)
    cluster = compare(Window(n_slides, 1, "time"), keys, workers, times, 7, n_reducers=2)
    assert cluster.fragments.slots.dtype["gap"] == (np.int16 if n_slides < 2**15 else np.int32)


@pytest.mark.parametrize("n", [1, 2, 64])
def test_number_of_workers(n):
    keys, workers = stream(3_000, 300, n=n)
    compare(Window(600, 200), keys, workers, None, 500, n=n, n_reducers=3)


SMALL_STREAMS = st.lists(
    st.tuples(
        st.sampled_from([LOW, -1, 0, 1, HIGH]),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0.25, 0.5, 1, 1, 2, 3, 4, 5, 40]),
    ),
    min_size=1,
    max_size=40,
)


@FIXED
@given(SMALL_STREAMS, st.sampled_from([(1, 1), (3, 1), (6, 2), (10, 1)]), st.booleans(), st.integers(1, 6))
def test_random_small_streams_match_the_definitions(tuples, sizes, by_time, batch):
    keys = np.array([key for key, _, _ in tuples])
    workers = np.array([worker for _, worker, _ in tuples], np.int32)
    times = np.cumsum([float(wait) for _, _, wait in tuples]) - 20.0
    window = Window(*sizes, by="time" if by_time else "count")
    compare(window, keys, workers, times if by_time else None, batch, n=3, n_reducers=2)


def test_a_hand_derived_window():
    # Slides of 2 tuples, a window of 2 slides. Key 7 goes to 0, 0 | 1, 1 | 1, 2 and key 8 takes the last.
    cluster = Cluster(n_workers=3, window=Window(4, 2))
    keys, workers = np.array([7, 7, 7, 7, 7, 7, 8]), np.array([0, 0, 1, 1, 1, 2, 2], np.int32)
    seen, split = [], []
    for i in range(7):
        cluster.observe(keys[i : i + 1], workers[i : i + 1])
        seen.append((cluster.loads.load.tolist(), cluster.holders(7).tolist(), cluster.n_keys))
        split.append(cluster.merges_split.tolist())
    assert seen == [
        ([1, 0, 0], [True, False, False], 1),
        ([2, 0, 0], [True, False, False], 1),
        ([2, 1, 0], [True, True, False], 1),
        ([2, 2, 0], [True, True, False], 1),
        ([0, 3, 0], [False, True, False], 1),
        ([0, 3, 1], [False, True, True], 1),
        ([0, 1, 2], [False, True, True], 2),
    ]
    assert cluster.pairs.tolist() == [0, 1, 2]
    assert cluster.merges.tolist() == [3]
    # Key 7 is on one worker until its third tuple, and again in the fifth, when worker 0 has left the window.
    assert split == [[0], [0], [2], [2], [0], [2], [2]]
    assert cluster.total.tolist() == [2, 3, 2]


def test_a_fresh_cluster_is_empty():
    cluster = Cluster(n_workers=3, window=Window(4, 2, "time"), n_reducers=2)
    cluster.observe(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0))
    nothing = {"load": [0] * 3, "n_keys": 0, "pairs": [0] * 3, "merges": [0] * 2, "total": [0] * 3}
    nothing["merges_split"] = [0] * 2
    assert observed(cluster) == nothing
    assert cluster.holders(0).tolist() == [False] * 3


def test_observe_leaves_its_input_alone():
    keys, workers = stream(3_000, 1_500)
    times = clock(3_000)
    copies = keys.copy(), workers.copy(), times.copy()
    Cluster(n_workers=N_WORKERS, window=Window(60, 20, "time")).observe(keys, workers, times)
    assert all(np.array_equal(a, b) for a, b in zip(copies, (keys, workers, times), strict=True))


def test_keys_that_left_the_window_do_not_take_up_memory():
    # 200 live keys out of a million distinct ones: the tables stay those of a few thousand entries.
    cluster = Cluster(n_workers=4, window=Window(200, 20))
    largest = 0
    for start in range(0, 1_000_000, 50_000):
        keys = np.arange(start, start + 50_000)
        cluster.observe(keys, (keys % 4).astype(np.int32))
        largest = max(largest, cluster.nbytes)
    assert cluster.n_keys == 200
    assert largest < 100_000


@pytest.mark.parametrize("stride", [1, 2**20, 0x9E3779B97F4A7C15 - 2**64])
def test_at_most_64_bytes_per_distinct_key_at_every_size(stride):
    # Checked after every 5000 keys, so also right after the tables have grown, when they are emptiest.
    cluster = Cluster(n_workers=16, window=None)
    n_keys, batch, worst, tables = 2_000_000, 5_000, 0.0, set()
    for start in range(0, n_keys, batch):
        keys = np.arange(start, start + batch) * stride
        cluster.observe(keys, (keys % 16).astype(np.int32))
        if cluster.n_keys >= 100_000:
            tables.add(len(cluster.fragments.slots))
            worst = max(worst, cluster.nbytes / cluster.n_keys)
    assert cluster.n_keys == n_keys
    assert len(tables) > 3
    assert 20 < worst <= 64


def test_a_few_split_keys_do_not_double_the_bytes_of_all():
    cluster = Cluster(n_workers=2, window=None)
    keys = np.arange(370_000)
    cluster.observe(keys, np.zeros(len(keys), np.int32))
    cluster.observe(keys[:800], np.ones(800, np.int32))
    assert cluster.nbytes <= 64 * cluster.n_keys


def test_a_gap_of_three_billion_slides():
    # In a process of its own: a wrong row is written to, which may end the process.
    code = """if True:
        import numpy as np
        from dalton.envs.cluster import Cluster, Window
        cluster = Cluster(n_workers=2, window=Window(10, 1, "time"))
        cluster.observe(np.array([7, 7]), np.array([0, 1], np.int32), np.array([0.0, 3e9]))
        print(cluster.n_keys, cluster.pairs.tolist(), cluster.holders(7).tolist())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1 [0, 1] [False, True]\n", done.stderr


@pytest.mark.parametrize("by", ["count", "time", None])
def test_a_pickle_taken_mid_stream_goes_on_alike_and_apart(by):
    keys, workers = stream(8_000, 4_000)
    times = clock(8_000) if by == "time" else None
    window = None if by is None else Window(3_000, 300, by)
    cluster = Cluster(n_workers=N_WORKERS, window=window, n_reducers=3, seed=4)

    def feed(target, start, stop):
        target.observe(keys[start:stop], workers[start:stop], None if times is None else times[start:stop])

    feed(cluster, 0, 3_333)
    data = pickle.dumps(cluster)
    before = observed(cluster)
    copy = pickle.loads(data)
    feed(copy, 3_333, 8_000)
    assert observed(cluster) == before
    feed(cluster, 3_333, 8_000)
    assert observed(copy) == observed(cluster) != before
    assert copy.window == cluster.window
    for mine, other in zip(
        (*copy.loads[:4], *copy.fragments), (*cluster.loads[:4], *cluster.fragments), strict=True
    ):
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)


def refused(make) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("field", ["n_workers", "n_reducers"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_a_cluster_without_workers_or_reducers_is_refused(field, value):
    fields = {"n_workers": 2, "n_reducers": 1, field: value}
    allowed = "from 1 to 32767" if field == "n_workers" else ">= 1"
    expected = f"{field} = {value}: expected a whole number {allowed}"
    assert refused(lambda: Cluster(window=None, **fields)) == expected


def test_a_whole_float_as_number_of_workers_is_taken():
    assert Cluster(n_workers=4.0, window=None).n_workers == 4


TIMED = Window(10, 5, "time")


def routed(length):
    return np.arange(length), np.zeros(length, np.int32)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (None, "times = None: a window in time needs the arrival time of every tuple"),
        ([1.0, 2.0], "times has shape (2,): expected the shape of keys, (3,)"),
        ([1.0, 2.0, 3.0, 4.0], "times has shape (4,): expected the shape of keys, (3,)"),
        ([], "times has shape (0,): expected the shape of keys, (3,)"),
        ([7.0, 9.0, 8.0], "times[2] = 8.0: expected no decrease (after 9.0)"),
        ([6.5, 9.0, 9.0], "times[0] = 6.5: expected no decrease (after 7.0)"),
        ([7.0, math.nan, 8.0], "times[1] = nan: expected a finite number of less than 2**52 slides"),
    ],
)
def test_observing_in_a_window_in_time_needs_times_that_do_not_decrease(times, expected):
    cluster = Cluster(n_workers=2, window=TIMED)
    cluster.observe(*routed(2), np.array([0.0, 7.0]))
    before = observed(cluster)
    assert refused(lambda: cluster.observe(*routed(3), times)) == expected
    # Nothing was counted, nor was the time taken: what follows is judged by the last accepted batch.
    assert observed(cluster) == before
    assert cluster.loads.edge[LATEST] == 7.0
    cluster.observe(*routed(3), [7.0, 7.0, 10.0])
    assert cluster.loads.load.tolist() == [4, 0]
    assert cluster.total.tolist() == [5, 0]


@pytest.mark.parametrize("window", [None, Window(10, 5)])
def test_other_windows_take_no_notice_of_times_but_of_their_number(window):
    cluster = Cluster(n_workers=2, window=window)
    cluster.observe(*routed(3), [5.0, math.nan, 1.0])
    cluster.observe(*routed(3))
    assert cluster.total.tolist() == [6, 0]
    assert "times has shape (2,)" in refused(lambda: cluster.observe(*routed(3), [0.0, 1.0]))


def test_as_many_workers_as_a_slot_can_name():
    last = MAX_WORKERS - 1
    cluster = Cluster(n_workers=MAX_WORKERS, window=Window(2, 1))
    # The last worker is the first of key 7, then a further one of key 8.
    cluster.observe(np.array([7, 7]), np.array([last, 0], np.int32))
    assert np.flatnonzero(cluster.holders(7)).tolist() == [0, last]
    cluster.observe(np.array([8, 8]), np.array([0, last], np.int32))
    assert np.flatnonzero(cluster.holders(8)).tolist() == [0, last]
    assert cluster.pairs[[0, last]].tolist() == [1, 1]
    expected = "n_workers = 32768: expected a whole number from 1 to 32767"
    assert refused(lambda: Cluster(n_workers=MAX_WORKERS + 1)) == expected
    assert refused(lambda: fragments(MAX_WORKERS + 1, None)) == expected


def age(cluster, slides):
    """Count the stamps from ``slides`` further back, as if the stream had begun that much earlier."""
    f = cluster.fragments
    cluster.loads.clock[BASE] -= slides
    taken, further = f.slots["home"] != EMPTY, f.more["worker"] != EMPTY
    f.slots["stamp"][taken] += slides
    f.slots["last"][taken] += slides
    f.more["stamp"][further] += slides


def since(cluster):
    """Slides since the origin of the stamps, the highest stamp there can be."""
    return int(cluster.loads.clock[SLIDE] - cluster.loads.clock[BASE])


def room_in(cluster):
    return has_room(*cluster.fragments[:3], cluster.loads.clock)


def test_full_stamps_are_counted_from_the_start_of_the_window_again():
    # Slides of one tuple, a window of three. Key 1: worker 0, then 1, 2, 1; key 2 has left the window.
    cluster = Cluster(n_workers=3, window=Window(3, 1))
    cluster.observe(np.array([2, 1, 1, 1, 1, 3]), np.array([0, 0, 1, 2, 1, 0], np.int32))
    held = {1: [False, True, True], 2: [False] * 3, 3: [True, False, False]}
    assert {key: cluster.holders(key).tolist() for key in held} == held
    age(cluster, MAX_STAMP - 1 - since(cluster))
    assert room_in(cluster)
    age(cluster, 1)
    assert not room_in(cluster)
    assert {key: cluster.holders(key).tolist() for key in held} == held
    before = observed(cluster)
    slots = len(cluster.fragments.slots)
    cluster.fragments = grown(cluster.fragments, cluster.loads.clock)
    assert room_in(cluster)
    assert since(cluster) == 3
    assert len(cluster.fragments.slots) == slots
    assert cluster.fragments.used.tolist() == [2, 2]
    taken = cluster.fragments.slots[cluster.fragments.slots["home"] != EMPTY]
    # Key 1 was last seen a slide before key 3; its first worker's stamp is outside the window, not below 0.
    assert sorted(taken[["key", "stamp", "last"]].tolist()) == [(1, 0, 2), (3, 3, 3)]
    assert {key: cluster.holders(key).tolist() for key in held} == held
    assert observed(cluster) == before
    # And it goes on: worker 2 of key 1 leaves the window, worker 0 is counted as new.
    cluster.observe(np.array([1]), np.array([0], np.int32))
    assert cluster.holders(1).tolist() == [True, True, False]
    assert cluster.pairs.tolist() == [2, 1, 0]


@pytest.mark.parametrize("by", ["count", "time"])
@pytest.mark.parametrize("ratio", [1, 3, 10])
def test_a_stream_that_runs_out_of_stamps_goes_on_alike(by, ratio):
    keys, workers = stream(3_000, 120, seed=ratio)
    times = clock(3_000, origin=-50.0, gaps=[(2_200, 30.0), (2_600, 500.0)]) if by == "time" else None
    window = Window(60, 60 // ratio, by)
    plain, aged = (Cluster(n_workers=N_WORKERS, window=window, n_reducers=3) for _ in range(2))
    rebased = 0
    for start in range(0, 3_000, 50):
        part = slice(start, start + 50)
        if start % 500 == 0:
            age(aged, MAX_STAMP - 2 - since(aged))
        high = since(aged) > MAX_STAMP // 2
        for cluster in (plain, aged):
            cluster.observe(keys[part], workers[part], None if times is None else times[part])
        rebased += high and since(aged) < MAX_STAMP // 2
        assert observed(aged) == observed(plain)
        for key in {*keys[part].tolist(), *keys[:20].tolist()}:
            assert aged.holders(key).tolist() == plain.holders(key).tolist()
    assert rebased >= 3
