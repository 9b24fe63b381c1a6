"""The queue model of a simulation: how fast tuples come, what happens to the workers, what is measured.

The servers themselves are in `dalton.envs.servers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError, check_int, check_real, shown
from dalton.envs.metrics import mean_of
from dalton.envs.servers import Histogram, Servers, Step
from dalton.envs.window import CapacitySpec, check_capacity
from dalton.envs.workloads import Chunk, Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """From a time on, a worker has another capacity; 0 is a failure, a later change the recovery.

    Without a worker, all have others: ``capacity`` is then a list or ``{"strong": y, "times": z}``.
    """

    capacity: float | CapacitySpec
    worker: int | None = None
    at: float | None = None
    """Stream time in seconds."""
    at_tuple: int | None = None
    """Or the position in a stream of evenly spaced tuples."""

    @classmethod
    def of(cls, spec: Change | Mapping[str, Any], place: str) -> Change:
        """A change from a mapping; errors name it ``place``."""
        given = vars(spec) if isinstance(spec, Change) else spec
        moments = ("at", "at_tuple")
        allowed = (
            isinstance(given, Mapping)
            and {"capacity"} <= set(given) <= {"worker", "capacity", *moments}
            and sum(given.get(name) is not None for name in moments) == 1
        )
        if not allowed:
            raise ConfigError(
                f"{place} = {shown(spec)}: expected worker, capacity, and either at or at_tuple"
            )
        worker, capacity = given.get("worker"), given["capacity"]
        if worker is not None:
            worker = check_int(f"{place}.worker", worker, low=0)
            capacity = check_real(f"{place}.capacity", capacity, low=0)
        elif not isinstance(capacity, Sequence | Mapping | np.ndarray) or isinstance(capacity, str):
            raise ConfigError(
                f"{place}.capacity = {shown(capacity)}: expected those of all workers, where none is named"
            )
        at, position = given.get("at"), given.get("at_tuple")
        return cls(
            capacity,
            worker,
            None if at is None else check_real(f"{place}.at", at),
            None if position is None else check_int(f"{place}.at_tuple", position, low=0),
        )


@dataclass(frozen=True)
class Queue:
    """How fast tuples come and what happens to the workers.

    Args:
        rate: Tuples per second. A stream without a clock gets one, evenly spaced; that of another is sped up
            or slowed down.
        over_provisioning: Instead of a rate, by how many per cent the workers suffice: 100 C / (rate W), C
            the sum of their capacities and W the mean cost (OSG Section 5.1); less than 100 is too few.
            Without either, tuples come at the stream's own times.
        service: Cost in seconds of a tuple of a stream that has no costs.
        schedule: Slow-downs, failures and recoveries.
        flush: Cost in seconds of a counter that a worker sends to be merged when an aggregation period of the
            application ends; meanwhile its tuples wait.
    """

    rate: float | None = None
    over_provisioning: float | None = None
    service: float = 0.001
    schedule: tuple[Change, ...] = ()
    flush: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "over_provisioning"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_real(f"queue.{name}", getattr(self, name), above=0))
        if self.rate is not None and self.over_provisioning is not None:
            raise ConfigError(f"queue.rate = {self.rate}: expected none where over_provisioning is set")
        object.__setattr__(self, "service", check_real("queue.service", self.service, above=0))
        object.__setattr__(self, "flush", check_real("queue.flush", self.flush, low=0))
        given = self.schedule
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise ConfigError(f"queue.schedule = {shown(given)}: expected a list of changes")
        changes = tuple(Change.of(spec, f"queue.schedule[{i}]") for i, spec in enumerate(given))
        object.__setattr__(self, "schedule", changes)

    @classmethod
    def of(cls, spec: QueueSpec) -> Queue | None:
        """A queue from a configuration mapping; None stays None."""
        if spec is None or isinstance(spec, Queue):
            return spec
        names = [f.name for f in fields(cls)]
        if not isinstance(spec, Mapping) or set(spec) - set(names):
            raise ConfigError(f"queue = {shown(spec)}: expected the fields {', '.join(names)}, or nothing")
        return cls(**{name: value for name, value in spec.items() if name != "schedule" or value is not None})

    def arrival_rate(self, workload: Workload, capacity: Floats) -> float | None:
        """Tuples per second, None for the stream's own times; the mean cost needs a pass over the stream."""
        if self.rate is not None:
            rate = self.rate
        elif self.over_provisioning is not None:
            share = 100.0 / self.over_provisioning
            rate = share * float(capacity.sum()) / mean_cost(workload, self.service)
        elif workload.arrivals == "count":
            raise ConfigError(
                "queue.rate = None: a stream without times needs a rate or an over_provisioning"
            )
        else:
            return None
        if workload.arrivals == "trace":
            raise ConfigError(f"queue.rate = {rate:g}: expected none, the trace has times of its own")
        return rate

    def steps(self, workload: Workload, rate: float | None, n: int) -> list[Step]:
        """The schedule of ``n`` workers in seconds."""
        found: list[Step] = []
        for i, change in enumerate(self.schedule):
            at = change.at
            if at is None:
                assert change.at_tuple is not None
                if workload.arrivals not in ("count", "constant"):
                    raise ConfigError(
                        f"queue.schedule[{i}].at_tuple = {change.at_tuple}: expected at, in seconds, "
                        f"where arrivals = {workload.arrivals!r}"
                    )
                at = change.at_tuple / (workload.rate if rate is None else rate)
            if change.worker is not None:
                assert isinstance(change.capacity, float)
                found.append((at, change.worker, change.capacity))
            else:
                found += [(at, w, float(c)) for w, c in enumerate(check_capacity(change.capacity, n))]
        return found


