"""Figures of a comparison, from `Record`s.

They need no display, leave matplotlib's global state alone, and so work in threads and processes. Unless said
otherwise a figure shows one workload and one number of workers. Styles are in `dalton.experiments.drawing`.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError, check_choice
from dalton.experiments.drawing import (
    BLACK,
    DARK,
    DPI,
    GREY,
    MANY,
    NORMAL,
    PALE,
    SMALL,
    WIDTH,
    colour_of,
    frame,
    front,
    general,
    label_ends,
    label_points,
    margins,
    names_height,
    names_width,
    ratio_scale,
    replace,
    style,
    titled,
    width,
)
from dalton.experiments.records import (
    METRICS,
    Record,
    Runs,
    Setting,
    bound,
    interval,
    single,
    summarise,
)

LOAD, PAIRS = "max/mean load (1 = balanced)", "pairs per key (1 = no key is split)"
RATIOS = {
    "max_over_mean": LOAD,
    "replication": PAIRS,
    "answer_work": "max/mean operations (1 = balanced)",
}
CHANGE: dict[str, Any] = {"color": DARK, "linestyle": (0, (4, 3)), "linewidth": 0.9, "zorder": 1}
HEAT = "PuOr_r"


def heading(what: str, setting: Setting) -> str:
    """The title of a figure of one setting."""
    workload, n = setting
    return f"{what}: {workload}, {n} worker{'s' * (n != 1)}"


def caption(runs: Runs, spread: str = "") -> str:
    """What a number of the figure is, and how its spread is drawn if there is one."""
    counts = sorted({len(same) for same in runs.values()})
    if counts[-1] == 1:
        return "one seed"
    return f"mean of {counts[0]}{f' to {counts[-1]}' * (len(counts) > 1)} seeds{spread}"


def _band(runs: Runs) -> str:
    return caption(runs, f", band{' of the coloured' * (len(runs) > MANY)} from the least to the greatest")


def _lines(figure: Figure, curves: dict[str, pd.DataFrame], x: str, y: str = LOAD) -> Axes:
    """One line per partitioner of ``mean`` over the index, in a band from ``min`` to ``max``."""
    axes = figure.add_subplot()
    margins(figure, left=0.6, right=names_width(curves))
    frame(axes, x, y)
    ratio_scale(
        axes, "y", [float(curve["mean" if len(curves) > MANY else "max"].max()) for curve in curves.values()]
    )
    first = min(float(curve.index[0]) for curve in curves.values())
    last = max(float(curve.index[-1]) for curve in curves.values())
    axes.set_xlim(first, last if last > first else first + 1)
    for name, curve in curves.items():
        colour = colour_of(name, len(curves))
        if colour != GREY:
            axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.18, linewidth=0)
        # Not clipped: a line at 1 lies on the edge and would be cut in half.
        axes.plot(
            curve.index,
            curve["mean"],
            color=colour,
            linestyle=style(name).line,
            marker="o" if len(curve) == 1 else None,
            label=name,
            clip_on=False,
            **front(colour),
        )
    ends = {name: (float(curve.index[-1]), float(curve["mean"].iloc[-1])) for name, curve in curves.items()}
    label_ends(axes, ends, len(curves))
    return axes


def imbalance_over_time(records: Iterable[Record]) -> Figure:
    """max/mean load of the window along the stream: mean over seeds in a band of least to greatest."""
    return _over_time(records, "max_over_mean", "Balance over time")


def work_over_time(records: Iterable[Record]) -> Figure | None:
    """max/mean operations of the application's workers along the stream; None without an application."""
    given = list(records)
    if not all("answer_work" in record.slides for record in given):
        return None
    return _over_time(given, "answer_work", "Work of the application over time")


def _over_time(records: Iterable[Record], metric: str, what: str) -> Figure:
    setting, runs = single(records)
    curves = {}
    for name, same in runs.items():
        slides = pd.concat([record.slides for record in same]).groupby("slide")
        curve = slides[metric].agg(["mean", "min", "max"])
        curves[name] = curve.set_index(slides["seen"].mean())
    shifts = sorted({shift for same in runs.values() for record in same for shift in record.marks})
    note = _band(runs) + "; dashed: the stream or a worker changes" * bool(shifts)
    figure = titled(names_height(len(runs)), heading(what, setting), note)
    axes = _lines(figure, curves, "position in the stream (tuples)", RATIOS[metric])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for shift in shifts:
        axes.axvline(shift, **CHANGE)
    return figure


