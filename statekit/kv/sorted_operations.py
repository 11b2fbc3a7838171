"""Operations of sorted stores: reads and removals of ranges of one partition."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, Required, TypedDict, Unpack, overload

from typing_extensions import TypeVar

from statekit.codec.annotations import show
from statekit.errors import StateTypeError
from statekit.job.declarations import declares
from statekit.job.stream import Stream
from statekit.kv import range_operations as ranges_of
from statekit.kv.annotations import list_of, optional, pair_of
from statekit.kv.answers import entry_class
from statekit.kv.layouts import SortedValues
from statekit.kv.range_operations import EntryCount, Scan, SelectedRange
from statekit.kv.requests import Given, Keys, RequestPart
from statekit.kv.store_operator import StoreOperator
from statekit.kv.typed_answers import (
    CountAnswer,
    EntryAnswer,
    RemovedAnswer,
    ScanAnswer,
    ScansAnswer,
)
from statekit.shown import shown
from statekit.state.closed_bounds import ClosedBounds, closed_ends

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")

Prefix = Given | tuple[Given, ...] | None
"""Source of a prefix: a field with a text or bytes; fields with the first parts of a tuple."""


class CellOptions(TypedDict, total=False):
    """Options of an operation on one value. `KVStore.put` describes each."""

    key: Required[Keys]
    sort: Given | None
    name: str | None


class RangeOptions(TypedDict, total=False):
    """Options of an operation on a range. `KVStore.scan` describes each."""

    key: Required[Keys]
    start: Given | None
    end: Given | None
    closed: ClosedBounds
    prefix: Prefix
    name: str | None


class ScanOptions(RangeOptions, total=False):
    """Options of `KVStore.scan`, which describes each."""

    reverse: bool
    limit: Given | int | None
    offset: Given | int
    after: Given | None


class MultiScanOptions(TypedDict, total=False):
    """Options of `KVStore.multi_scan`, which describes each."""

    key: Required[Keys]
    ranges: Required[Given]
    closed: ClosedBounds
    reverse: bool
    limit: Given | int | None
    name: str | None


class SortedOperations(Generic[K, V]):
    """The operations of a `KVStore` that has an order within a key."""

    _operator: StoreOperator

    @overload
    def scan(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[ScanOptions]
    ) -> Stream[ScanAnswer[K, V]]: ...
    @overload
    def scan(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[ScanOptions]
    ) -> Stream[R]: ...
    @declares("store.scan")
    def scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        closed: ClosedBounds = "left",
        prefix: Prefix = None,
        reverse: bool = False,
        limit: Given | int | None = None,
        offset: Given | int = 0,
        after: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Read entries of a partition in order, for each record. Answers have `key`, the bounds of
        the request, and `entries`, a list of records with `sort` and `value`.

        Parameters:
            key: the field, fields or function with the partition.
            start, end: fields, or functions, with the bounds of the ordered part; None for no
                bound.
            closed: the bounds that are in the range: "left", the default, "right", "both" or
                "none".
            prefix: the field with a text, or with bytes, that the ordered part begins with. If the
                ordered part is a tuple: fields with its first parts. None for all.
            reverse: from the greatest ordered part to the smallest.
            limit: limit of entries, or the field or function with it; None for all.
            offset: the number of entries to leave out before the first one, or the field or
                function with it. They are read: to read page by page, use `after`.
            after: the field, or function, with the ordered part of the entry to continue after;
                None for the beginning. Answers also have `next`, the `after` of the next request;
                None at the end.
            into: a class for the answers. Its `entries` are a list of records with `sort` and
                `value`, of any class.

        The other parameters, and the errors, are those of `put`.
        """
        store, bound = self._sorted("scan"), optional(self._operator.sort)
        selected = self._selected("scan", start, end, closed, prefix, reverse)
        limited, of_limit = self._number("scan", "limit", limit, 1)
        left_out, of_offset = self._number("scan", "offset", offset, 0)
        page = [] if after is None else [RequestPart("after", bound, after)]
        entry = entry_class(f"{store.where}.scan", self._entry_fields(), into)
        of = Scan(entry, selected, reverse, limited, left_out, continues=after is not None)
        results = {"entries": list_of(entry)} | ({"next": bound} if page else {})
        parts = [*store.key_parts(key), *selected.parts, *of_limit, *of_offset, *page]
        handle = partial(ranges_of.scan, of=of)
        return store.added("scan", stream, parts, results, handle, into, name, of=of)

    @overload
    def multi_scan(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[MultiScanOptions]
    ) -> Stream[ScansAnswer[K, V]]: ...
    @overload
    def multi_scan(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[MultiScanOptions]
    ) -> Stream[R]: ...
    @declares("store.multi_scan")
    def multi_scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        ranges: Given,
        closed: ClosedBounds = "left",
        reverse: bool = False,
        limit: Given | int | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Read several ranges of a partition for each record. Answers have `key`, the `ranges`, and
        `entries`: for each range a list of its entries.

        Parameters:
            ranges: the field with a list of pairs of bounds, or a function that returns one; None
                for no bound. A field has the type `list[tuple[S | None, S | None]]`.
            limit: limit of the entries of each range.

        The other parameters, and the errors, are those of `scan`.
        """
        store, bound = self._sorted("multi_scan"), optional(self._operator.sort)
        selected = self._selected("multi_scan", None, None, closed, None, reverse)
        limited, of_limit = self._number("multi_scan", "limit", limit, 1)
        entry = entry_class(f"{store.where}.multi_scan", self._entry_fields(), into, lists=2)
        of = Scan(entry, selected, reverse, limited, EntryCount(store.where, "offset"))
        of_ranges = RequestPart("ranges", list_of(pair_of(bound)), ranges)
        parts = [*store.key_parts(key), of_ranges, *of_limit]
        results = {"entries": list_of(list_of(entry))}
        handle = partial(ranges_of.multi_scan, of=of)
        return store.added("multi_scan", stream, parts, results, handle, into, name, of=of)

    @overload
    def count(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[RangeOptions]
    ) -> Stream[CountAnswer[K]]: ...
    @overload
    def count(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[RangeOptions]
    ) -> Stream[R]: ...
    @declares("store.count")
    def count(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        closed: ClosedBounds = "left",
        prefix: Prefix = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Count the entries of a range of a partition, for each record. Answers have `key`, the
        bounds of the request, and `count`. Its rows are read.

        The parameters and errors are those of `scan`.
        """
        results = {"count": int}
        selected = self._selected("count", start, end, closed, prefix)
        handle = partial(ranges_of.count_range, selected=selected)
        return self._of_range("count", stream, key, selected, results, handle, into, name)

    @overload
    def first(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[RangeOptions]
    ) -> Stream[EntryAnswer[K, V]]: ...
    @overload
    def first(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[RangeOptions]
    ) -> Stream[R]: ...
    @declares("store.first")
    def first(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        closed: ClosedBounds = "left",
        prefix: Prefix = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Read the first entry of a range of a partition, for each record. Answers have `key`, the
        bounds of the request, and the `sort` and `value` of the entry; None if there is none. No
        other entry is read.

        The parameters and errors are those of `scan`.
        """
        selected = self._selected("first", start, end, closed, prefix)
        return self._outermost("first", stream, key, selected, into, name)

    @overload
    def last(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[RangeOptions]
    ) -> Stream[EntryAnswer[K, V]]: ...
    @overload
    def last(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[RangeOptions]
    ) -> Stream[R]: ...
    @declares("store.last")
    def last(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        closed: ClosedBounds = "left",
        prefix: Prefix = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Read the last entry of a range of a partition, for each record, as `first`.

        With `end` and `closed="right"` it is the entry at a place, or the last one before it.
        """
        selected = self._selected("last", start, end, closed, prefix)
        return self._outermost("last", stream, key, selected, into, name)

    @overload
    def remove_range(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[RangeOptions]
    ) -> Stream[RemovedAnswer[K]]: ...
    @overload
    def remove_range(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[RangeOptions]
    ) -> Stream[R]: ...
    @declares("store.remove_range")
    def remove_range(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        closed: ClosedBounds = "left",
        prefix: Prefix = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Remove the entries of a range of a partition, for each record. Answers have `key`, the
        bounds of the request, and `removed`, the number of removed entries.

        The parameters and errors are those of `scan`.
        """
        results = {"removed": int}
        selected = self._selected("remove_range", start, end, closed, prefix)
        handle = partial(ranges_of.remove_range, selected=selected)
        return self._of_range("remove_range", stream, key, selected, results, handle, into, name)

    @overload
    def trim(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        keep: Given | int,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[RemovedAnswer[K]]: ...
    @overload
    def trim(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        keep: Given | int,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    @declares("store.trim")
    def trim(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        keep: Given | int,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Remove all entries of a partition but the last ones, for each record. Answers have `key`
        and `removed`, the number of removed entries. The entries that stay are read, too, without
        their values.

        Parameters:
            keep: the number of entries to keep, or the field or function with it.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._sorted("trim")
        if keep is None:
            raise StateTypeError(
                f"{store.where}: trim(keep=None) would remove all entries: give the number of "
                "entries to keep, or use remove_range"
            )
        kept, of_keep = self._number("trim", "keep", keep, 0, of=int)
        parts = [*store.key_parts(key), *of_keep]
        handle = partial(ranges_of.trim, keep=kept)
        results = {"removed": int}
        return store.added("trim", stream, parts, results, handle, into, name, keep=kept)

    # ----------------------------------------------------------------------------------- helpers

    def _sorted(self, kind: str) -> StoreOperator:
        """Return the operator after checking that the store has an order within a key."""
        store = self._operator
        if not isinstance(store.layout, SortedValues):
            raise StateTypeError(
                f"{store.where}: {kind} needs an order within a key: declare the store with sort="
            )
        return store

    def _entry_fields(self) -> dict[str, Any]:
        return {"sort": self._operator.sort, "value": self._operator.value}

    def _selected(
        self,
        kind: str,
        start: Given | None,
        end: Given | None,
        closed: ClosedBounds,
        prefix: Prefix,
        reverse: bool = False,
    ) -> SelectedRange:
        """Return the range that requests select, after checking the direction, too."""
        store = self._sorted(kind)
        if not isinstance(reverse, bool):
            raise StateTypeError(
                f"{store.where}: {kind}(reverse={shown(reverse)}): use True or False"
            )
        try:
            closed_ends(closed)
        except StateTypeError as error:
            raise StateTypeError(f"{store.where}: {kind}: {error}") from None
        bound = optional(store.sort)
        parts = [] if start is None else [RequestPart("start", bound, start)]
        parts += [] if end is None else [RequestPart("end", bound, end)]
        parts += [] if prefix is None else self._prefix_parts(kind, prefix)
        return SelectedRange(closed, tuple(parts))

    def _prefix_parts(self, kind: str, prefix: Any) -> list[RequestPart]:
        """Return the parts of a request for the prefix of the ordered part."""
        store = self._operator
        if store.sort in (str, bytes) and not isinstance(prefix, tuple):
            return [RequestPart("prefix", optional(store.sort), prefix)]
        given = prefix if isinstance(prefix, tuple) else (prefix,)
        types = _types_of_parts(store.sort)
        if not 0 < len(given) <= len(types):
            raise StateTypeError(
                f"{store.where}: {kind}(prefix={shown(prefix)}): the ordered part is "
                f"{show(store.sort)}. A text or bytes has a prefix, given as one field, and a "
                "tuple, given as fields with its first parts; for others use start= and end="
            )
        return [
            RequestPart(f"prefix_{place}", optional(of), own)
            for place, (of, own) in enumerate(zip(types, given, strict=False), start=1)
        ]

    def _number(
        self, kind: str, name: str, given: Any, least: int, of: Any = int | None
    ) -> tuple[EntryCount, list[RequestPart]]:
        """Return a number of entries, and the part of a request that has it."""
        where = f"{self._operator.where}: {kind}"
        if isinstance(given, str) or callable(given):
            return EntryCount(where, name), [RequestPart(name, of, given)]
        return EntryCount(where, name, given, least), []

    def _outermost(
        self,
        kind: str,
        stream: Stream[Any],
        key: Keys,
        selected: SelectedRange,
        into: Any,
        name: str | None,
    ) -> Stream[Any]:
        store = self._operator
        results = {"sort": optional(store.sort), "value": optional(store.value)}
        handle = partial(ranges_of.outermost, selected=selected, reverse=kind == "last")
        return self._of_range(kind, stream, key, selected, results, handle, into, name)

    def _of_range(
        self,
        kind: str,
        stream: Stream[Any],
        key: Keys,
        selected: SelectedRange,
        results: dict[str, Any],
        handle: Any,
        into: Any,
        name: str | None,
    ) -> Stream[Any]:
        """Declare an operation on a range."""
        store = self._operator
        parts = [*store.key_parts(key), *selected.parts]
        return store.added(kind, stream, parts, results, handle, into, name, selected=selected)


def _types_of_parts(sort: Any) -> Sequence[Any]:
    """Return the types of the parts of a tuple; none for another type."""
    if typing.get_origin(sort) is tuple:
        return typing.get_args(sort)
    is_named = isinstance(sort, type) and issubclass(sort, tuple)
    return list(typing.get_type_hints(sort).values()) if is_named else ()
