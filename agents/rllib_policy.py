"""Policies trained with RLlib as partitioners; neither Ray nor torch is needed to route with them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from dalton.agents.network import choose, forward, load_policy, network
from dalton.envs.contract import Costs, Keys, LoadAware, Partitioner, Times, Workers, take_loads
from dalton.envs.dynamics import (
    AT,
    CHUNK,
    DECISION,
    NO_ROOM,
    ROW,
    SEEN,
    SIZE,
    SLIDE_END,
    TIMES,
    Rules,
    advance,
    begin,
    grown,
    look,
    new_state,
    send,
    views,
)
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import family, hash_workers, member
from dalton.envs.kernel import kernel
from dalton.envs.micro_batch import Batches, scaled
from dalton.envs.window import DEFAULT_WINDOW, LoadState, Window, WindowSpec


@kernel
def observe(v: Any, x: Any) -> None:
    """Lay what is seen of copy 0 into ``x``, ``(2 n + 2,)``, as RLlib flattens it: by names in order."""
    n = v.real.shape[1] - 1
    for w in range(n):
        x[w] = v.binary[0, w]
        x[n + 1 + w] = v.real[0, w]
    x[n] = v.binary[0, n]
    x[2 * n + 1] = v.real[0, n]


@kernel
def _decide(c: Any, v: Any, net: Any, out: Any) -> Any:
    """Route until the tuples are out or the table is full; returns what is waited for."""
    n = v.real.shape[1] - 1
    while True:
        status = advance(c, 0, n)
        if status == SLIDE_END:
            c.ints[0, SEEN] = 1
        elif status == DECISION:
            look(c, 0, n, v)
            observe(v, net.values[0])
            worker = choose(net)
            send(c, 0, n, c.ints[0, ROW], worker)
            out[c.ints[0, AT] - 1] = worker
        else:
            return status


class RLlibPolicy(LoadAware):
    """A network trained by ``dalton train`` on StreamPartition-v0 decides, greedily, where hot keys go.

    The decisions are those of the trained module in the environment: the same kernels follow the stream and
    make the observations, and the network's forward pass is one too. The worker is the one with the largest
    logit (PPO) or Q-value (DQN), a tie takes the first. All that is observed is relative to the window, so
    that a policy may be used with another one than in training, but not with another number of workers.
    Having been trained on load in tuples, it takes no note of costs.

    Args:
        n_workers: Number of workers n, as in training.
        seed: Chooses the hashed worker.
        window: Window of load and fragments; keys are counted slide by slide.
        checkpoint: The folder of the policy.
    """

    forwards = True

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        window: WindowSpec = DEFAULT_WINDOW,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        if self.window is None:
            raise ConfigError("window = None: rllib needs a window, its slide is the unit of its statistics")
        self.checkpoint = checkpoint
        self.policy = load_policy(checkpoint, "stream", self.n_workers)
        self.reset()

    def _reset(self) -> None:
        assert self.window is not None
        policy, n = self.policy, self.n_workers
        rules = Rules(
            window=self.window,
            stats_window=None,
            hot_keys=policy.hot_factor * n,
            only_hot=policy.only_hot,
            quantum=policy.quantum,
        )
        self.member = member(self.seed)
        self.network = network(policy.layers)
        self.state = new_state(1, n, rules)
        self.views = views(1, n)
        begin(self.state, 0, rules, np.iinfo(np.int64).max)

    @property
    def loads(self) -> LoadState:  # type: ignore[override]
        """The load vector, as parts of the state."""
        c, n = self.state, self.n_workers
        return LoadState(c.ring[0, 0, :n], c.ring[0, 1:, :n], c.ints[0, :4], c.floats[0, :4], None)  # type: ignore[arg-type]

    def probe(self, truth: LoadState, total: Keys) -> None:
        """Set the load vector to the workers' real one, if that counts tuples too."""
        if self.pace is not None:
            return
        super().probe(truth, total)
        ring, n = self.state.ring[0], self.n_workers
        ring[:, n] = ring[:, :n].sum(axis=1)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        for low in range(0, len(keys), CHUNK):
            part = slice(low, low + CHUNK)
            self._take(keys[part], times[part], out[part])
            while _decide(self.state, self.views, self.network, out[part]) == NO_ROOM:
                self.state = grown(self.state, self.n_workers)

    def _take(self, keys: Keys, times: Times, out: Workers) -> None:
        """Lay a chunk before the kernel, and hash it: what is not decided stays so."""
        c, m = self.state, len(keys)
        hash_workers(keys, self.member, self.n_workers, out)
        c.chunk[0, 0, :m], c.chunk[0, 1, :m] = keys, out
        c.floats[0, TIMES : TIMES + len(times)] = times
        c.ints[0, AT], c.ints[0, SIZE] = 0, m


class RLlibBatchPolicy(Partitioner):
    """A network trained by ``dalton train`` on MicroBatchPartition-v0 decides how hot keys are split.

    A batch is routed by the split table that is the mean of the trained Gaussian, moved from [-1, 1] to
    [0, 1] and clipped, as RLlib hands it to the environment; its rows are scaled to sum 1.

    Args:
        n_workers: Number of workers n, as in training.
        seed: Chooses the hashed worker.
        window: Window of the loads; every batch counts as one of its slides.
        checkpoint: The folder of the policy.
    """

    forwards = True
    lookahead: ClassVar[Literal["none", "batch", "stream"]] = "batch"

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        window: WindowSpec = DEFAULT_WINDOW,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed)
        self.window = Window.of(window)
        if self.window is None:
            raise ConfigError("window = None: rllib_batch needs a window, of which a batch is one slide")
        self.checkpoint = checkpoint
        self.policy = load_policy(checkpoint, "batch", self.n_workers)
        self.reset()

    def _reset(self) -> None:
        assert self.window is not None
        self.network = network(self.policy.layers)
        self.batches = Batches(
            n_workers=self.n_workers,
            hot_keys=self.policy.hot_factor * self.n_workers,
            n_rows=self.policy.n_rows,
            window_batches=self.window.n_slides,
            member=family(self.seed, 1),
            p1=0.5,
        )

    def probe(self, truth: LoadState, total: Keys) -> None:
        """Set the load vector to the workers' real one, if that counts tuples too."""
        if self.pace is not None:
            return
        if len(truth.ring) != len(self.batches.cluster.loads.ring):
            raise ConfigError(f"window = {self.window}: probing needs the workers' own window")
        take_loads(self.batches.cluster.loads, truth)

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        seen = self.batches.look(keys)
        flat = np.concatenate([seen[name].ravel() for name in sorted(seen)])
        self.network.values[0, : len(flat)] = flat
        h, n = self.batches.shape
        means = self.network.values[forward(self.network), : h * n].reshape(h, n)
        out[:], _ = self.batches.deal(scaled(np.clip((means + 1.0) / 2.0, 0.0, 1.0)))
