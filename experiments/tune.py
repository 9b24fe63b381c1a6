"""``dalton tune``: a search for a partitioner's parameters over a set of workloads, with Optuna's TPE."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from dalton.envs.errors import ConfigError, check_choice, check_int, check_real, shown
from dalton.envs.progress import progress
from dalton.experiments import tracking
from dalton.experiments.comparison import Outcome, pool_of, processes_of, work
from dalton.experiments.registry import partitioner_config
from dalton.experiments.settings import Params, grid, tracking_of
from dalton.experiments.tracking import Store

log = logging.getLogger("dalton")


class Search:
    """Checked settings of a search.

    The objective, to be minimised, is the mean over workloads, numbers of workers and seeds of
    max/mean load + w (pairs per key - 1): balance, and what it costs, with ``pairs_weight`` w as the price.
    """

    def __init__(self, given: Any) -> None:
        for key in given:
            check_choice("key of search", key, ("partitioner", "trials", "pairs_weight", "space"))
        self.partitioner = str(given["partitioner"])
        _, params = partitioner_config(self.partitioner)
        self.trials = check_int("search.trials", given["trials"], low=1)
        self.pairs_weight = check_real("search.pairs_weight", given["pairs_weight"], low=0)
        if not isinstance(given["space"], Mapping) or not given["space"]:
            raise ConfigError(f"search.space = {shown(given['space'])}: expected a range for each parameter")
        self.space: dict[str, tuple[float, float, bool]] = {}
        for name, part in given["space"].items():
            check_choice("key of search.space", name, params)
            low = check_real(f"search.space.{name}.low", part.get("low"))
            high = check_real(f"search.space.{name}.high", part.get("high"), above=low)
            self.space[str(name)] = (low, high, bool(part.get("log", False)))

    def suggest(self, trial: Any) -> dict[str, float]:
        """The parameters of a trial."""
        return {
            name: trial.suggest_float(name, low, high, log=log_)
            for name, (low, high, log_) in self.space.items()
        }

    def objective(self, outcomes: list[Outcome]) -> dict[str, float]:
        """The metrics of a trial."""
        records = [outcome.record for outcome in outcomes if outcome.record is not None]
        if len(records) < len(outcomes):
            failure = next(outcome.failure for outcome in outcomes if outcome.record is None)
            raise ConfigError(f"a run of the trial failed: {failure.strip().splitlines()[-1]}")
        load = float(np.mean([record.summary["max_over_mean"] for record in records]))
        pairs = float(np.mean([record.summary["replication"] for record in records]))
        worst = float(np.max([record.summary["max_over_mean"] for record in records]))
        return {
            "objective": load + self.pairs_weight * (pairs - 1.0),
            "max_over_mean": load,
            "max_over_mean_worst_run": worst,
            "replication": pairs,
        }


def search(settings: Params, folder: Path) -> None:
    """Search, record every trial as a child run, print and write the best parameters."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan = Search(settings["search"])
    processes_of(settings["jobs"])
    where = tracking_of(settings["tracking"])
    if settings["resume"] and not where.enabled:
        raise ConfigError("resume = true: expected tracking, where it is known what is done")
    store = Store(where) if where.enabled else None
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=settings["seed"]))
    parent, status = None, tracking.FAILED
    if store is not None:
        kept = {
            key: settings[key]
            for key in ("search", "workloads", "workload", "workers", "seeds", "seed", "cluster")
        }
        kept["search"] = {key: value for key, value in kept["search"].items() if key != "trials"}
        mark = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
        parent = store.begin_parent(
            str(settings["title"] or f"search of {plan.partitioner}"),
            mark,
            resume=settings["resume"],
            tags={"kind": "search", "partitioner": plan.partitioner},
        )
    try:
        if settings["resume"] and store is not None and parent is not None:
            _take_up(study, store, parent, plan)
        _trials(study, plan, settings, store, parent)
        _present(study, plan, folder, store, parent)
        status = tracking.FINISHED
    except KeyboardInterrupt:
        status = tracking.KILLED
        raise
    finally:
        if store is not None:
            store.end_parent(parent, status)
            if store.lost is not None:
                log.warning("tracking stopped (%s); the results are in %s", store.lost, folder)


def _take_up(study: Any, store: Store, parent: str, plan: Search) -> None:
    """Give a study the trials that were finished before.

    They are drawn again, so that the search goes on as it would have without an interruption: a sampler that
    begins anew would draw its first points twice.
    """
    done = {run.info.run_name: run.data for run in store.children(parent) if "objective" in run.data.metrics}
    while (data := done.get(f"trial {len(study.trials)}")) is not None:
        trial = study.ask()
        if plan.suggest(trial) != {name: float(data.params[name]) for name in plan.space}:
            raise ConfigError(
                "resume = true: the trials done before were drawn otherwise; expected a new search"
            )
        study.tell(trial, data.metrics["objective"])
    log.info("%d trials were done before", len(study.trials))


def _trials(study: Any, plan: Search, settings: Params, store: Store | None, parent: str | None) -> None:
    processes = processes_of(settings["jobs"])
    with pool_of(processes) as pool, progress("searching", plan.trials, "trials") as advance:
        advance(len(study.trials))
        while len(study.trials) < plan.trials:
            trial = study.ask()
            params = plan.suggest(trial)
            jobs = grid(
                {**settings, "partitioners": [{"name": plan.partitioner, "label": "trial", **params}]}
            )
            tags = {"partitioner": plan.partitioner, "kind": "trial"}
            run = (
                store.start(f"trial {trial.number}", tags=tags, parent=parent) if store is not None else None
            )
            metrics = plan.objective(list(pool.map(work, jobs)))
            study.tell(trial, metrics["objective"])
            if store is not None:
                store.log_params(run, params)
                store.log_metrics(run, metrics)
                store.end(run, tracking.FINISHED)
            advance(1)


def _present(study: Any, plan: Search, folder: Path, store: Store | None, parent: str | None) -> None:
    best = {name: float(f"{value:.4g}") for name, value in study.best_params.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "best.yaml"
    path.write_text(yaml.safe_dump({"partitioner": plan.partitioner, **best, "objective": study.best_value}))
    if store is not None:
        store.log_params(parent, {f"best.{name}": value for name, value in best.items()})
        store.log_metrics(parent, {"objective": study.best_value})
        store.call(store.client.log_artifact, parent, str(path))
    overrides = " ".join(f"partitioner.{name}={value:g}" for name, value in best.items())
    console = Console()
    console.print(f"Best of {len(study.trials)} trials: objective {study.best_value:.4f} (in {path})")
    console.print(f"Use it: dalton run partitioner={plan.partitioner} {overrides}", soft_wrap=True)
