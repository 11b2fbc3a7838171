"""`KVStore`: a key-value store in a job, whose operations are streams."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Required, TypedDict, Unpack, overload

from typing_extensions import TypeVar

from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.declarations import declares
from statekit.job.job import Job
from statekit.job.plan import Plan
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.annotations import list_of, optional
from statekit.kv.answers import entry_class
from statekit.kv.expiring_operations import ExpiringOperations
from statekit.kv.multi_get import MultiGet
from statekit.kv.reducing_operations import ReducingOperations
from statekit.kv.requests import WHOLE, Given, Keys, RequestPart, check_request_parts, getter
from statekit.kv.sorted_operations import CellOptions, SortedOperations
from statekit.kv.store_operator import StoreOperator, Ties
from statekit.kv.typed_answers import (
    AsOfAnswer,
    AttemptAnswer,
    ExistsAnswer,
    PutAnswer,
    RecordAnswer,
    RecordAsOfAnswer,
    StoreChange,
    UpdateAnswer,
    ValueAnswer,
    ValuesAnswer,
    ValuesAsOfAnswer,
    VersionsAnswer,
)
from statekit.shown import shown
from statekit.state.options import TTL

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R")


class PutOptions(CellOptions, total=False):
    """Options of an operation that sets a value. `KVStore.put` describes each."""

    value: Given


class PutForOptions(PutOptions, total=False):
    """Options of `KVStore.put`, which describes each."""

    ttl: Given | dt.timedelta | None


class CompareOptions(CellOptions):
    """Options of `KVStore.compare_and_set`."""

    expected: Given
    value: Given


class VersionOptions(TypedDict, total=False):
    """Options of `KVStore.versions`, which describes each."""

    key: Required[Keys]
    start: Given | None
    end: Given | None
    name: str | None


@declarable("KVStore")
class KVStore(SortedOperations[K, V], ReducingOperations[K, V], ExpiringOperations[K, V]):
    """A key-value store in a job. Its operations are streams, and its values are state.

    Add it to a job, then call its operations with streams of that job, any number of times. Each
    call returns the stream of its answers. Within an epoch, the operations of a key run in the
    order of their declaration; those of one stream run in the order of its records. With
    `event_time`, they run in the order of time.

    An answer is a record with the parts of its request, such as `key`, and the results, such as
    `value`. `into=` is a class for the answers of one operation, with some of these fields.

    Parameters:
        name: of the operator, and a prefix of the names of its streams.
        key: the type of keys: str, int, bytes, bool, a date or a datetime, or a tuple of these,
            such as `tuple[str, int]`.
        value: the type of values, as for `ValueState`. None stands for an absent value.
        sort: the type of the ordered part of keys; `key` is then a partition, within which `scan`
            reads entries in order.
        event_time: the field with the time of the records of all operations. Operations of one key
            and time run in the order of their declaration, then of the values of their requests.
            Answers have the time as `at`.
        lateness: how far the watermark stays behind the largest event time.
        history: lifetime of replaced values, for `as_of`; a timedelta or a text such as "7 days".
            It needs `event_time`.
        ttl: lifetime of a value.
        ties: the order of operations of one key and time: "values", the order above, or "arrival":
            the order of their epochs, of their declaration, and of arrival. Then other epochs may
            give other answers.
        migrate: per state ("value", or "values" with `sort`) hooks as for `@process`.

    Raises:
        StateTypeError: an option is not valid, or two of them cannot be combined.

    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Payment(NamedTuple):
    ...     account: str
    ...     cents: int
    >>> class Query(NamedTuple):
    ...     account: str
    >>> job = sk.Job("bank")
    >>> balances = job.add(sk.KVStore("balances", key=str, value=int))
    >>> payments, queries = job.source("payments", Payment), job.source("queries", Query)
    >>> def paid(balance: int | None, payment: Payment) -> int:
    ...     return (balance or 0) + payment.cents
    >>> _ = balances.update(payments, paid, key="account")
    >>> _ = balances.get(queries, key="account").sink("answers")
    >>> given = {"payments": [Payment("ada", 500), Payment("ada", 20)]}
    >>> run = job.run({**given, "queries": [Query("ada"), Query("bob")]})
    >>> sorted((answer.key, answer.value) for answer in run["answers"])
    [('ada', 520), ('bob', None)]
    """

    def __init__(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        sort: Any = None,
        event_time: str | None = None,
        lateness: dt.timedelta | str = dt.timedelta(0),
        history: dt.timedelta | str | None = None,
        ttl: TTL | None = None,
        ties: Ties = "values",
        migrate: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._operator = StoreOperator(
            name,
            key=key,
            value=value,
            sort=sort,
            event_time=event_time,
            lateness=lateness,
            history=history,
            ttl=ttl,
            ties=ties,
            migrate=migrate,
        )

    def __repr__(self) -> str:
        return f"<KVStore {self.name!r}: {', '.join(self._operator.operations) or 'no operations'}>"

    @property
    def plan(self) -> Plan | None:
        """The plan of the job of the store; None before `Job.add`. Its names may change."""
        return self._operator.plan

    @property
    def function(self) -> Process[Any, ..., Any]:
        """The process function of the store, with all operations so far.

        Give it to a replica, a client or a feed, which then return keys and values of the types of
        the store.

        Raises:
            StateTypeError: no operation was declared.

        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> from statekit.checkpoint.repository import Repository
        >>> class Payment(NamedTuple):
        ...     account: str
        ...     cents: int
        >>> job = sk.Job("bank")
        >>> last = job.add(sk.KVStore("last", key=str, value=Payment))
        >>> _ = last.put(job.source("payments", Payment), key="account")
        >>> checkpoint = Repository.in_memory()
        >>> _ = job.run({"payments": [Payment("ada", 500)]}, checkpoint=checkpoint)
        >>> with sk.Replica(checkpoint, functions=[last.function]) as replica:
        ...     replica.get("last", "value", "ada").value
        Payment(account='ada', cents=500)
        """
        return self._operator.declared_function()

    def added_to(self, job: Job) -> None:
        """Set the job of the store. Called by `Job.add`.

        Raises:
            StateTypeError: it already belongs to a job.
        """
        store = self._operator
        if store.plan is not None:
            raise StateTypeError(
                f"{store.where} belongs to job {store.plan.name!r}: make a store for each job"
            )
        store.plan = job.plan

    @declares("store.changes")
    def changes(self, *, name: str | None = None) -> Stream[StoreChange[K, V]]:
        """Return the stream of all changes that operations make, in the order of each key.

        A change has `key`, `before` and `value`, which are None for an absent value; `sort` in a
        sorted store, and `at` with `event_time`. An operation that sets an equal value makes a
        change, too. A value that expires makes none.

        With this stream, each operation that writes a value also reads it. Declare an operation
        before it. Other operations may be declared later.

        Parameters:
            name: of the stream; by default the name of the store and ".changes".

        Raises:
            StateTypeError: the store has no operations or has such a stream, or the name is taken.
        """
        return self._operator.changes(name)

    def late(self, answers: Stream[Any]) -> Stream[Any]:
        """Return the late requests of an operation: records with `key`, `at` and its other parts;
        for `multi_get`, the records themselves.

        Late operations have no effect and no answers.

        Parameters:
            answers: the stream that the operation returned.

        Raises:
            StateTypeError: the store has no `event_time`, or the stream has no answers of it.
        """
        return self._operator.late(answers)

    @overload
    def put(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[PutForOptions]
    ) -> Stream[PutAnswer[K, V]]: ...
    @overload
    def put(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[PutForOptions]
    ) -> Stream[R]: ...
    @declares("store.put")
    def put(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        ttl: Given | dt.timedelta | None = None,
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
            ttl: the lifetime of the value, in a store with `ttl`: a timedelta, or the field or
                function with it. By default, and for None, that of the store.
            into: a class for the answers.
            name: of the stream of answers; by default the names of the store, of the operation and
                of the stream.

        Raises:
            StateTypeError: a part does not fit its type, or the name is taken.
        """
        store = self._operator
        parts = [*store.cell_parts(key, sort), RequestPart("value", store.value, value)]
        if ttl is None:
            return store.added("put", stream, parts, {}, operations.put, into, name)
        constant, part = store.lifetime("put", ttl)
        handle = partial(operations.put_with_ttl, constant=constant)
        parts += part
        return store.added("put", stream, parts, {}, handle, into, name, constant=constant)

    @overload
    def remove(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[CellOptions]
    ) -> Stream[ValueAnswer[K, V]]: ...
    @overload
    def remove(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[CellOptions]
    ) -> Stream[R]: ...
    @declares("store.remove")
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
        store = self._operator
        results = {"value": optional(store.value)}
        parts = store.cell_parts(key, sort)
        return store.added("remove", stream, parts, results, operations.remove, into, name)

    @overload
    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        into: None = ...,
        **options: Unpack[CellOptions],
    ) -> Stream[UpdateAnswer[K, V, T]]: ...
    @overload
    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        into: type[R],
        **options: Unpack[CellOptions],
    ) -> Stream[R]: ...
    @declares("store.update")
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
        store = self._operator
        if not callable(fn):
            raise StateTypeError(
                f"{store.where}: update takes a function of a value and a record, not {shown(fn)}"
            )
        parts = [*store.cell_parts(key, sort), store.record_part("update", stream)]
        results = {"before": optional(store.value), "value": optional(store.value)}
        check = store.checked("update", stream, name, "the function", optional(store.value))
        handle = partial(operations.update, changed=fn, check=check)
        return store.added("update", stream, parts, results, handle, into, name, changed=fn)

    @overload
    def put_if_absent(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[PutOptions]
    ) -> Stream[AttemptAnswer[K, V, T]]: ...
    @overload
    def put_if_absent(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[PutOptions]
    ) -> Stream[R]: ...
    @declares("store.put_if_absent")
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
        store = self._operator
        parts = [*store.cell_parts(key, sort), store.record_part("put_if_absent", stream)]
        check_request_parts(
            stream, f"{store.where}.put_if_absent", [RequestPart("value", store.value, value)]
        )
        results = {"won": bool, "value": store.value}
        new = getter(stream, value)
        check = store.checked("put_if_absent", stream, name, "value=", store.value)
        handle = partial(operations.put_if_absent, value_of=new, check=check)
        return store.added("put_if_absent", stream, parts, results, handle, into, name, new=new)

    @overload
    def compare_and_set(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[CompareOptions]
    ) -> Stream[AttemptAnswer[K, V, T]]: ...
    @overload
    def compare_and_set(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[CompareOptions]
    ) -> Stream[R]: ...
    @declares("store.compare_and_set")
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
        store = self._operator
        parts = [*store.cell_parts(key, sort), store.record_part("compare_and_set", stream)]
        given = {"expected": expected, "value": value}
        compared = [RequestPart(part, optional(store.value), of) for part, of in given.items()]
        check_request_parts(stream, f"{store.where}.compare_and_set", compared)
        results = {"won": bool, "value": optional(store.value)}
        old, new, of = (getter(stream, expected), getter(stream, value), optional(store.value))
        own = partial(store.checked, "compare_and_set", stream, name)
        checks = own("expected=", of), own("value=", of)
        handle = partial(
            operations.compare_and_set, expected_of=old, value_of=new, of=of, checks=checks
        )
        arguments = {"expected": old, "new": new}
        return store.added(
            "compare_and_set", stream, parts, results, handle, into, name, **arguments
        )

    @overload
    def exists(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[CellOptions]
    ) -> Stream[ExistsAnswer[K]]: ...
    @overload
    def exists(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[CellOptions]
    ) -> Stream[R]: ...
    @declares("store.exists")
    def exists(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Return whether there is a value, for each record. Answers have `key` and `exists`. It is
        no read that restarts a TTL.

        The parameters and errors are those of `put`.
        """
        store = self._operator
        parts, results = store.cell_parts(key, sort), {"exists": bool}
        return store.added("exists", stream, parts, results, operations.exists, into, name)

    @overload
    def get(
        self,
        stream: Stream[T],
        *,
        as_of: None = ...,
        into: None = ...,
        **options: Unpack[CellOptions],
    ) -> Stream[ValueAnswer[K, V]]: ...
    @overload
    def get(
        self, stream: Stream[T], *, as_of: Given, into: None = ..., **options: Unpack[CellOptions]
    ) -> Stream[AsOfAnswer[K, V]]: ...
    @overload
    def get(
        self,
        stream: Stream[T],
        *,
        as_of: Given | None = ...,
        into: type[R],
        **options: Unpack[CellOptions],
    ) -> Stream[R]: ...
    @declares("store.get")
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
        store = self._operator
        return store.got("get", stream, store.cell_parts(key, sort), as_of, into, name)

    @overload
    def get_with(
        self,
        stream: Stream[T],
        *,
        as_of: None = ...,
        into: None = ...,
        **options: Unpack[CellOptions],
    ) -> Stream[RecordAnswer[K, V, T]]: ...
    @overload
    def get_with(
        self, stream: Stream[T], *, as_of: Given, into: None = ..., **options: Unpack[CellOptions]
    ) -> Stream[RecordAsOfAnswer[K, V, T]]: ...
    @overload
    def get_with(
        self,
        stream: Stream[T],
        *,
        as_of: Given | None = ...,
        into: type[R],
        **options: Unpack[CellOptions],
    ) -> Stream[R]: ...
    @declares("store.get_with")
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
        store = self._operator
        parts = [*store.cell_parts(key, sort), store.record_part("get_with", stream)]
        return store.got("get_with", stream, parts, as_of, into, name)

    @overload
    def versions(
        self, stream: Stream[T], *, into: None = ..., **options: Unpack[VersionOptions]
    ) -> Stream[VersionsAnswer[K, V]]: ...
    @overload
    def versions(
        self, stream: Stream[T], *, into: type[R], **options: Unpack[VersionOptions]
    ) -> Stream[R]: ...
    @declares("store.versions")
    def versions(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Get all values that were there in an interval, for each record. The store has a history.

        Answers have `key`, the bounds, `versions`, and `status`: "complete", or "too old" if values
        between the bounds may no longer be known. A version has `value`, `valid_from`, which is
        None if it was there before the store had a history, and `valid_until`, which is None for
        the present value. Versions are in order of time. Only those of the interval are read.

        Parameters:
            start: the field, or function, with the begin of the interval; None, or a time before
                the history, for all values that are kept.
            end: that with the end, which is left out; None for the time of the request.
            into: a class for the answers. Its `versions` are a list of records with `value`,
                `valid_from` and `valid_until`, of any class.

        The other parameters, and the errors, are those of `put`.
        """
        store, bound = self._operator, optional(dt.datetime)
        store.past("versions")
        parts = store.key_parts(key)
        parts += [] if start is None else [RequestPart("start", bound, start)]
        parts += [] if end is None else [RequestPart("end", bound, end)]
        fields = {"value": store.value, "valid_from": bound, "valid_until": bound}
        version = entry_class(f"{store.where}.versions", fields, into, field="versions")
        handle = partial(operations.versions, version=version)
        results = {"versions": list_of(version), "status": str}
        of = {"version": version}
        return store.added("versions", stream, parts, results, handle, into, name, **of)

    @overload
    def multi_get(
        self,
        stream: Stream[T],
        *,
        keys: Given,
        as_of: None = ...,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[ValuesAnswer[V, T]]: ...
    @overload
    def multi_get(
        self,
        stream: Stream[T],
        *,
        keys: Given,
        as_of: Given,
        into: None = ...,
        name: str | None = ...,
    ) -> Stream[ValuesAsOfAnswer[V, T]]: ...
    @overload
    def multi_get(
        self,
        stream: Stream[T],
        *,
        keys: Given,
        as_of: Given | None = ...,
        into: type[R],
        name: str | None = ...,
    ) -> Stream[R]: ...
    @declares("store.multi_get")
    def multi_get(
        self,
        stream: Stream[T],
        *,
        keys: Given,
        as_of: Given | None = None,
        into: Any = None,
        name: str | None = None,
    ) -> Stream[Any]:
        """Get the values of several keys for each record. Answers have the `record` and `values`, a
        list in the order of the keys, with None for absent ones.

        With `event_time`, all values are as of the time of the record.

        Parameters:
            keys: the field with a list of keys, or a function of a record that returns one. Keys
                of several parts are tuples.
            as_of: as for `get`. Answers also have `as_of`, and `statuses` in the order of the keys.

        The other parameters, and the errors, are those of `put`.
        """
        store = self._operator
        if store.sort is not None:
            raise StateTypeError(
                f"{store.where}: multi_get is for stores without sort=: use scan, or several gets"
            )
        name = store.named("multi_get", stream, name)
        store.check_keys(stream, keys)
        times: dict[str, Given] = {} if store.event_time is None else {"at": store.event_time}
        handle: operations.OfLayout = operations.get_one_of_many
        results: dict[str, Any] = {"value": optional(store.value)}
        if as_of is not None:
            store.past("as_of=")
            times["as_of"] = as_of
            handle, results["status"] = operations.get_one_of_many_as_of, str
        assembly = MultiGet(name, stream, store.keys, optional(store.value), times)
        with store.undone_if_refused():
            requests = assembly.requests(getter(stream, keys))
            found = store.declared("multi_get", assembly.found, requests, results, handle, None)
            answers = assembly.answers(found, into)
        store.assemblies[answers.name] = assembly
        return answers
