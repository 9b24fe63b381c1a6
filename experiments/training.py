"""``dalton train``: policies by RLlib, recorded, checkpointed, ready to be partitioners."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from dalton import __version__
from dalton.agents.network import HEADER
from dalton.agents.search import Trial, check_space
from dalton.agents.search import search as run_trials
from dalton.agents.training import Plan, Training, local_ray, require_deep
from dalton.envs.errors import ConfigError, check_choice, check_int, shown
from dalton.envs.progress import progress
from dalton.experiments import tracking
from dalton.experiments.execute import new_folder
from dalton.experiments.registry import defaults_of
from dalton.experiments.settings import Params, cluster_of, flattened, group_of, tracking_of, workload_label
from dalton.experiments.tracking import Store

log = logging.getLogger("dalton")

POLICIES = Path("outputs/policies")
"""Where experiments keep the policies that they train."""


@dataclass(frozen=True)
class Schedule:
    """The checked group ``training``: how a plan is carried out."""

    iterations: int
    copies: int
    runners: int
    checkpoint_every: int
    start: str | None
    cpus: int

    def __post_init__(self) -> None:
        for name in ("iterations", "copies", "checkpoint_every", "cpus"):
            check_int(f"training.{name}", getattr(self, name), low=1)
        if self.start is not None and not (Path(str(self.start)) / HEADER).is_file():
            raise ConfigError(f"training.start = {self.start!r}: expected the folder of a trained policy")


@dataclass(frozen=True)
class Task:
    """One training: everything that decides its outcome."""

    plan: Plan
    schedule: Schedule

    @property
    def title(self) -> str:
        """What a person calls it."""
        plan = self.plan
        names = f"{plan.algorithm['name']} · {plan.environment['name']} · {workload_label(plan.workload)}"
        return f"{names} · n={plan.n_workers} · seed {plan.seed}"

    @property
    def tags(self) -> dict[str, str]:
        """Tags by which trainings are found."""
        plan = self.plan
        return {
            "kind": "training",
            "algorithm": plan.algorithm["name"],
            "environment": plan.environment["name"],
            "workload": workload_label(plan.workload),
            "n_workers": str(plan.n_workers),
            "seed": str(plan.seed),
        }

    @property
    def identity(self) -> str:
        """A hash of what decides the outcome."""
        parts = {**asdict(self.plan), "iterations": self.schedule.iterations, "version": __version__}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]

    def flat(self) -> dict[str, Any]:
        """All settings, with dots in the names of nested ones."""
        return flattened({**asdict(self.plan), "training": asdict(self.schedule)})


def task_of(settings: Params) -> Task:
    """The training of a configuration."""
    schedule: Schedule = group_of(Schedule, "training", settings["training"])
    cluster = cluster_of(settings["cluster"])
    plan = Plan(
        algorithm=settings["algorithm"],
        environment=settings["environment"],
        workload=settings["workload"],
        n_workers=cluster.n_workers,
        window=cluster.window,
        seed=settings["seed"],
        copies=schedule.copies,
        runners=schedule.runners,
    )
    return Task(plan, schedule)


def train(settings: Params, folder: Path) -> None:
    """Train as `dalton train` is told: one policy, or with ``search.trials`` many."""
    require_deep()
    task, where = task_of(settings), tracking_of(settings["tracking"])
    task.plan.make_env()
    store = Store(where) if where.enabled else None
    given = settings["search"]
    for key in given:
        check_choice("key of search", key, ("trials", "space"))
    target = folder / "policy"
    if given["trials"] is None:
        reward = carry_out(task, target, store, os.environ.get(tracking.PARENT))
        text = f"Trained {task.title}: reward {reward:.3f} per decision"
    else:
        text = _search(task, given, target, store)
    name = "rllib_batch" if task.plan.environment["name"] == "batch" else "rllib"
    use = f"partitioner={name} partitioner.checkpoint={target} cluster.n_workers={task.plan.n_workers}"
    Console().print(f"{text}\nUse it: dalton run {use}", soft_wrap=True, highlight=False, markup=False)
    if store is not None and store.lost is not None:
        log.warning("tracking stopped (%s); the policy is in %s", store.lost, target)


def carry_out(task: Task, target: Path, store: Store | None, parent: str | None = None) -> float:
    """Train a policy into the folder ``target`` and record it; returns the last iteration's reward."""
    run = None
    if store is not None:
        run = store.start(task.title, tags=task.tags, parent=parent)
        store.log_params(run, task.flat())
    try:
        with local_ray(task.schedule.cpus):
            reward = _iterate(task, target, store, run)
        if store is not None:
            store.call(store.client.log_artifacts, run, str(target), "policy")
            store.end(run, tracking.FINISHED)
    except BaseException as error:
        if store is not None:
            stopped = isinstance(error, KeyboardInterrupt)
            if not stopped:
                store.log_text(run, traceback.format_exc(), "traceback.txt")
            store.end(run, tracking.KILLED if stopped else tracking.FAILED)
        raise
    return reward


