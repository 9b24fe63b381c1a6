"""The contract every partitioner keeps, learned or heuristic."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.envs.cluster import MAX_WORKERS, Fragments, fragments, grown
from dalton.envs.errors import ConfigError, check_int, shown
from dalton.envs.servers import Step
from dalton.envs.window import (
    HEAD,
    LENGTH,
    LoadState,
    Window,
    WindowSpec,
    accept_costs,
    accept_times,
    load_state,
    pace_of,
)

Keys = NDArray[np.int64]
Times = NDArray[np.float64]
Costs = NDArray[np.float64]
Workers = NDArray[np.int32]
BLOCK = 1 << 14
"""Tuples whose candidates are hashed at once: few enough to stay in the cache."""
NO_WINDOW = load_state(1, None).edge


class Partitioner(ABC):
    """Sends every tuple of a keyed stream to one of ``n_workers`` workers.

    ``route`` takes batches of any length and decides tuple by tuple: the decisions do not depend on how
    the stream is cut, unless the class declares a ``lookahead``. All state is arrays made by ``reset``; a
    partitioner pickles mid-stream and goes on identically.

    Args:
        n_workers: Number of workers, at least 1.
        seed: Chooses the members of the hash family, and the random draws if there are any.
    """

    forwards: ClassVar[bool] = False
    """Whether it knows which keys are on one worker only, so that these may skip the reducers."""
    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "none"
    """What must be seen before deciding: nothing, the whole batch, or the stream's key counts (`prepare`)."""
    executes: ClassVar[bool] = False
    """Whether it goes by the time in which workers execute tuples, so that costs matter whatever load is."""
    pace: Costs | None = None
    """What a second of cost adds to a worker's load, shape ``(n,)``; None where load counts tuples."""
    employed: tuple[Costs, tuple[Step, ...]] | None = None
    """Capacities and their changes, where `employ` was told and the scheme wants to know."""
    slot: float | None = None
    """Seconds after which it is told how busy the workers are (`report`); None for never."""

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        self.n_workers = check_int("n_workers", n_workers, low=1, high=MAX_WORKERS)
        self.seed = check_int("seed", seed, low=0)

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's arguments; ``type(p)(**p.params)`` is a fresh equal partitioner."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: getattr(self, name) for name in names if name != "self"}

    @property
    def max_workers_per_key(self) -> int:
        """The most workers one key can be split over, ever; n unless the scheme bounds it."""
        return self.n_workers

    def reset(self, seed: int | None = None) -> None:
        """Forget everything routed so far; with ``seed``, also draw from a new seed."""
        if seed is not None:
            self.seed = check_int("seed", seed, low=0)
        self._reset()

    def measure(self, by: str = "tuples", capacity: ArrayLike | None = None) -> None:
        """Choose what load is: the driver's choice, not the algorithm's. A change forgets what was routed.

        Args:
            by: ``tuples``, or ``time``: the seconds that the worker needs, cost / capacity (CG Section III).
            capacity: Capacities of the workers, shape ``(n,)``; 1 if None. Not used for tuples.
        """
        pace = pace_of(by, capacity, self.n_workers)
        if not np.array_equal(pace, self.pace):  # type: ignore[arg-type] # None is an array of an object
            self.pace = pace
            self.reset()

    def employ(self, capacity: ArrayLike | None = None, schedule: Sequence[Step] = ()) -> None:  # noqa: B027 (as probe)
        """Say how fast the workers execute tuples; only those whose workers measure and report listen.

        Args:
            capacity: Capacities of the workers at the start, shape ``(n,)``; 1 if None.
            schedule: Changes of them: (seconds, worker, capacity).
        """

    def route(
        self, keys: ArrayLike, times: ArrayLike | None = None, costs: ArrayLike | None = None
    ) -> Workers:
        """Choose a worker for every tuple.

        Args:
            keys: int64 key ids, shape ``(m,)``, in stream order.
            times: Arrival times in stream seconds, shape ``(m,)``, not decreasing; needed by partitioners
                whose window is in time, ignored or optional for the others.
            costs: Work of every tuple in seconds, shape ``(m,)``, not negative: what a worker of capacity 1
                needs for it. None if all cost the same. Load takes note of it where it is time (`measure`);
                so do partitioners that declare ``executes``.

        Returns:
            Worker of every tuple, int32, shape ``(m,)``, in ``[0, n_workers)``.
        """
        try:
            ids = np.asarray(keys)
        except ValueError:
            raise ConfigError(f"keys = {shown(keys)}: expected int64 ids, shape (m,)") from None
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise ConfigError(
                f"keys has type {ids.dtype} and shape {ids.shape}: expected int64 ids, shape (m,)"
            )
        if ids.dtype.kind == "u" and ids.size and ids.max() > np.iinfo(np.int64).max:
            raise ConfigError(f"key = {ids.max()}: expected an integer below 2**63")
        ids = np.ascontiguousarray(ids, np.int64)
        work = accept_costs(self.pace, costs, len(ids))
        stamps = accept_times(self._edge(), times, len(ids))
        out = np.empty(len(ids), np.int32)
        if len(ids):
            self._route(ids, stamps, work, out)
        return out

    def _edge(self) -> Times:
        """Where the own window is; nowhere without one."""
        return NO_WINDOW

    def prepare(self, keys: Keys, counts: Keys) -> None:
        """Hand over the stream's key counts, shapes ``(K,)``; only for ``lookahead = "stream"``."""
        raise TypeError(f"{type(self).__name__} has lookahead {self.lookahead!r}: it takes no counts")

    def probe(self, truth: LoadState, total: Keys) -> None:  # noqa: B027 (an empty default, not a forgotten one)
        """Replace the own load estimate by the workers' real one; nothing to do where there is none."""

    def report(self, utilisation: ArrayLike) -> None:  # noqa: B027 (as above)
        """Hear how busy the workers were in the last ``slot``: work sent to each over what it could do.

        Shape ``(n,)``; NaN for one that could do nothing. A driver that knows capacities calls it between two
        tuples, whenever a slot has passed.
        """

    @abstractmethod
    def _reset(self) -> None:
        """Create all state."""

    @abstractmethod
    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        """Fill ``out``; ``times`` is empty if none were given, so is ``costs`` unless load is time."""

    def __repr__(self) -> str:
        """The call that makes an equal partitioner."""
        inner = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"{type(self).__name__}({inner})"


