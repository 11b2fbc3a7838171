"""The log of a job: the output of its processes, in two files of a bounded size."""

from __future__ import annotations

import threading
from pathlib import Path

from statekit.closing import Closing

LOG_BYTES = 1 << 20
"""The size at which a log is rotated, in bytes. One file before it is kept."""


class JobLog(Closing):
    """The log of a job.

    Parameters:
        directory: of the files `log` and `log.1`, which exists.
        most_bytes: the size at which the log is rotated, in bytes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with JobLog(Path(directory), most_bytes=8) as log:
    ...         for line in (b"one", b"two", b"three"):
    ...             log.write(line + b"\\n")
    ...     last_lines(Path(directory), 2)
    ['two', 'three']
    """

    def __init__(self, directory: Path, most_bytes: int = LOG_BYTES) -> None:
        self._path, self._most_bytes = directory / "log", most_bytes
        self._file = self._path.open("ab")
        self._lock = threading.Lock()

    def write(self, line: bytes) -> None:
        """Append a line."""
        with self._lock:
            if self._file.closed:
                return
            if self._file.tell() and self._file.tell() + len(line) > self._most_bytes:
                self._file.close()
                self._path.replace(self._path.with_name("log.1"))
                self._file = self._path.open("ab")
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


def last_lines(directory: Path, lines: int) -> list[str]:
    """Return the last lines of the log in a directory; none if it does not exist."""
    found: list[bytes] = []
    for name in ("log", "log.1"):
        if len(found) < lines:
            try:
                found = (directory / name).read_bytes().splitlines() + found
            except FileNotFoundError:
                continue
    return [line.decode(errors="replace") for line in found[-lines:]]
