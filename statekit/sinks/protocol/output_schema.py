"""The schema of outputs for sinks, which is the same in all runtimes."""

from __future__ import annotations

import pyarrow as pa

from statekit.records.nested_types import marked_field, parts_of, tuple_names, with_parts


def schema_for_sinks(schema: pa.Schema) -> pa.Schema:
    """Return the schema of outputs for sinks, which is the same in all runtimes.

    Fields of all levels are nullable, except keys of maps: Spark fills the fields of an absent
    struct with nulls. Structs that are tuples have the mark by which JSON shows them as arrays.

    >>> place = pa.struct([pa.field("town", pa.string(), nullable=False)])
    >>> schema_for_sinks(pa.schema([pa.field("place", place, nullable=False)]))
    place: struct<town: string>
      child 0, town: string
    """
    return pa.schema(list(map(_for_sinks, schema)))


def _for_sinks(field: pa.Field) -> pa.Field:
    type_ = field.type
    parts = list(map(_for_sinks, parts_of(type_)))
    if pa.types.is_map(type_):
        parts[0] = parts[0].with_nullable(False)
    names = tuple(part.name for part in parts)
    is_tuple = pa.types.is_struct(type_) and names != () and names == tuple_names(len(names))
    return marked_field(field.name, with_parts(type_, parts), "array" if is_tuple else None)
