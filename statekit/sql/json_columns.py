"""JSON columns of SQL: which columns of states and of results are JSON text, or arrays.

DuckDB keeps no metadata of Arrow fields. So the JSON text of a state has the type JSON in its view,
and a result gets the metadata `JSON_MARK` back: from its types, and, for the parts of tuples, from
the names of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import QueryError
from statekit.records.nested_types import JSON_MARK, marked_field, parts_of, with_parts

Names = frozenset[tuple[str, ...]]
"""Names of the fields of structs that JSON shows as arrays."""

_SHOWN_MAX = (2**63 - 1) // 1_000
"""Limit of durations in microseconds: results of DuckDB have nanoseconds."""


def with_json(schema: pa.Schema, relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return the rows of a state, with the type JSON for JSON text, also for nested text.

    Parameters:
        schema: of the state, with its metadata.
        relation: the rows, with the types of DuckDB.
    """
    columns = []
    for field, type_ in zip(schema, relation.types, strict=True):
        name = sql_name(field.name)
        wanted = _type_text(field, type_)
        columns.append(name if wanted == str(type_) else f"cast({name} as {wanted}) as {name}")
    return relation.project(", ".join(columns))


def _type_text(field: pa.Field, type_: duckdb.sqltypes.DuckDBPyType) -> str:
    """Return the SQL type of a field."""
    if _mark(field) == b"all":
        return "JSON"
    if type_.id not in _NESTED:
        return str(type_)
    parts = parts_of(field.type)
    texts = list(map(_type_text, parts, _children(type_)))
    if type_.id == "list":
        return f"{texts[0]}[]"
    if type_.id == "map":
        return f"MAP({', '.join(texts)})"
    fields = (f"{sql_name(part.name)} {text}" for part, text in zip(parts, texts, strict=True))
    return f"STRUCT({', '.join(fields)})"


def arrays_in(schema: pa.Schema) -> Names:
    """Return the names of the fields of structs that JSON shows as arrays."""

    def found(fields: Sequence[pa.Field]) -> Iterator[tuple[str, ...]]:
        for field in fields:
            if _mark(field) == b"array":
                yield tuple(part.name for part in field.type.fields)
            yield from found(parts_of(field.type))

    return frozenset(found(list(schema)))


def marked_result(
    table: pa.Table, types: Sequence[duckdb.sqltypes.DuckDBPyType], arrays: Names
) -> pa.Table:
    """Return a result with the metadata `JSON_MARK` of its fields."""
    fields = [
        _marked(field, type_, arrays) for field, type_ in zip(table.schema, types, strict=True)
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def _marked(field: pa.Field, type_: duckdb.sqltypes.DuckDBPyType, arrays: Names) -> pa.Field:
    if str(type_) == "JSON":
        return marked_field(field.name, field.type, "all").with_nullable(field.nullable)
    if type_.id not in _NESTED:
        return field
    pairs = zip(parts_of(field.type), _children(type_), strict=True)
    parts = [_marked(part, child, arrays) for part, child in pairs]
    is_array = type_.id == "struct" and tuple(part.name for part in parts) in arrays
    nested = with_parts(field.type, parts)
    marked = marked_field(field.name, nested, "array" if is_array else None)
    return marked.with_nullable(field.nullable)  # keys of maps are not


def _mark(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(JSON_MARK)


def _children(type_: duckdb.sqltypes.DuckDBPyType) -> list[duckdb.sqltypes.DuckDBPyType]:
    """Return the types of the parts of a nested type."""
    children = [child for _, child in type_.children]
    return [child for child in children if isinstance(child, duckdb.sqltypes.DuckDBPyType)]


_NESTED = frozenset({"list", "struct", "map"})
"""Types with parts that states have."""


def checked_durations(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield batches after checking that SQL can show their durations.

    Raises:
        QueryError: a duration has 292 years or more.
    """
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for durations in _durations(column):
                ends = pc.min_max(durations.cast(pa.int64())).as_py().values()
                if any(abs(end or 0) > _SHOWN_MAX for end in ends):
                    raise QueryError(
                        f"column {name} has a duration of 292 years or more, which an interval of "
                        "SQL cannot show: pass wide_ints=True (--wide-ints), which makes the "
                        "durations of values text, or read the state with statekit.read"
                    )
        yield batch


def _durations(column: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_duration(column.type):
        yield column
    elif pa.types.is_map(column.type):
        yield from _durations(column.keys)
        yield from _durations(column.items)
    elif pa.types.is_list(column.type):
        yield from _durations(column.values)
    elif pa.types.is_struct(column.type):
        for number in range(column.type.num_fields):
            yield from _durations(column.field(number))


def sql_name(name: str) -> str:
    """Return a name in quotes, since it may be an SQL keyword."""
    return '"' + name.replace('"', '""') + '"'
