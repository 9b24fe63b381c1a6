"""Partitioners that share the workers: one alone is the single environment, several see all loads."""

import numpy as np
import pytest

from dalton.envs.reward import reward
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.workloads import make_workload
from dalton.experiments.registry import make

pytestmark = pytest.mark.xdist_group("ray")

ZIPF = {"name": "zipf", "n_tuples": 3_000, "n_keys": 500, "exponent": 1.2}
WINDOW = {"size": 800, "slide": 200}


@pytest.fixture(scope="module")
def shared(rllib):
    """The class; its module imports RLlib."""
    from dalton.agents.multi_agent import SharedWorkersEnv

    return SharedWorkersEnv


def test_one_partitioner_is_the_single_environment(shared):
    env = shared(workload=ZIPF, partitioners=1, n_workers=4, window=WINDOW)
    single = StreamPartitionEnv(workload=ZIPF, n_workers=4, window=WINDOW, only_hot=True)
    seen, _ = env.reset(seed=7)
    other, _ = single.reset(seed=7)
    steps, over = 0, False
    while not over:
        for name, part in other.items():
            np.testing.assert_array_equal(seen["partitioner_0"][name], part)
        action = steps * 7 % 4
        seen, rewards, ended, cut, _ = env.step({"partitioner_0": action})
        other, gain, _, over, _ = single.step(action)
        assert rewards == {"partitioner_0": gain}
        assert (ended["__all__"], cut["__all__"]) == (False, over)
        steps += 1
    assert steps > 100


def replay(workloads, n):
    """What P partitioners see and get, by the definitions: yields who is asked and what they see."""
    keys = [next(workload.chunks(workload.n_tuples)).keys.tolist() for workload in workloads]
    size, slides = WINDOW["slide"], WINDOW["size"] // WINDOW["slide"]
    sent, until = [[] for _ in keys], [{} for _ in keys]
    for t in range(min(map(len, keys))):
        slide = t // size
        present = [(who, key, w) for who, all_ in enumerate(sent) for s, key, w in all_ if s > slide - slides]
        load = np.bincount([w for _, _, w in present], minlength=n)
        asked, seen = [], {}
        for who, own in enumerate(keys):
            count = own[slide * size : t + 1].count(own[t])
            if count >= np.ceil(size / n):
                until[who][own[t]] = slide + 1
            if until[who].get(own[t], -1) >= slide:
                held = {w for _, key, w in present if key == own[t]}
                asked.append(who)
                seen[who] = load, [w in held for w in range(n)]
        chosen = yield asked, seen
        for who, worker in enumerate(chosen):
            sent[who].append((slide, keys[who][t], worker))
        gains = {}
        present = [(key, w) for all_ in sent for s, key, w in all_ if s > slide - slides]
        for who in asked:
            a = chosen[who]
            mine = sum(w == a for _, w in present)
            held = len({w for key, w in present if key == keys[who][t]})
            gains[who] = reward(mine, len(present), n, held, 0.5)
        yield gains


@pytest.mark.parametrize("sources", [None, [ZIPF, {**ZIPF, "exponent": 1.6}]], ids=["one workload", "multi"])
def test_loads_fragments_and_rewards_are_those_of_all_together(shared, sources):
    n, spec = 4, {**ZIPF, "n_tuples": 1_500}
    if sources is not None:
        spec = {"name": "multi", "sources": sources, "n_tuples": 3_000}
    env = shared(workload=spec, partitioners=2, n_workers=n, window=WINDOW)
    seen, _ = env.reset(seed=5)
    seeds = np.random.default_rng(5)
    drawn = [int(seeds.integers(2**31)) for _ in range(2)]
    parts = [spec, spec] if sources is None else [{**part, "n_tuples": 1_500} for part in sources]
    workloads = [make_workload(part, seed=seed) for part, seed in zip(parts, drawn, strict=True)]
    model = replay(workloads, n)
    rng, decisions, both, over = np.random.default_rng(0), 0, 0, False
    hashed = [make("kg", n_workers=n).route(next(one.chunks(1_500)).keys).tolist() for one in workloads]
    for homes in zip(*hashed, strict=True):
        asked, expected = next(model)
        if not asked:
            model.send(homes)
            continue
        assert sorted(seen) == [f"partitioner_{who}" for who in asked]
        for who in asked:
            load, held = expected[who]
            view = seen[f"partitioner_{who}"]
            np.testing.assert_allclose(view["load"], load * n / max(1, load.sum()), rtol=1e-6)
            assert view["fragments"].tolist() == held
        actions = {f"partitioner_{who}": int(rng.integers(n)) for who in asked}
        chosen = [actions.get(f"partitioner_{e}", homes[e]) for e in range(2)]
        gains = model.send(chosen)
        seen, rewards, _, cut, _ = env.step(actions)
        assert rewards == pytest.approx({f"partitioner_{who}": gain for who, gain in gains.items()})
        decisions, both, over = decisions + len(asked), both + (len(asked) == 2), cut["__all__"]
        if over:
            break
    assert decisions > 20
    assert both > 5


def test_an_episode_ends_for_all_and_must_be_begun_again(shared):
    env = shared(workload=ZIPF, partitioners=3, n_workers=4, window=WINDOW, max_windows=1)
    seen, _ = env.reset(seed=1)
    slides, over = [], False
    while not over:
        seen, _, _, cut, infos = env.step(dict.fromkeys(seen, 0))
        over = cut["__all__"]
        slides += [info["slide"]["max_over_mean"] for info in infos.values()]
    assert len(seen) == 3
    assert len(slides) >= 3
    assert all(1 <= value <= 4 for value in slides)
    with pytest.raises(Exception, match="before reset"):
        env.step({})
    assert env.reset()[0]


def test_actions_are_those_of_who_was_asked(shared, refused):
    from gymnasium.error import InvalidAction

    env = shared(workload=ZIPF, partitioners=2, n_workers=4, window=WINDOW)
    seen, _ = env.reset(seed=1)
    with pytest.raises(InvalidAction, match="expected those of"):
        env.step({"partitioner_9": 0})
    with pytest.raises(InvalidAction, match="action = 4: expected a whole number from 0 to 3"):
        env.step(dict.fromkeys(seen, 4))
    multi = {"name": "multi", "sources": [ZIPF, ZIPF], "n_tuples": 6_000}
    assert refused(shared, workload=multi, partitioners=3) == "partitioners = 3: expected one per source, 2"
    assert "partitioners = 0: expected a whole number >= 1" in refused(shared, partitioners=0)
