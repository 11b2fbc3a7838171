"""Rows of a RocksDB database as they were at one moment, while the database is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import rocksdict

from statekit.backend.interface import Rows, unknown_state, used_after_close
from statekit.errors import StatekitError

# The only way in which rocksdict says that a snapshot has no row at a key.
_ABSENT = "key not found"

Failure = Callable[[str, Exception], StatekitError]
"""Returns the error for an exception of RocksDB while something was done, such as "read"."""


class FrozenRows(Protocol):
    """Rows per state that never change. Thread-safe."""

    def get(self, state: str, key: bytes) -> bytes | None:
        """Return the row at `key`, or None."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows at `keys`, in that order."""

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        """Return rows with `start <= key < end` in key order."""

    def close(self) -> None:
        """Release the rows. Further reads fail."""


class RocksSnapshot:
    """The rows of a database at the moment when it was created. See `FrozenRows`.

    A snapshot keeps RocksDB from removing the versions of rows that it shows. It stays readable
    after the database was closed, and keeps the lock of the database until it is closed too.

    Parameters:
        snapshots: of each state, all taken while nothing was written.
        failure: returns the error for an exception of RocksDB.
    """

    def __init__(self, snapshots: Mapping[str, rocksdict.Snapshot], failure: Failure) -> None:
        self._snapshots = dict(snapshots)
        self._failure = failure
        self._closed = False

    def get(self, state: str, key: bytes) -> bytes | None:
        snapshot = self._state(state)
        try:
            return snapshot[key]
        except Exception as error:  # noqa: BLE001 - rocksdict's are bare
            if str(error) == _ABSENT:
                return None
            raise self._failure("read", error) from error

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(state, key) for key in keys]

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        # An iterator at an unreadable block ends like one without more rows: see `RocksBackend`.
        rows = self._state(state).iter()
        rows.seek_for_prev(end) if reverse else rows.seek(start)
        if reverse and rows.valid() and rows.key() == end:
            rows.prev()
        advance = rows.prev if reverse else rows.next
        while rows.valid():
            key = rows.key()
            if key < start or key >= end:
                return
            yield key, rows.value()
            advance()
        try:
            rows.status()
        except Exception as error:
            raise self._failure("read", error) from error

    def close(self) -> None:
        self._closed = True
        self._snapshots.clear()

    def _state(self, state: str) -> rocksdict.Snapshot:
        snapshot = self._snapshots.get(state)
        if snapshot is None:
            if self._closed:
                raise used_after_close()
            raise unknown_state(state, self._snapshots)
        return snapshot
