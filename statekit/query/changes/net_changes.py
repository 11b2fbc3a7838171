"""Net changes: the result of several mutations of the same rows.

In an epoch a row may be written more than once: a full batch is written to the change file in the
middle of the epoch. The net changes of a state in an epoch are ranges that were cleared, and after
that each changed row once, with its last value or as deleted. They are gathered in a backend:

    cleared   first row key of the range  → row key after the range
    row       row key                     → 01 + row, or 00 if the row was deleted
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from statekit.backend.interface import Backend, MemoryBackend
from statekit.backend.mutation import DELETE, PUT, Batch, in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.closing import Closing

# Mutations up to this number are gathered in memory, more of them on the local disk.
IN_MEMORY_MAX = 100_000

_CLEARED, _ROW = "cleared", "row"
_PUT, _DELETED = b"\x01", b"\x00"
_EVERYTHING = (b"", b"\xff" * 3)
"""Bounds of all row keys: they start with a key group below 0x8000."""


class NetChanges(Closing):
    """The net changes of one state, from change files in order. Close it after use.

    Parameters:
        repository: the checkpoint.
        refs: the change files, in the order in which they are applied.
        state: the state's name.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        StorageError: the local disk is full.
    """

    def __init__(self, repository: Repository, refs: Sequence[FileRef], state: str) -> None:
        self._closing = contextlib.ExitStack()
        self._backend: Backend = MemoryBackend([_CLEARED, _ROW])
        try:
            if sum(ref.rows for ref in refs) > IN_MEMORY_MAX:
                place = self._closing.enter_context(scratch_directory("changes"))
                self._backend = RocksBackend(place, [_CLEARED, _ROW])
                self._closing.callback(self._backend.close)
            for ref in refs:
                for batch in repository.batches(ref):
                    self._add(batch, state)
        except BaseException:
            self.close()
            raise

    def _add(self, mutations: Batch, state: str) -> None:
        batch = Batch()
        for name, op, key, value in mutations.rows():
            if name != state:
                continue
            if op == DELETE or value is None:
                batch.put(_ROW, key, _DELETED)
            elif op == PUT:
                batch.put(_ROW, key, _PUT + value)
            else:
                batch.delete_range(_ROW, key, value)
                batch.put(_CLEARED, key, value)
        self._backend.write(batch)

    @property
    def cleared(self) -> Iterator[tuple[bytes, bytes]]:
        """Ranges that were cleared before the rows were written, in order: the first row key, and
        the row key after the range.
        """
        return self._backend.scan(_CLEARED, *_EVERYTHING)

    @property
    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Changed rows in order: the row key, and the row, or None if it was deleted."""
        return (
            (key, None if row[:1] == _DELETED else row[1:])
            for key, row in self._backend.scan(_ROW, *_EVERYTHING)
        )

    def touch(self, row_keys: Iterable[bytes]) -> None:
        """Add rows to the changed ones, as deleted, except those that are changed already."""
        unchanged = (key for key in row_keys if self._backend.get(_ROW, key) is None)
        for batch in in_batches((_ROW, key, _DELETED) for key in unchanged):
            self._backend.write(batch)

    def close(self) -> None:
        """Release the memory and remove the files on the local disk."""
        self._closing.close()


def joined(
    before: Iterable[tuple[bytes, bytes]], after: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Merge rows of two states, in order: yield the row key, the row before, and the row after.

    >>> list(joined([(b"1", b"x"), (b"2", b"y")], [(b"2", b"z"), (b"3", b"")]))
    [(b'1', b'x', None), (b'2', b'y', b'z'), (b'3', None, b'')]
    """
    rows_before, rows_after = iter(before), iter(after)
    left, right = next(rows_before, None), next(rows_after, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None, "else no row would be left"
            yield left[0], left[1], None
            left = next(rows_before, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(rows_after, None)
        else:
            yield left[0], left[1], right[1]
            left, right = next(rows_before, None), next(rows_after, None)