def _iterate(task: Task, target: Path, store: Store | None, run: str | None) -> float:
    schedule, reward = task.schedule, 0.0
    training = Training(task.plan, schedule.start)
    label = f"training {task.plan.algorithm['name']}"
    try:
        with progress(label, schedule.iterations, "iterations") as advance:
            for i in range(1, schedule.iterations + 1):
                metrics = training.iterate()
                reward = metrics["reward"]
                if store is not None:
                    store.log_metrics(run, metrics, step=i)
                if i % schedule.checkpoint_every == 0 or i == schedule.iterations:
                    with new_folder(target) as draft:
                        training.save(draft, {"iterations": i, "settings": task.flat()})
                advance(1)
    finally:
        training.close()
    return reward


def _search(task: Task, given: Params, target: Path, store: Store | None) -> str:
    """Search with Ray Tune; a parent run with a child per trial. Keeps the best policy in ``target``."""
    trials = check_int("search.trials", given["trials"], low=1)
    space = check_space(given["space"], task.plan)
    parent, status = None, tracking.FAILED
    if store is not None:
        parent = store.start(f"search of {task.title}", tags={**task.tags, "kind": "search"})
        store.log_params(parent, task.flat())
    try:
        with local_ray(task.schedule.cpus), progress("searching", trials, "trials") as advance:
            outcomes = run_trials(
                task.plan,
                space,
                trials=trials,
                iterations=task.schedule.iterations,
                folder=target.parent,
                advance=advance,
            )
        for number, trial in enumerate(outcomes):
            _record(number, trial, store, parent)
        trained = [trial for trial in outcomes if trial.policy is not None and trial.history]
        if not trained:
            raise ConfigError(f"all trials failed: {outcomes[0].failure}")
        best = max(trained, key=lambda trial: trial.history[-1]["reward"])
        assert best.policy is not None
        with new_folder(target) as draft:
            shutil.copytree(best.policy, draft, dirs_exist_ok=True)
        if store is not None:
            store.log_params(parent, {f"best.{name}": value for name, value in best.params.items()})
            store.log_metrics(parent, best.history[-1])
            store.call(store.client.log_artifacts, parent, str(target), "policy")
        status = tracking.FINISHED
    except KeyboardInterrupt:
        status = tracking.KILLED
        raise
    finally:
        if store is not None:
            store.end_parent(parent, status)
    found = ", ".join(f"{name} = {value:.3g}" for name, value in best.params.items())
    return f"Best of {len(outcomes)} trials: reward {best.history[-1]['reward']:.3f} with {found}"


def _record(number: int, trial: Trial, store: Store | None, parent: str | None) -> None:
    if trial.failure:
        log.error("trial %d failed: %s", number, trial.failure)
    if store is None:
        return
    run = store.start(f"trial {number}", tags={"kind": "trial"}, parent=parent)
    store.log_params(run, trial.params)
    for step, metrics in enumerate(trial.history, 1):
        store.log_metrics(run, metrics, step=step)
    store.end(run, tracking.FAILED if trial.failure else tracking.FINISHED)


def with_policies(settings: Params) -> Params:
    """Train the ``policies`` of an experiment that are not there yet, and give partitioners their folders.

    A partitioner's ``checkpoint`` is replaced if it is the name of a policy.
    """
    given = settings["policies"]
    if not isinstance(given, Mapping):
        raise ConfigError(f"policies = {shown(given)}: expected settings of a training for each name")
    tasks = {name: _policy_task(str(name), part, settings) for name, part in given.items()}
    folders = {name: POLICIES / f"{name}-{task.identity}" for name, task in tasks.items()}
    missing = [name for name, folder in folders.items() if not (folder / HEADER).is_file()]
    if missing:
        require_deep()
        where = tracking_of(settings["tracking"])
        store = Store(where) if where.enabled else None
        with local_ray(tasks[missing[0]].schedule.cpus):
            for name in missing:
                log.info("training %s (%s) into %s", name, tasks[name].title, folders[name])
                carry_out(tasks[name], folders[name], store)
    partitioners = [
        {**entry, "checkpoint": str(folders[entry["checkpoint"]])}
        if isinstance(entry, Mapping) and entry.get("checkpoint") in folders
        else entry
        for entry in settings["partitioners"]
    ]
    return {**settings, "partitioners": partitioners}


def _policy_task(name: str, given: Any, settings: Params) -> Task:
    """The training of an entry of ``policies``: what it does not say is as in ``dalton train``."""
    text = (files("dalton.conf") / "train.yaml").read_text(encoding="utf-8")
    usual: Any = OmegaConf.to_container(OmegaConf.create(text))
    parts = ("algorithm", "environment", "workload", "training", "window")
    if not isinstance(given, Mapping):
        raise ConfigError(f"policies.{name} = {shown(given)}: expected settings of a training")
    for key in given:
        check_choice(f"key of policies.{name}", key, parts)
    filled: Params = {}
    for group in ("algorithm", "environment", "workload"):
        own = given.get(group)
        if not isinstance(own, Mapping) or "name" not in own:
            raise ConfigError(f"policies.{name}.{group} = {shown(own)}: expected a name and parameters")
        filled[group] = {**defaults_of(group, own["name"]), **own}
    n_workers = settings["cluster"]["n_workers"]
    window = given.get("window", usual["cluster"]["window"])
    return task_of(
        {
            **filled,
            "seed": settings["seed"],
            "training": {**usual["training"], **given.get("training", {})},
            "cluster": {**settings["cluster"], "n_workers": n_workers, "window": window, "capacity": None},
        }
    )
