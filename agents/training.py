"""Training of policies with RLlib: PPO and DQN on the environments (extra ``deep``).

RLlib's own checkpoint is kept beside the policy's weights (`dalton.agents.network`), to go on from; it holds
pickles, so only one's own should be given to ``start``. To route, the weights are all that is needed.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.agents.network import Layer, Policy
from dalton.envs.errors import ConfigError, check_choice, check_int, check_real, shown
from dalton.envs.micro_batch import MicroBatchPartitionEnv
from dalton.envs.stream_partition import StreamPartitionEnv
from dalton.envs.window import Window

Params = dict[str, Any]

STREAM = "dalton.envs:dalton/StreamPartition-v0"
CHECKPOINT = "rllib"
OBJECT_STORE = 200_000_000
"""Bytes of the embedded Ray's object store: samples are handed over within the process, or are small."""
SHARED = "shared"
# Metrics of the learner that are kept, where the algorithm has them.
LEARNED = ("total_loss", "vf_loss", "policy_loss", "entropy", "mean_kl_loss", "qf_mean", "td_error_mean")
# What each environment and algorithm can be told, besides its name.
ENVIRONMENTS = {
    "stream": ("hot_factor", "p1", "only_hot", "quantum", "max_windows"),
    "batch": ("hot_factor", "p1", "max_batches"),
    "multi": ("partitioners", "hot_factor", "p1", "max_windows"),
}
COUNTS = ("steps", "batch", "epochs", "buffer", "warm_up", "target_every", "explore_steps", "fragment")
COMMON = ("learning_rate", "gamma", "hidden", "steps", "batch")
ALGORITHMS = {
    "ppo": (*COMMON, "epochs", "gae_lambda", "entropy"),
    "dqn": (*COMMON, "buffer", "warm_up", "target_every", "explore_steps", "epsilon", "fragment"),
}


