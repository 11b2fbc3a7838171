"""JSON text of any record or value, whether it fits its declared type or not."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

from statekit.codec.annotations import struct_fields, struct_flavour
from statekit.codec.json_form import json_form
from statekit.errors import CALL_FAILURES
from statekit.shown import shown


def record_text(value: object) -> str:
    """Return a value as JSON text: scalars as `json_form`, classes with fields as objects.

    The text depends on the value alone, and not on declared types, which a bad record need not fit.
    A part without a JSON form is its repr. Never fails.

    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     lines: dict[int, bytes]
    >>> record_text(Order("ann", {1: b"\\xff"}))
    '{"customer":"ann","lines":{"1":"ff"}}'
    >>> record_text({"amount": float("nan"), "by": object})
    '{"amount":"NaN","by":"<class \\'object\\'>"}'
    """
    try:
        text = _dumped(_data(value))
    except CALL_FAILURES:  # it contains itself, or is of a class of the user that fails
        text = _dumped(shown(value))
    return text.encode("utf-8", "backslashreplace").decode()


def _dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _data(value: Any) -> Any:
    """Return a value as JSON-able data."""
    if isinstance(value, enum.Enum):
        return _data(value.value)
    if struct_flavour(type(value)) not in (None, "typeddict"):
        fields = struct_fields(type(value))
        return {field.name: _data(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {_name(key): _data(entry) for key, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_data, value), key=_dumped)
    if isinstance(value, list | tuple):
        return list(map(_data, value))
    try:
        return json_form(value)
    except TypeError:
        return shown(value)


def _name(key: Any) -> str:
    """Return a key as the name of a member of an object."""
    data = _data(key)
    return data if isinstance(data, str) else _dumped(data)
