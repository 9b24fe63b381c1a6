"""Files wherever Spark can reach them: local disks, HDFS, object stores."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from dalton.envs.errors import ConfigError


class Files:
    """Hadoop's file systems, as the session is configured for them."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark  # the gateway to the JVM is untyped
        self._path = java._jvm.org.apache.hadoop.fs.Path
        self._conf = java._jsc.hadoopConfiguration()

    def _at(self, path: str) -> tuple[Any, Any]:
        """The file system of a path, and the path in it."""
        try:
            place = self._path(path)
            return place.getFileSystem(self._conf), place
        except Exception as error:  # a scheme that Hadoop does not know, an empty name
            reason = str(error).strip().splitlines()[-1]
            raise ConfigError(f"path = {path!r}: not a path that Spark can use ({reason})") from None

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        system, place = self._at(path)
        return bool(system.exists(place))

    def check_found(self, field: str, pattern: str) -> str:
        """Return a path or pattern if it leads to a file, or to a folder with something in it."""
        system, place = self._at(pattern)
        found = system.globStatus(place)
        if not found:
            raise ConfigError(f"{field} = {pattern!r}: no such file or folder")
        if all(entry.isDirectory() and not system.listStatus(entry.getPath()) for entry in found):
            raise ConfigError(f"{field} = {pattern!r}: the folder is empty")
        return pattern

    def write(self, path: str, text: str) -> None:
        """Write a small file."""
        system, place = self._at(path)
        stream = system.create(place, True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def delete(self, path: str) -> None:
        """Delete a file or folder, if it is there."""
        system, place = self._at(path)
        system.delete(place, True)

    def _move(self, old: str, new: str) -> None:
        system, place = self._at(old)
        if not system.rename(place, self._path(new)):
            raise OSError(f"cannot rename {old} to {new}")

    @contextmanager
    def new_folder(self, path: str, overwrite: bool) -> Iterator[str]:
        """A folder that appears under its name when it is complete; an older one is kept until then."""
        if self.exists(path) and not overwrite:
            raise ConfigError(f"out = {path!r}: is there already; give another folder, or overwrite")
        place = self._path(path)
        beside = str(
            self._path(place.getParent() or self._path("."), f".{place.getName()}.{uuid.uuid4().hex}")
        )
        try:
            yield beside
            if self.exists(path):
                self._move(path, f"{beside}.old")
            self._move(beside, path)
        finally:
            self.delete(beside)
            if self.exists(path):
                self.delete(f"{beside}.old")
