"""``dalton/MicroBatchPartition-v0``: one step is one micro-batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import error, spaces
from numpy.typing import NDArray

from dalton.envs.cluster import Cluster
from dalton.envs.errors import ConfigError, check_choice, check_int, check_real, shown
from dalton.envs.hashing import candidates, family
from dalton.envs.kernel import kernel
from dalton.envs.metrics import WindowCounts, excess, max_over_mean, replication
from dalton.envs.render import picture, text
from dalton.envs.reward import reward
from dalton.envs.stream_partition import Observation, SettingError
from dalton.envs.table import encode
from dalton.envs.window import (
    HEAD,
    MEASURES,
    TICKS,
    CapacitySpec,
    Window,
    accept_costs,
    amount,
    check_capacity,
)
from dalton.envs.workloads import Chunk, Workload, make_workload

TAIL = -1


@kernel
def deal_weighted(
    hot: Any,
    homes: Any,
    weights: Any,
    credit: Any,
    load: Any,
    held: Any,
    p1: Any,
    pace: Any,
    costs: Any,
    out: Any,
) -> Any:
    """Route a batch: tuples of hot keys by the weights of their row, others hashed.

    Smooth weighted round robin: every worker of the row earns its weight, the richest gets the tuple and pays
    1, so that any run of tuples is spread as the weights say.

    Args:
        hot: ``(m,)`` row of every tuple's key, TAIL if it is cold.
        homes: ``(m,)`` hashed workers.
        weights: ``(H, n)``, every row with sum 1, or all 0: hashed.
        credit: ``(H, n)`` what the workers have earned, zeros at first.
        load: ``(n,)`` load per worker in the window; counted on.
        held: ``(H, n)`` whether a worker has the key in this batch, zeros at first.
        p1: Weight of balance in the reward.
        pace: ``(n,)`` load per second of cost, None where load counts tuples (`dalton.envs.window.amount`).
        costs: ``(m,)`` seconds, not used for tuples.
        out: ``(m,)`` workers.

    Returns:
        The mean reward of the hot tuples (Eq. 3 and 4, fragments within the batch), 0 if there are none.
    """
    n = len(load)
    total = load.sum()
    gained, decided = 0.0, 0
    for i in range(len(hot)):
        row = hot[i]
        best = np.int64(homes[i])
        if row != TAIL:
            given = 0.0
            for w in range(n):
                credit[row, w] += weights[row, w]
                given += weights[row, w]
            if given > 0.0:
                best = np.int64(0)
                for w in range(1, n):
                    if credit[row, w] > credit[row, best]:
                        best = np.int64(w)
                credit[row, best] -= 1.0
        added = amount(pace, costs, i, best)
        load[best] += added
        total += added
        if row != TAIL:
            held[row, best] = 1
            gained += reward(load[best], total, n, held[row].sum(), p1)
            decided += 1
        out[i] = best
    return gained / decided if decided else 0.0


def scaled(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Weights ``(H, n)`` with rows of sum 1, or 0 where all are 0."""
    sums = weights.sum(axis=1, keepdims=True, dtype=np.float64)
    out: NDArray[np.float64] = np.divide(weights, sums, out=np.zeros(weights.shape), where=sums > 0)
    return out


