"""From a composed configuration to jobs: what is simulated, checked before anything runs."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dalton import __version__
from dalton.envs.applications import make_application
from dalton.envs.contract import Partitioner
from dalton.envs.errors import ConfigError, check_choice, check_flag, check_int, check_real, shown
from dalton.envs.queueing import Queue
from dalton.envs.simulate import VIEWS
from dalton.envs.window import MEASURES, Window
from dalton.envs.workloads import Workload, make_workload
from dalton.experiments import cooperating
from dalton.experiments.registry import make, partitioner_config

Params = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """Workers, their window, and what work costs (`dalton.experiments.throughput`)."""

    n_workers: int
    window: Params
    capacity: list[float] | Params | None = None
    queue: Params | None = None
    n_reducers: int = 16
    n_partitioners: int = 1
    combine_ns: float = 1000.0
    merge_ns: float = 2000.0
    forwarding: bool = True


@dataclass(frozen=True)
class Runtime:
    """What drives the partitioners."""

    name: str = "simulator"
    view: str = "global"
    probe_every: float | None = None
    measure: str = "tuples"
    compare_global: bool = False


@dataclass(frozen=True)
class Cooperative:
    """Cooperating partitioners in one process, one per source (`dalton.agents.cooperation`)."""

    name: str = "cooperative"
    sync: bool = True
    delay: int = 0
    work: int | list[list[int]] = 0
    timeout: int | None = None
    max_dsync: int = 1
    step: int = 1000


@dataclass(frozen=True)
class OnRay:
    """Cooperating partitioners on Ray, one actor per source (`dalton.agents.supervisor`)."""

    name: str = "ray"
    address: str | None = None
    num_cpus: int | None = None
    sync: bool = True
    timeout: float = 5.0
    work: float = 0.0
    max_dsync: int = 64
    batch: int = 1_000_000
    save_every: int = 4
    rate: float | None = None


RUNTIMES: dict[str, type[Runtime | Cooperative | OnRay]] = {
    "simulator": Runtime,
    "cooperative": Cooperative,
    "ray": OnRay,
}


@dataclass(frozen=True)
class Tracking:
    """Where runs are recorded."""

    enabled: bool = True
    uri: str | None = None
    experiment: str = "dalton"


@dataclass(frozen=True)
class Job:
    """One simulation: everything that decides its outcome."""

    partitioner: str
    params: Params
    workload: Params
    cluster: Cluster
    runtime: Runtime | Cooperative | OnRay
    seed: int
    partitioner_label: str = ""
    workload_label: str = ""
    paper: str | None = field(default=None, compare=False)
    application: Params | None = None
    """What the workers compute (`dalton.envs.applications`)."""

    @property
    def identity(self) -> str:
        """A hash of what decides the outcome: equal jobs of the same version have equal results."""
        parts = {**asdict(self), "version": __version__}
        for name in ("partitioner_label", "workload_label", "paper"):
            del parts[name]
        if self.application is None:
            del parts["application"]  # as if there were no such setting
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What a person calls it."""
        n = self.cluster.n_workers
        return f"{self.partitioner_label} · {self.workload_label} · n={n} · seed {self.seed}"

    def flat(self) -> dict[str, Any]:
        """All settings, with dots in the names of nested ones."""
        parts = {
            "partitioner": {"name": self.partitioner, **self.params},
            "workload": self.workload,
            "cluster": asdict(self.cluster),
            "runtime": asdict(self.runtime),
            "seed": self.seed,
        }
        if self.application is not None:
            parts["application"] = self.application
        return flattened(parts)

    def build(self) -> tuple[Partitioner, Workload]:
        """Make both; this checks every parameter."""
        cluster = self.cluster
        partitioner = make(self.partitioner, n_workers=cluster.n_workers, seed=self.seed, **self.params)
        make_application(self.application, cluster.n_workers)
        workload = make_workload(self.workload)
        if "seed" in workload.parameters() and "seed" not in self.workload:
            workload = make_workload(workload, seed=self.seed)
        if not isinstance(self.runtime, Runtime):
            cooperating.check(self, workload)
        return partitioner, workload


