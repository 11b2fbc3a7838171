"""Arrow columns as columns of PostgreSQL: their types, and rows in the binary format of COPY.

Rows are assembled column by column in Arrow. A value that is encoded one by one in Python (numbers
of arbitrary precision, JSON) costs a few microseconds, all others a few hundredths of one.
"""

from __future__ import annotations

import decimal
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import StateSchemaError
from statekit.records.json_rows import flat
from statekit.records.nested_types import JSON_MARK

Encode = Callable[[pa.Array], pa.Array]
"""Returns the values of a column as binary, in the format in which PostgreSQL receives its type."""

COPY_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_END = b"\xff\xff"

_ABSENT = b"\xff\xff\xff\xff"
"""The length of a null."""

_DAYS_UNTIL_2000 = 10_957
_US_UNTIL_2000 = _DAYS_UNTIL_2000 * 86_400_000_000
"""From 1970, where Arrow's days and instants begin, to 2000, where those of PostgreSQL do."""

_SLICE_BYTES = 64 << 20
"""The maximum size of a batch whose rows are assembled at once: offsets have 32 bits."""


@dataclass(frozen=True)
class PostgresColumn:
    """A column of a table.

    Parameters:
        name: its name.
        type: its type without modifiers, such as `numeric`. Of a domain, the type under it.
        full_type: the type as it was declared, such as `numeric(10,2)`.
        modifier: the number behind the modifiers; -1 if it has none.
        is_enum: whether the type is an enumeration.
        is_optional: whether a row may leave it out.
        is_generated: whether the server alone sets it.
    """

    name: str
    type: str
    full_type: str
    modifier: int = -1
    is_enum: bool = False
    is_optional: bool = True
    is_generated: bool = False

    def takes(self, field: pa.Field) -> bool:
        """Return whether each value of a field can be stored unchanged.

        >>> PostgresColumn("n", "bigint", "bigint").takes(pa.field("n", pa.int32()))
        True
        >>> PostgresColumn("n", "integer", "integer").takes(pa.field("n", pa.int64()))
        False
        """
        if self.is_generated:
            return False
        if self.is_enum:
            return column_types(field)[0] == "text"
        if self.type not in column_types(field):
            return False
        if self.type == "numeric" and self.modifier >= 0:
            return self._has_digits_for(field.type)
        # A rounded instant is another one; a text that is too long is refused.
        return self.modifier < 0 or self.type not in _ROUNDED

    def _has_digits_for(self, type_: pa.DataType) -> bool:
        precision, scale = (self.modifier - 4) >> 16, (self.modifier - 4) & 0x7FF
        if not pa.types.is_decimal(type_):
            return False
        return bool(scale >= type_.scale and precision - scale >= type_.precision - type_.scale)


def column_types(field: pa.Field) -> tuple[str, ...]:
    """Return the types of PostgreSQL that store each value of a field unchanged. The first one is
    that of new columns.

    >>> column_types(pa.field("at", pa.timestamp("us", "UTC")))
    ('timestamp with time zone',)
    >>> column_types(pa.field("tags", pa.list_(pa.string())))[0]
    'text[]'
    >>> column_types(pa.field("place", pa.struct([("town", pa.string())])))
    ('jsonb', 'json')

    Raises:
        StateSchemaError: there is none.
    """
    type_, mark = field.type, (field.metadata or {}).get(JSON_MARK)
    if mark == b"all":
        return ("jsonb", "json", "text")
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        items = () if _is_json(type_.value_field) else column_types(type_.value_field)
        return (*(f"{item}[]" for item in items), "jsonb", "json")
    if pa.types.is_nested(type_):
        return ("jsonb", "json")
    for is_kind, names in _COLUMN_TYPES:
        if is_kind(type_):
            return names
    raise StateSchemaError(
        f"field {field.name!r} has the Arrow type {type_}, for which PostgreSQL has no column: map "
        "the records to others before the sink"
    )


def _is_json(field: pa.Field) -> bool:
    return column_types(field)[0] == "jsonb" or pa.types.is_nested(field.type)


_INTEGERS = ("smallint", "integer", "bigint", "numeric")
_TEXTS = ("text", "character varying", "uuid")

