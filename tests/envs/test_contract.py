"""What every partitioner gets from the contract: checked input, parameters, repr, reset, probing."""

import pickle
from typing import ClassVar

import numpy as np
import pytest

from dalton.envs.cluster import MAX_WORKERS, Cluster, has_room, slot_of, split
from dalton.envs.contract import LoadAware, Partitioner, SplitAware
from dalton.envs.errors import ConfigError
from dalton.envs.window import HEAD, POSITION, Window, accept_times, load_state, put, tick

TIMED = {"size": 10, "slide": 5, "by": "time"}
NAN, INF = float("nan"), float("inf")


class Modulo(Partitioner):
    """``key mod n``; keeps what it was handed."""

    def __init__(self, *, n_workers, seed=0, salt=3):
        super().__init__(n_workers=n_workers, seed=seed)
        self.salt = salt
        self.reset()

    def _reset(self):
        self.calls = []

    def _route(self, keys, times, costs, out):
        self.calls.append((keys, times))
        out[:] = keys % self.n_workers


class Lightest(LoadAware):
    """The worker with the lowest load."""

    def __init__(self, *, n_workers, seed=0, window=None):
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.reset()

    def _route(self, keys, times, costs, out):
        for i in range(len(keys)):
            tick(*self.loads[:4], times, i)
            out[i] = self.loads.load.argmin()
            put(*self.loads[:3], out[i])


class Spread(SplitAware):
    """Workers in turn, from ``seed`` on; records every tuple until the tables are full."""

    def __init__(self, *, n_workers, seed=0, window=None):
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        self.reset()

    def _reset(self):
        super()._reset()
        self.next = self.seed

    def _decide(self, keys, times, costs, out):
        for i in range(len(keys)):
            if not has_room(*self.fragments[:3], self.loads.clock):
                return i
            out[i] = self.next % self.n_workers
            self.next += 1
            at = slot_of(self.fragments.slots, keys[i])
            split(*self.fragments, self.loads.clock, at, keys[i], out[i])
        return len(keys)


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        (np.array([1.0, 2.0]), "float64 and shape (2,)"),
        (["a", "b"], "<U1 and shape (2,)"),
        ([True, False], "bool and shape (2,)"),
        (np.array([1, "a"], object), "object and shape (2,)"),
        ([[1, 2], [3, 4]], "int64 and shape (2, 2)"),
        (np.empty((0, 3), np.int64), "int64 and shape (0, 3)"),
        (5, "int64 and shape ()"),
        (None, "object and shape ()"),
    ],
)
@pytest.mark.parametrize("make", [Modulo, Lightest])
def test_keys_must_be_one_row_of_integers(make, keys, seen):
    partitioner = make(n_workers=3)
    assert refused(partitioner.route, keys) == f"keys has type {seen}: expected int64 ids, shape (m,)"


@pytest.mark.parametrize("keys", [[7, -1, 8], (7, -1, 8), np.array([7, -1, 8], np.int16)])
def test_integers_of_any_type_are_routed_as_int64(keys):
    partitioner = Modulo(n_workers=3)
    workers = partitioner.route(keys)
    assert workers.tolist() == [1, 2, 2]
    assert workers.dtype == np.int32
    ((ids, times),) = partitioner.calls
    assert ids.dtype == np.int64
    assert times.shape == (0,)


def test_strided_keys_and_times_arrive_contiguous():
    partitioner = Modulo(n_workers=3)
    assert partitioner.route(np.arange(10)[::3], np.arange(10.0)[::-3]).tolist() == [0, 0, 0, 0]
    ((ids, times),) = partitioner.calls
    assert ids.flags.c_contiguous
    assert times.flags.c_contiguous
    assert times.tolist() == [9.0, 6.0, 3.0, 0.0]


@pytest.mark.parametrize("keys", [[], np.empty(0, np.int64), np.empty(0)])
def test_an_empty_batch_makes_no_decision(keys):
    partitioner = Modulo(n_workers=3)
    workers = partitioner.route(keys)
    assert workers.shape == (0,)
    assert workers.dtype == np.int32
    assert partitioner.calls == []
    assert partitioner.route(keys, []).shape == (0,)
    assert Lightest(n_workers=3, window=TIMED).route(keys, []).shape == (0,)


@pytest.mark.parametrize(
    ("times", "shape"), [([0.0], "(1,)"), ([0.0, 1.0, 2.0], "(3,)"), ([], "(0,)"), ([[0.0, 1.0]], "(1, 2)")]
)
@pytest.mark.parametrize("window", [None, {"size": 4}, TIMED])
def test_times_of_another_length_are_refused(times, shape, window):
    partitioner = Lightest(n_workers=3, window=window)
    expected = f"times has shape {shape}: expected the shape of keys, (2,)"
    assert refused(partitioner.route, [1, 2], times) == expected
    assert partitioner.loads.load.sum() == 0


