"""The report of a comparison: one HTML file that needs nothing else, and its figures beside it."""

from __future__ import annotations

import base64
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from dalton.envs.errors import ConfigError
from dalton.experiments import plots, queue_plots, round_plots
from dalton.experiments.completion import completion_over_time, completion_sweep
from dalton.experiments.drawing import replace
from dalton.experiments.records import (
    ANSWER_METRICS,
    METRICS,
    Record,
    Setting,
    bound,
    grouped,
    paired,
    summarise,
)

BEAT, ORACLE = "kg", "oracle"
BOUND = "lower bound"
SCALED = ("throughput", "max_over_mean", "replication")
COLUMNS = (
    "max_over_mean",
    "replication",
    "regret_load",
    "regret_pairs",
    "aggregation_cost",
    "ns_per_tuple",
    "throughput",
    "completion_mean",
    "completion_p99",
    "completion_rate",
    "offered_spread",
    *ANSWER_METRICS,
)
ACROSS = "completion_rate"
FIGURES: dict[str, tuple[Callable[[list[Record]], Figure | None], str]] = {
    "plane": (plots.balance_plane, "max/mean load over pairs per key, a point per partitioner"),
    "time": (plots.imbalance_over_time, "max/mean load along the stream, a line per partitioner"),
    "work": (plots.work_over_time, "max/mean operations of the application along the stream"),
    "memory": (plots.memory_plane, "tuples completed per second over counters in memory"),
    "change": (plots.adaptivity, "max/mean load after a change of the distribution, a line per partitioner"),
    "heat": (plots.load_heatmap, "load of every worker over the mean, slide by slide"),
    "completion": (completion_over_time, "completion time along the stream, a line per partitioner"),
    "queues": (queue_plots.queues_over_time, "utilisation, queues and completion times along the stream"),
    "throughput": (plots.throughput_bars, "tuples per second, a bar per partitioner"),
    "rounds": (round_plots.rounds_over_time, "DSYNC and disagreement of the local Q-tables, round by round"),
    "convergence": (round_plots.convergence, "imbalance and aggregation cost of cooperating partitioners"),
}


class Cell(NamedTuple):
    """One number of the table."""

    text: str
    half: str = ""
    """Half-width of the interval; empty if there is none."""
    best: bool = False


class Row(NamedTuple):
    """One line of the table."""

    name: str
    cells: list[Cell]
    css: str = ""


class Picture(NamedTuple):
    """A figure in the page."""

    name: str
    png: bytes
    alt: str

    @property
    def data(self) -> str:
        """Base64 of the PNG."""
        return base64.b64encode(self.png).decode()


class Section(NamedTuple):
    """A setting with its table and figures, or figures alone."""

    title: str
    pictures: list[Picture]
    seeds: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()


