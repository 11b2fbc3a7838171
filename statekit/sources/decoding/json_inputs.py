"""The general way from JSON to records: JSON data becomes what `RecordType.coerce` takes."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import typing
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from statekit.codec.annotations import Field, peel, struct_fields, struct_flavour
from statekit.codec.json_form import NOT_FINITE
from statekit.records.declaration import MAPPINGS, SEQUENCES
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.shown import shown, type_name

Convert = Callable[[Any], Any]
"""Returns the value of a type for its JSON data. Data of another type is left to `coerce`."""

# A number with a fraction keeps its digits until its type is known.
_DOCUMENTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=decimal.Decimal)


class JsonInputs:
    """Converts documents to records, by the JSON forms of the types of their fields.

    Parameters:
        records: the type of the records.
        without: fields that do not come from documents.

    >>> from typing import NamedTuple
    >>> from statekit.records.union import records_of
    >>> class Reading(NamedTuple):
    ...     raw: bytes
    ...     level: float
    >>> JsonInputs(records_of(Reading, where="readings")).record(b'{"raw":"ff","level":"NaN"}', {})
    Reading(raw=b'\\xff', level=nan)
    """

    def __init__(self, records: Records, without: Collection[str] = ()) -> None:
        self._members = {
            member.name: (member, _input_of(member, without)) for member in records.members
        }

    def record(self, document: bytes | None, values: Mapping[str, Any]) -> Any:
        """Return the record of a document.

        Parameters:
            document: JSON.
            values: of the fields that do not come from the document.

        Raises:
            ValueError: it is no JSON, no object, or the type cannot hold it.
            ProcessError: the record type refuses it.
        """
        if document is None:
            raise ValueError("there is no document: its value is null")
        data = _DOCUMENTS.decode(document)
        if not isinstance(data, dict):
            raise ValueError(f"it is no JSON object, but {shown(data)}")
        (member, convert), data = self._member(data)
        return member.coerce({**convert(data), **values})

    def _member(self, data: dict[str, Any]) -> tuple[tuple[RecordType, Convert], dict[str, Any]]:
        """Return the type of a document, and the object of its fields."""
        if len(self._members) == 1:
            return next(iter(self._members.values())), data
        for found in self._members.values():
            config: Any = getattr(found[0].cls, "__struct_config__", None)
            is_tagged = config is not None and config.tag is not None
            if is_tagged and data.get(config.tag_field) == config.tag:
                return found, data
        given = {name: part for name, part in data.items() if part is not None}
        for name, found in self._members.items():
            if given.keys() == {name} and isinstance(given[name], dict):
                return found, given[name]
        names = " or ".join(map(repr, self._members))
        raise ValueError(
            f"it is of no definite type: let a document have one member, {names}, or the tag of a "
            "msgspec Struct"
        )


def _input_of(member: RecordType, without: Collection[str]) -> Convert:
    if member.fields is None:
        return _plain
    fields = [field for field in member.fields.values() if field.name not in without]
    return _Inputs().of_fields(member.cls, fields)


class _Inputs:
    """Builds the conversions of types. Remembers the classes that it has met: a class may contain
    itself.
    """

    def __init__(self) -> None:
        self._of_class: dict[Any, Convert] = {}

    def of(self, annotation: Any) -> Convert:
        members, _, _ = peel(annotation)
        if len(members) == 1:
            return _unless_null(self.of_member(members[0]))
        if not members:
            return _plain
        if str in members:  # text is text, and no bytes or float of the union
            rest = [self.of_member(member) for member in members if member is not str]
            return lambda data: data if isinstance(data, str) else _first_fit(rest, data)
        converts = [self.of_member(member) for member in members]
        return _unless_null(lambda data: _first_fit(converts, data))

    def of_member(self, member: Any) -> Convert:
        """Return the conversion of a type that is no union."""
        origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
        if struct_flavour(member) is not None:
            return self.of_class(member)
        if origin in SEQUENCES:
            return self.of_sequence(origin, arguments)
        if origin in MAPPINGS:
            return self.of_mapping(*arguments) if arguments else _plain
        if member is Any:
            return _plain
        return _SCALARS.get(member, _as_it_is)

    def of_class(self, cls: Any) -> Convert:
        if cls not in self._of_class:
            self._of_class[cls] = lambda data: self._of_class[cls](data)
            self._of_class[cls] = self.of_fields(cls, struct_fields(cls))
        return self._of_class[cls]

    def of_fields(self, cls: Any, fields: Collection[Field]) -> Convert:
        """Return the conversion of an object with these fields."""
        is_dict = struct_flavour(cls) == "typeddict"
        converts = {field.name: self.of(field.annotation) for field in fields}
        # Null stands for an absent key.
        optional = {
            field.name
            for field in fields
            if is_dict and not field.required and not peel(field.annotation)[1]
        }
        renamed = getattr(cls, "__struct_encode_fields__", ())
        for name, other in zip(getattr(cls, "__struct_fields__", ()), renamed, strict=True):
            if name in converts:
                converts[other] = converts[name]

        def convert(data: Any) -> Any:
            if not isinstance(data, dict):
                return data
            return {
                name: converts[name](part) if name in converts else part
                for name, part in data.items()
                if part is not None or name not in optional
            }

        return convert

    def of_sequence(self, origin: Any, arguments: tuple[Any, ...]) -> Convert:
        if not arguments:
            return _plain
        if origin is tuple and Ellipsis not in arguments:
            parts = list(map(self.of, arguments))
            return lambda data: (
                [convert(part) for convert, part in zip(parts, data, strict=True)]
                if isinstance(data, list) and len(data) == len(parts)
                else data
            )
        item = self.of(arguments[0])
        return lambda data: list(map(item, data)) if isinstance(data, list) else data

    def of_mapping(self, key: Any, item: Any) -> Convert:
        """Return the conversion of an object, or of pairs if its keys are no scalars."""
        of_name, of_key, of_item = self.of_name(key), self.of(key), self.of(item)

        def convert(data: Any) -> Any:
            if isinstance(data, dict):
                return {of_name(name): of_item(part) for name, part in data.items()}
            if isinstance(data, list) and all(isinstance(e, list) and len(e) == 2 for e in data):
                return {_hashable(of_key(name)): of_item(part) for name, part in data}
            return data

        return convert

    def of_name(self, annotation: Any) -> Convert:
        """Return the conversion of the names of an object, which are text, to keys."""
        convert = self.of_text(annotation)
        return lambda name: _hashable(convert(name))

    def of_text(self, annotation: Any) -> Convert:
        """Return the conversion of text, which is JSON if no text is a value of the type."""
        members, _, _ = peel(annotation)
        convert = self.of(annotation)
        if any(member in _TEXTS or _has_texts(member) for member in members):
            return convert
        return lambda text: convert(text if text in NOT_FINITE else _DOCUMENTS.decode(text))


_TEXTS = (str, bytes, dt.date, dt.datetime, dt.timedelta, decimal.Decimal, uuid.UUID)


def text_converter(annotation: Any) -> Convert:
    """Return the conversion of text, such as a cell of CSV, for `RecordType.coerce`.

    Text is JSON unless it can be a value of the type itself.

    >>> text_converter(list[int])("[1,2]"), text_converter(str)("1")
    ([1, 2], '1')
    """
    return _Inputs().of_text(annotation)


def _has_texts(member: Any) -> bool:
    """Return whether values of an Enum or a Literal are text."""
    values: list[Any] = list(typing.get_args(member))
    if isinstance(member, type) and issubclass(member, enum.Enum):
        values = [each.value for each in member]
    return any(isinstance(value, str) for value in values)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _unless_null(convert: Convert) -> Convert:
    if convert is _as_it_is:
        return convert
    return lambda data: None if data is None else convert(data)


def _first_fit(converts: Collection[Convert], data: Any) -> Any:
    """Return what the first conversion makes of data that it does not leave as it is."""
    for convert in converts:
        try:
            converted = convert(data)
        except (ValueError, TypeError, ArithmeticError):
            continue
        if converted is not data:
            return converted
    return _plain(data)


def _as_it_is(data: Any) -> Any:
    return _plain(data) if isinstance(data, decimal.Decimal) else data


def _plain(data: Any) -> Any:
    """Return data without a declared type: numbers are ints and floats."""
    if isinstance(data, decimal.Decimal):
        return _float(data)
    if isinstance(data, list):
        return list(map(_plain, data))
    if isinstance(data, dict):
        return {name: _plain(part) for name, part in data.items()}
    return data


def _float(data: Any) -> Any:
    if isinstance(data, str) and data in NOT_FINITE:
        return float(data)
    if not isinstance(data, decimal.Decimal):
        return data
    number = float(data)
    if math.isinf(number):
        raise ValueError(f"{data} is too large for a float")
    return number


def _bytes(data: Any) -> bytes:
    if not isinstance(data, str):
        raise ValueError(f"bytes are hex in JSON, got {type_name(data)}: {shown(data)}")
    return bytes.fromhex(data)


def _instant(data: Any) -> Any:
    """Return a time in UTC.

    Raises:
        ValueError: it has no zone.
    """
    if not isinstance(data, str):
        return data
    try:
        at = msgspec.convert(
            data, dt.datetime
        )  # as the fast way: digits of nanoseconds are rounded
    except msgspec.ValidationError:
        at = dt.datetime.fromisoformat(data)
    if at.tzinfo is None:
        raise ValueError(
            f"{shown(data)} has no time zone, so that it is no point in time: write it with Z or "
            "an offset such as +01:00"
        )
    return at.astimezone(dt.UTC)


def _text_as(cls: Any) -> Convert:
    """Return the conversion of text to a class that msgspec knows."""
    return lambda data: msgspec.convert(data, cls) if isinstance(data, str) else data


_SCALARS: dict[Any, Convert] = {
    float: _float,
    bytes: _bytes,
    dt.datetime: _instant,
    dt.date: _text_as(dt.date),
    dt.timedelta: _text_as(dt.timedelta),
    decimal.Decimal: lambda data: msgspec.convert(data, decimal.Decimal),
    uuid.UUID: _text_as(uuid.UUID),
}