def require_deep() -> None:
    """Say which extra is missing, if one is."""
    for name in ("ray", "torch"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install dalton[deep]")


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """An embedded Ray of bounded size, gone afterwards; one that already runs is used and left alone."""
    require_deep()
    import ray

    logging.getLogger("ray.rllib").setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield
        return
    ray.init(
        num_cpus=cpus,
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Plan:
    """What is trained, checked.

    Args:
        algorithm: Name (``ppo`` or ``dqn``) and hyperparameters.
        environment: Name (``stream``, ``batch`` or ``multi``) and parameters.
        workload: Specification of the workload; episodes differ in its seed.
        n_workers: Number of workers n.
        window: Window of the cluster; a batch is one slide.
        seed: Seed of weights, exploration and streams.
        copies: Copies of the environment that each runner steps.
        runners: Processes that sample; 0 for this one.
    """

    algorithm: Params
    environment: Params
    workload: Params
    n_workers: int
    window: Params
    seed: int = 0
    copies: int = 32
    runners: int = 0

    def __post_init__(self) -> None:
        for field, table in (("algorithm", ALGORITHMS), ("environment", ENVIRONMENTS)):
            given = getattr(self, field)
            if not isinstance(given, Mapping) or "name" not in given:
                raise ConfigError(f"{field} = {shown(given)}: expected a name and parameters")
            own = table[check_choice(field, given["name"], table)]
            for key in given:
                check_choice(f"key of {field}", key, ("name", *own))
            for key in own:
                if key not in given:
                    raise ConfigError(f"{field}.{key} is missing")
        a = self.algorithm
        if a["name"] == "dqn" and self.environment["name"] != "stream":
            raise ConfigError("algorithm = 'dqn': expected environment stream, or algorithm ppo")
        check_real("algorithm.learning_rate", a["learning_rate"], above=0)
        check_real("algorithm.gamma", a["gamma"], low=0, high=1)
        if not isinstance(a["hidden"], list) or not a["hidden"]:
            raise ConfigError(f"algorithm.hidden = {shown(a['hidden'])}: expected a list of widths")
        for width in a["hidden"]:
            check_int("algorithm.hidden", width, low=1)
        for key in (
            "steps",
            "batch",
            "epochs",
            "buffer",
            "warm_up",
            "target_every",
            "explore_steps",
            "fragment",
        ):
            if key in a:
                check_int(f"algorithm.{key}", a[key], low=1)
        for key in ("gae_lambda", "epsilon"):
            if key in a:
                check_real(f"algorithm.{key}", a[key], low=0, high=1)
        if "entropy" in a:
            check_real("algorithm.entropy", a["entropy"], low=0)
        if a["batch"] > a["steps"]:
            raise ConfigError(
                f"algorithm.batch = {a['batch']}: expected at most algorithm.steps, {a['steps']}"
            )
        check_int("training.copies", self.copies, low=1)
        if a["name"] == "dqn":
            # RLlib's buffer breaks when it lets go of an episode that is still going on.
            longest = self.copies * self.make_env().copies.settings.max_tuples
            if a["buffer"] < longest:
                least = f"training.copies × the length of an episode, {longest}, or more"
                raise ConfigError(f"algorithm.buffer = {a['buffer']}: expected {least}")
        check_int("training.runners", self.runners, low=0)
        check_int("seed", self.seed, low=0)

    @property
    def env_config(self) -> Params:
        """Arguments of the environment."""
        own = {key: value for key, value in self.environment.items() if key != "name"}
        shared = {"workload": self.workload, "n_workers": self.n_workers}
        if self.environment["name"] != "batch":
            return {**shared, "window": self.window, **own}
        window = Window.of(self.window)
        if window is None or window.by != "count":
            raise ConfigError("environment = 'batch': expected a cluster.window by count")
        return {**shared, "batch_size": int(window.slide), "window_batches": window.n_slides, **own}

    def make_env(self) -> Any:
        """One copy of the environment, as an agent that is no RLlib one has it; checks all its parameters."""
        if self.environment["name"] == "multi":
            from dalton.agents.multi_agent import SharedWorkersEnv

            return SharedWorkersEnv(**self.env_config)
        kind = StreamPartitionEnv if self.environment["name"] == "stream" else MicroBatchPartitionEnv
        return kind(**self.env_config)

    def policy(self, layers: list[Layer], origin: Params) -> Policy:
        """The policy of trained layers."""
        env = self.make_env()
        e = self.environment
        return Policy(
            kind="batch" if e["name"] == "batch" else "stream",
            n_workers=self.n_workers,
            hot_factor=float(e["hot_factor"]),
            layers=layers,
            only_hot=bool(e.get("only_hot", True)),
            quantum=int(e.get("quantum", 1)),
            n_rows=env.shape[0] if e["name"] == "batch" else 0,
            origin=origin,
        )


class Training:
    """An RLlib algorithm at work on a plan (needs `local_ray`)."""

    def __init__(self, plan: Plan, start: str | None = None) -> None:
        """Build it; with ``start``, the folder of a trained policy, go on from there."""
        import torch

        self.plan = plan
        plan.make_env()
        # Networks are small: more threads wait for each other, many times longer if cores are busy.
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.algorithm = _config(plan).build_algo()
        self.steps = 0
        if start is not None:
            self._restore(Path(start))

    def _restore(self, folder: Path) -> None:
        state = (folder / CHECKPOINT).resolve()
        if not state.is_dir():
            raise ConfigError(f"training.start = {str(folder)!r}: expected the folder of a trained policy")
        try:
            self.algorithm.restore_from_path(str(state))
        except Exception as error:
            reason = shown(str(error))[:200]
            raise ConfigError(f"training.start = {str(folder)!r}: cannot go on from it ({reason})") from None

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its metrics: ``reward`` is the mean over all decisions it sampled."""
        result = self.algorithm.train()
        sampled, learned = result["env_runners"], result["learners"].get(self.module, {})
        self.steps = int(sampled["num_env_steps_sampled_lifetime"])
        metrics = {"reward": float(sampled["reward"]), "steps": float(self.steps)}
        for name in LEARNED:
            if name in learned and np.ndim(learned[name]) == 0:
                metrics[name] = float(learned[name])
        metrics["seconds"] = float(result["time_this_iter_s"])
        return {name: value for name, value in metrics.items() if np.isfinite(value)}

    @property
    def module(self) -> str:
        """Id of the trained module; one for all agents."""
        return SHARED if self.plan.environment["name"] == "multi" else "default_policy"

    def layers(self) -> list[Layer]:
        """Weights of the network that decides: encoder, then the head of logits, means or Q-values."""
        state = self.algorithm.get_module(self.module).state_dict()
        dqn = self.plan.algorithm["name"] == "dqn"
        parts = ("encoder.net.", "af.net.") if dqn else ("encoder.actor_encoder.net.", "pi.net.")
        names = [name.removesuffix("weight") for name in state if name.endswith("weight")]
        kept = [name for name in names if name.startswith(parts)]
        return [(_array(state[f"{name}weight"]).T.copy(), _array(state[f"{name}bias"])) for name in kept]

    def save(self, folder: Path, origin: Params) -> None:
        """Write policy and RLlib's checkpoint into ``folder``."""
        self.plan.policy(self.layers(), origin).save(folder)
        self.algorithm.save_to_path(str((folder / CHECKPOINT).resolve()))

    def close(self) -> None:
        """End it."""
        import torch

        self.algorithm.stop()
        torch.set_num_threads(self.threads)


def _array(tensor: Any) -> NDArray[np.float32]:
    values: NDArray[np.float32] = tensor.detach().cpu().numpy().astype(np.float32)
    return values


def _mean_reward(*, samples: Any, metrics_logger: Any, **_: Any) -> None:
    """Log the mean reward per decision: episodes are long, so that their returns say little and late."""
    rewards: list[float] = []
    for episode in samples:
        parts = getattr(episode, "agent_episodes", None)
        for one in [episode] if parts is None else parts.values():
            rewards.extend(one.get_rewards())
    if rewards:
        metrics_logger.log_value("reward", float(np.mean(rewards)), window=1)


def _flat_batches(config: Any) -> Any:
    """MicroBatchPartition-v0 with the split table as one vector: RLlib has no actions of two dimensions."""
    from gymnasium import spaces
    from gymnasium.wrappers import TransformAction

    env = MicroBatchPartitionEnv(**config)
    box = spaces.Box(0, 1, (env.shape[0] * env.shape[1],), np.float32)
    return TransformAction(env, lambda action: action.reshape(env.shape), box)


def _shared_workers(config: Any) -> Any:
    from dalton.agents.multi_agent import SharedWorkersEnv

    return SharedWorkersEnv(**config)


def _config(plan: Plan) -> Any:
    """RLlib's configuration of a plan."""
    from ray.rllib.algorithms import dqn, ppo
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.tune.registry import register_env

    a, environment = plan.algorithm, plan.environment["name"]
    multi = environment == "multi"
    name = STREAM
    if environment != "stream":
        name = f"dalton-{environment}"
        register_env(name, _shared_workers if multi else _flat_batches)
    model = {
        "fcnet_hiddens": list(a["hidden"]),
        "fcnet_activation": "relu",
        "head_fcnet_hiddens": [],
        "vf_share_layers": False,
        "free_log_std": environment == "batch",
    }

    def flatten(env: Any, spaces: Any = None, device: Any = None) -> Any:
        return FlattenObservations(multi_agent=multi)

    runners: Params = {
        "num_env_runners": plan.runners,
        "num_envs_per_env_runner": plan.copies,
        "env_to_module_connector": flatten,
    }
    if environment == "stream":
        runners["gym_env_vectorize_mode"] = "vector_entry_point"
    make: Any = ppo.PPOConfig if a["name"] == "ppo" else dqn.DQNConfig
    config = (
        make()
        .environment(name, env_config=plan.env_config)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .callbacks(on_sample_end=_mean_reward)
        .debugging(log_level="ERROR", seed=plan.seed)
    )
    if multi:
        config = config.multi_agent(policies={SHARED}, policy_mapping_fn=lambda *_, **__: SHARED)
    config = config.rl_module(model_config=model)
    if a["name"] == "ppo":
        return config.env_runners(**runners).training(
            lr=a["learning_rate"],
            gamma=a["gamma"],
            train_batch_size_per_learner=a["steps"],
            minibatch_size=a["batch"],
            num_epochs=a["epochs"],
            lambda_=a["gae_lambda"],
            entropy_coeff=a["entropy"],
        )
    return (
        config.env_runners(**runners, rollout_fragment_length=a["fragment"])
        .training(
            lr=a["learning_rate"],
            gamma=a["gamma"],
            train_batch_size_per_learner=a["batch"],
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": a["buffer"]},
            num_steps_sampled_before_learning_starts=a["warm_up"],
            target_network_update_freq=a["target_every"],
            epsilon=[[0, 1.0], [a["explore_steps"], a["epsilon"]]],
            dueling=False,
            double_q=True,
        )
        .reporting(min_sample_timesteps_per_iteration=a["steps"], min_time_s_per_iteration=0)
    )
