"""``dalton run``, ``compare``, ``tune`` and ``train``: the Hydra application."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module, main
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dalton.envs.errors import ConfigError, check_choice
from dalton.experiments import tracking
from dalton.experiments.comparison import compare
from dalton.experiments.execute import execute, new_folder, write_record
from dalton.experiments.plots import imbalance_over_time, load_heatmap, save
from dalton.experiments.registry import options
from dalton.experiments.settings import Job, Params, Tracking, single, tracking_of
from dalton.experiments.tracking import Store
from dalton.experiments.training import train, with_policies
from dalton.experiments.tune import search

log = logging.getLogger("dalton")

GROUPS = ("workload", "cluster", "partitioner", "runtime", "tracking", "experiment")
# Seconds after which an interruption that had no effect is repeated: longer than ending a run takes.
AGAIN = 5.0
TRAINING = ("algorithm", "environment", "training")
# Keys that say how a sweep is run, not what it computes.
HOW = ("resume", "jobs", "hydra")


def small(small: Any, large: Any, *, _root_: DictConfig) -> Any:
    """``${small:a,b}``: a in the small form of an experiment, b otherwise."""
    return small if _root_.testing else large


OmegaConf.register_new_resolver("small", small, replace=True)


class Sweeping:
    """What a sweep's parts share: its parent run, and the error that ended a single run."""

    store: Store | None = None
    run: str | None = None
    error: Exception | None = None


class Refused(BaseException):
    """A sweep that cannot begin; not an `Exception`, after which Hydra would go on."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(error)
        self.error = error


class SweepParent(Callback):
    """Makes store and parent run before the jobs of a sweep start, possibly all at once."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Begin the parent run; jobs find it in the environment, also in other processes."""
        try:
            self._begin(config)
        except ConfigError as error:
            raise Refused(error) from None

    def _begin(self, config: DictConfig) -> None:
        settings = tracking_of(OmegaConf.to_container(config.tracking, resolve=True))
        if not settings.enabled:
            if config.resume:
                raise ConfigError("resume = true: expected tracking, where it is known what is done")
            return
        overrides = [str(one) for one in config.hydra.overrides.task]
        kept = sorted(one for one in overrides if not one.lstrip("+~").startswith(HOW))
        Sweeping.store = Store(settings)
        Sweeping.run = Sweeping.store.begin_parent(
            "sweep " + " ".join(kept),
            hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16],
            resume=bool(config.resume),
            tags={"kind": "sweep"},
        )
        if Sweeping.run is not None:
            os.environ[tracking.PARENT] = Sweeping.run


def run(arguments: list[str], config_name: str = "config") -> None:
    """Run the application on the command line's arguments.

    Raises:
        ConfigError: The user's mistake, in one line.
    """
    sys.argv = ["dalton " + ("run" if config_name == "config" else config_name), *arguments]
    # Hydra would print a traceback and exit; instead its errors come here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    os.environ.pop(tracking.PARENT, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    application = main(config_path="pkg://dalton.conf", config_name=config_name, version_base="1.3")
    status = tracking.FAILED
    _check_once(arguments)
    Sweeping.error = None
    try:
        application(_task)()
        if Sweeping.error is not None:
            raise Sweeping.error
        status = tracking.FINISHED
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        status = tracking.KILLED
        tracking.kill_open()
        raise
    except Refused as refused:
        raise refused.error from None
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explained(error, arguments, config_name)) from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    finally:
        if Sweeping.store is not None:
            Sweeping.store.end_parent(Sweeping.run, status)
            _say_lost(Sweeping.store, Path("outputs"))
            Sweeping.store = Sweeping.run = None


def composed(arguments: list[str]) -> tuple[Params, str]:
    """The settings that overrides of `dalton run` give, and the name of the partitioner."""
    _check_once(arguments)
    try:
        with initialize_config_module("dalton.conf", version_base="1.3"):
            config = compose("config", overrides=arguments, return_hydra_config=True)
        partitioner = str(config.hydra.runtime.choices["partitioner"])
        keys = [*GROUPS, *_own_keys()]
        for key in config:
            check_choice("key", key, [*keys, "hydra"])
        plain = {
            key: OmegaConf.to_container(config[key], resolve=True, throw_on_missing=True)
            for key in GROUPS
            if key in config and isinstance(config[key], DictConfig)
        }
        return {**{key: config[key] for key in _own_keys()}, **plain}, partitioner
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explained(error, arguments, "config")) from None


