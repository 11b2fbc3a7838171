"""`ListState`: an ordered list per key, one row per element."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import add
from typing import TypeVar, cast, overload

from statekit.backend.interface import Backend, Rows, prefix_end
from statekit.checkpoint.era import PERMANENT, UNWRITTEN
from statekit.checkpoint.state_kinds import STATE_KINDS
from statekit.codec.vectorized import numbered
from statekit.state import base
from statekit.state.base import ABSENT, ManyRowState, StateSpec
from statekit.state.key_scope import KeyScope
from statekit.state.ttl import Expiry
from statekit.state.undo_log import UndoDict, UndoLog

T = TypeVar("T")

# `update` adds so many elements at a time, and then checks whether to flush them.
_ADDED_MAX = 64


class ListState(ManyRowState, Sequence[T]):
    """An ordered list per key, with one row per element.

    Appending reads nothing. Reading streams, so a list of any length can be iterated. An iterator
    sees the list as it was when the iteration began. An empty list and no list are equal. None
    elements are refused unless T is Optional.

    Declare a parameter of a process function as one. Calls see the list of their key.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="user")
    ... def visits(page: dict, seen: sk.ListState[str]) -> Iterator[list[str]]:
    ...     seen.append(page["path"])
    ...     yield seen.get()
    >>> Harness(visits).send({"user": "ada", "path": "/"}, {"user": "ada", "path": "/buy"})
    [['/'], ['/', '/buy']]
    """

    # What was appended at this key and those before it: `_pending` has the rows, and `_prefixes` of
    # which key each is. Those of the key at `_at` begin at `_first`.
    __slots__ = (
        "_again",
        "_appended",
        "_at",
        "_first",
        "_pending",
        "_pending_bytes",
        "_position",
        "_prefixes",
        "_times",
    )

    kind = STATE_KINDS["list"]
    noted = (*ManyRowState.noted, "_at", "_first", "_pending_bytes")

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        self._pending: list[bytes] = []
        self._prefixes: list[bytes] = []
        self._at: bytes | None = None
        self._first = 0
        self._pending_bytes = 0
        # When each was appended, of a list that expires.
        self._times: list[int] = []
        # If reads restart the TTL: when stored elements were read, and by how many bytes their rows
        # have grown, because a row without a stamp got one.
        self._again: dict[bytes, tuple[int, int]] = {}
        # Running number of all elements that this shard appended in this epoch, for all keys:
        # it only grows, so positions within one key are in order of appending.
        self._appended = 0
        self._position = scope.epoch.to_bytes(6, "big")

    def take_undo_log(self, undo: UndoLog) -> None:
        super().take_undo_log(undo)
        undo.note(self._note_pending, self._restore_pending)
        self._again = UndoDict(undo)

    def _note_pending(self) -> tuple[list[bytes], list[bytes], list[int], int]:
        return self._pending, self._prefixes, self._times, len(self._pending)

    def _restore_pending(self, noted: tuple[list[bytes], list[bytes], list[int], int]) -> None:
        self._pending, self._prefixes, self._times, count = noted
        del self._pending[count:], self._prefixes[count:], self._times[count:]

    def append(self, value: T) -> None:
        """Add one element at the end.

        The value is encoded now. The row key (prefix, epoch, number) is made at the flush, in
        `_put_pending`.

        Raises:
            StateTypeError: the declared type does not allow the element.
        """
        row, scope, pending = self._row(value), self._scope, self._pending
        if self._at is not scope.prefix:
            self._begin()
        if self.expiry is not None:
            self._times.append(self.expiry.stamp(UNWRITTEN))
        pending.append(row)
        self._prefixes.append(scope.prefix)
        self._pending_bytes += len(row)
        if len(pending) >= base.PENDING_ROWS_MAX or self._pending_bytes >= base.PENDING_BYTES_MAX:
            self._spill()

    def _begin(self) -> None:
        """Start to append to the current key."""
        if not self._pending:
            self._scope.gathered.append(self._flush)
        self._at, self._first = self._scope.prefix, len(self._pending)

    def extend(self, values: Iterable[T]) -> None:
        """Add elements at the end, in order. If an element does not fit, the elements before it
        stay.

        Raises:
            StateTypeError: the declared type does not allow an element.
        """
        for value in values:
            self.append(value)

    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list. If an element does not fit, the list is unchanged.

        Raises:
            StateTypeError: the declared type does not allow an element.
        """
        rows = [self._row(value) for value in values]  # may be made from this very list
        self.clear()
        for start in range(0, len(rows), _ADDED_MAX):
            self._append_rows(rows[start : start + _ADDED_MAX])

    def _append_rows(self, rows: list[bytes]) -> None:
        scope = self._scope
        if self._at is not scope.prefix:
            self._begin()
        if self.expiry is not None:
            self._times += repeat(self.expiry.stamp(UNWRITTEN), len(rows))
        self._pending += rows
        self._prefixes += repeat(scope.prefix, len(rows))
        self._pending_bytes += sum(map(len, rows))
        self._make_room(len(self._pending), self._pending_bytes)

    def get(self) -> list[T]:
        """Return all elements as a Python list."""
        return list(iter(self))  # list(self) would ask for the length first, which is a scan

    def __iter__(self) -> Iterator[T]:
        return map(self._decode, chain(self._stored(for_reader=True), self._read_elements()))

    def __reversed__(self) -> Iterator[T]:
        stored = self._stored(reverse=True, for_reader=True)
        return map(self._decode, chain(self._read_elements(reverse=True), stored))

    def __len__(self) -> int:
        return sum(1 for _ in self._stored()) + len(self._pending_rows())

    def __bool__(self) -> bool:
        return bool(self._pending_rows()) or next(self._stored(), None) is not None

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._slice(index)
        rows = reversed(self) if index < 0 else iter(self)
        element = next(islice(rows, -index - 1 if index < 0 else index, None), ABSENT)
        if element is ABSENT:
            raise IndexError(f"{self._where()} has no element {index}")
        return cast("T", element)

    def index(self, value: object, start: int = 0, stop: int = sys.maxsize) -> int:
        """Return the first position of an element that equals `value`. Reads the list once."""
        return self.get().index(cast("T", value), start, stop)

    def _slice(self, index: slice) -> list[T]:
        parts = (index.start, index.stop, index.step)
        if any(part is not None and part < 0 for part in parts):
            return self.get()[index]
        return list(islice(iter(self), index.start, index.stop, index.step))

    def __repr__(self) -> str:
        return f"ListState({self.get()!r})"

    def _stored(self, *, reverse: bool = False, for_reader: bool = False) -> Iterator[bytes]:
        """Yield the encoded elements in the backend."""
        return self._values_of(self._stored_rows(reverse=reverse), for_reader=for_reader)

    def _values_of(self, rows: Rows, *, for_reader: bool = False) -> Iterator[bytes]:
        """Yield the encoded elements of stored rows."""
        expiry = self.expiry
        if expiry is None:
            return (row for _, row in rows)
        return self._unexpired(rows, expiry, refresh=for_reader and expiry.refreshes)

    def _unexpired(self, rows: Rows, expiry: Expiry, *, refresh: bool) -> Iterator[bytes]:
        prefix = self._scope.prefix
        for row_key, row in rows:
            value, written = expiry.split(row)
            written, _ = self._again.get(row_key, (written, 0))
            if expiry.is_over(written):
                continue
            if refresh and written != PERMANENT and self._scope.prefix == prefix:
                self._refresh(row_key, row, value, written, expiry)
            yield value

    def _refresh(
        self, row_key: bytes, row: bytes, value: bytes, before: int, expiry: Expiry
    ) -> None:
        """Restart the TTL of an element that was read, unless it was removed in the meantime."""
        written = expiry.stamp(before)
        scope = self._scope
        if written == before or self._cleared is scope.prefix:
            return
        if self._backend.get(self._name, row_key) != row:
            return
        if not self._again:
            scope.gathered.append(self._flush)
        stamped = expiry.row(row_key, value, before, written)
        _, had_grown = self._again.get(row_key, (before, 0))
        grown = len(stamped) - len(row)
        self.bytes_added += grown - had_grown
        self._again[row_key] = written, grown
        scope.batch.put(self._name, row_key, stamped)
        if scope.batch.full or len(self._again) >= base.PENDING_ROWS_MAX:
            self._spill()

    def _restarted(self, rows: Rows, expiry: Expiry) -> Iterator[bytes]:
        """Yield the encoded elements of stored rows. Restart the TTL of each when it is read, also
        at another key.
        """
        for row_key, row in rows:
            value, before = expiry.split(row)
            if expiry.is_over(before):
                continue
            written = expiry.stamp(before)
            if before not in (PERMANENT, written):
                stamped = expiry.row(row_key, value, before, written)
                self.bytes_added += len(stamped) - len(row)
                self._scope.batch.put(self._name, row_key, stamped)
            yield value

    def _counted(self, row_key: bytes, row: bytes) -> int:
        _, grown = self._again.get(row_key, (UNWRITTEN, 0))
        return len(row_key) + len(row) + grown

    def _pending_rows(self) -> list[bytes]:
        """Return the pending elements in encoded form."""
        if self._at is not self._scope.prefix:
            return []
        expiry, rows = self.expiry, self._pending[self._first :]
        if expiry is None:
            return rows
        timed_rows = zip(rows, self._times[self._first :], strict=True)
        return [row for row, written in timed_rows if not expiry.is_over(written)]

    def _read_elements(self, *, reverse: bool = False) -> Iterable[bytes]:
        """Yield the encoded elements to a reader, one by one."""
        expiry = self.expiry
        if expiry is None or not expiry.refreshes:
            pending = self._pending_rows()
            return pending[::-1] if reverse else pending
        if self._at is not self._scope.prefix:
            return ()
        places = range(self._first, len(self._pending))
        if reverse:
            places = places[::-1]
        return _refreshed(self._pending, self._times, places, expiry, self._scope.undo)

    def _flush(self) -> None:
        if self._pending:
            self._put_pending()
        self._pending = []
        self._prefixes = []
        self._times = []
        self._again.clear()
        self._pending_bytes = 0
        self._at = None

    def _put_pending(self) -> None:
        rows, count = self._pending, len(self._pending)
        positions = numbered(self._position, self._appended, count)
        self._appended += count
        row_keys = list(map(add, self._prefixes, positions))
        if self.expiry is not None:
            rows = self.expiry.rows(row_keys, rows, repeat(UNWRITTEN), self._times)
        self.rows_added += count
        self.bytes_added += self._scope.batch.put_all(self._name, row_keys, rows)

    def add_all(self, prefixes: Sequence[bytes], lists: Sequence[Sequence[T]]) -> list[list[T]]:
        """Append to the lists of many keys, and return the complete list of each key.

        Nothing is cached: stored elements are read, and the new ones are added to the batch at
        once.

        Parameters:
            prefixes: of the keys, each once.
            lists: what is appended to each.

        Raises:
            StateTypeError: the declared type does not allow an element.
        """
        found: list[list[T]] = []
        for prefix, values in zip(prefixes, lists, strict=True):
            rows = list(map(self._row, values))
            stored = self._backend.scan(self._name, prefix, prefix_end(prefix))
            held = self._values_of(stored)
            if self.expiry is not None and self.expiry.refreshes:
                held = self._restarted(stored, self.expiry)
            found.append(list(map(self._decode, chain(held, rows))))
            self._pending += rows
            self._prefixes += repeat(prefix, len(rows))
            if self.expiry is not None:
                self._times += repeat(self.expiry.stamp(UNWRITTEN), len(rows))
        self._flush()
        return found

    def _drop_pending(self) -> None:
        if self._at is not self._scope.prefix:
            return
        first = self._first
        self._pending_bytes -= sum(map(len, self._pending[first:]))
        if self.expiry is None and self._scope.undo is None:
            del self._prefixes[first:], self._pending[first:]
        else:  # an iterator keeps the lists as they were, and a failed call gets them back
            self._prefixes = self._prefixes[:first]
            self._pending, self._times = self._pending[:first], self._times[:first]


def _refreshed(
    rows: list[bytes], times: list[int], places: range, expiry: Expiry, undo: UndoLog | None
) -> Iterator[bytes]:
    """Yield elements at some positions. Restart the TTL of each when it is read."""
    for place in places:
        if not expiry.is_over(times[place]):
            if undo is not None:
                undo.add(times.__setitem__, place, times[place])
            times[place] = expiry.stamp(times[place])
            yield rows[place]
