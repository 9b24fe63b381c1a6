"""Keyed streams: what a workload is, the stationary ones, and the registry of all of them.

The key of tuple t is a pure function of (seed, t) through a counter-based generator (`dalton.envs.draws`). A
stream is therefore the same for every chunk size, can start anywhere, and is never held in memory.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from dalton.envs.costs import key_costs
from dalton.envs.draws import ANGLE_STREAM, KEY_STREAM, TIME_STREAM, stream_key, unit
from dalton.envs.errors import ConfigError, check_choice, check_int, check_real
from dalton.envs.hashing import hash_workers
from dalton.envs.kernel import kernel

Keys = NDArray[np.int64]
Reals = NDArray[np.float64]

MAX_KEYS, MAX_SEED, MAX_TUPLES = 2**31 - 1, 2**63 - 1, 2**62
# A murmur seed of its own, so that sources and workers are hashed independently.
SOURCE_SEED = np.uint32(0x50C7CE5D)


@kernel
def _alias_kernel(scaled: Any, stack: Any, out: Any) -> None:
    # Vose's construction (IEEE TSE 1991). A threshold (upper 32 bits) and its alias (lower 32) share a
    # word, hence one cache miss per draw; exact to 2**-32 of a cell.
    n = len(scaled)
    small, large = 0, n  # on the stack, small cells grow from the left, large ones from the right
    for i in range(n):
        if scaled[i] < 1.0:
            stack[small] = i
            small += 1
        else:
            large -= 1
            stack[large] = i
        out[i] = (np.uint64(0xFFFFFFFF) << np.uint64(32)) | np.uint64(i)
    while small > 0 and large < n:
        small -= 1
        low, high = stack[small], stack[large]
        threshold = np.uint64(min(scaled[low] * 2.0**32, 2.0**32 - 1))
        out[low] = (threshold << np.uint64(32)) | np.uint64(high)
        scaled[high] -= 1.0 - scaled[low]
        if scaled[high] < 1.0:
            large += 1
            stack[small] = high
            small += 1


@kernel
def _draw_alias(key: Any, lo: Any, table: Any, shift: Any, out: Any) -> None:
    n = len(table)
    for i in range(len(out)):
        x = unit(key, lo + i) * n
        cell = min(np.int64(x), n - 1)
        word = table[cell]
        if (x - cell) * 2.0**32 >= np.float64(np.int64(word >> np.uint64(32))):
            cell = np.int64(word & np.uint64(0xFFFFFFFF))
        cell += shift
        out[i] = cell if cell < n else cell - n


@kernel
def _draw_uniform(key: Any, lo: Any, n: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = min(np.int64(unit(key, lo + i) * n), n - 1)


@kernel
def _draw_lognormal(radius: Any, angle: Any, lo: Any, mu: Any, sigma: Any, n: Any, out: Any) -> None:
    # Box and Muller's transform; 1 - u is in (0, 1], so the logarithm is finite.
    for i in range(len(out)):
        r = math.sqrt(-2.0 * math.log(1.0 - unit(radius, lo + i)))
        z = r * math.cos(2.0 * math.pi * unit(angle, lo + i))
        value = np.int64(math.floor(min(math.exp(mu + sigma * z), 2.0**62) + 0.5))
        out[i] = value % n if n > 0 else value


@kernel
def _poisson_times(key: Any, lo: Any, hi: Any, rate: Any, clock: Any, out: Any) -> Any:
    # One running sum in tuple order, so that rounding is the same for every chunk size.
    for t in range(lo, hi):
        clock += -math.log(1.0 - unit(key, t)) / rate
        if len(out) > 0:
            out[t - lo] = clock
    return clock


def zipf_table(n_keys: int, exponent: float) -> NDArray[np.uint64]:
    """Walker's alias table of P(rank r) ~ (r + 1)**-exponent, r = 0 .. n_keys - 1: O(1) per draw."""
    weights = np.arange(1, n_keys + 1, dtype=np.float64) ** -exponent
    table = np.empty(n_keys, np.uint64)
    _alias_kernel(weights * (n_keys / weights.sum()), np.empty(n_keys, np.int64), table)
    return table


