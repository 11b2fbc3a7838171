"""Modes of the sinks of lake tables, the columns of a table, and the last rows by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from statekit.errors import ProcessError, StateSchemaError, StateTypeError
from statekit.records.arrow_sort import row_numbers
from statekit.records.nested_types import parts_of, with_parts
from statekit.shown import shown
from statekit.sinks.protocol.sink import Outputs

WriteMode = Literal["append", "upsert", "overwrite"]

STAGED = "_statekit"
"""The folder of rows that are merged into the table. Readers of tables leave out such names."""

_NUMBER = "statekit row number"
"""The name of a column of row numbers. No field of a record has such a name."""


@dataclass(frozen=True)
class Writing:
    """How a sink changes its table.

    Parameters:
        mode: `append` adds the rows of an epoch. `upsert` replaces rows by key. `overwrite`
            replaces all rows.
        key: the fields of the key, for `upsert`.
        delete: a boolean field of outputs for `upsert`. If it is true, the row with this key is
            deleted. The table has no such column.
    """

    mode: WriteMode = "append"
    key: tuple[str, ...] = ()
    delete: str | None = None

    @classmethod
    def of(
        cls, sink: str, mode: WriteMode, key: str | Sequence[str] | None, delete: str | None
    ) -> Writing:
        """Check and return the options of a sink.

        Raises:
            StateTypeError: they do not fit together.
        """
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if mode not in get_args(WriteMode):
            raise StateTypeError(
                f"{sink}(mode={shown(mode, 50)}): give 'append', 'upsert' or 'overwrite'"
            )
        if (mode == "upsert") != bool(names):
            raise StateTypeError(
                f"{sink}(mode={mode!r}, key={key!r}): give key= the fields of the key with "
                "mode='upsert', and no key with another mode"
            )
        if delete is not None and (mode != "upsert" or delete in names):
            raise StateTypeError(
                f"{sink}(delete={delete!r}) is a boolean field of outputs with mode='upsert' that "
                "is not in the key"
            )
        return cls(mode, names, delete)

    def schema_of_files(self, outputs: Outputs) -> pa.Schema:
        """Return the schema of the rows that are written, with types that lake tables have.

        Raises:
            StateTypeError: the outputs have a type that no such table has, or not the fields that
                the options name.
        """
        schema = lake_schema(outputs)
        for name in (*self.key, *([] if self.delete is None else [self.delete])):
            if name not in schema.names:
                raise StateTypeError(
                    f"sink {outputs.sink!r} names the field {name!r}, and its outputs have "
                    f"{', '.join(schema.names)}: name one of them"
                )
        for name in self.key:
            if not _is_key_type(schema.field(name).type):
                raise StateTypeError(
                    f"sink {outputs.sink!r} has {name!r} of type {schema.field(name).type} in its "
                    "key: choose fields of text, integers, bytes, booleans, dates, instants or "
                    "decimals"
                )
        if self.delete is not None and not pa.types.is_boolean(schema.field(self.delete).type):
            raise StateTypeError(
                f"sink {outputs.sink!r} has delete={self.delete!r}, which is of type "
                f"{schema.field(self.delete).type}: choose a boolean field"
            )
        return schema

    def schema_of_table(self, outputs: Outputs) -> pa.Schema:
        """Return the schema of the columns that the table needs."""
        schema = self.schema_of_files(outputs)
        return pa.schema([field for field in schema if field.name != self.delete])

    def last_rows(self, rows: pa.Table, sink: str) -> pa.Table:
        """Return the last row of each key, in their order.

        Raises:
            ProcessError: a field of a key is null.
        """
        for name in self.key:
            if rows.column(name).null_count:
                raise ProcessError(
                    f"sink {sink!r} got an output whose key has the field {name!r} without a "
                    "value. Nothing of this epoch is committed: emit outputs with complete keys, "
                    "then start again"
                )
        keys = rows.select(list(self.key)).append_column(_NUMBER, row_numbers(rows.num_rows))
        grouped = keys.group_by(list(self.key), use_threads=False)
        last = grouped.aggregate([(_NUMBER, "max")])
        return rows.take(last.column(f"{_NUMBER}_max").combine_chunks().sort())

    def without(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the rows whose keys are not in another table, in their order."""
        names = list(self.key)
        wanted = keys.select(names)
        present = rows.select(names).cast(wanted.schema)
        numbered = present.append_column(_NUMBER, row_numbers(rows.num_rows))
        kept = numbered.join(wanted, names, join_type="left anti")
        return rows.take(kept.column(_NUMBER).combine_chunks().sort())