def test_a_window_in_time_needs_times():
    partitioner = Lightest(n_workers=3, window=TIMED)
    text = refused(partitioner.route, [1, 2])
    assert text == "times = None: a window in time needs the arrival time of every tuple"
    assert Lightest(n_workers=3, window={"size": 10, "slide": 5}).route([1, 2]).tolist() == [0, 1]
    assert Lightest(n_workers=3).route([1, 2]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.0, NAN, 2.0], "times[1] = nan: expected a finite number of less than 2**52 slides"),
        ([0.0, 1.0, INF], "times[2] = inf: expected a finite number of less than 2**52 slides"),
        ([-INF, 1.0, NAN], "times[0] = -inf: expected a finite number of less than 2**52 slides"),
        ([0.0, 2.0, 1.0], "times[2] = 1.0: expected no decrease (after 2.0)"),
        ([3.0, -0.5, -1.0], "times[1] = -0.5: expected no decrease (after 3.0)"),
    ],
)
def test_times_must_be_finite_and_not_decrease(times, expected):
    partitioner = Lightest(n_workers=3, window=TIMED)
    assert refused(partitioner.route, [1, 2, 3], times) == expected
    edge = load_state(3, Window.of(TIMED)).edge
    before = edge.copy()
    assert refused(accept_times, edge, times, 3) == expected
    assert edge.tolist() == before.tolist()
    # Nothing was counted, and the same object goes on.
    assert partitioner.route([1, 2, 3], [0.0, 0.0, 0.5]).tolist() == [0, 1, 2]


def test_equal_and_negative_times_are_fine():
    partitioner = Lightest(n_workers=2, window=TIMED)
    assert partitioner.route([1] * 5, [-12.5, -12.5, -3, -3, 7]).tolist() == [0, 1, 0, 1, 0]


def test_times_that_decrease_between_batches_are_refused():
    partitioner = Lightest(n_workers=2, window=TIMED)
    partitioner.route([1, 2], [0.0, 50.0])
    assert "expected no decrease (after 50.0)" in refused(partitioner.route, [1], [49.0])


def test_an_empty_batch_without_times_is_fine_with_a_window_in_time():
    assert Lightest(n_workers=2, window=TIMED).route([]).shape == (0,)


def test_a_single_number_as_keys_is_refused_with_a_window_in_time():
    assert "expected int64 ids" in refused(Lightest(n_workers=2, window=TIMED).route, 5, [0.0])


@pytest.mark.parametrize("times", [0.0, [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, NAN]]])
def test_times_of_another_dimension_are_refused_with_a_window_in_time(times):
    assert "times has shape" in refused(Lightest(n_workers=2, window=TIMED).route, [1, 2], times)


def test_unsigned_keys_beyond_int64_are_refused():
    assert "2**63" in refused(Modulo(n_workers=2).route, np.array([2**63], np.uint64))


@pytest.mark.parametrize("window", [None, {"size": 4, "slide": 2}, TIMED])
def test_route_leaves_its_input_alone(window):
    keys, times = np.arange(20), np.arange(20.0)
    Lightest(n_workers=3, window=window).route(keys, times)
    assert keys.tolist() == list(range(20))
    assert times.tolist() == [float(i) for i in range(20)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n_workers": 0}, "n_workers = 0: expected a whole number from 1 to 32767"),
        ({"n_workers": 2.5}, "n_workers = 2.5: expected a whole number from 1 to 32767"),
        ({"n_workers": True}, "n_workers = True: expected a whole number from 1 to 32767"),
        ({"n_workers": 2, "seed": -1}, "seed = -1: expected a whole number >= 0"),
        ({"n_workers": 2, "seed": None}, "seed = None: expected a whole number >= 0"),
        (
            {"n_workers": 2, "window": {"size": 3, "slide": 2}},
            "window.size = 3: expected a multiple of window.slide = 2",
        ),
    ],
)
def test_wrong_parameters_are_refused(fields, expected):
    assert refused(lambda: Lightest(**fields)) == expected


