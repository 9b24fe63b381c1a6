"""``dalton/StreamPartition-v0`` has the same consequences as the agent, for the agent's decisions."""

import math

import numpy as np
import pytest

from dalton.envs.dynamics import CHUNK, ROWS
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.window import BASE, POSITION, SLIDE, Window
from dalton.experiments import make


class Run:
    """The agent's decisions about a stream, in one batch."""

    def __init__(self, keys, times, params):
        self.keys, self.times = keys, times
        self.agent = make("dalton", statistics="exact", **params)
        self.workers = self.agent.route(keys, times)
        self.rewards = self.agent.rewards[: len(keys)].copy()
        self.hot = ~np.isnan(self.rewards)
        self.params = params
        self.window = Window.of(params["window"])

    def slide_of(self, i):
        now = i if self.window.by == "count" else self.times[i]
        return math.floor(now / self.window.slide)


def environment(run, workload, **more):
    params = {k: v for k, v in run.params.items() if k not in ("seed", "epsilon", "explore")}
    return StreamPartitionEnv(workload=workload, hash_seed=run.params["seed"], **params, **more)


def held_by_agent(agent):
    """Worker sets of the agent's rows of keys that are hot."""
    t, clock = agent.qtable, agent.loads.clock
    oldest = clock[SLIDE] - clock[BASE] - t.ages.shape[1]
    held = {}
    for row in np.flatnonzero(t.until >= agent.span[0]):
        held[int(t.keys[row])] = (t.stamps[row] > oldest).tolist()
        assert sum(held[int(t.keys[row])]) == t.fragments[row]
    return held


