"""Examples of keys of several parts, for messages."""

from __future__ import annotations

import json
from typing import Any

from statekit.codec.schema import Schema


def list_advice(schema: Schema) -> str:
    """Return how a key of several parts is given, after a semicolon; empty for other keys.

    >>> list_advice(Schema("tuple", (Schema("str"), Schema("int"))))
    '; give a JSON list, such as ["NO",7]'
    """
    if schema.kind == "optional":
        return list_advice(schema.items[0])
    if schema.kind not in ("tuple", "variadic", "struct"):
        return ""
    example = json.dumps(key_example(schema), default=str, separators=(",", ":"))
    return f"; give a JSON list, such as {example}"


def key_example(schema: Schema, place: int = 0) -> Any:
    """Return a key of a type as JSON, as an example.

    Parameters:
        place: of the part in a key of several parts.
    """
    match schema.kind:
        case "optional":
            return key_example(schema.items[0], place)
        case "tuple" | "struct":
            items = schema.items or tuple(field.schema for field in schema.fields)
            return [key_example(item, number) for number, item in enumerate(items)]
        case "variadic":
            return [key_example(schema.items[0], number) for number in range(2)]
        case "enum" | "literal":
            name, value = schema.values[0]
            return name if schema.kind == "enum" else value
    return _EXAMPLES.get(schema.kind, ("NO", "p01"))[place % 2]


_EXAMPLES: dict[str, tuple[Any, Any]] = {
    "bool": (True, False),
    "int": (1, 7),
    "float": (0.5, 1.5),
    "bytes": ("00ff", "01"),
    "date": ("2026-01-31", "2026-02-28"),
    "datetime": ("2026-01-31T12:00:00+00:00", "2026-02-28T12:00:00+00:00"),
    "timedelta": ("PT1M", "PT1H"),
    "uuid": ("12345678-1234-5678-1234-567812345678",) * 2,
}
"""The first and the second part of a key, by their types. For text, a country and a plant."""
