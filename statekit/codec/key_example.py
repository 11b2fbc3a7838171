"""Examples of keys with several parts, for messages."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from typing import Any

from statekit.codec.json_form import json_form
from statekit.codec.schema import Schema
from statekit.shown import shown


def list_advice(schema: Schema) -> str:
    """Return the syntax of a key with several parts, after a semicolon; empty for other keys.

    >>> list_advice(Schema("tuple", (Schema("str"), Schema("int"))))
    '; give a JSON list, such as ["NO",7]'
    """
    if schema.kind == "optional":
        return list_advice(schema.items[0])
    if schema.kind not in ("tuple", "variadic", "struct"):
        return ""
    example = json.dumps(key_example(schema), default=_json, separators=(",", ":"))
    return f"; give a JSON list, such as {example}"


def tuple_advice(schema: Schema) -> str:
    """Return the syntax of a key with several parts as argument of a function or typed reader.

    >>> tuple_advice(Schema("tuple", (Schema("str"), Schema("int"))))
    "use a value of type tuple[str, int], such as ('NO', 7)"
    """
    return f"use a value of type {schema.brief}, such as {shown(key_example(schema))}"


def key_example(schema: Schema, place: int = 0) -> Any:
    """Return an example of a key of this type.

    Parameters:
        place: of the part in a key of several parts.
    """
    match schema.kind:
        case "optional":
            return key_example(schema.items[0], place)
        case "tuple" | "struct":
            parts = [key_example(part, number) for number, part in enumerate(schema.parts)]
            return tuple.__new__(schema.annotation or tuple, parts)
        case "variadic":
            return tuple(key_example(schema.items[0], number) for number in range(2))
        case "enum":
            value = schema.values[0][1]
            return value if schema.annotation is None else schema.annotation(value)
        case "literal":
            return schema.values[0][1]
    return _EXAMPLES.get(schema.kind, ("NO", "p01"))[place % 2]


def _json(part: Any) -> Any:
    """Return a part of a key in its JSON form."""
    return json_form(part.value if isinstance(part, enum.Enum) else part)


_EXAMPLES: dict[str, tuple[Any, Any]] = {
    "bool": (True, False),
    "int": (1, 7),
    "float": (0.5, 1.5),
    "bytes": (b"\x00\xff", b"\x01"),
    "date": (dt.date(2026, 1, 31), dt.date(2026, 2, 28)),
    "datetime": (
        dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 28, 12, tzinfo=dt.UTC),
    ),
    "timedelta": (dt.timedelta(minutes=1), dt.timedelta(hours=1)),
    "uuid": (uuid.UUID("12345678-1234-5678-1234-567812345678"),) * 2,
}
"""The first and the second example part of a key, by type. For text, a country and a plant."""
