"""Windows and the load vector L_w of Dalton Section 3.3.

A window of size W slides by s; the window at tuple t is the current slide and the W/s - 1 before it. Load is
a running sum over a ring of per-slide counters: O(1) per tuple and O(n) per slide.

Load counts tuples, or it is the time that the worker needs for them (`pace_of`): the sum of cost / capacity,
in whole nanoseconds, so that what leaves the window is exactly what came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.envs.errors import ConfigError, check_choice, check_int, check_real, exact, shown
from dalton.envs.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLIDE, POSITION, HEAD, BASE = range(4)
NEXT, LENGTH, BY_TIME, LATEST = range(4)
MAX_SLIDE = 2.0**52
MEASURES = ("tuples", "time")
TICKS = 1e9
"""Units of load in a second, where load is time: nanoseconds, of which an int64 holds 292 years."""
MAX_COST = 1e6


@dataclass(frozen=True)
class Window:
    """A sliding window of ``size`` advancing by ``slide``, counted in tuples or in units of time."""

    size: float
    slide: float
    by: str = "count"

    def __post_init__(self) -> None:
        check_choice("window.by", self.by, ("count", "time"))
        for field in ("size", "slide"):
            value = getattr(self, field)
            checked = (
                check_int(f"window.{field}", value, low=1)
                if self.by == "count"
                else check_real(f"window.{field}", value, above=0)
            )
            object.__setattr__(self, field, checked)
        ratio = self.size / self.slide
        if ratio < 1 or abs(ratio - round(ratio)) > 1e-9 * ratio:
            raise ConfigError(
                f"window.size = {exact(self.size)}: expected a multiple of window.slide = {exact(self.slide)}"
            )

    @property
    def n_slides(self) -> int:
        """W/s, the number of slides in the window."""
        return round(self.size / self.slide)

    @classmethod
    def of(cls, spec: WindowSpec) -> Window | None:
        """A window from a configuration mapping; None stays None (everything since the start)."""
        if spec is None or isinstance(spec, Window):
            return spec
        if not isinstance(spec, Mapping) or "size" not in spec or set(spec) - {"size", "slide", "by"}:
            raise ConfigError(
                f"window = {spec!r}: expected the field size and perhaps slide and by, or nothing"
            )
        return cls(size=spec["size"], slide=spec.get("slide", spec["size"]), by=spec.get("by", "count"))


WindowSpec = Window | Mapping[str, Any] | None
CapacitySpec = ArrayLike | Mapping[str, Any] | None
DEFAULT_WINDOW = Window(200_000, 20_000)


class LoadState(NamedTuple):
    """L_w as arrays, which kernels unpack and hand to helpers one by one."""

    load: Ints
    """``(n,)`` tuples, or nanoseconds of work, per worker in the window."""
    ring: Ints
    """``(W/s, n)`` the same per slide and worker."""
    clock: Ints
    """Slide, tuples seen, ring row of the slide, first slide (the origin of stamps)."""
    edge: Floats
    """Where the next slide starts, the slide's length, whether these are times, the latest time seen."""
    pace: Floats | None
    """``(n,)`` load per second of cost, where load is time; None where it counts tuples (see `amount`)."""


def load_state(n: int, window: Window | None, pace: Floats | None = None) -> LoadState:
    """An empty load vector of ``n`` workers; without a window it counts since the start."""
    rows = window.n_slides if window else 1
    edge = np.array([np.inf, np.inf, 0.0, -np.inf])
    if window is not None:
        edge[:3] = -np.inf, window.slide, window.by == "time"
    zeros = np.zeros(n, np.int64), np.zeros((rows, n), np.int64), np.zeros(4, np.int64)
    return LoadState(*zeros, edge, pace)


def pace_of(measure: str, capacity: CapacitySpec, n: int) -> Floats | None:
    """What a second of cost adds to the load of each of ``n`` workers; None where load counts tuples.

    Args:
        measure: ``tuples``, or ``time``: the time that the worker needs, cost / capacity.
        capacity: Capacities of the workers as for `check_capacity`.
        n: Number of workers.
    """
    check_choice("measure", measure, MEASURES)
    strength = check_capacity(capacity, n)
    return None if measure == "tuples" else TICKS / strength


def check_capacity(capacity: CapacitySpec, n: int) -> Floats:
    """Capacities as float64, shape ``(n,)``: ones if None.

    A mapping ``{"strong": y, "times": z}`` is the cluster of CG Section VI-B: the first y workers are z times
    as strong as the others, and the mean is 1.
    """
    if capacity is None:
        return np.ones(n)
    if isinstance(capacity, Mapping):
        if set(capacity) != {"strong", "times"}:
            raise ConfigError(f"capacity = {shown(capacity)}: expected the fields strong and times")
        many = check_int("capacity.strong", capacity["strong"], low=0, high=n)
        strength = np.ones(n)
        strength[:many] = check_real("capacity.times", capacity["times"], above=0, high=1e6)
        strength /= strength.mean()
        return strength
    try:
        strength = np.array(capacity, np.float64)
    except (TypeError, ValueError):
        strength = np.empty(0)
    if strength.shape != (n,) or not np.all(np.isfinite(strength) & (strength > 0)):
        raise ConfigError(f"capacity = {shown(capacity)}: expected {n} numbers > 0, one per worker")
    return strength


@kernel
def start_after(number: Any, length: Any) -> Any:
    """The first time t with floor(t / length) > number, also where (number + 1) * length is rounded."""
    following = (number + 1) * length
    while np.floor(following / length) <= number:
        following = np.nextafter(following, np.inf)
    while np.floor(np.nextafter(following, -np.inf) / length) > number:
        following = np.nextafter(following, -np.inf)
    return following