QueueSpec = Queue | Mapping[str, Any] | None


def mean_cost(workload: Workload, service: float) -> float:
    """Mean cost of the tuples of a stream, ``service`` if it has none. It is a pass over the stream."""
    total = 0.0
    for chunk in workload.chunks():
        if chunk.costs is None:
            return service
        total += float(chunk.costs.sum())
    if not total:
        raise ConfigError("queue.over_provisioning: expected a stream in which some tuples have a cost")
    return total / workload.n_tuples


class QueueSlide(NamedTuple):
    """The queues in a slide; its time is from the last arrival of the slide before to its own last one."""

    end: float
    """Arrival of the slide's last tuple, seconds."""
    completion_mean: float
    """Completion time of the tuples that arrived in this slide, seconds; also those below."""
    completion_min: float
    completion_p50: float
    completion_p95: float
    completion_p99: float
    completion_max: float
    queue: int
    """Tuples waiting or in service on all workers, at the end."""
    queue_max: int
    """The same on the worker that has most."""
    completed: int
    """Tuples done in this slide's time."""
    utilisation: float
    """Work done over work that could have been done, of all workers; NaN if the slide took no time."""
    utilisation_min: float
    """The same of the worker that has least, of those that could do any."""
    utilisation_max: float
    """And of the one that has most."""
    offered_min: float
    """Work sent to a worker over work that it could have done, of the one that has least (CG Table III)."""
    offered_max: float
    """And of the one that has most: above 1 its queue grows."""


@dataclass(frozen=True)
class Queues:
    """What the queue model measured."""

    slides: list[QueueSlide] = field(repr=False)
    utilisation: Floats = field(repr=False)
    """``(slides, n)`` work done over work that could have been done, in the slide's time."""
    times: Histogram = field(repr=False)
    """Completion times of all tuples that are ever done."""
    rate: float
    """Tuples per second, on average."""
    makespan: float
    """Seconds from the first arrival until the last tuple was done."""
    unfinished: int
    """Tuples that are never done: their worker fails and does not recover."""

    def summary(self) -> dict[str, float]:
        """One number per metric, of the whole stream unless it is a mean over slides (queue, utilisation)."""
        done = float(self.times.counts.sum())
        columns = dict(zip(QueueSlide._fields, np.array(self.slides, np.float64).T, strict=False))
        spread = {
            name: columns[f"{name}_max"] - columns[f"{name}_min"] if columns else np.empty(0)
            for name in ("utilisation", "offered")
        }
        return {
            "completion_mean": self.times.mean,
            "completion_p50": self.times.percentile(50),
            "completion_p95": self.times.percentile(95),
            "completion_p99": self.times.percentile(99),
            "completion_max": self.times.most,
            "queue": mean_of(columns.get("queue", np.empty(0))),
            "queue_max": float(np.max(columns.get("queue_max", np.empty(0)), initial=0.0)),
            "utilisation": _mean(columns.get("utilisation", np.empty(0))),
            "utilisation_spread": _mean(spread["utilisation"]),
            "offered_spread": _mean(spread["offered"]),
            "makespan": self.makespan,
            "arrival_rate": self.rate,
            "completion_rate": done / self.makespan if self.makespan > 0 else np.nan,
            "unfinished": float(self.unfinished),
        }


