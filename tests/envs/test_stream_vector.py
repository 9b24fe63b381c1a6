"""The vector form of ``dalton/StreamPartition-v0`` is many single ones."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dalton.envs.dynamics import CHUNK, ROWS
from dalton.envs.stream_partition import StreamPartitionEnv, StreamPartitionVectorEnv

STREAM = "dalton.envs:dalton/StreamPartition-v0"
WINDOW = {"size": 40, "slide": 10}
SMALL = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "window": WINDOW}


def same(one, other):
    """Equal observations, with their types."""
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


VECTOR = {
    # Growth, twice, and refills, in each of several episodes.
    "many keys": (
        {
            "workload": {"name": "uniform", "n_keys": 1_000_000},
            "n_workers": 4,
            "window": {"size": 4_000, "slide": 250},
            "max_tuples": CHUNK + 400,
        },
        CHUNK + 1_500,
    ),
    "only hot": (
        {
            "workload": {"name": "zipf", "n_keys": 50_000, "exponent": 1.3, "n_tuples": CHUNK + 700},
            "n_workers": 4,
            "window": {"size": 1_000, "slide": 250},
            "only_hot": True,
        },
        2_500,
    ),
    "full": (SMALL | {"observation": "full", "max_tuples": 90}, 400),
    "drift, quantum": (
        SMALL
        | {
            "workload": {"name": "swap", "n_hot": 3, "n_keys": 30, "every": 25, "n_tuples": 300},
            "quantum": 3,
            "hot_factor": 2.0,
        },
        700,
    ),
    "time": (
        {
            "workload": {"name": "zipf", "n_keys": 30, "n_tuples": 300, "arrivals": "poisson", "rate": 10.0},
            "window": {"size": 4.0, "slide": 1.0, "by": "time"},
            "n_workers": 4,
            "max_tuples": 110,
            "stats_window": 3.0,
        },
        500,
    ),
    "one tuple": (SMALL | {"max_tuples": 1}, 20),
    "costs": (
        SMALL
        | {
            "workload": {"name": "zipf", "n_keys": 30, "n_tuples": 300, "cost_mean": 0.1, "cost_spread": 0.5},
            "measure": "time",
            "capacity": [1.0, 2.0, 3.0, 4.0],
        },
        700,
    ),
}


@pytest.mark.parametrize("case", VECTOR)
def test_the_vector_form_is_many_single_ones(case):
    params, steps = VECTOR[case]
    vector = gymnasium.make_vec(STREAM, num_envs=3, **params)
    assert isinstance(vector, StreamPartitionVectorEnv)
    singles = [StreamPartitionEnv(**params) for _ in range(3)]
    seen, info = vector.reset(seed=40)
    for e, single in enumerate(singles):
        same({name: part[e] for name, part in seen.items()}, single.reset(seed=40 + e)[0])
    over, ends, slides = [False] * 3, [0] * 3, 0
    for actions in np.random.default_rng(5).integers(4, size=(steps, 3)):
        seen, rewards, terminated, truncated, info = vector.step(actions)
        assert not terminated.any()
        for e, single in enumerate(singles):
            if over[e]:
                # The step after the end begins the next episode: its action is ignored, its reward is 0.
                observation, one = single.reset()
                reward, over[e] = 0.0, False
            else:
                observation, reward, _, over[e], one = single.step(actions[e])
            same({name: part[e] for name, part in seen.items()}, observation)
            assert rewards[e] == reward
            assert truncated[e] == over[e]
            assert ("_slide" in info and info["_slide"][e]) == ("slide" in one)
            if "slide" in one:
                assert {name: values[e] for name, values in info["slide"].items()} == one["slide"]
                slides += 1
            ends[e] += over[e]
    assert min(ends) > 0
    assert slides > 0
    if case == "many keys":
        assert vector.streams.copies.state.table.shape[1] > ROWS


def test_the_vector_form_steps_copies_that_end_at_different_times():
    vector = gymnasium.make_vec(STREAM, num_envs=3, **VECTOR["only hot"][0])
    vector.reset(seed=40)
    truncated = np.array([vector.step(np.zeros(3, np.int64))[3] for _ in range(2_500)])
    firsts = truncated.argmax(axis=0)
    assert truncated.any(axis=0).all()
    assert len(set(firsts.tolist())) == 3


def test_the_vector_form_declares_what_gymnasium_asks_for():
    vector = gymnasium.make_vec(STREAM, num_envs=5, **SMALL, observation="full")
    single = StreamPartitionEnv(**SMALL, observation="full")
    assert vector.num_envs == 5
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vector.single_observation_space == single.observation_space
    assert vector.single_action_space == single.action_space
    observation, _ = vector.reset(seed=0)
    assert observation in vector.observation_space
    observation, rewards, terminated, truncated, _ = vector.step(vector.action_space.sample())
    assert observation in vector.observation_space
    assert (rewards.shape, rewards.dtype) == ((5,), np.float64)
    assert terminated.dtype == truncated.dtype == np.bool_
    assert terminated.shape == truncated.shape == (5,)


def test_observations_of_a_step_are_not_written_to_by_later_steps():
    vector = gymnasium.make_vec(STREAM, num_envs=2, **SMALL)
    single = StreamPartitionEnv(**SMALL)
    for env, action in ((vector, np.array([1, 2])), (single, 1)):
        first, _ = env.reset(seed=0)
        second = env.step(action)[0]
        copies = [{name: part.copy() for name, part in o.items()} for o in (first, second)]
        for _ in range(30):
            env.step(action)
        same(first, copies[0])
        same(second, copies[1])
        assert not np.array_equal(first["load"], second["load"])


def test_copies_have_different_streams(drawn_keys):
    vector = StreamPartitionVectorEnv(4, **SMALL)
    vector.reset(seed=0)
    first = vector.streams.copies.state.chunk[:, 0, :400]
    assert len({tuple(keys) for keys in first.tolist()}) == 4
    for e in range(4):
        np.testing.assert_array_equal(first[e], drawn_keys(SMALL["workload"], e))


def test_copies_take_a_list_of_seeds(drawn_keys):
    vector = StreamPartitionVectorEnv(3, **SMALL)
    vector.reset(seed=[7, 7, 9])
    keys = vector.streams.copies.state.chunk[:, 0, :400]
    np.testing.assert_array_equal(keys[0], keys[1])
    np.testing.assert_array_equal(keys[0], drawn_keys(SMALL["workload"], 7))
    np.testing.assert_array_equal(keys[2], drawn_keys(SMALL["workload"], 9))


def test_reset_of_the_vector_form_without_a_seed_goes_on_with_its_generators():
    one, other = (StreamPartitionVectorEnv(2, **SMALL) for _ in range(2))
    single = StreamPartitionEnv(**SMALL)
    for env in (one, other, single):
        env.reset(seed=6)
        env.reset()
    keys = [env.streams.copies.state.chunk[:, 0, :400] for env in (one, other, single)]
    np.testing.assert_array_equal(keys[0], keys[1])
    np.testing.assert_array_equal(keys[0][0], keys[2][0])
