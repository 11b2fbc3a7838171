"""Rows of a state from the columns of its table: the inverse of `Table`.

A batch of rows is encoded column by column. If that fails, the batch is halved until the rows that
do not fit are found, so each of them is named with its reason, and all others are encoded together.

A value is decoded and encoded once more by the codec of its state. So it is checked by the code
that will read it, and stored in the bytes that the state itself writes. Types whose values have one
form only are exempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from statekit.checkpoint.era import PERMANENT
from statekit.codec.kept_fields import only_stores
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.value_codec import ValueCodec
from statekit.codec.value_plan import ENCODER
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.keygroup import MAX_GROUPS
from statekit.query.encoded.binary_columns import big_endian_rows, fixed, joined_rows
from statekit.query.encoded.key_bytes import PACKED_KINDS, packed_keys
from statekit.query.encoded.value_bytes import packed_structs, packed_values
from statekit.query.tables.columns import WIDE_INT, Column, Struct, key_column, value_column
from statekit.query.tables.key_columns import KeyEncoder
from statekit.query.tables.packed_bytes import RowBatch, RowColumns
from statekit.query.tables.row_parts import Family, stamps
from statekit.query.tables.table import TableColumn, layout_of, names_of
from statekit.records.declaration import ValueMismatch
from statekit.records.nested_types import parts_of
from statekit.shown import shown_text
from statekit.state.row_versions import value_schema

SHARD_BYTES = 4

POSITIONS = 1 << 48
"""A position of a list element has six bytes after those of its epoch."""


class Refusal(NamedTuple):
    """A row that cannot be stored.

    Parameters:
        place: of the row in its batch.
        reason: why.
    """

    place: int
    reason: str


class RowEncoder(Protocol):
    """Encodes rows of a table as stored rows."""

    def encoded(self, batch: pa.RecordBatch) -> RowColumns:
        """Return the rows of a batch. Raises one of `MISFITS` if one of them does not fit."""

    def rows(self, batch: pa.RecordBatch) -> tuple[RowColumns, list[int], list[Refusal]]:
        """Return the rows of a batch, their places in it, and the rows that do not fit.

        Parameters:
            batch: has all columns, in any order.
        """
        parts, places, refused = list[RowColumns](), list[int](), list[Refusal]()
        for place, part, found in self._parts(batch, 0):
            if isinstance(found, RowColumns):
                parts.append(found)
                places.extend(range(place, place + part))
            else:
                refused.append(Refusal(place, found))
        return RowColumns.joined(parts), places, refused

    def _parts(self, batch: pa.RecordBatch, at: int) -> Iterator[tuple[int, int, RowColumns | str]]:
        """Yield the place, the size and the rows of each part of a batch; of a row that does not
        fit, the reason.
        """
        count = batch.num_rows
        if not count:
            return
        try:
            yield at, count, self.encoded(batch)
            return
        except MISFITS as error:
            if count == 1:
                yield at, 1, reason_of(error)
                return
        half = count // 2
        yield from self._parts(batch[:half], at)
        yield from self._parts(batch[half:], at + half)


def local_rows_of(rows: RowColumns) -> RowBatch:
    """Return rows of operator state, whose row keys begin with the number of the shard, with the
    shards beside them.

    >>> local_rows_of(RowColumns.of([bytes([0, 0, 0, 3]) + b"key"], [b"row"]))
    RowBatch(keys=[b'key'], rows=[b'row'], shards=[3])
    """
    row_keys = rows.keys.to_pylist()
    return RowBatch(
        [row_key[SHARD_BYTES:] for row_key in row_keys],
        rows.rows.to_pylist(),
        [int.from_bytes(row_key[:SHARD_BYTES], "big") for row_key in row_keys],
    )


class TableRows(RowEncoder):
    """Encodes rows of a table as rows of a state. Row keys of operator state begin with the number
    of the shard in `SHARD_BYTES`.

    Parameters:
        family: the state.
        codec: of its values, as the code declares them.
        key_groups: of the checkpoint.
        wide: whether the table has ints of 20 digits, and durations as text.

    Attributes:
        columns: the fields of the columns that are read, with the types that they are read as.
    """

    def __init__(
        self, family: Family, codec: ValueCodec[Any], key_groups: int, *, wide: bool = False
    ) -> None:
        state = family.state
        assert state is not None, "only states have rows of values"
        layout = layout_of(family, wide=wide)
        self._layout = layout
        self._keys = None if family.is_local else KeyEncoder(family.operator)
        self._key_groups = key_groups
        self._place = _place_function(family, wide)
        self._value = _value_function(value_schema(state), codec, wide)
        self._era = state.expiry_era
        read: list[TableColumn] = [*layout.key, *layout.place, *layout.value, *layout.times[:1]]
        self.columns = [column.field for column in read]

    def encoded(self, batch: pa.RecordBatch) -> RowColumns:
        arrays = {field.name: _cast(batch.column(field.name), field) for field in self.columns}
        layout = self._layout
        of_keys = [arrays[name] for name in names_of(layout.key)]
        if self._keys is None:
            row_keys = _shards(of_keys[0])
        else:
            row_keys = self._keys.prefixes(of_keys, self._key_groups)
        if self._place is not None:
            row_keys = joined_rows([row_keys, self._place(arrays[layout.place[0].field.name])])
        rows = self._value([arrays[name] for name in names_of(layout.value)])
        if layout.times:
            written = arrays[layout.times[0].field.name].cast(pa.int64()).fill_null(PERMANENT)
            rows = joined_rows([stamps(written.to_numpy(), self._era), rows])
        return RowColumns(row_keys, rows)


MISFITS = (
    ValueMismatch,
    StateTypeError,
    CorruptCheckpointError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    pa.ArrowException,
)
"""What is raised for values that are not of their type."""


def reason_of(error: BaseException) -> str:
    """Return the reason of an error: of a value that cannot be decoded, that of the decoder."""
    return shown_text(error.__cause__ or error).strip()


def row_text(row: pa.RecordBatch) -> dict[str, str | None]:
    """Return a batch of one row as texts, for messages."""
    return {name: cell_text(row.column(name)[0]) for name in row.schema.names}


def cell_text(cell: pa.Scalar) -> str | None:
    """Return a value of a column as text, also if Python cannot hold it.

    >>> cell_text(pa.scalar(1 << 40, pa.timestamp("s", "UTC")))
    "<pyarrow.TimestampScalar: '-28724-02-20T00:36:16+0000'>"
    """
    if not cell.is_valid:
        return None
    try:
        return str(cell.as_py())
    except (ValueError, OverflowError):  # such as a time after the year 9999
        return repr(cell)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == field.type else array.cast(field.type)


# --------------------------------------------------------------------------- parts of a row


def _place_function(family: Family, wide: bool) -> Callable[[pa.Array], pa.Array] | None:
    """Return a function from map keys or positions to the end of row keys; None for states with one
    row per key.
    """
    state = family.state
    assert state is not None
    if "key" in state.types:
        schema = Schema.from_json(state.types["key"])
        return _map_keys(schema, key_column(schema, wide=wide))
    return _positions if layout_of(family).place else None


def _map_keys(schema: Schema, column: Column) -> Callable[[pa.Array], pa.Array]:
    """Return a function from map keys to their stored bytes."""
    encode, is_packed = schema_key_codec(schema).encode_all, schema.kind in PACKED_KINDS

    def encoded(array: pa.Array) -> pa.Array:
        if is_packed and (packed := packed_keys([array])) is not None:
            return packed
        return pa.array(encode(column.values(array)), pa.binary())

    return encoded


def _shards(array: pa.Array) -> pa.Array:
    """Return the numbers of shards as the start of row keys.

    Raises:
        ValueError: one is null, negative or too large.
    """
    if array.null_count:
        raise ValueError("its shard is null")
    numbers = array.to_numpy().astype(np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < MAX_GROUPS:
        raise ValueError(f"its shard is not from 0 to {MAX_GROUPS - 1}")
    return fixed(big_endian_rows(numbers)[:, -SHARD_BYTES:])


def _positions(array: pa.Array) -> pa.Array:
    """Return the positions of list elements, which are those of epoch 0.

    Raises:
        ValueError: one is null, negative or too large.
    """
    if array.null_count:
        raise ValueError("its position is null")
    numbers = array.to_numpy()
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < POSITIONS:
        raise ValueError(f"its position is not from 0 to {POSITIONS - 1}")
    packed = np.zeros((len(numbers), 12), np.uint8)
    packed[:, 4:] = big_endian_rows(numbers)
    return fixed(packed)


def _value_function(
    schema: Schema, codec: ValueCodec[Any], wide: bool
) -> Callable[[Sequence[pa.Array]], pa.Array]:
    """Return a function from the columns of values to stored values."""
    single = value_column(schema, wide=wide)
    columns = {schema.name: single}
    read: Callable[[Sequence[pa.Array]], list[Any]] = lambda arrays: single.values(arrays[0])  # noqa: E731
    is_struct = schema.kind == "struct" and bool(schema.fields)
    if is_struct:
        outer = {schema.name: schema}
        columns = {
            field.name: value_column(field.schema, wide=wide, outer=outer)
            for field in schema.fields
        }
        read = Struct(columns).values
    has_one_form = _has_one_form(codec.schema)

    def stored(arrays: Sequence[pa.Array]) -> pa.Array:
        if has_one_form and not any(array.null_count for array in arrays):
            values = [column.values for column in columns.values()]
            if not is_struct:
                return packed_values(arrays[0], values[0])
            pairs = zip(arrays, values, strict=True)
            return packed_structs(dict(zip(columns, pairs, strict=True)))
        rows = map(codec.encode, map(codec.decode, map(ENCODER.encode, read(arrays))))
        return pa.array(list(rows), pa.binary())

    return stored


_WITH_ONE_FORM = frozenset(("bool", "int", "float", "str", "bytes", "date", "datetime"))
"""Kinds whose values a column of their type contains in the form in which they are stored."""


def _has_one_form(schema: Schema) -> bool:
    """Return whether all values in a column without nulls are valid, and stored as they are."""
    if schema.kind != "struct":
        return schema.kind in _WITH_ONE_FORM
    return (
        bool(schema.fields)  # without fields, its column is JSON text
        and schema.flavour != "pydantic"
        and only_stores(schema.annotation)
        and all(field.required and field.schema.kind in _WITH_ONE_FORM for field in schema.fields)
    )


def encoder_of(
    family: Family, codec: ValueCodec[Any], key_groups: int, schema: pa.Schema
) -> tuple[TableRows, list[str]]:
    """Return the encoder for a table with this schema, and the faults of its columns."""
    forms = (True,) if any(map(_has_wide_ints, schema.types)) else (False, True)
    encoders = [TableRows(family, codec, key_groups, wide=wide) for wide in forms]
    wrong = [check_columns(schema, encoder.columns) for encoder in encoders]
    best = wrong.index([]) if [] in wrong else 0
    return encoders[best], wrong[best]


def _has_wide_ints(type_: pa.DataType) -> bool:
    return type_ == WIDE_INT or any(_has_wide_ints(part.type) for part in parts_of(type_))


def check_columns(given: pa.Schema, wanted: Sequence[pa.Field]) -> list[str]:
    """Return the faults of the columns of a table: one is missing, or of a type whose values cannot
    be of the wanted type.

    >>> check_columns(pa.schema({"n": pa.string()}), [pa.field("n", pa.int64())])
    ['column n is of type string, and must be int64']
    """
    wrong = []
    for field in wanted:
        at = given.get_all_field_indices(field.name)
        if len(at) != 1:
            count = "missing" if not at else f"there {len(at)} times"
            wrong.append(f"column {field.name} of type {field.type} is {count}")
        elif not _is_alike(given.field(at[0]).type, field.type):
            type_ = given.field(at[0]).type
            wrong.append(f"column {field.name} is of type {type_}, and must be {field.type}")
    return wrong


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type may be values of the other."""
    types = pa.types
    if types.is_dictionary(given):
        return _is_alike(given.value_type, wanted)
    if types.is_null(given):
        return True
    if types.is_timestamp(wanted):
        return types.is_timestamp(given) and given.tz is not None
    if types.is_struct(wanted):
        names = [field.name for field in wanted.fields]
        if not types.is_struct(given) or [field.name for field in given.fields] != names:
            return False
        return all(map(_is_alike_field, given.fields, wanted.fields))
    if types.is_map(wanted):
        return types.is_map(given) and all(map(_is_alike_field, parts_of(given), parts_of(wanted)))
    if types.is_list(wanted):
        return any(test(given) for test in _LISTS) and _is_alike(
            given.value_type, wanted.value_type
        )
    return any(test(wanted) and any(take(given) for take in tests) for test, tests in _ALIKE)


def _is_alike_field(given: pa.Field, wanted: pa.Field) -> bool:
    return _is_alike(given.type, wanted.type)


def _is_text(type_: pa.DataType) -> bool:
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(type_: pa.DataType) -> bool:
    is_fixed: bool = pa.types.is_fixed_size_binary(type_)
    return is_fixed or type_ in (pa.binary(), pa.large_binary(), pa.binary_view())


_Test = Callable[[pa.DataType], bool]

_LISTS: Sequence[_Test] = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_ALIKE: Sequence[tuple[_Test, Sequence[_Test]]] = (
    (pa.types.is_integer, (pa.types.is_integer, pa.types.is_decimal)),
    (pa.types.is_decimal, (pa.types.is_integer, pa.types.is_decimal)),
    (pa.types.is_floating, (pa.types.is_floating, pa.types.is_integer)),
    (pa.types.is_boolean, (pa.types.is_boolean,)),
    (_is_text, (_is_text,)),
    (_is_bytes, (_is_bytes,)),
    (pa.types.is_date, (pa.types.is_date,)),
    (pa.types.is_duration, (pa.types.is_duration,)),
)
"""Tests of a wanted scalar type, each with the types that are cast to it."""