def _mean(values: Floats) -> float:
    """The mean of those that were measured."""
    return mean_of(values[~np.isnan(values)])


class QueueMeter:
    """Drives the servers beside a simulation and measures every slide."""

    def __init__(self, queue: Queue, workload: Workload, capacity: Floats) -> None:
        self.queue, self.workload = queue, workload
        self.rate = queue.arrival_rate(workload, capacity)
        self.steps = queue.steps(workload, self.rate, len(capacity))
        self.servers = Servers(n_workers=len(capacity), capacity=capacity, schedule=self.steps)
        self.slides: list[QueueSlide] = []
        self.utilisation: list[Floats] = []
        self.times = Histogram()
        self._times = Histogram()
        self._end, self._completed, self._flushes = np.nan, 0, 0
        self._worked = self._provided = self._sent = np.zeros(len(capacity))

    def chunks(self, chunk_size: int) -> Iterator[Chunk]:
        """The stream with the times and costs of the queue model."""
        workload, rate = self.workload, self.rate
        for chunk in workload.chunks(chunk_size):
            times, costs = chunk.times, chunk.costs
            if rate is not None and times is None:
                times = np.arange(chunk.start, chunk.start + len(chunk.keys)) / rate
            elif rate is not None and times is not None:
                times = times * (workload.rate / rate)
            if costs is None:
                costs = np.full(len(chunk.keys), self.queue.service)
            yield chunk._replace(times=times, costs=costs)

    def observe(
        self, chunk: Chunk, workers: NDArray[np.int32], sent: NDArray[np.int64] | None = None
    ) -> None:
        """Take the tuples of a chunk that `chunks` made; before them, workers have ``sent`` counters."""
        assert chunk.times is not None
        assert chunk.costs is not None
        if sent is not None and self.queue.flush > 0:
            every = np.arange(len(sent), dtype=np.int32)
            self.servers.serve(every, np.full(len(sent), chunk.times[0]), sent * self.queue.flush)
            self._flushes += len(sent)
        self._times.add(self.servers.serve(workers, chunk.times, chunk.costs))
        self._end = float(chunk.times[-1])

    def close(self) -> None:
        """End a slide."""
        servers, now = self.servers, self._end
        queued = servers.queued(now)
        completed = int(servers.arrived.sum() - queued.sum())
        worked, provided = servers.worked(now), servers.provided(now)
        room = provided - self._provided
        able = room > 0
        share, offered = np.full((2, len(room)), np.nan)
        np.divide(worked - self._worked, room, out=share, where=able)
        sent = servers.state.sent.copy()
        np.divide(sent - self._sent, room, out=offered, where=able)
        times = self._times
        self.slides.append(
            QueueSlide(
                end=now,
                completion_mean=times.mean,
                completion_min=times.least,
                completion_p50=times.percentile(50),
                completion_p95=times.percentile(95),
                completion_p99=times.percentile(99),
                completion_max=times.most,
                queue=int(queued.sum()),
                queue_max=int(queued.max()),
                completed=completed - self._completed,
                utilisation=float((worked - self._worked).sum() / room.sum()) if able.any() else np.nan,
                utilisation_min=float(share[able].min()) if able.any() else np.nan,
                utilisation_max=float(share[able].max()) if able.any() else np.nan,
                offered_min=float(offered[able].min()) if able.any() else np.nan,
                offered_max=float(offered[able].max()) if able.any() else np.nan,
            )
        )
        self.utilisation.append(share)
        self.times.merge(times)
        self._times = Histogram()
        self._completed, self._worked, self._provided, self._sent = completed, worked, provided, sent

    def result(self) -> Queues:
        """All of it, after the last slide."""
        servers = self.servers
        arrived = int(servers.arrived.sum()) - self._flushes
        span = self._end - servers.began
        return Queues(
            slides=self.slides,
            utilisation=np.array(self.utilisation, np.float64).reshape(-1, servers.n_workers),
            times=self.times,
            rate=self.rate if self.rate is not None else (arrived - 1) / span if span > 0 else np.nan,
            makespan=servers.ended - servers.began,
            unfinished=arrived - int(self.times.counts.sum()),
        )