def draw_alias(seed: int, lo: int, hi: int, table: NDArray[np.uint64], shift: int = 0) -> Keys:
    """Ids (rank + shift) mod n of tuples [lo, hi), for 0 <= shift < n."""
    out = np.empty(hi - lo, np.int64)
    _draw_alias(stream_key(seed, KEY_STREAM), lo, table, shift, out)
    return out


class Chunk(NamedTuple):
    """Tuples ``start .. start + m - 1`` of a stream.

    Keys are ids; times are seconds, None without a clock; costs are work per tuple, None when all cost the
    same; sources are None with one source. Each array has shape ``(m,)``.
    """

    start: int
    keys: Keys
    times: Reals | None
    costs: Reals | None
    sources: NDArray[np.int32] | None

    def part(self, low: int, high: int) -> Chunk:
        """Tuples ``low .. high - 1`` of the chunk."""
        columns: Any = (None if column is None else column[low:high] for column in self[1:])
        return Chunk(self.start + low, *columns)


class Common(TypedDict, total=False):
    """Parameters of every synthetic workload; `Workload` says what they mean."""

    n_tuples: int
    seed: int
    arrivals: str
    rate: float
    cost_mean: float | None
    cost_spread: float
    cost_levels: int | None
    cost_seeded: bool
    cost_every: int | None
    n_sources: int
    source_by: str


