"""The row cache: rows of a state that were read or changed since the last flush.

A row is read on its first use. It stays in the cache until the next flush, which follows after some
hundred keys. The flush encodes and counts all changed rows together, which takes a fraction of the
time of single rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from statekit.backend.interface import Backend, RowReads, Rows
from statekit.checkpoint.era import PERMANENT, UNWRITTEN
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.keygroup import pack_group
from statekit.state.base import ABSENT, State, StateSpec
from statekit.state.key_scope import KeyScope
from statekit.state.ttl import Expiry
from statekit.state.undo_log import UndoDict, UndoLog
from statekit.timestamp import timedelta_to_micros

UNKNOWN: Any = object()
"""The cached value of a row that was not looked up yet."""

# So many rows that were set without a read are looked up together at most: one at first, and twice
# as many each time, as long as the rows are small. After more bytes than this it is one again.
_REPLACED_ROWS_MAX = 256
_REPLACED_BYTES_MAX = 256 * 1024


class RowCache(State):
    """A state that caches rows by row key."""

    # `_known` maps row keys to what is known of the row: for an immutable type the value itself,
    # for a mutable type its row, or ABSENT. `_changed` has the row keys to write, with the keys
    # that they belong to as the user knows them. `_sizes` says what the backend holds for each row
    # key that was looked up, in bytes, 0 for none. `_from_row` and `_to_row` turn a row into what
    # is known, and back. Of a state that expires, `_indexed` says when the row in the backend was
    # written, `_written` when what is known was; `_dropped` has the rows that were removed, and may
    # have been written again since.
    __slots__ = (
        "_changed",
        "_dropped",
        "_from_row",
        "_has_removed",
        "_immutable",
        "_indexed",
        "_known",
        "_known_bytes",
        "_read",
        "_read_all",
        "_refreshes",
        "_sizes",
        "_to_row",
        "_written",
    )

    noted = (*State.noted, "_known_bytes", "_has_removed")

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        self._read, self._read_all, *_ = self._reader(backend)
        self._immutable = spec.codec.immutable
        self._from_row: Callable[[bytes], Any] = self._decode if self._immutable else bytes
        self._to_row: Callable[[Any], bytes] = self._encode if self._immutable else bytes
        self._known: dict[bytes, Any] = {}
        self._changed: dict[bytes, Any] = {}
        self._sizes: dict[bytes, int] = {}
        self._indexed: dict[bytes, int] = {}
        self._written: dict[bytes, int] = {}
        self._dropped: dict[bytes, bool] = {}
        self._refreshes = self.expiry is not None and self.expiry.refreshes
        self._known_bytes = 0
        self._has_removed = False

    def take_undo_log(self, undo: UndoLog) -> None:
        super().take_undo_log(undo)
        self._known, self._changed, self._sizes = UndoDict(undo), UndoDict(undo), UndoDict(undo)
        self._indexed, self._written = UndoDict(undo), UndoDict(undo)
        self._dropped = UndoDict(undo)
        if self._immutable:
            self._exact = self._is_storable  # else a value may fail when it is flushed

    def _is_storable(self, value: Any) -> bool:
        """Return whether a value is its own stored form, and can be encoded."""
        if not self._codec.exact(value):
            return False
        try:
            self._encode(value)
        except StateTypeError:
            return False
        return True

    # ----------------------------------------------------------------------------------- reading

    def _reader(self, backend: Backend) -> RowReads:
        raise NotImplementedError

    def _look(self, row_key: bytes) -> Any:
        """Return the cached value of a row; ABSENT if the row does not exist."""
        value = self._known.get(row_key, UNKNOWN)
        return self._load(row_key) if value is UNKNOWN else value

    def _load(self, row_key: bytes) -> Any:
        """Read a row into the cache and return its value."""
        row = self._read(row_key)
        if row is None:
            self._sizes[row_key] = 0
            value = ABSENT
        else:
            self._sizes[row_key] = size = len(row_key) + len(row)
            self._known_bytes += size
            try:
                if self.expiry is None:
                    value = self._from_row(row)
                else:
                    value = self._unexpired(row_key, row, self.expiry)
            except CorruptCheckpointError as error:
                raise self._unreadable(error) from error
        if not self._known:
            self._scope.gathered.append(self._flush)
        self._known[row_key] = value
        return value

    def _unexpired(self, row_key: bytes, row: bytes, expiry: Expiry) -> Any:
        """Return the value of a row, which may have a stamp; ABSENT if it has expired."""
        value, written = expiry.read(row)
        self._indexed[row_key] = self._written[row_key] = written
        return ABSENT if value is None else self._from_row(value)

    def _has_aged(self, row_key: bytes, expiry: Expiry) -> bool:
        """Return whether a row has expired since it was read or written in this key scope."""
        written = self._written.get(row_key)
        return written is not None and expiry.is_over(written)

    # ----------------------------------------------------------------------------------- writing

    def _set(self, row_key: bytes, value: Any) -> None:
        """Mark a row for writing, and restart its TTL."""
        if not self._known:
            self._scope.gathered.append(self._flush)
        self._known[row_key] = value
        self._changed[row_key] = self._scope.key
        if self.expiry is not None:
            self._written[row_key] = self.expiry.stamp(self._written.get(row_key, UNWRITTEN))

    def _drop(self, row_key: bytes) -> None:
        """Mark a row for removal."""
        if not self._known:
            self._scope.gathered.append(self._flush)
        self._known[row_key] = ABSENT
        self._changed[row_key] = self._scope.key
        self._has_removed = True
        if self.expiry is not None:
            self._written.pop(row_key, None)
            self._dropped[row_key] = True

    def _set_lifetime(self, row_key: bytes, lifetime: dt.timedelta | None) -> bool:
        """Set when a row expires, and return whether it exists.

        Raises:
            StateTypeError: the state has no TTL.
        """
        if self.expiry is None or self._spec.ttl is None:
            raise StateTypeError(
                f"{self._where()} has no TTL, by whose clock a value expires: declare one, as in "
                'Annotated[..., sk.TTL("30 days")]'
            )
        if self._look(row_key) is ABSENT:
            return False
        micros = None if lifetime is None else timedelta_to_micros(lifetime)
        written = self.expiry.stamp_for(micros)
        self._drop(row_key) if self.expiry.is_over(written) else self._set_written(row_key, written)
        return True

    def _set_written(self, row_key: bytes, written: int) -> None:
        """Replace the write time of a row, also by an earlier one."""
        self._written[row_key] = written
        self._dropped[row_key] = True  # so its row in the index is that of the new time
        self._changed[row_key] = self._scope.key

    def _note_read(self, row_key: bytes) -> None:
        """Restart the TTL of a row that was read."""
        assert self.expiry is not None
        before = self._written[row_key]
        written = before if before == PERMANENT else self.expiry.stamp(before)
        if written != before:
            self._written[row_key] = written
            self._changed[row_key] = self._scope.key

    def _flush(self) -> None:
        if self._changed:
            self._put_changed()
        self._forget()

    def _forget(self) -> None:
        """Empty the cache."""
        for part in (self._known, self._changed, self._sizes, self._indexed, self._written):
            part.clear()
        self._dropped.clear()
        self._known_bytes = 0
        self._has_removed = False

    def _put_changed(self) -> None:
        cached, sizes = self._known, self._sizes
        row_keys = list(self._changed)
        if len(sizes) < len(cached):  # a row was set without reading the old one
            self._read_replaced([row_key for row_key in row_keys if row_key not in sizes])
        values = list(map(cached.__getitem__, row_keys))
        if self._has_removed:
            self._remove([key for key in row_keys if cached[key] is ABSENT])
            row_keys = [key for key in row_keys if cached[key] is not ABSENT]
            values = list(map(cached.__getitem__, row_keys))
        if self._dropped and self.expiry is not None:
            for row_key in filter(self._dropped.__contains__, row_keys):  # written anew
                self.expiry.forget(row_key, self._indexed.pop(row_key, UNWRITTEN))
        before = list(map(sizes.__getitem__, row_keys))
        indexed = map(self._indexed.get, row_keys, repeat(UNWRITTEN))
        written = map(self._written.__getitem__, row_keys)
        self._put_all(row_keys, values, before, indexed, written)

    def _put_all(
        self,
        row_keys: list[bytes],
        values: list[Any],
        before: list[int],
        indexed: Iterable[int],
        written: Iterable[int],
    ) -> None:
        """Write many rows.

        Parameters:
            values: the value of each row.
            before: the sizes of the rows that they replace, 0 for none.
            indexed, written: for a state with a TTL, the old and new write times.
        """
        rows = self._rows(row_keys, values)
        if self.expiry is not None:
            rows = self.expiry.rows(row_keys, rows, indexed, written)
        self.rows_added += before.count(0)
        self.bytes_added += self._scope.batch.put_all(self._name, row_keys, rows) - sum(before)

    def _stored_forms(self, values: list[Any]) -> list[Any]:
        """Return the stored form of each value; None stays None."""
        exact, exact_all = self._exact, self._codec.exact_all
        if exact_all is not None and exact is self._codec.exact and exact_all(values):
            return values
        if all(map(exact, values)):
            return values
        return [
            value if value is None or exact(value) else self._stored_form(value) for value in values
        ]

    def _read_replaced(self, row_keys: list[bytes]) -> None:
        """Look up the rows in the backend that will be replaced."""
        row_keys.sort()
        start, count = 0, 1
        while some := row_keys[start : start + count]:
            size = 0
            for row_key, row in zip(some, self._read_all(some), strict=True):
                self._sizes[row_key] = row_size = 0 if row is None else len(row_key) + len(row)
                size += row_size
                if self.expiry is not None and row is not None:
                    self._indexed[row_key] = self.expiry.split(row)[1]
            start += count
            count = 1 if size > _REPLACED_BYTES_MAX else min(2 * count, _REPLACED_ROWS_MAX)

    def _remove(self, row_keys: list[bytes]) -> None:
        for row_key in row_keys:
            self._resized(row_key, self._sizes[row_key], None)
            self._scope.batch.delete(self._name, row_key)
            if self.expiry is not None:
                self.expiry.forget(row_key, self._indexed.get(row_key, UNWRITTEN))

    def _rows(self, row_keys: list[bytes], values: list[Any]) -> list[bytes]:
        """Encode cached values as rows."""
        to_row = self._to_row
        try:
            return list(map(to_row, values))
        except StateTypeError:
            for row_key, value in zip(row_keys, values, strict=True):
                try:
                    to_row(value)
                except StateTypeError as error:
                    key = self._changed.get(row_key, self._scope.key)
                    raise self._unstorable(value, error, key) from None
            raise

    # ------------------------------------------------------------------------- many keys at a time

    def replace_rows(
        self,
        row_keys: list[bytes],
        values: list[Any],
        sizes: list[int],
        removed: Sequence[tuple[bytes, int]],
    ) -> None:
        """Write and remove rows of many keys. Nothing is cached.

        Parameters:
            row_keys: of the rows that are written. With a TTL they are new.
            values: the value of each.
            sizes: those of the rows that they replace, 0 for none.
            removed: other stored rows, with their sizes. With a TTL, call `remove_rows`.
        """
        self._scope.batch.delete_all(self._name, [row_key for row_key, _ in removed])
        self.rows_added -= len(removed)
        self.bytes_added -= sum(size for _, size in removed)
        stored = self._stored_forms(values) if self._immutable else list(map(self._row, values))
        written = UNWRITTEN if self.expiry is None else self.expiry.stamp(UNWRITTEN)
        self._put_all(row_keys, stored, sizes, repeat(UNWRITTEN), repeat(written))

    def rows_of_groups(self, groups: tuple[int, int]) -> Rows:
        """Yield all stored rows of these key groups in order. Each group is one scan."""
        first, last = groups
        for group in range(first, last + 1):
            yield from self._backend.scan(self._name, pack_group(group), pack_group(group + 1))

    def read_rows(self, row_keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the stored rows of sorted row keys; None for an absent row."""
        return self._read_all(row_keys)

    def values_of_rows(self, rows: Sequence[bytes | None]) -> list[Any]:
        """Return the values of rows; None for an absent or expired row."""
        try:
            if self.expiry is not None:
                read = self.expiry.read
                rows = [None if row is None else read(row)[0] for row in rows]
            return [None if row is None else self._decode(row) for row in rows]
        except CorruptCheckpointError as error:
            raise self._unreadable(error) from error

    def remove_rows(self, rows: Sequence[tuple[bytes, bytes]], *, at_once: bool = False) -> None:
        """Remove stored rows. Apply the batch if it is large, or if they must be gone at once."""
        if self.expiry is not None:
            for row_key, row in rows:
                self.expiry.forget(row_key, self.expiry.split(row)[1])
        self.replace_rows([], [], [], [(key, len(key) + len(row)) for key, row in rows])
        if self._scope.batch.full or at_once:
            self._scope.spill()
