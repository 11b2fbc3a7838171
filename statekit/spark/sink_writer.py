"""Write the outputs of an epoch to sinks with Spark."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame, SparkSession

from statekit.errors import RestoreError, StateTypeError, StorageError
from statekit.sinks import Callback, Parquet, Sink, Writer

_PUBLISHED = re.compile(r"epoch-(\d{20})-")


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


@dataclass(frozen=True)
class Attempt:
    """One run's attempt at an epoch, as far as a sink has to know it.

    Parameters:
        epoch: its number, the same when it is replayed.
        writer: the run; keeps staged files of different runs apart.
        first: whether it is the run's first epoch, which a run before it may have begun.
        taken_back: epochs that have no part in the outputs, as ranges of numbers, first and last.
        check_owner: raises FencedError if another run has committed the epoch.
    """

    epoch: int
    writer: str
    first: bool
    taken_back: tuple[tuple[int, int], ...]
    check_owner: Callable[[], None]


def write(df: DataFrame, sink: Sink, attempt: Attempt) -> None:
    """Write an epoch's output."""
    attempt.check_owner()
    match sink:
        case Callback(fn):
            fn(df, attempt.epoch)
        case Writer(format_, mode, options):
            df.write.format(format_).mode(mode).options(**options).save()
        case Parquet(path):
            _ParquetEpoch(df.sparkSession, path, attempt).write(df)


class _ParquetEpoch:
    """One epoch in a Parquet directory: staged, then moved into place by number."""

    def __init__(self, spark: SparkSession, path: str, attempt: Attempt) -> None:
        jvm: Any = spark._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()
        self._files = self._path_of(path).getFileSystem(configuration)
        self._home = self._files.makeQualified(self._path_of(path))
        self._drafts = self._path_of(self._home, "_statekit")
        self._attempt = attempt
        self._prefix = f"epoch-{attempt.epoch:020d}-"
        self._staging = f"{path}/_statekit/{self._prefix}{attempt.writer}"

    def write(self, df: DataFrame) -> None:
        if self._attempt.first:
            self._check_no_later_epoch()
            # Drafts of this very epoch may be those of another run that is about to be fenced.
            self._remove(self._drafts, lambda name: name < self._prefix)
        with _microseconds(df.sparkSession):
            df.write.mode("overwrite").parquet(self._staging)
        self._attempt.check_owner()  # from here on, what another run has moved is replaced
        if self._attempt.first:
            self._remove(self._home, self._is_to_go)
        self._publish(self._staged())

    def _check_no_later_epoch(self) -> None:
        """Make sure that the directory holds no output of another checkpoint."""
        if not self._files.exists(self._home):
            return
        names = [status.getPath().getName() for status in self._files.listStatus(self._home)]
        later = max((name for name in names if name.startswith("epoch-")), default="")
        if later[: len(self._prefix)] > self._prefix:
            raise RestoreError(
                f"{self._home} holds {later}, which is later than epoch {self._attempt.epoch} of "
                "this checkpoint: it was written by a job with another checkpoint. Choose an empty "
                "directory, or empty this one"
            )

    def _is_to_go(self, name: str) -> bool:
        """Whether a file is of an earlier attempt at this epoch, or of one that was rolled back."""
        match = _PUBLISHED.match(name)
        if match is None:
            return False
        epoch = int(match[1])
        taken_back = self._attempt.taken_back
        return epoch == self._attempt.epoch or any(a <= epoch <= b for a, b in taken_back)

    def _remove(self, directory: Any, wanted: Callable[[str], bool]) -> None:
        """Remove what killed runs left in a directory."""
        if self._files.exists(directory):
            for status in self._files.listStatus(directory):
                if wanted(status.getPath().getName()):
                    self._files.delete(status.getPath(), True)

    def _staged(self) -> list[Any]:
        """The data files that were staged, in order of their names."""
        listed = self._files.listStatus(self._path_of(self._staging))
        paths = [status.getPath() for status in listed if status.isFile()]
        parts = [path for path in paths if path.getName()[0] not in "._"]
        return sorted(parts, key=lambda part: part.getName())

    def _publish(self, parts: list[Any]) -> None:
        """Move staged files to where readers look."""
        moved = []
        for number, part in enumerate(parts):
            target = self._path_of(self._home, f"{self._prefix}{number:05d}.parquet")
            if not self._files.rename(part, target):
                raise StorageError(
                    f"cannot move {part} to {target}: check that the output directory may be "
                    "written, then start the job again; the epoch is written once more"
                )
            moved.append(target)
        self._files.delete(self._path_of(self._staging), True)
        _sync([*moved, self._home])


@contextlib.contextmanager
def _microseconds(spark: SparkSession) -> Iterator[None]:
    """Write timestamps as other tools read them, unless the user chose a type.

    Spark's default, INT96, has no time zone: pyarrow and others take it for local time.
    """
    name = "spark.sql.parquet.outputTimestampType"
    chosen = spark.conf.get(name)
    if chosen != "INT96":
        yield
        return
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(name, chosen)


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
