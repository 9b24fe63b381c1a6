"""Runs `dalton.agents.actors` on Ray: starts them, hands out the stream, replaces those that die."""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.agents.actors import PIECE, Batch, Reducer, Source
from dalton.agents.cooperation import Cooperation, make_members
from dalton.agents.forwarding import Forwarding
from dalton.agents.member import Member
from dalton.agents.protocol import Policy, Round, round_of
from dalton.envs.cluster import Cluster
from dalton.envs.contract import Keys, Times, Workers
from dalton.envs.errors import ConfigError, check_int, check_real
from dalton.envs.window import WindowSpec
from dalton.envs.workloads import Chunk, Workload

log = logging.getLogger("dalton")

STORE = 200 * 2**20
"""Bytes of an embedded Ray's object store: messages and batches are small."""
LOOK = 0.001
"""Seconds between two looks for an answer, of a stream with a rate."""
# Actors ask for next to nothing of a core: whole ones would let a run with more partitioners than cores wait
# for ever, and nothing at all is not spread over the nodes.
ACTOR = {"num_cpus": 0.001, "scheduling_strategy": "SPREAD", "max_restarts": 0}


def import_ray(*, local: bool = True) -> Any:
    """Ray, or a line that says how to get it.

    Args:
        local: Whether a Ray started here is for this machine alone, and listens to it alone.
    """
    if local:
        # Ray binds to all interfaces unless told not to have clusters; it reads this when imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "ray is not installed: expected it for runtime=ray; pip install dalton[ray]"
        ) from None
    return ray


@contextmanager
def connected(address: str | None = None, num_cpus: int | None = None) -> Iterator[Any]:
    """Ray: the one that this process uses already, the cluster at ``address``, or an embedded one."""
    ray = import_ray(local=address is None)
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise ConfigError(f"runtime.address = {address}: no Ray cluster answers ({reason})") from None
    else:
        # "local": never the cluster that a variable or a file of this machine names.
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, object_store_memory=STORE, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


class Seat:
    """A partitioner's place: the actor that has it now, what it did, and from where another would go on."""

    def __init__(self, member: Member) -> None:
        self.member = member.member
        self.saved = pickle.dumps(member)
        self.actor: Any = None
        self.running: dict[Any, int] = {}
        """Calls under way, and their batches."""
        self.next = 0
        """The batch that is handed out next."""
        self.done: list[Batch] = []
        """Batches that count when the state after them is known."""
        self.kept: deque[Batch] = deque()
        """Batches that count, and are not measured yet."""
        self.count = 0
        """How many batches ever counted."""


