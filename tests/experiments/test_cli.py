"""The program as a user runs it: what it shows, and one line for every mistake."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dalton.envs.workloads import WORKLOADS
from dalton.experiments.registry import options, partitioner_config, partitioner_names
from dalton.experiments.throughput import COMBINE_NS, MERGE_NS

SCRIPT = str(Path(sys.executable).parent / "dalton")


def run(*command, cwd=None):
    env = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    env |= {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, encoding="utf-8", timeout=250)


def shown(*arguments, cwd=None):
    """What a command that succeeds prints; it has nothing to complain about."""
    done = run(SCRIPT, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"
    return done.stdout


def rows(table):
    """Rows of tables that have a first cell: that cell and the others."""
    lines = [line.strip("│").split("│") for line in table.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [(first, others) for first, *others in cells if first]


def names(table):
    return [first for first, _ in rows(table)]


@pytest.fixture(scope="module")
def listing():
    return shown("list")


def test_list_shows_every_partitioner_workload_and_experiment(listing):
    partitioners, others = listing.split("Workloads", 1)
    workloads, experiments = others.split("Experiments", 1)
    assert names(partitioners) == partitioner_names()
    assert names(workloads) == sorted(WORKLOADS)
    assert names(experiments) == options("experiment")


def test_list_shows_the_parameters(listing):
    words = set(re.findall(r"\w+(?==)", listing))
    for name in partitioner_names():
        assert set(partitioner_config(name)[1]) <= words
    for workload in WORKLOADS.values():
        assert set(workload.parameters()) <= words


def test_list_of_one_kind(listing):
    assert names(shown("list", "partitioners")) == partitioner_names()
    assert names(shown("list", "workloads")) == sorted(WORKLOADS)
    experiments = shown("list", "experiments")
    assert names(experiments) == options("experiment")
    papers = {name: cells[-1] for name, cells in rows(experiments)}
    assert papers["ablation"] == "Dalton Fig. 11"
    assert papers["comparison"] == "-"


def test_the_module_is_the_program(listing):
    done = run(sys.executable, "-m", "dalton.experiments", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, listing, "")


QUICK = ("bench", "--tuples", "200000", "--repeat", "1")


def test_bench_has_a_row_per_partitioner_and_says_what_the_floor_is():
    out = shown(*QUICK, "--workers", "4", "--exponents", "1.0", "--only", "kg,pkg")
    assert names(out) == ["kg", "pkg"]
    for _, cells in rows(out):
        assert len(cells) == 1
        assert re.fullmatch(r"\d+\.\d \(\d+x\)", cells[0])
    assert "Zipf 1" in out
    assert "n = 4" in out
    assert re.search(r"floor .* \d+\.\d\d ns per tuple", out)
    assert re.search(r"queues\s+\d+M\s+tuples/s", out)


def test_bench_measures_every_exponent_with_every_number_of_workers():
    out = shown(*QUICK, "--workers", "2,4", "--exponents", "0.5,1.5", "--only", "sg")
    assert set(names(out)) == {"sg"}
    assert sum(len(cells) for _, cells in rows(out)) == 4
    for text in ("Zipf 0.5", "Zipf 1.5", "n = 2", "n = 4"):
        assert text in out


def test_version():
    assert shown("--version").strip() == f"dalton, version {version('dalton')}"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_the_commands(option):
    commands = {"bench", "compare", "costs", "list", "run", "tune", "ui"}
    text = shown(option)
    assert commands <= set(text.split())
    assert "demo" not in text


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_help_of_an_application_is_its_configuration(command, tmp_path):
    text = shown(command, "--help", cwd=tmp_path)
    for word in ("partitioner", "workload", "seed", "n_workers", "epsilon"):
        assert word in text
    assert list(tmp_path.iterdir()) == []


def test_costs_explains_the_defaults_of_the_model():
    text = shown("costs")
    assert f"{COMBINE_NS:g}" in text.replace(",", "")
    assert f"{MERGE_NS:g}" in text.replace(",", "")


def test_quickstart_is_the_first_thing_to_run(tmp_path):
    overrides = ("testing=true", "tracking=none", "partitioners=[kg,pkg]")
    text = shown("run", "experiment=quickstart", *overrides, cwd=tmp_path)
    assert set(names(text)) == {"kg", "pkg", "bound"}
    assert "Zipf 1.4, heavy hitters swap, 16 workers" in text
    assert dict(rows(text))["kg"][1] == "1.000", "key grouping splits no key"


WRONG = {
    "no workers": ("bench --workers 0", "n_workers = 0: expected a whole number from 1 to 32767"),
    "negative workers": ("bench --workers 8,-4", "n_workers = -4: expected a whole number from 1 to 32767"),
    "negative exponent": ("bench --exponents -1", "exponent = -1.0: expected a number from 0 to 3"),
    "exponent too large": ("bench --exponents 1,7", "exponent = 7.0: expected a number from 0 to 3"),
    "exponent not a number": ("bench --exponents nan", "exponent = nan: expected a number from 0 to 3"),
    "negative seed": ("costs --seed -1", "seed = -1: expected a whole number"),
    "too few tuples": ("bench --tuples 10", "tuples = 10: expected a whole number >= 200000"),
    "no repetition": ("bench --repeat 0", "repeat = 0: expected a whole number >= 1"),
    "unknown partitioner": (
        "bench --only kg,dagredy",
        "partitioner = 'dagredy': unknown (did you mean 'dagreedy'?)",
    ),
    "empty name": ("bench --only kg,", "partitioner = '': unknown"),
    "malformed workers": ("bench --workers 8,x", "workers = '8,x': expected numbers separated by commas"),
    "half a worker": ("bench --workers 8,1.5", "workers = '8,1.5': expected numbers separated by commas"),
    "malformed exponents": ("bench --exponents 1.0;2.0", "exponents = '1.0;2.0': expected numbers"),
    "empty exponents": ("bench --exponents=", "exponents = '': expected numbers separated by commas"),
    "workers of a run": ("run cluster.n_workers=0", "cluster.n_workers = 0: expected a whole number >= 1"),
    "misspelt key": ("run seeed=1", "key = 'seeed': unknown (did you mean 'seed'?)"),
    "unknown of a comparison": ("compare partitioners=[kgg]", "'kgg': unknown (did you mean 'kg'?)"),
    "no store": ("ui", "no such store; expected one that `dalton run` made"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_and_exit_code_2(case, place):
    command, message = WRONG[case]
    done = place.here(*command.split())
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("Error: ")
    assert message in done.err


UNREADABLE = {
    "text for a number": ("bench --tuples many", "'--tuples': 'many' is not a valid integer"),
    "unknown option": ("bench --wrokers 3", "'--wrokers'"),
    "unknown command": ("rnu", "'rnu'"),
    "removed command": ("demo", "'demo'"),
    "unknown kind": ("list partitioner", "'partitioner' is not one of 'all', 'partitioners', 'workloads'"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_command_line_is_exit_code_2_and_no_traceback(case):
    command, message = UNREADABLE[case]
    done = run(SCRIPT, *command.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in last


OWN = {
    "bench --workers 0": "Error: n_workers = 0: expected a whole number from 1 to 32767\n",
    "run cluster.n_workers=0": "Error: cluster.n_workers = 0: expected a whole number >= 1\n",
}


@pytest.mark.parametrize("program", [(SCRIPT,), (sys.executable, "-m", "dalton.experiments")])
@pytest.mark.parametrize("command", OWN)
def test_a_mistake_is_one_line_of_a_process_of_its_own_too(program, command, tmp_path):
    done = run(*program, *command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", OWN[command])
