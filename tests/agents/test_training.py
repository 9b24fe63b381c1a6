"""Real trainings with RLlib, small ones: what they leave behind decides as the trained module does."""

import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from dalton.agents import search, training
from dalton.agents.network import choose, forward, network, read_policy
from dalton.agents.rllib_policy import RLlibPolicy
from dalton.agents.training import CHECKPOINT, Plan, Training
from dalton.envs.micro_batch import MicroBatchPartitionEnv
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.experiments.registry import defaults_of

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # RLlib and torch warn of their own ways.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

ZIPF = {"name": "zipf", "n_tuples": 20_000, "n_keys": 2_000, "exponent": 1.5}
SMALL = {
    "ppo": {"steps": 512, "batch": 128, "epochs": 2, "hidden": [32, 16]},
    "dqn": {"steps": 512, "batch": 64, "warm_up": 128, "hidden": [32, 16]},
}


def plan(name="ppo", world="stream", **changed):
    given = {
        "algorithm": {**defaults_of("algorithm", name), **SMALL[name]},
        "environment": defaults_of("environment", world),
        "workload": ZIPF,
        "n_workers": 4,
        "window": {"size": 2_000, "slide": 200},
        "copies": 16 if world == "stream" else 4,
    }
    if world == "batch":
        given["algorithm"] |= {"steps": 80, "batch": 40}
    return Plan(**{**given, **changed})


@pytest.fixture(scope="module")
def ray(rllib):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with training.local_ray(2):
            yield


KINDS = {"ppo stream": (32, 4), "dqn stream": (32, 4), "ppo batch": (32, 16), "ppo multi": (32, 4)}


@pytest.fixture(scope="module")
def trained(ray, tmp_path_factory):
    """Trainings of two iterations by algorithm and environment, and the folders of their policies."""
    made = {}

    def make(kind):
        if kind not in made:
            work = Training(plan(*kind.split()))
            folder = tmp_path_factory.mktemp(kind.replace(" ", "-"))
            metrics = [work.iterate() for _ in range(2)]
            work.save(folder, {"by": "a test"})
            made[kind] = work, metrics, folder
        return made[kind]

    yield make
    for work, _, _ in made.values():
        work.close()


def flat(observation):
    return np.concatenate([observation[name].ravel() for name in sorted(observation)]).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_learns_and_is_kept(kind, trained):
    work, metrics, folder = trained(kind)
    assert all(-1 <= row["reward"] <= 1 for row in metrics)
    assert 0 < metrics[0]["steps"] < metrics[1]["steps"]
    assert all(np.isfinite(row["total_loss"]) for row in metrics)
    policy = read_policy(folder)
    assert policy.kind == ("batch" if "batch" in kind else "stream")
    assert policy.widths == (len(policy.layers[0][0]), len(policy.layers[-1][1]))
    assert [len(bias) for _, bias in policy.layers[:-1]] == [32, 16]
    assert policy.origin == {"by": "a test"}
    assert (folder / CHECKPOINT / "rllib_checkpoint.json").is_file()
    # What is saved is the network at the end, which is not that at the beginning.
    again = Training(work.plan)
    assert any((a != b).any() for (a, _), (b, _) in zip(again.layers(), policy.layers, strict=True))
    again.close()


