"""Cooperating partitioners on Ray: driver (c) of the contract (Dalton Section 4).

An actor per partitioner makes its own source's tuples and routes them; one more is the QtableReducer. Nobody
waits for it: a message is sent, the partitioner goes on in AWAIT, and takes the answer when it is there.

A run ends with every tuple routed and counted once, whatever dies meanwhile. The stream is handed out in
batches. Every few batches a partitioner sends its state along; only then do its batches count, as a
transaction. A new actor in the place of a dead one goes on from that state, and what the dead one did since
is forgotten by all. The reducer has nothing to save: a new one learns round and DSYNC from the first message.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.agents.member import Member, warm_up
from dalton.agents.protocol import Ints, Policy, QtableReducer, Round, Sync, round_of
from dalton.envs.contract import Workers
from dalton.envs.shares import share
from dalton.envs.window import POSITION
from dalton.envs.workloads import Workload

PIECE = 1 << 15
"""Tuples of a source between two looks for an answer."""


class Batch(NamedTuple):
    """What a partitioner did with its part of a batch."""

    number: int
    workers: NDArray[np.int16]
    """``(m,)`` worker of each of its tuples."""
    seconds: float
    """Time of routing them, messages included."""
    sent: list[tuple[int, int]]
    """Round and place in the stream of its messages."""
    taken: list[tuple[Round, Ints | None]]
    """Rounds whose answers it took, and what these said of split keys."""
    saved: bytes | None
    """Its state after the batch, if it was asked for."""


class Source:
    """The actor of one partitioner.

    Args:
        workload: The whole stream.
        saved: The pickled `Member`.
        start: Tuples of the stream that have passed.
        batch: Tuples of the whole stream in a batch.
        piece: Tuples of the whole stream between two looks for an answer.
        rate: Tuples/s of the whole stream; None for as many as it can.
        patience: Seconds without an answer after which a message is sent again.
    """

    def __init__(
        self,
        workload: Workload,
        saved: bytes,
        start: int,
        batch: int,
        piece: int,
        rate: float | None,
        patience: float,
    ) -> None:
        self.workload, self.batch, self.at = workload, batch, start
        self.piece, self.rate, self.patience = piece, rate, patience
        self.asked = 0.0
        self.member: Member = pickle.loads(saved)
        self.member.poll = self._take
        self.answer: Future[tuple[Policy, Round]] | None = None
        self.reducer: Any = None
        self.stream = share(workload, self.member.member, self.piece, start)
        self.places, self.routed = np.empty(0, np.int64), 0
        self.sent: list[tuple[int, int]] = []
        self.taken: list[tuple[Round, Ints | None]] = []
        self._warm_up()

    def _warm_up(self) -> None:
        """Have everything compiled, or loaded from the cache, before the stream begins."""
        warm_up(self.member.params)
        next(share(self.workload, self.member.member, min(1000, self.workload.n_tuples)))

    def ready(self) -> str:
        """Answer when it is made: the node that it is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def advance(self, number: int, reducer: Any, save: bool) -> Batch:
        """Route the own tuples of a batch.

        Args:
            number: Number of the batch; the one after the last.
            reducer: The reducer's present actor; None to learn alone.
            save: Whether to send the state along.
        """
        if self.at != number * self.batch:
            raise RuntimeError(f"batch {number} does not begin at tuple {self.at}")
        self.member.send = None if reducer is None else self._send
        self.reducer = reducer
        if self.answer is None and self.member.pending is not None and reducer is not None:
            # From before a restart, of this actor or of the reducer.
            self._ask(self.member.pending)
        self.sent, self.taken = [], []
        parts: list[Workers] = []
        seconds = 0.0
        first, end = self.at, min(self.at + self.batch, self.workload.n_tuples)
        begun = time.monotonic()
        while self.at < end:
            own = next(self.stream)
            self._wait(begun, first)
            started = time.perf_counter()
            self._take()
            self.places, self.routed = own.places, int(self.member.loads.clock[POSITION])
            parts.append(self.member.route(own.keys, own.times))
            self.at = min(self.at + self.piece, end)
            seconds += time.perf_counter() - started
        workers = np.concatenate(parts).astype(np.int16)
        saved = pickle.dumps(self.member, protocol=5) if save else None
        return Batch(number, workers, seconds, self.sent, self.taken, saved)

    def _wait(self, begun: float, first: int) -> None:
        """Let the next tuples of the batch arrive."""
        if self.rate is not None:
            time.sleep(max(0.0, begun + (self.at - first) / self.rate - time.monotonic()))

    def _send(self, message: Sync) -> None:
        self.sent.append((message.round, int(self.places[message.position - self.routed])))
        self._ask(message)

    def _ask(self, message: Sync) -> None:
        self.answer = self.reducer.sync.remote(message).future()
        self.asked = time.monotonic()

    def _take(self) -> None:
        """Take the answer if it is there."""
        from ray.exceptions import ObjectLostError, RayActorError

        if self.answer is None:
            return
        if not self.answer.done():
            if time.monotonic() - self.asked > self.patience and self.member.pending is not None:
                self._ask(self.member.pending)
            return
        answer, self.answer = self.answer, None
        try:
            policy, about = answer.result()
        except (RayActorError, ObjectLostError):
            return  # the reducer is gone: its successor is asked when the next batch begins
        if self.member.receive(policy):
            self.taken.append((about._replace(position=self.at), policy.split))

    def step(self, length: int, reducer: Any) -> tuple[Workers, list[Sync], list[Closed]]:
        """In lock-step: route the own of the next ``length`` tuples of the stream.

        Returns:
            Workers, messages, and rounds that closed at once if ``reducer`` is given, which answers at once.
        """
        import ray

        messages: list[Sync] = []
        closed: list[Closed] = []

        def send(message: Sync) -> None:
            messages.append(message)
            found = None if reducer is None else ray.get(reducer.hear.remote(message))
            if found is not None:
                closed.append(found)
                self.member.receive(found[0])

        self.member.send = send
        (own,) = share(self.workload, self.member.member, length, self.at, self.at + length)
        self.at += length
        return self.member.route(own.keys, own.times), messages, closed

    def receive(self, policy: Policy) -> bool:
        """In lock-step: take an answer."""
        return self.member.receive(policy)

    def state(self) -> bytes:
        """The pickled `Member`."""
        return pickle.dumps(self.member)


