"""Nested Arrow types: their parts, and the mark of fields that JSON shows in another form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

JSON_MARK = b"statekit.json"
"""Metadata of fields that JSON shows otherwise than their types: `all` for JSON text, `array` for a
struct that is a tuple.
"""


def parts_of(type_: pa.DataType) -> Sequence[pa.Field]:
    """Return the parts of a nested type; none for other types."""
    if pa.types.is_list(type_):
        return [type_.value_field]
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return list(type_.fields) if pa.types.is_struct(type_) else []


def with_parts(type_: pa.DataType, parts: Sequence[pa.Field]) -> pa.DataType:
    """Return a nested type with other parts; other types unchanged."""
    if pa.types.is_list(type_):
        return pa.list_(*parts)
    if pa.types.is_map(type_):
        return pa.map_(*parts)
    return pa.struct(parts) if pa.types.is_struct(type_) else type_


def marked_field(
    name: str, type_: pa.DataType, mark: str | None, metadata: Mapping[str, str] | None = None
) -> pa.Field:
    """Return a field with the metadata `JSON_MARK`, unless the mark is None."""
    own = {} if mark is None else {JSON_MARK.decode(): mark}
    return pa.field(name, type_, metadata={**(metadata or {}), **own} or None)


def tuple_names(size: int) -> tuple[str, ...]:
    """Return the names of the columns of a fixed tuple.

    >>> tuple_names(2)
    ('_1', '_2')
    """
    return tuple(f"_{number}" for number in range(1, size + 1))