class Batches:
    """Cluster and hot keys, batch by batch: what a split table is decided from, and what it does.

    Args:
        n_workers: Number of workers n.
        hot_keys: c n: a key is hot from a share of 1 / (c n) of the batch on.
        n_rows: Rows H of the split table.
        window_batches: Batches in the window of the loads.
        member: The hash function of cold keys.
        p1: Weight of balance in the reward.
        measure: What load is: ``tuples``, or ``time``, which is cost over capacity.
        capacity: Capacities of the workers; 1 if None. Not used for tuples.
    """

    def __init__(
        self,
        *,
        n_workers: int,
        hot_keys: float,
        n_rows: int,
        window_batches: int,
        member: NDArray[np.uint32],
        p1: float,
        measure: str = "tuples",
        capacity: CapacitySpec = None,
    ) -> None:
        self.n, self.hot_keys, self.shape = n_workers, hot_keys, (n_rows, n_workers)
        self.member, self.p1 = member, p1
        # A batch is a slide, whatever its length: its tuples all have its number as their time.
        window = Window(window_batches, 1, "time")
        self.capacity = check_capacity(capacity, n_workers)
        self.cluster = Cluster(n_workers=n_workers, window=window, measure=measure, capacity=self.capacity)
        self.pace = self.cluster.measured[0].pace
        self.count = 0

    def look(self, keys: NDArray[np.int64], costs: NDArray[np.float64] | None = None) -> Observation:
        """Take the next batch and say what is to be seen of it (`MicroBatchPartitionEnv`)."""
        coded = encode(keys)
        least = len(keys) / self.hot_keys
        order = np.argsort(-coded.counts, kind="stable")[: self.shape[0]]
        order = order[coded.counts[order] >= least]
        rows = np.full(len(coded.distinct), TAIL)
        rows[order] = np.arange(len(order))
        self.batch, self.keys = keys, coded.distinct[order]
        self.shares = coded.counts[order] / len(keys)
        self.hot, self.homes = rows[coded.codes], candidates(keys, self.member, self.n)[0]
        self.costs = accept_costs(self.pace, costs, len(keys))
        return self.observation()

    def observation(self) -> Observation:
        """What is to be seen of the last batch that was taken."""
        h, n = self.shape
        shares, fragments = np.zeros(h, np.float32), np.zeros((h, n), np.int8)
        shares[: len(self.keys)] = self.shares
        for row, key in enumerate(self.keys):
            fragments[row] = self.cluster.holders(int(key))
        load = self._load()
        cold = self.hot == TAIL
        amounts = None if self.pace is None else self.costs / self.capacity[self.homes]
        tail = np.bincount(self.homes[cold], None if amounts is None else amounts[cold], minlength=n)
        whole = len(self.batch) if amounts is None else max(amounts.sum(), 1e-9)
        parts = {
            "shares": shares,
            "fragments": fragments,
            "load": (load / max(load.mean(), 1e-9)).astype(np.float32),
            "tail": np.minimum(tail * n / whole, n).astype(np.float32),
        }
        if self.pace is not None:
            parts["costs"] = np.zeros(h, np.float32)
            sums = np.bincount(self.hot[~cold], self.costs[~cold], minlength=len(self.keys))
            means = sums / (self.shares * len(self.batch))
            parts["costs"][: len(self.keys)] = means / np.maximum(means + self.costs.mean(), 1e-12)
            parts["capacity"] = (self.capacity / self.capacity.max()).astype(np.float32)
        return parts

    def _load(self) -> NDArray[np.int64]:
        """Load per worker in the window that the next batch ends: without the slide that it pushes out."""
        loads = self.cluster.measured[0]
        oldest = (loads.clock[HEAD] + 1) % len(loads.ring)
        load: NDArray[np.int64] = loads.load - (loads.ring[oldest] if self.count else 0)
        return load

    def deal(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.int32], float]:
        """Route the batch by a split table with `scaled` rows; returns the workers and the mean reward."""
        workers = np.empty(len(self.batch), np.int32)
        load, held = self._load(), np.zeros(self.shape, np.int64)
        credit = np.zeros(self.shape)
        gain = deal_weighted(
            self.hot, self.homes, weights, credit, load, held, self.p1, self.pace, self.costs, workers
        )
        times = np.full(len(workers), float(self.count))
        self.cluster.observe(self.batch, workers, times, None if self.pace is None else self.costs)
        self.count += 1
        return workers, float(gain)