def _interrupt(number: int, frame: object) -> None:
    """Interrupt, and again if that is lost: what is raised in a clean-up, Python ignores."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, AGAIN)
    raise KeyboardInterrupt


def _check_once(arguments: list[str]) -> None:
    """Of two values for a key Hydra would silently take the last."""
    seen: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and not key.startswith("-"):
            name = key.lstrip("+~")
            if name in seen:
                raise ConfigError(f"{name}: expected one value, got {seen[name]!r} and {value!r}")
            seen[name] = value


def _task(config: DictConfig) -> float | None:
    """One job of the application; returns max/mean load, for sweepers that optimise."""
    if HydraConfig.get().mode != RunMode.RUN:
        return _job(config)
    try:
        return _job(config)
    except Exception as error:
        # Raised after Hydra, which would print more than one line.
        Sweeping.error = error
        return None


def _job(config: DictConfig) -> float | None:
    chosen = HydraConfig.get()
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    settings = {str(key): value for key, value in plain.items()}
    training = "training" in settings
    allowed = [*GROUPS, *_own_keys(), *(TRAINING if training else ())]
    for key in settings:
        check_choice("key", key, allowed)
    folder = Path(chosen.runtime.output_dir)
    if training:
        train(settings, folder)
        return None
    if settings["search"] is not None:
        search(settings, folder)
        return None
    if settings["partitioners"] is not None:
        if settings["policies"] is not None:
            settings = with_policies(settings)
        failed = compare(settings, folder, " ".join(sys.argv))
        if failed:
            raise ConfigError(f"{failed} of the runs failed: see their traceback in MLflow or in {folder}")
        return None
    return _single(settings, chosen.runtime.choices["partitioner"], folder)


def _own_keys() -> list[str]:
    return [
        "seed",
        "resume",
        "testing",
        "paper",
        "title",
        "policies",
        "partitioners",
        "workloads",
        "workers",
        "seeds",
        "hash_seeds",
        "jobs",
        "application",
        "search",
    ]


def _single(settings: Params, partitioner: str, folder: Path) -> float:
    parent = os.environ.get(tracking.PARENT)
    where = tracking_of(settings["tracking"])
    if settings["resume"] and (not where.enabled or parent is None):
        raise ConfigError("resume = true: expected a sweep (-m) or a comparison, with tracking")
    try:
        job = single(settings, partitioner)
    except ConfigError:
        if parent is not None:
            _record_refusal(Store(where), partitioner, parent)
        raise
    store = _store(where, parent, folder)
    if store is not None and parent is not None and settings["resume"]:
        done = store.finished(parent).get(job.identity)
        if done is not None:
            log.info("%s: done before", job.title)
            return float(store.client.get_run(done).data.metrics["max_over_mean"])
    return tracked(job, store, folder, parent)


def _store(where: Tracking, parent: str | None, folder: Path) -> Store | None:
    """The store; None without tracking, or in a sweep that has lost the store it began with."""
    if not where.enabled or parent is None:
        return Store(where) if where.enabled else None
    try:
        return Store(where, new=False)
    except ConfigError as error:
        log.warning("tracking stopped (%s); the results are in %s", error, folder / "result")
        return None


def _record_refusal(store: Store, partitioner: str, parent: str) -> None:
    """Record a job of a sweep whose settings are not allowed."""
    name = " ".join(HydraConfig.get().overrides.task)
    run = store.start(name, tags={"partitioner": partitioner}, parent=parent)
    store.log_text(run, traceback.format_exc(), "traceback.txt")
    store.end(run, tracking.FAILED)


def tracked(job: Job, store: Store | None, folder: Path, parent: str | None) -> float:
    """Run a job, write its outcome to ``folder`` and record it; returns max/mean load."""
    run = None
    if store is not None:
        run = store.start(job.title, tags=tracking.job_tags(job), parent=parent)
        store.log_params(run, job.flat())
    try:
        record = execute(job)
        with new_folder(folder / "result") as draft:
            write_record(draft, job, record)
            save(imbalance_over_time([record]), draft / "balance.png")
            save(load_heatmap([record]), draft / "loads.png")
        if store is not None:
            store.log_record(run, record, folder / "result")
            store.end(run, tracking.FINISHED)
    except BaseException as error:
        if store is not None:
            stopped = isinstance(error, KeyboardInterrupt)
            if not stopped:
                store.log_text(run, traceback.format_exc(), "traceback.txt")
            store.end(run, tracking.KILLED if stopped else tracking.FAILED)
        raise
    s = record.summary
    log.info("%s: max/mean load %.3f, pairs per key %.3f", job.title, s["max_over_mean"], s["replication"])
    if "completion_mean" in s:
        log.info("completion time: mean %.4g s, p99 %.4g s", s["completion_mean"], s["completion_p99"])
    if "answer_error" in s:
        log.info("answer: error %.3g, %.0f counters in memory", s["answer_error"], s["answer_memory"])
    if store is not None:
        _say_lost(store, folder / "result")
    return float(s["max_over_mean"])


def _say_lost(store: Store, folder: Path) -> None:
    if store.lost is not None:
        log.warning("tracking stopped (%s); the results are in %s", store.lost, folder)


def _explained(error: Exception, arguments: list[str], config_name: str) -> str:
    """Hydra's complaint as one line with the valid choices."""
    text = " ".join(str(error).split())
    missing = re.search(r"Could not (?:find|load) '(\w+)/([^']*)'", text)
    if missing and missing[1] in (*GROUPS, *TRAINING):
        try:
            check_choice(missing[1], missing[2], options(missing[1]))
        except ConfigError as problem:
            return str(problem)
    key = re.search(r"Could not override '([^']+)'", text)
    if key:
        parent, _, name = key[1].rpartition(".")
        known = _keys(
            parent, [one for one in arguments if not one.lstrip("+~").startswith(key[1])], config_name
        )
        if known:
            try:
                check_choice(f"key of {parent}" if parent else "key", name, known)
            except ConfigError as problem:
                return str(problem)
    cause = " ".join(str(error.__cause__).split()) if error.__cause__ else ""
    return f"{text} {cause}".strip()


def _keys(parent: str, arguments: list[str], config_name: str) -> list[str]:
    """Keys of a part of the configuration, composed without the override that failed."""
    GlobalHydra.instance().clear()
    kept = [one for one in arguments if "=" in one and not one.startswith("-")]
    try:
        with initialize_config_module("dalton.conf", version_base="1.3"):
            config = compose(config_name, overrides=kept)
        node = OmegaConf.select(config, parent) if parent else config
        return sorted(str(key) for key in node) if isinstance(node, DictConfig) else []
    except (HydraException, OmegaConfBaseException):
        return []
