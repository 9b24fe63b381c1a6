"""``dalton/StreamPartition-v0``: registration, Gymnasium's checks, seeds, the end of an episode, render."""

import importlib
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import dalton.envs
from dalton.envs.dynamics import CHUNK
from dalton.envs.hashing import member, worker_of
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.window import POSITION, SLIDE

STREAM = "dalton.envs:dalton/StreamPartition-v0"
MICRO = "dalton.envs:dalton/MicroBatchPartition-v0"
WINDOW = {"size": 40, "slide": 10}
SMALL = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "window": WINDOW}


# Registration and Gymnasium's own checks


FRESH = f"""
import sys
import gymnasium
for name in ({STREAM!r}, {MICRO!r}):
    assert not [m for m in sys.modules if m.startswith("dalton")] or name == {MICRO!r}
    one = gymnasium.make(name)
    many = gymnasium.make_vec(name, num_envs=4)
    for env in (one, many):
        observation, _ = env.reset(seed=1)
        assert observation in env.observation_space
        observation, reward, *_ = env.step(env.action_space.sample())
        assert observation in env.observation_space
    print(type(one.unwrapped).__name__, type(many.unwrapped).__name__, len(reward))
"""


def test_a_fresh_process_makes_both_environments_by_id_alone():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "StreamPartitionEnv StreamPartitionVectorEnv 4",
        "MicroBatchPartitionEnv SyncVectorEnv 4",
    ]


def test_registering_twice_is_silent():
    before = dict(gymnasium.registry)
    importlib.reload(dalton.envs)
    assert dict(gymnasium.registry) == before
    assert {"dalton/StreamPartition-v0", "dalton/MicroBatchPartition-v0"} <= before.keys()


ALTERNATE = {
    "name": "alternate",
    "first": {"name": "uniform", "n_keys": 30},
    "second": {"name": "zipf", "n_keys": 30},
    "every": 25,
    "n_tuples": 300,
}
SWAP = {"name": "swap", "n_hot": 3, "n_keys": 30, "every": 25, "n_tuples": 300}
TIMED = {
    "workload": {"name": "zipf", "n_keys": 30, "n_tuples": 300, "arrivals": "poisson", "rate": 10.0},
    "window": {"size": 4.0, "slide": 1.0, "by": "time"},
    "n_workers": 4,
}
CHECKED = {
    "default": {},
    "small": SMALL,
    "full": SMALL | {"observation": "full"},
    "only hot": SMALL | {"only_hot": True},
    "full, only hot": SMALL | {"observation": "full", "only_hot": True},
    "ansi": SMALL | {"render_mode": "ansi"},
    "rgb": SMALL | {"render_mode": "rgb_array"},
    "alternate": SMALL | {"workload": ALTERNATE},
    "swap": SMALL | {"workload": SWAP, "observation": "full"},
    "time": TIMED,
    "time, only hot": TIMED | {"only_hot": True},
    "one worker": SMALL | {"n_workers": 1},
    "quantum": SMALL | {"quantum": 7},
}


@pytest.mark.parametrize("case", CHECKED)
def test_gymnasium_checks_pass_without_a_warning(case):
    env = gymnasium.make(STREAM, **CHECKED[case])
    check_env(env.unwrapped)


MICRO_SMALL = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "batch_size": 50}
MICRO_CHECKED = {
    "default": {},
    "small": MICRO_SMALL,
    "ansi": MICRO_SMALL | {"render_mode": "ansi"},
    "rgb": MICRO_SMALL | {"render_mode": "rgb_array"},
    "alternate": MICRO_SMALL | {"workload": ALTERNATE},
    "swap": MICRO_SMALL | {"workload": SWAP},
    "one batch": MICRO_SMALL | {"window_batches": 1},
}


@pytest.mark.parametrize("case", MICRO_CHECKED)
def test_gymnasium_checks_of_the_micro_batch_form_pass_without_a_warning(case):
    env = gymnasium.make(MICRO, **MICRO_CHECKED[case])
    check_env(env.unwrapped)


@pytest.mark.parametrize("case", ["small", "full", "only hot", "time", "swap"])
def test_every_observation_of_an_episode_is_in_the_space(case):
    env = gymnasium.make(STREAM, **CHECKED[case])
    observation, _ = env.reset(seed=3)
    rng, over = np.random.default_rng(0), False
    while not over:
        assert observation in env.observation_space
        observation, reward, terminated, over, _ = env.step(int(rng.integers(4)))
        assert -1.0 <= reward <= 1.0
        assert not terminated
    assert observation in env.observation_space


# Seeds


def trajectory(env, seed, steps=300):
    """Everything an environment returns, for actions that depend on nothing."""
    rows = [env.reset(seed=seed)]
    for i in range(steps):
        rows.append(env.step(i * i % 4))
        if rows[-1][3]:
            rows.append(env.reset())
    return rows


