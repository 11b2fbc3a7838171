"""Show two versions of a type side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from statekit.codec.schema import Schema, StructField

_STORED, _DECLARED = "stored in the checkpoint", "declared in the code"
_GAP = "   "


class _Line(NamedTuple):
    """One line: what is stored, what is declared, and whether they differ."""

    stored: str
    declared: str
    differs: bool = False

    @property
    def mark(self) -> str:
        if not self.differs:
            return " "
        return "+" if not self.stored else "-" if not self.declared else "≠"


_Part = tuple[str, Schema]
"""The name of a part of a type, and its type."""


def side_by_side(kind: str, stored: list[_Part], declared_kind: str, declared: list[_Part]) -> str:
    """Return the parts of two types in two columns, one field per line; marks lines that differ.

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
    for one, other in zip_longest(stored, declared):
        lines += _lines(one, other, "")
    width = max(len(line.stored) for line in lines)
    texts = (f"  {line.mark} {line.stored:{width}}{_GAP}{line.declared}" for line in lines)
    return "\n".join(text.rstrip() for text in texts)


def _lines(stored: _Part | None, declared: _Part | None, indent: str) -> Iterator[_Line]:
    """One part of each type, then the fields of their structs, indented."""
    stored_text, right = _text(stored), _text(declared)
    if stored_text == right and not _has_structs(stored) and stored != declared:
        stored_text, right = _text(stored, brief=False), _text(declared, brief=False)
    yield _Line(
        stored_text and indent + stored_text, right and indent + right, stored_text != right
    )
    structs = zip_longest(_structs(stored), _structs(declared))
    several = len(list(_structs(stored))) > 1 or len(list(_structs(declared))) > 1
    for one, other in structs:
        inner = indent + "  "
        if several:  # the name of the struct in front of its fields
            names = ["" if struct is None else inner + struct.name for struct in (one, other)]
            yield _Line(names[0], names[1], names[0] != names[1])
            inner += "  "
        before, now = _fields(one), _fields(other)
        for name in {**before, **now}:
            yield from _field_lines(before.get(name), now.get(name), inner)


def _field_lines(
    stored: StructField | None, declared: StructField | None, indent: str
) -> Iterator[_Line]:
    parts = [None if field is None else (field.name, field.schema) for field in (stored, declared)]
    first, *deeper = _lines(parts[0], parts[1], indent)
    stored_text = first.stored and first.stored + _default_text(stored)
    right = first.declared and first.declared + _default_text(declared)
    yield _Line(stored_text, right, first.differs)
    yield from deeper


def _default_text(field: StructField | None) -> str:
    if field is None or field.required:
        return ""
    return " = …" if field.default else " (may be absent)"


def _text(part: _Part | None, *, brief: bool = True) -> str:
    if part is None:
        return ""
    name, schema = part
    return f"{name}: {schema.brief if brief else schema}"


def _has_structs(part: _Part | None) -> bool:
    return next(_structs(part), None) is not None


def _structs(part: _Part | None) -> Iterator[Schema]:
    """Yield the structs in a type, without the structs inside of them."""
    schemas = [] if part is None else [part[1]]
    while schemas:
        schema = schemas.pop(0)
        if schema.kind == "struct":
            yield schema
        schemas = [*schema.items, *schemas]


def _fields(struct: Schema | None) -> dict[str, StructField]:
    return {} if struct is None else {field.name: field for field in struct.fields}
