"""`MapState`: a map per key, one row per entry."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    MutableMapping,
    Sequence,
    ValuesView,
)
from itertools import chain, filterfalse, islice, takewhile
from operator import gt, itemgetter, lt
from typing import Any, TypeVar, cast, overload

from statekit.backend.interface import (
    Backend,
    RowRange,
    RowReads,
    Rows,
    prefix_end,
    scan_one_by_one,
)
from statekit.checkpoint.era import UNWRITTEN
from statekit.checkpoint.state_kinds import STATE_KINDS
from statekit.errors import StateTypeError
from statekit.shown import shown, shown_text
from statekit.state import base
from statekit.state.base import ABSENT, ManyRowState, StateSpec, row_sizes
from statekit.state.closed_bounds import ClosedBounds, closed_ends
from statekit.state.key_scope import KeyScope
from statekit.state.options import Aggregate
from statekit.state.row_cache import UNKNOWN, RowCache
from statekit.state.ttl import Expiry

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_NEXT = b"\x00"
"""The end of a bound behind all row keys that are equal."""

_Entry = tuple[bytes, Any, bool]
"""The row key of a map entry, a value and a flag. With True, the value is the stored row, otherwise
the cached value.
"""


class MapState(ManyRowState, RowCache, MutableMapping[K, V]):
    """A map per key, with one row per entry.

    An access to one entry reads and writes that entry only. `items()`, `keys()`, `values()` and
    `scan` stream in key order (the order of the type: numbers by value, text by code point) and see
    the map as it was when the iteration began. `len` counts by scanning.

    Declare a parameter of a process function as one. Calls see the map of their key.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="shop")
    ... def stock(move: dict, left: sk.MapState[str, int]) -> Iterator[tuple[int, list[str]]]:
    ...     left[move["item"]] = left.get(move["item"], 0) + move["count"]
    ...     yield left[move["item"]], list(left)
    >>> moves = [{"shop": 1, "item": "pen", "count": 5}, {"shop": 1, "item": "ink", "count": 2}]
    >>> Harness(stock).send(*moves)
    [(5, ['pen']), (2, ['ink', 'pen'])]
    """

    __slots__ = ("_encode_key", "_last")

    kind = STATE_KINDS["map"]
    type_parameters = ("key", "value")

    def __init__(self, spec: StateSpec, scope: KeyScope, backend: Backend) -> None:
        super().__init__(spec, scope, backend)
        assert spec.key_codec is not None
        self._encode_key = spec.key_codec.encode
        # The last key asked for, at which prefix, with its row key: `m[k] = m[k] + 1` encodes k
        # once.
        self._last: tuple[Any, bytes, bytes] = (ABSENT, b"", b"")

    def _reader(self, backend: Backend) -> RowReads:
        scope = self._scope
        return backend.reader(self._name, first_key=lambda: scope.prefix)

    def __getitem__(self, key: K) -> V:
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return cast("V", value)

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: D, /) -> V | D: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """Return the value at `key`; `default` if it is absent."""
        # Here and in `__setitem__`, helpers are written out: a call costs as much as its work.
        row_key = self._row_key(key)
        value = self._known.get(row_key, UNKNOWN)  # what `_look` does
        if value is UNKNOWN:
            value = ABSENT if self._cleared is self._scope.prefix else self._load(row_key)
        elif self.expiry is not None and self._has_aged(row_key, self.expiry):
            value = ABSENT
        if value is ABSENT:
            return default
        if self._refreshes:
            self._note_read(row_key)
        return value if self._immutable else self._decode(value)

    def __contains__(self, key: object) -> bool:
        return self._look(self._row_key(cast("K", key))) is not ABSENT

    def __setitem__(self, key: K, value: V) -> None:
        """Set one entry.

        Raises:
            StateTypeError: the declared types do not allow the key or the value.
        """
        stored_value: Any = value
        if not self._immutable:
            stored_value = self._row(value)
        elif not self._exact(value):
            stored_value = self._stored_form(value)
        scope, (last, prefix, row_key) = self._scope, self._last
        if last is not key or prefix is not scope.prefix:
            row_key = self._row_key(key)
        cached = self._known  # what `_set` does
        if not cached:
            scope.gathered.append(self._flush)
        cached[row_key] = stored_value
        self._changed[row_key] = scope.key
        if self.expiry is not None:
            self._written[row_key] = self.expiry.stamp(self._written.get(row_key, UNWRITTEN))
        if self._cleared is scope.prefix:
            self._sizes[row_key] = 0
        if type(stored_value) is bytes or type(stored_value) is str:
            self._known_bytes += len(stored_value)

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value at `key`. If it is absent, set `default` and return its stored form.

        Raises:
            StateTypeError: the declared types do not allow the key or the default.
        """
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: K) -> None:
        row_key = self._row_key(key)
        if self._look(row_key) is ABSENT:
            raise KeyError(key)
        self._drop(row_key)

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._pairs(self._bounds(), decode=False))

    def __len__(self) -> int:
        return sum(1 for _ in self._rows_between(*self._bounds()))

    def __bool__(self) -> bool:
        return next(self._rows_between(*self._bounds()), None) is not None

    def keys(self) -> KeysView[K]:
        return _StreamedKeys(self)

    def items(self) -> ItemsView[K, V]:
        return _StreamedItems(self)

    def values(self) -> ValuesView[V]:
        return _StreamedValues(self)

    def scan(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        reverse: bool = False,
        closed: ClosedBounds = "left",
        prefix: Any = None,
        after: K | None = None,
    ) -> Iterator[tuple[K, V]]:
        """Yield entries with `lo <= key < hi` in key order; None leaves that side open.

        Parameters:
            reverse: from the greatest key to the smallest.
            closed: the bounds that are in the range: "left", "right", "both" or "none".
            prefix: only keys that begin with this text, with these bytes, or with these first parts
                of a tuple.
            after: only keys after this one, in the order of the scan.

        >>> from collections.abc import Iterator
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="tail")
        ... def last_two(record: dict, delays: sk.MapState[int, float]) -> Iterator[list]:
        ...     delays[record["day"]] = record["delay"]
        ...     yield [day for day, _ in delays.scan(reverse=True)][:2]
        >>> days = [{"tail": "N1", "day": day, "delay": 0.5} for day in (3, 1, 2)]
        >>> Harness(last_two).send(*days)[-1]
        [3, 2]
        """
        start, end = self._bounds(lo, hi, closed, prefix)
        if after is not None:
            row_key = self._scope.prefix + self.subkey(after)
            start, end = (
                (start, min(end, row_key)) if reverse else (max(start, row_key + _NEXT), end)
            )
        return self._pairs((start, end), reverse=reverse)

    def count(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        closed: ClosedBounds = "left",
        prefix: Any = None,
    ) -> int:
        """Return the number of entries in a range. Their rows are read, and no value is decoded.

        The parameters are those of `scan`.

        >>> from collections.abc import Iterator
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="shop")
        ... def sold(record: dict, items: sk.MapState[str, int]) -> Iterator[int]:
        ...     items[record["item"]] = record["cents"]
        ...     yield items.count(prefix="te")
        >>> sales = [("pot", 9), ("tea", 5), ("tent", 7)]
        >>> Harness(sold).send(*[{"shop": "a", "item": item, "cents": n} for item, n in sales])
        [0, 1, 2]
        """
        stored, pending = self._keys_between(*self._bounds(lo, hi, closed, prefix))
        return len(pending) + sum(1 for _ in stored)

    def remove_range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        closed: ClosedBounds = "left",
        prefix: Any = None,
    ) -> int:
        """Remove the entries in a range, and return their number. The parameters are those of
        `scan`.

        >>> from collections.abc import Iterator
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="room")
        ... def recent(record: dict, days: sk.MapState[int, float]) -> Iterator[list]:
        ...     days[record["day"]] = record["celsius"]
        ...     removed = days.remove_range(None, record["day"] - 1)
        ...     yield [removed, list(days)]
        >>> Harness(recent).send(*[{"room": "a", "day": day, "celsius": 20.5} for day in (1, 2, 3)])
        [[0, [1]], [0, [1, 2]], [1, [2, 3]]]
        """
        return self._drop_all(chain(*self._keys_between(*self._bounds(lo, hi, closed, prefix))))

    def trim(self, most: int) -> int:
        """Remove all entries but those with the `most` greatest keys, and return the number of
        removed ones.

        >>> from collections.abc import Iterator
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="room")
        ... def recent(record: dict, days: sk.MapState[int, float]) -> Iterator[list]:
        ...     days[record["day"]] = record["celsius"]
        ...     days.trim(2)
        ...     yield list(days)
        >>> Harness(recent).send(*[{"room": "a", "day": day, "celsius": 20.5} for day in (1, 2, 3)])
        [[1], [1, 2], [2, 3]]
        """
        stored, pending = self._keys_between(*self._bounds(), reverse=True)
        # So many stored entries are kept, whatever the places of the pending ones are.
        sure = max(0, most - len(pending))
        deque(islice(stored, sure), maxlen=0)
        left = most - sure
        last = sorted([*islice(stored, left), *pending], reverse=True)
        return self._drop_all(chain(last[left:], stored))

    def expire_in(self, key: K, lifetime: dt.timedelta | None) -> bool:
        """Set when an entry expires, whatever the TTL of the state is. Return whether it exists.
        See `ValueState.expire_in`.
        """
        return self._set_lifetime(self._row_key(key), lifetime)

    def floor(self, key: K) -> tuple[K, V] | None:
        """Return the entry with the greatest key at or below `key`; None if there is none.

        Only that row is read, however many the map has.

        >>> from collections.abc import Iterator
        >>> import statekit as sk
        >>> from statekit.testing import Harness
        >>> @sk.process(key="currency")
        ... def rate_at(record: dict, rates: sk.MapState[int, float]) -> Iterator[tuple | None]:
        ...     if record["rate"]:
        ...         rates[record["day"]] = record["rate"]
        ...     else:
        ...         yield rates.floor(record["day"])
        >>> given = [(1, 1.5), (4, 1.2), (3, None), (4, None), (0, None)]
        >>> records = [{"currency": "EUR", "day": day, "rate": rate} for day, rate in given]
        >>> Harness(rate_at).send(*records)
        [(1, 1.5), (4, 1.2), None]
        """
        rows = self._rows_between(*self._bounds(None, key, "right"), reverse=True)
        return next(self._decoded(rows, len(self._scope.prefix), decode=True), None)

    def __repr__(self) -> str:
        return f"MapState({dict(self.items())!r})"

    # ------------------------------------------------------------------------- many keys at a time

    def add_all(
        self, row_keys: Sequence[bytes], values: Sequence[Any], aggregate: Aggregate[Any, Any, Any]
    ) -> None:
        """Add values to accumulators of many keys, without a TTL.

        Nothing is cached: rows are read, and changed rows are added to the batch at once.

        Parameters:
            row_keys: the row to which each value is added, in any order.
        """
        places = sorted(set(row_keys))
        rows = self._backend.get_many(self._name, places)
        sizes = row_sizes(places, rows)
        create, add = aggregate.create, aggregate.add
        held = [
            create() if row is None else value
            for row, value in zip(rows, self.values_of_rows(rows), strict=True)
        ]
        if places == row_keys:
            held = list(map(add, held, values))
        else:
            of_rows = dict(zip(places, held, strict=True))
            for row_key, value in zip(row_keys, values, strict=True):
                of_rows[row_key] = add(of_rows[row_key], value)
            held = list(of_rows.values())
        self.replace_rows(places, held, sizes, ())

    def stored_between(self, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Return the stored rows of a key between two row keys, in order, without expired ones."""
        rows, expiry = self._scan(start, end), self.expiry
        return rows if expiry is None else filter(lambda row: not expiry.has_expired(row[1]), rows)

    def stored_in(
        self, ranges: Iterable[RowRange], most: int
    ) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Yield the stored rows in each range of row keys, at most so many of each, without expired
        ones.

        Parameters:
            ranges: the first row key, and the one behind the last; in order.
        """
        if self.expiry is not None:
            return scan_one_by_one(self.stored_between, ranges, most)
        return self._scan_each(ranges, most)

    def last_in(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last stored row between two row keys, without a TTL; None if there is none."""
        return next(self._backend.scan(self._name, start, end, reverse=True), None)

    # ---------------------------------------------------------------------------------- row by row

    def _row_key(self, key: K) -> bytes:
        """Return the row key of an entry, and cache it in `_last`."""
        prefix = self._scope.prefix
        last, at, row_key = self._last
        if last is key and at is prefix:
            return row_key
        try:
            row_key = prefix + self._encode_key(key)
        except StateTypeError as error:
            raise self._not_a_key(key, error) from None
        # What `_make_room` does, without its call.
        if len(self._known) >= base.PENDING_ROWS_MAX or self._known_bytes >= base.PENDING_BYTES_MAX:
            self._spill()
        self._last = (key, prefix, row_key)
        return row_key

    def subkey(self, key: K) -> bytes:
        """Return the end of the row key of an entry.

        Raises:
            StateTypeError: the declared type does not allow the key.
        """
        try:
            return self._encode_key(key)
        except StateTypeError as error:
            raise self._not_a_key(key, error) from None

    def subkeys(self, keys: Sequence[K]) -> list[bytes]:
        """Return the ends of the row keys of entries.

        Raises:
            StateTypeError: the declared type does not allow a key.
        """
        assert self._spec.key_codec is not None
        try:
            return self._spec.key_codec.encode_all(keys)
        except StateTypeError:
            return list(map(self.subkey, keys))

    def _not_a_key(self, key: object, error: StateTypeError) -> StateTypeError:
        return StateTypeError(f"{self._where()}, map key {shown(key)}: {shown_text(error)}")

    def _look(self, row_key: bytes) -> Any:
        value = self._known.get(row_key, UNKNOWN)
        if value is UNKNOWN:
            return ABSENT if self._cleared is self._scope.prefix else self._load(row_key)
        if self.expiry is not None and self._has_aged(row_key, self.expiry):
            return ABSENT
        return value

    def _bounds(
        self,
        lo: K | None = None,
        hi: K | None = None,
        closed: ClosedBounds = "left",
        begins: Any = None,
    ) -> tuple[bytes, bytes]:
        """Return the first row key of a range, and the one behind its last.

        Parameters:
            begins: the prefix of map keys.
        """
        prefix = self._scope.prefix
        has_lo, has_hi = closed_ends(closed)
        start, end = prefix, None
        # No row key begins with another one: the next one is at least as large as with a zero.
        if lo is not None:
            start = prefix + self.subkey(lo) + (b"" if has_lo else _NEXT)
        if hi is not None:
            end = prefix + self.subkey(hi) + (_NEXT if has_hi else b"")
        if begins is not None:
            first = prefix + self._subprefix(begins)
            behind = prefix_end(first)
            start, end = max(start, first), behind if end is None else min(end, behind)
        return start, prefix_end(prefix) if end is None else end

    def _subprefix(self, begins: Any) -> bytes:
        assert self._spec.key_codec is not None
        try:
            return self._spec.key_codec.encode_prefix(begins)
        except StateTypeError as error:
            raise self._not_a_key(begins, error) from None

    def _pairs(
        self, bounds: tuple[bytes, bytes], *, decode: bool = True, reverse: bool = False
    ) -> Iterator[tuple[K, Any]]:
        # Not a generator itself: the rows are fixed at the call, not at the first `next`.
        rows = self._rows_between(*bounds, reverse=reverse)
        return self._decoded(rows, len(self._scope.prefix), decode=decode)

    def _decoded(
        self, rows: Iterator[_Entry], skip: int, *, decode: bool
    ) -> Iterator[tuple[K, Any]]:
        assert self._spec.key_codec is not None
        decode_key = self._spec.key_codec.decode
        for row_key, value, is_stored in rows:
            key = decode_key(row_key, skip)[0]
            if not decode:
                yield key, None
                continue
            if self._refreshes and self._scope.prefix == row_key[:skip]:
                self._read_on(row_key)
            yield key, value if self._immutable and not is_stored else self._decode(value)

    def _rows_between(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[_Entry]:
        """Yield stored and pending rows merged in key order. A pending row replaces a stored
        one.
        """
        stored, pending, cached = self._parts_between(start, end, reverse=reverse)
        if not pending:
            return ((row_key, row, True) for row_key, row in stored)
        return _merged(stored, pending, cached, gt if reverse else lt)

    def _parts_between(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> tuple[Rows, list[bytes], dict[bytes, Any]]:
        """Return the stored rows in key order, the pending row keys in key order, and their values:
        ABSENT for removed ones. A pending row replaces a stored one.
        """
        pending: list[bytes] = []
        cached: dict[bytes, Any] = {}
        if self._changed:
            own = (key for key in self._own(self._changed) if start <= key < end)
            pending = sorted(own, reverse=reverse)
            cached = {row_key: self._look(row_key) for row_key in pending}
        stored: Rows = iter(())
        if self._cleared is not self._scope.prefix:
            stored = (
                self._backend.scan(self._name, start, end, reverse=True)
                if reverse
                else iter(self._scan(start, end))
            )
        if self.expiry is not None:
            stored = _unexpired(stored, self.expiry)
        return stored, pending, cached

    def _keys_between(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> tuple[Iterator[bytes], list[bytes]]:
        """Return the row keys of the stored entries without pending changes, and those of the
        pending entries, both in key order. No value is decoded, and Python runs no code per entry.
        """
        stored, pending, cached = self._parts_between(start, end, reverse=reverse)
        row_keys = map(itemgetter(0), stored)
        if not cached:
            return row_keys, []
        present = [row_key for row_key in pending if cached[row_key] is not ABSENT]
        return filterfalse(cached.__contains__, row_keys), present

    def _drop_all(self, row_keys: Iterable[bytes]) -> int:
        """Remove entries, and return their number."""
        dropped = 0
        for row_key in row_keys:
            self._make_room(len(self._known), self._known_bytes)
            self._drop(row_key)
            dropped += 1
        return dropped

    def _read_on(self, row_key: bytes) -> None:
        """Restart the TTL of an entry that an iterator has read, if it still exists."""
        self._make_room(len(self._known), self._known_bytes)
        if self._look(row_key) is not ABSENT:
            self._note_read(row_key)

    def _forget(self) -> None:
        super()._forget()
        self._last = (ABSENT, b"", b"")

    def _drop_pending(self) -> None:
        own = self._own(self._known)
        for part in (self._known, self._changed, self._sizes, self._indexed, self._written):
            for row_key in own:
                part.pop(row_key, None)

    def _own(self, part: dict[bytes, Any]) -> list[bytes]:
        """Return the row keys of the current key. They are the last ones."""
        prefix = self._scope.prefix
        return list(takewhile(lambda row_key: row_key.startswith(prefix), reversed(part)))


class _StreamedKeys(KeysView[K]):
    _mapping: MapState[K, Any]

    def __iter__(self) -> Iterator[K]:
        return iter(self._mapping)  # that of KeysView begins at the first `next`


class _StreamedItems(ItemsView[K, V]):
    _mapping: MapState[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()


class _StreamedValues(ValuesView[V]):
    _mapping: MapState[Any, V]

    def __contains__(self, value: object) -> bool:
        return any(own_value is value or own_value == value for own_value in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())


def _unexpired(rows: Rows, expiry: Expiry) -> Rows:
    """Yield rows that have not expired, without their stamps."""
    for row_key, row in rows:
        value, _ = expiry.read(row)
        if value is not None:
            yield row_key, value


def _merged(
    stored: Rows,
    pending: list[bytes],
    cached: dict[bytes, Any],
    precedes: Callable[[bytes, bytes], bool],
) -> Iterator[_Entry]:
    waiting = iter(pending)
    upcoming = next(waiting, None)
    for row_key, row in stored:
        while upcoming is not None and precedes(upcoming, row_key):
            if cached[upcoming] is not ABSENT:
                yield upcoming, cached[upcoming], False
            upcoming = next(waiting, None)
        if upcoming == row_key:
            if cached[row_key] is not ABSENT:
                yield row_key, cached[row_key], False
            upcoming = next(waiting, None)
        else:
            yield row_key, row, True
        if upcoming is None:
            break
    for row_key, row in stored:
        yield row_key, row, True
    while upcoming is not None:
        if cached[upcoming] is not ABSENT:
            yield upcoming, cached[upcoming], False
        upcoming = next(waiting, None)
