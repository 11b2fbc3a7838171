"""Sinks, carried out by Spark.

What lives here: how an epoch's output reaches each kind of sink. What does not: the description of
sinks (`statekit.sinks`) and the order of effects (`epoch`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame, SparkSession

from statekit.errors import StateTypeError, StorageError
from statekit.sinks import Callback, Parquet, Sink, Writer

__all__ = ["as_sink", "write"]


def as_sink(name: str, given: object) -> Sink:
    """A sink from what the user gave: a description, or just a function `(df, epoch)`."""
    if isinstance(given, Parquet | Writer | Callback):
        return given
    if callable(given):
        return Callback(given)
    raise StateTypeError(
        f"outputs[{name!r}] is {given!r}: give sinks.parquet(path), sinks.writer(format), or a "
        "function (df, epoch)"
    )


def write(df: DataFrame, sink: Sink, epoch: int, writer: str) -> None:
    """Write an epoch's output.

    Parameters:
        epoch: its number, the same when it is replayed.
        writer: the run that writes; keeps staged files of different runs apart.
    """
    match sink:
        case Callback(fn):
            fn(df, epoch)
        case Writer(format_, mode, options):
            df.write.format(format_).mode(mode).options(**options).save()
        case Parquet(path):
            _ParquetEpoch(df.sparkSession, path, epoch, writer).write(df)


class _ParquetEpoch:
    """One epoch in a Parquet directory: staged, then moved into place by number."""

    def __init__(self, spark: SparkSession, path: str, epoch: int, writer: str) -> None:
        jvm: Any = spark._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._home = self._path_of(path)
        configuration = spark._jsc.hadoopConfiguration()
        self._files = self._home.getFileSystem(configuration)
        self._prefix = f"epoch-{epoch:020d}-"
        self._staging = f"{path}/_statekit/{self._prefix}{writer}"

    def write(self, df: DataFrame) -> None:
        df.write.mode("overwrite").parquet(self._staging)
        staged = self._path_of(self._staging)
        for status in self._list(self._home):
            if status.getPath().getName().startswith(self._prefix):
                self._files.delete(status.getPath(), False)
        parts = [s.getPath() for s in self._list(staged) if s.getPath().getName()[0] not in "._"]
        moved = []
        for number, part in enumerate(sorted(parts, key=lambda part: part.getName())):
            target = self._path_of(self._home, f"{self._prefix}{number:05d}.parquet")
            if not self._files.rename(part, target):
                raise StorageError(
                    f"cannot move {part} to {target}: check that the output directory may be "
                    "written, then start the job again; the epoch is written once more"
                )
            moved.append(target)
        self._files.delete(staged, True)
        _sync([*moved, self._home])

    def _list(self, directory: Any) -> list[Any]:
        return [s for s in self._files.listStatus(directory) if s.isFile()]


def _sync(targets: list[Any]) -> None:
    """On a local disk, make files survive a power loss: the commit that follows relies on them."""
    for target in targets:
        parsed = urlparse(target.toUri().toString())
        if parsed.scheme not in ("", "file"):
            return
        descriptor = os.open(Path(unquote(parsed.path)), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