def adaptivity(records: Iterable[Record]) -> Figure | None:
    """max/mean load around a change of the distribution: mean over changes and seeds; None without a change.

    Slide 0 is the first with tuples of the new distribution. As many slides are shown as the median
    distribution lasts; changes to one that lasts less are left out.
    """
    setting, runs = single(records)
    every = [record for same in runs.values() for record in same]
    lengths = [length for record in every for _, length in _spans(record)]
    if not lengths:
        return None
    after = int(np.median(lengths))
    rows = {record: [at for at, length in _spans(record) if length >= after] for record in every}
    before = min(5, after, *(at for used in rows.values() for at in used))
    curves = {}
    for name, same in runs.items():
        parts = [_around(record, at, before, after) for record in same for at in rows[record]]
        if parts:
            seeds = pd.DataFrame(parts).groupby(level=0).mean()
            curves[name] = seeds.agg(["mean", "min", "max"]).T
    most = max(map(len, rows.values()))
    note = f"mean over {most} changes; {_band(runs)}" if most > 1 else _band(runs)
    figure = titled(names_height(len(curves)), heading("After a change", setting), note)
    axes = _lines(figure, curves, "slides since the distribution changed (number)")
    axes.axvline(-0.5, **CHANGE)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _spans(record: Record) -> list[tuple[int, int]]:
    """Row of the first slide of every new distribution, and the number of slides it lasts."""
    seen = record.slides["seen"].to_numpy()
    rows = {int(np.searchsorted(seen, shift, side="right")) for shift in record.marks}
    inside = sorted(row for row in rows if 0 < row < len(seen))
    return [(row, end - row) for row, end in itertools.pairwise([*inside, len(seen)])]


def _around(record: Record, at: int, before: int, after: int) -> pd.Series[float]:
    load = record.slides["max_over_mean"].to_numpy(np.float64)[at - before : at + after]
    return pd.Series(load, np.arange(-before, after), name=record.seed)


def balance_plane(records: Iterable[Record]) -> Figure:
    """What balance costs: max/mean load over pairs per key, a point per partitioner with 95 % intervals.

    The grey border is what no assignment reaches: a load below the mean, less than a pair per key. The black
    line on its edge is the part of perfect balance that needs more pairs than it has, from `bound`. The
    oracle's point is no bound on pairs: it decides slide by slide, and keys move while a window lasts.
    """
    given = list(records)
    setting, runs = single(given)
    x, y = "replication", "max_over_mean"
    table = summarise(given).set_index("partitioner").dropna(subset=[x, y])
    least, fewest = bound(given)
    note = caption(runs, ", bars are 95 % intervals") + "; better is lower and further left"
    figure = titled(5.2, heading("Balance and its cost", setting), note)
    axes = figure.add_subplot()
    margins(figure, left=0.6, right=0.2, bottom=0.78)
    frame(axes, PAIRS, LOAD)
    for which, column in (("x", x), ("y", y)):
        far = table[column] + table[f"{column}_ci"].fillna(0)
        ratio_scale(axes, which, far, low=1 - 0.03 * max(far.max() - 1, 0.02) ** 0.7)
    axes.axhspan(0, 1, color=PALE, zorder=0.5)
    axes.axvspan(0, 1, color=PALE, zorder=0.5)
    axes.plot([1, fewest], [least, least], color=BLACK, linewidth=4, solid_capstyle="butt", zorder=1.5)
    for name, row in zip(map(str, table.index), table.to_dict("records"), strict=True):
        colour = colour_of(name, len(runs))
        axes.errorbar(
            row[x],
            row[y],
            xerr=row[f"{x}_ci"],
            yerr=row[f"{y}_ci"],
            color=colour,
            marker=style(name).marker,
            markersize=11 if name == "oracle" else 6.5,
            markeredgecolor="white",
            markeredgewidth=0.7,
            elinewidth=1,
            label=name,
            zorder=front(colour)["zorder"],
        )
    label_points(axes, table, x, y, len(runs))
    handles = [
        Patch(color=PALE, label="impossible: load below the mean, or less than a pair per key"),
        Line2D([], [], color=BLACK, lw=4, label=f"least load: needs at least {fewest:.4g} pairs per key"),
    ]
    figure.legend(handles=handles, loc="lower left", ncols=2, fontsize=SMALL, frameon=False)
    return figure