def take_loads(mine: LoadState, truth: LoadState) -> None:
    """Set a load vector to another with as many slides, slide by slide from the present one back."""
    rows = len(mine.ring)
    age = np.arange(rows)
    mine.ring[(mine.clock[HEAD] - age) % rows] = truth.ring[(truth.clock[HEAD] - age) % rows]
    mine.load[:] = truth.load


class LoadAware(Partitioner):
    """A partitioner that decides from a load vector: since the start or over a window, of tuples or of time.

    Args:
        n_workers: Number of workers.
        seed: Seed.
        window: The window of the load vector (a `Window` or its fields); None counts since the start.
    """

    loads: LoadState

    def __init__(self, *, n_workers: int, seed: int = 0, window: WindowSpec = None) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.window = Window.of(window)

    def _reset(self) -> None:
        self.loads = load_state(self.n_workers, self.window, self.pace)

    def _edge(self) -> Times:
        return self.loads.edge

    def probe(self, truth: LoadState, total: Keys) -> None:
        """Set the load vector to the workers' real one (PKG Section 3.2, probing), measured alike.

        The slide of age j in the window takes the workers' slide of age j. Windows by count are counted by
        each partitioner for itself, so ages are all that they have in common.
        """
        if self.window is None:
            self.loads.load[:] = total
            return
        if truth.ring.shape != self.loads.ring.shape or truth.edge[LENGTH] != self.loads.edge[LENGTH]:
            raise ConfigError(f"window = {self.window}: probing needs the workers' own window, or none")
        take_loads(self.loads, truth)


class SplitAware(LoadAware):
    """A partitioner that also asks which workers hold a key (the fragmentation vector)."""

    fragments: Fragments

    def _reset(self) -> None:
        super()._reset()
        self.fragments = fragments(self.n_workers, self.window)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        done = 0
        while done < len(keys):
            part = slice(done, done + BLOCK)
            decided = self._decide(keys[part], times[part], costs[part], out[part])
            done += decided
            if decided < len(keys[part]):
                self.fragments = grown(self.fragments, self.loads.clock)

    @abstractmethod
    def _decide(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> int:
        """Fill ``out`` until done or until the fragment tables are full; returns how many were."""
