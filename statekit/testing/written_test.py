"""Tests that are written for the user: the lines that all of them need."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pydantic

_MODULES = ("datetime", "decimal", "uuid", "pytest")


def source_of(value: Any) -> str:
    """Return Python that makes an equal value. Classes of the user have their names.

    >>> import decimal, uuid
    >>> source_of([decimal.Decimal("1.50"), {"id": uuid.UUID(int=1)}])
    "[decimal.Decimal('1.50'), {'id': uuid.UUID('00000000-0000-0000-0000-000000000001')}]"
    """
    cls = type(value)
    match value:
        case enum.Enum():
            return f"{cls.__name__}.{value.name}"
        case decimal.Decimal() | uuid.UUID():
            return f"{cls.__module__}.{value!r}"
        case dict():
            parts = (f"{source_of(key)}: {source_of(part)}" for key, part in value.items())
            return f"{{{', '.join(parts)}}}"
        case list():
            return f"[{', '.join(map(source_of, value))}]"
        case set() | frozenset() if value:
            members = f"{{{', '.join(map(source_of, value))}}}"
            return members if cls is set else f"frozenset({members})"
        case tuple() if not hasattr(value, "_fields"):
            return f"({', '.join(map(source_of, value))}{',' if len(value) == 1 else ''})"
    fields = _fields_of(value)
    if fields is None:
        return repr(value)
    return f"{cls.__name__}({', '.join(f'{name}={source_of(of)}' for name, of in fields.items())})"


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the arguments that a record is made of; None for what is no record."""
    if isinstance(value, type):
        return None
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value):
        made = [field for field in dataclasses.fields(value) if field.init]
        return {field.name: getattr(value, field.name) for field in made}
    if isinstance(value, pydantic.BaseModel):
        declared = type(value).model_fields
        return {field.alias or name: getattr(value, name) for name, field in declared.items()}
    return None


def with_imports(name: str, body: Iterable[str], kit: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a test, with what it imports besides the user's own names.

    Parameters:
        name: of what is tested; any text.
        body: the lines of the function.
        kit: names of `statekit.testing` that it may use.
    """
    lines = list(body)
    text = "\n".join(lines)
    for module in _MODULES:
        if re.search(rf"\b{module}\.", text):
            yield f"import {module}"
    used = sorted(each for each in kit if re.search(rf"\b{each}\(", text))
    yield f"from statekit.testing import {', '.join(used)}"
    words = re.sub(r"\W+", "_", name)
    yield ""
    yield f"def test_{words}() -> None:"
    yield from (f"    {line}" for line in lines)