def flattened(parts: Params) -> Params:
    """Nested settings as one level, with dots in the names."""
    return dict(_flatten(parts, ""))


def _flatten(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flatten(part, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def group_of(cls: type[Any], group: str, given: Any) -> Any:
    """A dataclass from a group of the configuration."""
    fields = list(inspect.signature(cls).parameters)
    for name in given:
        check_choice(f"key of {group}", name, fields)
    return cls(**given)


def cluster_of(given: Any) -> Cluster:
    """The checked group ``cluster``."""
    cluster: Cluster = group_of(Cluster, "cluster", given)
    check_int("cluster.n_workers", cluster.n_workers, low=1)
    if Window.of(cluster.window) is None:
        raise ConfigError("cluster.window = null: expected size and slide")
    Queue.of(cluster.queue)
    check_int("cluster.n_reducers", cluster.n_reducers, low=1)
    check_int("cluster.n_partitioners", cluster.n_partitioners, low=1)
    check_real("cluster.combine_ns", cluster.combine_ns, low=0)
    check_real("cluster.merge_ns", cluster.merge_ns, low=0)
    check_flag("cluster.forwarding", cluster.forwarding)
    return cluster


def runtime_of(given: Any) -> Runtime | Cooperative | OnRay:
    """The checked group ``runtime``; what cooperation needs is checked with the partitioner (`Job.build`)."""
    name = check_choice("runtime.name", given.get("name", Runtime.name), RUNTIMES)
    runtime: Runtime | Cooperative | OnRay = group_of(RUNTIMES[name], "runtime", given)
    if isinstance(runtime, Runtime):
        check_choice("runtime.view", runtime.view, VIEWS)
        check_choice("runtime.measure", runtime.measure, MEASURES)
        check_flag("runtime.compare_global", runtime.compare_global)
        return runtime
    check_flag("runtime.sync", runtime.sync)
    if isinstance(runtime, OnRay):
        check_text("runtime.address", runtime.address, none=True)
        if runtime.num_cpus is not None:
            check_int("runtime.num_cpus", runtime.num_cpus, low=1)
    return runtime


def tracking_of(given: Any) -> Tracking:
    """The checked group ``tracking``."""
    tracking: Tracking = group_of(Tracking, "tracking", given)
    check_flag("tracking.enabled", tracking.enabled)
    check_text("tracking.uri", tracking.uri, none=True)
    check_text("tracking.experiment", tracking.experiment)
    return tracking


def check_text(name: str, value: object, *, none: bool = False) -> None:
    """Refuse what is not a text; with ``none``, nothing is one too."""
    if not (isinstance(value, str) and value) and not (none and value is None):
        raise ConfigError(f"{name} = {shown(value)}: expected a text")


def single(config: Params, partitioner: str) -> Job:
    """The job of a configuration without ``partitioners``; its partitioner is the group's choice."""
    params = {name: value for name, value in config["partitioner"].items() if name != "_target_"}
    job = Job(
        partitioner=partitioner,
        params=params,
        workload=config["workload"],
        cluster=cluster_of(config["cluster"]),
        runtime=runtime_of(config["runtime"]),
        seed=check_int("seed", config["seed"], low=0),
        partitioner_label=partitioner,
        workload_label=workload_label(config["workload"]),
        paper=config["paper"],
        application=_application_of(config.get("application")),
    )
    job.build()
    return job


def grid(config: Params) -> list[Job]:
    """The jobs of a comparison: every partitioner on the same streams."""
    cluster, runtime = cluster_of(config["cluster"]), runtime_of(config["runtime"])
    first, count = check_int("seed", config["seed"], low=0), check_int("seeds", config["seeds"], low=1)
    names = _entries("partitioners", config["partitioners"])
    streams = _entries("workloads", config["workloads"]) if config["workloads"] else [config["workload"]]
    workers = config["workers"] or [cluster.n_workers]
    if not isinstance(workers, list):
        raise ConfigError(f"workers = {shown(workers)}: expected a list of whole numbers")
    alike = check_int("hash_seeds", config.get("hash_seeds", 1), low=1)
    seeds = range(first, first + count * alike)
    jobs = []
    for stream, n, seed, entry in itertools.product(streams, workers, seeds, names):
        n = check_int("workers", n, low=1)
        given = stream if alike == 1 else {"seed": first + (seed - first) // alike, **stream}
        job = _of_entry(entry, given, n, seed, cluster, runtime, config.get("application"))
        jobs.append(replace(job, paper=config["paper"]))
    labels = [job.title for job in jobs]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ConfigError(f"partitioners: {twice!r} appears twice; expected a label for each")
    # One of each kind is made now: what is not allowed should not be found out after an hour.
    for job in jobs:
        if job.seed == first:
            job.build()
    return jobs


def _entries(field: str, given: Any) -> list[Params]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{field} = {shown(given)}: expected a list of names")
    entries = []
    for entry in given:
        named = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(named, Mapping) or not isinstance(named.get("name"), str):
            raise ConfigError(f"{field} = {shown(entry)}: expected a name or a mapping with a name")
        entries.append(dict(named))
    return entries


def _application_of(given: Any) -> Params | None:
    """An application as a mapping; what is not allowed in it is found when it is made."""
    return {"name": given} if isinstance(given, str) else given


# What an entry of `partitioners` may have of its own: settings of the cluster, some settings of groups, the
# measure of the load, an application.
OF_CLUSTER, OF_GROUPS = ("forwarding", "n_partitioners"), ("runtime", "workload")
MEASURE, APPLICATION = "measure", "application"
# And one of the queue model, of an entry of `workloads`.
OF_QUEUE = "over_provisioning"


def _of_entry(
    entry: Params,
    stream: Params,
    n: int,
    seed: int,
    cluster: Cluster,
    runtime: Runtime | Cooperative | OnRay,
    application: Any,
) -> Job:
    name, own = entry["name"], {key: value for key, value in entry.items() if key not in ("name", "label")}
    changed = {key: own.pop(key) for key in OF_CLUSTER if key in own}
    application = own.pop(APPLICATION, application)
    groups = {key: own.pop(key, {}) for key in OF_GROUPS}
    for group, given in groups.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f"{group} of {name} = {shown(given)}: expected a mapping")
    driven = {**groups["runtime"], **({MEASURE: own.pop(MEASURE)} if MEASURE in own else {})}
    if driven:
        same = driven.get("name", runtime.name) == runtime.name
        runtime = runtime_of({**(asdict(runtime) if same else {}), **driven})
    _, defaults = partitioner_config(name)
    if defaults.get("window") is not None:
        own = {"window": cluster.window, **own}
    spec = {key: value for key, value in stream.items() if key not in ("label", OF_QUEUE)}
    if OF_QUEUE in stream:
        if cluster.queue is None:
            raise ConfigError(f"workloads.{OF_QUEUE} = {shown(stream[OF_QUEUE])}: expected a cluster.queue")
        changed["queue"] = {**cluster.queue, OF_QUEUE: stream[OF_QUEUE]}
    label = entry.get("label") or " ".join([name, *(f"{k}={v}" for k, v in entry.items() if k != "name")])
    return Job(
        partitioner=name,
        params={**defaults, **own},
        workload={**spec, **groups["workload"]},
        cluster=cluster_of({**asdict(cluster), **changed, "n_workers": n}),
        runtime=runtime,
        seed=seed,
        partitioner_label=label,
        workload_label=str(stream.get("label") or workload_label(spec)),
        application=_application_of(application),
    )


def workload_label(spec: Params) -> str:
    """The name and the parameters that are not at their defaults, without length and seed."""
    workload = make_workload(spec)
    defaults = {name: parameter.default for name, parameter in workload.parameters().items()}
    parts = [
        f"{name}={value}"
        for name, value in workload.params.items()
        if name in spec and name not in ("n_tuples", "seed", "path") and spec[name] != defaults[name]
    ]
    if "path" in spec:
        parts.insert(0, str(spec["path"]).rpartition("/")[2])
    return " ".join([workload.name, *parts])
