"""Pictures of a cluster: loads as bars, the present key's fragments marked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEIGHT, BAR, GAP = 240, 16, 4
# Okabe and Ito's palette, which colour-blind readers can tell apart.
PAPER, PLAIN, HELD, LINE = (255, 255, 255), (86, 180, 233), (230, 159, 0), (60, 60, 60)
BLOCKS = " ▁▂▃▄▅▆▇█"


def text(load: NDArray[np.signedinteger[Any]], held: NDArray[np.bool_], title: str) -> str:
    """Loads as a line of blocks, and below it a mark for every worker that holds the present key."""
    scale = 8 / max(1, int(load.max()))
    bars = "".join(BLOCKS[round(value * scale)] for value in load.tolist())
    marks = "".join("^" if bit else "." for bit in held)
    mean = load.mean()
    ratio = load.max() / mean if mean else 1.0
    return f"{title}\n{bars}  max/mean {ratio:.2f}\n{marks}"


def picture(load: NDArray[np.signedinteger[Any]], held: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Loads as bars, those that hold the present key in orange, the mean as a line.

    Returns:
        ``(HEIGHT, width, 3)`` RGB; twice the mean is the full height, what is above is cut.
    """
    n = len(load)
    image = np.empty((HEIGHT, GAP + n * (BAR + GAP), 3), np.uint8)
    image[:] = PAPER
    mean = max(load.mean(), 1e-9)
    for w in range(n):
        left = GAP + w * (BAR + GAP)
        top = HEIGHT - round(min(1.0, load[w] / (2 * mean)) * HEIGHT)
        image[top:, left : left + BAR] = HELD if held[w] else PLAIN
    image[HEIGHT // 2 - 1 : HEIGHT // 2 + 1] = LINE
    return image
