"""Spark sessions, and what Spark needs to be there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from dalton.envs.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def require_spark() -> None:
    """Say in one line what to install if PySpark or Java is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError('pyspark is not installed: pip install "dalton[spark]"')
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None:
        where = f"JAVA_HOME = {home} has no bin/java" if home else "no java on the PATH"
        raise ConfigError(f"Java is not installed ({where}): Spark needs Java 17 or newer, e.g. OpenJDK 17")


def spark_session(app: str = "dalton", master: str | None = None, **conf: Any) -> SparkSession:
    """The session of this process, made if there is none.

    Python workers run this interpreter, unless PYSPARK_PYTHON says otherwise, and times are UTC.

    Args:
        app: Name of the application.
        master: URL of the cluster; None leaves it to Spark's configuration, in the end all local cores.
        **conf: Settings of Spark, by their full names.
    """
    require_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**DEFAULTS, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
