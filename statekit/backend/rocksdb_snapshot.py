"""Snapshots: rows of a RocksDB database at one point in time, while the database is written.

Facts of rocksdict that shape this file:

- A snapshot reads single rows as they were. But an iterator of a snapshot shows the rows as they
  are when the iterator is created. So iterators are created together with the snapshot. They keep
  showing the rows of that moment, also when they seek.
- A snapshot has no call for many rows, and raises a bare exception for an absent row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import rocksdict

from statekit.backend.interface import Rows, unknown_state, used_after_close
from statekit.errors import StatekitError

# The only way in which rocksdict says that a snapshot has no row at a key.
_ABSENT = "key not found"

# A scan reads so many rows at first, and then more and more at a time.
_FIRST_ROWS = 16
_ROWS_MAX = 1_024

Failure = Callable[[str, Exception], StatekitError]
"""Returns the error for an exception of RocksDB during an action, such as "read"."""


PointGetter = Callable[[bytes], bytes | None]
"""Returns the row of a key; None if there is none."""


class FrozenState(NamedTuple):
    """The rows of one state at one point in time.

    Parameters:
        snapshot: for single rows.
        rows: for scans. One scan at a time may use it, so a scan seeks again after some rows.
        lock: held while a scan uses `rows`.
    """

    snapshot: rocksdict.Snapshot
    rows: rocksdict.RdictIter
    lock: Lock

    @classmethod
    def of(cls, family: rocksdict.Rdict) -> FrozenState:
        """Return the rows of a column family at this point in time."""
        return cls(family.snapshot(), family.iter(), Lock())


class RocksSnapshot:
    """The rows of a database at the time of its creation.

    A snapshot keeps RocksDB from removing the versions of rows that it shows. It stays readable
    after the database was closed, and keeps the lock of the database until it is closed too.

    Parameters:
        states: of each state, all created while nothing was written.
        failure: returns the error for an exception of RocksDB.
    """

    def __init__(self, states: Mapping[str, FrozenState], failure: Failure) -> None:
        self._states = dict(states)
        self._failure = failure
        self._closed = False

    def get(self, state: str, key: bytes) -> bytes | None:
        snapshot = self._state(state).snapshot
        try:
            return snapshot[key]
        except Exception as error:
            if str(error) == _ABSENT:
                return None
            raise self._failure("read", error) from error

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(state, key) for key in keys]

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        count = _FIRST_ROWS
        while True:
            rows = self._some(self._state(state), start, end, count, reverse)
            yield from rows
            if len(rows) < count:
                return
            if reverse:
                end = rows[-1][0]
            else:
                start = rows[-1][0] + b"\x00"
            count = min(4 * count, _ROWS_MAX)

    def _some(
        self, frozen: FrozenState, start: bytes, end: bytes, count: int, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        """Return the first rows with `start <= key < end`, at most `count`."""
        with frozen.lock:
            rows = frozen.rows
            try:
                found = _found(rows, start, end, count, reverse=reverse)
                # At an unreadable block an iterator ends as if there were no more rows.
                if len(found) < count:
                    rows.status()
            except Exception as error:
                raise self._failure("read", error) from error
            return found

    def close(self) -> None:
        self._closed = True
        self._states.clear()

    def _state(self, state: str) -> FrozenState:
        frozen = self._states.get(state)
        if frozen is None:
            if self._closed:
                raise used_after_close()
            raise unknown_state(state, self._states)
        return frozen


def _found(
    rows: rocksdict.RdictIter, start: bytes, end: bytes, count: int, *, reverse: bool
) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    if reverse:
        rows.seek_for_prev(end)
    else:
        rows.seek(start)
    step = rows.prev if reverse else rows.next
    while len(found) < count and rows.valid() and start <= (key := rows.key()) <= end:
        if key != end:
            found.append((key, rows.value()))
        step()
    return found
