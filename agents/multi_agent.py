"""P partitioners that share the workers, as an environment for multi-agent training with RLlib."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import NDArray
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from dalton.envs.copies import NO_ACTIONS, Copies, Settings
from dalton.envs.dynamics import (
    AT,
    BAD_ACTION,
    DECISION,
    P1,
    PRESENT,
    ROW,
    STAMPS,
    STATUS,
    UNTIL,
    Views,
    advance,
    expired,
    key_of,
    look,
    row_of,
    send,
)
from dalton.envs.errors import ConfigError, check_int
from dalton.envs.kernel import kernel
from dalton.envs.metrics import max_over_mean
from dalton.envs.reward import reward
from dalton.envs.stream_partition import Observation, local_parts, local_spaces
from dalton.envs.window import DEFAULT_WINDOW, WindowSpec
from dalton.envs.workloads import make_workload

# The status of a copy whose tuple was sent without a decision.
SENT = -1


@kernel
def _held(c: Any, e: Any, w: Any) -> Any:
    """Whether worker ``w`` holds the present key of copy ``e``, whoever sent it there."""
    key = key_of(c.table, e, c.ints[e, ROW])
    for other in range(len(c.ints)):
        if c.table[other, row_of(c.table, other, key), STAMPS + w] > expired(c, other):
            return True
    return False


@kernel
def _load(c: Any, column: Any) -> Any:
    """A column of the loads, summed over all copies."""
    load = 0
    for e in range(len(c.ints)):
        load += c.ring[e, 0, column]
    return load


@kernel
def _is_hot(c: Any, e: Any) -> Any:
    return c.table[e, c.ints[e, ROW], UNTIL] >= c.ints[e, PRESENT]


@kernel
def step_shared(c: Any, actions: Any, v: Any) -> Any:
    """Send the present tuple of every copy, then take one more each until one of them is hot.

    Copies are the partitioners; loads and fragments are those of all of them together. Rewards are counted
    when all have sent. Returns as `dalton.envs.dynamics.step_all`.
    """
    count, n = len(c.ints), v.real.shape[1] - 1
    for e in range(len(actions)):
        if not 0 <= actions[e] < n:
            return BAD_ACTION
    if len(actions) > 0:
        for e in range(count):
            send(c, e, n, c.ints[e, ROW], actions[e])
        total = _load(c, n)
        for e in range(count):
            fragments = 0
            for w in range(n):
                fragments += _held(c, e, w)
            v.rewards[e] = reward(_load(c, actions[e]), total, n, fragments, c.floats[e, P1])
            c.ints[e, STATUS] = SENT
    waiting = 0
    while True:
        hot = 0
        for e in range(count):
            if c.ints[e, STATUS] != DECISION:
                c.ints[e, STATUS] = advance(c, e, n)
            waiting += c.ints[e, STATUS] != DECISION
            hot += _is_hot(c, e)
        if waiting > 0 or hot > 0:
            break
        for e in range(count):
            send(c, e, n, c.ints[e, ROW], c.chunk[e, 1, c.ints[e, AT] - 1])
            c.ints[e, STATUS] = SENT
    total = _load(c, n)
    for e in range(count):
        look(c, e, n, v)
        for w in range(n):
            v.real[e, w] = _load(c, w) * (n / total) if total > 0 else 0.0
            v.binary[e, w] = _held(c, e, w)
    return waiting


class SharedWorkers(Copies):
    """P sources in step, one tuple each, on the same workers."""

    step: ClassVar[Any] = staticmethod(step_shared)

    def _measure(self, e: int) -> dict[str, float]:
        n = self.settings.n
        return {"max_over_mean": max_over_mean(self.state.ring[:, 0, :n].sum(axis=0))}


class SharedWorkersEnv(MultiAgentEnv):
    """P partitioners, each with its own source, route to the same n workers (Dalton Section 4).

    The sources are interleaved one tuple each. Agents are ``partitioner_0`` and so on; those whose tuple has
    a hot key act, the others' tuples are hashed. Observation and reward are those of `StreamPartitionEnv`,
    with the load and the fragments of all partitioners together; hot keys and shares are the source's own.
    With the workload ``multi`` every source has its own distribution, with another one its own seed.

    Args:
        workload: Name or specification of a workload.
        partitioners: Number of partitioners P; that of the sources if the workload is ``multi``.
        n_workers: Number of workers n.
        window: Window of load and fragments, of each source's own tuples.
        hot_factor: c in the threshold L / (c n) of a hot key, L the source's own tuples.
        p1: Weight of balance in the reward.
        max_windows: Windows after which an episode is truncated.
        hash_seed: Chooses the hashed worker.
    """

    def __init__(
        self,
        *,
        workload: Any = "zipf",
        partitioners: int = 2,
        n_workers: int = 8,
        window: WindowSpec = DEFAULT_WINDOW,
        hot_factor: float = 1.0,
        p1: float = 0.5,
        max_windows: int | None = None,
        hash_seed: int = 0,
    ) -> None:
        begin: Any = super().__init__  # untyped
        begin()
        stream = make_workload(workload)
        count = check_int("partitioners", partitioners, low=1)
        workloads = [stream] * count
        if stream.name == "multi":
            sources = stream.params["sources"]
            if len(sources) != count:
                raise ConfigError(f"partitioners = {count}: expected one per source, {len(sources)}")
            workloads = [make_workload(source, n_tuples=stream.n_tuples // count) for source in sources]
        settings = Settings(
            workload=workloads[0],
            n_workers=n_workers,
            window=window,
            hot_factor=hot_factor,
            stats_window=None,
            p1=p1,
            only_hot=False,
            quantum=1,
            max_tuples=None,
            max_windows=max_windows,
            hash_seed=hash_seed,
            measure="tuples",
            capacity=None,
        )
        self.copies = SharedWorkers(settings, count)
        self.copies.workloads = workloads
        self.names = [f"partitioner_{e}" for e in range(count)]
        self.possible_agents, self.agents = [*self.names], [*self.names]
        self.observation_spaces = {name: spaces.Dict(local_spaces(settings.n)) for name in self.names}
        self.action_spaces = {name: spaces.Discrete(settings.n) for name in self.names}
        self.random = np.random.default_rng()
        self.asked: NDArray[np.int64] | None = None

    # RLlib's and Gymnasium's types of these two exclude each other, hence the Any.
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode on new streams; the seed decides which."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.copies.ended.clear()
        for e in range(self.copies.count):
            self.copies.restart(e, int(self.random.integers(2**31)))
        return self._observations(self.copies.act(NO_ACTIONS)), {}

    def step(self, actions: Any) -> Any:
        """Send the tuples of those who were asked to the workers they name."""
        if self.asked is None:
            raise ResetNeeded("step() was called before reset() or after the end of the episode")
        names = [self.names[e] for e in self.asked]
        if set(actions) != set(names):
            raise InvalidAction(f"actions of {sorted(actions)}: expected those of {names}")
        c = self.copies.state
        chosen = c.chunk[np.arange(self.copies.count), 1, c.ints[:, AT] - 1]
        chosen[self.asked] = [actions[name] for name in names]
        seen = self.copies.act(chosen)
        rewards = {name: float(seen.rewards[e]) for e, name in zip(self.asked, names, strict=True)}
        over = self.copies.any_over
        observations = self._observations(seen)
        if over:
            observations = {name: local_parts(seen, e) for e, name in enumerate(self.names)}
            self.asked = None
        infos: dict[str, Any] = {}
        if self.copies.ended:
            infos["__common__"] = {"slide": self.copies.ended.popitem()[1]}
            self.copies.ended.clear()
        return observations, rewards, {"__all__": False}, {"__all__": over}, infos

    def _observations(self, seen: Views) -> dict[str, Observation]:
        """Of those who must act: whose present tuple is hot."""
        self.asked = np.flatnonzero(seen.binary[:, -1])
        return {self.names[e]: local_parts(seen, int(e)) for e in self.asked}
