"""What ``dalton/StreamPartition-v0`` and its vector form refuse, in one line, and without an effect."""

import math

import gymnasium
import numpy as np
import pytest

from dalton.envs.dynamics import CHUNK
from dalton.envs.errors import ConfigError
from dalton.envs.stream_partition import StreamPartitionEnv, StreamPartitionVectorEnv
from dalton.envs.workloads import WORKLOADS

STREAM = "dalton.envs:dalton/StreamPartition-v0"
WINDOW = {"size": 40, "slide": 10}
SMALL = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "window": WINDOW}


def one_line(caught):
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("env", [StreamPartitionEnv(**SMALL), StreamPartitionVectorEnv(2, **SMALL)])
def test_step_before_reset_is_refused(env):
    with pytest.raises(gymnasium.error.ResetNeeded) as caught:
        env.step(0 if isinstance(env, StreamPartitionEnv) else np.zeros(2, np.int64))
    one_line(caught)


@pytest.mark.parametrize("only_hot", [False, True])
def test_step_after_the_end_is_refused_until_the_next_reset(only_hot):
    env = StreamPartitionEnv(**SMALL, max_tuples=50, only_hot=only_hot)
    env.reset(seed=0)
    while not env.step(1)[3]:
        pass
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded) as caught:
            env.step(1)
        one_line(caught)
    env.reset()
    assert env.step(1)[3] is False


BAD_ACTIONS = {
    "too large": 4,
    "negative": -1,
    "very large": 2**63,
    "very negative": -(2**70),
    "float": 1.0,
    "NaN": math.nan,
    "text": "1",
    "None": None,
    "list": [1],
    "array": np.array([1]),
    "float array": np.array(1.0),
    "numpy bool": np.True_,
    "slice": slice(1),
    "numpy out of range": np.int32(4),
}


def everything(env):
    copies = env.streams.copies
    return (
        [array.copy() for array in copies.state if array is not None],
        copies.counted.copy(),
        dict(copies.ended),
    )


@pytest.mark.parametrize("only_hot", [False, True])
@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_a_refused_action_changes_nothing(case, only_hot):
    one, other = (StreamPartitionEnv(**SMALL, only_hot=only_hot) for _ in range(2))
    np.testing.assert_equal(one.reset(seed=1), other.reset(seed=1))
    for i in range(45):
        if i % 11 == 0 or i == 9:  # among others just before the end of a slide
            before = everything(one)
            with pytest.raises(gymnasium.error.InvalidAction, match=r"^action = .*from 0 to 3$") as caught:
                one.step(BAD_ACTIONS[case])
            one_line(caught)
            np.testing.assert_equal(everything(one), before)
        np.testing.assert_equal(one.step(i % 4), other.step(i % 4))


@pytest.mark.parametrize("action", [True, np.int8(1), np.uint64(1), np.array(1)], ids=repr)
def test_what_python_takes_for_an_index_is_an_action(action, loads_of):
    one, other = (StreamPartitionEnv(**SMALL) for _ in range(2))
    one.reset(seed=1)
    other.reset(seed=1)
    np.testing.assert_equal(one.step(action), other.step(1))
    assert loads_of(one) == [0, 1, 0, 0]


BAD_VECTORS = {
    "too few": np.zeros(2, np.int64),
    "too many": np.zeros(4, np.int64),
    "table": np.zeros((3, 1), np.int64),
    "one number": 1,
    "floats": np.zeros(3),
    "bools": np.zeros(3, np.bool_),
    "texts": np.array(["0", "1", "2"]),
    "objects": np.array([0, 1, None]),
    "None": None,
    "ragged": [[0], [1, 2], [3]],
    "too large": np.array([0, 4, 1]),
    "negative": np.array([0, 1, -1]),
    "unsigned and huge": np.array([0, 2**64 - 1, 1], np.uint64),
}


