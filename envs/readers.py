"""Reading recorded streams in pieces: one class per file format behind `TraceFile`."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dalton.envs.errors import ConfigError
from dalton.envs.hashing import key_ids

PIECE = 1 << 20  # bytes
# The numpy kinds each column may have.
KINDS = {"key": "iubSU", "time": "iufM", "cost": "iuf"}


class TraceFile:
    """What is known of a file without its rows; nothing stays open.

    Attributes:
        columns: Name of the column of each role: key, and time and cost if the file has them.
        types: Their types in the file.
        kinds: Their numpy kinds.
        rows: Their length.
    """

    rows: int

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        schema = self._schema()
        wanted = {"key": key, "time": "time", "cost": "cost"}
        self.columns = {r: n for r, n in wanted.items() if n in schema and (r == "key" or n != key)}
        if "key" not in self.columns:
            raise ConfigError(f"no column {key!r}; the file has {', '.join(schema) or 'none'}")
        self.types = {role: schema[name] for role, name in self.columns.items()}
        self._count()
        self.kinds = {role: self._kind(found) for role, found in self.types.items()}
        if self.rows < 1:
            raise ConfigError("the file is empty, expected at least one row")

    def _schema(self) -> dict[str, Any]:
        """Type of every column of the file, by name."""
        raise NotImplementedError

    def _count(self) -> None:
        """Set `rows` and those types that the schema leaves open."""

    def _kind(self, found: Any) -> str:
        return str(found.kind)

    def pieces(self, role: str, start: int, check: bool = False) -> Iterator[NDArray[Any]]:
        """Successive parts of a column from row ``start`` on, keys as ids.

        With ``check`` (and start 0), keys that have no id are refused, and string keys need not be hashed,
        which takes time: only the number of keys counts.
        """
        raise NotImplementedError


class _Npz(TraceFile):
    """A zip of .npy files, one per column."""

    @contextlib.contextmanager
    def _member(self, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
        """The .npy file of a column, at its first value, with shape and type."""
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
            form = np.lib.format
            old = form.read_magic(file) == (1, 0)
            shape, _, dtype = (form.read_array_header_1_0 if old else form.read_array_header_2_0)(file)
            yield file, shape, dtype

    def _schema(self) -> dict[str, Any]:
        with zipfile.ZipFile(self.path) as archive:
            return {name[:-4]: None for name in archive.namelist() if name.endswith(".npy")}

    def _count(self) -> None:
        rows = {}
        for role, name in self.columns.items():
            with self._member(name) as (_, shape, self.types[role]):
                if self.types[role].hasobject:
                    raise ValueError(f"{role} holds Python objects: save integers or fixed-width strings")
                if len(shape) != 1:
                    raise ConfigError(f"{role} has {len(shape)} dimensions, expected 1")
                rows[role] = self.rows = shape[0]
        if len(set(rows.values())) > 1:
            sizes = ", ".join(f"{role} has {count}" for role, count in rows.items())
            raise ConfigError(f"columns differ in length ({sizes})")

    def pieces(self, role: str, start: int, check: bool = False) -> Iterator[NDArray[Any]]:
        with self._member(self.columns[role]) as (file, (rows,), dtype):
            file.seek(start * dtype.itemsize, os.SEEK_CUR)
            size = max(1, PIECE // max(dtype.itemsize, 8))
            plain = role != "key" or (check and dtype.kind == "S")
            for row in range(start, rows, size):
                wanted = min(size, rows - row) * dtype.itemsize
                if len(raw := file.read(wanted)) < wanted:
                    raise EOFError(f"{role} is shorter than its header says")
                piece = np.frombuffer(raw, dtype)
                yield piece if plain else key_ids(piece)


def _pyarrow() -> Any:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    return pa


class _Arrow(TraceFile):
    """What .parquet and .csv share."""

    def __init__(self, path: Path, key: str) -> None:
        try:
            _pyarrow()
        except ImportError:
            raise ConfigError(f'{path.suffix} files need pyarrow: pip install "dalton[data]"') from None
        if path.is_file() and not path.stat().st_size:
            raise ConfigError("the file is empty, expected at least one row")
        super().__init__(path, key)

    def _kind(self, found: Any) -> str:
        pa = _pyarrow()
        found = found.value_type if pa.types.is_dictionary(found) else found
        strings = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
        if found in strings or pa.types.is_fixed_size_binary(found):
            return "S"
        return str(_numpy(pa.array([], found)).dtype.kind)

    def _arrays(self, role: str, batches: Iterable[Any], skip: int, check: bool) -> Iterator[NDArray[Any]]:
        """The only column of the batches, without the first ``skip`` rows."""
        row = 0
        for batch in batches:
            column, skip = batch.column(0)[skip:], max(0, skip - len(batch))
            if role == "key" and check:
                if column.null_count:
                    missing = row + int(np.argmax(_numpy(column.is_null())))
                    raise ConfigError(f"key is missing in row {missing}")
                column.validate(full=True)  # strings are UTF-8
            if role != "key":
                yield _numpy(column)
            elif self.kinds["key"] != "S":
                yield key_ids(_numpy(column))
            elif check:
                yield np.zeros(len(column), np.int8)
            else:
                # Only the distinct strings become Python objects.
                coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
                yield key_ids(_numpy(coded.dictionary))[_numpy(coded.indices)]
            row += len(batch)


def _numpy(column: Any) -> NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False))


class _Parquet(_Arrow):
    """A .parquet, read by row groups, or a folder of them: one after the other in the order of their names.

    Such folders are what Spark writes. Numbers in names count as numbers, so that part 100000 follows part
    99999; names that begin with a point or an underscore are not parts.
    """

    def _open(self, path: Path) -> Any:
        # Buffering ahead would keep every row group read so far.
        return _pyarrow().parquet.ParquetFile(path, pre_buffer=False)

    def _parts(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        found = [path for path in self.path.glob("*.parquet") if path.name[0] not in "._"]
        if not found:
            raise ConfigError("the folder has no .parquet file")
        return sorted(found, key=lambda path: re.sub(r"\d+", lambda number: number[0].zfill(20), path.name))

    def _schema(self) -> dict[str, Any]:
        self._groups: list[tuple[Path, int, int]] = []  # part, number within it, rows
        schema: dict[str, Any] = {}
        for path in self._parts():
            with self._open(path) as file:
                found = {field.name: field.type for field in file.schema_arrow}
                groups = range(file.num_row_groups)
                self._groups += [(path, group, file.metadata.row_group(group).num_rows) for group in groups]
            if schema and found != schema:
                raise ConfigError(f"{path.name} has other columns than the parts before it")
            schema = found
        self.rows = sum(rows for _, _, rows in self._groups)
        return schema

    def pieces(self, role: str, start: int, check: bool = False) -> Iterator[NDArray[Any]]:
        first = 0
        while first < len(self._groups) and start >= (rows := self._groups[first][2]):
            first, start = first + 1, start - rows
        yield from self._arrays(role, self._batches(role, first), start, check)

    def _batches(self, role: str, first: int) -> Iterator[Any]:
        """Batches of a column from row group ``first`` on, of all that there are."""
        for path, groups in itertools.groupby(self._groups[first:], key=operator.itemgetter(0)):
            numbers = [number for _, number, _ in groups]
            with self._open(path) as file:
                yield from file.iter_batches(PIECE // 4, numbers, [self.columns[role]], use_threads=False)


class _Csv(_Arrow):
    """A .csv, whose types hold for the whole file: Arrow's reader alone would go by the first block."""

    def _reader(self, types: dict[str, Any]) -> Any:
        csv = _pyarrow().csv
        return csv.open_csv(
            self.path,
            read_options=csv.ReadOptions(block_size=PIECE),
            convert_options=csv.ConvertOptions(include_columns=list(types), column_types=types),
        )

    def _schema(self) -> dict[str, Any]:
        with self._reader({}) as reader:
            return {field.name: field.type for field in reader.schema}

    def _count(self) -> None:
        pa = _pyarrow()
        # Numbers and timestamps show in the first block, but a later one may have more digits.
        for role in self.types.keys() - {"key"}:
            kind = self._kind(self.types[role])
            if kind == "M":
                self.types[role] = pa.timestamp("ns", getattr(self.types[role], "tz", None))
            elif kind in "if" or self.types[role] == pa.null():
                self.types[role] = pa.float64()
        for self.types["key"] in (pa.int64(), pa.float64(), pa.string()):
            try:
                with self._reader({self.columns["key"]: self.types["key"]}) as reader:
                    self.rows = sum(map(len, reader))
                break
            except pa.ArrowInvalid:
                if self.types["key"] == pa.string():
                    raise

    def pieces(self, role: str, start: int, check: bool = False) -> Iterator[NDArray[Any]]:
        with self._reader({self.columns[role]: self.types[role]}) as reader:
            yield from self._arrays(role, reader, start, check)


FORMATS = {".npz": _Npz, ".parquet": _Parquet, ".csv": _Csv}
