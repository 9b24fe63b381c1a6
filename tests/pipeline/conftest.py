"""One Spark session for all tests of the pipeline, and policies that split what a test wants to be split."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dalton.agents.export import Policy
from dalton.experiments import make
from dalton.pipeline.session import spark_session


def pytest_collection_modifyitems(items):
    """All tests of this folder share a process of pytest-xdist, and so the session."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def local_dir(tmp_path_factory):
    """Where Spark keeps shuffle files."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(local_dir):
    """Two cores, four attempts per task, small shuffles."""
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(local_dir),
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(local_dir / "warehouse"),
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.ui.enabled": "false",
    }
    session = spark_session(master="local[2,4]", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def trained():
    """A policy learned from keys, as they come."""

    def learn(keys, n_workers=8, name="dalton_share", **params):
        agent = make(name, n_workers=n_workers, **{"window": {"size": 20_000, "slide": 2_000}, **params})
        agent.route(np.asarray(keys, np.int64), np.zeros(len(keys)))
        return Policy.of(agent)

    return learn


@pytest.fixture(scope="session")
def splitting(trained):
    """A policy with a split table of one's own."""

    def policy(split, n_workers=4, seed=0):
        return dataclasses.replace(trained([0], n_workers, seed=seed), split=split)

    return policy


@pytest.fixture(scope="session")
def plan():
    """The physical plan of a query."""

    def text(df):
        return df._jdf.queryExecution().executedPlan().toString()

    return text
