"""The package without what it needs."""

import subprocess
import sys

import pytest

ABSENT = """
import importlib.util, os, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pyspark" else real(name, *more)
import dalton.pipeline
print("imported", "pyspark" in sys.modules)
"""


def ran(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr.splitlines()[-1:]


def test_the_package_is_imported_without_pyspark():
    assert ran(ABSENT) == ("imported False\n", [])


@pytest.mark.parametrize("name", ["route", "split_aggregate", "split_apply", "split_join"])
def test_without_pyspark_its_names_say_what_to_install(name):
    out, last = ran(f"{ABSENT}\nfrom dalton.pipeline import {name}")
    assert out == "imported False\n"
    assert "pyspark is not installed: pip install" in last[0]
    assert "dalton[spark]" in last[0]


def test_without_java_it_says_what_to_install():
    code = "import os; os.environ['PATH'] = ''; os.environ.pop('JAVA_HOME', None)\n"
    _, last = ran(f"{code}from dalton.pipeline import spark_session\nspark_session()")
    assert "Java is not installed" in last[0]


def test_unknown_names_are_unknown():
    import dalton.pipeline

    with pytest.raises(AttributeError, match="no attribute 'ruote'"):
        dalton.pipeline.ruote  # noqa: B018