@pytest.mark.parametrize("case", ["small", "full", "only hot", "swap", "alternate", "time"])
def test_same_seed_same_trajectory(case):
    one, other = (StreamPartitionEnv(**CHECKED[case]) for _ in range(2))
    wanted = trajectory(one, 8)
    np.testing.assert_equal(trajectory(other, 8), wanted)
    # Nothing of an earlier episode is left.
    np.testing.assert_equal(trajectory(one, 8), wanted)
    other_keys = [row[-1]["key"] for row in trajectory(other, 9)]
    assert other_keys != [row[-1]["key"] for row in wanted]


def test_a_reset_in_mid_episode_leaves_nothing_behind():
    one, other = (StreamPartitionEnv(**SMALL, observation="full") for _ in range(2))
    trajectory(one, 3, steps=137)
    np.testing.assert_equal(trajectory(one, 4), trajectory(other, 4))


def keys_of_episode(env, steps=60):
    return [env.step(0)[4]["key"] for _ in range(steps)]


def test_reset_without_a_seed_goes_on_with_the_generator():
    one, other = (StreamPartitionEnv(**SMALL) for _ in range(2))
    episodes = []
    for env in (one, other):
        env.reset(seed=6)
        mine = [keys_of_episode(env)]
        for _ in range(2):
            env.reset()
            mine.append(keys_of_episode(env))
        episodes.append(mine)
    assert episodes[0] == episodes[1]
    assert len({tuple(keys) for keys in episodes[0]}) == 3


def test_streams_without_a_seed_are_the_same_in_every_episode(recorded):
    env = StreamPartitionEnv(workload=recorded(keys=[3, 1, 4, 1, 5, 9]), n_workers=2, window=WINDOW)
    for seed in (0, 1, None):
        keys = [env.reset(seed=seed)[1]["key"], *(env.step(0)[4]["key"] for _ in range(5))]
        assert keys == [3, 1, 4, 1, 5, 9]


# The end of an episode


ENDS = {
    "tuples": ({"max_tuples": 50}, 50),
    "windows": ({"max_windows": 3}, 120),
    "stream": ({}, 400),
    "tuples beyond the stream": ({"max_tuples": 1_000}, 400),
    "windows beyond the stream": ({"max_windows": 11}, 400),
    "both, tuples first": ({"max_tuples": 70, "max_windows": 2}, 70),
    "both, windows first": ({"max_tuples": 90, "max_windows": 2}, 80),
    "chunk": ({"workload": {"name": "zipf", "n_tuples": CHUNK, "n_keys": 9}}, CHUNK),
    "chunk and one": ({"workload": {"name": "zipf", "n_tuples": CHUNK + 1, "n_keys": 9}}, CHUNK + 1),
    "tuples of a chunk": ({"max_tuples": CHUNK, "workload": {"name": "zipf", "n_keys": 9}}, CHUNK),
    "tuples in time": (TIMED | {"max_tuples": 33}, 33),
    "stream in time": (TIMED, 300),
}


@pytest.mark.parametrize("only_hot", [False, True])
@pytest.mark.parametrize("case", ENDS)
def test_an_episode_is_truncated_at_its_limit(case, only_hot):
    more, tuples = ENDS[case]
    env = StreamPartitionEnv(**(SMALL | more), only_hot=only_hot)
    for seed in (0, None):
        _, info = env.reset(seed=seed)
        steps, truncated, last = 0, False, info.get("slide")
        while not truncated:
            _, _, terminated, truncated, info = env.step(steps % 4)
            last = info.get("slide", last)
            assert terminated is False
            steps += 1
        assert env.copies.state.ints[0, POSITION] == tuples
        assert (steps < tuples) if only_hot else (steps == tuples)
        # The metrics of the last slide come with the last tuple: at once, if there is nothing to decide.
        assert last["slide"] == env.copies.state.ints[0, SLIDE]


def test_an_episode_without_a_decision_ends_with_the_first_step(recorded, loads_of):
    env = StreamPartitionEnv(workload=recorded(keys=range(50)), n_workers=2, window=WINDOW, only_hot=True)
    observation, _ = env.reset()
    assert observation["hot"].tolist() == [0]
    _, reward, terminated, truncated, _ = env.step(1)
    assert (reward, terminated, truncated) == (0.0, False, True)
    hashed = [worker_of(np.int64(key), member(0), 2) for key in range(20 - 10, 50)]
    assert loads_of(env) == np.bincount(hashed, minlength=2).tolist()


def test_render_shows_the_loads_and_the_present_key():
    env = gymnasium.make(STREAM, **SMALL, render_mode="ansi")
    env.reset(seed=0)
    hot = set()
    for worker in (2, 2, 1, *[0] * 30):
        observation, *_, info = env.step(worker)
        title, bars, marks = env.render().splitlines()
        kind = "hot" if observation["hot"][0] else "cold"
        hot.add(kind)
        assert title == f"key {info['key']} ({kind})"
        assert len(bars.split("  max/mean ")[0]) == 4
        assert marks == "".join(".^"[bit] for bit in observation["fragments"])
        ratio = float(observation["load"].max())
        assert bars.endswith(f"  max/mean {ratio:.2f}")
    assert hot == {"hot", "cold"}
    assert StreamPartitionEnv(**SMALL).render() is None