def load_heatmap(records: Iterable[Record]) -> Figure:
    """Load of every worker over the window's mean, slide by slide: a panel per partitioner, first seed."""
    setting, runs = single(records)
    columns = min(4, len(runs))
    rows = -(-len(runs) // columns)
    height = 1.4 + rows * (1.35 if rows > 1 else 2.4)
    note = (
        f"seed {min(same[0].seed for same in runs.values())}"
        + "; dashed: the stream or a worker changes" * any(_spans(same[0]) for same in runs.values())
    )
    figure = titled(height, heading("Load of the workers", setting), note)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    margins(figure, left=0.6, right=1.0, top=0.8, hspace=0.28, wspace=0.08)
    ratios = {name: _ratio(same[0].loads) for name, same in runs.items()}
    limit = min(4.0, max([1.25, *(float(ratio.max(initial=1.0)) for ratio in ratios.values())]))
    norm = LogNorm(1 / limit, limit)
    for axes, (name, ratio) in zip(grid.flat, ratios.items(), strict=False):
        axes.imshow(ratio.T, norm=norm, cmap=HEAT, aspect="auto", interpolation="nearest", origin="lower")
        axes.set_title(name, fontsize=SMALL, loc="left", pad=2, color=DARK, parse_math=False)
        axes.tick_params(labelsize=SMALL, color=GREY)
        axes.spines[:].set_color(GREY)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        for at, _ in _spans(runs[name][0]):
            axes.axvline(at - 0.5, **{**CHANGE, "zorder": 3, "linewidth": 0.6})
    _hide(grid, len(runs))
    figure.supxlabel("slide (number)", fontsize=NORMAL, y=0.08 / height)
    figure.supylabel("worker (number)", fontsize=NORMAL, x=0.012)
    bar = figure.colorbar(
        ScalarMappable(norm, HEAT),
        cax=figure.add_axes((1 - 0.85 / WIDTH, 0.5 / height, 0.13 / WIDTH, 1 - 1.3 / height)),
        extend="both",
        ticks=[value for value in (0.25, 0.5, 0.8, 1, 1.25, 2, 4) if 1 / limit <= value <= limit],
        format=FuncFormatter(general),
    )
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label("load / mean load (log scale)", fontsize=SMALL)
    return figure


def _ratio(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Load over the mean of the workers, ``(slides, n)``; an idle worker is below every colour's limit."""
    mean = loads.mean(axis=1, keepdims=True)
    ratio: NDArray[np.float64] = np.divide(loads, mean, out=np.ones(loads.shape), where=mean > 0)
    return np.maximum(ratio, 1e-3)


def _hide(grid: NDArray[np.object_], used: int) -> None:
    for axes in grid.flat[used:]:
        axes.set_visible(False)


def throughput_bars(records: Iterable[Record]) -> Figure:
    """Tuples per second with 95 % intervals, the fastest at the top; what was not measured has no bar."""
    setting, runs = single(records)
    rates = {
        name: interval(r.summary.get("throughput", math.nan) for r in same) for name, same in runs.items()
    }
    order = sorted(rates, key=lambda name: math.inf if math.isnan(rates[name][0]) else -rates[name][0])
    values, halves = np.array([rates[name] for name in order]).T / 1e6
    note = caption(runs, ", whiskers are 95 % intervals")
    figure = titled(1.3 + 0.2 * len(runs), heading("Throughput", setting), note)
    axes = figure.add_subplot()
    margins(figure, left=max(map(width, runs)) / 72 + 0.3, right=0.9)
    frame(axes, "throughput (M tuples/s)", "")
    axes.grid(visible=False, axis="y")
    colours = [colour_of(name, len(runs)) for name in order]
    known = np.nan_to_num(values)
    axes.barh(order, known, xerr=halves, color=colours, height=0.7, ecolor=BLACK, capsize=2)
    ends = known + np.nan_to_num(halves)
    for row, (value, end) in enumerate(zip(values, ends, strict=True)):
        text = "not measured" if math.isnan(value) else f"{value:.3g}"
        axes.annotate(text, (end, row), (4, 0), textcoords="offset points", fontsize=SMALL, va="center")
    axes.set_xlim(0, max(float(ends.max()), 1e-6) * 1.02)
    axes.set_ylim(len(order) - 0.4, -0.6)
    return figure


def scaling(records: Iterable[Record], metric: str = "max_over_mean") -> Figure:
    """A metric over the number of workers: a panel per workload, a line per partitioner, 95 % intervals."""
    shown = METRICS[check_choice("metric", metric, METRICS)]
    table = summarise(records)
    if table.empty:
        raise ConfigError("records: expected at least one")
    table[[metric, f"{metric}_ci"]] *= shown.scale
    names, workloads = table["partitioner"].unique(), table["workload"].unique()
    columns = min(2, len(workloads))
    rows = -(-len(workloads) // columns)
    height = rows * names_height(len(names))
    figure = titled(height, f"Scaling: {shown.label}", "mean over seeds, bars are 95 % intervals")
    right = names_width(names)
    grid = figure.subplots(rows, columns, squeeze=False)
    between = columns * (right + 0.7) / (WIDTH - columns * (right + 0.7))
    margins(figure, left=0.7, right=right, top=0.85, wspace=between, hspace=0.3)
    tops = table[metric] + table[f"{metric}_ci"].fillna(0)
    for axes, workload in zip(grid.flat, workloads, strict=False):
        frame(axes, "workers (number)", RATIOS.get(metric, shown.label))
        axes.set_title(workload, fontsize=NORMAL, loc="left", parse_math=False)
        here = table[(table["workload"] == workload) & table[metric].notna()]
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted(set(here["n_workers"]))))
        axes.xaxis.set_major_formatter(FuncFormatter(general))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.03)
        ends = {}
        for name in here["partitioner"].unique():
            line = here[here["partitioner"] == name].sort_values("n_workers")
            colour, look = colour_of(name, len(names)), style(name)
            axes.errorbar(
                line["n_workers"],
                line[metric],
                yerr=line[f"{metric}_ci"],
                color=colour,
                linestyle=look.line,
                marker=look.marker,
                markersize=4,
                elinewidth=1,
                label=name,
                **front(colour),
            )
            ends[name] = (float(line["n_workers"].iloc[-1]), float(line[metric].iloc[-1]))
        if metric in RATIOS:
            ratio_scale(axes, "y", tops)
        else:
            axes.set_ylim(0, max(float(tops.max()), 1e-9) * 1.04)
        label_ends(axes, ends, len(names))
    _hide(grid, len(workloads))
    return figure