class MicroBatchPartitionEnv(gym.Env[Observation, NDArray[np.float32]]):
    """One step routes one micro-batch by a split table: hot keys × workers weights (Dalton Section 3.4).

    This is the form in which a policy is exported to Spark. All tuples of the batch are seen before deciding.

    Observation (``Dict``): ``shares``, of the batch's hot keys in it, most frequent first, ``(H,)``;
    ``fragments``, which workers hold each at the end of the last batch, ``(H, n)``; ``load``, tuples per
    worker in the window that this batch will end, before it, over their mean, ``(n,)``; ``tail``, the
    batch's cold tuples per worker, which are hashed, over the
    mean tuples per worker of the batch, ``(n,)``. A key is hot if its count reaches m / (c n); H = ⌈c n⌉,
    or m if that is less.
    Action: weights ``(H, n)``; a row is scaled to sum 1, a row of zeros hashes the key. Reward: the mean over
    the hot tuples of Eq. 3 and 4, with loads of the window and fragments of the batch.
    With ``measure="time"`` load is the time that the workers need, cost over capacity: in ``load``, in
    ``tail`` (over the mean of the batch if all of it were hashed), in reward and metrics; then there are also
    ``costs``, x / (x + x̄) of a hot key's mean cost x and the batch's x̄, ``(H,)``, and ``capacity``, over the
    largest, ``(n,)``.
    ``info`` has the hot keys (``keys``, a list: their number differs between copies of a vector form) and the
    metrics of the batch that was routed (``slide``).

    Args:
        workload: Name of a workload, or its specification; its seed is set by ``reset``.
        n_workers: Number of workers n.
        batch_size: Tuples in a batch, m.
        window_batches: Batches in the window of the loads.
        hot_factor: c in the threshold m / (c n) of a hot key.
        p1: Weight of balance in the reward.
        max_batches: Batches after which an episode is truncated; None for the workload's length.
        hash_seed: Chooses the hashed worker.
        measure: What load is: ``tuples``, or ``time``.
        capacity: Capacities of the workers; 1 if None. Not used for tuples.
        render_mode: ``ansi`` or ``rgb_array``: the loads; workers that hold the most frequent key are marked.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(
        self,
        *,
        workload: Any = "zipf",
        n_workers: int = 8,
        batch_size: int = 20_000,
        window_batches: int = 10,
        hot_factor: float = 1.0,
        p1: float = 0.5,
        max_batches: int | None = None,
        hash_seed: int = 0,
        measure: str = "tuples",
        capacity: CapacitySpec = None,
        render_mode: str | None = None,
    ) -> None:
        try:
            self.workload: Workload = make_workload(workload)
            self.n = check_int("n_workers", n_workers, low=1, high=2**15 - 1)
            self.batch_size = check_int("batch_size", batch_size, low=1)
            self.window_batches = check_int("window_batches", window_batches, low=1)
            self.hot_keys = check_real("hot_factor", hot_factor, above=0) * self.n
            self.p1 = check_real("p1", p1, low=0, high=1)
            limit = self.workload.n_tuples // self.batch_size
            if limit < 1:
                raise ConfigError(f"batch_size = {batch_size}: expected n_tuples or less")
            self.max_batches = (
                limit if max_batches is None else min(limit, check_int("max_batches", max_batches, low=1))
            )
            self.member = family(check_int("hash_seed", hash_seed, low=0), 1)
            self.capacity = check_capacity(capacity, self.n)
            self.measure = check_choice("measure", measure, MEASURES)
        except ConfigError as problem:
            raise SettingError(str(problem)) from None
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise SettingError(f"render_mode = {render_mode!r}: expected ansi or rgb_array")
        self.render_mode = render_mode
        self.shape = h, n = math.ceil(min(self.hot_keys, self.batch_size)), self.n
        parts: dict[str, spaces.Space[Any]] = {
            "shares": spaces.Box(0, 1, (h,), np.float32),
            "fragments": spaces.MultiBinary((h, n)),
            "load": spaces.Box(0, n, (n,), np.float32),
            "tail": spaces.Box(0, n, (n,), np.float32),
        }
        if self.measure == "time":
            parts["costs"] = spaces.Box(0, 1, (h,), np.float32)
            parts["capacity"] = spaces.Box(0, 1, (n,), np.float32)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(0, 1, self.shape, np.float32)
        self.begun = self.waiting = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode on a new stream; the seed decides which."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31))
        seeded = "seed" in self.workload.params
        stream = make_workload(self.workload, seed=drawn) if seeded else self.workload
        self.stream: Iterator[Chunk] = stream.chunks(self.batch_size)
        self.batches = Batches(
            n_workers=self.n,
            hot_keys=self.hot_keys,
            n_rows=self.shape[0],
            window_batches=self.window_batches,
            member=self.member,
            p1=self.p1,
            measure=self.measure,
            capacity=self.capacity,
        )
        self.work: deque[float] = deque(maxlen=self.window_batches)
        self.counts = WindowCounts(self.window_batches)
        self.waiting = False  # if the stream breaks, there is no batch to route
        seen = self._look()
        self.begun = self.waiting = True
        return seen, {"keys": self.batches.keys.tolist()}

    def _look(self) -> Observation:
        batch = next(self.stream)
        return self.batches.look(batch.keys, batch.costs)

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Route the present batch by the split table ``action`` and look at the next."""
        if not self.waiting:
            raise error.ResetNeeded("step() was called before reset() or after the end of the episode")
        _, gain = self.batches.deal(self._weights(action))
        self.work.append(float(self.batches.costs.sum()))
        self.counts.observe(self.batches.batch)
        self.counts.close(self.batches.count - 1)
        info: dict[str, Any] = {"slide": self._measure()}
        over = self.batches.count == self.max_batches
        self.waiting = False
        if over:
            seen = self.batches.observation()
        else:
            seen = self._look()
            self.waiting = True
        info["keys"] = self.batches.keys.tolist()
        return seen, gain, False, over, info

    def _weights(self, action: Any) -> NDArray[np.float64]:
        """The action as weights with rows of sum 1 or 0."""
        shape = self.shape
        try:
            weights = np.asarray(action)
        except (TypeError, ValueError):
            weights = np.empty(0)
        numbers = weights.dtype.kind in "biuf"
        if weights.shape != shape or not numbers or not np.all((weights >= 0) & (weights <= 1)):
            raise error.InvalidAction(f"action = {shown(action)}: expected shape {shape}, from 0 to 1")
        return scaled(weights)

    def _measure(self) -> dict[str, float]:
        cluster = self.batches.cluster
        load, pairs = cluster.measured[0].load, int(cluster.pairs.sum())
        best_load: float
        best_load, best_pairs = self.counts.bound(self.n)
        if self.measure == "time":
            # Work can be divided as capacity is: no worker then needs longer than the others.
            best_load = TICKS * sum(self.work) / float(self.capacity.sum())
        return {
            "slide": float(self.batches.count - 1),
            "max_over_mean": max_over_mean(load),
            "replication": replication(pairs, cluster.n_keys),
            "regret_load": excess(float(load.max()), best_load),
            "regret_pairs": excess(pairs, best_pairs),
        }

    def render(self) -> Any:
        """The loads, and which workers hold the batch's most frequent key: a text or an image."""
        if self.render_mode is None:
            return None
        if not self.begun:
            raise error.ResetNeeded("render() was called before reset()")
        b = self.batches
        key = int(b.keys[0]) if len(b.keys) else int(b.batch[0])
        load, held = b.cluster.measured[0].load, b.cluster.holders(key)
        if self.render_mode == "ansi":
            return text(load, held, f"batch {b.count}, key {key}")
        return picture(load, held)
