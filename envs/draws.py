"""Random numbers as a pure function of (seed, purpose, index): the generator of all streams.

    u(t) = mix64(s + (t + 1) * 0x9E3779B97F4A7C15),   s = a 64-bit key mixed from seed and purpose,

which is splitmix64 with random access (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.hashing import mix64
from dalton.envs.kernel import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
KEY_STREAM, TIME_STREAM, ANGLE_STREAM, DRIFT_STREAM, COST_STREAM = 1, 2, 3, 4, 5


def stream_key(seed: int, purpose: int) -> np.uint64:
    """The generator key of one purpose (keys, times, ...) of one seed."""
    return np.uint64(mix64(np.uint64((int(mix64(np.uint64(seed))) + purpose) % 2**64)))


@kernel
def unit(key: Any, t: Any) -> Any:
    """Draw ``t`` of generator ``key``: a float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(mix64(key + np.uint64(t + 1) * GOLDEN) >> np.uint64(11))) * 2.0**-53
