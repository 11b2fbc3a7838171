"""A map per key, one row per entry.

What lives here: `MapState`. Touching one entry reads and writes that entry only, whatever the size
of the map.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any, TypeVar, cast, overload

from statekit import state
from statekit.backend import Backend, prefix_end
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.expiry import PERMANENT, UNWRITTEN, Expiry
from statekit.state import ABSENT, ManyRowState, StateSpec, shown
from statekit.visit import Visit

__all__ = ["MapState"]

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class MapState(ManyRowState, MutableMapping[K, V]):
    """A map per key, one row per entry.

    Touching one entry reads and writes that entry only. `items()`, `keys()`, `values()` and `scan`
    stream in key order (the order of the type: numbers by value, text by code point) and see the
    map as it was when iteration began. `len` counts by scanning.
    """

    # `_known` maps row keys to what is known of the entry: for an immutable type the value itself,
    # for a mutable type its row, or ABSENT. `_changed` has the row keys to write, `_sizes` what the
    # backend holds for each row key that was looked up, in bytes, 0 for none. Of a map that
    # expires, `_indexed` says when the row in the backend was written, `_written` when what is
    # known was.
    __slots__ = (
        "_changed",
        "_encode_key",
        "_immutable",
        "_indexed",
        "_known",
        "_known_bytes",
        "_last",
        "_read",
        "_refreshes",
        "_sizes",
        "_written",
    )

    kind_name = "map"

    def __init__(self, spec: StateSpec, visit: Visit, backend: Backend) -> None:
        super().__init__(spec, visit, backend)
        assert spec.key_codec is not None
        self._encode_key = spec.key_codec.encode
        self._read = backend.getter(spec.name)
        self._immutable = spec.codec.immutable
        self._known: dict[bytes, Any] = {}
        self._known_bytes = 0
        self._changed: dict[bytes, None] = {}
        self._sizes: dict[bytes, int] = {}
        self._indexed: dict[bytes, int] = {}
        self._written: dict[bytes, int] = {}
        self._refreshes = self.expiry is not None and self.expiry.refreshes
        # The last key asked for, with its row key: `m[k] = m[k] + 1` encodes k once.
        self._last: tuple[Any, bytes] = (ABSENT, b"")

    def __getitem__(self, key: K) -> V:
        found = self._find(key)
        if found is ABSENT:
            raise KeyError(key)
        if self._refreshes:
            self._note_read(self._row_key(key))
        return cast("V", found if self._immutable else self._decode(found))

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: D, /) -> V | D: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """The value at `key`, or `default`."""
        found = self._find(key)
        if found is ABSENT:
            return default
        if self._refreshes:
            self._note_read(self._row_key(key))
        return found if self._immutable else self._decode(found)

    def __contains__(self, key: object) -> bool:
        return self._find(cast("K", key)) is not ABSENT

    def __setitem__(self, key: K, value: V) -> None:
        """Set one entry.

        Raises:
            StateTypeError: the declared types cannot hold the key or the value.
        """
        if self._immutable:
            if not self._accepts(value):
                raise self._refuse(value)
            kept: Any = value
        else:
            kept = self._row(value)
        row_key = self._row_key(key)
        self._known[row_key] = kept
        self._changed[row_key] = None
        if self.expiry is not None:
            self._written[row_key] = self.expiry.stamp(self._written.get(row_key, UNWRITTEN))
        if isinstance(kept, str | bytes):
            self._known_bytes += len(kept)

    def __delitem__(self, key: K) -> None:
        if self._find(key) is ABSENT:
            raise KeyError(key)
        row_key = self._row_key(key)
        self._known[row_key] = ABSENT
        self._changed[row_key] = None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._pairs(decode=False))

    def __len__(self) -> int:
        return sum(1 for _ in self._rows_between(*self._bounds()))

    def __bool__(self) -> bool:
        return next(self._rows_between(*self._bounds()), None) is not None

    def keys(self) -> KeysView[K]:
        return KeysView(self)

    def items(self) -> ItemsView[K, V]:
        return _StreamedItems(self)

    def values(self) -> ValuesView[V]:
        return _StreamedValues(self)

    def scan(self, lo: K | None = None, hi: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries with `lo <= key < hi` in key order; None leaves that side open."""
        return self._pairs(lo, hi)

    def __repr__(self) -> str:
        return f"MapState({dict(self.items())!r})"

    def _row_key(self, key: K) -> bytes:
        last, row_key = self._last
        if last is key:
            return row_key
        if not self._entered:
            self._entered = True
            self._visit.touched.append(self)
        row_key = self._visit.prefix + self._subkey(key)
        self._make_room()
        self._last = (key, row_key)
        return row_key

    def _make_room(self) -> None:
        if (
            len(self._known) >= state.PENDING_ROWS_MAX
            or self._known_bytes >= state.PENDING_BYTES_MAX
        ):
            self._spill()

    def _subkey(self, key: K) -> bytes:
        try:
            return self._encode_key(key)
        except StateTypeError as error:
            raise StateTypeError(f"{self._where()}, map key {shown(key)}: {error}") from None

    def _find(self, key: K) -> Any:
        return self._look(self._row_key(key))

    def _look(self, row_key: bytes) -> Any:
        """What is known of an entry, ABSENT if it is known not to be there."""
        found = self._known.get(row_key)
        if found is not None or row_key in self._known:
            if self.expiry is not None and self._has_aged(row_key, self.expiry):
                return ABSENT
        else:
            row = self._stored_row(row_key)
            if self.expiry is not None and row is not None:
                row = self._unexpired(row_key, row, self.expiry)
            try:
                found = ABSENT if row is None else self._decode(row) if self._immutable else row
            except CorruptCheckpointError as error:
                raise self._unreadable(error) from error
            self._known[row_key] = found
        return found

    def _stored_row(self, row_key: bytes) -> bytes | None:
        row = None if self._cleared else self._read(row_key)
        self._sizes[row_key] = size = 0 if row is None else len(row_key) + len(row)
        self._known_bytes += size
        return row

    def _unexpired(self, row_key: bytes, row: bytes, expiry: Expiry) -> bytes | None:
        """The value of a row, None if it has expired."""
        value, written = expiry.read(row)
        self._indexed[row_key] = self._written[row_key] = written
        return value

    def _note_read(self, row_key: bytes) -> None:
        """Let the time of an entry begin anew that was read."""
        assert self.expiry is not None
        before = self._written[row_key]
        written = before if before == PERMANENT else self.expiry.stamp(before)
        if written != before:
            self._written[row_key] = written
            self._changed[row_key] = None

    def _has_aged(self, row_key: bytes, expiry: Expiry) -> bool:
        """Whether an entry has expired since it was read or written at this key."""
        written = self._written.get(row_key)
        return written is not None and expiry.is_over(written)

    def _bounds(self, lo: K | None = None, hi: K | None = None) -> tuple[bytes, bytes]:
        prefix = self._visit.prefix
        start = prefix if lo is None else prefix + self._subkey(lo)
        end = prefix_end(prefix) if hi is None else prefix + self._subkey(hi)
        return start, end

    def _pairs(
        self, lo: K | None = None, hi: K | None = None, *, decode: bool = True
    ) -> Iterator[tuple[K, Any]]:
        # Not itself a generator: what is iterated is settled here, not at the first `next`.
        rows = self._rows_between(*self._bounds(lo, hi))
        return self._decoded(rows, len(self._visit.prefix), decode=decode)

    def _decoded(
        self, rows: Iterator[tuple[bytes, Any]], skip: int, *, decode: bool
    ) -> Iterator[tuple[K, Any]]:
        assert self._spec.key_codec is not None
        decode_key = self._spec.key_codec.decode
        for row_key, found in rows:
            key = decode_key(row_key, skip)[0]
            if not decode:
                yield key, None
                continue
            if self._refreshes and self._visit.prefix == row_key[:skip]:
                self._read_on(row_key)
            if isinstance(found, _Stored):
                yield key, self._decode(found.row)
            else:
                yield key, found if self._immutable else self._decode(found)

    def _rows_between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Stored and pending rows merged in key order; pending ones win."""
        self._enter()
        pending = sorted(row_key for row_key in self._changed if start <= row_key < end)
        known = {row_key: self._look(row_key) for row_key in pending}
        stored: Iterator[tuple[bytes, bytes]] = iter(())
        if not self._cleared:
            stored = self._backend.scan(self._name, start, end)
        if self.expiry is not None:
            stored = _unexpired(stored, self.expiry)
        return _merged(stored, pending, known)

    def _read_on(self, row_key: bytes) -> None:
        """Note that an entry was read in passing, if it is still there."""
        self._make_room()
        if self._look(row_key) is not ABSENT:
            self._note_read(row_key)

    def _put_pending(self) -> None:
        batch, name, known, sizes = self._visit.batch, self._name, self._known, self._sizes
        for row_key in self._changed:
            value = known[row_key]
            if row_key not in sizes:  # set without a look at what was there
                row = self._stored_row(row_key)
                if self.expiry is not None and row is not None:
                    self._indexed[row_key] = self.expiry.split(row)[1]
            before = 0 if self._cleared else sizes[row_key]
            if value is ABSENT:
                self._resized(row_key, before, None)
                if not self._cleared:
                    batch.delete(name, row_key)
                    if self.expiry is not None:
                        self.expiry.forget(row_key, self._indexed.get(row_key, UNWRITTEN))
                continue
            try:
                row = self._encode(value) if self._immutable else value
            except StateTypeError as error:
                raise self._unstorable(value, error) from None
            if self.expiry is not None:
                indexed = UNWRITTEN if self._cleared else self._indexed.get(row_key, UNWRITTEN)
                row = self.expiry.row(row_key, row, indexed, self._written[row_key])
            self._resized(row_key, before, row)
            batch.put(name, row_key, row)

    def _drop_pending(self) -> None:
        self._known = {}
        self._known_bytes = 0
        self._changed = {}
        self._sizes = {}
        self._indexed = {}
        self._written = {}
        self._last = (ABSENT, b"")


class _Stored:
    """A row as the backend holds it, not decoded."""

    __slots__ = ("row",)

    def __init__(self, row: bytes) -> None:
        self.row = row


class _StreamedItems(ItemsView[K, V]):
    _mapping: MapState[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()


class _StreamedValues(ValuesView[V]):
    _mapping: MapState[Any, V]

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())


def _unexpired(
    rows: Iterator[tuple[bytes, bytes]], expiry: Expiry
) -> Iterator[tuple[bytes, bytes]]:
    """Rows that have not expired, without their stamps."""
    for row_key, row in rows:
        value, _ = expiry.read(row)
        if value is not None:
            yield row_key, value


def _merged(
    stored: Iterator[tuple[bytes, bytes]], pending: list[bytes], known: dict[bytes, Any]
) -> Iterator[tuple[bytes, Any]]:
    waiting = iter(pending)
    upcoming = next(waiting, None)
    for row_key, row in stored:
        while upcoming is not None and upcoming < row_key:
            if known[upcoming] is not ABSENT:
                yield upcoming, known[upcoming]
            upcoming = next(waiting, None)
        if upcoming == row_key:
            if known[row_key] is not ABSENT:
                yield row_key, known[row_key]
            upcoming = next(waiting, None)
        else:
            yield row_key, _Stored(row)
    while upcoming is not None:
        if known[upcoming] is not ABSENT:
            yield upcoming, known[upcoming]
        upcoming = next(waiting, None)
