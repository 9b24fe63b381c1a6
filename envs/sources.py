"""Several sources, each with a key distribution of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The module, not its names: whichever of the two is imported first, the other is then half loaded.
from dalton.envs import drift
from dalton.envs.errors import ConfigError
from dalton.envs.workloads import Keys, Workload, register


@register("multi")
class Multi(Workload):
    """S sources with different workloads, interleaved one tuple each.

    Tuple t belongs to source i = t mod S and is tuple j = t // S of workload i.

    Args:
        sources: One name or ``{"name": ..., **params}`` per source; only the keys of each are used.
        n_tuples: Length of the whole stream.
        seed: Seed of the arrival times, and of the sources whose spec has none.
        arrivals: See `Workload`.
        rate: Tuples per second, all sources together.
        cost_mean: See `Workload`.
        cost_spread: See `Workload`.
        cost_levels: See `Workload`.
        cost_seeded: See `Workload`.
        cost_every: See `Workload`.
    """

    def __init__(
        self,
        *,
        sources: Sequence[str | Mapping[str, Any] | Workload],
        n_tuples: int = 1_000_000,
        seed: int = 0,
        arrivals: str = "count",
        rate: float = 1000.0,
        cost_mean: float | None = None,
        cost_spread: float = 0.0,
        cost_levels: int | None = None,
        cost_seeded: bool = False,
        cost_every: int | None = None,
    ) -> None:
        if isinstance(sources, (str, Mapping)) or not isinstance(sources, Iterable):
            raise ConfigError(f"sources = {sources!r}: expected a list of workloads")
        specs = list(sources)
        if not specs:
            raise ConfigError("sources = []: expected at least one workload")
        super().__init__(
            n_tuples=n_tuples,
            seed=seed,
            arrivals=arrivals,
            rate=rate,
            cost_mean=cost_mean,
            cost_spread=cost_spread,
            cost_levels=cost_levels,
            cost_seeded=cost_seeded,
            cost_every=cost_every,
            n_sources=len(specs),
        )
        size = len(specs)
        self._parts = [
            drift.nested(f"sources[{i}]", spec, i, self.seed, max(0, (self.n_tuples - i + size - 1) // size))
            for i, spec in enumerate(specs)
        ]
        self.sources = [drift.keys_of(spec) for spec in specs]

    def _keys(self, lo: int, hi: int) -> Keys:
        out = np.empty(hi - lo, np.int64)
        for source in range(len(self._parts)):
            places, keys = self.keys_of(source, lo, hi)
            out[places - lo] = keys
        return out

    def keys_of(self, source: int, lo: int, hi: int) -> tuple[NDArray[np.int64], Keys]:
        """The tuples of one source among ``[lo, hi)``: where they are in the stream, and their keys."""
        size = len(self._parts)
        begin, end = (lo - source + size - 1) // size, (hi - source + size - 1) // size
        if begin >= end:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.arange(begin, end) * size + source, self._parts[source]._keys(begin, end)
