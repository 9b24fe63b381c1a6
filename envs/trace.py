"""Recorded streams: .npz, .parquet and .csv files with a key, and perhaps a time and a cost, per tuple.

A file is read column by column, in pieces of about a megabyte (of a .parquet, a row group), so that its
length does not matter: memory is O(chunk_size) plus one piece per column.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError, check_choice, check_int
from dalton.envs.readers import FORMATS, KINDS
from dalton.envs.workloads import MAX_TUPLES, Chunk, Keys, Reals, Workload, register

MAX_CURSORS = 4  # places of a nested trace that are read in turn without seeking


@register("trace")
class Trace(Workload):
    """A recorded stream, read from its file whenever it is asked for.

    The file has a column of keys (integers, or strings through `key_ids`), optionally ``time`` (seconds,
    or timestamps, which become seconds since the first) and ``cost`` (work per tuple). The rows in use are
    read once, to check them, when the workload is made. Starting at row s costs O(s), a look at the bytes
    before it, except for a .parquet, which skips whole row groups.

    Args:
        path: File ending in .npz (one-dimensional arrays), .parquet or .csv (both need pyarrow), or a folder
            of .parquet files, which are read in the order of their names. The keys of a .csv are integers
            if all of them are, otherwise strings.
        n_tuples: Use only the first rows; None for all.
        key: Name of the key column.
        seed: Seed of ``poisson`` arrivals; the keys do not depend on it.
        arrivals: As in `Workload`, or ``trace``: the times of the file. None is ``trace`` when the file
            has times, otherwise ``count``.
        rate: See `Workload`.
        cost_mean: See `Workload`; when set, replaces the costs of the file.
        cost_spread: See `Workload`.
        cost_levels: See `Workload`.
        cost_seeded: See `Workload`.
        cost_every: See `Workload`.
        n_sources: See `Workload`.
        source_by: See `Workload`.

    Raises:
        ConfigError: The file is missing, unreadable or empty, has no key, columns of different lengths,
            or a key, time or cost that is not allowed (with its row, from 0).
    """

    ARRIVALS = (*Workload.ARRIVALS, "trace")
    seeded = False

    def __init__(
        self,
        *,
        path: str | Path,
        n_tuples: int | None = None,
        key: str = "key",
        seed: int = 0,
        arrivals: str | None = None,
        rate: float = 1000.0,
        cost_mean: float | None = None,
        cost_spread: float = 0.0,
        cost_levels: int | None = None,
        cost_seeded: bool = False,
        cost_every: int | None = None,
        n_sources: int = 1,
        source_by: str = "shuffle",
    ) -> None:
        limit = None if n_tuples is None else check_int("n_tuples", n_tuples, low=1, high=MAX_TUPLES)
        self.path, self.key = str(path), str(key)
        folder = Path(path).is_dir()
        kind = ".parquet" if folder else check_choice("trace format", Path(path).suffix.lower(), FORMATS)
        if not folder and not Path(path).is_file():
            raise ConfigError(f"trace {path}: no such file")
        with _readable(self.path):
            self._file = FORMATS[kind](Path(path), self.key)
        rows, found = self._file.rows, self._file.columns
        if limit is not None and limit > rows:
            raise ConfigError(f"n_tuples = {limit}: the trace {path} has {rows} rows")
        if arrivals == "trace" and "time" not in found:
            raise ConfigError(f"arrivals = 'trace': the trace {path} has no column 'time'")
        super().__init__(
            n_tuples=limit or rows,
            seed=seed,
            arrivals=arrivals or ("trace" if "time" in found else "count"),
            rate=rate,
            cost_mean=cost_mean,
            cost_spread=cost_spread,
            cost_levels=cost_levels,
            cost_seeded=cost_seeded,
            cost_every=cost_every,
            n_sources=n_sources,
            source_by=source_by,
        )
        unused = {"time": self.arrivals != "trace", "cost": cost_mean is not None}
        self._used = [role for role in found if not unused.get(role)]
        self._epoch: np.datetime64 | None = None  # the first timestamp, if times are timestamps
        self._cursors: dict[tuple[str, int], _Cursor] = {}  # by column and next row
        with _readable(self.path):
            self._check()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open files out of a pickle or copy: they are opened again where they are needed."""
        return {**vars(self), "_cursors": {}}

    def _iterate(self, size: int, start: int, stop: int) -> Iterator[Chunk]:
        own = copy.copy(self)  # with open files of its own
        try:
            yield from super(Trace, own)._iterate(size, start, stop)
        finally:
            own._cursors.clear()

    def _keys(self, lo: int, hi: int) -> Keys:
        return self._read("key", lo, hi)

    def _times(self, lo: int, hi: int, clock: float) -> tuple[Reals | None, float]:
        if "time" not in self._used:
            return super()._times(lo, hi, clock)
        return self._read("time", lo, hi), clock

    def _costs(self, lo: int, keys: Keys) -> Reals | None:
        return self._read("cost", lo, lo + len(keys)) if "cost" in self._used else super()._costs(lo, keys)

    def _read(self, role: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``[lo, hi)`` of a column, going on from the call that stopped at ``lo`` if there was one."""
        cursor = self._cursors.pop((role, lo), None) or _Cursor(role, self._values(role, lo))
        with _readable(self.path):
            out = cursor.take(hi - lo)
        if hi < self.n_tuples:
            self._cursors[role, hi] = cursor
        while len(self._cursors) > MAX_CURSORS:
            self._cursors.pop(next(iter(self._cursors)))
        return out

    def _values(self, role: str, start: int, check: bool = False) -> Iterator[NDArray[Any]]:
        """Rows ``[start, n_tuples)`` of a column: ids, seconds or costs."""
        row = start
        for piece in self._file.pieces(role, start, check):
            values = piece[: self.n_tuples - row]
            if piece.dtype.kind == "M" and len(piece):
                self._epoch = piece[0] if self._epoch is None else self._epoch
                values = (values - self._epoch) / np.timedelta64(1, "s")
            yield values if role == "key" else values.astype(np.float64)
            row += len(piece)
            if row >= self.n_tuples:
                return
        raise ConfigError(f"{role} ends after {row} rows, expected {self.n_tuples}")

    def _check(self) -> None:
        """Read every column in use once, and refuse what is not allowed."""
        for role in self._used:
            if self._file.kinds[role] not in KINDS[role]:
                expected = ": expected integers, strings or bytes" if role == "key" else ", expected numbers"
                raise ConfigError(f"{role} has type {self._file.types[role]}{expected}")
            row, last = 0, -np.inf
            for values in self._values(role, 0, check=True):
                if role != "key" and len(values):
                    last = _check_reals(role, values, row, last)
                row += len(values)


def _check_reals(role: str, values: Reals, row: int, last: float) -> float:
    """Check times or costs from row ``row`` on, ``last`` being the one before; return the last."""
    before = np.concatenate(([last], values[:-1]))
    finite, falling = np.isfinite(values), values < (before if role == "time" else 0)
    if finite.all() and not falling.any():
        return float(values[-1])
    i = int(np.argmax(~finite | falling))
    if not finite[i]:
        raise ConfigError(f"{role} = {values[i]} in row {row + i}, expected a finite number")
    if role == "time":
        raise ConfigError(f"time decreases in row {row + i} ({before[i]:g} to {values[i]:g})")
    raise ConfigError(f"cost = {values[i]:g} in row {row + i}, expected a number >= 0")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into one line that names the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"trace {path}: {error}") from None
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = "a folder of .parquet files" if Path(path).is_dir() else Path(path).suffix
        raise ConfigError(f"trace {path}: cannot be read as {kind} ({reason})") from error


class _Cursor:
    """The values of a column in turn, cut to any length."""

    def __init__(self, role: str, pieces: Iterator[NDArray[Any]]) -> None:
        self._type = np.int64 if role == "key" else np.float64
        self._pieces, self._rest = pieces, np.empty(0)

    def take(self, count: int) -> NDArray[Any]:
        """The next ``count`` values, in an array of their own."""
        out, done = np.empty(count, self._type), 0
        while done < count:
            if not len(self._rest):
                self._rest = next(self._pieces)
            part = self._rest[: count - done]
            out[done : done + len(part)] = part
            self._rest, done = self._rest[len(part) :], done + len(part)
        return out
