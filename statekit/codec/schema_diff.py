"""Comparison of two versions of a type as text, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap, zip_longest
from typing import NamedTuple

from statekit.codec.schema import Schema, StructField

_STORED, _DECLARED = "stored in the checkpoint", "declared in the code"
_GAP = "   "


class _Line(NamedTuple):
    """A line with the stored and the declared part, and whether they differ."""

    stored: str
    declared: str
    differs: bool = False

    @property
    def mark(self) -> str:
        if not self.differs:
            return " "
        return "+" if not self.stored else "-" if not self.declared else "≠"


_Parts = list[tuple[str, Schema]]
"""The names and types of the parts of a type."""


def side_by_side(kind: str, stored: _Parts, declared_kind: str, declared: _Parts) -> str:
    """Return the parts of two types in two columns, one field per line. Lines that differ are
    marked.

    Parameters:
        kind, declared_kind: what each is.

    >>> from typing import NamedTuple
    >>> from statekit.codec.schema import schema_of
    >>> class Leg(NamedTuple):
    ...     origin: str
    ...     minutes: str
    >>> before = schema_of(dict[str, Leg])
    >>> class Leg(NamedTuple):
    ...     origin: str
    ...     minutes: float
    ...     gate: str = ""
    >>> now = schema_of(dict[str, Leg])
    >>> print(side_by_side("value state", [("value", before)], "value state", [("value", now)]))
        stored in the checkpoint   declared in the code
        value state                value state
        value: dict[str, Leg]      value: dict[str, Leg]
          origin: str                origin: str
      ≠   minutes: str               minutes: float
      +                              gate: str = …
    """
    lines = [_Line(_STORED, _DECLARED), _Line(kind, declared_kind, kind != declared_kind)]
    for one, other in zip_longest(starmap(StructField, stored), starmap(StructField, declared)):
        lines += _lines(one, other, "")
    width = max(len(line.stored) for line in lines)
    texts = (f"  {line.mark} {line.stored:{width}}{_GAP}{line.declared}" for line in lines)
    return "\n".join(text.rstrip() for text in texts)


def _lines(
    stored: StructField | None, declared: StructField | None, indent: str
) -> Iterator[_Line]:
    """Yield one part of each type, then the fields of their structs, indented."""
    before, now = _text(stored), _text(declared)
    is_alike = before == now and not any(_structs(stored))
    if stored and declared and is_alike and stored.schema != declared.schema:
        before, now = f"{stored.name}: {stored.schema}", f"{declared.name}: {declared.schema}"
    yield _Line(
        before and indent + before + _default_text(stored),
        now and indent + now + _default_text(declared),
        before != now,
    )
    structs = list(zip_longest(_structs(stored), _structs(declared)))
    for one, other in structs:
        inner = indent + "  "
        if len(structs) > 1:  # the name of the struct in front of its fields
            names = ["" if struct is None else inner + struct.name for struct in (one, other)]
            yield _Line(names[0], names[1], names[0] != names[1])
            inner += "  "
        fields, fields_now = _fields(one), _fields(other)
        for name in {**fields, **fields_now}:
            yield from _lines(fields.get(name), fields_now.get(name), inner)


def _text(part: StructField | None) -> str:
    return "" if part is None else f"{part.name}: {part.schema.brief}"


def _default_text(field: StructField | None) -> str:
    if field is None or field.required:
        return ""
    return " = …" if field.default else " (may be absent)"


def _structs(part: StructField | None) -> Iterator[Schema]:
    """Yield the outermost structs in a type."""
    schemas = [] if part is None else [part.schema]
    while schemas:
        schema = schemas.pop(0)
        if schema.kind == "struct":
            yield schema
        schemas = [*schema.items, *schemas]


def _fields(struct: Schema | None) -> dict[str, StructField]:
    return {} if struct is None else {field.name: field for field in struct.fields}