Closed = tuple[Policy, list[Sync]]
"""An answer, and what it was made of."""


class Reducer:
    """The actor of the QtableReducer.

    Args:
        timeout: Seconds after the first message of a round at which it closes without those that are silent.
        work: Seconds by which every round is slowed (Fig. 14b).
        left: Partitioners whose streams have ended.
        **params: See `QtableReducer`.
    """

    def __init__(self, timeout: float, work: float = 0.0, left: tuple[int, ...] = (), **params: Any) -> None:
        self.reducer = QtableReducer(**params)
        for sender in left:
            self.reducer.leave(sender)
        self.timeout, self.work = timeout, work
        self.answer: tuple[Policy, Round] | None = None
        self.closing = False
        self.began = self.idle_since = time.perf_counter()
        self.timer: asyncio.TimerHandle | None = None
        self.next: asyncio.Future[tuple[Policy, Round]] | None = None

    async def sync(self, message: Sync) -> tuple[Policy, Round]:
        """Take a message, and answer when its round is closed; one that missed it gets the last."""
        reducer = self.reducer
        if message.round < reducer.round and self.answer is not None:
            return self.answer
        loop = asyncio.get_running_loop()
        if self.next is None:
            self.next = loop.create_future()
        answer = self.next
        if not reducer.heard or message.round > reducer.round:
            self.began = time.perf_counter()
            self._wait(loop)
        reducer.hear(message)
        if reducer.complete:
            await self._close()
        return await asyncio.shield(answer)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = loop.call_later(self.timeout, lambda: loop.create_task(self._close()))

    async def _close(self) -> None:
        if self.closing or not self.reducer.heard or self.next is None:
            return
        self.closing = True
        started = time.perf_counter()
        if self.work:
            await asyncio.sleep(self.work)
        if self.timer is not None:
            self.timer.cancel()
        heard = list(self.reducer.heard.values())
        busy = time.perf_counter() - started
        policy = self.reducer.close(idle=started - self.idle_since, busy=busy)
        self.idle_since = time.perf_counter()
        self.answer = policy, round_of(policy, heard, 0, self.idle_since - self.began)
        answered, self.next, self.closing = self.next, None, False
        answered.set_result(self.answer)

    async def leave(self, sender: int) -> None:
        """Wait no more for a partitioner whose stream has ended."""
        self.reducer.leave(sender)
        if self.reducer.complete:
            await self._close()

    async def watch(self) -> None:
        """Never answer: who waits for it learns when this actor dies."""
        await asyncio.Event().wait()

    async def hear(self, message: Sync) -> Closed | None:
        """In lock-step without a delay: take a message; the answer if that completes the round."""
        self.reducer.hear(message)
        if not self.reducer.complete:
            return None
        heard = list(self.reducer.heard.values())
        return self.reducer.close(idle=0, busy=0), heard

    async def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """In lock-step: an attribute of the `QtableReducer`, or what a method of it returns."""
        found = getattr(self.reducer, name)
        return found(*args, **kwargs) if callable(found) else found
