"""Figures of the queue model: what happens to the workers' queues along the stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from dalton.experiments.drawing import (
    colour_of,
    frame,
    front,
    general,
    label_ends,
    margins,
    names_width,
    style,
    titled,
)
from dalton.experiments.plots import CHANGE, caption, heading
from dalton.experiments.records import Record, single


class Panel(NamedTuple):
    """One of the measures, along the stream."""

    label: str
    columns: tuple[str, ...]
    """Of `Record.slides`: the second, if there is one, is subtracted."""
    log: bool


PANELS = (
    Panel(
        "spread of utilisation\n(most - least work sent / capacity)", ("offered_max", "offered_min"), False
    ),
    Panel("longest queue\n(tuples, log scale)", ("queue_max",), True),
    Panel("mean completion time\n(s, log scale)", ("completion_mean",), True),
)
POINTS = 240
"""Points of a line: of more slides, neighbours are averaged, which at this width could not be told apart."""


def queues_over_time(records: Iterable[Record]) -> Figure | None:
    """How unevenly the workers are used, the longest queue and the completion time along the stream.

    Means over seeds (CG Figs. 8, 10 and 11). CG draws differences between the worker that has most and the
    one that has least; where one worker's queue is empty, as is usual, the longest queue is that difference.
    None without a queue model.
    """
    given = list(records)
    if not all("offered_max" in record.slides for record in given):
        return None
    setting, runs = single(given)
    changes = sorted({at for record in given for at in record.changes})
    note = caption(runs) + "; dashed: capacities change" * bool(changes)
    figure = titled(1.1 + 2.3 * len(PANELS), heading("Queues over time", setting), note)
    grid = figure.subplots(len(PANELS), 1, sharex=True)
    margins(figure, left=1.0, right=names_width(runs), hspace=0.16)
    for axes, panel in zip(grid, PANELS, strict=True):
        _draw(axes, panel, {name: _curve(same, panel) for name, same in runs.items()})
        for at in changes:
            axes.axvline(at, **CHANGE)
    for axes in grid[:-1]:
        axes.set_xlabel("")
    figure.align_ylabels(grid)
    grid[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def _curve(runs: list[Record], panel: Panel) -> pd.Series[float]:
    """Mean over seeds of a measure, by position in the stream."""
    parts = []
    for record in runs:
        values = record.slides[panel.columns[0]]
        for other in panel.columns[1:]:
            values = values - record.slides[other]
        parts.append(pd.DataFrame({"seen": record.slides["seen"], "value": values}))
    table = pd.concat(parts).groupby(level=0).mean()
    if len(table) > POINTS:
        table = table.groupby(np.arange(len(table)) * POINTS // len(table)).mean()
    return table.set_index("seen")["value"]


def _draw(axes: Axes, panel: Panel, curves: dict[str, pd.Series[float]]) -> None:
    frame(axes, "position in the stream (tuples)", panel.label)
    if panel.log:
        axes.set_yscale("log")
    for name, curve in curves.items():
        colour = colour_of(name, len(curves))
        look = {**front(colour), "linewidth": 1.3}
        axes.plot(curve.index, curve, color=colour, linestyle=style(name).line, label=name, **look)
    if panel.log:
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(general))
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.autoscale_view()  # now: labels do not move with the limits
    ends = {name: (float(curve.index[-1]), float(curve.iloc[-1])) for name, curve in curves.items()}
    label_ends(axes, ends, len(curves))
