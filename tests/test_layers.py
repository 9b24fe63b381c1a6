"""The packages depend on each other one way only, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each package may import of the others.
ALLOWED: dict[str, set[str]] = {
    "conf": set(),
    "envs": set(),
    "baselines": {"envs"},
    "agents": {"envs"},
    "pipeline": {"envs", "baselines", "agents"},
    "experiments": {"envs", "baselines", "agents", "pipeline", "conf"},
}
# The one package that may import each heavy library.
HEAVY = {"ray": "agents", "pyspark": "pipeline", "mlflow": "experiments"}
IMPORT_CALLS = {"import_module", "__import__"}


def _imports(tree: ast.AST, parent: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of everything imported in a module of package `parent`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = parent.split(".")
                up = up[: len(up) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if called in IMPORT_CALLS and isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def violations(source: str, package: str) -> list[str]:
    """Say which imports of a module are forbidden to its package.

    Args:
        source: The module's text.
        package: The top-level directory it is in: a key of `ALLOWED`, or `dalton` or `tests`, which may
            import every layer.
    """
    parent = f"dalton.{package}" if package in ALLOWED else package
    found = []
    for line, name in _imports(ast.parse(source), parent):
        parts = name.split(".")
        if parts[0] in ALLOWED:
            found.append(f"{line}: bare import of {name}; write dalton.{name}")
        elif parts[0] in HEAVY:
            if package not in (HEAVY[parts[0]], "tests"):
                found.append(f"{line}: {parts[0]} belongs to dalton.{HEAVY[parts[0]]} only")
        elif parts[0] == "dalton" and package in ALLOWED:
            # `import dalton` and `from dalton import __version__` are harmless; the façade's names are not,
            # for they reach into every layer.
            target = parts[1] if len(parts) > 1 else "__version__"
            if target not in {"__version__", package, *ALLOWED[package]}:
                found.append(f"{line}: dalton.{package} must not import {name}")
    return found


def _modules() -> list[Path]:
    return sorted(path for top in (*ALLOWED, "dalton", "tests") for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", _modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_keeps_to_its_layer(path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts[0])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("envs", "import dalton.baselines"),
        ("envs", "from dalton import agents"),
        ("envs", "from dalton import make"),
        ("envs", "from ..baselines import kg"),
        ("envs", "from .. import experiments"),
        ("envs", "def f():\n    from dalton.pipeline.routing import route"),
        ("envs", "import importlib\nimportlib.import_module('dalton.experiments')"),
        ("baselines", "from dalton.agents import dalton"),
        ("agents", "from dalton.baselines.kg import KG"),
        ("agents", "import dalton.pipeline"),
        ("pipeline", "import dalton.experiments"),
        ("conf", "import dalton.envs"),
        ("experiments", "import envs"),
        ("tests", "from baselines.kg import KG"),
        ("dalton", "from envs import cluster"),
        ("envs", "import ray"),
        ("pipeline", "from ray import data"),
        ("experiments", "import pyspark.sql"),
        ("agents", "import mlflow"),
        ("dalton", "__import__('mlflow')"),
    ],
)
def test_checker_finds_a_bad_import(package: str, source: str) -> None:
    assert len(violations(source, package)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (
            "envs",
            "import dalton\nfrom dalton import __version__\nfrom dalton.envs import errors\nimport numpy",
        ),
        ("envs", "from . import errors\nfrom .errors import E"),
        ("baselines", "from dalton.envs import hashing\nfrom ..envs.hashing import h"),
        ("agents", "import ray\nfrom ray.rllib import algorithms\nimport dalton.envs"),
        ("pipeline", "import pyspark\nfrom dalton.agents import x\nfrom dalton.baselines import y"),
        ("experiments", "import mlflow\nimport dalton.pipeline, dalton.agents, dalton.conf"),
        ("tests", "import ray, pyspark, mlflow, dalton.experiments\nfrom dalton import make"),
        ("dalton", "from dalton.experiments import make"),
    ],
)
def test_checker_accepts_a_good_import(package: str, source: str) -> None:
    assert violations(source, package) == []


def test_every_package_is_checked() -> None:
    checked = {path.relative_to(ROOT).parts[0] for path in _modules()}
    assert checked == {*ALLOWED, "dalton", "tests"}


def test_light_layers_load_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys, dalton.envs, dalton.baselines\n"
        "print(*sorted({'ray', 'pyspark', 'mlflow', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_repository_root_is_not_importable() -> None:
    assert not {"", str(ROOT)} & set(sys.path)
