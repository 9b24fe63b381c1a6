"""``dalton/StreamPartition-v0``: one step routes one tuple."""

from __future__ import annotations

import operator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import error, spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dalton.envs.copies import NO_ACTIONS, Copies, Settings
from dalton.envs.dynamics import AT, CHUNK, PRESENT, ROW, UNTIL, Views
from dalton.envs.errors import ConfigError, check_choice, check_int, shown
from dalton.envs.render import picture, text
from dalton.envs.window import DEFAULT_WINDOW, CapacitySpec, WindowSpec

Observation = dict[str, NDArray[Any]]


class SettingError(error.Error, ConfigError):
    """A parameter of an environment is not allowed; Gymnasium's kind of error and this project's."""


def local_spaces(n: int) -> dict[str, spaces.Space[Any]]:
    """Spaces of the parts of a local observation."""
    return {
        "load": spaces.Box(0, n, (n,), np.float32),
        "fragments": spaces.MultiBinary(n),
        "share": spaces.Box(0, 1, (1,), np.float32),
        "hot": spaces.MultiBinary(1),
    }


def local_parts(seen: Views, e: int) -> Observation:
    """The local observation of copy ``e``."""
    real, binary = seen.real[e], seen.binary[e]
    n = len(binary) - 1
    return {"load": real[:n], "fragments": binary[:n], "share": real[n : n + 1], "hot": binary[n:]}


class _Streams:
    """What the single and the vector form share: settings, spaces and observations of N copies."""

    def __init__(self, count: int, observation: str, settings: dict[str, Any]) -> None:
        try:
            self.settings = Settings(**settings)
            self.full = check_choice("observation", observation, ("local", "full")) == "full"
        except ConfigError as problem:
            raise SettingError(str(problem)) from None
        self.copies = Copies(self.settings, count)
        n = self.settings.n
        parts = local_spaces(n)
        if self.full:
            parts["hot_fragments"] = spaces.MultiBinary((self.settings.rules.max_hot, n))
        self.timed = self.settings.pace is not None
        if self.timed:
            parts["cost"] = spaces.Box(0, 1, (1,), np.float32)
            parts["capacity"] = spaces.Box(0, 1, (n,), np.float32)
        self.strength = (self.settings.capacity / self.settings.capacity.max()).astype(np.float32)
        self.observation_space = spaces.Dict(parts)
        self.action_space: Any = spaces.Discrete(n)

    def hot_fragments(self, e: int) -> NDArray[np.int8]:
        """X_w of every hot key, ``(H, n)``: with the loads, the state of the MDP of Dalton Section 3.1."""
        out = np.zeros((self.settings.rules.max_hot, self.settings.n), np.int8)
        keys, live = self.copies.hot(e)
        for j in np.flatnonzero(live):
            out[j] = self.copies.holders(e, int(keys[j]))
        return out


