"""When a key is hot: the tumbling window STATS_WIN and its threshold (Dalton Definition 3.3, Section 3.3).

A key is hot from the tuple on at which its count f in the current STATS_WIN reaches ⌈L / (c n)⌉, L the tuples
of the STATS_WIN before, until the end of the next. With exact counts at most c n keys reach that in a
STATS_WIN that has no more than L tuples (Theorem 3.4, with c = 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalton.envs.errors import check_int, check_real
from dalton.envs.kernel import kernel
from dalton.envs.window import Floats, Window, start_after

NUMBER, FOLLOWING, LENGTH, TUPLES, LEAST = range(5)


def stats_span(window: Window, length: float | None) -> Floats:
    """The state: number of the STATS_WIN, where the next begins, its length, tuples in it, the threshold.

    Args:
        window: The window; a STATS_WIN has the same unit.
        length: Length of a STATS_WIN; None for one slide.
    """
    size = float(length or window.slide)
    # Where tuples are counted, L of the first STATS_WIN is known: its length.
    return np.array([-1.0, -np.inf, size, size if window.by == "count" else 0.0, np.inf])


def check_stats_window(window: Window, length: float | None) -> float | None:
    """The length of a STATS_WIN as given, if it is allowed: whole where tuples are counted."""
    if length is None:
        return None
    if window.by == "count":
        return check_int("stats_window", length, low=1)
    return check_real("stats_window", length, above=0)


@kernel
def begin_window(span: Any, hot_keys: Any, now: Any) -> Any:
    """Begin the STATS_WIN that holds ``now``; ``hot_keys`` is c n. Returns whether the one before had tuples.

    After one without tuples there is nothing to go by, and nothing is hot.
    """
    number = np.floor(now / span[LENGTH])
    known = number == span[NUMBER] + 1 and span[TUPLES] > 0
    span[LEAST] = np.ceil(span[TUPLES] / hot_keys) if known else np.inf
    span[NUMBER] = number
    span[FOLLOWING] = start_after(number, span[LENGTH])
    span[TUPLES] = 0
    return known