class RayRouter:
    """A router (`dalton.envs.simulate`) whose partitioners are actors.

    Args:
        ray: The connected module (`connected`).
        workload: The stream; its number of sources is the number of partitioners P.
        n_workers: Number of workers n.
        window: Window of the whole stream (see `Cooperation`).
        sync: Whether partitioners cooperate; without, each learns alone.
        timeout: Seconds after which a round closes without those that are silent.
        work: Seconds by which every round is slowed.
        max_dsync: See `QtableReducer`.
        batch: Tuples of the whole stream that are handed out at a time.
        save_every: Batches between two saved states.
        rate: Tuples/s of the whole stream; None for as many as the partitioners can. They then route many
            thousands while a message travels, and learn little of what they see.
        **params: See `Member`.
    """

    reducer_class = Reducer

    def __init__(
        self,
        ray: Any,
        workload: Workload,
        *,
        n_workers: int,
        window: WindowSpec,
        sync: bool = True,
        timeout: float = 5.0,
        work: float = 0.0,
        max_dsync: int = 64,
        batch: int = 1_000_000,
        save_every: int = 4,
        rate: float | None = None,
        **params: Any,
    ) -> None:
        self.ray, self.workload, self.sync = ray, workload, bool(sync)
        self.size = workload.n_sources
        self.rate = None if rate is None else check_real("rate", rate, above=0)
        size = check_int("batch", batch, low=1)
        often = PIECE * self.size if self.rate is None else math.ceil(self.rate * LOOK)
        self.piece = min(size, often)
        # Whole pieces, so that none is in two batches.
        self.batch = -(-size // self.piece) * self.piece
        self.batches = -(-workload.n_tuples // self.batch)
        self.save_every = check_int("save_every", save_every, low=1)
        self.seats = [Seat(m) for m in make_members(self.size, {"n_workers": n_workers, **params}, window)]
        self.rules = {
            "timeout": check_real("timeout", timeout, above=0),
            "work": check_real("work", work, low=0),
            "n_workers": n_workers,
            "n_partitioners": self.size,
            "hot_factor": params.get("hot_factor", 1.0),
            "max_dsync": check_int("max_dsync", max_dsync, low=1),
        }
        self.seconds = 0.0
        self.measured = 0
        self.restarts = self.reducer_restarts = 0
        self.rounds: dict[int, Round] = {}
        self.forwarding = Forwarding(self.size)
        self.reducer: Any = None
        self.watch: Any = None
        self.places: list[str] = []
        """The node of every partitioner when it started."""

    def __enter__(self) -> RayRouter:
        """Start the actors."""
        self.source_actor = self.ray.remote(**ACTOR)(Source)
        self.reducer_actor = self.ray.remote(**ACTOR)(self.reducer_class)
        self.stream = self.ray.put(self.workload)
        if self.sync:
            self._start_reducer()
        for seat in self.seats:
            self._start(seat)
        for seat in self.seats:
            self.places.append(self._ready(seat))
        return self

    def __exit__(self, *error: object) -> None:
        """End the actors."""
        for actor in [*(seat.actor for seat in self.seats), self.reducer]:
            if actor is not None:
                self.ray.kill(actor)

    def _start_reducer(self) -> None:
        left = tuple(seat.member for seat in self.seats if seat.count == self.batches)
        self.reducer = self.reducer_actor.remote(left=left, **self.rules)
        self.watch = self.reducer.watch.remote()

    def _start(self, seat: Seat) -> None:
        start = seat.count * self.batch
        rules = (self.batch, self.piece, self.rate, 2 * self.rules["timeout"])
        seat.actor = self.source_actor.remote(self.stream, seat.saved, start, *rules)
        seat.running, seat.done, seat.next = {}, [], seat.count

    def _ready(self, seat: Seat) -> str:
        while True:
            try:
                return str(self.ray.get(seat.actor.ready.remote()))
            except self.ray.exceptions.RayActorError:
                self._replace(seat)

    def _replace(self, seat: Seat) -> None:
        self.restarts += 1
        log.warning("partitioner %d died: another goes on from batch %d", seat.member, seat.count)
        self.ray.kill(seat.actor)
        self._start(seat)

    def probe(self, cluster: Cluster) -> None:
        """Nothing to take: partitioners know what they have sent themselves, and the policy."""

    def route(self, chunk: Chunk) -> Workers:
        """The workers of the next tuples, as soon as they are known for good."""
        workers = np.empty(len(chunk.keys), np.int32)
        for seat in self.seats:
            own = slice(None) if chunk.sources is None else np.flatnonzero(chunk.sources == seat.member)
            count = len(chunk.keys) if chunk.sources is None else len(own)  # type: ignore[arg-type]
            workers[own] = self._take(seat, count)
        self.measured = chunk.start + len(chunk.keys)
        return workers

    def _take(self, seat: Seat, count: int) -> NDArray[np.int16]:
        parts: list[NDArray[np.int16]] = [np.empty(0, np.int16)]
        while count:
            while not seat.kept:
                self._turn()
            batch = seat.kept[0]
            part = batch.workers[:count]
            spent = batch.seconds * len(part) / max(1, len(batch.workers))
            self.seconds += spent
            count -= len(part)
            parts.append(part)
            rest = batch.workers[len(part) :]
            if len(rest):
                seat.kept[0] = batch._replace(workers=rest, seconds=batch.seconds - spent)
            else:
                seat.kept.popleft()
        return np.concatenate(parts)

    def drain(self) -> None:
        """Route the whole stream, and measure nothing."""
        while any(seat.count < self.batches for seat in self.seats):
            self._turn()
            for seat in self.seats:
                seat.kept.clear()
            self.measured = self.batch * min(seat.count for seat in self.seats)

    def _turn(self) -> None:
        """Hand out what can be, and wait until something has happened."""
        ahead = self.measured // self.batch + 2 * self.save_every + 2
        for seat in self.seats:
            while len(seat.running) < 2 and seat.next < min(self.batches, ahead):
                save = (seat.next + 1) % self.save_every == 0 or seat.next + 1 == self.batches
                call = seat.actor.advance.remote(seat.next, self.reducer, save)
                seat.running[call] = seat.next
                seat.next += 1
        # Only the first call of each: batches count in their order, whichever result is noticed first.
        heads = {next(iter(seat.running)): seat for seat in self.seats if seat.running}
        watched = [*heads, *([] if self.watch is None else [self.watch])]
        for done in self.ray.wait(watched, num_returns=1)[0]:
            if done in heads:
                self._finish(heads[done], done)
            else:
                self.reducer_restarts += 1
                log.warning("the reducer died: partitioners go on, and another takes its place")
                self._start_reducer()

    def _finish(self, seat: Seat, call: Any) -> None:
        try:
            batch: Batch = self.ray.get(call)
        except self.ray.exceptions.RayActorError:
            self._replace(seat)
            return
        del seat.running[call]
        seat.done.append(batch)
        if batch.saved is None:
            return
        seat.saved, seat.count = batch.saved, batch.number + 1
        for one in seat.done:
            self._count(seat, one)
        seat.done = []
        if seat.count == self.batches and self.reducer is not None:
            self.reducer.leave.remote(seat.member)

    def _count(self, seat: Seat, batch: Batch) -> None:
        seat.kept.append(batch)
        for number, at in batch.sent:
            self.forwarding.sent(seat.member, number, at)
        for about, split in batch.taken:
            self.forwarding.received(seat.member, about.number, about.position, split)
            self.rounds.setdefault(about.number, about)


class _Remote:
    """A `QtableReducer` that lives in an actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor

    def __getattr__(self, name: str) -> Any:
        if name in ("heard", "complete"):
            return self.ray.get(self.actor.ask.remote(name))
        return lambda *args, **kwargs: self.ray.get(self.actor.ask.remote(name, *args, **kwargs))


class LockStep(Cooperation):
    """`Cooperation` whose members and reducer are actors, for tests: one step of all after the other.

    Args:
        ray: The connected module.
        workload: The stream; only its own tuples are routed.
        **params: See `Cooperation`.
    """

    def __init__(self, ray: Any, workload: Workload, **params: Any) -> None:
        self.ray, self.workload = ray, workload
        super().__init__(n_partitioners=workload.n_sources, **params)
        made = ray.remote(**ACTOR)(Source)
        once = (0, self.step, self.step, None, 60.0)
        self.actors = [made.remote(workload, pickle.dumps(m), *once) for m in self.members]
        rules = {
            name: getattr(self.reducer, name)
            for name in ("n_workers", "n_partitioners", "hot_factor", "max_dsync")
        }
        self.remote = ray.remote(**ACTOR)(Reducer).remote(timeout=60.0, **rules)
        self.reducer: Any = _Remote(ray, self.remote)

    def _route(self, i: int, length: int, keys: Keys, times: Times | None) -> Workers:
        at_once = self.remote if self.delay == 0 else None
        workers, messages, closed = self.ray.get(self.actors[i].step.remote(length, at_once))
        for message in messages:
            if at_once is None:
                self._send(message)
        for policy, heard in closed:
            self.to_members += [(self.now, j, policy) for j in range(self.size)]
            self.rounds.append(round_of(policy, heard, self.now, 0))
        if at_once is not None:
            self._deliver()
        return np.array(workers)

    def _receive(self, i: int, policy: Policy) -> bool:
        return bool(self.ray.get(self.actors[i].receive.remote(policy)))

    def states(self) -> list[Member]:
        """The members as they are."""
        return [pickle.loads(self.ray.get(actor.state.remote())) for actor in self.actors]
