"""`dalton ui`: MLflow's page on the store, with a view whose columns exist."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import urllib.error
import urllib.request

import pytest


@pytest.fixture
def port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetched(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.read()
    except (OSError, urllib.error.URLError):
        return None


def test_the_page_is_served_with_a_view_of_columns_that_exist(sweep, place, port, waiting):
    filled, _ = sweep
    shutil.copy(filled.folder / "mlflow.db", place.folder)
    at = f"http://127.0.0.1:{port}"
    with place.running("ui", "--port", str(port)) as child:
        place.until(lambda: fetched(f"{at}/health"), child)
        assert b"<html" in fetched(at).lower()
        query = "api/2.0/mlflow/experiments/get-by-name?experiment_name=dalton"
        experiment = json.loads(fetched(f"{at}/{query}"))["experiment"]
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "Interrupted"
    address = re.search(r"Open (\S+)", out)[1]
    assert address.startswith(f"{at}/#/experiments/{experiment['experiment_id']}/runs?")
    view = re.search(r"viewStateShareKey=(\w+)", address)[1]
    tags = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    columns = json.loads(tags[f"mlflow.sharedViewState.{view}"])["selectedColumns"]
    (run, *_) = filled.family()[1]
    for column in columns:
        kind, name = re.fullmatch(r"(tags|metrics|params|attributes)\.`(.+)`", column).groups()
        if kind != "attributes":
            assert name in getattr(run.data, kind), column
    assert any(column.startswith("metrics.") for column in columns)


def test_without_a_store_there_is_nothing_to_serve(place):
    done = place.here("ui")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"Error: uri = sqlite:///.*/mlflow.db: no such store; expected one .*\n", done.err)
    assert list(place.folder.iterdir()) == []


def test_a_server_has_a_page_of_its_own(place):
    done = place.here("ui", "--uri", "http://127.0.0.1:9")
    assert done.code == 2
    assert done.err.startswith("Error: uri = http://127.0.0.1:9: is a server with a page of its own")


def test_a_port_that_is_taken(place):
    (place.folder / "mlflow.db").write_text("")
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = place.here("ui", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert re.fullmatch(r"Error: port = \d+: cannot listen at 127.0.0.1 \(.*\); try --port\n", done.err)


def test_a_port_that_is_none(place):
    (place.folder / "mlflow.db").write_text("")
    done = place.here("ui", "--port", "0")
    assert (done.code, done.err) == (2, "Error: port = 0: expected a whole number from 1 to 65535\n")
