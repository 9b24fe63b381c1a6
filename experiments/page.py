"""``dalton ui``: MLflow's page on the project's store, with columns and charts that compare partitioners."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click

from dalton.envs.errors import ConfigError, check_int
from dalton.experiments.settings import Tracking
from dalton.experiments.tracking import Store, store_uri

# MLflow shows only names and dates unless told otherwise. A view stored in a tag of the experiment, and named
# in the page's address, tells it.
VIEW = "dalton"
KIND = "custom_model_development"  # without it MLflow takes an experiment for one of language models
COLUMNS = [
    *(f"tags.`{name}`" for name in ("partitioner", "workload", "n_workers", "seed")),
    *(
        f"metrics.`{name}`"
        for name in ("max_over_mean", "replication", "regret_load", "throughput", "ns_per_tuple")
    ),
    "attributes.`Duration`",
]


def set_view(store: Store) -> None:
    """Store the view in the experiment: its columns, and groups that show means over seeds.

    Groups also bring out the children of sweeps, which MLflow would fold away under their parents.
    """
    keys = [{"mode": "tag", "groupByData": name} for name in ("partitioner", "workload", "n_workers")]
    state = {
        "selectedColumns": COLUMNS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": keys},
        "runsHiddenMode": "FIRST_20_RUNS",
    }
    tags = {f"mlflow.sharedViewState.{VIEW}": json.dumps(state), "mlflow.experimentKind": KIND}
    for name, value in tags.items():
        store.call(store.client.set_experiment_tag, store.experiment_id, name, value)


def serve(uri: str | None, host: str, port: int) -> None:
    """Serve MLflow's page until interrupted."""
    tracking = Tracking(uri=uri)
    address = store_uri(tracking)
    check_int("port", port, low=1, high=65535)
    path = Path(address.removeprefix("sqlite:///"))
    if address.startswith("sqlite:///") and not path.exists():
        raise ConfigError(f"uri = {address}: no such store; expected one that `dalton run` made")
    if address.startswith(("http://", "https://")):
        raise ConfigError(f"uri = {address}: is a server with a page of its own; open it in a browser")
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port = {port}: cannot listen at {host} ({error.strerror}); try --port"
            ) from None
    store = Store(tracking)
    set_view(store)
    view = f"runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
    page = f"http://{host}:{port}/#/experiments/{store.experiment_id}/{view}"
    click.echo(f"Open {page} (Ctrl-C to stop)")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", address]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    command += ["--default-artifact-root", (path.parent / "mlruns").as_uri()]
    # Its own session: Ctrl-C is ours to pass on. No executor of jobs: there are none here.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = server.wait()
    except KeyboardInterrupt:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        raise
    raise ConfigError(f"mlflow server ended with exit code {code}")
