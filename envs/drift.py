"""Streams whose key distribution changes: every T tuples, or slowly."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np

from dalton.envs.draws import DRIFT_STREAM, stream_key, unit
from dalton.envs.errors import ConfigError, check_int, check_real
from dalton.envs.workloads import (
    MAX_KEYS,
    MAX_SEED,
    WORKLOADS,
    Common,
    Keys,
    Workload,
    Zipf,
    draw_alias,
    make_workload,
    register,
    zipf_table,
)

OUTER_ONLY = (
    "arrivals",
    "rate",
    "cost_mean",
    "cost_spread",
    "cost_levels",
    "cost_seeded",
    "cost_every",
    "n_sources",
    "source_by",
)

# A period's table is used until the period ends; a few, for streams read side by side.
_table = functools.lru_cache(maxsize=4)(zipf_table)


def nested(
    field: str, spec: str | Mapping[str, Any] | Workload, index: int, seed: int, n_tuples: int
) -> Workload:
    """Make the ``index``-th inner workload of an outer one; only its keys are used.

    A seed or length that the spec leaves out is derived from the outer workload's.

    Raises:
        ConfigError: The spec sets times, costs or sources (they belong to the outer workload), or its
            length is below ``n_tuples``, the number of tuples taken from it.
    """
    if isinstance(spec, Workload):
        inner = spec
    else:
        given = {"name": spec} if isinstance(spec, str) else spec
        if not isinstance(given, Mapping):
            raise ConfigError(f"{field} = {spec!r}: expected a name or a mapping with a 'name'")
        for name in OUTER_ONLY:
            if name in given:
                raise ConfigError(f"{field}.{name}: set {name} on the outer workload, not on {field}")
        derived: dict[str, Any] = {"seed": (seed + (index + 1) * 0x9E3779B97F4A7C15) & MAX_SEED}
        cls = WORKLOADS.get(str(given.get("name")))
        if cls is not None and cls.parameters()["n_tuples"].default is not None:
            derived["n_tuples"] = max(n_tuples, 1)
        try:
            inner = make_workload({**derived, **given})
        except ConfigError as error:
            raise ConfigError(f"{field}: {error}") from None
    if inner.n_tuples < n_tuples:
        raise ConfigError(f"{field}.n_tuples = {inner.n_tuples}: expected at least {n_tuples}")
    return inner


def keys_of(spec: str | Mapping[str, Any] | Workload) -> Any:
    """The spec as plain data, fit for `Workload.params`: a workload becomes its name and key parameters."""
    if not isinstance(spec, Workload):
        return spec if isinstance(spec, str) else dict(spec)
    return {name: value for name, value in spec.spec.items() if name not in OUTER_ONLY}


def periods(lo: int, hi: int, every: int) -> Iterator[tuple[int, int, int]]:
    """Split tuples ``[lo, hi)`` at multiples of ``every``: (period, first, end) of each part."""
    while lo < hi:
        end = min(hi, (lo // every + 1) * every)
        yield lo // every, lo, end
        lo = end


@register("alternate")
class Alternate(Workload):
    """Two workloads in turn, ``every`` tuples each: Dalton Fig. 9a (uniform and Zipf).

    Tuple t is of period p = t // T and comes from ``first`` if p is even, else from ``second``; each
    workload goes on where it stopped, at its tuple j = T (p // 2) + t mod T.

    Args:
        first: Name or ``{"name": ..., **params}`` of the workload of even periods.
        second: The same for odd periods.
        every: T, tuples per period.
        **common: See `Workload`; times, costs and sources are set here, not in the nested specs.
    """

    def __init__(
        self,
        *,
        first: str | Mapping[str, Any] | Workload = "uniform",
        second: str | Mapping[str, Any] | Workload = "zipf",
        every: int = 100_000,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.every = check_int("every", every, low=1)
        rounds, rest = divmod(self.n_tuples, 2 * self.every)
        lengths = [rounds * self.every + min(max(rest - i * self.every, 0), self.every) for i in (0, 1)]
        self._parts = (
            nested("first", first, 0, self.seed, lengths[0]),
            nested("second", second, 1, self.seed, lengths[1]),
        )
        self.first, self.second = keys_of(first), keys_of(second)

    def _keys(self, lo: int, hi: int) -> Keys:
        parts = [np.empty(0, np.int64)]
        for p, begin, end in periods(lo, hi, self.every):
            skip = (p - p // 2) * self.every  # tuples of the other workload before this period
            parts.append(self._parts[p % 2]._keys(begin - skip, end - skip))
        return np.concatenate(parts)


@register("random_zipf")
class RandomZipf(Workload):
    """A new Zipf every ``every`` tuples: Dalton Fig. 9d.

    Period p draws z_p uniform in [low, high] and a shift uniform in [0, n_keys), both from (seed, p);
    id = (rank + shift_p) mod n_keys, so that exponent and heavy hitters change together.

    Args:
        n_keys: Number of keys.
        low: Least exponent.
        high: Greatest exponent.
        every: T, tuples per period. Dalton changes every 1000 s: T = 1000 s times the rate.
        **common: See `Workload`.
    """

    def __init__(
        self,
        *,
        n_keys: int = 100_000,
        low: float = 0.5,
        high: float = 1.5,
        every: int = 100_000,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.n_keys: int = check_int("n_keys", n_keys, low=1, high=MAX_KEYS)
        self.low = check_real("low", low, low=0, high=3)
        self.high = check_real("high", high, low=self.low, high=3)
        self.every = check_int("every", every, low=1)

    def period(self, p: int) -> tuple[float, int]:
        """Exponent and shift of period ``p``."""
        key = stream_key(self.seed, DRIFT_STREAM)
        z = self.low + (self.high - self.low) * unit(key, 2 * p)
        return z, min(int(unit(key, 2 * p + 1) * self.n_keys), self.n_keys - 1)

    def _keys(self, lo: int, hi: int) -> Keys:
        parts = [np.empty(0, np.int64)]
        for p, begin, end in periods(lo, hi, self.every):
            z, shift = self.period(p)
            parts.append(draw_alias(self.seed, begin, end, _table(self.n_keys, z), shift))
        return np.concatenate(parts)


@register("swap")
class Swap(Zipf):
    """Zipf whose ``n_hot`` heaviest keys change places with others every ``every`` tuples.

    Ranks form B + 1 blocks of H = n_hot. In period p > 0 block 0 and block b_p = 1 + (r + p) mod B swap
    ids, r drawn from the seed; period 0 is plain Zipf. With B >= 2 consecutive hot sets are disjoint.

    Args:
        n_hot: H, at most a third of the keys.
        every: T, tuples per period.
        n_keys: Number of keys.
        exponent: Zipf exponent.
        shift: Added to every id modulo n_keys, after the swap.
        **common: See `Workload`.
    """

    def __init__(
        self,
        *,
        n_hot: int = 10,
        every: int = 100_000,
        n_keys: int = 100_000,
        exponent: float = 1.0,
        shift: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(n_keys=check_int("n_keys", n_keys, low=3), exponent=exponent, shift=shift, **common)
        self.n_hot = check_int("n_hot", n_hot, low=1, high=self.n_keys // 3)
        self.every = check_int("every", every, low=1)

    def hot(self, p: int) -> int:
        """Id, before the shift, of the heaviest key in period ``p``; the next n_hot - 1 ids follow it."""
        blocks = self.n_keys // self.n_hot - 1
        r = int(unit(stream_key(self.seed, DRIFT_STREAM), 0) * blocks)
        return self.n_hot * (1 + (r + p) % blocks) if p else 0

    def _keys(self, lo: int, hi: int) -> Keys:
        keys = draw_alias(self.seed, lo, hi, self._table)
        for p, begin, end in periods(lo, hi, self.every):
            part, hot = keys[begin - lo : end - lo], self.hot(p)
            up, down = part < self.n_hot, (part >= hot) & (part < hot + self.n_hot)
            if p:
                part += hot * up - hot * down
        return (keys + self.shift) % self.n_keys if self.shift else keys


@register("gradual")
class Gradual(Workload):
    """Zipf whose exponent goes linearly from ``z0`` to ``z1`` over the stream, in steps.

    z(t) = z0 + (z1 - z0) k / (K - 1), k = t // step, K = ceil(n_tuples / step); the ranking stays.

    Args:
        n_keys: Number of keys.
        z0: Exponent of the first step.
        z1: Exponent of the last step.
        step: Tuples per step; each step builds a table in O(n_keys), so keep it above n_keys / 10.
        **common: See `Workload`.
    """

    def __init__(
        self,
        *,
        n_keys: int = 100_000,
        z0: float = 0.5,
        z1: float = 1.5,
        step: int = 50_000,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.n_keys: int = check_int("n_keys", n_keys, low=1, high=MAX_KEYS)
        self.z0 = check_real("z0", z0, low=0, high=3)
        self.z1 = check_real("z1", z1, low=0, high=3)
        self.step = check_int("step", step, low=1)

    def exponent(self, k: int) -> float:
        """Exponent of step ``k``."""
        last = (self.n_tuples - 1) // self.step
        return self.z0 + (self.z1 - self.z0) * (k / last if last else 0.0)

    def _keys(self, lo: int, hi: int) -> Keys:
        parts = [np.empty(0, np.int64)]
        for k, begin, end in periods(lo, hi, self.step):
            parts.append(draw_alias(self.seed, begin, end, _table(self.n_keys, self.exponent(k))))
        return np.concatenate(parts)