CASES = [
    (Modulo, {"n_workers": 3}, "Modulo(n_workers=3, seed=0, salt=3)"),
    (Modulo, {"n_workers": 3.0, "seed": np.int64(7), "salt": "x"}, "Modulo(n_workers=3, seed=7, salt='x')"),
    (Lightest, {"n_workers": 1}, "Lightest(n_workers=1, seed=0, window=None)"),
    (
        Lightest,
        {"n_workers": 4, "window": TIMED},
        "Lightest(n_workers=4, seed=0, window=Window(size=10.0, slide=5.0, by='time'))",
    ),
    (
        Spread,
        {"n_workers": 4, "seed": 2, "window": Window(6, 3)},
        "Spread(n_workers=4, seed=2, window=Window(size=6, slide=3, by='count'))",
    ),
]


@pytest.mark.parametrize(("make", "fields"), [case[:2] for case in CASES])
def test_parameters_make_an_equal_partitioner(make, fields):
    partitioner = make(**fields)
    again = make(**partitioner.params)
    assert again.params == partitioner.params
    keys, times = np.arange(30) % 7, np.arange(30.0)
    assert again.route(keys, times).tolist() == partitioner.route(keys, times).tolist()


@pytest.mark.parametrize(("make", "fields", "text"), CASES)
def test_repr_is_the_call_that_makes_an_equal_partitioner(make, fields, text):
    partitioner = make(**fields)
    assert repr(partitioner) == text
    again = eval(text, {make.__name__: make, "Window": Window})
    assert again.params == partitioner.params


def test_parameters_are_those_of_the_class_with_their_present_values():
    partitioner = Modulo(n_workers=3, seed=5, salt=1)
    assert partitioner.params == {"n_workers": 3, "seed": 5, "salt": 1}
    partitioner.reset(9)
    assert partitioner.params == {"n_workers": 3, "seed": 9, "salt": 1}
    assert Lightest(n_workers=2, window={"size": 4}).params["window"] == Window(4, 4, "count")


def test_reset_forgets_and_keeps_or_takes_the_seed():
    partitioner = Spread(n_workers=4, seed=1)
    keys = np.arange(6)
    first = partitioner.route(keys).tolist()
    assert partitioner.route(keys).tolist() != first
    partitioner.reset()
    assert partitioner.route(keys).tolist() == first
    partitioner.reset(3)
    assert partitioner.seed == 3
    assert partitioner.route(keys).tolist() == Spread(n_workers=4, seed=3).route(keys).tolist() != first
    assert refused(partitioner.reset, -1) == "seed = -1: expected a whole number >= 0"


def test_a_class_without_its_own_bound_may_split_over_all_workers():
    assert Modulo(n_workers=7).max_workers_per_key == 7


def test_prepare_is_only_for_a_lookahead_over_the_stream():
    with pytest.raises(TypeError, match="Modulo has lookahead 'none'"):
        Modulo(n_workers=2).prepare(np.array([1]), np.array([1]))


def test_fragments_hold_worker_numbers_of_15_bits():
    assert refused(Spread, n_workers=MAX_WORKERS + 1) == (
        "n_workers = 32768: expected a whole number from 1 to 32767"
    )
    partitioner = Spread(n_workers=MAX_WORKERS, seed=MAX_WORKERS - 2)
    assert partitioner.route([7, 7, 7]).tolist() == [32_765, 32_766, 0]
    assert partitioner.fragments.totals[[0, 32_766, 32_767, 1]].tolist() == [1, 1, 1, 1]


def test_the_contract_itself_cannot_be_made():
    class Silent(Partitioner):
        lookahead: ClassVar = "batch"

        def _reset(self):
            pass

    with pytest.raises(TypeError, match="_route"):
        Silent(n_workers=2)


