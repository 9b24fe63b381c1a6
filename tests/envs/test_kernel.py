"""Kernels are compiled once, stored, and compiled again when anything they are made of has changed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dalton.envs import kernel as module
from dalton.envs.hashing import family, worker_of

ROUTE = """
import gc, json, sys
import numpy as np
from numba.core import event
from numba.core.dispatcher import Dispatcher
from dalton.envs.simulate import simulate
from dalton.envs.workloads import make_workload
from dalton.experiments import make

with event.install_recorder("numba:compile") as compiled:
    routed = [make(name, n_workers=8).route(np.arange(50), np.arange(50.0)).tolist() for name in sys.argv[1:]]
    result = simulate(make("pkg", n_workers=8), make_workload("zipf", n_tuples=3_000, n_keys=50))
    routed.append(result.total.tolist())
stats = [d.stats for d in gc.get_objects() if isinstance(d, Dispatcher)]
hits = sum(sum(s.cache_hits.values()) for s in stats)
misses = sum(sum(s.cache_misses.values()) for s in stats)
print(json.dumps({"compiled": len(compiled.buffer), "hits": hits, "misses": misses, "routed": routed}))
"""


def run(code, *arguments, **settings):
    """Run a program with an environment in which only the given settings say where the cache is."""
    env = {
        name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    }
    env |= {"PYTHONDONTWRITEBYTECODE": "1", **{name: str(value) for name, value in settings.items()}}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return done.stdout


def stored(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb?")}


def test_a_second_run_compiles_nothing(tmp_path):
    names = ["pkg", "kg", "sg", "oracle"]
    first = json.loads(run(ROUTE, *names, XDG_CACHE_HOME=tmp_path))
    files = stored(tmp_path / "dalton")
    assert first["compiled"] > 0
    assert first["misses"] > 0
    assert files
    second = json.loads(run(ROUTE, *names, XDG_CACHE_HOME=tmp_path))
    assert (second["compiled"], second["misses"]) == (0, 0)
    assert second["hits"] > 0
    assert second["routed"] == first["routed"]
    assert stored(tmp_path / "dalton") == files


PKG = """
import numpy as np
from dalton.experiments import make
print(make("kg", n_workers=8, seed=3).route(np.arange(20)).tolist())
"""


def by_hand():
    (seed,) = family(3, 1)
    return str([int(worker_of(np.int64(key), seed, 8)) for key in range(20)])


def test_an_unwritable_cache_folder_falls_back_to_a_temporary_one(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "temporary").mkdir()
    shown = run(PKG, XDG_CACHE_HOME=tmp_path / "file" / "below", TMPDIR=tmp_path / "temporary")
    assert shown.strip() == by_hand()
    assert (tmp_path / "file").read_text() == "not a folder"
    assert stored(tmp_path / "temporary")


def test_numbas_own_setting_comes_first(tmp_path):
    shown = run(PKG, XDG_CACHE_HOME=tmp_path / "xdg", NUMBA_CACHE_DIR=tmp_path / "numba")
    assert shown.strip() == by_hand()
    assert stored(tmp_path / "numba")
    assert not (tmp_path / "xdg").exists()


def test_an_unwritable_setting_of_numba_falls_back_to_the_users_folder(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    shown = run(PKG, XDG_CACHE_HOME=tmp_path / "xdg", NUMBA_CACHE_DIR=tmp_path / "file" / "below")
    assert shown.strip() == by_hand()
    assert stored(tmp_path / "xdg" / "dalton")


def test_without_settings_the_cache_is_in_the_home_folder(tmp_path):
    shown = run(PKG, HOME=tmp_path)
    assert shown.strip() == by_hand()
    assert stored(tmp_path / ".cache" / "dalton")


KERNEL = """
from dalton.envs.kernel import kernel
from helper import least

@kernel
def f():
    return least()
"""
HELPER = "from dalton.envs.kernel import kernel\n\n@kernel\ndef least():\n    return {}\n"


def test_a_changed_helper_in_another_file_is_not_served_from_the_cache(tmp_path):
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    (package / "main.py").write_text(KERNEL)
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from main import f; print(f())"
    shown, folders = [], []
    for value in (1, 2, 1):
        (package / "helper.py").write_text(HELPER.format(value))
        shown.append(int(run(code, XDG_CACHE_HOME=cache)))
        folders.append({path.name for path in (cache / "dalton").iterdir()})
    assert shown == [1, 2, 1]
    assert folders[0] < folders[1]
    assert folders[2] == folders[1], "what was compiled before is found again"


def key_of(folder):
    return module._source_key.__wrapped__(folder)


def test_the_cache_key_depends_on_every_kernel_file_of_the_package(tmp_path):
    (tmp_path / "main.py").write_text(KERNEL)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    (tmp_path / "plain.py").write_text("x = 1\n")
    keys = [key_of(tmp_path)]
    assert key_of(tmp_path) == keys[0]
    (tmp_path / "plain.py").write_text("x = 2\n")
    assert key_of(tmp_path) == keys[0], "no kernel is made of it"
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    keys.append(key_of(tmp_path))
    (tmp_path / "another.py").write_text(HELPER.format(3))
    keys.append(key_of(tmp_path))
    (tmp_path / "another.py").rename(tmp_path / "renamed.py")
    keys.append(key_of(tmp_path))
    (tmp_path / "renamed.py").unlink()
    assert key_of(tmp_path) == keys[1]
    assert len(set(keys)) == 4


def test_the_cache_key_depends_on_the_kernels_of_the_environments(tmp_path):
    # An own package without kernels: what is left are the helpers that every kernel may call.
    assert key_of(tmp_path) == key_of(Path(module.__file__).resolve().parent)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert key_of(tmp_path) != key_of(Path(module.__file__).resolve().parent)


def test_a_kernel_keeps_its_name_its_docstring_and_its_python_function():
    assert worker_of.__name__ == "worker_of"
    assert worker_of.__doc__
    key, seed = np.int64(-5), family(0, 1)[0]
    assert worker_of(key, seed, 7) == worker_of(np.int64(-5), seed, 7) in range(7)


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("envs", "baselines", "agents", "pipeline", "experiments")


def sources():
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("*.py")):
            yield f"dalton.{package}", path, path.read_text(encoding="utf-8")


def imports_of_kernels(tree):
    """(module, name) that the kernels of a file use and import from dalton."""
    origin = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dalton")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list
        ):
            names = {
                inner.id for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.Name)
            }
            yield from (origin[name] for name in names & set(origin))


@pytest.mark.parametrize("package", [f"dalton.{name}" for name in PACKAGES])
def test_kernels_are_made_only_of_files_that_the_cache_key_covers(package):
    files = {f"{name}.{path.stem}": source for name, path, source in sources()}
    kernels = {name: source for name, source in files.items() if "@kernel" in source}
    hashed = {name for name in kernels if name.rpartition(".")[0] in (package, "dalton.envs")}
    for name, source in kernels.items():
        if name.startswith(f"{package}."):
            homes = {home for home, _ in imports_of_kernels(ast.parse(source))}
            assert homes <= hashed, name


def test_the_walk_over_imports_sees_some():
    found = {entry for _, _, source in sources() for entry in imports_of_kernels(ast.parse(source))}
    assert {("dalton.envs.window", "tick"), ("dalton.envs.table", "EMPTY")} <= found
