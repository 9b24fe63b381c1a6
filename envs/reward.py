"""The reward of a routing decision: one function, for the agent and for the environments."""

from __future__ import annotations

from typing import Any

from dalton.envs.kernel import kernel


@kernel
def reward(load: Any, total: Any, n: Any, fragments: Any, p1: Any) -> Any:
    """R = -(p1 CI + p2 CA), p1 + p2 = 1 (Dalton Section 3.1, Eq. 3 and 4); in [-1, 1].

        CI = (L_a - avg) / max(L_a, avg),   CA = ||X(k)|| / n

    Whole loads make CI one division of whole numbers, so that the unit of the load does not matter, not
    even to the last bit: tuples, or the nanoseconds of tuples that all cost the same.

    Args:
        load: L_a, load of the chosen worker in the window with this tuple: tuples, or time over capacity.
        total: Load of all workers in the window with this tuple; avg = total / n.
        n: Number of workers.
        fragments: ||X(k)||, workers that hold the key in the window, the chosen one included.
        p1: Weight of balance; p2 = 1 - p1 is that of aggregation.
    """
    per_worker = 1.0 / n  # leaves the loop of a kernel, unlike a division of what changes
    scaled, whole = float(load) * n, float(total)
    imbalance = (scaled - whole) / max(scaled, whole)
    return -(p1 * imbalance + (1.0 - p1) * (fragments * per_worker))
