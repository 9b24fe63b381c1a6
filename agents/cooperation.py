"""Cooperating partitioners in one process, deterministic, with a message delay that is set (Dalton §4).

Used for sweeps and tests; the same members and reducer run on Ray.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.agents.member import Member
from dalton.agents.protocol import Policy, QtableReducer, Sync
from dalton.envs.contract import Keys, Workers
from dalton.envs.errors import check_int
from dalton.envs.window import DEFAULT_WINDOW, Window, WindowSpec


class Round(NamedTuple):
    """A round of the reducer, in tuples of the whole stream."""

    number: int
    closed: int
    """Tuples routed when it closed."""
    dsync: int
    hot: int
    """Keys that are hot for everybody."""
    disagreement: float
    """Mean standard deviation of a value between the members that have the key, before the round."""


class Cooperation:
    """P members, one reducer, and messages that take ``delay`` tuples of the whole stream.

    Args:
        n_partitioners: Number of partitioners P.
        n_workers: Number of workers n.
        window: Window of the whole stream. Where it counts tuples, every member's is the P-th part of it.
        delay: Tuples of the whole stream between sending and receiving.
        work: Tuples of the whole stream that the reducer takes for a round.
        sync: Whether members cooperate; without, each learns alone.
        max_dsync: See `QtableReducer`.
        step: Tuples of the whole stream between two looks at the messages.
        **params: See `Member`.
    """

    def __init__(
        self,
        *,
        n_partitioners: int,
        n_workers: int,
        window: WindowSpec = DEFAULT_WINDOW,
        delay: int = 0,
        work: int = 0,
        sync: bool = True,
        max_dsync: int = 1,
        step: int = 1000,
        **params: Any,
    ) -> None:
        self.size = check_int("n_partitioners", n_partitioners, low=1)
        self.delay, self.work = check_int("delay", delay, low=0), check_int("work", work, low=0)
        self.step, self.sync = check_int("step", step, low=1), bool(sync)
        span = Window.of(window)
        if span is not None and span.by == "count":
            span = Window(int(span.size) // self.size, int(span.slide) // self.size)
        self.members = [
            Member(member=i, n_workers=n_workers, window=span, **params) for i in range(self.size)
        ]
        self.reducer = QtableReducer(
            n_workers=n_workers,
            n_partitioners=self.size,
            hot_factor=params.get("hot_factor", 1.0),
            max_dsync=max_dsync,
        )
        for member in self.members:
            member.send = self._send if self.sync else None
        self.now = 0
        self.to_reducer: deque[tuple[int, Sync]] = deque()
        self.to_members: deque[tuple[int, Policy]] = deque()
        self.idle_since = 0
        self.rounds: list[Round] = []

    def route(
        self, keys: Keys, sources: NDArray[np.int32] | None = None, times: NDArray[np.float64] | None = None
    ) -> Workers:
        """Route tuples of all sources, source i by member i."""
        workers = np.empty(len(keys), np.int32)
        for low in range(0, len(keys), self.step):
            high = min(low + self.step, len(keys))
            for i, member in enumerate(self.members):
                own = np.arange(low, high)
                if sources is not None:
                    own = own[sources[low:high] == i]
                elif i > 0:
                    continue
                workers[own] = member.route(keys[own], None if times is None else times[own])
            self.now += high - low
            self._deliver()
        return workers

    def _send(self, message: Sync) -> None:
        self.to_reducer.append((self.now + self.delay, message))
        if self.delay == 0:
            self._deliver()

    def _deliver(self) -> None:
        """Let everything happen that is due."""
        while self.to_reducer and self.to_reducer[0][0] <= self.now:
            self.reducer.hear(self.to_reducer.popleft()[1])
            if self.reducer.complete:
                self._close()
        while self.to_members and self.to_members[0][0] <= self.now:
            policy = self.to_members.popleft()[1]
            for member in self.members:
                member.receive(policy)

    def _close(self) -> None:
        heard = list(self.reducer.heard.values())
        idle = max(0, self.now - self.idle_since)
        policy = self.reducer.close(idle=idle, busy=self.work)
        self.idle_since = self.now + self.work
        self.to_members.append((self.now + self.work + self.delay, policy))
        spread = disagreement(heard, policy.hot)
        self.rounds.append(Round(policy.round, self.now, policy.dsync, len(policy.hot), spread))


def disagreement(messages: list[Sync], hot: NDArray[np.int64]) -> float:
    """Mean over hot keys and workers of the standard deviation of Q between the members that have the key."""
    found = []
    for key in hot.tolist():
        rows = [message.q[message.hot == key][0] for message in messages if key in message.hot]
        if len(rows) > 1:
            found.append(float(np.std(rows, axis=0).mean()))
    return float(np.mean(found)) if found else 0.0
