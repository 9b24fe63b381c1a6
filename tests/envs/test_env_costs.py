"""Environments whose load is time over capacity: parity with the agent, observations, Gymnasium's checks."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dalton.envs.micro_batch import MicroBatchPartitionEnv
from dalton.envs.stream_partition import SettingError, StreamPartitionEnv
from dalton.envs.window import TICKS, Window
from dalton.envs.workloads import make_workload
from dalton.experiments import make

STREAM = "dalton.envs:dalton/StreamPartition-v0"
MICRO = "dalton.envs:dalton/MicroBatchPartition-v0"
CAPACITY = [1.0, 2.0, 0.5, 1.0, 4.0]
COSTLY = {
    "name": "zipf",
    "n_keys": 60,
    "exponent": 1.3,
    "n_tuples": 900,
    "cost_mean": 0.004,
    "cost_spread": 0.9,
}
TIMED = {
    "workload": COSTLY,
    "n_workers": 5,
    "window": {"size": 150, "slide": 50},
    "measure": "time",
    "capacity": CAPACITY,
}
BATCHED = {
    "workload": COSTLY,
    "n_workers": 5,
    "batch_size": 90,
    "window_batches": 3,
    "measure": "time",
    "capacity": CAPACITY,
}


@pytest.fixture
def drawn():
    """The tuples of the first episode after ``reset(seed=seed)``."""

    def draw(spec, seed):
        workload = make_workload(spec, seed=int(np.random.default_rng(seed).integers(2**31)))
        return next(workload.chunks(workload.n_tuples))

    return draw


CHECKED = {
    "stream": (STREAM, TIMED),
    "stream, full, only hot": (STREAM, TIMED | {"observation": "full", "only_hot": True}),
    "stream without costs": (STREAM, TIMED | {"workload": "zipf", "capacity": None}),
    "stream, rendered": (STREAM, TIMED | {"render_mode": "rgb_array"}),
    "batches": (MICRO, BATCHED),
    "batches without costs": (MICRO, BATCHED | {"workload": "zipf", "capacity": None, "batch_size": 1000}),
    "batches, rendered": (MICRO, BATCHED | {"render_mode": "ansi"}),
}


@pytest.mark.parametrize("case", CHECKED)
def test_gymnasium_checks_pass_without_a_warning(case):
    name, params = CHECKED[case]
    check_env(gymnasium.make(name, **params).unwrapped)


@pytest.mark.parametrize(("name", "params"), [(STREAM, TIMED), (MICRO, BATCHED)])
def test_load_in_tuples_does_not_look_at_costs(name, params):
    blind = {key: value for key, value in params.items() if key not in ("measure", "capacity")}
    plain = {key: value for key, value in COSTLY.items() if not key.startswith("cost")}
    one, other = gymnasium.make(name, **blind), gymnasium.make(name, **(blind | {"workload": plain}))
    assert one.observation_space == other.observation_space
    assert not {"cost", "costs", "capacity"} & set(one.observation_space.spaces)
    one.reset(seed=3), other.reset(seed=3)
    one.action_space.seed(0)
    for _ in range(9):
        action = one.action_space.sample()
        np.testing.assert_equal(one.step(action), other.step(action))


@pytest.mark.parametrize("only_hot", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_agents_decisions_have_the_same_loads_and_rewards(seed, only_hot, drawn):
    chunk = drawn(COSTLY, seed)
    agent = make("dalton", n_workers=5, seed=seed, window=Window(150, 50), statistics="exact", epsilon=0.3)
    agent.measure("time", CAPACITY)
    workers = agent.route(chunk.keys, None, chunk.costs)
    hot = ~np.isnan(agent.rewards)
    asked = np.flatnonzero(hot) if only_hot else np.arange(len(chunk.keys))
    assert 0 < hot.sum() < len(chunk.keys)
    env = StreamPartitionEnv(**TIMED, hash_seed=seed, only_hot=only_hot)
    _, info = env.reset(seed=seed)
    for i in asked:
        assert info["key"] == chunk.keys[i]
        _, reward, _, over, info = env.step(workers[i])
        assert over == (i == asked[-1])
        if hot[i]:
            assert reward == agent.rewards[i]
    np.testing.assert_array_equal(env.copies.state.ring[0, 0, :5], agent.loads.load)


def test_what_is_seen_by_definition(drawn):
    chunk = drawn(COSTLY, 7)
    env = StreamPartitionEnv(**TIMED)
    seen, _ = env.reset(seed=7)
    workers = np.random.default_rng(0).integers(0, 5, len(chunk.keys))
    ticks = (chunk.costs * TICKS / np.array(CAPACITY)[workers] + 0.5).astype(np.int64)
    metrics = {}
    for i in range(len(chunk.keys)):
        first = max(0, (i // 50 - 2) * 50)
        load = np.bincount(workers[first:i], ticks[first:i], minlength=5)
        np.testing.assert_allclose(seen["load"], load / max(load.mean(), 1.0), rtol=1e-6)
        mean = chunk.costs[first:i].mean() if i > first else chunk.costs[i]
        np.testing.assert_allclose(seen["cost"], [chunk.costs[i] / (chunk.costs[i] + mean)], rtol=1e-6)
        np.testing.assert_array_equal(seen["capacity"], np.float32(CAPACITY) / np.float32(4.0))
        seen, _, _, _, info = env.step(workers[i])
        if "slide" in info:
            metrics[i] = info["slide"]
    assert len(metrics) == 18
    for i, row in metrics.items():
        # The slide had ended before the tuple that is seen now.
        window = slice(max(0, (i // 50 - 2) * 50), i + 1)
        load = np.bincount(workers[window], ticks[window], minlength=5)
        assert row["max_over_mean"] == pytest.approx(load.max() / load.mean())
        best = TICKS * chunk.costs[window].sum() / sum(CAPACITY)
        assert row["regret_load"] == pytest.approx(load.max() / best - 1, rel=1e-6)
        assert row["regret_load"] >= 0


def test_equal_costs_and_capacities_change_no_reward_nor_load():
    # A prime number of nanoseconds: no power of two that a float would scale without rounding.
    same = COSTLY | {"cost_spread": 0.0, "cost_mean": 1_000_003e-9}
    params = TIMED | {"workload": same, "capacity": None}
    timed, blind = StreamPartitionEnv(**params), StreamPartitionEnv(**(params | {"measure": "tuples"}))
    one, other = timed.reset(seed=1)[0], blind.reset(seed=1)[0]
    for action in np.random.default_rng(2).integers(0, 5, 900):
        np.testing.assert_allclose(one["load"], other["load"], rtol=1e-6)
        one, reward, _, _, _ = timed.step(action)
        other, wanted, _, _, _ = blind.step(action)
        assert reward == wanted


def test_a_micro_batch_by_definition(drawn):
    chunk = drawn(COSTLY, 4)
    env = MicroBatchPartitionEnv(**BATCHED, hot_factor=1.0)
    seen, info = env.reset(seed=4)
    keys, costs = chunk.keys[:90], chunk.costs[:90]
    np.testing.assert_array_equal(seen["capacity"], np.float32(CAPACITY) / np.float32(4.0))
    for row, key in enumerate(info["keys"]):
        own = costs[keys == key].mean()
        assert seen["costs"][row] == pytest.approx(own / (own + costs.mean()), rel=1e-6)
    assert not seen["costs"][len(info["keys"]) :].any()
    homes = env.batches.homes
    needed = costs / np.array(CAPACITY)[homes]
    cold = ~np.isin(keys, info["keys"])
    assert 0 < cold.sum() < 90
    tail = np.bincount(homes[cold], needed[cold], minlength=5) / (needed.sum() / 5)
    np.testing.assert_allclose(seen["tail"], tail, rtol=1e-6)
    # All hashed: the loads are what was needed.
    _, _, _, _, info = env.step(np.zeros(env.shape, np.float32))
    load = env.batches.cluster.measured[0].load / TICKS
    np.testing.assert_allclose(load, np.bincount(homes, needed, minlength=5), atol=1e-7)
    best = costs.sum() / sum(CAPACITY)
    assert info["slide"]["regret_load"] == pytest.approx(load.max() / best - 1, rel=1e-5)


def test_a_micro_batch_with_equal_costs_has_the_rewards_of_tuples():
    same = COSTLY | {"cost_spread": 0.0, "cost_mean": 1_000_003e-9}
    params = BATCHED | {"workload": same, "capacity": None}
    timed, blind = (
        MicroBatchPartitionEnv(**params),
        MicroBatchPartitionEnv(**(params | {"measure": "tuples"})),
    )
    timed.reset(seed=1), blind.reset(seed=1)
    rng = np.random.default_rng(3)
    for _ in range(10):
        action = rng.random(timed.shape)
        assert timed.step(action)[1] == blind.step(action)[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"measure": "seconds"}, "measure = 'seconds': unknown; known: time, tuples"),
        ({"capacity": [1.0]}, "capacity = [1.0]: expected 5 numbers > 0, one per worker"),
        ({"quantum": 2}, "quantum = 2: expected 1 where load is time, a quantum is of tuples"),
    ],
)
def test_mistakes_are_one_clear_line(more, message):
    with pytest.raises(SettingError) as caught:
        StreamPartitionEnv(**(TIMED | more))
    assert str(caught.value) == message
    if "quantum" not in more:
        with pytest.raises(SettingError) as caught:
            MicroBatchPartitionEnv(**(BATCHED | more))
        assert str(caught.value) == message
