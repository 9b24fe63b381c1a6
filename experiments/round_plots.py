"""Figures of cooperating partitioners: their rounds (Dalton Fig. 14b), and how they converge (Fig. 15)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from dalton.experiments.drawing import (
    colour_of,
    frame,
    front,
    label_ends,
    margins,
    names_width,
    style,
    titled,
)
from dalton.experiments.records import Record, Runs, single

POSITION = "position in the stream (tuples)"


def rounds_over_time(records: Iterable[Record]) -> Figure | None:
    """DSYNC and the disagreement of the local Q-tables, round by round; None if nobody cooperates.

    The first seed of each partitioner: rounds of different seeds have no common positions.
    """
    setting, runs = single(records)
    shown = {name: same[0].rounds for name, same in runs.items() if len(same[0].rounds)}
    if not shown:
        return None
    title = f"Rounds of cooperation: {setting[0]}, {setting[1]} workers"
    figure, (top, bottom) = _panels(title, "one seed; DSYNC as the reducer granted it", shown)
    frame(top, "", "DSYNC (shortest intervals)")
    frame(bottom, POSITION, "disagreement of Q (reward)")
    ends: tuple[dict[str, tuple[float, float]], ...] = ({}, {})
    for name, table in shown.items():
        colour = colour_of(name, len(shown))
        for axes, column, end in zip((top, bottom), ("dsync", "disagreement"), ends, strict=True):
            drawn = "steps-post" if column == "dsync" else "default"
            axes.plot(
                table["position"],
                table[column],
                color=colour,
                linestyle=style(name).line,
                drawstyle=drawn,
                label=name,
                **front(colour),
            )
            end[name] = (float(table["position"].iloc[-1]), float(table[column].iloc[-1]))
    top.set_yscale("log", base=2)
    top.yaxis.set_major_formatter(EngFormatter(sep=""))
    _finish((top, bottom), ends, len(shown))
    return figure


def convergence(records: Iterable[Record]) -> Figure | None:
    """Imbalance (Eq. 1) and aggregation cost (Eq. 2) along the stream; None if nobody cooperates."""
    setting, runs = single(records)
    if not any(len(record.rounds) for same in runs.values() for record in same):
        return None
    title = f"Convergence: {setting[0]}, {setting[1]} workers"
    figure, panels = _panels(title, "mean over seeds", runs)
    frame(panels[0], "", "imbalance (tuples)")
    frame(panels[1], POSITION, "pairs at the busiest reducer")
    ends: tuple[dict[str, tuple[float, float]], ...] = ({}, {})
    for name in runs:
        colour = colour_of(name, len(runs))
        for axes, column, end in zip(panels, ("imbalance", "aggregation_cost"), ends, strict=True):
            curve = _mean_curve(runs, name, column)
            axes.plot(
                curve.index, curve, color=colour, linestyle=style(name).line, label=name, **front(colour)
            )
            end[name] = (float(curve.index[-1]), float(curve.iloc[-1]))
    _finish(panels, ends, len(runs))
    return figure


def _mean_curve(runs: Runs, name: str, column: str) -> pd.Series[float]:
    slides = pd.concat([record.slides for record in runs[name]]).groupby("slide")
    values: pd.Series[float] = slides[column].mean()
    values.index = pd.Index(slides["seen"].mean())
    return values


def _panels(title: str, note: str, names: Iterable[str]) -> tuple[Figure, tuple[Axes, Axes]]:
    figure = titled(5.0, title, note)
    top, bottom = figure.subplots(2, 1, sharex=True)
    margins(figure, left=0.75, right=names_width(list(names)), hspace=0.15)
    return figure, (top, bottom)


def _finish(panels: tuple[Axes, Axes], ends: tuple[dict[str, tuple[float, float]], ...], count: int) -> None:
    last = max(at for end in ends for at, _ in end.values())
    for axes, end in zip(panels, ends, strict=True):
        axes.set_xlim(0, last)
        if axes.get_yscale() == "linear":
            axes.set_ylim(0, max(float(np.nanmax(line.get_ydata())) for line in axes.lines) * 1.05 or 1.0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        label_ends(axes, {name: (last, value) for name, (_, value) in end.items()}, count)