def with_types(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches with the types of a schema of `lake_schema`."""
    return (
        batch if batch.schema.equals(schema, check_metadata=True) else batch.cast(schema)
        for batch in batches
    )


def lake_schema(outputs: Outputs) -> pa.Schema:
    """Return the schema of outputs with types that lake tables have.

    Durations become integers of microseconds. Unsigned and small integers become larger ones.

    Raises:
        StateTypeError: there is no such type for a field.

    >>> schema = pa.schema([("name", pa.string()), ("took", pa.duration("us"))])
    >>> lake_schema(Outputs("9b0c", "trips", schema))
    name: string
    took: int64
    """
    fields = outputs.schema
    return pa.schema([_lake_field(field, field.name, outputs.sink) for field in fields])


def _lake_field(field: pa.Field, path: str, sink: str) -> pa.Field:
    return pa.field(field.name, _lake_type(field.type, path, sink), nullable=field.nullable)


def _lake_type(type_: pa.DataType, path: str, sink: str) -> pa.DataType:
    if parts := parts_of(type_):
        inner = [_lake_field(part, f"{path}.{part.name}", sink) for part in parts]
        return with_parts(type_, inner)
    if type_ in _KEPT or pa.types.is_decimal128(type_):
        return type_
    if type_ in _CHANGED:
        return _CHANGED[type_]
    raise StateTypeError(
        f"sink {sink!r} has the field {path!r} of type {type_}, which no lake table has: emit "
        "another type, such as text or an integer"
    )


def columns_to_add(own: pa.Schema, wanted: pa.Schema, sink: str, table: str) -> list[str]:
    """Return the names of the columns of `wanted` that a table lacks, completely or in part.

    Parameters:
        own: the schema of the table.
        wanted: the columns that the outputs need, with types of `lake_schema`.
        sink: the name of the sink, for the error.
        table: what the table is and where, for the error.

    Raises:
        StateSchemaError: a column of the table does not fit.

    >>> own = pa.schema([("name", pa.string())])
    >>> columns_to_add(own, pa.schema([("name", pa.string()), ("cents", pa.int64())]), "s", "t")
    ['cents']
    """
    present = {field.name: field for field in own}
    folded = {name.casefold(): name for name in present}
    faults = [
        f"its column {field.name!r} may not be null, and the outputs have no such field"
        for field in own
        if not field.nullable and field.name not in wanted.names
    ]
    missing = []
    for field in wanted:
        if field.name not in present:
            if (similar := folded.get(field.name.casefold())) is not None:
                faults.append(f"the field {field.name!r} differs from {similar!r} in case only")
            missing.append(field.name)
            continue
        lacks = _lacks_parts(present[field.name].type, field.type)
        if lacks is None:
            type_ = _with_small_offsets(present[field.name].type)
            faults.append(f"its column {field.name!r} is {type_}, and the field is {field.type}")
        elif lacks:
            missing.append(field.name)
    if faults:
        raise StateSchemaError(
            f"the outputs of sink {sink!r} do not fit {table}: {'; '.join(faults)}. Nothing was "
            "written: change the type of the outputs, or write to another table"
        )
    return missing


def _lacks_parts(own: pa.DataType, wanted: pa.DataType) -> bool | None:
    """Return whether a type lacks nested fields of another one; None if they do not fit."""
    own = _with_small_offsets(own)
    if not pa.types.is_nested(wanted) or own.id != wanted.id:
        return False if own == wanted else None
    if pa.types.is_struct(wanted):
        of_table = {part.name: part for part in own}
        names = {part.name for part in wanted}
        if any(not of_table[name].nullable for name in of_table.keys() - names):
            return None
        common = [part for part in wanted if part.name in of_table]
        inner = [_lacks_parts(of_table[part.name].type, part.type) for part in common]
        return None if None in inner else any(inner) or not names <= of_table.keys()
    pairs = zip(parts_of(own), parts_of(wanted), strict=True)
    inner = [_lacks_parts(one.type, other.type) for one, other in pairs]
    return None if None in inner else any(inner)


def _with_small_offsets(type_: pa.DataType) -> pa.DataType:
    """Return a type of texts, bytes or lists with offsets of 32 bits, as `lake_schema` has them."""
    if pa.types.is_large_list(type_):
        return pa.list_(type_.value_field)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type_, type_)


def _is_key_type(type_: pa.DataType) -> bool:
    return not (pa.types.is_nested(type_) or pa.types.is_floating(type_))


_KEPT = {
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
}

_CHANGED = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.duration("us"): pa.int64(),
}