def test_full_fragment_tables_grow_within_a_batch():
    # 4000 keys over 3 workers each do not fit the first tables, which hold 716 keys and 716 further pairs.
    keys = np.repeat(np.arange(4_000), 3)
    partitioner = Spread(n_workers=5)
    workers = partitioner.route(keys)
    assert workers.tolist() == [i % 5 for i in range(len(keys))]
    assert partitioner.fragments.used.tolist() == [4_000, 8_000]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_decisions_do_not_depend_on_the_cut(size):
    keys, times = np.arange(3_000) % 1_100, np.arange(3_000) / 4
    whole = Lightest(n_workers=3, window=TIMED).route(keys, times)
    partitioner = Lightest(n_workers=3, window=TIMED)
    parts = [partitioner.route(keys[i : i + size], times[i : i + size]) for i in range(0, 3_000, size)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_a_pickle_taken_mid_stream_goes_on_alike():
    keys, times = np.arange(500) % 11, np.arange(500) / 4
    partitioner = Lightest(n_workers=3, window=TIMED)
    partitioner.route(keys[:321], times[:321])
    copy = pickle.loads(pickle.dumps(partitioner))
    rest = partitioner.route(keys[321:], times[321:])
    assert copy.route(keys[321:], times[321:]).tolist() == rest.tolist()
    assert copy.params == partitioner.params


def test_probing_without_a_window_takes_the_totals():
    partitioner = Lightest(n_workers=3)
    truth = Cluster(n_workers=3, window=None)
    partitioner.probe(truth.loads, np.array([5, 0, 2]))
    assert partitioner.loads.load.tolist() == [5, 0, 2]
    assert partitioner.route([1, 1, 1]).tolist() == [1, 1, 1]


def test_probing_with_the_same_window_takes_all_but_the_position():
    window = Window(10, 5, "time")
    truth = Cluster(n_workers=3, window=window)
    truth.observe(np.arange(8), np.array([0, 0, 0, 1, 1, 1, 1, 2], np.int32), np.arange(8.0))
    partitioner = Lightest(n_workers=3, window=window)
    partitioner.route([1, 2], [0.0, 6.0])
    partitioner.probe(truth.loads, truth.total)
    assert partitioner.loads.load.tolist() == [3, 4, 1]
    # The copy is its own: it goes on without the cluster, and the first slide expires from it at time 10.
    assert partitioner.route([1, 2], [7.0, 10.0]).tolist() == [2, 0]
    assert partitioner.loads.clock[POSITION] == 4
    assert truth.loads.load.tolist() == [3, 4, 1]


def test_probing_takes_slides_by_their_age_where_the_rings_stand_at_different_rows():
    # Three slides of 2 tuples. The workers are in slide 3 and have dropped slide 0: by age, the slides hold
    # [1, 0, 0], [0, 0, 2], [0, 2, 0].
    truth = Cluster(n_workers=3, window=Window(6, 2))
    truth.observe(np.arange(7), np.array([0, 0, 1, 1, 2, 2, 0], np.int32))
    partitioner = Lightest(n_workers=3, window=Window(6, 2))
    partitioner.route([1, 2, 3])
    assert partitioner.loads.clock[HEAD] == 1 != truth.loads.clock[HEAD]
    partitioner.probe(truth.loads, truth.total)
    assert partitioner.loads.load.tolist() == [1, 2, 2]
    # Position 3 ends its slide 1: [1, 2, 2] -> 0. Slide 2 drops the oldest probed one: [2, 0, 2] -> 1, 1.
    # Slide 3 drops the next: [2, 2, 0] -> 2, 2. Slide 4 drops the newest, with its own tuple: [0, 2, 2] -> 0.
    assert partitioner.route([1] * 6).tolist() == [0, 1, 1, 2, 2, 0]
    assert partitioner.loads.load.tolist() == [1, 2, 2] == partitioner.loads.ring.sum(axis=0).tolist()
    assert truth.loads.load.tolist() == [1, 2, 2]
    assert truth.loads.ring.tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 2]]


@pytest.mark.parametrize("mine", range(7))
@pytest.mark.parametrize("ahead", range(7))
def test_a_probed_window_ages_like_the_one_it_came_from(mine, ahead):
    # Whatever the two rings' rows: with no tuples of its own since, the partitioner loses what the workers
    # would lose, slide by slide.
    window = Window(8, 2)
    rng = np.random.default_rng(10 * mine + ahead)
    truth = Cluster(n_workers=3, window=window)
    workers = rng.integers(0, 3, 2 * ahead + 2).astype(np.int32)
    truth.observe(np.arange(len(workers)), workers)
    partitioner = Lightest(n_workers=3, window=window)
    partitioner.route(np.arange(2 * mine + 2))
    partitioner.probe(truth.loads, truth.total)
    slides = workers.reshape(-1, 2)[-4:]
    for age in range(5):
        left = slides[age - 4 + len(slides) :] if age > 4 - len(slides) else slides
        assert partitioner.loads.load.tolist() == np.bincount(left.ravel(), minlength=3).tolist()
        for _ in range(2):
            tick(*partitioner.loads[:4], np.empty(0), 0)


def test_probing_with_another_window_is_refused():
    partitioner = Lightest(n_workers=3, window=Window(10, 5))
    other = Cluster(n_workers=3, window=Window(15, 5))
    text = refused(partitioner.probe, other.loads, other.total)
    assert text.startswith("window = Window(size=10, slide=5, by='count'): ")


def test_probing_changes_nothing_where_there_is_no_load():
    partitioner = Modulo(n_workers=3)
    partitioner.probe(Cluster(n_workers=3, window=None).loads, np.array([9, 9, 9]))
    assert partitioner.route([4]).tolist() == [1]
