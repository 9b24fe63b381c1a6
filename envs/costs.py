"""What a tuple costs, by its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.envs.draws import COST_STREAM, stream_key, unit
from dalton.envs.errors import ConfigError, check_flag, check_int, check_real, shown
from dalton.envs.hashing import mix64
from dalton.envs.kernel import kernel

COST_KEY = np.uint64(0xC057C057C057C057)


@kernel
def _key_costs(keys: Any, key: Any, mean: Any, spread: Any, levels: Any, out: Any) -> None:
    for i in range(len(keys)):
        u = unit(key, keys[i])
        if levels > 0:
            u = np.float64(min(np.int64(u * levels), levels - 1)) / (levels - 1)
        out[i] = mean * (1.0 + spread * (2.0 * u - 1.0))


@dataclass(frozen=True)
class KeyCosts:
    """Costs of keys, as `Workload` describes them.

        cost(k) = mean (1 + spread (2 u(k) - 1)),   u(k) uniform in [0, 1)

    With ``levels`` u(k) is one of w numbers at equal distance, 0 and 1 included: w distinct costs, from
    mean (1 - spread) to mean (1 + spread), n(w) of OSG Section 5.1. There every cost has equally many keys;
    here every key draws its own.
    """

    mean: float
    spread: float
    levels: int | None
    key: np.uint64
    every: int | None

    def of(self, keys: NDArray[np.int64], start: int) -> NDArray[np.float64]:
        """Costs of tuples ``start .. start + m - 1`` in seconds, shape ``(m,)``."""
        out = np.empty(len(keys))
        every = self.every or start + len(keys) + 1
        for period in range(start // every, (start + len(keys) - 1) // every + 1):
            low, high = max(0, period * every - start), (period + 1) * every - start
            key = self.key if period == 0 else np.uint64(mix64(self.key + np.uint64(period)))
            _key_costs(keys[low:high], key, self.mean, self.spread, self.levels or 0, out[low:high])
        return out


def key_costs(
    *,
    cost_mean: float | None,
    cost_spread: float,
    cost_levels: int | None,
    cost_seeded: bool,
    cost_every: int | None,
    seed: int,
) -> KeyCosts | None:
    """Check the parameters; None if tuples have no costs."""
    options = {"cost_levels": cost_levels, "cost_every": cost_every, "cost_seeded": cost_seeded or None}
    given = {"cost_spread": cost_spread or None, **options}
    if cost_mean is None:
        for name, value in given.items():
            if value is not None:
                nothing = 0 if name == "cost_spread" else "none"
                raise ConfigError(f"{name} = {shown(value)}: expected {nothing} unless cost_mean is set")
        return None
    check_flag("cost_seeded", cost_seeded)
    return KeyCosts(
        check_real("cost_mean", cost_mean, above=0),
        check_real("cost_spread", cost_spread, low=0, high=1),
        None if cost_levels is None else check_int("cost_levels", cost_levels, low=2, high=2**31 - 1),
        stream_key(seed, COST_STREAM) if cost_seeded else COST_KEY,
        None if cost_every is None else check_int("cost_every", cost_every, low=1),
    )