@pytest.mark.parametrize("case", BAD_VECTORS)
def test_refused_actions_change_nothing_in_any_copy(case):
    # Episodes of 7 tuples: some of the refusals are where copies are to begin anew.
    one, other = (StreamPartitionVectorEnv(3, **SMALL, max_tuples=7) for _ in range(2))
    np.testing.assert_equal(one.reset(seed=1), other.reset(seed=1))
    for i in range(40):
        with pytest.raises(gymnasium.error.InvalidAction, match=r"^actions? .*expected") as caught:
            one.step(BAD_VECTORS[case])
        one_line(caught)
        actions = np.array([i, i + 1, i * i]) % 4
        np.testing.assert_equal(one.step(actions), other.step(actions))


@pytest.mark.parametrize("actions", [[0, 1, 2], (0, 1, 2), np.array([0, 1, 2], np.uint8)], ids=repr)
def test_whole_numbers_of_any_kind_are_actions(actions):
    one, other = (StreamPartitionVectorEnv(3, **SMALL) for _ in range(2))
    one.reset(seed=1)
    other.reset(seed=1)
    np.testing.assert_equal(one.step(actions), other.step(np.array([0, 1, 2])))


@pytest.mark.parametrize("vector", [False, True])
def test_a_stream_that_breaks_is_not_blamed_on_the_action(vector, recorded):
    class Breaking(recorded):
        """A stream that cannot be read to its end."""

        def _keys(self, lo, hi):
            if lo:
                raise ConfigError("line 4097: expected a key")
            return super()._keys(lo, hi)

    params = {"workload": Breaking(keys=np.zeros(CHUNK + 10)), "n_workers": 2, "window": WINDOW}
    env = StreamPartitionVectorEnv(1, **params) if vector else StreamPartitionEnv(**params)
    env.reset()
    action = np.zeros(1, np.int64) if vector else 0
    for _ in range(CHUNK - 1):
        env.step(action)
    with pytest.raises(ConfigError, match=r"^line 4097: expected a key$"):
        env.step(action)


NAN = math.nan
STAMPED = {"name": "zipf", "n_keys": 30, "n_tuples": 300, "arrivals": "poisson", "rate": 10.0}
BAD = {
    "workload": ({"workload": "zopf"}, r"^workload = 'zopf': unknown .did you mean 'zipf'.*known: "),
    "workload None": ({"workload": None}, "^workload = None: expected a name"),
    "workload parameter": ({"workload": {"name": "zipf", "n_kys": 3}}, "n_kys.*n_keys"),
    "workload value": ({"workload": {"name": "zipf", "n_keys": 0}}, "^n_keys = 0: expected a whole"),
    "no workers": ({"n_workers": 0}, "^n_workers = 0: expected a whole number >= 1"),
    "workers negative": ({"n_workers": -2}, "^n_workers = -2: "),
    "workers a fraction": ({"n_workers": 2.5}, "^n_workers = 2.5: "),
    "workers text": ({"n_workers": "4"}, "^n_workers = '4': "),
    "workers bool": ({"n_workers": True}, "^n_workers = True: "),
    "workers None": ({"n_workers": None}, "^n_workers = None: "),
    "no window": ({"window": None}, "^window = None: "),
    "window a number": ({"window": 40}, "^window = 40: expected the field size"),
    "window of wrong fields": ({"window": {"length": 40}}, "^window = .*expected the field size"),
    "slide not in size": ({"window": {"size": 10, "slide": 3}}, "^window.size = 10: .*window.slide = 3"),
    "window empty": ({"window": {"size": 0}}, "^window.size = 0: "),
    "window unit": ({"window": {"size": 10, "by": "tuple"}}, "^window.by = 'tuple': unknown"),
    "window in time": ({"window": {"size": 4.0, "by": "time"}}, "^window.by = 'time': .*times"),
    "observation": (
        {"observation": "ful"},
        "^observation = 'ful': unknown .did you mean 'full'.*full, local",
    ),
    "hot factor zero": ({"hot_factor": 0}, "^hot_factor = 0: expected a number > 0"),
    "hot factor NaN": ({"hot_factor": NAN}, "^hot_factor = nan: "),
    "hot factor infinite": ({"hot_factor": math.inf}, "^hot_factor = inf: "),
    "stats window zero": ({"stats_window": 0}, "^stats_window = 0: "),
    "stats window text": ({"stats_window": "9"}, "^stats_window = '9': "),
    "p1 negative": ({"p1": -0.1}, "^p1 = -0.1: expected a number from 0 to 1"),
    "p1 above one": ({"p1": 1.1}, "^p1 = 1.1: "),
    "p1 NaN": ({"p1": NAN}, "^p1 = nan: "),
    "quantum zero": ({"quantum": 0}, "^quantum = 0: expected a whole number >= 1"),
    "quantum a fraction": ({"quantum": 1.5}, "^quantum = 1.5: "),
    "no tuples": ({"max_tuples": 0}, "^max_tuples = 0: expected a whole number >= 1"),
    "tuples a fraction": ({"max_tuples": 10.5}, "^max_tuples = 10.5: "),
    "no windows": ({"max_windows": 0}, "^max_windows = 0: expected a whole number >= 1"),
    "windows in time": (
        {"workload": STAMPED, "window": {"size": 4.0, "slide": 1.0, "by": "time"}, "max_windows": 3},
        "^max_windows = 3: .*max_tuples",
    ),
    "hash seed": ({"hash_seed": -1}, "^hash_seed = -1: expected a whole number >= 0"),
    "render mode": ({"render_mode": "human"}, "^render_mode = 'human': expected "),
}


