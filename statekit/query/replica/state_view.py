"""State view: reads of one state after one epoch."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Generic, NamedTuple, Self, TypeVar

from statekit.backend.interface import prefix_end
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError
from statekit.keygroup import GROUP_BYTES, group_of_row, pack_group
from statekit.number_faults import int_fault
from statekit.query.replica.hot_rows import HotRows
from statekit.query.replica.operator_copy import EpochRows
from statekit.query.replica.page_cursor import PageCursor
from statekit.query.replica.replica_arguments import listed_keys
from statekit.query.rows.state_rows import KeyRange, Row, StateRows, expiry_time_us
from statekit.shown import shown
from statekit.state.closed_bounds import ClosedBounds
from statekit.timestamp import instant

K = TypeVar("K")
V = TypeVar("V")

_NO_GROUP = b"\x00" * GROUP_BYTES

KEYS_AT_ONCE = 1_000
"""Number of keys that `get_many` reads together."""


class Page(NamedTuple, Generic[K, V]):
    """One page of a scan.

    Parameters:
        items: keys with their values.
        cursor: continues the scan at the same epoch; None at its end.
    """

    items: list[tuple[K, V]]
    cursor: str | None


class LargeKeyError(QueryError):
    """A key has more rows than a page may have.

    Parameters:
        key: in the form of pages.
        cursor: continues the scan after the key.
    """

    def __init__(self, message: str, key: Any, cursor: str) -> None:
        super().__init__(message)
        self.key, self.cursor = key, cursor


class StateView(Generic[K, V]):
    """Reads of one keyed state after one epoch. Created by `View.state`.

    It keeps its view open, as do its iterators. After the `with` block of the view, or `close`, all
    reads raise QueryError, and so do iterators that have begun.

    Without the process function, keys and values have JSON types, and a key argument may have the
    type of the operator's key, or be JSON or text. With the function, they have its types.

    Parameters:
        rows: the decoder of the state's rows.
        source: the rows of the operator after the epoch.
        epoch_id: the identity of the epoch.
        manifest: of the epoch.
        groups: the key groups that the replica has.
        check: raises QueryError if the view was closed.
    """

    def __init__(
        self,
        rows: StateRows,
        source: EpochRows,
        epoch_id: EpochId,
        manifest: EpochManifest,
        groups: tuple[int, int],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = manifest.epoch
        """The epoch of all reads."""
        self._rows = rows
        self._source = source
        self._check = check
        self._epoch_id = epoch_id
        self._manifest = manifest
        self._groups = groups
        self._name = rows.state.name
        self._now_us = expiry_time_us(manifest, rows.operator.name, rows.state)
        self._has_all_groups = groups == (0, manifest.key_groups - 1)
        self._hot = HotRows()
        # A value that is read by one call: no default, no result, and no row that may expire.
        self._is_plain = rows.shape is RowShape.VALUE and not rows.may_expire

    def of_view(self, check: Callable[[], None]) -> Self:
        """Return a copy for a view, which is closed separately.

        Parameters:
            check: a method of the view, which the copy keeps open.
        """
        own = object.__new__(type(self))  # `copy` takes six times as long
        vars(own).update(vars(self))
        own._check = check
        return own

    def check_open(self) -> None:
        """Check that the rows can be read.

        Raises:
            QueryError: the view was closed, or the rows were released.
        """
        self._check()
        self._source.check_open()

    @property
    def shape(self) -> RowShape:
        """Kind of the rows of a key: one value, elements of a list, or entries of a map."""
        return self._rows.shape

    def key_from_json(self, data: Any) -> Any:
        """Return the key of a JSON key, in a replica without the process function.

        Text that looks like JSON stays text: `"null"` is not null, and `"5"` is 5 only if keys are
        ints.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        return self._rows.keys.from_json(data)

    def key_from_text(self, text: str) -> Any:
        """Return the key of a text in an address, as `statekit get` parses it.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        return self._rows.keys.from_text(text)

    def shown_key(self, key: K) -> Any:
        """Return a key in the form of `rows` and the change feed.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        return self._rows.keys.split(self._prefix(key))[0]

    def map_key_from_json(self, data: Any) -> Any:
        """Return the map key of a JSON map key, as `key_from_json`.

        Raises:
            StateTypeError: it is not a map key of the state.
            QueryError: the state is not a map.
        """
        self._check_shape(RowShape.ENTRIES, "entries")
        return self._rows.place_from_json(data)

    # ------------------------------------------------------------------------------ single keys

    def get(self, key: K) -> V | None:
        """Return the value of the state for a key.

        Returns:
            A value, a list, or a map's entries as a dict; without the function as a list of pairs,
            unless all keys of that type are text or ints in JSON. A list or map without rows is
            empty. An absent value is None, or the default that the function declares.

        Raises:
            StateTypeError: it is not a key of the operator.
            QueryError: the replica does not have its key group, or the view was closed.
        """
        prefix = self._prefix(key)
        if self._rows.shape is RowShape.VALUE:
            value: V | None = self._value(self._get(prefix))
            return value
        whole: V = self._rows.whole(self._stored(prefix), len(prefix))
        return whole

    def get_at_most(self, key: K, rows: int) -> V | None:
        """Return the value of the state for a key with at most `rows` rows.

        Raises:
            QueryError: the key has more rows.
            StateTypeError, QueryError: as for `get`.
        """
        found, is_cut = self.get_first(key, rows)
        if is_cut:
            raise QueryError(
                f"state {self._name!r} has more than {rows:,} rows for this key: read a part, with "
                "start, end and limit"
            )
        return found

    def get_first(self, key: K, rows: int) -> tuple[V | None, bool]:
        """Return the value of the first rows of a key, and whether the key has more rows.

        Raises:
            StateTypeError, QueryError: as for `get`.
        """
        if self._rows.shape is RowShape.VALUE:
            return self.get(key), False
        _check_count("rows", rows, "give a number of rows, from 0")
        prefix = self._prefix(key)
        stored = list(islice(self._stored(prefix), rows + 1))
        whole: V = self._rows.whole(stored[:rows], len(prefix))
        return whole, len(stored) > rows

    def next_expiry(self, key: K) -> dt.datetime | None:
        """Return the next deadline of a key's rows by the clock of the TTL; None if none expires.

        Raises:
            StateTypeError, QueryError: as for `get`.
        """
        if self._rows.state.ttl is None:
            return None
        deadlines = (self._rows.deadline_us(row) for _, row in self._stored(self._prefix(key)))
        first = min((at for at in deadlines if at is not None), default=None)
        return None if first is None else instant(first)

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of the state for several keys, in that order.

        Raises:
            StateTypeError: one of them is not a key of the operator, or `keys` is a single key.
            QueryError: the replica does not have the key group of one, or the view was closed.
        """
        keys = listed_keys(keys)
        if self._rows.shape is not RowShape.VALUE:
            return [self.get(key) for key in keys]
        values: list[V | None] = []
        for start in range(0, len(keys), KEYS_AT_ONCE):
            prefixes = self._rows.keys.prefixes(keys[start : start + KEYS_AT_ONCE])
            if not self._has_all_groups:
                for prefix in prefixes:
                    self._check_group(prefix)
            values += map(self._value, self._get_many(prefixes))
        return values

    def entry(self, key: K, map_key: Any) -> Any:
        """Return the value of one map entry without reading the others; None if it is absent.

        Raises:
            StateTypeError: it is not a key of the operator, or of the map.
            QueryError: the state is not a map, or as for `get`.
        """
        self._check_shape(RowShape.ENTRIES, "entries")
        row_key = self._prefix(key) + self._rows.encode_place(map_key)
        return self._value(self._get(row_key))

    def entries(
        self,
        key: K,
        start: Any = None,
        end: Any = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        after: Any = None,
        prefix: Any = None,
        closed: ClosedBounds = "left",
        offset: int = 0,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the entries of a map in the order of their keys.

        Parameters:
            start, end: bounds of map keys; None for no bound.
            after: only entries after this map key, in the order of the scan.
            limit, reverse, prefix, closed, offset: as for `scan`, of map keys and entries.

        Raises:
            StateTypeError, QueryError: as for `entry` and `scan`.
        """
        self._check_shape(RowShape.ENTRIES, "entries")
        limit, offset = _checked_numbers(limit, offset, "entries")
        rows, own = self._rows, self._prefix(key)
        bounds = rows.places.range(start, end, prefix, closed)
        if after is not None:
            bounds = bounds.after(rows.encode_place(after), reverse=reverse)
        found = self._unexpired(*bounds.within(own), reverse=reverse)
        for row_key, row in islice(islice(found, offset, None), limit):
            yield rows.place(row_key, len(own)), rows.value(row)

    def count_of(
        self,
        key: K,
        start: Any = None,
        end: Any = None,
        *,
        prefix: Any = None,
        closed: ClosedBounds = "left",
    ) -> int:
        """Return the number of rows of a key: entries of a map, elements of a list, or one value.
        They are read, and not decoded.

        Parameters:
            start, end, prefix, closed: as for `entries`, for a map.

        Raises:
            StateTypeError: as for `entries`.
            QueryError: the state has no map keys that a range could select, or as for `get`.
        """
        own, bounds = self._prefix(key), KeyRange()
        if (start, end, prefix) != (None, None, None):
            bounds = self._rows.places.range(start, end, prefix, closed)
        return sum(1 for _ in self._unexpired(*bounds.within(own)))

    def elements(self, key: K, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return a slice of a list. This reads the list up to `stop`.

        Raises:
            StateTypeError, QueryError: as for `get`, or the state is not a list.
        """
        self._check_shape(RowShape.ELEMENTS, "elements")
        for name, place in (("start", start), ("stop", 0 if stop is None else stop)):
            _check_count(f"list state {self._name!r}: {name}", place, "give an index, from 0")
        prefix = self._prefix(key)
        return [self._rows.value(row) for _, row in islice(self._stored(prefix), start, stop)]

    def expires(self, key: K, place: Any = None) -> dt.datetime | None:
        """Return the deadline of a row by the clock of its TTL.

        Parameters:
            place: the map key; the index of a list element, from 0; None for states with one row
                per key.

        Returns:
            None if the row is absent, or does not expire.

        Raises:
            StateTypeError: it is not a key of the operator, or of the map.
            QueryError: the state has no such places, or as for `get`.
        """
        row = self._row(self._prefix(key), place)
        if row is None or self._rows.is_expired(row, self._now_us):
            return None
        deadline_us = self._rows.deadline_us(row)
        return None if deadline_us is None else instant(deadline_us)

    def _row(self, prefix: bytes, place: Any) -> bytes | None:
        """Return the row at a place of a key, as for `expires`."""
        shape = self._rows.shape
        if shape is RowShape.ELEMENTS:
            use = "give the index of an element, from 0"
            _check_count(f"list state {self._name!r}: place", place, use)
            return next((row for _, row in islice(self._stored(prefix), place, None)), None)
        if shape is RowShape.ENTRIES:
            prefix += self._rows.encode_place(place)
        elif place is not None:
            raise QueryError(
                f"place={shown(place)} of state {self._name!r}, which has one row per key: leave "
                "it out"
            )
        return self._get(prefix)

    # ----------------------------------------------------------------------------- all the keys

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield every key with its value, in the order of key groups and keys.

        Raises:
            QueryError: the view was closed.
        """
        rows = self._rows
        for prefix, own in rows.by_key(self._unexpired(*group_bounds(*self._groups))):
            yield rows.keys.split(prefix)[0], rows.whole(own, len(prefix))

    def rows(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the key, place and value of each row in the form of the change feed, in the order
        of key groups and keys.

        The place is the map key, or the position of a list element; None for states with one row
        per key.

        Raises:
            QueryError: the view was closed.
        """
        return self._rows_between(*group_bounds(*self._groups))

    def rows_of(self, key: K) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the rows of one key, as `rows`.

        Raises:
            StateTypeError: it is not a key of the operator.
            QueryError: as for `get`.
        """
        prefix = self._prefix(key)
        return self._rows_between(prefix, prefix_end(prefix))

    def _rows_between(self, first: bytes, last: bytes) -> Iterator[tuple[Any, Any, Any]]:
        rows = self._rows
        for row_key, row in self._unexpired(first, last):
            key, end = rows.keys.split(row_key)
            yield key, rows.place(row_key, end), rows.value(row)

    def stored_rows(self, keys: Sequence[bytes]) -> list[bytes | None] | list[list[Row]]:
        """Return the stored rows of some keys that have not expired.

        Parameters:
            keys: encoded.

        Returns:
            For a state with one row per key, the row of each key, or None. For other states, the
            rows of each key: the part of the row key after the key, and the row.

        Raises:
            StateTypeError: one of them is not a key of the operator.
            QueryError: as for `get`.
        """
        if self._rows.shape is RowShape.VALUE:
            self.check_open()
            return self._hot.get_many(keys, self._stored_values)
        prefixes = self._regrouped(keys)
        found = zip(prefixes, map(len, prefixes), strict=True)
        return [[(key[end:], row) for key, row in self._stored(p)] for p, end in found]

    def hot_rows(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """Return the `stored_rows` of a state with one row per key; None if not all are in memory.

        Raises:
            QueryError: the view was closed.
        """
        self.check_open()
        return self._hot.known(keys)

    def _stored_values(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the row of each encoded key; None if it is absent or has expired."""
        rows, now_us = self._rows, self._now_us
        of_keys = self._get_many(self._regrouped(keys))
        if not rows.may_expire:
            return of_keys
        return [None if row is None or rows.is_expired(row, now_us) else row for row in of_keys]

    def _regrouped(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the prefix of the row keys of each encoded key."""
        try:
            prefixes = [self._rows.keys.regrouped(_NO_GROUP + key) for key in keys]
        except CorruptCheckpointError as error:
            raise StateTypeError(f"a key cannot be decoded: {error}") from error
        if not self._has_all_groups:
            for prefix in prefixes:
                self._check_group(prefix)
        return prefixes

    def forget_hot_rows(self) -> None:
        """Free the memory of the hot rows, when the epoch is not the last one any more."""
        self._hot.forget()

    def count(
        self,
        start: K | None = None,
        end: K | None = None,
        *,
        prefix: Any = None,
        closed: ClosedBounds = "left",
    ) -> int:
        """Return the number of rows of the keys of a range: values, elements or entries.

        The rows are read, and not decoded. Those of all keys are not read if no row can expire and
        the replica has all key groups.

        Parameters:
            start, end, prefix, closed: as for `scan`; by default all keys.

        Raises:
            StateTypeError: as for `scan`.
            QueryError: the view was closed.
        """
        self.check_open()
        bounds = self._rows.keys.range(start, end, prefix, closed)
        if bounds == KeyRange() and not self._rows.may_expire and self._has_all_groups:
            return self._manifest.operators[self._rows.operator.name].rows.get(self._name, 0)
        first, last = self._groups
        groups = map(pack_group, range(first, last + 1))
        return sum(1 for own in groups for _ in self._unexpired(*bounds.within(own)))

    def scan(
        self,
        start: K | None = None,
        end: K | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        after: K | None = None,
        prefix: Any = None,
        closed: ClosedBounds = "left",
        offset: int = 0,
    ) -> Iterator[tuple[K, V]]:
        """Yield the keys of a range in order, with their values.

        Keys are stored by key group, so this merges one scan per key group.

        Parameters:
            start, end: bounds of keys; None for no bound.
            limit: the maximum number of keys; None for all.
            reverse: from the last to the first.
            after: only keys after this one, in the order of the scan.
            prefix: only keys that begin with this text, with these bytes, or with these first parts
                of a tuple.
            closed: the bounds that are in the range: "left", "right", "both" or "none".
            offset: the number of keys to leave out before the first one. Their rows are read: to
                read page by page, use `page`.

        Raises:
            StateTypeError: a bound is not a key of the operator, keys have no such prefix, or
                `closed` is no choice of bounds.
            QueryError: the limit or the offset is not a number from 0 on, or the view was closed.
        """
        limit, offset = _checked_numbers(limit, offset, "keys")
        bounds = self._rows.keys.range(start, end, prefix, closed)
        if after is not None:
            bounds = bounds.after(self._rows.keys.encode(after), reverse=reverse)
        found = self._scanned(bounds, reverse, offset=offset)
        return ((key, value) for _, key, _, value in islice(found, limit))

    def page(
        self,
        start: K | None = None,
        end: K | None = None,
        *,
        limit: int = 1_000,
        reverse: bool = False,
        cursor: str | None = None,
        rows: int | None = None,
        prefix: Any = None,
        closed: ClosedBounds = "left",
        offset: int = 0,
    ) -> Page[K, V]:
        """Return one page of a scan, and the cursor for the next page.

        Parameters:
            start, end, reverse, prefix, closed: as for `scan`, the same for all pages.
            limit: the maximum number of keys in a page.
            offset: as for `scan`, for the first page.
            cursor: of the page before; None for the first page.
            rows: the maximum number of rows in a page: it ends before the key that exceeds it.
                None for any number.

        Raises:
            LargeKeyError: the first key of the page has more rows.
            QueryError: the limit is below 1, the cursor is of another epoch, state, range or
                direction, is not valid, or is given with an offset, or the view was closed.
            StateTypeError: a bound is not a key of the operator.
        """
        _, offset = _checked_numbers(limit, offset, "keys", least=1)
        if rows is not None:
            _check_count("rows", rows, "give a number of rows, from 0, or None")
        name = f"{self._rows.operator.name}.{self._name}"
        bounds = self._rows.keys.range(start, end, prefix, closed)
        scan = PageCursor.at_start(self._epoch_id, name, reverse, *bounds)
        if cursor is not None:
            if offset:
                raise QueryError(
                    f"offset={offset} with a cursor: an offset counts from the beginning of a "
                    "scan, and a cursor continues the scan. Leave one of them out"
                )
            place = PageCursor.of_text(cursor)
            place.check(scan)
            bounds = bounds.after(place.after, reverse=reverse)
        items: list[tuple[K, V]] = []
        last, left = b"", rows
        for encoded, key, count, value in self._scanned(bounds, reverse, rows, offset):
            is_too_much = left is not None and count > left
            if items and (is_too_much or len(items) == limit):
                return Page(items, scan.text_after(last))
            if is_too_much:
                raise LargeKeyError(
                    f"state {self._name!r} has more than {rows:,} rows for the key "
                    f"{shown(key, 500)}: read this key in parts, with key, start, end and limit, "
                    "and the keys after it with the cursor of this answer",
                    key,
                    scan.text_after(encoded),
                )
            items.append((key, value))
            last, left = encoded, None if left is None else left - count
        return Page(items, None)

    def _scanned(
        self, bounds: KeyRange, reverse: bool, most: int | None = None, offset: int = 0
    ) -> Iterator[tuple[bytes, K, int, V]]:
        """Yield the bytes of each key in a range, the key, the number of its rows, and its value.

        Parameters:
            bounds: the range.
            most: at most one row more than this is read of each key.
            offset: the number of keys to leave out. They are not decoded.
        """
        rows = self._rows

        def of_group(number: int) -> Iterator[tuple[bytes, list[Row]]]:
            """Yield the bytes of each key of a key group, with its rows in order."""
            stored = self._unexpired(*bounds.within(pack_group(number)), reverse=reverse)
            for prefix, own in rows.by_key(stored, None if most is None else most + 1):
                yield prefix[GROUP_BYTES:], own[::-1] if reverse else own

        scans = map(of_group, range(self._groups[0], self._groups[1] + 1))
        merged = merge(*scans, key=lambda found: found[0], reverse=reverse)
        for key, own in islice(merged, offset, None):
            prefix = own[0][0][: GROUP_BYTES + len(key)]
            yield key, rows.keys.split(prefix)[0], len(own), rows.whole(own, len(prefix))

    # ----------------------------------------------------------------------------------- helpers

    def _prefix(self, key: K) -> bytes:
        prefix = self._rows.keys.prefix(key)
        if not self._has_all_groups:
            self._check_group(prefix)
        return prefix

    def _check_group(self, prefix: bytes) -> None:
        first, last = self._groups
        if not first <= (group := group_of_row(prefix)) <= last:
            raise QueryError(
                f"this replica has the key groups {first} to {last}, and the key belongs to "
                f"{group}: ask the replica that has it, or open one with key_groups=None"
            )

    def _value(self, row: bytes | None) -> Any:
        rows = self._rows
        if row is None or (not self._is_plain and rows.is_expired(row, self._now_us)):
            return rows.absent
        return rows.value(row)

    def _get(self, row_key: bytes) -> bytes | None:
        self._check()
        return self._source.get(self._name, row_key)

    def _get_many(self, row_keys: Sequence[bytes]) -> list[bytes | None]:
        self._check()
        return self._source.get_many(self._name, row_keys)

    def _stored(self, prefix: bytes) -> Iterator[Row]:
        return self._unexpired(prefix, prefix_end(prefix))

    def _unexpired(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Row]:
        stored = self._source.scan(self._name, start, end, self._check, reverse=reverse)
        return self._rows.unexpired(stored, self._now_us)

    def _check_shape(self, shape: RowShape, parts: str) -> None:
        if self._rows.shape is not shape:
            raise QueryError(
                f"state {self._name!r} is a {self._rows.state.kind} state and has no {parts}: use "
                "get"
            )


def _checked_numbers(
    limit: int | None, offset: int, what: str, *, least: int = 0
) -> tuple[int | None, int]:
    """Check the limit and the offset of a scan, and return them in the range of `islice`.

    Parameters:
        what: keys or entries, for messages.
        least: the least limit.

    Raises:
        QueryError: the limit is below the least one, or the offset below 0.
    """
    use = f"give a number of {what}, at least"
    _check_count("offset", offset, f"{use} 0")
    if limit is not None:
        _check_count("limit", limit, f"{use} {least}", least=least)
        limit = min(limit, sys.maxsize)
    return limit, min(offset, sys.maxsize)


def _check_count(name: str, given: object, use: str, *, least: int = 0) -> None:
    """Check an argument that is a number of keys or rows, or an index.

    Raises:
        QueryError: it is not an int, or it is below `least`.
    """
    if fault := int_fault(given, use, least=least):
        raise QueryError(f"{name}={shown(given)}{fault}")
