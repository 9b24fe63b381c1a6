"""A stream cut where slides end and where loads are probed: what drivers hand to partitioners."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError
from dalton.envs.window import Window
from dalton.envs.workloads import Chunk

CHUNK = 1 << 18


class Piece(NamedTuple):
    """Consecutive tuples of one slide, with no probe between them."""

    slide: int
    chunk: Chunk
    probe: bool
    """Whether the loads are probed before it."""
    last: bool
    """Whether the slide ends with it."""


def pieces_of(chunks: Iterator[Chunk], window: Window, interval: float = np.inf) -> Iterator[Piece]:
    """The stream cut at the ends of slides and at probes.

    A piece waits for the next tuple to know whether it is the last of its slide.
    """
    held: Piece | None = None
    tick = None
    for chunk in chunks:
        if not len(chunk.keys):
            continue
        times = clock_of(chunk, window)
        cuts = {0, len(chunk.keys), *_steps(chunk, times, window.slide), *_steps(chunk, times, interval)}
        for low, high in itertools.pairwise(sorted(cuts)):
            at = chunk.start + low if times is None else float(times[low])
            previous, tick = tick, _number(at, interval)
            probe = previous not in (None, tick)
            piece = Piece(_number(at, window.slide), chunk.part(low, high), probe, last=False)
            if held is not None:
                yield held._replace(last=held.slide != piece.slide)
            held = piece
    if held is not None:
        yield held._replace(last=True)


def clock_of(chunk: Chunk, window: Window) -> NDArray[np.float64] | None:
    """Arrival times where the window is in time; None where it counts tuples."""
    if window.by == "count":
        return None
    if chunk.times is None:
        raise ConfigError("window.by = 'time': expected a workload with times, not arrivals = 'count'")
    return chunk.times


def _number(at: float, step: float) -> int:
    """The interval that holds ``at``, by the same floor(t / s) as the workers' windows."""
    return 0 if step == np.inf else math.floor(at / step)


def _steps(chunk: Chunk, times: NDArray[np.float64] | None, step: float) -> NDArray[np.int64]:
    """Where in the chunk an interval of ``step`` begins."""
    if step == np.inf:
        return np.empty(0, np.int64)
    if times is not None:
        return np.flatnonzero(np.diff(np.floor(times / step))) + 1
    length = int(step)
    return np.arange(-chunk.start % length, len(chunk.keys), length)


def whole_slides(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces joined to whole slides, for partitioners that must see one before deciding."""
    held: list[Piece] = []
    for piece in pieces:
        held.append(piece)
        if piece.last:
            columns = zip(*(part.chunk[1:] for part in held), strict=True)
            joined: Any = (None if parts[0] is None else np.concatenate(parts) for parts in columns)
            chunk = Chunk(held[0].chunk.start, *joined)
            yield Piece(piece.slide, chunk, any(part.probe for part in held), last=True)
            held = []