@pytest.mark.parametrize("form", [StreamPartitionEnv, StreamPartitionVectorEnv])
@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_one_clear_line(case, form):
    given, message = BAD[case]
    with pytest.raises(gymnasium.error.Error, match=message) as caught:
        form(**(SMALL | given))
    assert isinstance(caught.value, ConfigError)
    one_line(caught)


def test_an_unknown_workload_names_the_known_ones():
    for call in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(gymnasium.error.Error) as caught:
            call(STREAM, workload="nothing like it")
        assert isinstance(caught.value, ConfigError)
        assert str(caught.value).endswith("known: " + ", ".join(sorted(WORKLOADS)))
        one_line(caught)


def test_the_vector_form_draws_no_pictures():
    for mode in ("ansi", "rgb_array"):
        with pytest.raises(gymnasium.error.Error, match=f"^render_mode = '{mode}': ") as caught:
            StreamPartitionVectorEnv(2, **SMALL, render_mode=mode)
        one_line(caught)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", None], ids=repr)
def test_a_bad_number_of_copies_is_refused(count):
    with pytest.raises(gymnasium.error.Error, match=r"^num_envs = ") as caught:
        StreamPartitionVectorEnv(count, **SMALL)
    one_line(caught)


@pytest.mark.parametrize("seed", [-1, 1.5, "7"], ids=repr)
@pytest.mark.parametrize("form", [StreamPartitionEnv, StreamPartitionVectorEnv])
def test_a_bad_seed_is_refused_as_gymnasium_does(form, seed):
    with pytest.raises(gymnasium.error.Error) as caught:
        form(**SMALL).reset(seed=seed)
    one_line(caught)


def test_seeds_are_one_per_copy():
    with pytest.raises(
        gymnasium.error.Error, match=r"^seed has 2 values: expected one per copy, 3"
    ) as caught:
        StreamPartitionVectorEnv(3, **SMALL).reset(seed=[1, 2])
    one_line(caught)


@pytest.mark.parametrize("n", [4.0, np.int64(4), np.float32(4)], ids=repr)
def test_a_whole_number_of_workers_may_be_of_any_kind(n):
    one, other = (StreamPartitionEnv(**(SMALL | {"n_workers": workers})) for workers in (n, 4))
    np.testing.assert_equal(one.reset(seed=0), other.reset(seed=0))
    np.testing.assert_equal(one.step(3), other.step(3))
