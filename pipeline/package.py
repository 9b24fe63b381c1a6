"""The package as a zip, for executors that do not have it: Spark ships .zip files, but ignores .whl."""

from __future__ import annotations

import os
import uuid
import zipfile
from pathlib import Path

import dalton
from dalton.envs.errors import ConfigError

SUFFIXES = (".py", ".yaml", ".jinja", ".typed")


def package(out: str | Path) -> Path:
    """Write the installed package into a zip, which ``SparkContext.addPyFile`` ships.

    It holds Python files and configuration alone, not what they import: NumPy, numba and the rest must be in
    the executors' environment. Kernels are compiled anew there in every session; where that matters, install
    the package in that environment instead.
    """
    target = Path(out)
    if target.suffix != ".zip":
        raise ConfigError(f"out = {str(target)!r}: expected a name that ends in .zip, Spark ignores others")
    if not target.parent.is_dir():
        raise ConfigError(f"out = {str(target)!r}: there is no folder {str(target.parent)!r}")
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in sorted(_files().items()):
                archive.write(path, name)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _files() -> dict[str, Path]:
    """Files of the package by their names in the zip; of a name found twice, the one that is imported."""
    found: dict[str, Path] = {}
    for root in map(Path, dalton.__path__):
        for path in root.rglob("*"):
            if path.suffix in SUFFIXES and path.is_file():
                found.setdefault(f"dalton/{path.relative_to(root).as_posix()}", path)
    return found
