"""The key and event time of records, read from their fields."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from statekit.codec.annotations import peel, show
from statekit.codec.key_codec import KeyCodec, dynamic_key_codec, key_codec
from statekit.codec.schema import Schema, schema_of
from statekit.codec.value_codec import ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.functions.state_parameters import with_place
from statekit.records.union import Records

KEY_TYPES = frozenset({"bool", "int", "str", "bytes", "date", "datetime", "timedelta", "uuid"})
"""Scalar kinds of key fields. A field may also be an Enum or a Literal, a NamedTuple of those, and
Optional.
"""


def codec_of_keys(operator: str, records: Records, key: tuple[str, ...]) -> KeyCodec[Any]:
    """Return the codec of the complete key: of one field, or of a tuple of the fields.

    Raises:
        StateTypeError: a field is missing, or its type cannot be a key.
    """
    if not key:
        return key_codec(tuple[()])
    if _are_untyped(records):
        return dynamic_key_codec()
    annotations = []
    for name in key:
        annotation = _annotation_in_all(records, name, f"key field {name!r}")
        where = f"{operator}, key field {name!r}"
        codec = with_place(where, functools.partial(key_codec, annotation))
        if (part := _no_key_field(codec.schema)) is not None:
            raise StateTypeError(
                f"{where}: {part} cannot be a key: use bool, int, str, bytes, date, datetime, "
                "timedelta, UUID, an Enum, a NamedTuple of those, or Optional of one of them "
                "(floats never compare reliably)"
            )
        annotations.append(annotation)
    if len(annotations) == 1:
        return key_codec(annotations[0])
    return key_codec(tuple[tuple(annotations)])  # type: ignore[misc]


def _no_key_field(schema: Schema) -> Schema | None:
    """Return the part of a type that is not allowed in key fields; None if there is none."""
    if schema.kind in KEY_TYPES or schema.kind in ("enum", "literal"):
        return None
    parts = list(schema.items) if schema.kind == "optional" else []
    if schema.flavour == "namedtuple":
        parts = [field.schema for field in schema.fields]
    if not parts:
        return schema
    return next((found for part in parts if (found := _no_key_field(part)) is not None), None)


def check_event_time(records: Records, name: str | None) -> None:
    """Check that the event time, if declared, is a datetime field of the records.

    Raises:
        StateTypeError: it is not.
    """
    if name is None or _are_untyped(records):
        return
    annotation = _annotation_in_all(records, name, f"event_time={name!r}")
    schema = with_place(records.where, lambda: schema_of(annotation))
    kind = schema.items[0].kind if schema.kind == "optional" else schema.kind
    if kind != "datetime":
        raise StateTypeError(
            f"{records.where}: event_time={name!r} is {schema}: it must be a datetime"
        )


def check_order_by(records: Records, names: tuple[str, ...]) -> None:
    """Check that the tie-breaking fields are fields of all records, each with one type.

    Raises:
        StateTypeError: they are not.
    """
    for name in names:
        _annotation_in_all(records, name, f"order_by={name!r}")


def codec_of_waiting(records: Records) -> ValueCodec[Any]:
    """Return the codec of buffered records, which wait for the watermark.

    Raises:
        StateTypeError: their type cannot be stored.
    """
    if _are_untyped(records):
        raise StateTypeError(
            f"{records.where}: ordered=True stores records, and dict does not declare their "
            "fields: annotate it with a NamedTuple, dataclass, TypedDict, Struct or pydantic "
            "model"
        )
    codec: ValueCodec[Any] = with_place(records.where, lambda: value_codec(records.cls))
    return codec


def codec_of_stored_types(
    records: Records, names: tuple[str, ...]
) -> tuple[ValueCodec[Any], frozenset[type]]:
    """Return a codec of buffered records with the types in the order in which they were first
    stored. The first type is written without its name, so it has to stay first.

    Parameters:
        names: of the types. Those that are not declared any more are read as empty stand-ins.

    Returns:
        The codec, and the stand-ins.
    """
    declared = {schema_of(member.cls).brief: member.cls for member in records.members}
    others = [name for name in names if name not in declared]
    stand_ins = {name: dataclasses.make_dataclass(name, (), frozen=True) for name in others}
    classes = declared | stand_ins
    union: Any = typing.Union[tuple(classes[name] for name in names)]  # noqa: UP007
    return value_codec(union), frozenset(stand_ins.values())


def _are_untyped(records: Records) -> bool:
    """Return whether records are plain dicts without declared fields."""
    return any(member.fields is None for member in records.members)


def _annotation_in_all(records: Records, name: str, what: str) -> Any:
    """Check that all record types have a field with the same type, and return its annotation."""
    types = {}
    for member in records.members:
        fields = member.fields or {}
        if name not in fields:
            raise StateTypeError(
                f"{records.where}: {what} is not a field of {member.name} (it has "
                f"{', '.join(fields)})"
            )
        types[member.name] = fields[name].annotation
    if len({(frozenset(peel(of)[0]), peel(of)[1]) for of in types.values()}) > 1:
        listing = " and ".join(f"{show(of)} in {record}" for record, of in types.items())
        raise StateTypeError(
            f"{records.where}: {what} is {listing}: give it one type in all of them"
        )
    return next(iter(types.values()))