def observations(kind, count=400):
    """What agents saw who decided at random."""
    if "batch" in kind:
        env = MicroBatchPartitionEnv(**plan("ppo", "batch").env_config)
    else:
        env = StreamPartitionEnv(**plan().env_config)
    env.action_space.seed(1)
    seen, _ = env.reset(seed=1)
    rows = []
    while len(rows) < count:
        rows.append(flat(seen))
        seen, _, _, over, _ = env.step(env.action_space.sample())
        if over:
            seen, _ = env.reset()
    return np.array(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_decides_as_the_module_does(kind, trained):
    import torch

    work, _, folder = trained(kind)
    policy = read_policy(folder)
    net, rows = network(policy.layers), observations(kind, 60 if "batch" in kind else 1_000)
    module = work.algorithm.get_module(work.module)
    with torch.no_grad():
        out = module.forward_inference({"obs": torch.from_numpy(rows)})
        outputs = []
        for row in rows:
            net.values[0, : len(row)] = row
            outputs.append(net.values[forward(net), : policy.widths[1]].copy())
        outputs = np.array(outputs)
        if "dqn" in kind:
            chosen = out["actions"].numpy()
        else:
            logits = out["action_dist_inputs"].numpy()[:, : policy.widths[1]]
            np.testing.assert_allclose(outputs, logits, rtol=1e-4, atol=1e-5)
            chosen = logits.argmax(axis=1)
    ordered = np.sort(outputs, axis=1)
    # Torch adds up in another order: only where two actions are as good as equal may it choose the other.
    clear = ordered[:, -1] - ordered[:, -2] > 1e-5
    assert clear.mean() > 0.9
    assert (outputs.argmax(axis=1) == chosen)[clear].all()


def test_what_is_kept_routes_as_the_module_steps_the_environment(trained):
    import torch

    work, _, folder = trained("ppo stream")
    spec, module = work.plan.env_config, work.algorithm.get_module()
    env = StreamPartitionEnv(**{**spec, "only_hot": False})
    net, n = network(read_policy(folder).layers), work.plan.n_workers
    seen, info = env.reset(seed=9)
    keys, decided, over = [], [], False
    with torch.no_grad():
        while not over:
            row = flat(seen)
            worker = info["hashed"]
            if seen["hot"][0]:
                logits = module.forward_inference({"obs": torch.from_numpy(row[None])})["action_dist_inputs"]
                top, second = logits[0].topk(2).values.tolist()
                net.values[0, : len(row)] = row
                worker = int(logits.argmax()) if top - second > 1e-5 else choose(net)
            keys.append(info["key"])
            decided.append(worker)
            seen, _, _, over, info = env.step(worker)
    routed = RLlibPolicy(n_workers=n, window=spec["window"], checkpoint=str(folder)).route(np.array(keys))
    assert routed.tolist() == decided


def test_a_training_goes_on_from_its_checkpoint(trained, refused, tmp_path):
    work, metrics, folder = trained("ppo stream")
    again = Training(work.plan, str(folder))
    for (a, _), (b, _) in zip(again.layers(), read_policy(folder).layers, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.iterate()["steps"] > metrics[-1]["steps"]
    again.close()
    message = refused(Training, work.plan, str(tmp_path))
    assert message == f"training.start = '{tmp_path}': expected the folder of a trained policy"


def mean_reward(decide, spec, copies=16, steps=1_500):
    """Mean reward per decision, on the same streams for everybody."""
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    env = gymnasium.make_vec(training.STREAM, num_envs=copies, vectorization_mode=mode, **spec)
    seen, _ = env.reset(seed=1_000)
    total, count = 0.0, 0
    for _ in range(steps):
        seen, rewards, _, truncated, _ = env.step(decide(seen))
        assert not truncated.any()
        total, count = total + rewards.sum(), count + copies
    return total / count


def test_ppo_beats_a_random_policy(ray, tmp_path):
    """By 0.05 per decision on streams that it was not trained on (measured: see the assertion's message)."""
    big = {"steps": 4096, "batch": 512, "epochs": 6, "hidden": [64, 64]}
    given = plan(copies=32, algorithm={**defaults_of("algorithm", "ppo"), **big})
    work = Training(given)
    for _ in range(20):
        work.iterate()
    work.save(tmp_path, {})
    work.close()
    spec = {**given.env_config, "max_windows": None}
    net, rng = network(read_policy(tmp_path).layers), np.random.default_rng(0)

    def greedy(seen):
        x = np.concatenate([seen[name] for name in sorted(seen)], axis=1)
        out = np.empty(len(x), np.int64)
        for e, row in enumerate(x):
            net.values[0, : len(row)] = row
            out[e] = choose(net)
        return out

    learned = mean_reward(greedy, spec)
    random = mean_reward(lambda seen: rng.integers(0, 4, len(seen["hot"])), spec)
    assert learned > random + 0.05, f"{learned:.3f} against {random:.3f}"


def test_a_search_trains_every_trial_and_keeps_its_policy(ray, tmp_path):
    done = []
    space = search.check_space({"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}, plan())
    trials = search.search(plan(), space, trials=2, iterations=1, folder=tmp_path, advance=done.append)
    assert done == [1, 1]
    assert len({trial.params["learning_rate"] for trial in trials}) == 2
    for trial in trials:
        assert 1e-4 <= trial.params["learning_rate"] <= 1e-2
        assert trial.failure == ""
        assert len(trial.history) == 1
        assert np.isfinite(trial.history[0]["reward"])
        assert read_policy(trial.policy).n_workers == 4


PPO = defaults_of("algorithm", "ppo")
WRONG = {
    "algorithm": ({"algorithm": {**PPO, "name": "ppp"}}, "algorithm = 'ppp': unknown"),
    "no algorithm": ({"algorithm": "ppo"}, "algorithm = 'ppo': expected a name and parameters"),
    "environment": ({"environment": {"name": "cart"}}, "environment = 'cart': unknown"),
    "misspelt": ({"algorithm": {**PPO, "gama": 1}}, "key of algorithm = 'gama': unknown (did you mean"),
    "missing": ({"environment": {"name": "batch"}}, "environment.hot_factor is missing"),
    "rate": (
        {"algorithm": {**PPO, "learning_rate": 0}},
        "algorithm.learning_rate = 0: expected a number > 0",
    ),
    "discount": ({"algorithm": {**PPO, "gamma": 2}}, "algorithm.gamma = 2: expected a number from 0 to 1"),
    "no layers": ({"algorithm": {**PPO, "hidden": []}}, "algorithm.hidden = []: expected a list"),
    "a layer": ({"algorithm": {**PPO, "hidden": [0]}}, "algorithm.hidden = 0: expected a whole number >= 1"),
    "batch": (
        {"algorithm": {**PPO, "batch": 9000}},
        "algorithm.batch = 9000: expected at most algorithm.steps",
    ),
    "copies": ({"copies": 0}, "training.copies = 0: expected a whole number >= 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_plan_that_is_not_allowed_is_refused(case, refused):
    changed, message = WRONG[case]
    assert message in refused(plan, **changed)


def test_dqn_is_for_single_decisions_and_its_buffer_holds_the_episodes(refused):
    batch = defaults_of("environment", "batch")
    assert "expected environment stream" in refused(replace, plan("dqn"), environment=batch)
    small = {**plan("dqn").algorithm, "buffer": 1_000}
    message = refused(replace, plan("dqn"), algorithm=small)
    assert message.startswith("algorithm.buffer = 1000: expected training.copies × the length of an episode")


def test_a_space_of_a_search_is_checked(refused):
    assert "expected a range for each parameter" in refused(search.check_space, {}, plan())
    assert "key of search.space = 'hidden': unknown" in refused(search.check_space, {"hidden": {}}, plan())
    wide = {"gamma": {"low": 0.5, "high": 2.0}}
    assert "algorithm.gamma = 2.0: expected a number" in refused(search.check_space, wide, plan())