def write_report(
    path: str | os.PathLike[str],
    records: Iterable[Record],
    *,
    title: str,
    command: str,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write a page with a table and figures for every (workload, n_workers), all embedded.

    The figures are also written to the folder ``figures`` beside it, under names made of workload, workers
    and kind. Every file is the old one or the new one, never a part.

    Args:
        path: The HTML file.
        records: What was simulated; the same simulation at most once.
        title: Headline.
        command: What a reader types to make the report again.
        notes: Paragraphs below the command.

    Returns:
        The files of the figures, in the order of the page.
    """
    given = list(records)
    if not given:
        raise ConfigError("records: expected at least one")
    groups = grouped(given)
    prefixes = _prefixes(list(groups))
    sections = [
        _section(setting, [record for same in runs.values() for record in same], prefixes[setting])
        for setting, runs in groups.items()
    ]
    if len({n for _, n in groups}) > 1:
        drawn = ((metric, plots.scaling(given, metric)) for metric in SCALED)
        pictures = [
            Picture(
                f"scaling-{metric}", plots.png(figure), f"{METRICS[metric].label} over the number of workers"
            )
            for metric, figure in drawn
        ]
        sections.append(Section("Scaling with the number of workers", pictures))
    sweep = completion_sweep(given)
    if sweep is not None:
        picture = Picture("completion", plots.png(sweep), "mean completion time against what was varied")
        sections.append(Section("Completion time", [picture]))
    if len({workload for workload, _ in groups}) > 2 and any(ACROSS in record.summary for record in given):
        figure = plots.across(given, ACROSS)
        picture = Picture("across", plots.png(figure), f"{METRICS[ACROSS].label} from workload to workload")
        sections.append(Section("From workload to workload", [picture]))
    target = Path(path)
    page = _template().render(
        title=title, command=command, notes=notes, sections=sections, beat=BEAT, oracle=ORACLE
    )
    written = []
    for picture in (picture for section in sections for picture in section.pictures):
        written.append(target.parent / "figures" / f"{picture.name}.png")
        replace(written[-1], picture.png)
    replace(target, page.encode())
    return written


def _template() -> Any:
    text = (files("dalton.experiments") / "report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(text)


def _prefixes(settings: list[Setting]) -> dict[Setting, str]:
    """The start of a file's name for every setting, none twice."""
    taken: dict[str, Setting] = {}
    for workload, n in settings:
        plain = re.sub(r"[^a-z0-9.]+", "-", workload.lower()).strip("-.")[:60] or "workload"
        name, number = f"{plain}-n{n}", 2
        while name in taken:
            name, number = f"{plain}-{number}-n{n}", number + 1
        taken[name] = (workload, n)
    return {setting: name for name, setting in taken.items()}


def _section(setting: Setting, records: list[Record], prefix: str) -> Section:
    workload, n = setting
    title = f"{workload}, {n} worker{'s' * (n != 1)}"
    pictures = []
    for kind, (draw, alt) in FIGURES.items():
        if kind == "throughput" and all(math.isnan(r.summary.get(kind, math.nan)) for r in records):
            continue
        figure = draw(records)
        if figure is not None:
            pictures.append(Picture(f"{prefix}-{kind}", plots.png(figure), f"{title}: {alt}"))
    table = summarise(records).set_index("partitioner")
    counts = sorted(set(table["seeds"]))
    seeds = (
        f"{counts[0]} to {counts[-1]} seeds"
        if len(counts) > 1
        else f"{counts[0]} seed{'s' * (counts[0] != 1)}"
    )
    return Section(title, pictures, seeds, *_table(records, table))


def _table(records: list[Record], table: pd.DataFrame) -> tuple[list[str], list[Row]]:
    """Labels of the columns after the first, and the rows: candidates, then what is no candidate."""
    shown = [metric for metric in COLUMNS if metric in table and table[metric].notna().any()]
    values = _rows(table)
    names = list(values)
    usable = [name for name in names if name != ORACLE]
    best = {metric: _best(metric, [values[name][metric] for name in usable]) for metric in shown}
    gaps = _rows(paired(records, "max_over_mean", BEAT).set_index("partitioner")) if BEAT in names else None
    rows = []
    for name in [*usable, *(name for name in names if name == ORACLE)]:
        cells = []
        for metric in shown:
            text = METRICS[metric].text(values[name][metric])
            half = values[name][f"{metric}_ci"]
            bold = name != ORACLE and text == best[metric]
            cells.append(Cell(text, "" if math.isnan(half) else METRICS[metric].text(half), bold))
        if gaps is not None:
            cells.insert(1, _gap(gaps, name))
        css = {BEAT: "beat", ORACLE: "bound first"}.get(name, "")
        rows.append(Row(f"{name} (to beat)" if name == BEAT else name, cells, css))
    load, pairs = bound(records)
    least = {"max_over_mean": load, "replication": pairs, "regret_load": 0.0, "regret_pairs": 0.0}
    cells = [Cell(METRICS[metric].text(least.get(metric, math.nan))) for metric in shown]
    columns = [METRICS[metric].label for metric in shown]
    if gaps is not None:
        cells.insert(1, Cell("–"))
        columns.insert(1, f"minus {BEAT}’s")
    rows.append(Row(BOUND, cells, "bound" if ORACLE in names else "bound first"))
    return columns, rows


def _best(metric: str, values: list[float]) -> str | None:
    """The best value as it is printed, None if there is none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return METRICS[metric].text(max(known) if METRICS[metric].higher else min(known))


def _rows(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows by the table's index."""
    return {str(name): dict(zip(table.columns, row, strict=True)) for name, *row in table.itertuples()}


def _gap(gaps: dict[str, dict[str, Any]], name: str) -> Cell:
    if name not in gaps:
        return Cell("–")
    value, half = gaps[name]["difference"], gaps[name]["difference_ci"]
    return Cell(f"{value:+.3f}".replace("-", "−"), "" if math.isnan(half) else f"{half:.3f}")
