"""A standalone cluster of processes on loopback, with the package shipped as a zip and installed."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import numpy as np
import pyspark
import pytest

from dalton.envs.workloads import make_workload
from dalton.pipeline.package import package

# Six JVMs start here, which takes long on a machine that has other work.
pytestmark = pytest.mark.timeout(600)

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


def wait_for(log, pattern, process, seconds=60.0):
    """The first group of a pattern, when it appears in a log."""
    end = time.monotonic() + seconds
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of a master with two workers of one core each; all are gone afterwards."""
    folder = tmp_path_factory.mktemp("cluster")
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environ = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    with contextlib.ExitStack() as stack:

        def start(name, *arguments):
            log = folder / f"{name}.log"
            with log.open("w") as out:
                command = [program, f"org.apache.spark.deploy.{arguments[0]}", "--host", "127.0.0.1"]
                command += ["--webui-port", "0", *arguments[1:]]
                process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return log, process

        log, master = start("master", "master.Master", "--port", "0")
        address = wait_for(log, r"Starting Spark master at (spark://\S+)", master)
        options = ("--cores", "1", "--memory", "600m")
        workers = [
            start(name, "worker.Worker", *options, "--work-dir", str(folder / name), address) for name in "ab"
        ]
        for log, worker in workers:
            wait_for(log, r"Successfully registered with master (\S+)", worker)
        yield address


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An interpreter with everything that is installed here but this package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (theirs,) = folder.glob("lib/python*/site-packages")
    ours = Path(np.__file__).parent.parent
    for path in ours.iterdir():
        if "dalton" not in path.name and path.name != "__pycache__":
            (theirs / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


# Makes a stream and diagnoses it, then routes it by a compiled partitioner in the executors, which also tell
# where they have the package from.
JOB = """
import json, sys
from pyspark.sql import functions as F
from dalton.pipeline.datasets import ingest
from dalton.pipeline.diagnose import diagnose
from dalton.pipeline.session import spark_session
master, raw, out, ship, *conf = sys.argv[1:]
spark = spark_session("job", master, **dict(setting.split("=") for setting in conf))
if ship:
    spark.sparkContext.addPyFile(ship)

def route(batches):
    import pyarrow as pa
    import dalton
    from dalton.baselines.kg import KeyGrouping
    partitioner = KeyGrouping(n_workers=4)
    for batch in batches:
        workers = partitioner.route(batch.column(0).to_numpy())
        homes = [dalton.__file__] * len(workers)
        yield pa.RecordBatch.from_pydict({"worker": pa.array(workers), "home": homes})

statistics = ingest(spark, raw, out, format="edges")
stream = spark.read.parquet(f"{out}/stream")
found = diagnose(stream, "key", n_tasks=4, partitioners=["kg"])
rows = stream.select("key").repartition(2).mapInArrow(route, "worker int, home string")
homes = rows.groupBy("home").agg(F.count("*").alias("n")).collect()
executors = spark._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps([statistics.to_dict(), found.to_dict(), [tuple(row) for row in homes], len(executors) - 1]))
spark.stop()
"""


@pytest.mark.parametrize("way", ["shipped", "installed"])
def test_jobs_run_on_a_cluster(cluster, bare, tmp_path, way):
    lines = [f"{i % 7 * (i % 3)} {i}" for i in range(3_000)]
    (tmp_path / "raw.txt").write_text("\n".join([*lines, "malformed"]))
    ship = str(package(tmp_path / "dalton.zip")) if way == "shipped" else ""
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    places = (str(tmp_path / "raw.txt"), str(tmp_path / "out"), ship)
    interpreter = bare if way == "shipped" else sys.executable
    done = subprocess.run(
        [sys.executable, "-c", JOB, cluster, *places, *settings],
        env={**os.environ, "PYSPARK_PYTHON": interpreter, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    statistics, found, homes, executors = json.loads(done.stdout)
    assert statistics["reasons"] == {"expected source and target": 1}
    (chunk,) = make_workload("trace", path=str(tmp_path / "out" / "stream")).chunks()
    assert chunk.keys.tolist() == [i % 7 * (i % 3) for i in range(3_000)]
    assert (found["rows"], found["hot"][0]["key"]) == (3_000, 0)
    ((home, rows),) = homes
    assert rows == 3_000
    assert ("dalton.zip" in home) == (way == "shipped")
    assert executors == 2


def test_without_the_zip_the_bare_executors_have_no_package(bare, tmp_path):
    code = "import numba, pyarrow, pyspark; import dalton"
    done = subprocess.run([bare, "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("No module named 'dalton'")


def test_the_zip_is_the_whole_package(tmp_path, refused, bare):
    path = package(tmp_path / "dalton.zip")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"agents", "baselines", "conf", "envs", "experiments", "pipeline"}
    assert {"dalton/__init__.py", "dalton/conf/partitioner/pkg.yaml"} <= names
    assert not any(name.endswith((".pyc", ".nbi")) for name in names)
    assert [other.name for other in tmp_path.iterdir()] == ["dalton.zip"]
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n" + (
        "from dalton import make, __file__ as home\nimport numpy as np\n"
        "print(home, *make('kg', n_workers=4).route(np.arange(20)))"
    )
    cache = tmp_path / "cache"
    done = subprocess.run(
        [bare, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(cache)},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    home, *workers = done.stdout.split()
    assert home.startswith(str(path))
    assert len(workers) == 20
    assert not [file for file in cache.rglob("*") if file.is_file()], "kernels of a zip are not kept on disk"
    assert "expected a name that ends in .zip" in refused(package, tmp_path / "dalton.whl")
    assert "there is no folder" in refused(package, tmp_path / "none" / "dalton.zip")
