"""``dalton spark`` as a user types it."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

from dalton.pipeline.formats import FORMATS
from dalton.pipeline.tables import TABLES

SETTINGS = ("spark.driver.memory=512m", "spark.ui.enabled=false", "spark.sql.shuffle.partitions=2")
LOCAL = ("--master", "local[2]", *(word for setting in SETTINGS for word in ("--conf", setting)))

# A session in this process would be the one that the tests of the pipeline share.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def test_raw_files_to_a_stream_to_a_diagnosis(place):
    (place.folder / "raw.csv").write_text(
        "user,n\n" + "".join(f"{'x' if i % 2 else i},{i}\n" for i in range(400))
    )
    options = ("--format", "csv", "--key", "user", "--out", "out", *LOCAL)
    done = place.process("spark", "ingest", "raw.csv", *options, timeout=250)
    assert done.code == 0, done.err
    assert "50.00%" in done.out
    assert "dalton run workload=trace workload.path=out/stream" in done.out
    assert json.loads((place.folder / "out" / "statistics.json").read_text())["stream"]["messages"] == 400
    options = ("--key", "name", "--tasks", "4", "--only", "kg,pkg", "--json", *LOCAL)
    done = place.process("spark", "diagnose", "out/stream", *options, timeout=250)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["rows"], found["hot"][0]["key"], found["hot"][0]["rows"]) == (400, "x", 200)


def test_a_mistake_that_only_spark_sees_is_a_line_without_traceback(place):
    done = place.process("spark", "ingest", "none.txt", "--format", "edges", "--out", "out", *LOCAL)
    assert done.code == 2
    assert done.err.splitlines()[-1] == "Error: input = 'none.txt': no such file or folder"
    assert "Traceback" not in done.err
    assert list(place.folder.iterdir()) == []


WRONG = {
    "format": ("ingest raw --out o --format edge", "format = 'edge': unknown (did you mean 'edges'?)"),
    "setting": ("ingest raw --out o --format edges --conf x", "conf = 'x': expected name=value"),
    "shipped": (
        "ingest raw --out o --format edges --ship dalton.whl",
        "ship = 'dalton.whl': expected a .zip",
    ),
    "kind": ("diagnose raw --key k --format csw", "format = 'csw': unknown (did you mean 'csv'?)"),
    "zip": ("package --out dalton.whl", "out = 'dalton.whl': expected a name that ends in .zip"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line(place, case):
    command, message = WRONG[case]
    done = place.here("spark", *command.split())
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_formats_are_listed(place):
    done = place.here("spark", "formats")
    assert done.code == 0
    assert {*FORMATS, *TABLES} <= set(done.out.split())


def test_the_zip(place):
    done = place.here("spark", "package")
    assert (done.code, done.out.split(":")[0]) == (0, "dalton.zip")
    with zipfile.ZipFile(place.folder / "dalton.zip") as archive:
        assert "dalton/pipeline/package.py" in archive.namelist()


def test_without_java_it_says_what_to_install(place):
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    command = [*place.command, "spark", "ingest", "raw", "--out", "o", "--format", "edges"]
    done = subprocess.run(
        command, env={**environ, "PATH": str(place.folder)}, capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Java is not installed (no java on the PATH): Spark needs Java 17")
    assert len(done.stderr.splitlines()) == 1


def test_without_the_extra_it_says_what_to_install(place):
    code = "import sys; sys.modules['pyspark'] = None; from dalton.experiments.cli import main; main()"
    for arguments, exit_code, text in (
        (
            ("spark", "diagnose", "raw", "--key", "k"),
            2,
            'Error: pyspark is not installed: pip install "dalton[spark]"\n',
        ),
        (("--help",), 0, ""),
        (("spark", "--help"), 0, ""),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=place.folder,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (exit_code, text)
