"""One Spark session for all tests of the pipeline."""

from pathlib import Path

import pytest

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
