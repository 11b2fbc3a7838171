"""Requests: the records that reach a store, created from the records of a stream."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statekit.codec.annotations import show
from statekit.codec.value_codec import ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.job.stream import Stream
from statekit.kv.annotations import named_class, optional
from statekit.shown import shown

WHOLE = "*"
"""Marker for the record itself, in place of one of its fields."""

Given = str | Callable[[Any], Any]
"""Source of a part of a request: a field of the record, or a function of it."""

Keys = Given | tuple[str, ...]
"""Source of a key: a field, several fields for a key of several parts, or a function."""


@dataclass(frozen=True)
class RequestPart:
    """A part of a request.

    Parameters:
        name: of its field.
        type: of its values.
        given: its source.
    """

    name: str
    type: Any
    given: Given


def requests_of(stream: Stream[Any], name: str, parts: list[RequestPart]) -> Stream[Any]:
    """Return the stream with the requests of an operation, one for each record of a stream.

    On Spark, requests whose parts are all fields are columns of the stream.

    Parameters:
        name: of the stream of requests.
    """
    cls = named_class(name, {part.name: part.type for part in parts})
    fields = {part.name: part.given for part in parts if isinstance(part.given, str)}
    where = name.removesuffix(".requests")
    if len(fields) == len(parts):
        try:
            return stream.select(cls, name=name, **fields)
        except StateTypeError:
            check_request_parts(stream, where, parts)  # its message speaks of the operation
            raise
    check_request_parts(stream, where, parts)
    getters = [checked_getter(stream, where, part) for part in parts]

    def request(record: Any) -> Any:
        return cls(*[get(record) for get in getters])

    request.__name__ = where  # for messages
    return stream.map(request, into=cls, name=name)


def key_of_parts(key: Any, count: int, where: str) -> tuple[Any, ...]:
    """Check a key of several parts that a function returned, and return it.

    Raises:
        StateTypeError: it is not a tuple of `count` parts.
    """
    if not isinstance(key, tuple) or len(key) != count:
        raise StateTypeError(
            f"{where}: {shown(key)} is no key of {count} parts: the function of the keys must "
            "return a "
            "tuple of them"
        )
    return key


def check_request_parts(stream: Stream[Any], where: str, parts: list[RequestPart]) -> None:
    """Check the types of the parts that are fields of a record, or the record itself.

    Parameters:
        where: the declaration, for messages.

    Raises:
        StateTypeError: a field does not exist, or has another type.
    """
    record_class: Any = stream.record_class
    if record_class is dict:
        return
    fields = typing.get_type_hints(record_class, include_extras=True) | {WHOLE: record_class}
    for part in parts:
        if not isinstance(part.given, str):
            continue
        if part.given not in fields:
            raise StateTypeError(
                f"{where}: {record_class.__name__} has no field {part.given!r} for {part.name} (it "
                f"has {', '.join(typing.get_type_hints(record_class))})"
            )
        if part.type not in (fields[part.given], optional(fields[part.given])):
            field = f"{record_class.__name__}.{part.given}"
            what = "the record" if part.given == WHOLE else field
            use = "declare both with the same type, or give a function"
            if part.name == "value" and fields[part.given] == optional(part.type):
                use = "None is no value, use update or compare_and_set, which remove a value"
            raise StateTypeError(
                f"{where}: {part.name} is {show(part.type)}, and {what} is "
                f"{show(fields[part.given])}: {use}"
            )


def checked_getter(stream: Stream[Any], where: str, part: RequestPart) -> Callable[[Any], Any]:
    """Return a function from a record of a stream to the checked value of a part of a request.

    Fields of declared types are checked already.

    Parameters:
        where: the operation, for messages.

    Raises:
        StateTypeError: the records have no such field. The function raises it for a value of
            another type.
    """
    get = getter(stream, part.given)
    if not callable(part.given) and stream.record_class is not dict:
        return get
    check = ArgumentCheck(where, f"{part.name}=", part.type)

    def checked(record: Any) -> Any:
        return check(get(record), record)

    return checked


class ArgumentCheck:
    """Checks the type of the result of an operation's function, or of a field of a dict.

    Parameters:
        where: the operation.
        what: the argument of the operation.
        of: the type that the value must have.
    """

    def __init__(self, where: str, what: str, of: Any) -> None:
        self._where, self._what, self._of = where, what, of
        self._codec: ValueCodec[Any] = value_codec(of)
        self._accepts = self._codec.accepts

    def __reduce__(self) -> tuple[Any, ...]:
        return ArgumentCheck, (self._where, self._what, self._of)

    def __call__(self, value: Any, record: Any, key: Any = None) -> Any:
        """Return a value of a record after checking its type. The record and the key are for
        messages.

        Raises:
            StateTypeError: it is of another type.
        """
        if self._accepts(value):
            return value
        at_key = "" if key is None else f" at key {shown(key, 200)}"
        raise StateTypeError(
            f"{self._where}: {self._what} gave {shown(value, 100)} for the record "
            f"{shown(record, 300)}{at_key}: {self._codec.reason(value)}. Nothing of this epoch is "
            f"committed: give a value of type {show(self._of)}"
        )

    def stored(self, value: Any) -> Any:
        """Return the stored form of a value of the type."""
        return self._codec.decode(self._codec.encode(value))


def key_of_request(request: Any) -> Any:
    """Return the key of a request, for messages."""
    names = typing.get_type_hints(type(request))
    parts = [value for name, value in zip(names, request, strict=True) if _is_key(name)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _is_key(field: str) -> bool:
    return field == "key" or (field.startswith("key_") and field[4:].isdigit())


def getter(stream: Stream[Any], given: Given) -> Callable[[Any], Any]:
    """Return a function from a record of a stream to a part of a request.

    Raises:
        StateTypeError: the records have no such field.
    """
    if callable(given):
        return given
    if given == WHOLE:
        return lambda record: record
    cls = stream.record_class
    if cls is dict:
        return operator.itemgetter(given)
    if not isinstance(given, str):
        raise StateTypeError(
            f"stream {stream.name!r}: {shown(given)} is no field of {cls.__name__}: give the name "
            "of a field, or a function of a record, such as lambda record: 5"
        )
    if given not in (fields := typing.get_type_hints(cls)):
        raise StateTypeError(
            f"stream {stream.name!r}: {cls.__name__} has no field {shown(given)} (it has "
            f"{', '.join(fields)})"
        )
    return operator.itemgetter(given) if issubclass(cls, dict) else operator.attrgetter(given)
