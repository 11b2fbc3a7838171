"""Store operator: one process function that handles the requests of all operations."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from statekit.codec.annotations import show
from statekit.codec.value_codec import value_codec
from statekit.errors import StateTypeError
from statekit.functions.process import Process, process
from statekit.job.plan import Plan
from statekit.job.stream import Stream
from statekit.kv import operations
from statekit.kv.annotations import iterator_of, list_of, named_class, one_of, optional
from statekit.kv.answers import AnswerClass
from statekit.kv.layouts import Layout, OneValue, Respond, SortedValues, ValueWithPast
from statekit.kv.multi_get import MultiGet
from statekit.kv.operations import OfLayout
from statekit.kv.recorded_changes import RecordedLayout
from statekit.kv.requests import (
    WHOLE,
    ArgumentCheck,
    Given,
    Keys,
    RequestPart,
    key_of_parts,
    requests_of,
)
from statekit.shown import shown
from statekit.state.options import TTL, ttl_fault
from statekit.timestamp import duration_to_micros


@dataclass(frozen=True)
class Operation:
    """An operation of a store.

    Parameters:
        requests: the stream that feeds it.
        request, answer: the classes of its requests and answers.
        results: returns its function for a layout.
        into: the class of its answers, with their creation.
        kind: the name of the operation.
        arguments: the arguments of its declaration, except the parts of its requests.
    """

    requests: Stream[Any]
    request: Any
    answer: Any
    results: OfLayout
    into: AnswerClass
    kind: str
    arguments: Mapping[str, Any]


_OPTIONS_OF = {"former": "with history=", "values": "with sort=", "value": "without sort="}
"""Declaration of a store that has a state, by the name of the state."""


Ties = Literal["values", "arrival"]
"""What decides the order of operations of one key and time."""


class StoredOperations(NamedTuple):
    """The operations of a store as data, from which a model in plain Python is built.

    Parameters:
        history: lifetime of replaced values; None without a history.
        change: the class of changes; None if the store does not emit them.
        of: the kind, the arguments and the class of answers of each operation, by the class of its
            requests.
    """

    history: dt.timedelta | None
    change: Any
    of: Mapping[type, tuple[str, Mapping[str, Any], Any]]


class StoreOperator:
    """The operator of one store, and the plan of its job.

    The parameters and errors are those of `KVStore`.
    """

    def __init__(
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        sort: Any,
        event_time: str | None,
        lateness: dt.timedelta | str,
        history: dt.timedelta | str | None,
        ttl: TTL | None,
        ties: Ties,
        migrate: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.where = f"KVStore({name!r})"
        if not isinstance(name, str):
            raise StateTypeError(f"{self.where}: give the name of the store as text")
        if type(None) in typing.get_args(value) or value is None:
            raise StateTypeError(
                f"{self.where}: value={show(value)}: None stands for an absent value, so "
                "that it is no value: leave it out of the type"
            )
        if fault := ttl_fault(ttl):
            raise StateTypeError(f"{self.where}: {fault}")
        self.keys = _key_parts(key)
        self.value = value
        self.sort = sort
        self.event_time = event_time
        self.migrate = migrate
        self.ttl = ttl
        self.times: dict[str, Any] = {}
        self.layout = self._laid_out(history, ttl)
        if event_time is not None:
            self.times = {"event_time": "at", "lateness": lateness, "ordered": True}
        elif lateness != dt.timedelta(0):
            raise StateTypeError(f"{self.where}: lateness= needs event_time=")
        if ties not in typing.get_args(Ties):
            raise StateTypeError(f'{self.where}: ties={shown(ties)}: use "values" or "arrival"')
        if ties == "arrival" and event_time is None:
            raise StateTypeError(
                f"{self.where}: ties= needs event_time=: without it, operations are in the order "
                "of arrival"
            )
        self.ties = ties
        self.operations: dict[str, Operation] = {}
        self.assemblies: dict[str, MultiGet] = {}
        self.plan: Plan | None = None
        self.change: Any = None
        """The class of changes; None if the store does not emit them."""
        self._selected: set[str] = set()
        """Names of the streams with records of one class."""

    def _laid_out(self, history: dt.timedelta | str | None, ttl: TTL | None) -> Layout:
        if history is None:
            if self.sort is None:
                return OneValue(self.value, ttl)
            return SortedValues(self.sort, self.value, ttl)
        if self.event_time is None:
            raise StateTypeError(
                f"{self.where}: history= is in event time: give event_time=, the field that has it"
            )
        if self.sort is not None or ttl is not None:
            raise StateTypeError(
                f"{self.where}: history= keeps all versions of single values: leave out "
                f"{'ttl=' if self.sort is None else 'sort='}"
            )
        history_us = duration_to_micros(history, f"{self.where}: history")
        if history_us == 0:
            raise StateTypeError(
                f'{self.where}: history={shown(history)}: give more than nothing, such as "7 days"'
            )
        return ValueWithPast(self.value, dt.timedelta(microseconds=history_us))

    def declared_function(self) -> Process[Any, ..., Any]:
        """Return the process function with all operations so far.

        Raises:
            StateTypeError: no operation was declared.
        """
        if self.plan is None or not self.operations:
            raise StateTypeError(
                f"{self.where} has no function yet: add it to a job and declare an operation, as "
                "in store.put(stream, key=...)"
            )
        return self.plan.operator(self.name).declared

    def late(self, answers: Stream[Any]) -> Stream[Any]:
        """Return the late requests of an operation. See `KVStore.late`."""
        if not isinstance(answers, Stream):
            raise StateTypeError(
                f"{self.where}: late({shown(answers)}): give what an operation of the store "
                "returned"
            )
        assembly = self.assemblies.get(answers.name)
        operation = self.operations.get(answers.name if assembly is None else assembly.found)
        if operation is None or self.event_time is None:
            raise StateTypeError(
                f"{self.where}: {shown(answers)} has no late requests: give what an operation of "
                "a store with event_time= returned"
            )
        if assembly is None:
            return self._late_of(operation, answers.name)
        return assembly.late(self._late_of(operation, assembly.found))

    def _late_of(self, operation: Operation, answers: str) -> Stream[Any]:
        """Return the late requests of an operation, whose answers have this name."""
        return self._of_class(operation.request, f"{answers}.late", late=True)

    def _of_class(self, cls: Any, name: str, *, late: bool = False) -> Stream[Any]:
        """Return the records of one class from the outputs, or the late requests, of the
        operator.
        """
        assert self.plan is not None
        if name not in self._selected:
            self.plan.select_class(self.name, cls, name, late=late)
            self._selected.add(name)
        return Stream(self.plan, name)

    def key_parts(self, key: Keys) -> list[RequestPart]:
        """Return the parts of a request for the key, by which it reaches the states of the key."""
        types, given = list(self.keys.items()), list[Given]()
        if isinstance(key, str):
            given = [key]
        elif isinstance(key, tuple | list):
            given = list(key)
        elif not callable(key):
            raise StateTypeError(
                f"{self.where}: key={shown(key)}: give a field, several fields, or a function"
            )
        elif len(types) > 1:
            own = partial(_item_of, key, len(types), self.where)
            given = [partial(own, place) for place in range(len(types))]
        else:
            given = [key]
        if len(given) != len(types):
            raise StateTypeError(
                f"{self.where}: key={shown(key)} has {len(given)} parts, and keys of the store "
                f"have {len(types)}: give as many fields"
            )
        return [RequestPart(name, of, each) for (name, of), each in zip(types, given, strict=True)]

    def cell_parts(self, key: Keys, sort: Given | None) -> list[RequestPart]:
        """Return the parts of a request that select one value: the key, and its ordered part."""
        if (sort is None) != (self.sort is None):
            raise StateTypeError(
                f"{self.where}: a key of the store has {'an' if sort is None else 'no'} ordered "
                f"part: {'give sort=' if sort is None else 'leave out sort='}"
            )
        ordered = [] if sort is None else [RequestPart("sort", self.sort, sort)]
        return [*self.key_parts(key), *ordered]

    def check_keys(self, stream: Stream[Any], keys: Given) -> None:
        """Check that the field with the keys of `multi_get` is declared as a list or a tuple."""
        types = tuple(self.keys.values())
        key: Any = types[0] if len(types) == 1 else tuple.__class_getitem__(types)
        lists = (list_of(key), tuple.__class_getitem__((key, ...)))
        record_class: Any = stream.record_class
        if not isinstance(keys, str) or record_class is dict:
            return
        found = typing.get_type_hints(record_class).get(keys)
        if found is not None and found not in lists:
            raise StateTypeError(
                f"{self.where}: multi_get(keys={shown(keys)}): {record_class.__name__}.{keys} is "
                f"{show(found)}: declare it as {show(lists[0])}, or give a function "
                "that returns a list of keys"
            )

    def checked(
        self, kind: str, stream: Stream[Any], name: str | None, what: str, of: Any
    ) -> ArgumentCheck:
        """Return the check for the values of an operation's argument."""
        own: object = getattr(stream, "name", stream)
        return ArgumentCheck(name or f"{self.name}.{kind}.{own}", what, of)

    def constant(self, kind: str, name: str, given: Any) -> Any:
        """Return an argument of an operation after checking that it is a value of the store."""
        codec = value_codec(self.value)
        if not codec.accepts(given):
            raise StateTypeError(
                f"{self.where}: {kind}({name}={shown(given)}): {codec.reason(given)}: give a value "
                f"of type {show(self.value)}, or the field or function with it"
            )
        return given

    def record_part(self, kind: str, stream: Stream[Any]) -> RequestPart:
        """Return the part of a request that is the record, after checking the stream."""
        self._plan_of(kind, stream)
        return RequestPart("record", stream.record_class, WHOLE)

    def got(
        self,
        kind: str,
        stream: Stream[Any],
        parts: list[RequestPart],
        as_of: Given | None,
        into: Any,
        name: str | None,
    ) -> Stream[Any]:
        """Declare a `get` or `get_with`, of present values or, with `as_of`, of former ones."""
        results: dict[str, Any] = {"value": optional(self.value)}
        if as_of is None:
            return self.added(kind, stream, parts, results, operations.get, into, name)
        self.past("as_of=")
        parts = [*parts, RequestPart("as_of", dt.datetime, as_of)]
        results["status"] = str
        return self.added(kind, stream, parts, results, operations.get_as_of, into, name)

    def _plan_of(self, kind: str, stream: Stream[Any]) -> Plan:
        """Return the plan of the store's job, after checking that a stream is one of it."""
        plan = self.plan
        if plan is None:
            raise StateTypeError(
                f"{self.where} belongs to no job: add it first, as in job.add(KVStore(...))"
            )
        own: object = getattr(stream, "plan", None)
        if own is not plan:
            raise StateTypeError(
                f"{self.where}: {kind} takes a stream of job {plan.name!r}, not {shown(stream)}"
            )
        return plan

    def named(self, kind: str, stream: Stream[Any], name: str | None) -> str:
        """Check that an operation can be added, and return the name of its answers."""
        plan = self._plan_of(kind, stream)
        if " | " in stream.name:
            raise StateTypeError(
                f"{self.where}: {kind} takes the records of one stream, and {stream.name} is a "
                f"union: call {kind} with each stream"
            )
        if not self.operations:
            plan.free_name("operator", self.name)
        own_name = f"{self.name}.{kind}.{stream.name}"
        if name is None and own_name in (*self.operations, *self.assemblies):
            raise StateTypeError(
                f"{self.where} has a {kind} of {stream.name}, {own_name!r}: give this one a name="
            )
        return plan.free_name("stream", name or own_name)

    def added(
        self,
        kind: str,
        stream: Stream[Any],
        parts: list[RequestPart],
        results: dict[str, Any],
        handle: OfLayout,
        into: Any,
        name: str | None,
        **arguments: Any,
    ) -> Stream[Any]:
        """Declare an operation on the records of a stream, and return the stream of answers."""
        # Buffered requests belong to an operation by the name of their class, which has the kind.
        suffix = "requests" if name is None else f"{kind}.requests"
        name = self.named(kind, stream, name)
        self._check_one_key(kind, stream, parts)
        if self.event_time is not None:
            parts = [*parts, RequestPart("at", dt.datetime, self.event_time)]
        with self.undone_if_refused():
            requests = requests_of(stream, f"{name}.{suffix}", parts)
            return self.declared(kind, name, requests, results, handle, into, arguments)

    def _check_one_key(self, kind: str, stream: Stream[Any], parts: list[RequestPart]) -> None:
        """Refuse a field with several keys as the key of an operation."""
        record_class: Any = stream.record_class
        fields = {} if record_class is dict else typing.get_type_hints(record_class)
        for part in parts:
            of = fields.get(part.given) if isinstance(part.given, str) else None
            is_several = typing.get_origin(of) in (list, set, frozenset, tuple) and of != part.type
            if part.name in self.keys and is_several:
                field = f"{record_class.__name__}.{part.given}"
                raise StateTypeError(
                    f"{self.where}: {kind} is for one key, and {field} "
                    f"is {show(of)}. Several keys may be on several shards, which do not wait "
                    "for each other, so that no condition over them is checked and no change of "
                    "them is made at once. Read them with multi_get, divide the record with "
                    "flat_map, or give values that change together one key and use update"
                )

    def declared(
        self,
        kind: str,
        name: str,
        requests: Stream[Any],
        results: dict[str, Any],
        handle: OfLayout,
        into: Any,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> Stream[Any]:
        """Declare an operation on a stream of requests, and return the stream of answers.

        Parameters:
            results: the names and types of the results.
            handle: returns the function of the operation for a layout.
            arguments: the arguments of its declaration, except the parts of its requests.
        """
        request: Any = requests.record_class
        fields = typing.get_type_hints(request, include_extras=True) | results
        answer = AnswerClass.of(name, fields, into)
        if issubclass(answer.cls, dict):
            raise StateTypeError(
                f"{name}: into={answer.cls.__name__} is a class of dicts, which do not say their "
                "class, and a store has answers of several: use a NamedTuple or a dataclass"
            )
        for other, each in self.operations.items():
            if each.request.__name__ == request.__name__:
                raise StateTypeError(
                    f"{self.where}: the requests of {name} and {other} would be stored under one "
                    f"name, {request.__name__}: give one of the operations another name"
                )
        classes = {each.answer.__name__: name for name, each in self.operations.items()}
        if self.change is not None:
            classes[self.change.__name__] = "changes()"
        if twice := classes.get(answer.cls.__name__):
            raise StateTypeError(
                f"{self.where}: the answers of {name} and {twice} would have one class, or "
                f"classes of one name, {answer.cls.__name__}: give each operation a class of its "
                "own, or another name"
            )
        operation = Operation(requests, request, answer.cls, handle, answer, kind, arguments)
        assert self.plan is not None
        if self.operations:
            self._handling([operation])  # faults of the new one are found here
            self.plan.grow_operator(self.name, (requests.name,), self._of_all)
        else:
            requests.process(self._function([operation]), name=self.name)
        self.operations = {**self.operations, name: operation}
        return self._of_class(answer.cls, name)

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Restore the job and the store if the declaration of an operation raises an error."""
        assert self.plan is not None
        before = self.operations, self.change, {*self._selected}
        try:
            with self.plan.undone_if_refused():
                yield
        except Exception:
            self.operations, self.change, self._selected = before
            raise

    def _of_all(self) -> Process[Any, ..., Any]:
        """Return the process function with all operations so far."""
        return self._function(self.operations.values())

    def _function(self, every: Collection[Operation]) -> Process[Any, ..., Any]:
        """Return the process function with some operations, and their description for models."""
        history = self.layout.history if isinstance(self.layout, ValueWithPast) else None
        made_of = StoredOperations(
            history,
            self.change,
            {each.request: (each.kind, each.arguments, each.answer) for each in every},
        )
        declared = self._handling(every)
        traits = replace(declared.traits, made_of=made_of, options_of=_OPTIONS_OF, ties=self.ties)
        return declared.with_traits(traits)

    def _handling(self, every: Collection[Operation]) -> Process[Any, ..., Any]:
        """Return the process function that handles the requests of some operations."""
        handled = self.layout.function(self._respond(every))
        handled.__name__ = self.name
        handled.__annotations__["request"] = one_of(each.request for each in every)
        emitted = [each.answer for each in every] + ([self.change] if self.change else [])
        handled.__annotations__["return"] = iterator_of(one_of(emitted))
        of_all: Process[Any, ..., Any] = process(
            key=tuple(self.keys), migrate=self.migrate, **self.times
        )(handled)
        return of_all

    def _respond(self, every: Collection[Operation]) -> Respond:
        """Return the function that handles requests: it returns the answer, and the changes."""
        if self.change is None:
            handlers = {
                each.request: each.into.of_results(each.results(self.layout)) for each in every
            }
            return lambda request, states: (handlers[type(request)](request, states),)
        parts = set(typing.get_type_hints(self.change)) - {"before", "value"}
        layout = RecordedLayout(self.layout, self.change, tuple(sorted(parts)))
        of_changes = {
            each.request: each.into.of_results(
                each.results(layout if each.kind in operations.MUTATIONS else self.layout)
            )
            for each in every
        }

        def respond(request: Any, states: Any) -> tuple[Any, ...]:
            layout.begin()
            return of_changes[type(request)](request, states), *layout.taken()

        return respond

    def changes(self, name: str | None) -> Stream[Any]:
        """Declare the stream of changes. See `KVStore.changes`."""
        if self.plan is None or not self.operations:
            raise StateTypeError(
                f"{self.where}: changes() needs operations: declare them first, as in "
                "store.put(stream, key=...)"
            )
        name = self.plan.free_name("stream", name or f"{self.name}.changes")
        if self.change is not None:
            raise StateTypeError(
                f"{self.where} has a stream of its changes: use what changes() returned"
            )
        sort = {} if self.sort is None else {"sort": self.sort}
        at = {} if self.event_time is None else {"at": dt.datetime}
        values = dict.fromkeys(["before", "value"], optional(self.value))
        with self.undone_if_refused():
            self.change = named_class(name, {**self.keys, **sort, **at, **values})
            self._handling([*self.operations.values()][:1])
            self.plan.grow_operator(self.name, (), self._of_all)
            return self._of_class(self.change, name)

    def lifetime(
        self, kind: str, given: Given | dt.timedelta | None
    ) -> tuple[dt.timedelta | None, list[RequestPart]]:
        """Return a constant lifetime of values, or the part of a request that has it."""
        if self.ttl is None:
            raise StateTypeError(
                f"{self.where}: {kind} needs a store whose values expire: declare it with ttl=, as "
                "in ttl=sk.TTL('30 days'), by whose clock a value expires"
            )
        if isinstance(given, str) or callable(given):
            return None, [RequestPart("ttl", optional(dt.timedelta), given)]
        if not isinstance(given, dt.timedelta):
            raise StateTypeError(
                f"{self.where}: {kind}(ttl={shown(given)}): give a timedelta, a field or a function"
            )
        return given, []

    def past(self, kind: str) -> ValueWithPast:
        """Return the layout of a store with a history."""
        if not isinstance(self.layout, ValueWithPast):
            raise StateTypeError(
                f"{self.where}: {kind} needs values of the past: declare the store with history="
            )
        return self.layout


def _key_parts(key: Any) -> dict[str, Any]:
    if key is tuple or isinstance(key, str):
        raise StateTypeError(
            f"KVStore(key={shown(key)}): give a type, such as str or tuple[str, int]"
        )
    if typing.get_origin(key) is not tuple:
        return {"key": key}
    return {f"key_{place}": of for place, of in enumerate(typing.get_args(key), start=1)}


def _item_of(key_of: Callable[[Any], Any], parts: int, where: str, place: int, record: Any) -> Any:
    """Compute the key of a record, and return one part of it."""
    return key_of_parts(key_of(record), parts, where)[place]
