"""The command ``dalton``."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from dalton import __version__
from dalton.envs.errors import ConfigError
from dalton.envs.workloads import WORKLOADS, Workload
from dalton.experiments.papers import experiment_of, experiments, figures
from dalton.experiments.registry import partitioner_config, partitioner_names, ready_names
from dalton.experiments.spark import spark


class Program(click.Group):
    """A group of commands in which a user's mistake is one line and exit code 2."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run the program and exit."""
        run: Any = super().main  # its overloads do not take what is passed on
        try:
            code = run(*args, **{**extra, "standalone_mode": False})
        except ConfigError as error:
            _fail(str(error))
        except click.ClickException as error:
            _fail(error.format_message())
        except (click.Abort, KeyboardInterrupt):
            click.echo("Interrupted", err=True)
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    sys.exit(2)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dalton")
def main() -> None:
    """Learned, skew-aware stream partitioning."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


main.add_command(spark)

KINDS = ("partitioners", "workloads", "experiments")


@main.command(name="list")
@click.argument("what", type=click.Choice(["all", *KINDS]), default="all")
def list_(what: str) -> None:
    """Show every partitioner and workload with its parameters and defaults, and the named experiments."""
    console = Console()
    if what in ("all", "partitioners"):
        table = Table(
            "partitioner", "what it does", "parameters (besides n_workers and seed)", title="Partitioners"
        )
        for name in partitioner_names():
            cls, params = partitioner_config(name)
            table.add_row(f"[bold]{name}[/]", _first_line(cls), _parameters(params))
        console.print(table)
    if what in ("all", "workloads"):
        table = Table("workload", "what it is", "own parameters", title="Workloads")
        common = _defaults(Workload)
        for name, workload in sorted(WORKLOADS.items()):
            own = {field: value for field, value in _defaults(workload).items() if field not in common}
            table.add_row(f"[bold]{name}[/]", _first_line(workload), _parameters(own))
        console.print(table)
        console.print(f"Every workload but a trace also takes: {_parameters(common)}")
    if what in ("all", "experiments"):
        table = Table("experiment", "what it is", "reproduces", title="Experiments")
        for one in experiments():
            table.add_row(f"[bold]{one.name}[/]", one.title or "-", one.paper or "-")
        console.print(table)


def _defaults(workload: Any) -> dict[str, Any]:
    return {field: parameter.default for field, parameter in workload.parameters().items()}


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "")


def _parameters(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in params.items()) or "-"


def _shown(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "(required)"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {part}" for name, part in value.items()) + "}"
    return str(value)


@main.command()
@click.option("--workers", default="8,64,256", show_default=True, help="Worker counts, separated by commas.")
@click.option(
    "--exponents", default="1.0,1.5", show_default=True, help="Zipf exponents, separated by commas."
)
@click.option("--tuples", default=2_000_000, show_default=True, help="Tuples per measurement.")
@click.option("--repeat", default=3, show_default=True, help="Measurements, of which the fastest counts.")
@click.option("--only", default=None, help="Only these partitioners, separated by commas.")
@click.option("--policies", default=None, help="Only trained policies (folders, separated by commas).")
def bench(
    workers: str, exponents: str, tuples: int, repeat: int, only: str | None, policies: str | None
) -> None:
    """Measure every partitioner and the environments, as ratios to a floor of the same run.

    Partitioners: ns per tuple, the floor reads a key, hashes it and stores a worker. Environments: beside
    Gymnasium's CartPole. Policies: ns per decision, beside Dalton and heuristics.
    """
    from dalton.experiments import benchmark

    if policies:
        benchmark.decisions(policies.split(","), repeat)
        return
    names = only.split(",") if only else ready_names()
    counts, skews = _numbers("workers", workers, int), _numbers("exponents", exponents, float)
    benchmark.run(names, counts, skews, tuples, repeat)
    if not only:
        benchmark.environments(repeat=repeat)
    if not only and importlib.util.find_spec("mlflow"):
        benchmark.tracking(repeat=repeat)
    if not only:
        benchmark.on_ray(repeat=repeat)
    if not only and importlib.util.find_spec("pyspark") and shutil.which("java"):
        from dalton.experiments import benchmark_spark

        benchmark_spark.run(repeat=repeat)


HYDRA = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@main.command(context_settings=HYDRA)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def run(overrides: tuple[str, ...]) -> None:
    """Simulate and track one run, a sweep (-m) or a named experiment (experiment=...).

    OVERRIDES are those of Hydra, e.g. partitioner=pkg workload.exponent=1.5 cluster.n_workers=64; --help
    shows the configuration, -m sweeps over values separated by commas.
    """
    _application(overrides, "config")


@main.command(context_settings=HYDRA)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def compare(overrides: tuple[str, ...]) -> None:
    """Compare partitioners on paired streams: table, report, MLflow.

    OVERRIDES as in `dalton run`, e.g. partitioners=[pkg,dalton] workloads=[zipf,uniform] workers=[8,64]
    seeds=5.
    """
    _application(overrides, "compare")


@main.command(context_settings=HYDRA)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def tune(overrides: tuple[str, ...]) -> None:
    """Search Dalton's parameters on a set of workloads.

    OVERRIDES as in `dalton run`, e.g. search.trials=100 workers=[64] search.pairs_weight=1.
    """
    _application(overrides, "tune")


@main.command(context_settings={**HYDRA, "help_option_names": ["-h", "--help"]})
@click.argument("figure", required=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def reproduce(figure: str | None, overrides: tuple[str, ...]) -> None:
    """Make a figure of the papers again; without one, show which there are.

    FIGURE is e.g. "Dalton Fig. 7", or dalton7 for short. OVERRIDES as in `dalton run`; testing=true makes a
    small form of it.
    """
    if figure is not None:
        _application((f"experiment={experiment_of(figure).name}", *overrides), "config")
        return
    table = Table("figure", "experiment", "what it is", title="Figures")
    for name, experiment in figures().items():
        table.add_row(f"[bold]{name}[/]", experiment.name, experiment.title or "-")
    Console().print(table)


@main.command(context_settings=HYDRA)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def train(overrides: tuple[str, ...]) -> None:
    """Train a policy with RLlib, to be used as partitioner=rllib (extra deep).

    OVERRIDES as in `dalton run`, e.g. algorithm=dqn environment=batch workload.exponent=1.5
    cluster.n_workers=8 training.iterations=100 search.trials=8.
    """
    _application(overrides, "train")


def _application(overrides: tuple[str, ...], config: str) -> None:
    try:
        from dalton.experiments import app
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install dalton[tracking]") from None
    app.run(list(overrides), config)


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--output", default="policy.dalton", show_default=True, help="The file to write.")
@click.option("--run", default=None, help="Train as this finished run did, instead of by OVERRIDES.")
@click.option("--model", default=None, help="Register the model under this name.")
@click.option("--alias", default=None, help="Give the new version of the model this alias.")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def export(
    output: str, run: str | None, model: str | None, alias: str | None, overrides: tuple[str, ...]
) -> None:
    """Train Dalton on a workload and write its policy, for use in Spark jobs.

    OVERRIDES as in `dalton run`, e.g. workload=trace workload.path=sample.parquet cluster.n_workers=16
    partitioner=dalton_share; tracking=none logs no model.
    """
    try:
        from dalton.experiments import app, models, tracking
        from dalton.experiments.settings import single, tracking_of
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install dalton[tracking]") from None
    settings, partitioner = app.composed(list(overrides))
    where = tracking_of(settings["tracking"])
    job = models.recorded_job(tracking.Store(where), run) if run else single(settings, partitioner)
    models.export(job, Path(output), where, model=model, alias=alias)


@main.command()
@click.option("--seed", default=0, show_default=True, help="Seed of the stream that is counted and merged.")
def costs(seed: int) -> None:
    """Measure what counting a tuple and merging a pair cost here, and explain the model's defaults."""
    from dalton.experiments import throughput

    throughput.explain(seed)


@main.command()
@click.option("--uri", default=None, help="The store; by default mlflow.db in the working directory.")
@click.option("--port", default=5000, show_default=True, help="Port of the page.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the page listens at.")
def ui(uri: str | None, port: int, host: str) -> None:
    """Start MLflow's page on the runs of the working directory."""
    from dalton.experiments import page

    page.serve(uri, host, port)


def _numbers(field: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{field} = {text!r}: expected numbers separated by commas") from None
