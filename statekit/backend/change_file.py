"""A change file that is being written: its bytes are spooled on the local disk, then stored."""

from __future__ import annotations

import contextlib
import tempfile
from typing import IO, cast

from statekit.backend.mutation import Batch, ChangeFileWriter
from statekit.errors import StorageError

# Change files up to this size are assembled in memory.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024


class Changes:
    """A change file that is being written. Nothing is created before the first mutation."""

    def __init__(self, states: tuple[str, ...]) -> None:
        self._states = states
        self._file: IO[bytes] | None = None
        self._writer: ChangeFileWriter | None = None
        self.bytes = 0
        """Bytes of keys and values."""

    def append(self, batch: Batch) -> None:
        try:
            if self._writer is None:
                spool = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - see drop()
                    max_size=_SPOOL_BYTES_MAX
                )
                self._file = cast("IO[bytes]", spool)
                self._writer = ChangeFileWriter(self._file, self._states)
            self._writer.append(batch)
            self.bytes += batch.size_bytes
        except OSError as error:
            raise _unwritable(error) from error

    def finish(self) -> tuple[IO[bytes], int] | None:
        """Return the complete file and its number of mutations; None if there are no mutations."""
        if self._writer is None or self._file is None:
            return None
        try:
            self._writer.close()
        except OSError as error:
            raise _unwritable(error) from error
        return self._file, self._writer.rows

    def drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _unwritable(error: OSError) -> StorageError:
    return StorageError(
        f"cannot write a change file to {tempfile.gettempdir()}: {error}. Nothing committed is "
        "lost: make space there or set TMPDIR, then start the job again"
    )
