"""`sinks.parquet`: Parquet files, with each epoch exactly once."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from statekit.errors import RestoreError, StorageError
from statekit.sinks.sink import Attempt, Sink

_PUBLISHED = re.compile(r"epoch-(\d{20})-")


@dataclass(frozen=True)
class Parquet(Sink):
    """Parquet files under `path`, with each epoch exactly once. See `parquet`."""

    path: str

    @property
    def directory(self) -> str:
        return self.path.rstrip("/")

    @property
    def is_concurrent(self) -> bool:
        return True

    def write(self, df: Any, attempt: Attempt) -> None:
        _ParquetEpoch(df.sparkSession, self.path, attempt).write(df)


def parquet(path: object) -> Parquet:
    """Return a sink that writes Parquet files, with each epoch exactly once.

    An epoch's files are staged, then moved to `epoch-<number>-<part>.parquet`. Files that an
    earlier attempt at the same epoch left are replaced. Files of epochs that were rolled back are
    removed before the next epoch is written. Readers that list the directory between two moves can
    see a part of an epoch. Each sink needs a directory of its own. If two runs write to one
    checkpoint, one of them is refused before it moves files, unless both start to move at the same
    moment.

    >>> parquet("/data/turnarounds")
    Parquet(path='/data/turnarounds')
    """
    return Parquet(str(path))


class _ParquetEpoch:
    """One epoch in a Parquet directory. Its files are staged, then moved into place by number."""

    def __init__(self, spark: Any, path: str, attempt: Attempt) -> None:
        jvm = spark._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()
        self._files = self._path_of(path).getFileSystem(configuration)
        self._directory = self._files.makeQualified(self._path_of(path))
        self._staged_epochs = self._path_of(self._directory, "_statekit")
        self._attempt = attempt
        self._prefix = f"epoch-{attempt.epoch:020d}-"
        self._staging = f"{path}/_statekit/{self._prefix}{attempt.writer}"

    def write(self, df: Any) -> None:
        if self._attempt.is_first:
            self._check_no_later_epoch()
            # Staged files of this very epoch may belong to another run that is about to be fenced.
            self._remove(self._staged_epochs, lambda name: name < self._prefix)
        with _microseconds.of(df.sparkSession):
            df.write.mode("overwrite").parquet(self._staging)
        self._attempt.check_owner()  # from here on, files that another run has moved are replaced
        if self._attempt.is_first:
            self._remove(self._directory, self._is_obsolete)
        self._publish(self._staged_files())

    def _check_no_later_epoch(self) -> None:
        """Check that the directory contains no output of another checkpoint."""
        if not self._files.exists(self._directory):
            return
        names = [status.getPath().getName() for status in self._files.listStatus(self._directory)]
        later = max((name for name in names if name.startswith("epoch-")), default="")
        if later[: len(self._prefix)] > self._prefix:
            raise RestoreError(
                f"{self._directory} contains {later}, which is later than epoch "
                f"{self._attempt.epoch} of this checkpoint: it was written by a job with another "
                "checkpoint. Choose an empty directory, or empty this one"
            )

    def _is_obsolete(self, name: str) -> bool:
        """Return whether a file belongs to an earlier attempt at this epoch, or to an epoch that
        was rolled back.
        """
        match = _PUBLISHED.match(name)
        if match is None:
            return False
        epoch = int(match[1])
        obsolete = ((self._attempt.epoch, self._attempt.epoch), *self._attempt.without_outputs)
        return any(first <= epoch <= last for first, last in obsolete)

    def _remove(self, directory: Any, wanted: Callable[[str], bool]) -> None:
        """Remove the files of killed runs in a directory."""
        if self._files.exists(directory):
            for status in self._files.listStatus(directory):
                if wanted(status.getPath().getName()):
                    self._files.delete(status.getPath(), True)

    def _staged_files(self) -> list[Any]:
        """Return the paths of the staged data files, sorted by name."""
        listed = self._files.listStatus(self._path_of(self._staging))
        paths = [status.getPath() for status in listed if status.isFile()]
        parts = [path for path in paths if path.getName()[0] not in "._"]
        return sorted(parts, key=lambda part: part.getName())

    def _publish(self, parts: list[Any]) -> None:
        moved = []
        for number, part in enumerate(parts):
            target = self._path_of(self._directory, f"{self._prefix}{number:05d}.parquet")
            if not self._files.rename(part, target):
                raise StorageError(
                    f"cannot move {part} to {target}: check that the output directory may be "
                    "written, then start the job again; the epoch is written once more"
                )
            moved.append(target)
        self._files.delete(self._path_of(self._staging), True)
        _sync([*moved, self._directory])


class _Microseconds:
    """Writes timestamps in microseconds, unless the user has chosen another type.

    Spark's default, INT96, has no time zone: pyarrow and other tools read it as local time. It is a
    setting of the session, and several sinks may write at the same time.
    """

    _NAME = "spark.sql.parquet.outputTimestampType"
    _DEFAULT = "INT96"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, spark: Any) -> Iterator[None]:
        """Change the setting of a session until the last writer of the session has finished."""
        session = str(spark._jsparkSession.sessionUUID())
        with self._lock:
            if self._writers[session] or spark.conf.get(self._NAME) == self._DEFAULT:
                self._writers[session] += 1
                spark.conf.set(self._NAME, "TIMESTAMP_MICROS")
            is_changed = self._writers[session] > 0
        try:
            yield
        finally:
            with self._lock:
                if is_changed:
                    self._writers[session] -= 1
                    if not self._writers[session]:
                        del self._writers[session]
                        spark.conf.set(self._NAME, self._DEFAULT)


_microseconds = _Microseconds()


def _sync(targets: list[Any]) -> None:
    """Make files on a local disk durable before the epoch is committed."""
    for target in targets:
        uri = target.toUri()
        if uri.getScheme() not in (None, "file"):
            return
        descriptor = os.open(uri.getPath(), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