def across(records: Iterable[Record], metric: str) -> Figure:
    """A metric from workload to workload, in their order: a line per partitioner, 95 % intervals."""
    shown = METRICS[check_choice("metric", metric, METRICS)]
    table = summarise(records)
    table[[metric, f"{metric}_ci"]] *= shown.scale
    names, workloads = list(table["partitioner"].unique()), list(table["workload"].unique())
    note = "mean over seeds, bars are 95 % intervals"
    figure = titled(names_height(len(names)), f"{shown.label}, from workload to workload", note)
    axes = figure.add_subplot()
    margins(figure, left=0.7, right=names_width(names))
    frame(axes, "", shown.label)
    ends = {}
    for name in names:
        line = (
            table[table["partitioner"] == name]
            .groupby("workload", sort=False)[[metric, f"{metric}_ci"]]
            .mean()
        )
        line = line.reindex(workloads)
        colour, look = colour_of(name, len(names)), style(name)
        axes.errorbar(
            range(len(workloads)),
            line[metric],
            yerr=line[f"{metric}_ci"],
            color=colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=4,
            elinewidth=1,
            label=name,
            **front(colour),
        )
        ends[name] = (len(workloads) - 1.0, float(line[metric].iloc[-1]))
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylim(0, max(float(table[metric].max()), 1e-9) * 1.06)
    label_ends(axes, ends, len(names))
    return figure


def memory_plane(records: Iterable[Record]) -> Figure | None:
    """Tuples completed per second over the counters in memory, a point per partitioner (PKG Fig. 10b).

    None without a queue model or without an application.
    """
    setting, runs = single(records)
    table = summarise(record for same in runs.values() for record in same).set_index("partitioner")
    x, y = "answer_memory", "completion_rate"
    if x not in table or y not in table:
        return None
    table[[y, f"{y}_ci"]] *= METRICS[y].scale
    table[[x, f"{x}_ci"]] /= setting[1]
    note = caption(runs) + "; better is higher and further left; joined: the same partitioner"
    figure = titled(names_height(len(runs)) + 0.5, heading("Throughput and memory", setting), note)
    axes = figure.add_subplot()
    margins(figure, left=0.7, right=0.4)
    frame(axes, "counters in memory per worker (number)", METRICS[y].label)
    # Labels like "pkg, T = 10 s" are of one partitioner.
    families: dict[str, list[str]] = {}
    for name in table.index:
        families.setdefault(str(name).partition(",")[0], []).append(name)
    for family, names in families.items():
        look = style(family)
        line = table.loc[names].sort_values(x)
        axes.plot(line[x], line[y], color=look.colour, linewidth=0.9, alpha=0.3)
        axes.plot(line[x], line[y], color=look.colour, marker=look.marker, linestyle="none")
    axes.set_xlim(0, float(table[x].max()) * 1.15)
    axes.set_ylim(0, float(table[y].max()) * 1.1)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    colours = {name: style(family).colour for family, names in families.items() for name in names}
    label_points(axes, table, x, y, len(runs), colours)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dpi, the same bytes every time."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure as PNG; the file is the old one or the new one, never a part."""
    replace(path, png(figure))
