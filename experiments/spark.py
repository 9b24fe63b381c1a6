"""``dalton spark``: Spark's part of the command line. PySpark is imported when a command runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from dalton.envs.errors import ConfigError, check_choice
from dalton.pipeline.session import require_spark, spark_session

if TYPE_CHECKING:
    from dalton.pipeline.diagnose import Diagnosis
    from dalton.pipeline.statistics import Statistics

Command = Callable[..., Any]


@click.group()
def spark() -> None:
    """Prepare streams with Spark, and see whether a job is skewed."""


def _with_session(command: Command) -> Command:
    """Add the options of a session."""
    for option in (
        click.option("--ship", default=None, help="Zip of `dalton spark package` to send to the executors."),
        click.option("--conf", multiple=True, help="Setting of Spark as name=value; may be repeated."),
        click.option("--master", default=None, help="URL of the cluster; by default all local cores."),
    ):
        command = option(command)
    return command


@contextmanager
def _session(name: str, master: str | None, conf: tuple[str, ...], ship: str | None) -> Iterator[Any]:
    pairs = [setting.partition("=") for setting in conf]
    for setting, (field, _, value) in zip(conf, pairs, strict=True):
        if not field or not value:
            raise ConfigError(f"conf = {setting!r}: expected name=value")
    if ship is not None and not (ship.endswith(".zip") and Path(ship).is_file()):
        raise ConfigError(f"ship = {ship!r}: expected a .zip that `dalton spark package` made")
    # What Spark says of a mistake, with Java's stack, stands in the one line that the user gets.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    session = spark_session(f"dalton {name}", master, **{field: value for field, _, value in pairs})
    try:
        if ship is not None:
            session.sparkContext.addPyFile(ship)
        yield session
    finally:
        session.stop()


@spark.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--out", required=True, help="Folder to write.")
@click.option(
    "--format", "form", required=True, help="What the files are; `dalton spark formats` lists them."
)
@click.option("--by", default=None, help="What the key is, of formats that offer a choice.")
@click.option("--key", default=None, help="Column of keys of a table.")
@click.option("--time", default=None, help="Column of times; without it, tuple i comes at second i.")
@click.option("--value", default=None, help="Column of values; without it, all are 1.")
@click.option("--cost", default=None, help="Column of costs, the work per tuple.")
@click.option("--time-format", default=None, help="Pattern of times, as dd/MM/yyyy HH:mm; by default ISO.")
@click.option("--separator", default=None, help="Between the fields of a CSV.")
@click.option("--key-type", default=None, help="Of a table's keys: auto, string or integer.")
@click.option("--expand/--no-expand", default=True, help="Make a line that counts c views into c tuples.")
@click.option("--sample", default=100_000, show_default=True, help="Tuples of the sample.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sample.")
@click.option("--overwrite", is_flag=True, help="Replace the folder if it is there.")
@_with_session
def ingest(
    paths: tuple[str, ...],
    out: str,
    form: str,
    by: str | None,
    key_type: str | None,
    expand: bool,
    sample: int,
    seed: int,
    overwrite: bool,
    master: str | None,
    conf: tuple[str, ...],
    ship: str | None,
    **columns: str | None,
) -> None:
    """Make raw files (PATHS, also compressed) into a keyed stream that the workload `trace` replays.

    Writes stream/, sample/, malformed/ and statistics.json into the folder.
    """
    require_spark()
    from dalton.pipeline.datasets import ingest
    from dalton.pipeline.formats import FORMATS
    from dalton.pipeline.tables import TABLES, Columns

    check_choice("format", form, [*FORMATS, *TABLES])  # before a session is started
    with _session("ingest", master, conf, ship) as session:
        found = ingest(
            session,
            paths,
            out,
            format=form,
            by=by,
            columns=Columns(**columns),
            key_type=key_type,
            expand=expand,
            sample=sample,
            seed=seed,
            overwrite=overwrite,
        )
    show_statistics(found, out)


def show_statistics(found: Statistics, out: str) -> None:
    """Print what was read and written."""
    console, stream = Console(), found.stream
    table = Table("messages", "keys", "p1", "top 10", "drift", "lines", "malformed", "without key", title=out)
    top = sum(heavy.share for heavy in stream.top[:10])
    shares = [f"{share:.2%}" for share in (stream.p1, top)]
    counts = [f"{count:,}" for count in (found.lines, found.malformed, found.without_key)]
    table.add_row(f"{stream.messages:,}", f"{stream.keys:,}", *shares, f"{stream.drift:.3f}", *counts)
    console.print(table)
    tenths = Table("tenth", "messages", "leading key", "its share", "drift", title="Tenths of the stream")
    for i, (messages, leader, drift) in enumerate(stream.tenths):
        name = str(leader.key) if leader.name is None else leader.name
        tenths.add_row(
            str(i + 1), f"{messages:,}", name, f"{leader.share:.2%}", "-" if drift is None else f"{drift:.3f}"
        )
    console.print(tenths)
    for reason, count in sorted(found.reasons.items(), key=lambda item: -item[1]):
        console.print(f"Set aside: {count:,} lines, {reason}", markup=False)
    console.print(f"Replay it with: dalton run workload=trace workload.path={out}/stream", markup=False)


@spark.command()
def formats() -> None:
    """List the formats that `dalton spark ingest` reads."""
    require_spark()
    from dalton.pipeline.formats import FORMATS
    from dalton.pipeline.tables import TABLES

    table = Table("format", "key (--by)", "what it is", title="Formats")
    for name, form in FORMATS.items():
        first = (form.parse.__doc__ or "").partition("\n")[0].replace("``", "")
        table.add_row(f"[bold]{name}[/]", ", ".join(form.by), first)
    for name, preset in TABLES.items():
        table.add_row(f"[bold]{name}[/]", preset.columns.key or "column of --key", preset.what)
    Console().print(table)


@spark.command()
@click.argument("path")
@click.option("--key", required=True, help="Column of keys.")
@click.option("--tasks", default=None, type=int, help="Tasks after the shuffle; by default Spark's setting.")
@click.option("--format", "form", default="parquet", show_default=True, help="csv, json or parquet.")
@click.option("--only", default=None, help="Only these partitioners, separated by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@_with_session
def diagnose(
    path: str,
    key: str,
    tasks: int | None,
    form: str,
    only: str | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
    ship: str | None,
) -> None:
    """Say how skewed the rows of PATH are by a key, and what each partitioner would gain."""
    require_spark()
    from dalton.pipeline.diagnose import CANDIDATES, diagnose
    from dalton.pipeline.files import Files

    check_choice("format", form, ("csv", "json", "parquet"))
    names = list(CANDIDATES) if only is None else only.split(",")
    with _session("diagnose", master, conf, ship) as session:
        Files(session).check_found("path", path)
        options = {"header": "true", "inferSchema": "true"} if form == "csv" else {}
        frame = session.read.format(form).options(**options).load(path)
        found = diagnose(frame, key, n_tasks=tasks, partitioners=names)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, default=str))
    else:
        show_diagnosis(found)


def show_diagnosis(found: Diagnosis) -> None:
    """Print a diagnosis."""
    from dalton.pipeline.diagnose import SHOWN

    console = Console()
    console.print(
        f"{found.rows:,} rows, about {found.keys:,} keys, p1 {found.p1:.2%}, read by {found.inputs} tasks; "
        f"{len(found.hot)} keys have more rows than the mean of {found.n_tasks} tasks"
    )
    if found.hot:
        hot = Table("key", "rows", "share", "task", title="Hot keys")
        for key, rows, share, task in found.hot[:SHOWN]:
            hot.add_row(str(key), f"{rows:,}", f"{share:.2%}", str(task))
        console.print(hot)
    loads = Table("", "busiest task / mean", title=f"Predicted for {found.n_tasks} tasks")
    loads.add_row("hash partitioning", f"{found.straggler:.2f}")
    loads.add_row("the same, combined before the shuffle", f"{found.straggler_combined:.2f}")
    console.print(loads)
    gains = Table("partitioner", "busiest task / mean", "pairs per key", "gain", title="Partitioners")
    for name, straggler, pairs, gain in found.gains:
        gains.add_row(f"[bold]{name}[/]", f"{straggler:.2f}", f"{pairs:.3f}", f"{gain:.2f}x")
    console.print(gains)
    console.print(
        f"Partitioners: simulated on a sample of {found.sample:,} rows. Gain: over hash partitioning."
    )
    console.print(found.advice, markup=False, highlight=False)


@spark.command()
@click.option("--out", default="dalton.zip", show_default=True, help="File to write.")
def package(out: str) -> None:
    """Make the zip that ships this package to executors which do not have it (Spark ignores .whl)."""
    from dalton.pipeline.package import package

    written = package(out)
    click.echo(f"{written}: give it to --ship, spark-submit --py-files or SparkContext.addPyFile")
