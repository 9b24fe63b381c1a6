"""Where an exploring agent sends a tuple: interchangeable rules, each a name and a branch of `explore`.

- ``uniform``: any worker (Dalton Section 3.2).
- ``least_loaded``: the worker with the least load in the window.
- ``fragments``: any worker that holds the key already, so that exploring never splits.
- ``share``: the least loaded worker while the key is on fewer workers than its share of the stream needs,
  n f / L and SPARE more to choose from; after that the least loaded of those that hold it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.kernel import kernel
from dalton.envs.window import lightest

RULES = ("uniform", "least_loaded", "fragments", "share")
UNIFORM, LEAST_LOADED, FRAGMENTS, SHARE = range(4)
SPARE = 4


@kernel
def draw(random: Any) -> Any:
    """A float64 in [0, 1): the upper bits of Knuth's MMIX generator, whose state ``random`` holds."""
    random[0] = random[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return np.float64(np.int64(random[0] >> np.uint64(11))) * 2.0**-53


@kernel
def explore(rule: Any, random: Any, load: Any, stamps: Any, oldest: Any, fragments: Any, share: Any) -> Any:
    """A worker to try.

    Args:
        rule: Code of the rule.
        random: State of the generator.
        load: ``(n,)`` tuples per worker in the window.
        stamps: ``(n,)`` the last slide in which the key went to each worker.
        oldest: The last slide that is not in the window any more.
        fragments: Number of workers with a stamp after ``oldest``.
        share: n f / L, the number of workers that the key would keep busy.
    """
    n = len(load)
    if rule == LEAST_LOADED or (rule == SHARE and fragments < np.ceil(share) + SPARE):
        return np.int64(lightest(load))
    if rule == SHARE:
        best = np.int64(-1)
        for w in range(n):
            if stamps[w] > oldest and (best < 0 or load[w] < load[best]):
                best = np.int64(w)
        return best
    if rule == FRAGMENTS and fragments > 0:
        left = np.int64(draw(random) * fragments)
        for w in range(n):
            if stamps[w] > oldest:
                if left == 0:
                    return np.int64(w)
                left -= 1
    return np.int64(draw(random) * n)
