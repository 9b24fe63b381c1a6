"""Figures of the queue model: completion times along the stream, and against what a comparison varies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullFormatter

from dalton.experiments.drawing import (
    WIDTH,
    colour_of,
    frame,
    front,
    general,
    label_ends,
    margins,
    names_height,
    names_width,
    style,
    titled,
)
from dalton.experiments.plots import CHANGE
from dalton.experiments.records import Record, Runs, grouped, single

REFERENCE = "round_robin"
MEAN = "completion_mean"


def completion_over_time(records: Iterable[Record]) -> Figure | None:
    """Completion time along the stream, a line per partitioner; None without a queue model (OSG Fig. 11).

    The line is the mean of the tuples of a slide, the band goes from its shortest to its longest. It is the
    first seed alone: the mean over streams would hide what a tuple waits.
    """
    (workload, n), runs = single(records)
    first = {name: same[0] for name, same in runs.items() if MEAN in same[0].slides}
    if not first:
        return None
    shifts = sorted({shift for record in first.values() for shift in record.marks})
    seed = next(iter(first.values())).seed
    note = f"seed {seed}; line: mean of a slide's tuples, band: shortest to longest" + (
        "; dashed: the stream or a worker changes" * bool(shifts)
    )
    figure = titled(
        names_height(len(first)), f"Completion time: {workload}, {n} worker{'s' * (n != 1)}", note
    )
    axes = figure.add_subplot()
    margins(figure, left=0.75, right=names_width(first))
    frame(axes, "position in the stream (tuples)", "completion time (s)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    ends = {}
    for name, record in first.items():
        table, colour = record.slides, colour_of(name, len(first))
        low, high = table["completion_min"], table["completion_max"]
        axes.fill_between(table["seen"], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(table["seen"], table[MEAN], color=colour, linestyle=style(name).line, **front(colour))
        ends[name] = (float(table["seen"].iloc[-1]), float(table[MEAN].iloc[-1]))
    for shift in shifts:
        axes.axvline(shift, **CHANGE)
    axes.set_xlim(0, max(end for end, _ in ends.values()))
    axes.set_ylim(0)
    label_ends(axes, ends, len(first))
    return figure


class Sweep(NamedTuple):
    """What a comparison varies: its values in order, and for each the runs by the name of a line."""

    axis: str
    points: dict[str, Runs]


def swept(records: Iterable[Record]) -> Sweep | None:
    """The workloads if there are several, else the numbers of workers, else the partitioners; or None."""
    groups = grouped(records)
    workloads, sizes = {workload for workload, _ in groups}, {n for _, n in groups}
    if len(workloads) > 1 and len(sizes) == 1:
        return Sweep("workload", {workload: runs for (workload, _), runs in groups.items()})
    if len(sizes) > 1 and len(workloads) == 1:
        return Sweep("workers (number)", {str(n): runs for (_, n), runs in groups.items()})
    ((_, runs),) = groups.items() if len(groups) == 1 else ((None, {}),)
    others = {name: same for name, same in runs.items() if name != REFERENCE}
    if REFERENCE not in runs or len(others) < 3:
        return None
    order = sorted(others, key=lambda name: next(i for i, r in enumerate(records) if r.partitioner == name))
    line = {name: {"partitioner": others[name], REFERENCE: runs[REFERENCE]} for name in order}
    return Sweep("partitioner", line)


def speed_ups(runs: Runs, name: str) -> list[float]:
    """L of round robin over L of a partitioner, stream by stream: Lambda of OSG Section 5.1."""
    known = {record.seed: record.summary[MEAN] for record in runs.get(REFERENCE, [])}
    return [known[r.seed] / r.summary[MEAN] for r in runs.get(name, []) if r.seed in known]


def completion_sweep(records: Iterable[Record]) -> Figure | None:
    """Mean completion time, and the speed-up over round robin if it is there, against what varies.

    Lines are means over seeds in bands from the least to the greatest (OSG Figs. 4 and 6 to 10). None without
    a queue model, or if workloads and numbers of workers both vary or nothing does.
    """
    given = list(records)
    sweep = swept(given) if all(MEAN in record.summary for record in given) else None
    if sweep is None:
        return None
    names = list(dict.fromkeys(name for runs in sweep.points.values() for name in runs))
    panels = [("mean completion time (s)", lambda runs, name: [r.summary[MEAN] for r in runs.get(name, [])])]
    if REFERENCE in names:
        panels.append(("speed-up over round robin (ratio)", speed_ups))
    figure = titled(
        names_height(len(names)),
        f"Completion time against {sweep.axis.partition(' ')[0]}",
        "line: mean over seeds, band: least to greatest; log scale",
    )
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    right = names_width(names)
    between = len(panels) * (right + 0.7) / (WIDTH - len(panels) * (right + 0.7))
    margins(figure, left=0.7, right=right, bottom=0.95, wspace=between)
    for axes, (label, values) in zip(grid, panels, strict=True):
        _panel(axes, sweep, names, label, values)
    return figure


def _panel(axes: Axes, sweep: Sweep, names: list[str], label: str, values: object) -> None:
    assert callable(values)
    frame(axes, sweep.axis, label)
    axes.set_yscale("log")
    places = np.arange(len(sweep.points))
    axes.set_xticks(places, list(sweep.points), rotation=45, ha="right", parse_math=False)
    curves = {}
    for name in names:
        rows = [values(runs, name) or [np.nan] for runs in sweep.points.values()]
        curve = pd.DataFrame({"mean": map(np.mean, rows), "min": map(min, rows), "max": map(max, rows)})
        colour = colour_of(name, len(names))
        axes.fill_between(places, curve["min"], curve["max"], color=colour, alpha=0.15, linewidth=0)
        look = {"linestyle": style(name).line, "marker": style(name).marker, "markersize": 4}
        axes.plot(places, curve["mean"], color=colour, **look, **front(colour))
        curves[name] = curve
    everything = pd.concat(curves.values())
    low, high = float(everything["min"].min()), float(everything["max"].max())
    steps = (1, 2, 5) if high > 4 * low else (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = [step * 10.0**k for k in range(-7, 7) for step in steps]
    axes.set_ylim(low / 1.05, high * 1.05)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low / 1.05 <= tick <= high * 1.05]))
    axes.yaxis.set_major_formatter(FuncFormatter(general))
    axes.yaxis.set_minor_formatter(NullFormatter())
    ends = {name: (float(places[-1]), float(curve["mean"].iloc[-1])) for name, curve in curves.items()}
    label_ends(axes, {name: end for name, end in ends.items() if np.isfinite(end[1])}, len(names))