@kernel
def _turn(load: Any, ring: Any, clock: Any, edge: Any, now: Any) -> Any:
    """Move to the slide that holds ``now`` and expire the slides left behind; returns how many passed."""
    slide = np.int64(np.floor(now / edge[LENGTH]))
    if edge[NEXT] == -np.inf:
        clock[SLIDE] = slide
        clock[BASE] = slide
    passed = slide - clock[SLIDE]
    rows, n = ring.shape
    for step in range(min(passed, rows)):
        row = (clock[HEAD] + 1 + step) % rows
        for w in range(n):
            load[w] -= ring[row, w]
            ring[row, w] = 0
    clock[SLIDE] = slide
    clock[HEAD] = (clock[HEAD] + passed) % rows
    # A gap longer than the window ages every stamp out of it; stamps (int32) need not count the whole of it.
    if passed > rows:
        clock[BASE] += passed - rows
    edge[NEXT] = start_after(slide, edge[LENGTH])
    return passed


@kernel
def tick(load: Any, ring: Any, clock: Any, edge: Any, times: Any, i: Any) -> Any:
    """Take the next tuple's time (or its position); returns how many slides have passed before it."""
    now = times[i] if edge[BY_TIME] > 0.0 else np.float64(clock[POSITION])
    clock[POSITION] += 1
    passed = 0
    if now >= edge[NEXT]:
        passed = _turn(load, ring, clock, edge, now)
    return passed


@kernel
def slides_ahead(clock: Any, edge: Any, times: Any, i: Any) -> Any:
    """What `tick` will return for tuple ``i``: how many slides pass before it."""
    now = times[i] if edge[BY_TIME] > 0.0 else np.float64(clock[POSITION])
    if now < edge[NEXT] or edge[NEXT] == -np.inf:
        return 0
    return np.int64(np.floor(now / edge[LENGTH])) - clock[SLIDE]


@kernel
def amount(pace: Any, costs: Any, i: Any, worker: Any) -> Any:
    """What tuple ``i`` adds to the load of ``worker``: 1, or the nanoseconds that the worker needs for it.

    At least one, so that every tuple counts. A kernel is compiled once for each kind of ``pace``: None leaves
    nothing of the choice in the loop.
    """
    if pace is None:
        return np.int64(1)
    return max(np.int64(1), np.int64(costs[i] * pace[worker] + 0.5))


@kernel
def put(load: Any, ring: Any, clock: Any, worker: Any, added: Any = 1) -> None:
    """Add a tuple to the load of ``worker`` in the current slide."""
    load[worker] += added
    ring[clock[HEAD], worker] += added


@kernel
def lightest(load: Any) -> Any:
    """The first worker with the least load."""
    best, least = 0, load[0]
    for w in range(1, len(load)):
        if load[w] < least:
            best, least = w, load[w]
    return best


NO_TIMES: Floats = np.empty(0)
NO_COSTS: Floats = np.empty(0)


def accept_times(edge: Floats, times: ArrayLike | None, length: int) -> Floats:
    """Arrival times of a batch of ``length`` as float64, empty if there are none.

    Where the window is in time they must be there, finite, and not decrease within the batch or after the
    last one.
    """
    if times is None:
        if edge[BY_TIME] and length:
            raise ConfigError("times = None: a window in time needs the arrival time of every tuple")
        return NO_TIMES
    try:
        stamps = np.ascontiguousarray(times, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"times = {shown(times)}: expected numbers, one per tuple") from None
    if stamps.shape != (length,):
        raise ConfigError(f"times has shape {stamps.shape}: expected the shape of keys, {(length,)}")
    if edge[BY_TIME]:
        check_order(edge, stamps)
    return stamps


def check_workers(workers: NDArray[np.int32], n: int) -> None:
    """Workers must be in [0, n)."""
    if len(workers) and (workers.min() < 0 or workers.max() >= n):
        bad = workers[(workers < 0) | (workers >= n)][0]
        raise ConfigError(f"worker = {bad}: expected a whole number from 0 to {n - 1}")


def accept_costs(pace: Floats | None, costs: ArrayLike | None, length: int) -> Floats:
    """Costs of a batch of ``length`` as float64 seconds; without any, ones where load is time, else empty."""
    if costs is None:
        return NO_COSTS if pace is None else np.ones(length)
    try:
        seconds = np.ascontiguousarray(costs, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"costs = {shown(costs)}: expected seconds, one number per tuple") from None
    if seconds.shape != (length,):
        raise ConfigError(f"costs has shape {seconds.shape}: expected the shape of keys, {(length,)}")
    bad = ~((seconds >= 0.0) & (seconds <= MAX_COST))
    if bad.any():
        at = int(bad.argmax())
        raise ConfigError(f"costs[{at}] = {seconds[at]}: expected seconds from 0 to {exact(MAX_COST)}")
    return seconds


def check_order(edge: Floats, stamps: Floats) -> None:
    """Times must be finite, and not decrease within the batch or after the last one."""
    if not len(stamps):
        return
    bad = ~(np.abs(stamps) < MAX_SLIDE * edge[LENGTH])
    if bad.any():
        at = int(bad.argmax())
        raise ConfigError(f"times[{at}] = {stamps[at]}: expected a finite number of less than 2**52 slides")
    before = np.concatenate([edge[LATEST:], stamps[:-1]])
    falls = stamps < before
    if falls.any():
        at = int(falls.argmax())
        raise ConfigError(f"times[{at}] = {stamps[at]}: expected no decrease (after {before[at]})")
    edge[LATEST] = stamps[-1]