_COLUMN_TYPES: tuple[tuple[Callable[[pa.DataType], bool], tuple[str, ...]], ...] = (
    (pa.types.is_boolean, ("boolean",)),
    (lambda type_: type_ in (pa.int8(), pa.uint8(), pa.int16()), _INTEGERS),
    (lambda type_: type_ in (pa.uint16(), pa.int32()), _INTEGERS[1:]),
    (lambda type_: type_ in (pa.uint32(), pa.int64()), _INTEGERS[2:]),
    (pa.types.is_uint64, ("numeric",)),
    (lambda type_: type_ in (pa.float16(), pa.float32()), ("real", "double precision")),
    (pa.types.is_float64, ("double precision",)),
    (lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), _TEXTS),
    (pa.types.is_null, _TEXTS),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), ("bytea",)),
    (pa.types.is_fixed_size_binary, ("bytea",)),
    (pa.types.is_date, ("date",)),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz, ("timestamp with time zone",)),
    (pa.types.is_timestamp, ("timestamp without time zone",)),
    (pa.types.is_time, ("time without time zone",)),
    (pa.types.is_duration, ("interval",)),
    (pa.types.is_decimal, ("numeric",)),
)

_ROUNDED = (
    "timestamp with time zone",
    "timestamp without time zone",
    "time without time zone",
    "interval",
)
"""Types whose modifier says how many digits of a second they keep."""


# ------------------------------------------------------------------------------------- COPY


def copy_rows(
    batches: Iterator[pa.RecordBatch], columns: Sequence[PostgresColumn]
) -> Iterator[memoryview]:
    """Yield the rows of batches in the binary format of COPY, without its begin and its end.

    Parameters:
        columns: those of the table that the columns of the batches go to, in their order.
    """
    for batch in batches:
        for part in _slices(batch):
            if part.num_rows:
                yield _rows(part, columns)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = 1 + batch.nbytes // _SLICE_BYTES
    rows = -(-batch.num_rows // count) or 1
    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _rows(batch: pa.RecordBatch, columns: Sequence[PostgresColumn]) -> memoryview:
    fields = [
        _with_length(_encoded(field, values, column))
        for field, values, column in zip(batch.schema, batch.columns, columns, strict=True)
    ]
    begin = pa.scalar(struct.pack(">h", len(columns)), pa.binary())
    return _data(pc.binary_join_element_wise(begin, *fields, b""))


def _data(rows: pa.Array) -> memoryview:
    """Return the bytes of all values of a binary array."""
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(data)[ends[0] : ends[-1]]


def _with_length(values: pa.Array) -> pa.Array:
    """Return values with their lengths before them, and nulls as their length."""
    lengths = pc.binary_length(values).fill_null(0).to_numpy().astype(">i4")
    with_length = pc.binary_join_element_wise(_binary(lengths.view(np.uint8), 4), values, b"")
    return with_length.fill_null(_ABSENT)


def _binary(data: npt.NDArray[np.uint8], width: int, nulls: pa.Array | None = None) -> pa.Array:
    """Return bytes as a binary array with values of one width.

    Parameters:
        nulls: an array whose nulls are those of the result.
    """
    count = data.size // width
    offsets = np.arange(count + 1, dtype=np.int32) * width
    made = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )
    if nulls is None or nulls.null_count == 0:
        return made
    return pc.if_else(nulls.is_valid(), made, pa.scalar(None, pa.binary()))


# --------------------------------------------------------------------------------- values


def _encoded(field: pa.Field, values: pa.Array, column: PostgresColumn) -> pa.Array:
    """Return the values of a field as a column of the table receives them."""
    type_ = "text" if column.is_enum else column.type
    if pa.types.is_null(values.type):
        return values.cast(pa.binary())
    if type_.endswith("[]"):
        return _lists(field, values, PostgresColumn(column.name, type_[:-2], type_[:-2]))
    if pa.types.is_nested(field.type):
        values = flat(pa.record_batch([values], schema=pa.schema([field]))).column(0)
    return _ENCODERS[type_](values)


