"""``@kernel``: ``numba.njit`` with a disk cache that cannot go stale.

numba invalidates a cached kernel when its own file changes, but not when a helper in *another* file
does (numba#1833), and then runs old machine code without a word. Here the cache directory is keyed by
a hash of every source file that could hold such a helper: the kernel files of ``dalton.envs`` and of
the kernel's own package. Kernels therefore call helpers only from those two places.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).resolve().parent


@functools.cache
def _source_key(package: Path) -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in sorted({_HERE, package}):
        for path in sorted(folder.glob("*.py")) if folder.is_dir() else []:
            source = path.read_bytes()
            if b"@kernel" in source:
                digest.update(path.name.encode() + b"\0" + source)
    return digest.hexdigest()[:16]


@functools.cache
def _cache_root() -> Path:
    """The first writable of: numba's own setting, the user's cache folder, a temporary folder."""
    candidates = [
        getattr(config, "CACHE_DIR", ""),
        os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dalton"),
    ]
    for candidate in filter(None, candidates):
        try:
            Path(candidate).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return Path(candidate)
    # Cached kernels are pickles: only a folder that nobody else can write to will do.
    mine = Path(tempfile.gettempdir()) / f"dalton-kernels-{os.getuid()}"
    mine.mkdir(mode=0o700, exist_ok=True)
    status = mine.stat()
    if status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return mine
    return Path(tempfile.mkdtemp(prefix="dalton-kernels-"))


def kernel(function: F) -> F:
    """Compile ``function`` on first use and keep the machine code on disk.

    Decorates plain functions over arrays and scalars; the result is called like the original from
    Python and from other kernels, into which it is inlined (an array is seven arguments of machine code,
    so a call costs more than most helpers). Kernels do not allocate, so numba's run time for that is off
    (``_nrt``): with it, every array handed to a helper costs two reference counts, 9 ns. No fast-math: a
    decision must not depend on the machine. Kernels imported from a zip are not kept on disk.
    """
    package = Path(function.__code__.co_filename).resolve().parent
    # numba reads the directory when the function is decorated. It sets the attribute at run time, where
    # type checkers do not see it, hence the Any.
    settings: Any = config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(_cache_root() / _source_key(package))
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": True, "_nrt": False}
    try:
        # A zip has a name of its own in every Spark session: it would never be found again.
        kept = package.is_dir()
        return cast(F, numba.njit(cache=kept, nogil=True, **options)(function))
    finally:
        settings.CACHE_DIR = before


def _prefetch(typing_context: Any, table: Any, e: Any, row: Any, column: Any) -> Any:
    """Have ``table[e, row, column]`` brought into the cache, with the 64 bytes around it."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tools: Any = cgutils  # untyped
        array = context.make_array(signature.args[0])(context, builder, args[0])
        item = tools.get_item_pointer(context, builder, signature.args[0], array, list(args[1:]))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        hint = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To write (1), to be kept in all caches (3), data (1).
        builder.call(hint, [builder.bitcast(item, cgutils.voidptr_t), number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp, types.intp), generate


prefetch: Any = intrinsic(_prefetch)
