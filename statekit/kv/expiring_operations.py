"""Operations that set when a value expires."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any, Generic, Required, Unpack, overload

from typing_extensions import TypeVar

from statekit.job.declarations import declares
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.requests import Given, Keys
from statekit.kv.sorted_operations import CellOptions
from statekit.kv.store_operator import StoreOperator
from statekit.kv.typed_answers import ExistsAnswer
from statekit.timestamp import duration_to_micros

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")


class ExpireOptions(CellOptions, total=False):
    """Options of `KVStore.expire`, which describes each."""

    ttl: Required[Given | dt.timedelta]


class ExpiringOperations(Generic[K, V]):
    """The operations of a `KVStore` with a TTL that set when a value expires."""

    _operator: StoreOperator

    @overload
    def expire(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[ExpireOptions]
    ) -> Stream[ExistsAnswer[K]]: ...
    @overload
    def expire(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[ExpireOptions]
    ) -> Stream[R]: ...
    @declares("store.expire")
    def expire(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        ttl: Given | dt.timedelta,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Set when a value expires, for each record. Answers have `key`, `ttl` if it is of the
        record, and `exists`, which is True if there was a value.

        Parameters:
            ttl: the lifetime from now on, by the clock of the store's TTL: a timedelta, or the
                field or function with it. None is that of the store; with 0 or less the value
                expires at once.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._operator
        constant, part = store.lifetime("expire", ttl)
        assert store.ttl is not None
        default = dt.timedelta(microseconds=duration_to_micros(store.ttl.duration, "ttl"))
        handle = partial(operations.expire, constant=constant, default=default)
        results = {"exists": bool}
        parts = [*store.cell_parts(key, sort), *part]
        of = {"constant": constant, "default": default}
        return store.added("expire", stream, parts, results, handle, into, name, **of)

    @overload
    def persist(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[CellOptions]
    ) -> Stream[ExistsAnswer[K]]: ...
    @overload
    def persist(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[CellOptions]
    ) -> Stream[R]: ...
    @declares("store.persist")
    def persist(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Keep a value that would expire, for each record. Answers have `key` and `exists`, which
        is True if there was a value.

        The value stays until it is removed, or `expire` or a `put` with `ttl=` sets a lifetime.

        The parameters and errors are those of `put`.
        """
        store = self._operator
        store.lifetime("persist", dt.timedelta(0))
        parts, results = store.cell_parts(key, sort), {"exists": bool}
        return store.added("persist", stream, parts, results, operations.persist, into, name)