def _lists(field: pa.Field, lists: pa.Array, item: PostgresColumn) -> pa.Array:
    """Return lists as arrays of one dimension."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    items = _with_length(_encoded(field.type.value_field, lists.flatten(), item))
    ends = np.frombuffer(items.buffers()[1], np.int32)[items.offset : items.offset + len(items) + 1]
    places = np.concatenate([[0], np.cumsum(counts)])
    joined = pa.Array.from_buffers(
        pa.binary(),
        len(lists),
        [None, pa.py_buffer(np.ascontiguousarray(ends[places])), items.buffers()[2]],
    )
    heads = np.empty((len(lists), 5), ">i4")
    heads[:] = (1, 1, _OIDS[item.type], 0, 1)  # one dimension, may have nulls, begins at 1
    heads[:, 3] = counts
    return pc.binary_join_element_wise(_binary(heads.view(np.uint8), 20, lists), joined, b"")


def _fixed(arrow: pa.DataType, big_endian: str, add: int, values: pa.Array) -> pa.Array:
    """Return values of one width with their bytes in the order of networks.

    Parameters:
        arrow: a type of numbers, as which the bytes of the values are read.
        add: a number to add to each.
    """
    numbers = values.view(arrow) if values.type != arrow else values
    plain = numbers.fill_null(0).to_numpy(zero_copy_only=False) + add
    encoded = plain.astype(big_endian)
    return _binary(encoded.view(np.uint8), encoded.itemsize, values)


def _number(arrow: pa.DataType, big_endian: str, values: pa.Array) -> pa.Array:
    return _fixed(arrow, big_endian, 0, values.cast(arrow))


def _bool(values: pa.Array) -> pa.Array:
    return _fixed(pa.uint8(), "u1", 0, values.cast(pa.uint8()))


def _date(values: pa.Array) -> pa.Array:
    return _fixed(pa.int32(), ">i4", -_DAYS_UNTIL_2000, values.cast(pa.date32()))


def _instant(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.timestamp("us", values.type.tz))
    return _fixed(pa.int64(), ">i8", -_US_UNTIL_2000, micros)


def _time(values: pa.Array) -> pa.Array:
    return _fixed(pa.int64(), ">i8", 0, values.cast(pa.time64("us")))


def _interval(values: pa.Array) -> pa.Array:
    """Return durations as microseconds, without days and months."""
    micros = values.cast(pa.duration("us")).view(pa.int64()).fill_null(0).to_numpy()
    encoded = np.zeros((len(values), 2), ">i8")
    encoded[:, 0] = micros
    return _binary(encoded.view(np.uint8), 16, values)


def _bytes(values: pa.Array) -> pa.Array:
    return values.cast(pa.binary())


def _one_by_one(encode: Callable[[Any], bytes], values: pa.Array) -> pa.Array:
    encoded = [None if value is None else encode(value) for value in values.to_pylist()]
    return pa.array(encoded, pa.binary())


def _jsonb(text: str) -> bytes:
    return b"\x01" + text.encode()


def _uuid(text: str) -> bytes:
    return uuid.UUID(text).bytes


def _numeric(value: Any) -> bytes:
    """Return a number as digits of base 10,000, with the exponent of the first one."""
    sign, digits, exponent = decimal.Decimal(value).as_tuple()
    assert isinstance(exponent, int), "Arrow's decimals are finite"
    scale = max(-exponent, 0)
    remaining = int("".join(map(str, digits))) * 10 ** (max(exponent, 0) + -scale % 4)
    words: list[int] = []
    while remaining:
        remaining, word = divmod(remaining, 10_000)
        words.append(word)
    first = len(words) - -(-scale // 4) - 1
    head = struct.pack(">hhHH", len(words), first, sign * 0x4000, scale)
    return head + struct.pack(f">{len(words)}h", *reversed(words))


_ENCODERS: dict[str, Encode] = {
    "boolean": _bool,
    "smallint": partial(_number, pa.int16(), ">i2"),
    "integer": partial(_number, pa.int32(), ">i4"),
    "bigint": partial(_number, pa.int64(), ">i8"),
    "real": partial(_number, pa.float32(), ">f4"),
    "double precision": partial(_number, pa.float64(), ">f8"),
    "numeric": partial(_one_by_one, _numeric),
    "text": _bytes,
    "character varying": _bytes,
    "uuid": partial(_one_by_one, _uuid),
    "bytea": _bytes,
    "json": _bytes,
    "jsonb": partial(_one_by_one, _jsonb),
    "date": _date,
    "timestamp with time zone": _instant,
    "timestamp without time zone": _instant,
    "time without time zone": _time,
    "interval": _interval,
}

_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "character varying": 1043,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""Numbers of types in all servers. Arrays carry that of their items."""