class StreamPartitionEnv(gym.Env[Observation, np.int64]):
    """One step routes one tuple of a keyed stream to one of n workers (Dalton Section 3.1).

    Observation (``Dict``): ``load``, tuples per worker in the window over their mean, ``(n,)``;
    ``fragments``, whether each worker holds the tuple's key, ``(n,)``; ``share``, the key's count in the
    current STATS_WIN over its expected length, at most 1, ``(1,)``; ``hot``, whether the key is hot,
    ``(1,)``. With ``observation="full"`` also ``hot_fragments``, ``(H, n)``: which workers hold each of the
    keys that are hot. Action: the worker. Reward: Eq. 3 and 4, as the agent's. An episode ends by truncation.
    With ``measure="time"`` load is the time that the workers need, cost over capacity, in observation, reward
    and metrics; then there are also ``cost``, x / (x + x̄) of the tuple's cost x and the mean x̄ in the window,
    ``(1,)``, and ``capacity``, over the largest, ``(n,)``.
    ``info`` has the key (``key``), its hashed worker (``hashed``), and, when a slide has ended, its metrics
    with the regret against the oracle (``slide``).

    Args:
        workload: Name of a workload, or its specification with parameters; its seed is set by ``reset``.
        n_workers: Number of workers n.
        window: Window of load and fragments.
        observation: ``local`` or ``full``.
        hot_factor: c in the threshold L / (c n) of a hot key.
        stats_window: Length of a STATS_WIN; None for one slide.
        p1: Weight of balance in the reward.
        only_hot: Hash cold keys inside the environment: every step is a decision about a hot key.
        quantum: q of the observed loads.
        max_tuples: Tuples after which an episode is truncated; None for the workload's length.
        max_windows: Windows after which it is truncated; None for no such limit.
        hash_seed: Chooses the hashed worker.
        measure: What load is: ``tuples``, or ``time``.
        capacity: Capacities of the workers (`dalton.envs.window.check_capacity`); 1 if None. Not used for
            tuples.
        render_mode: ``ansi`` or ``rgb_array``.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 30}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(
        self,
        *,
        workload: Any = "zipf",
        n_workers: int = 8,
        window: WindowSpec = DEFAULT_WINDOW,
        observation: str = "local",
        hot_factor: float = 1.0,
        stats_window: float | None = None,
        p1: float = 0.5,
        only_hot: bool = False,
        quantum: int = 1,
        max_tuples: int | None = None,
        max_windows: int | None = None,
        hash_seed: int = 0,
        measure: str = "tuples",
        capacity: CapacitySpec = None,
        render_mode: str | None = None,
    ) -> None:
        settings = {
            "workload": workload,
            "n_workers": n_workers,
            "window": window,
            "hot_factor": hot_factor,
            "stats_window": stats_window,
            "p1": p1,
            "only_hot": only_hot,
            "quantum": quantum,
            "max_tuples": max_tuples,
            "max_windows": max_windows,
            "hash_seed": hash_seed,
            "measure": measure,
            "capacity": capacity,
        }
        self.streams = _Streams(1, observation, settings)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise SettingError(f"render_mode = {render_mode!r}: expected ansi or rgb_array")
        self.render_mode = render_mode
        self.observation_space = self.streams.observation_space
        self.action_space = self.streams.action_space
        self.n = self.streams.settings.n
        self.copies = self.streams.copies
        self.actions = np.zeros(1, np.int64)
        self.waiting = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode on a new stream; the seed decides which."""
        super().reset(seed=seed)
        self.copies.ended.clear()
        self.copies.restart(0, int(self.np_random.integers(2**31)))
        seen = self.copies.act(NO_ACTIONS)
        self.waiting = True
        return self._observation(seen), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send the present tuple to worker ``action`` and go on to the next decision."""
        if not self.waiting:
            raise error.ResetNeeded("step() was called before reset() or after the end of the episode")
        try:
            self.actions[0] = operator.index(action)
        except (TypeError, OverflowError):
            expected = f"expected a whole number from 0 to {self.n - 1}"
            raise error.InvalidAction(f"action = {shown(action)}: {expected}") from None
        seen = self.copies.act(self.actions)
        over = self.copies.any_over
        self.waiting = not over
        return self._observation(seen), seen.rewards.item(), False, over, self._info()

    def _observation(self, seen: Views) -> Observation:
        parts = local_parts(seen, 0)
        if self.streams.timed:
            parts["cost"], parts["capacity"] = seen.real[0, self.n + 1 :], self.streams.strength.copy()
        if self.streams.full:
            parts["hot_fragments"] = self.streams.hot_fragments(0)
        return parts

    def _info(self) -> dict[str, Any]:
        c = self.copies.state
        at = c.ints.item(AT) - 1
        info: dict[str, Any] = {"key": c.chunk.item(at), "hashed": c.chunk.item(CHUNK + at)}
        if self.copies.ended:
            info["slide"] = self.copies.ended.pop(0)
        return info

    def render(self) -> Any:
        """The loads, and which workers hold the present key: a text or an image."""
        c = self.copies.state
        key = int(c.chunk[0, 0, c.ints[0, AT] - 1])
        load, held = c.ring[0, 0, : self.n], self.copies.holders(0, key)
        if self.render_mode == "ansi":
            hot = c.table[0, c.ints[0, ROW], UNTIL] >= c.ints[0, PRESENT]
            return text(load, held, f"key {key} ({'hot' if hot else 'cold'})")
        return picture(load, held) if self.render_mode == "rgb_array" else None


class StreamPartitionVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[np.float64]]):
    """Many copies of `StreamPartitionEnv`, all stepped by one kernel call.

    A copy whose episode is over begins a new one with the next step, whose action it ignores and for which
    its reward is 0 (``AutoresetMode.NEXT_STEP``). ``info["slide"]`` holds the metrics of copies in which a
    slide has ended, with ``info["_slide"]`` telling which.

    Args:
        num_envs: Number of copies.
        workload: See `StreamPartitionEnv`, as all others.
        n_workers: See there.
        window: See there.
        observation: See there.
        hot_factor: See there.
        stats_window: See there.
        p1: See there.
        only_hot: See there.
        quantum: See there.
        max_tuples: See there.
        max_windows: See there.
        hash_seed: See there.
        measure: See there.
        capacity: See there.
        render_mode: Only None.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        *,
        workload: Any = "zipf",
        n_workers: int = 8,
        window: WindowSpec = DEFAULT_WINDOW,
        observation: str = "local",
        hot_factor: float = 1.0,
        stats_window: float | None = None,
        p1: float = 0.5,
        only_hot: bool = False,
        quantum: int = 1,
        max_tuples: int | None = None,
        max_windows: int | None = None,
        hash_seed: int = 0,
        measure: str = "tuples",
        capacity: CapacitySpec = None,
        render_mode: str | None = None,
    ) -> None:
        settings = {
            "workload": workload,
            "n_workers": n_workers,
            "window": window,
            "hot_factor": hot_factor,
            "stats_window": stats_window,
            "p1": p1,
            "only_hot": only_hot,
            "quantum": quantum,
            "max_tuples": max_tuples,
            "max_windows": max_windows,
            "hash_seed": hash_seed,
            "measure": measure,
            "capacity": capacity,
        }
        if render_mode is not None:
            raise SettingError(f"render_mode = {render_mode!r}: expected None for the vector form")
        try:
            self.num_envs = check_int("num_envs", num_envs, low=1)
        except ConfigError as problem:
            raise SettingError(str(problem)) from None
        self.shape = (self.num_envs,)
        self.render_mode = None
        self.streams = _Streams(self.num_envs, observation, settings)
        self.single_observation_space = self.streams.observation_space
        self.single_action_space = self.streams.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.generators = [seeding.np_random()[0] for _ in range(self.num_envs)]
        self.over: NDArray[np.bool_] | None = None
        self.begun = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode in every copy; copy i has ``seed + i``, or its own of a list."""
        if not isinstance(seed, list):
            seed = [seed + i if isinstance(seed, int) else seed for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise SettingError(f"seed has {len(seed)} values: expected one per copy, {self.num_envs}")
        # All are made before any is replaced: a seed that is refused changes nothing.
        self.generators = [
            old if one is None else seeding.np_random(one)[0]
            for old, one in zip(self.generators, seed, strict=True)
        ]
        self.streams.copies.ended.clear()
        for e in range(self.num_envs):
            self._restart(e)
        seen = self.streams.copies.act(NO_ACTIONS)
        self.over = None
        self.begun = True
        return self._observation(seen), self._info()

    def _restart(self, e: int) -> None:
        self.streams.copies.restart(e, int(self.generators[e].integers(2**31)))

    def step(self, actions: NDArray[np.int64]) -> tuple[Observation, Any, Any, Any, dict[str, Any]]:
        """Send the present tuple of every copy to its worker."""
        if not self.begun:
            raise error.ResetNeeded("Cannot call step() before calling reset()")
        chosen = self._checked(actions)
        copies, ended = self.streams.copies, self.over
        if ended is not None:
            copies.check(chosen)
            for e in np.flatnonzero(ended):
                self._restart(int(e))
        seen = copies.act(chosen)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), seen.over
        if ended is not None:
            # An episode without a decision is over when it begins; that is told with the step after.
            truncated &= ~ended
        self.over = truncated.copy() if copies.any_over else None
        return self._observation(seen), seen.rewards, terminated, truncated, self._info()

    def _observation(self, seen: Views) -> Observation:
        n = self.streams.settings.n
        parts: Observation = {
            "load": seen.real[:, :n],
            "fragments": seen.binary[:, :n],
            "share": seen.real[:, n : n + 1],
            "hot": seen.binary[:, n:],
        }
        if self.streams.timed:
            parts["cost"] = seen.real[:, n + 1 :]
            parts["capacity"] = np.tile(self.streams.strength, (self.num_envs, 1))
        if self.streams.full:
            parts["hot_fragments"] = np.stack([self.streams.hot_fragments(e) for e in range(self.num_envs)])
        return parts

    def _checked(self, actions: Any) -> NDArray[np.int64]:
        if type(actions) is np.ndarray and actions.dtype == np.int64 and actions.shape == self.shape:
            return actions
        try:
            chosen = np.asarray(actions)
        except ValueError:
            chosen = np.empty((), object)
        if chosen.dtype.kind not in "iu" or chosen.shape != self.shape:
            found = f"type {chosen.dtype} and shape {chosen.shape}"
            raise error.InvalidAction(f"actions has {found}: expected {self.num_envs} whole numbers")
        return chosen.astype(np.int64, copy=False)

    def _info(self) -> dict[str, Any]:
        ended = self.streams.copies.ended
        if not ended:
            return {}
        metrics: dict[str, Any] = {}
        which = np.zeros(self.num_envs, np.bool_)
        for e, row in ended.items():
            which[e] = True
            for name, value in row.items():
                metrics.setdefault(name, np.zeros(self.num_envs))[e] = value
        ended.clear()
        return {"slide": metrics, "_slide": which}
