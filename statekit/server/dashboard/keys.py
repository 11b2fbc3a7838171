"""Keys in forms: one field for each part of a key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from statekit.server.dashboard.texts import json_text

Field = Mapping[str, Any]
"""Name and type of a part of a key, as in the description of a job."""

_AS_JSON = frozenset({"int", "float", "bool", "dynamic"})
"""The types whose parts are typed as JSON. All others are text, which the server reads."""

_HINTS = {
    "str": "text",
    "int": "number",
    "date": "2026-01-31",
    "datetime": "2026-01-31T12:00:00Z",
    "bool": "true",
    "bytes": "hex, as in 00ff",
    "dynamic": 'JSON, as in "text" or 5',
}


def part_type(field: Field) -> str:
    """Return the name of the type of a part."""
    return _name(field["type"])


def hint(field: Field) -> str:
    """Return an example of a value to type."""
    kind = _kind(field)
    return _HINTS.get(kind, kind)


def typed_key(fields: Sequence[Field], texts: Sequence[str]) -> Any:
    """Return the key, as JSON-able data, of the typed texts.

    >>> typed_key([{"name": "id", "type": "int"}, {"name": "site", "type": "str"}], ["7", "7"])
    ['7', '7']
    >>> typed_key([{"name": "found", "type": "bool"}], ["true"])
    True
    """
    parts = [_part(field, text) for field, text in zip(fields, texts, strict=False)]
    return parts[0] if len(fields) == 1 and parts else parts


def texts_of(fields: Sequence[Field], key: Any) -> list[str]:
    """Return the texts to type for a key: those that `typed_key` makes the key of.

    >>> texts_of([{"name": "id", "type": "int"}], 7), texts_of([{"name": "id", "type": "str"}], "7")
    (['7'], ['7'])
    """
    parts = key if len(fields) != 1 and isinstance(key, list) else [key]
    kinds = [_kind(field) for field in fields]
    is_text = [
        isinstance(part, str) and kind != "dynamic"
        for part, kind in zip(parts, kinds, strict=False)
    ]
    return [part if plain else json_text(part) for part, plain in zip(parts, is_text, strict=False)]


def _part(field: Field, text: str) -> Any:
    kind = _kind(field)
    if _name(field["type"]) == "optional" and text == "null":
        return None
    if kind not in _AS_JSON:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # The server takes an int as text, too, and its message then quotes what was typed.
    return text.strip() if kind == "int" and isinstance(value, int | float) else value


def _name(type_: Any) -> str:
    return type_ if isinstance(type_, str) else str(type_["kind"])


def _kind(field: Field) -> str:
    type_ = field["type"]
    return _name(type_["items"][0]) if _name(type_) == "optional" else _name(type_)
