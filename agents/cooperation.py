"""Cooperating partitioners in one process, deterministic, with a message delay that is set (Dalton §4).

Used for sweeps and tests; the same members and reducer run on Ray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.agents.forwarding import Forwarding
from dalton.agents.member import Member
from dalton.agents.protocol import Policy, QtableReducer, Round, Sync, round_of
from dalton.envs.contract import Keys, Times, Workers
from dalton.envs.errors import ConfigError, check_int, shown
from dalton.envs.window import DEFAULT_WINDOW, Window, WindowSpec


class Cooperation:
    """P members, one reducer, and messages that take ``delay`` tuples of the whole stream.

    With a delay the decisions do not depend on how the stream is cut. Without, the member that completes a
    round has the answer at once, the others with their next tuples.

    Args:
        n_partitioners: Number of partitioners P.
        n_workers: Number of workers n.
        window: Window of the whole stream. Where it counts tuples, every member's is the P-th part of it, and
            so is STATS_WIN.
        delay: Tuples of the whole stream between sending and receiving.
        work: Tuples of the whole stream that the reducer takes for a round; or pairs (from which tuple on, so
            many), ascending.
        timeout: Tuples of the whole stream after the first message of a round at which the reducer closes it
            without those that are silent; None to wait for all.
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
        work: int | Iterable[tuple[int, int]] = 0,
        timeout: int | None = None,
        sync: bool = True,
        max_dsync: int = 1,
        step: int = 1000,
        **params: Any,
    ) -> None:
        self.size = check_int("n_partitioners", n_partitioners, low=1)
        self.delay, self.work = check_int("delay", delay, low=0), work_of(work)
        self.timeout = None if timeout is None else check_int("timeout", timeout, low=1)
        self.step, self.sync = check_int("step", step, low=1), bool(sync)
        self.members = self._members({"n_workers": n_workers, **params}, window)
        self.reducer = QtableReducer(
            n_workers=n_workers,
            n_partitioners=self.size,
            hot_factor=params.get("hot_factor", 1.0),
            max_dsync=max_dsync,
        )
        self.now = 0
        self.to_reducer: deque[tuple[int, Sync]] = deque()
        self.to_members: deque[tuple[int, int, Policy]] = deque()
        self.first_heard = self.idle_since = 0
        self.rounds: list[Round] = []
        self.forwarding = Forwarding(self.size)
        self.routed = np.zeros(self.size, np.int64)
        self.places = np.empty(0, np.int64)

    def _members(self, params: dict[str, Any], window: WindowSpec) -> list[Member]:
        members = make_members(self.size, params, window)
        for member in members:
            member.send = self._send if self.sync else None
        return members

    def route(
        self, keys: Keys, sources: NDArray[np.int32] | None = None, times: Times | None = None
    ) -> Workers:
        """Route the next tuples of the stream, of all sources, those of source i by member i."""
        if sources is None and self.size > 1:
            raise ConfigError(f"sources = None: expected the source of every tuple, 0 to {self.size - 1}")
        workers = np.empty(len(keys), np.int32)
        low = 0
        while low < len(keys):
            high = min(len(keys), low + self.step - self.now % self.step)
            for i in range(self.size):
                own = np.arange(low, high)
                if sources is not None:
                    own = own[sources[low:high] == i]
                # Where in the whole stream are the tuples that the member routes now.
                self.places = self.now + own - low
                workers[own] = self._route(i, high - low, keys[own], None if times is None else times[own])
                self.routed[i] += len(own)
            self.now += high - low
            low = high
            if self.now % self.step == 0:
                self._deliver()
        return workers

    def _route(self, i: int, length: int, keys: Keys, times: Times | None) -> Workers:
        """Let member i route its own of the next ``length`` tuples."""
        return self.members[i].route(keys, times)

    def _send(self, message: Sync) -> None:
        sender = message.sender
        self.forwarding.sent(sender, message.round, int(self.places[message.position - self.routed[sender]]))
        began = self.now - self.now % self.step
        self.to_reducer.append((began + self.delay, message))
        if self.delay == 0:
            self._deliver()

    def _deliver(self) -> None:
        """Let everything happen that is due."""
        reducer = self.reducer
        while self.to_reducer and self.to_reducer[0][0] <= self.now:
            began = not reducer.heard
            if reducer.hear(self.to_reducer.popleft()[1]) and began:
                self.first_heard = self.now
            if reducer.complete:
                self._close()
        if reducer.heard and self.timeout is not None and self.now - self.first_heard >= self.timeout:
            self._close()
        while self.to_members and self.to_members[0][0] <= self.now:
            _, i, policy = self.to_members.popleft()
            if self._receive(i, policy):
                self.forwarding.received(i, policy.round, self.now, policy.split)

    def _receive(self, i: int, policy: Policy) -> bool:
        return self.members[i].receive(policy)

    def _close(self) -> None:
        heard = list(self.reducer.heard.values())
        work = next(work for start, work in reversed(self.work) if start <= self.now)
        policy = self.reducer.close(idle=max(0, self.now - self.idle_since), busy=work)
        self.idle_since = self.now + work
        self.to_members += [(self.now + work + self.delay, i, policy) for i in range(self.size)]
        self.rounds.append(round_of(policy, heard, self.now, self.now + work - self.first_heard))


def make_members(size: int, params: dict[str, Any], window: WindowSpec) -> list[Member]:
    """The members; where windows count tuples, each has the P-th part of the whole stream's."""
    span, stats = Window.of(window), params.get("stats_window")
    if span is not None and span.by == "count":
        if span.slide < size:
            raise ConfigError(
                f"window.slide = {span.slide}: expected at least a tuple for each of {size} sources"
            )
        slide = int(span.slide) // size
        span = Window(slide * span.n_slides, slide)
        stats = None if stats is None else max(1, int(stats) // size)
    return [Member(**{**params, "stats_window": stats, "member": i, "window": span}) for i in range(size)]


def work_of(given: int | Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The reducer's time per round as (from which tuple on, tuples), checked."""
    pairs = given if isinstance(given, Iterable) and not isinstance(given, str) else [(0, given)]
    try:
        work = [(check_int("work", start, low=0), check_int("work", time, low=0)) for start, time in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        work = []
    starts = [start for start, _ in work]
    if not work or starts[0] != 0 or starts != sorted(set(starts)):
        raise ConfigError(
            f"work = {shown(given)}: expected tuples, or pairs (from which tuple on, tuples) from 0 on"
        )
    return work