class Workload(ABC):
    """A keyed stream of ``n_tuples`` tuples, produced in chunks.

    Args:
        n_tuples: Length of the stream.
        seed: Seed of keys and arrival times.
        arrivals: ``count`` (no clock), ``constant`` (tuple t arrives at t / rate) or ``poisson``
            (exponential gaps of mean 1 / rate; starting at tuple t costs O(t)).
        rate: Tuples per second.
        cost_mean: Mean work of a tuple in seconds; None for no costs.
        cost_spread: c in cost(k) = cost_mean (1 + c (2 u(k) - 1)), u(k) uniform in [0, 1) and a function
            of the key alone (`dalton.envs.costs`).
        cost_levels: Number of distinct costs, at equal distance in that range; None for any number.
        cost_seeded: Whether u also depends on the seed: then other streams have other dear keys.
        cost_every: Tuples after which u is drawn anew, again and again; None for never.
        n_sources: Number S of sources the stream is split over.
        source_by: ``shuffle`` (tuple t goes to source t mod S) or ``key`` (source hashed from the key: the
            skewed sources of PKG, question Q3).
    """

    name: ClassVar[str]
    ARRIVALS: ClassVar[tuple[str, ...]] = ("count", "constant", "poisson")
    seeded: ClassVar[bool] = True  # whether the keys depend on the seed
    n_keys: int | None = None  # distinct keys the stream can hold; None without a bound or unknown

    def __init__(
        self,
        *,
        n_tuples: int = 1_000_000,
        seed: int = 0,
        arrivals: str = "count",
        rate: float = 1000.0,
        cost_mean: float | None = None,
        cost_spread: float = 0.0,
        cost_levels: int | None = None,
        cost_seeded: bool = False,
        cost_every: int | None = None,
        n_sources: int = 1,
        source_by: str = "shuffle",
    ) -> None:
        self.n_tuples = check_int("n_tuples", n_tuples, low=1, high=MAX_TUPLES)
        self.seed = check_int("seed", seed, low=0, high=MAX_SEED)
        self.arrivals = check_choice("arrivals", arrivals, self.ARRIVALS)
        self.rate = check_real("rate", rate, above=0)
        costs = key_costs(
            cost_mean=cost_mean,
            cost_spread=cost_spread,
            cost_levels=cost_levels,
            cost_seeded=cost_seeded,
            cost_every=cost_every,
            seed=self.seed,
        )
        self._key_costs = costs
        self.cost_mean: float | None = costs.mean if costs else None
        self.cost_spread = costs.spread if costs else 0.0
        self.cost_levels, self.cost_every = cost_levels, cost_every
        self.cost_seeded = cost_seeded
        self.n_sources = check_int("n_sources", n_sources, low=1, high=2**20)
        self.source_by = check_choice("source_by", source_by, ("shuffle", "key"))

    @classmethod
    def parameters(cls) -> dict[str, inspect.Parameter]:
        """The constructor's keyword parameters, those it passes on to its base class included."""
        found: dict[str, inspect.Parameter] = {}
        for init in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
            own = list(inspect.signature(init).parameters.values())[1:]
            found = {p.name: p for p in own if p.kind is not p.VAR_KEYWORD} | found
            if len(own) == 0 or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
                break
        return found

    @property
    def params(self) -> dict[str, Any]:
        """The constructor arguments that make this workload again."""
        return {name: getattr(self, name) for name in self.parameters()}

    @property
    def spec(self) -> dict[str, Any]:
        """``{"name": ..., **params}``, from which `make_workload` makes this workload again."""
        return {"name": self.name, **self.params}

    def __repr__(self) -> str:
        """The call that makes this workload again."""
        inner = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"{type(self).__name__}({inner})"

    def chunks(self, chunk_size: int = 1 << 18, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Iterate over tuples ``[start, stop)``, at most ``chunk_size`` at a time; stop None is the end."""
        size = check_int("chunk_size", chunk_size, low=1)
        first = check_int("start", start, low=0, high=self.n_tuples)
        last = self.n_tuples if stop is None else check_int("stop", stop, low=first, high=self.n_tuples)
        return self._iterate(size, first, last)

    def _iterate(self, size: int, start: int, stop: int) -> Iterator[Chunk]:
        clock = 0.0
        if self.arrivals == "poisson":
            key = stream_key(self.seed, TIME_STREAM)
            clock = _poisson_times(key, 0, start, self.rate, clock, np.empty(0))
        for lo in range(start, stop, size):
            hi = min(lo + size, stop)
            keys = self._keys(lo, hi)
            times, clock = self._times(lo, hi, clock)
            yield Chunk(lo, keys, times, self._costs(lo, keys), self._sources(lo, keys))

    @abstractmethod
    def _keys(self, lo: int, hi: int) -> Keys:
        """Keys of tuples ``[lo, hi)``: a pure function of the parameters and the indices."""

    def _times(self, lo: int, hi: int, clock: float) -> tuple[Reals | None, float]:
        if self.arrivals == "poisson":
            times, key = np.empty(hi - lo), stream_key(self.seed, TIME_STREAM)
            return times, _poisson_times(key, lo, hi, self.rate, clock, times)
        return (np.arange(lo, hi) / self.rate if self.arrivals == "constant" else None), clock

    def _costs(self, lo: int, keys: Keys) -> Reals | None:
        return None if self._key_costs is None else self._key_costs.of(keys, lo)

    def _sources(self, lo: int, keys: Keys) -> NDArray[np.int32] | None:
        if self.n_sources == 1:
            return None
        if self.source_by == "shuffle":
            return (np.arange(lo, lo + len(keys)) % self.n_sources).astype(np.int32)
        sources = np.empty(len(keys), np.int32)
        hash_workers(keys, SOURCE_SEED, self.n_sources, sources)
        return sources


WORKLOADS: dict[str, type[Workload]] = {}
W = TypeVar("W", bound=type[Workload])


def register(name: str) -> Callable[[W], W]:
    """Class decorator: make a workload known as ``name`` to `make_workload` and the checks."""

    def add(cls: W) -> W:
        cls.name, WORKLOADS[name] = name, cls
        return cls

    return add


def make_workload(spec: str | Mapping[str, Any] | Workload, **params: Any) -> Workload:
    """Make a workload from its name, from ``{"name": ..., **params}``, or from another with changes.

    Raises:
        ConfigError: Unknown name, unknown or missing parameter, or a value that is not allowed.
    """
    if isinstance(spec, Workload) and not params:
        return spec
    spec = spec.spec if isinstance(spec, Workload) else spec
    given = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping) or "name" not in given:
        raise ConfigError(f"workload = {spec!r}: expected a name or a mapping with a 'name'")
    cls = WORKLOADS[check_choice("workload", given["name"], WORKLOADS)]
    merged = {**{key: value for key, value in given.items() if key != "name"}, **params}
    for name in merged:
        check_choice(f"parameter of workload {cls.name}", name, cls.parameters())
    for name, parameter in cls.parameters().items():
        if parameter.default is parameter.empty and name not in merged:
            raise ConfigError(f"workload {cls.name}: parameter {name} is missing")
    return cls(**merged)


@register("uniform")
class Uniform(Workload):
    """Every one of ``n_keys`` keys (ids 0 .. n_keys - 1) is equally likely."""

    def __init__(self, *, n_keys: int = 100_000, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.n_keys: int = check_int("n_keys", n_keys, low=1, high=MAX_KEYS)

    def _keys(self, lo: int, hi: int) -> Keys:
        out = np.empty(hi - lo, np.int64)
        _draw_uniform(stream_key(self.seed, KEY_STREAM), lo, self.n_keys, out)
        return out


@register("zipf")
class Zipf(Workload):
    """Zipf keys: P(rank r) = (r + 1)**-z / sum_{i=1..n_keys} i**-z, id = (r + shift) mod n_keys.

    Args:
        n_keys: Number of keys.
        exponent: z, from 0 (uniform) to 3.
        shift: Which id is the heaviest; two streams with different shifts have different heavy hitters.
        **common: See `Workload`.
    """

    def __init__(
        self, *, n_keys: int = 100_000, exponent: float = 1.0, shift: int = 0, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.n_keys: int = check_int("n_keys", n_keys, low=1, high=MAX_KEYS)
        self.exponent = check_real("exponent", exponent, low=0, high=3)
        self.shift = check_int("shift", shift, low=0)

    @functools.cached_property
    def _table(self) -> NDArray[np.uint64]:
        return zipf_table(self.n_keys, self.exponent)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the table out of a pickle: it is remade from the parameters."""
        return {name: value for name, value in vars(self).items() if name != "_table"}

    def _keys(self, lo: int, hi: int) -> Keys:
        return draw_alias(self.seed, lo, hi, self._table, self.shift % self.n_keys)


# (mu, sigma)
LOGNORMAL = {"ln1": (1.789, 2.366), "ln2": (2.245, 1.133)}


@register("lognormal")
class LogNormal(Workload):
    """Log-normal keys: id = round(exp(mu + sigma Z)), Z standard normal; PKG's LN1 and LN2.

    PKG's Table 1 gives p1 (share of the heaviest key) 14.71 % with 16k keys for LN1, 7.01 % with 1.1k for
    LN2. Rounding to the nearest integer without a bound gives both (floor would give p1 = 22.5 % for LN1):
    measured over 10M tuples with seed 0, 14.69 % and 16 347 keys, 7.03 % and 1 108 keys.

    Args:
        preset: ``ln1`` or ``ln2``, see `LOGNORMAL`.
        mu: Mean of the logarithm; None for the preset's.
        sigma: Standard deviation of the logarithm; None for the preset's.
        n_keys: Fold the ids modulo this; None, as in the paper, for no bound.
        **common: See `Workload`.
    """

    def __init__(
        self,
        *,
        preset: str = "ln1",
        mu: float | None = None,
        sigma: float | None = None,
        n_keys: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.preset = check_choice("preset", preset, LOGNORMAL)
        mean, deviation = LOGNORMAL[self.preset]
        self.mu = check_real("mu", mean if mu is None else mu, low=-40, high=40)
        self.sigma = check_real("sigma", deviation if sigma is None else sigma, low=0, high=40)
        self.n_keys = None if n_keys is None else check_int("n_keys", n_keys, low=1, high=MAX_KEYS)

    def _keys(self, lo: int, hi: int) -> Keys:
        radius, angle = stream_key(self.seed, KEY_STREAM), stream_key(self.seed, ANGLE_STREAM)
        out = np.empty(hi - lo, np.int64)
        _draw_lognormal(radius, angle, lo, self.mu, self.sigma, self.n_keys or 0, out)
        return out


# Each of these modules registers its workloads; last, because they import this one.
for _module in ("countries", "drift", "sources", "trace"):
    importlib.import_module(f"dalton.envs.{_module}")
