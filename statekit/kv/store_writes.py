"""Operations of a store that write: `put`, `remove`, `update` and others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from statekit.errors import StateTypeError
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.annotations import optional
from statekit.kv.requests import WHOLE, Given, Keys, RequestPart, check_request_parts, getter
from statekit.kv.store_operator import StoreOperator
from statekit.kv.typed_answers import AttemptAnswer, PutAnswer, UpdateAnswer, ValueAnswer
from statekit.shown import shown

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")


class StoreWrites(Generic[K, V]):
    """The operations of `KVStore` that write."""

    _operator: StoreOperator

    @overload
    def put(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = ...,
        sort: Given | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[PutAnswer[K, V]]: ...
    @overload
    def put(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = ...,
        sort: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def put(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Set a value for each record. Answers have `key` and `value`.

        Parameters:
            stream: the records.
            key: the field with the key, several fields, or a function of a record.
            value: the field with the value, or a function of a record; by default the record
                itself.
            sort: the field, or function, with the ordered part of the key, in a store with `sort`.
            into: a class for the answers.
            name: of the stream of answers; by default the names of the store, of the operation and
                of the stream.

        Raises:
            StateTypeError: a part does not fit its type, or the name is taken.
        """
        parts = [
            *self._operator.cell_parts(key, sort),
            RequestPart("value", self._operator.value, value),
        ]
        return self._operator.added(
            "put", stream, parts, {}, operations.put(self._operator.layout), into, name
        )

    @overload
    def remove(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[ValueAnswer[K, V]]: ...
    @overload
    def remove(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def remove(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Remove a value for each record. Answers have `key` and the `value` that was removed, or
        None.

        The parameters and errors are those of `put`.
        """
        results = {"value": optional(self._operator.value)}
        handle = operations.remove(self._operator.layout)
        return self._operator.added(
            "remove", stream, self._operator.cell_parts(key, sort), results, handle, into, name
        )

    @overload
    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        key: Keys,
        sort: Given | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[UpdateAnswer[K, V, T]]: ...
    @overload
    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        key: Keys,
        sort: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        key: Keys,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Replace a value by the result of a function, for each record. Answers have `key`, the
        `record`, `before`, the old value, and `value`, the new one.

        Parameters:
            fn: takes the value, or None if it is absent, and the record. It returns the new value,
                or None to remove it.

        The other parameters, and the errors, are those of `put`.
        """
        if not callable(fn):
            raise StateTypeError(
                f"{self._operator.where}: update takes a function of a value and a record, not "
                f"{shown(fn)}"
            )
        parts = [*self._operator.cell_parts(key, sort), self._operator.record_part(stream)]
        results = {
            "before": optional(self._operator.value),
            "value": optional(self._operator.value),
        }
        check = self._operator.checked(
            "update", stream, name, "the function", optional(self._operator.value)
        )
        handle = operations.update(self._operator.layout, fn, check)
        return self._operator.added(
            "update", stream, parts, results, handle, into, name, changed=fn
        )

    @overload
    def put_if_absent(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = ...,
        sort: Given | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[AttemptAnswer[K, V, T]]: ...
    @overload
    def put_if_absent(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = ...,
        sort: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def put_if_absent(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Set a value for each record if it is absent. Answers have `key`, the `record`, `won`,
        which is True if the value was set, and `value`, the present value.

        The parameters and errors are those of `put`.
        """
        parts = [*self._operator.cell_parts(key, sort), self._operator.record_part(stream)]
        check_request_parts(
            stream,
            f"{self._operator.where}.put_if_absent",
            [RequestPart("value", self._operator.value, value)],
        )
        results = {"won": bool, "value": self._operator.value}
        new = getter(stream, value)
        check = self._operator.checked(
            "put_if_absent", stream, name, "value=", self._operator.value
        )
        handle = operations.put_if_absent(self._operator.layout, new, check)
        return self._operator.added(
            "put_if_absent", stream, parts, results, handle, into, name, new=new
        )

    @overload
    def compare_and_set(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        expected: Given,
        value: Given,
        sort: Given | None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[AttemptAnswer[K, V, T]]: ...
    @overload
    def compare_and_set(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        expected: Given,
        value: Given,
        sort: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    def compare_and_set(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        expected: Given,
        value: Given,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Replace a value for each record if it equals an expected one. Answers have `key`, the
        `record`, `won`, which is True if the value was replaced, and `value`, the present value.

        Parameters:
            expected: the field with the expected value, or a function of a record; None stands for
                an absent value.
            value: the field with the new value, or a function; None removes it.

        The other parameters, and the errors, are those of `put`.
        """
        parts = [*self._operator.cell_parts(key, sort), self._operator.record_part(stream)]
        given = {"expected": expected, "value": value}
        compared = [
            RequestPart(part, optional(self._operator.value), of) for part, of in given.items()
        ]
        check_request_parts(stream, f"{self._operator.where}.compare_and_set", compared)
        results = {"won": bool, "value": optional(self._operator.value)}
        old, new, of = (
            getter(stream, expected),
            getter(stream, value),
            optional(self._operator.value),
        )
        own = partial(self._operator.checked, "compare_and_set", stream, name)
        checks = own("expected=", of), own("value=", of)
        handle = operations.compare_and_set(self._operator.layout, old, new, of, checks)
        arguments = {"expected": old, "new": new}
        return self._operator.added(
            "compare_and_set", stream, parts, results, handle, into, name, **arguments
        )
