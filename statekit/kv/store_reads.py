"""Operations of a store that read: `get`, `get_with`, `multi_get` and `scan`."""

from __future__ import annotations

from typing import Any, Generic, overload

from typing_extensions import TypeVar

from statekit.errors import StateTypeError
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.annotations import list_of, optional
from statekit.kv.answers import entry_class
from statekit.kv.layouts import SortedValues
from statekit.kv.multi_get import MultiGet
from statekit.kv.requests import Given, Keys, RequestPart, getter
from statekit.kv.store_operator import StoreOperator
from statekit.kv.typed_answers import (
    AsOfAnswer,
    RecordAnswer,
    RecordAsOfAnswer,
    ScanAnswer,
    ValueAnswer,
    ValuesAnswer,
)
from statekit.number_faults import int_fault
from statekit.shown import shown

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")


class StoreReads(Generic[K, V]):
    """The operations of `KVStore` that read."""

    _operator: StoreOperator

    @overload
    def get(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[ValueAnswer[K, V]]: ...
    @overload
    def get(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: Given,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[AsOfAnswer[K, V]]: ...
    @overload
    def get(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def get(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        as_of: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Get a value for each record. Answers have `key` and `value`, which may be None.

        Parameters:
            as_of: the field, or function, with the time of the value to read, in a store with a
                history. Answers also have `as_of` and `status`: "found", "absent", "too old" for a
                time before the history, or "not yet" for a time after the request.

        The other parameters, and the errors, are those of `put`.
        """
        return self._operator.got(
            "get", stream, self._operator.cell_parts(key, sort), as_of, into, name
        )

    @overload
    def get_with(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[RecordAnswer[K, V, T]]: ...
    @overload
    def get_with(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: Given,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[RecordAsOfAnswer[K, V, T]]: ...
    @overload
    def get_with(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        as_of: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def get_with(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        as_of: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Get a value for each record. Answers have `key`, the `record` and `value`, which may be
        None.

        The parameters and errors are those of `get`.
        """
        parts = [*self._operator.cell_parts(key, sort), self._operator.record_part(stream)]
        return self._operator.got("get_with", stream, parts, as_of, into, name)

    @overload
    def multi_get(
        self, stream: Stream[T], *, keys: Given, into: None = ..., name: str | None = ...
    ) -> Stream[ValuesAnswer[V, T]]: ...
    @overload
    def multi_get(
        self, stream: Stream[T], *, keys: Given, into: type[R], name: str | None = ...
    ) -> Stream[R]: ...
    def multi_get(
        self, stream: Stream[T], *, keys: Given, into: Any = None, name: str | None = None
    ) -> Stream[Any]:
        """Get the values of several keys for each record. Answers have the `record` and `values`, a
        list in the order of the keys, with None for absent ones.

        With `event_time`, all values are as of the time of the record.

        Parameters:
            keys: the field with a list of keys, or a function of a record that returns one. Keys
                of several parts are tuples.

        The other parameters, and the errors, are those of `put`.
        """
        if self._operator.sort is not None:
            raise StateTypeError(
                f"{self._operator.where}: multi_get is for stores without sort=: use scan, or "
                "several gets"
            )
        name = self._operator.named("multi_get", stream, name)
        self._operator.check_keys(stream, keys)
        times = {} if self._operator.event_time is None else {"at": self._operator.event_time}
        assembly = MultiGet(
            name, stream, self._operator.keys, optional(self._operator.value), times
        )
        handle = operations.get_one_of_many(self._operator.layout)
        results = {"value": optional(self._operator.value)}
        with self._operator.undone_if_refused():
            requests = assembly.requests(getter(stream, keys))
            found = self._operator.declared(
                "multi_get", assembly.found, requests, results, handle, None
            )
            answers = assembly.answers(found, into)
        self._operator.assemblies[answers.name] = assembly
        return answers

    @overload
    def scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = ...,
        end: Given | None = ...,
        reverse: bool = ...,
        limit: int | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[ScanAnswer[K, V]]: ...
    @overload
    def scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = ...,
        end: Given | None = ...,
        reverse: bool = ...,
        limit: int | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        reverse: bool = False,
        limit: int | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Read entries of a partition in order, for each record. Answers have `key`, the bounds of
        the request, and `entries`, a list of records with `sort` and `value`.

        Parameters:
            key: the field, fields or function with the partition.
            start, end: fields, or functions, with the bounds of the ordered part: the first one,
                and the first one that is left out; None for no bound.
            reverse: from the greatest ordered part to the smallest.
            limit: limit of entries; None for all.
            into: a class for the answers. Its `entries` are a list of records with `sort` and
                `value`, of any class.

        The other parameters, and the errors, are those of `put`.
        """
        if not isinstance(self._operator.layout, SortedValues):
            raise StateTypeError(
                f"{self._operator.where}: scan needs an order within a key: declare the store with "
                "sort="
            )
        use = "give a number of entries, at least 1"
        if limit is not None and (fault := int_fault(limit, use, least=1)):
            raise StateTypeError(f"{self._operator.where}: scan(limit={shown(limit)}){fault}")
        bound = optional(self._operator.sort)
        parts = self._operator.key_parts(key)
        parts += [RequestPart("start", bound, start)] if start is not None else []
        parts += [RequestPart("end", bound, end)] if end is not None else []
        fields = {"sort": self._operator.sort, "value": self._operator.value}
        entry = entry_class(f"{self._operator.where}.scan", fields, into)
        handle = operations.scan(entry, reverse=reverse, limit=limit)
        results = {"entries": list_of(entry)}
        of_scan = {"entry": entry, "reverse": reverse, "limit": limit}
        return self._operator.added("scan", stream, parts, results, handle, into, name, **of_scan)
