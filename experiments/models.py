"""Policies as MLflow models, and ``dalton export``: train, write the file, log and register the model."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rich.console import Console

from dalton import __version__
from dalton.agents.dalton import Dalton
from dalton.agents.export import Policy
from dalton.envs.errors import ConfigError
from dalton.envs.simulate import simulate
from dalton.experiments import tracking
from dalton.experiments.settings import Job, Runtime, Tracking, cluster_of, runtime_of
from dalton.experiments.tracking import Store

log = logging.getLogger("dalton")

CODE = Path(__file__).with_name("policy_model.py")
ARTIFACT = "policy"
REMOTE = ("runs:/", "models:/")


@contextlib.contextmanager
def _connected(uri: str) -> Iterator[Any]:
    """MLflow with this store, until the end of the block."""
    with warnings.catch_warnings():
        # MLflow's import warns of its own dependencies.
        warnings.simplefilter("ignore")
        import mlflow
        import mlflow.pyfunc
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        yield mlflow
    finally:
        mlflow.set_tracking_uri(before)


def load_policy(source: str | os.PathLike[str], tracking_uri: str | None = None) -> Policy:
    """A policy from a file, from ``runs:/<run>/policy`` or from ``models:/<name>@<alias>``.

    Args:
        source: A path or an address of MLflow's.
        tracking_uri: The store of such an address; by default that of the working directory.
    """
    text = os.fspath(source)
    if not text.startswith(REMOTE):
        return Policy.load(text)
    store = Store(Tracking(uri=tracking_uri))
    with _connected(store.uri) as mlflow, tempfile.TemporaryDirectory() as folder:
        try:
            found = Path(mlflow.artifacts.download_artifacts(artifact_uri=text, dst_path=folder))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"policy = {text}: not found in {store.uri} ({reason})") from None
        files = sorted(found.rglob("*.dalton"))
        if not files:
            raise ConfigError(f"policy = {text}: has no policy; expected a model of `dalton export`")
        return Policy.load(files[0])


def log_policy(
    policy: Policy, store: Store, run: str, *, model: str | None = None, alias: str | None = None
) -> str:
    """Log a policy as a model of a run and perhaps register it; returns the address to load it from."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    keys = list(policy.split)[:3] or [1, 2, 3]
    example = pd.DataFrame({"key": np.array([*keys, *keys], np.int64)})
    columns = Schema([ColSpec("long", "key")]), Schema([ColSpec("integer", "worker")])
    with _connected(store.uri) as mlflow, tempfile.TemporaryDirectory() as folder:
        path = policy.save(Path(folder) / f"{ARTIFACT}.dalton")
        with mlflow.start_run(run_id=run):
            info = mlflow.pyfunc.log_model(
                name=ARTIFACT,
                python_model=str(CODE),
                artifacts={ARTIFACT: str(path)},
                signature=ModelSignature(*columns),
                input_example=example,
                pip_requirements=[f"dalton[tracking]=={__version__}"],
                metadata={"n_workers": policy.n_workers, "policy_version": policy.version},
            )
        if model is None:
            return f"runs:/{run}/{ARTIFACT}"
        client = store.client
        if not client.search_registered_models(filter_string=f"name = '{model}'"):
            client.create_registered_model(model)
        made = client.create_model_version(model, info.model_uri, run, model_id=info.model_id)
        if alias is None:
            return f"models:/{model}/{made.version}"
        client.set_registered_model_alias(model, alias, made.version)
    return f"models:/{model}@{alias}"


def recorded_job(store: Store, run: str) -> Job:
    """The job of a finished run, from the configuration that it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = store.client.download_artifacts(run, "config.yaml", folder)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"run = {run}: expected a finished run in {store.uri} ({reason})") from None
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    settings.pop("identity", None)
    cluster, runtime = cluster_of(settings.pop("cluster")), runtime_of(settings.pop("runtime"))
    return Job(cluster=cluster, runtime=runtime, **settings)


def train(job: Job) -> Policy:
    """Let the agent of a job learn its whole workload, and take its policy."""
    agent, workload = job.build()
    if not isinstance(agent, Dalton):
        raise ConfigError(
            f"partitioner = {job.partitioner}: learns nothing; expected one of the dalton family"
        )
    if not isinstance(job.runtime, Runtime):
        raise ConfigError(f"runtime.name = {job.runtime.name!r}: expected 'simulator' to export a policy")
    simulate(agent, workload, window=job.cluster.window, view=job.runtime.view)
    return Policy.of(agent)


def export(
    job: Job, output: Path, where: Tracking, *, model: str | None = None, alias: str | None = None
) -> str:
    """Train, write the file, log and register the model; returns the address of the policy."""
    if (model is not None or alias is not None) and not where.enabled:
        raise ConfigError("tracking = none: expected a store to register a model in")
    if alias is not None and model is None:
        raise ConfigError(f"alias = {alias}: expected a model to give it to")
    store = Store(where) if where.enabled else None
    began = time.time()
    policy = train(job)
    path = policy.save(output)
    address = str(path)
    if store is not None:
        tags = {**tracking.job_tags(job), "kind": "export", "policy.version": policy.version}
        run = store.start(f"export {job.title}", tags=tags, began=began)
        if run is None:
            raise ConfigError(f"tracking.uri = {store.uri}: {store.lost}")
        store.log_params(run, job.flat())
        address = log_policy(policy, store, run, model=model, alias=alias)
        store.end(run, tracking.FINISHED)
    pairs = sum(len(row) for row in policy.split.values())
    console = Console()
    console.print(
        f"{path}: {policy.n_workers} workers, {len(policy.split)} hot keys on {pairs} (key, worker) pairs, "
        f"version {policy.version}",
        soft_wrap=True,
    )
    if address != str(path):
        console.print(f"Model: {address}", soft_wrap=True)
    console.print("In a job:", style="bold")
    console.print(
        f'  split_aggregate(df, "key", {{"n": "count(*)"}}, "{path}")', highlight=False, soft_wrap=True
    )
    return address
