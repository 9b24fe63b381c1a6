"""What the figures are drawn with: styles, frames, labels that find their place, files written whole.

Colours are those of Okabe and Ito, which colour-blind readers tell apart, and a function of the name alone:
a partitioner looks the same in all figures. Beyond eight partitioners only the ones everybody looks for have
a colour; the others are grey, and every line and point is labelled where it is.
"""

from __future__ import annotations

import math
import os
import uuid
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

DPI = 150
WIDTH = 8.0
"""Inches: 1200 pixels, shown 800 wide in a README, where 8 points are 11 pixels high."""
SMALL, NORMAL = 8.0, 9.0
MANY = 8
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY, DARK, PALE = "#9A9A9A", "#595959", "#EDEDED"
POINT = 72 / DPI
"""Points per pixel."""

Box = tuple[float, float, float, float]
"""Left, low, right, high; in points."""


class Style(NamedTuple):
    """How a partitioner is drawn."""

    colour: str
    line: Any
    marker: str


MAIN = {
    "dalton": Style(VERMILLION, "-", "o"),
    "dalton_batch": Style(ORANGE, "-", "s"),
    "dalton_share": Style(PURPLE, "-", "D"),
    "kg": Style(BLUE, "-", "v"),
    "pkg": Style(GREEN, "-", "^"),
    "oracle": Style(BLACK, (0, (4, 2)), "*"),
    "sg": Style(SKY, "-", "X"),
}
COLOURS = (ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE)
DASHES = ((0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKERS = "<>PphHd8"
SALT = 3344
"""Chosen so that the partitioners of the literature differ in colour or dashes."""


def style(name: str) -> Style:
    """Colour, line and marker of a partitioner; those not in `MAIN` draw theirs from the name."""
    if name in MAIN:
        return MAIN[name]
    drawn, colour = divmod(zlib.crc32(name.encode(), SALT), len(COLOURS))
    drawn, dash = divmod(drawn, len(DASHES))
    return Style(COLOURS[colour], DASHES[dash], MARKERS[drawn % len(MARKERS)])


def colour_of(name: str, count: int) -> str:
    """Colour of a partitioner in a figure of ``count``: grey for most if there are many."""
    kept = count <= MANY or name.startswith("dalton") or name in ("oracle", "kg", "pkg")
    return style(name).colour if kept else GREY


def front(colour: str) -> dict[str, Any]:
    """Width and depth of a line: grey ones are thin and behind."""
    return {"linewidth": 0.9, "zorder": 2.0} if colour == GREY else {"linewidth": 1.7, "zorder": 3.0}


def ink(colour: str) -> dict[str, Any]:
    """How a name is written beside something of this colour."""
    grey = colour == GREY
    return {
        "fontsize": SMALL,
        "color": DARK if grey else colour,
        "fontweight": "normal" if grey else "bold",
        "va": "center",
    }


def titled(height: float, title: str, note: str) -> Figure:
    """An empty figure with a title and a line that says what is shown; `margins` leaves room for them."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    top = 1 - 0.1 / height
    figure.text(0.012, top, title, fontsize=11, fontweight="bold", va="top", parse_math=False)
    figure.text(0.012, top - 0.24 / height, note, fontsize=SMALL, color=DARK, va="top", parse_math=False)
    return figure


def margins(
    figure: Figure, *, left: float, right: float, bottom: float = 0.5, top: float = 0.62, **spaces: float
) -> None:
    """Set the margins of all axes, in inches."""
    wide, high = figure.get_size_inches()
    figure.subplots_adjust(
        left=left / wide, right=1 - right / wide, bottom=bottom / high, top=1 - top / high, **spaces
    )


def frame(axes: Axes, x: str, y: str) -> None:
    """A light grid, no box, and labels with units."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)


def general(value: float, _position: object = None) -> str:
    """A tick's number, with no more digits than it has."""
    return f"{value:,.6g}"


def ratio_scale(axes: Axes, which: str, values: Iterable[float], low: float = 1.0) -> None:
    """Scale axis x or y for ratios from ``low``, about 1, upward: logarithmic beyond a factor of 2."""
    top = max([value for value in values if math.isfinite(value)], default=1.0)
    if top <= 2:
        axes.set(**{f"{which}lim": (low, 1 + 1.08 * max(top - 1, 0.02))})
        return
    axes.set(**{f"{which}scale": "log"})
    axes.set(**{f"{which}lim": (low, top * 1.04)})
    steps = (1, 1.2, 1.5, 2, 3, 4, 5, 7) if top < 12 else (1, 2, 5)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator([s * 10.0**k for k in range(9) for s in steps if s * 10**k <= top]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(general))


def width(text: str) -> float:
    """Width of a label in points."""
    return 1.12 * float(TextPath((0, 0), text, size=SMALL, usetex=False).get_extents().width) if text else 0.0


def names_width(names: Iterable[str]) -> float:
    """Inches beside axes for the names that `label_ends` writes."""
    return max(map(width, names)) / 72 + 0.4


def names_height(count: int) -> float:
    """Height in inches of a figure beside whose axes ``count`` names fit."""
    return max(4.2, 1.2 + count * 1.25 * SMALL / 72)


def spread(wanted: Sequence[float], gap: float) -> NDArray[np.float64]:
    """Positions in [0, 1] closest to ascending ``wanted`` ones and ``gap`` apart, if there is room."""
    room = np.arange(len(wanted)) * min(gap, 1 / max(1, len(wanted) - 1))
    moved: NDArray[np.float64] = isotonic_regression(np.asarray(wanted) - room).x
    return np.clip(moved, 0.0, 1.0 - room[-1]) + room


def label_ends(axes: Axes, ends: dict[str, tuple[float, float]], count: int) -> None:
    """Write every line's name to the right of its end, one below the other."""
    if not ends:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = {name: float(to_axes.transform(end)[1]) for name, end in ends.items()}
    order = sorted(ends, key=heights.__getitem__)
    size = axes.get_window_extent()
    places = spread([heights[name] for name in order], 1.22 * SMALL / (size.height * POINT))
    for name, place in zip(order, places, strict=True):
        colour = colour_of(name, count)
        arrow = {
            "arrowstyle": "-",
            "color": colour,
            "lw": 0.6,
            "shrinkA": 1,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        axes.annotate(
            name,
            ends[name],
            (1 + 16 / (size.width * POINT), place),
            textcoords="axes fraction",
            annotation_clip=False,
            parse_math=False,
            arrowprops=arrow,
            **ink(colour),
        )


def label_points(
    axes: Axes, table: pd.DataFrame, x: str, y: str, count: int, colours: dict[str, str] | None = None
) -> None:
    """Write the index of a table beside its points, where it covers least of points, whiskers and names.

    Args:
        axes: With its limits set: a label does not move with them.
        table: Columns ``x``, ``y``, and half-widths of their whiskers under ``<column>_ci``.
        x: Column of the abscissa.
        y: Column of the ordinate.
        count: Partitioners in the figure.
        colours: Of the names; of those that are not there, `colour_of`.
    """
    centre = table[[x, y]].to_numpy(np.float64)
    half = table[[f"{x}_ci", f"{y}_ci"]].fillna(0.0).to_numpy(np.float64)
    low, points, high = (
        axes.transData.transform(part) * POINT for part in (centre - half, centre, centre + half)
    )
    taken: list[Box] = []
    for (left, down), (px, py), (right, up) in zip(low, points, high, strict=True):
        taken += [(px - 4, py - 4, px + 4, py + 4), (left, py - 1, right, py + 1), (px - 1, down, px + 1, up)]
    size = axes.get_window_extent()
    room = (size.x0 * POINT, size.y0 * POINT, size.x1 * POINT, size.y1 * POINT)
    # The crowd is at the left, where balance is cheap, so that those get the first choice.
    for at in np.argsort(points[:, 0], kind="stable"):
        name, (px, py) = str(table.index[at]), points[at]
        box, far = _place(px, py, width(name), 1.1 * SMALL, taken, room)
        taken.append(box)
        colour = (colours or {}).get(name) or colour_of(name, count)
        near = {"arrowstyle": "-", "color": GREY, "lw": 0.5 if far else 0.0, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            name,
            (px / POINT, py / POINT),
            (box[0] / POINT, (box[1] + box[3]) / 2 / POINT),
            xycoords="figure pixels",
            textcoords="figure pixels",
            parse_math=False,
            arrowprops=near,
            zorder=4,
            **ink(colour),
        )


def _place(x: float, y: float, wide: float, high: float, taken: list[Box], room: Box) -> tuple[Box, bool]:
    """The best box for a label of this size around (x, y), and whether it is so far that it needs a line."""
    best, found, far = math.inf, room, False
    for radius in (7, 14, 24, 36, 50, 66, 84, 104):
        for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
            left = x + radius * math.cos(angle) - wide * (0.5 - 0.5 * math.cos(angle))
            low = y + radius * math.sin(angle) - high / 2
            box = (left, low, left + wide, low + high)
            outside = wide * high - _common(box, room)
            cost = sum(_common(box, other) for other in taken) + 10 * outside + 0.35 * radius
            cost += 3 * (1 - math.cos(angle))  # to the right, all else equal
            # A line to the label should not strike through another.
            middle = (box[0] + wide / 2, low + high / 2)
            for part in (0.35, 0.5, 0.65, 0.8) if radius > 7 else ():
                px, py = x + part * (middle[0] - x), y + part * (middle[1] - y)
                cost += 15 * sum(_common((px - 1, py - 1, px + 1, py + 1), other) for other in taken)
            if cost < best:
                best, found, far = cost, box, radius > 7
    return found, far


def _common(one: Box, other: Box) -> float:
    """Area that two boxes share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def replace(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file under another name in its folder, made if missing, and then rename it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(data)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
