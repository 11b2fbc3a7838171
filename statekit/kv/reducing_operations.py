"""Operations that combine a value with an added one: no record is kept, and no function of the user
is needed.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Required, Unpack, overload

from typing_extensions import TypeVar

from statekit.codec.annotations import show
from statekit.errors import StateTypeError
from statekit.job.declarations import declares
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.requests import WHOLE, Given, Keys, RequestPart
from statekit.kv.sorted_operations import CellOptions
from statekit.kv.store_operator import StoreOperator
from statekit.kv.typed_answers import PutAnswer
from statekit.shown import shown
from statekit.state.options import Reduce

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")

_NUMBERS = (int, float, decimal.Decimal, dt.timedelta)


class IncrementOptions(CellOptions, total=False):
    """Options of `KVStore.increment`, which describes each."""

    by: Any


class ReduceOptions(CellOptions, total=False):
    """Options of `KVStore.reduce` and `append`, which describe each."""

    value: Required[Given]


class ReducingOperations(Generic[K, V]):
    """The operations of a `KVStore` that combine a value with an added one."""

    _operator: StoreOperator

    @overload
    def increment(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[IncrementOptions]
    ) -> Stream[PutAnswer[K, V]]: ...
    @overload
    def increment(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[IncrementOptions]
    ) -> Stream[R]: ...
    @declares("store.increment")
    def increment(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        by: Any = 1,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Add a number to a value for each record; an absent value counts as 0. Answers have `key`,
        `by` if it is of the record, and `value`, the new one.

        Parameters:
            by: the number to add, or the field or function with it.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._operator
        if store.value not in _NUMBERS:
            raise StateTypeError(
                f"{store.where}: increment needs values that are numbers, and these are "
                f"{show(store.value)}: use reduce or update"
            )
        parts, constant = store.cell_parts(key, sort), None
        if isinstance(by, str) or callable(by):
            parts.append(RequestPart("by", store.value, by))
        else:
            constant = store.constant("increment", "by", by)
        add = operator.add
        handle = partial(operations.reduce, combine=add, part="by", constant=constant)
        return self._reduced("increment", stream, parts, handle, into, name, add, constant=constant)

    @overload
    def append(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[ReduceOptions]
    ) -> Stream[PutAnswer[K, V]]: ...
    @overload
    def append(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[ReduceOptions]
    ) -> Stream[R]: ...
    @declares("store.append")
    def append(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Append an element to a value that is a list, for each record. Answers have `key`, the
        element as `added`, and `value`, the new list.

        A value is one row, which is written as a whole. For long lists use a store with `sort=`.

        Parameters:
            value: the field with the element, or a function; by default the record itself.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._operator
        if typing.get_origin(store.value) is not list:
            raise StateTypeError(
                f"{store.where}: append needs values that are lists, and these are "
                f"{show(store.value)}: declare the store with value=list[...]"
            )
        (element,) = typing.get_args(store.value)
        parts = [*store.cell_parts(key, sort), RequestPart("added", element, value)]
        combine = operations.appended
        handle = partial(operations.reduce, combine=combine, first=operations.one)
        return self._reduced("append", stream, parts, handle, into, name, combine, operations.one)

    @overload
    def reduce(
        self, stream: Stream[T], fn: Any, *, into: None = ..., **options: Unpack[ReduceOptions]
    ) -> Stream[PutAnswer[K, V]]: ...
    @overload
    def reduce(
        self, stream: Stream[T], fn: Any, *, into: type[R], **options: Unpack[ReduceOptions]
    ) -> Stream[R]: ...
    @declares("store.reduce")
    def reduce(
        self,
        stream: Stream[T],
        fn: Any,
        *,
        key: Keys,
        value: Given,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Combine a value with an added one, for each record. Answers have `key`, `added`, and
        `value`, the new one.

        Parameters:
            fn: `sum`, `min` or `max`, or a function of the value and the added one, as for
                `Reduce`. An absent value becomes the added one.
            value: the field with the added value, or a function.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._operator
        reducer = Reduce(fn)
        if reducer.known == "count":
            raise StateTypeError(
                f"{store.where}: reduce({shown(fn)}) does not combine values: use increment"
            )
        parts = [*store.cell_parts(key, sort), RequestPart("added", store.value, value)]
        handle = partial(operations.reduce, combine=reducer.combine)
        return self._reduced("reduce", stream, parts, handle, into, name, reducer.combine)

    def _reduced(
        self,
        kind: str,
        stream: Stream[Any],
        parts: list[RequestPart],
        handle: Any,
        into: Any,
        name: str | None,
        combine: Callable[[Any, Any], Any],
        first: Callable[[Any], Any] | None = None,
        constant: Any = None,
    ) -> Stream[Any]:
        """Declare an operation that combines values."""
        results = {"value": self._operator.value}
        arguments = {"combine": combine, "first": first, "constant": constant}
        return self._operator.added(kind, stream, parts, results, handle, into, name, **arguments)
