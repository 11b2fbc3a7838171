"""`KVStore`: a key-value store in a job, whose operations are streams."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from statekit.errors import StateTypeError
from statekit.functions.process import Process, process
from statekit.job.job import Job
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.annotations import iterator_of, list_of, one_of, optional, type_text
from statekit.kv.answers import AnswerClass, entry_class
from statekit.kv.layouts import Layout, OneValue, SortedValues, ValueWithPast
from statekit.kv.multi_get import Assembly
from statekit.kv.operations import Results
from statekit.kv.requests import (
    WHOLE,
    Checked,
    Given,
    Part,
    check_fields,
    getter,
    key_of_parts,
    requests_of,
)
from statekit.shown import shown
from statekit.state.options import TTL

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
R = TypeVar("R", default=Any)

Keys = Given | tuple[str, ...]
"""Where a key comes from: a field, several fields for a key of several parts, or a function."""


@dataclass(frozen=True)
class _Operation:
    """An operation of a store.

    Parameters:
        requests: the stream that feeds it.
        request, answer: the classes of its requests and answers.
        handle: handles a request with the states of its key.
        kind: the name of the operation.
        arguments: what it was declared with, beside the parts of its requests.
    """

    requests: Stream[Any]
    request: Any
    answer: Any
    handle: Callable[[Any, Any], Any]
    kind: str
    arguments: Mapping[str, Any]


class StoredOperations(NamedTuple):
    """What the operator of a store does, as data: a model in plain Python is made of it.

    Parameters:
        history: how long replaced values are kept; None without a history.
        of: of each class of requests the kind of its operation, the arguments that it was declared
            with, and the class of its answers.
    """

    history: dt.timedelta | None
    of: Mapping[type, tuple[str, Mapping[str, Any], Any]]


class KVStore(Generic[K, V]):
    """A key-value store in a job. Its operations are streams, and its values are state.

    Add it to a job, then call its operations with streams of that job, any number of times. Each
    returns the stream of its answers. On a key, operations run in the order in which they were
    declared, within an epoch; those of one stream in the order of its records. With `event_time`
    they run in the order of time.

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
        lateness: how far records may lag behind the largest event time before they are late.
        history: how long replaced values are kept, for `as_of`; a timedelta or a text such as "7
            days". It needs `event_time`.
        ttl: how long a value is kept.
        migrate: per state ("value", or "values" with `sort`) hooks as for `@process`.

    Raises:
        StateTypeError: an option is not valid, or they do not go together.

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
        migrate: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._where = f"KVStore({name!r})"
        if not isinstance(name, str):
            raise StateTypeError(f"{self._where}: give the name of the store as text")
        if type(None) in typing.get_args(value) or value is None:
            raise StateTypeError(
                f"{self._where}: value={type_text(value)}: None stands for an absent value, so "
                "that it "
                "is no value: leave it out of the type"
            )
        if ttl is not None and not isinstance(ttl, TTL):
            raise StateTypeError(
                f"{self._where}: ttl={shown(ttl)}: give a TTL, as in sk.TTL('30 days')"
            )
        self._keys = _key_parts(key)
        self._value = value
        self._sort = sort
        self._event_time = event_time
        self._migrate = migrate
        self._times: dict[str, Any] = {}
        self._layout = self._laid_out(history, ttl)
        if event_time is not None:
            self._times = {"event_time": "at", "lateness": lateness, "ordered": True}
        elif lateness != dt.timedelta(0):
            raise StateTypeError(f"{self._where}: lateness= needs event_time=")
        self._operations: dict[str, _Operation] = {}
        self._assemblies: dict[str, Assembly] = {}
        self._job: Job | None = None

    def __repr__(self) -> str:
        return f"<KVStore {self.name!r}: {', '.join(self._operations) or 'no operations'}>"

    def _laid_out(self, history: dt.timedelta | str | None, ttl: TTL | None) -> Layout:
        if history is None:
            if self._sort is None:
                return OneValue(self._value, ttl)
            return SortedValues(self._sort, self._value, ttl)
        if self._event_time is None:
            raise StateTypeError(
                f"{self._where}: history= is in event time: give event_time=, the field that has it"
            )
        if self._sort is not None or ttl is not None:
            raise StateTypeError(
                f"{self._where}: history= keeps all versions of single values: leave out "
                f"{'ttl=' if self._sort is None else 'sort='}"
            )
        return ValueWithPast(self._value, history)

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
        if self._job is None or not self._operations:
            raise StateTypeError(
                f"{self._where} has no function yet: add it to a job and declare an operation, as "
                "in store.put(stream, key=...)"
            )
        return self._job.operator(self.name).declared

    def added_to(self, job: Job) -> None:
        """Take the job that the store belongs to. Called by `Job.add`.

        Raises:
            StateTypeError: it belongs to a job.
        """
        if self._job is not None:
            raise StateTypeError(
                f"{self._where} belongs to job {self._job.name!r}: make a store for each job"
            )
        self._job = job

    # ------------------------------------------------------------------------------ operations

    def put(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Set a value for each record. Answers have `key` and `value`.

        Parameters:
            stream: the records.
            key: the field with the key, several fields, or a function of a record.
            value: the field with the value, or a function of a record; by default the record
                itself.
            sort: the field, or function, with the ordered part of the key, of a store that has one.
            into: a class for the answers.
            name: of the stream of answers; by default the names of the store, of the operation and
                of the stream.

        Raises:
            StateTypeError: a part does not fit its type, or the name is taken.
        """
        parts = [*self._cell(key, sort), Part("value", self._value, value)]
        return self._added("put", stream, parts, {}, operations.put(self._layout), into, name)

    def remove(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Remove a value for each record. Answers have `key` and the `value` that was removed, or
        None.

        The parameters and errors are those of `put`.
        """
        results = {"value": optional(self._value)}
        handle = operations.remove(self._layout)
        return self._added("remove", stream, self._cell(key, sort), results, handle, into, name)

    def get(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        as_of: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Get a value for each record. Answers have `key` and `value`, which may be None.

        Parameters:
            as_of: the field, or function, with the time of which the value is asked for, of a store
                with a history. Answers have `as_of` and `status`, too: "found", "absent", "too old"
                for a time before the history, or "not yet" for one after the request.

        The other parameters, and the errors, are those of `put`.
        """
        return self._got("get", stream, self._cell(key, sort), as_of, into, name)

    def get_with(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        sort: Given | None = None,
        as_of: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Get a value for each record. Answers have `key`, the `record` and `value`, which may be
        None.

        The parameters and errors are those of `get`.
        """
        parts = [*self._cell(key, sort), self._record(stream)]
        return self._got("get_with", stream, parts, as_of, into, name)

    def multi_get(
        self,
        stream: Stream[T],
        *,
        keys: Given,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Get the values of several keys for each record. Answers have the `record` and `values`, a
        list in the order of the keys, with None for absent ones.

        With `event_time`, all values are as of the time of the record.

        Parameters:
            keys: the field with a list of keys, or a function of a record that returns one. Keys
                of several parts are tuples.

        The other parameters, and the errors, are those of `put`.
        """
        if self._sort is not None:
            raise StateTypeError(
                f"{self._where}: multi_get is for stores without sort=: use scan, or several gets"
            )
        name = self._named("multi_get", stream, name)
        self._check_keys(stream, keys)
        times = {} if self._event_time is None else {"at": self._event_time}
        assembly = Assembly(name, stream, self._keys, optional(self._value), times)
        handle = operations.get_one_of_many(self._layout)
        results = {"value": optional(self._value)}
        with self._undone_if_refused():
            requests = assembly.requests(getter(stream, keys))
            found = self._declared("multi_get", assembly.found, requests, results, handle, None)
            answers = assembly.answers(found, into)
        self._assemblies[answers.name] = assembly
        return answers

    def update(
        self,
        stream: Stream[T],
        fn: Callable[[V | None, T], V | None],
        *,
        key: Keys,
        sort: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Replace a value by what a function makes of it, for each record. Answers have `key`, the
        `record`, `before` and `value`, the new one.

        Parameters:
            fn: takes the value, or None if it is absent, and the record. It returns the new value,
                or None to remove it.

        The other parameters, and the errors, are those of `put`.
        """
        if not callable(fn):
            raise StateTypeError(
                f"{self._where}: update takes a function of a value and a record, not {shown(fn)}"
            )
        parts = [*self._cell(key, sort), self._record(stream)]
        results = {"before": optional(self._value), "value": optional(self._value)}
        check = self._checked("update", stream, name, "the function", optional(self._value))
        handle = operations.update(self._layout, fn, check)
        return self._added("update", stream, parts, results, handle, into, name, changed=fn)

    def put_if_absent(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        value: Given = WHOLE,
        sort: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Set a value for each record unless there is one. Answers have `key`, the `record`, `won`,
        which says whether it was set, and the `value` that there is now.

        The parameters and errors are those of `put`.
        """
        parts = [*self._cell(key, sort), self._record(stream)]
        check_fields(stream, f"{self._where}.put_if_absent", [Part("value", self._value, value)])
        results = {"won": bool, "value": self._value}
        new = getter(stream, value)
        check = self._checked("put_if_absent", stream, name, "value=", self._value)
        handle = operations.put_if_absent(self._layout, new, check)
        return self._added("put_if_absent", stream, parts, results, handle, into, name, new=new)

    def compare_and_set(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        expected: Given,
        value: Given,
        sort: Given | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Replace a value for each record if it equals an expected one. Answers have `key`, the
        `record`, `won`, which says whether it was replaced, and the `value` that there is now.

        Parameters:
            expected: the field with the expected value, or a function of a record; None stands for
                an absent value.
            value: the field with the new value, or a function; None removes it.

        The other parameters, and the errors, are those of `put`.
        """
        parts = [*self._cell(key, sort), self._record(stream)]
        given = {"expected": expected, "value": value}
        compared = [Part(part, optional(self._value), of) for part, of in given.items()]
        check_fields(stream, f"{self._where}.compare_and_set", compared)
        results = {"won": bool, "value": optional(self._value)}
        old, new, of = getter(stream, expected), getter(stream, value), optional(self._value)
        own = partial(self._checked, "compare_and_set", stream, name)
        checks = own("expected=", of), own("value=", of)
        handle = operations.compare_and_set(self._layout, old, new, of, checks)
        arguments = {"expected": old, "new": new}
        return self._added(
            "compare_and_set", stream, parts, results, handle, into, name, **arguments
        )

    def scan(
        self,
        stream: Stream[T],
        *,
        key: Keys,
        start: Given | None = None,
        end: Given | None = None,
        reverse: bool = False,
        limit: int | None = None,
        into: type[R] | None = None,
        name: str | None = None,
    ) -> Stream[R]:
        """Read entries of a partition in order, for each record. Answers have `key`, the bounds
        that were given, and `entries`, a list of records with `sort` and `value`.

        Parameters:
            key: the field, fields or function with the partition.
            start, end: fields, or functions, with the smallest ordered part and the one at which
                the scan ends, without it; None leaves that side open.
            reverse: from the greatest ordered part to the smallest.
            limit: how many entries at most; None for all.
            into: a class for the answers. Its `entries` are a list of records with `sort` and
                `value`, of any class.

        The other parameters, and the errors, are those of `put`.
        """
        if not isinstance(self._layout, SortedValues):
            raise StateTypeError(
                f"{self._where}: scan needs an order within a key: declare the store with sort="
            )
        if limit is not None and (type(limit) is not int or limit < 1):
            raise StateTypeError(
                f"{self._where}: scan(limit={shown(limit)}): give a number of entries, at least 1"
            )
        bound = optional(self._sort)
        parts = self._key(key)
        parts += [Part("start", bound, start)] if start is not None else []
        parts += [Part("end", bound, end)] if end is not None else []
        fields = {"sort": self._sort, "value": self._value}
        entry = entry_class(f"{self._where}.scan", fields, into)
        handle = operations.scan(entry, reverse=reverse, limit=limit)
        results = {"entries": list_of(entry)}
        of_scan = {"entry": entry, "reverse": reverse, "limit": limit}
        return self._added("scan", stream, parts, results, handle, into, name, **of_scan)

    def late(self, answers: Stream[Any]) -> Stream[Any]:
        """Return the late requests of an operation: records with `key`, `at` and its other parts;
        for `multi_get`, the records themselves.

        Late operations have no effect and no answers.

        Parameters:
            answers: what the operation returned.

        Raises:
            StateTypeError: the store has no `event_time`, or the stream is none of its answers.
        """
        if not isinstance(answers, Stream):
            raise StateTypeError(
                f"{self._where}: late({shown(answers)}): give what an operation of the store "
                "returned"
            )
        assembly = self._assemblies.get(answers.name)
        operation = self._operations.get(answers.name if assembly is None else assembly.found)
        if operation is None or self._event_time is None:
            raise StateTypeError(
                f"{self._where}: {shown(answers)} has no late requests: give what an operation of "
                "a "
                "store with event_time= returned"
            )
        name = f"{answers.name}.late"
        if assembly is None:
            return self._stream().late.of(operation.request, name=name)
        late = self._stream().late.of(operation.request, name=f"{assembly.found}.late")
        return assembly.late(late)

    # ------------------------------------------------------------------------- requests, answers

    def _key(self, key: Keys) -> list[Part]:
        """Return the parts of a request that select the states of a key."""
        types, given = list(self._keys.items()), list[Given]()
        if isinstance(key, str):
            given = [key]
        elif isinstance(key, tuple | list):
            given = list(key)
        elif not callable(key):
            raise StateTypeError(
                f"{self._where}: key={shown(key)}: give a field, several fields, or a function"
            )
        elif len(types) > 1:
            own = partial(_item_of, key, len(types), self._where)
            given = [partial(own, place) for place in range(len(types))]
        else:
            given = [key]
        if len(given) != len(types):
            raise StateTypeError(
                f"{self._where}: key={shown(key)} has {len(given)} parts, and keys of the store "
                "have "
                f"{len(types)}: give as many fields"
            )
        return [Part(name, of, each) for (name, of), each in zip(types, given, strict=True)]

    def _cell(self, key: Keys, sort: Given | None) -> list[Part]:
        """Return the parts of a request that name one value."""
        if (sort is None) != (self._sort is None):
            raise StateTypeError(
                f"{self._where}: a key of the store has {'an' if sort is None else 'no'} ordered "
                f"part: {'give sort=' if sort is None else 'leave out sort='}"
            )
        ordered = [] if sort is None else [Part("sort", self._sort, sort)]
        return [*self._key(key), *ordered]

    def _check_keys(self, stream: Stream[Any], keys: Given) -> None:
        """Check that a field with keys for `multi_get` has a list or a tuple of them."""
        types = tuple(self._keys.values())
        key: Any = types[0] if len(types) == 1 else tuple.__class_getitem__(types)
        lists = (list_of(key), tuple.__class_getitem__((key, ...)))
        record_class: Any = stream.record_class
        if not isinstance(keys, str) or record_class is dict:
            return
        found = typing.get_type_hints(record_class).get(keys)
        if found is not None and found not in lists:
            raise StateTypeError(
                f"{self._where}: multi_get(keys={shown(keys)}): {record_class.__name__}.{keys} is "
                f"{type_text(found)}: declare it as {type_text(lists[0])}, or give a function "
                "that returns "
                "a list of keys"
            )

    def _checked(
        self, kind: str, stream: Stream[Any], name: str | None, what: str, of: Any
    ) -> Checked:
        """Return the check of what an argument of an operation gives."""
        own: object = getattr(stream, "name", stream)
        return Checked(name or f"{self.name}.{kind}.{own}", what, of)

    def _record(self, stream: Stream[Any]) -> Part:
        return Part("record", stream.record_class, WHOLE)

    def _got(
        self,
        kind: str,
        stream: Stream[Any],
        parts: list[Part],
        as_of: Given | None,
        into: Any,
        name: str | None,
    ) -> Stream[Any]:
        """Declare a `get` or `get_with`, of the present values or of those of a time."""
        results: dict[str, Any] = {"value": optional(self._value)}
        if as_of is None:
            handle = operations.get(self._layout)
            return self._added(kind, stream, parts, results, handle, into, name)
        if not isinstance(self._layout, ValueWithPast):
            raise StateTypeError(
                f"{self._where}: as_of= needs values of the past: declare the store with history="
            )
        parts = [*parts, Part("as_of", dt.datetime, as_of)]
        results["status"] = str
        handle = operations.get_as_of(self._layout)
        return self._added(kind, stream, parts, results, handle, into, name)

    def _named(self, kind: str, stream: Stream[Any], name: str | None) -> str:
        """Return the name of an operation's answers, after checking that it can be added."""
        job = self._job
        if job is None:
            raise StateTypeError(
                f"{self._where} belongs to no job: add it first, as in job.add(KVStore(...))"
            )
        own: object = getattr(stream, "job", None)
        if own is not job:
            raise StateTypeError(
                f"{self._where}: {kind} takes a stream of job {job.name!r}, not {stream!r}"
            )
        if " | " in stream.name:
            raise StateTypeError(
                f"{self._where}: {kind} takes the records of one stream, and {stream.name} is a "
                f"union: call {kind} with each stream"
            )
        if not self._operations:
            job.free_name("operator", self.name)
        own_name = f"{self.name}.{kind}.{stream.name}"
        if name is None and own_name in (*self._operations, *self._assemblies):
            raise StateTypeError(
                f"{self._where} has a {kind} of {stream.name}, {own_name!r}: give this one a name="
            )
        return job.free_name("stream", name or own_name)

    def _added(
        self,
        kind: str,
        stream: Stream[Any],
        parts: list[Part],
        results: dict[str, Any],
        handle: Results,
        into: Any,
        name: str | None,
        **arguments: Any,
    ) -> Stream[Any]:
        """Declare an operation with the records of a stream, and return its answers."""
        # Buffered requests belong to an operation by the name of their class: it says the kind.
        suffix = "requests" if name is None else f"{kind}.requests"
        name = self._named(kind, stream, name)
        if self._event_time is not None:
            parts = [*parts, Part("at", dt.datetime, self._event_time)]
        with self._undone_if_refused():
            requests = requests_of(stream, f"{name}.{suffix}", parts)
            return self._declared(kind, name, requests, results, handle, into, arguments)

    def _declared(
        self,
        kind: str,
        name: str,
        requests: Stream[Any],
        results: dict[str, Any],
        handle: Results,
        into: Any,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> Stream[Any]:
        """Declare an operation with its requests, and return its answers.

        Parameters:
            results: the names and types of the results of `handle`.
            arguments: what it was declared with, beside the parts of its requests.
        """
        request: Any = requests.record_class
        fields = typing.get_type_hints(request, include_extras=True) | results
        answer = AnswerClass.of(name, fields, into)
        if issubclass(answer.cls, dict):
            raise StateTypeError(
                f"{name}: into={answer.cls.__name__} is a class of dicts, which do not say their "
                "class, and a store has answers of several: use a NamedTuple or a dataclass"
            )
        classes = {each.answer.__name__: name for name, each in self._operations.items()}
        if twice := classes.get(answer.cls.__name__):
            raise StateTypeError(
                f"{self._where}: the answers of {name} and {twice} would have one class, or "
                f"classes of one name, {answer.cls.__name__}: give each operation a class of its "
                "own, or another name"
            )
        handled = answer.of_results(handle)
        operation = _Operation(requests, request, answer.cls, handled, kind, arguments)
        self._operations = {**self._operations, name: operation}
        return self._stream().of(answer.cls, name=name)

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """Leave the job and the store as they are if an operation cannot be declared."""
        assert self._job is not None
        job, operations = self._job, self._operations
        operators, transforms = [*job.operators], [*job.transforms]
        try:
            yield
        except Exception:
            self._operations = operations
            job.operators, job.transforms = operators, transforms
            raise

    def _stream(self) -> Stream[Any]:
        """Declare the operator with all operations, and return the stream of all answers."""
        every = self._operations.values()
        handled = self._layout.function({each.request: each.handle for each in every})
        handled.__name__ = self.name
        handled.__annotations__["request"] = one_of(each.request for each in every)
        handled.__annotations__["return"] = iterator_of(one_of(each.answer for each in every))
        declared = process(key=tuple(self._keys), migrate=self._migrate, **self._times)(handled)
        history = self._layout.history if isinstance(self._layout, ValueWithPast) else None
        made_of = StoredOperations(
            history, {each.request: (each.kind, each.arguments, each.answer) for each in every}
        )
        declared = declared.with_traits(replace(declared.traits, made_of=made_of))
        first, *others = [each.requests for each in every]
        everything = first.union(*others) if others else first
        return everything.process(declared, name=self.name, replace=True)


def _key_parts(key: Any) -> dict[str, Any]:
    """Return the names and types of the parts of a key."""
    if key is tuple or isinstance(key, str):
        raise StateTypeError(
            f"KVStore(key={shown(key)}): give a type, such as str or tuple[str, int]"
        )
    if typing.get_origin(key) is not tuple:
        return {"key": key}
    return {f"key_{place}": of for place, of in enumerate(typing.get_args(key), start=1)}


def _item_of(key_of: Callable[[Any], Any], parts: int, where: str, place: int, record: Any) -> Any:
    """Return one part of the key that a function returns."""
    return key_of_parts(key_of(record), parts, where)[place]