@pytest.fixture
def assert_replayed(loads_of):
    """Every decision of the agent, taken in the environment, has the same consequences."""

    def replay(run, env, seed=None):
        m, cut = len(run.keys), make("dalton", statistics="exact", **run.params)
        points = [i for i in range(1, m) if run.slide_of(i) == run.slide_of(i - 1)][:: max(1, m // 9)]
        assert points
        observation, info = env.reset(seed=seed)
        routed, compared = 0, 0
        for i in range(m):
            assert info["key"] == run.keys[i]
            assert observation["hot"].tolist() == [run.hot[i]]
            # A tuple of a cold key goes where it is hashed to.
            assert run.hot[i] or info["hashed"] == run.workers[i]
            if i in points:
                times = None if run.times is None else run.times[routed:i]
                cut.route(run.keys[routed:i], times)
                routed = i
                assert loads_of(env) == cut.loads.load.tolist()
                for key, held in held_by_agent(cut).items():
                    assert env.copies.holders(0, key).tolist() == held
                    compared += sum(held)
            before = observation["fragments"].tolist()
            observation, reward, _, over, info = env.step(run.workers[i])
            if run.hot[i]:
                assert reward == run.rewards[i]
            assert over == (i == m - 1)
            assert len(before) == env.n
        assert loads_of(env) == run.agent.loads.load.tolist()
        final = held_by_agent(run.agent)
        for key, held in final.items():
            assert env.copies.holders(0, key).tolist() == held
        if run.keys[-1] in final:
            assert observation["fragments"].tolist() == final[run.keys[-1]]
        assert compared > 0

    return replay


COUNT_WINDOWS = [Window(40, 10), Window(60, 60), Window(65, 13), Window(400, 100)]


@pytest.mark.parametrize("window", COUNT_WINDOWS, ids=str)
@pytest.mark.parametrize(("n", "factor"), [(1, 4.0), (2, 3.0), (5, 1.0), (16, 0.3)])
def test_parity_with_the_agent_by_count(n, factor, window, drawn_keys, assert_replayed):
    seed = n + 3
    spec = {"name": "zipf", "n_keys": 200, "exponent": 1.3, "n_tuples": 1_500}
    keys = drawn_keys(spec, seed)
    params = {"n_workers": n, "window": window, "seed": seed, "epsilon": 0.3, "hot_factor": factor}
    run = Run(keys, None, params)
    assert 0 < run.hot.sum() < len(keys)
    assert_replayed(run, environment(run, spec), seed)


PARAMS = {
    "hot factor 3": {"hot_factor": 3.0},
    "hot factor 0.4": {"hot_factor": 0.4},
    "balance": {"p1": 1.0},
    "aggregation": {"p1": 0.0},
    "uneven weights": {"p1": 0.3},
    "least loaded": {"explore": "least_loaded", "epsilon": 0.5},
    "longer statistics": {"stats_window": 75},
    "shorter statistics": {"stats_window": 17},
}


@pytest.mark.parametrize("case", PARAMS)
def test_parity_with_the_agent_for_other_parameters(case, drawn_keys, assert_replayed):
    spec = {"name": "swap", "n_hot": 4, "n_keys": 150, "exponent": 1.4, "every": 130, "n_tuples": 1_200}
    keys = drawn_keys(spec, 11)
    params = {"n_workers": 6, "window": Window(150, 50), "seed": 2, "epsilon": 0.2} | PARAMS[case]
    run = Run(keys, None, params)
    assert 0 < run.hot.sum() < len(keys)
    assert_replayed(run, environment(run, spec), 11)


@pytest.mark.parametrize(("window", "grows"), [(Window(8_000, 500), True), (Window(2_000, 500), False)])
def test_parity_with_the_agent_when_tables_fill_and_chunks_end(window, grows, drawn_keys, assert_replayed):
    spec = {"name": "zipf", "n_keys": 200_000, "exponent": 1.0, "n_tuples": 2 * CHUNK + 500}
    keys = drawn_keys(spec, 4)
    assert len(set(keys.tolist())) > 0.7 * ROWS
    run = Run(keys, None, {"n_workers": 32, "window": window, "seed": 0})
    assert 0 < run.hot.sum() < len(keys)
    env = environment(run, spec)
    assert_replayed(run, env, 4)
    # Keys that have left the window make room for others.
    assert (env.copies.state.table.shape[1] > ROWS) == grows


TIME_WINDOWS = [Window(2.0, 0.5, "time"), Window(3.0, 3.0, "time"), Window(8.0, 1.0, "time")]


@pytest.mark.parametrize("window", TIME_WINDOWS, ids=str)
@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_parity_with_the_agent_in_time_with_gaps(
    window, n, seed, recorded, skewed_keys, times_with_gaps, assert_replayed
):
    keys, times = skewed_keys(1_200, seed), times_with_gaps(1_200, seed)
    stats = 16.0 if window.slide < 3 else None
    run = Run(keys, times, {"n_workers": n, "window": window, "seed": seed, "stats_window": stats})
    slides = [run.slide_of(i) for i in range(1_200)]
    assert max(np.diff(slides)) > window.n_slides, "the stream should have a long gap"
    assert 0 < run.hot.sum() < len(keys)
    assert_replayed(run, environment(run, recorded(keys=keys, times=times)))


def test_parity_with_the_agent_in_a_burst(recorded, assert_replayed):
    # 4 tuples in the first second, hence a threshold of 1 in the next, in which 40 keys arrive.
    keys = np.concatenate([np.zeros(4, np.int64), np.arange(100, 140), np.arange(100, 140)])
    times = np.concatenate([np.full(4, 0.5), np.full(40, 1.5), np.full(40, 2.5)])
    window = Window(4.0, 1.0, "time")
    run = Run(keys, times, {"n_workers": 4, "window": window, "seed": 0})
    assert run.hot[4:].all()
    assert_replayed(run, environment(run, recorded(keys=keys, times=times)))


HOT_ONLY = {
    "count": (Window(60, 20), None),
    "long statistics": (Window(60, 20), 100),
    "time": (Window(8.0, 4.0, "time"), None),
}


@pytest.mark.parametrize("case", HOT_ONLY)
@pytest.mark.parametrize("seed", [0, 5])
def test_only_hot_asks_about_the_hot_tuples_of_the_agent(
    case, seed, recorded, skewed_keys, times_with_gaps, loads_of
):
    window, stats = HOT_ONLY[case]
    keys = skewed_keys(900, seed)
    times = times_with_gaps(900, seed) if window.by == "time" else None
    params = {"n_workers": 5, "window": window, "seed": seed, "stats_window": stats, "epsilon": 0.3}
    run = Run(keys, times, params)
    env = environment(run, recorded(keys=keys, times=times), only_hot=True)
    observation, info = env.reset()
    asked = np.flatnonzero(run.hot)
    assert 0 < len(asked) < len(keys)
    for i in asked:
        assert info["key"] == keys[i]
        assert observation["hot"].tolist() == [1]
        observation, reward, _, over, info = env.step(run.workers[i])
        assert reward == run.rewards[i]
        assert over == (i == asked[-1])
    assert loads_of(env) == run.agent.loads.load.tolist()
    for key, held in held_by_agent(run.agent).items():
        assert env.copies.holders(0, key).tolist() == held
    assert env.copies.state.ints[0, POSITION] == len(keys)
