"""Values of PostgreSQL in its binary format, as columns of Arrow."""

from __future__ import annotations

import decimal
import struct
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from statekit.connectors.postgres import ResultColumn
from statekit.errors import ProcessError

Values = Sequence[bytes | None]
Decode = Callable[[Values], pa.Array]

_DAYS_UNTIL_2000 = 10_957
_US_UNTIL_2000 = _DAYS_UNTIL_2000 * 86_400_000_000
"""From 1970, where Arrow's days and instants begin, to 2000, where those of PostgreSQL do."""

_US_PER_DAY = 86_400_000_000

_NUMERIC = 1700
_SIGNS = {0: 0, 0x4000: 1}
"""Of numbers that are finite."""

_DIGITS_MAX = 76
"""The digits of Arrow's largest decimals."""


class UnreadableValueError(ValueError):
    """A value that has no equal in Arrow. Its text says what it is."""


def is_readable(type_number: int) -> bool:
    """Return whether values of a type are decoded here. Others are read as their text."""
    return type_number in _DECODERS or type_number in _ITEMS or type_number == _NUMERIC


def arrow_column(column: ResultColumn, where: str) -> pa.Array:
    """Return the values of a column.

    Parameters:
        column: of a type that `is_readable`.
        where: the source, for messages.

    Raises:
        ProcessError: a value has no equal in Arrow, such as `infinity`.

    >>> arrow_column(ResultColumn("n", 23, -1, [b"\\0\\0\\0\\7", None]), "orders").to_pylist()
    [7, None]
    """
    try:
        return _decoder(column.type_number, column.modifier)(column.values)
    except UnreadableValueError as error:
        raise ProcessError(
            f"{where}: column {column.name!r} has {error}, which is no value of Arrow. "
            "Nothing of this epoch is committed: read the table by a query that leaves such values "
            "out, or casts them to text, then start the job again"
        ) from error


def _decoder(type_number: int, modifier: int) -> Decode:
    if type_number in _ITEMS:
        return partial(_lists, _decoder(_ITEMS[type_number], modifier))
    if type_number == _NUMERIC:
        return partial(_numerics, modifier)
    return _DECODERS[type_number]


# -------------------------------------------------------------------------------- one width


def _fixed(width: int, big_endian: str, type_: pa.DataType, values: Values) -> pa.Array:
    """Return numbers of one width."""
    zero = bytes(width)
    numbers = np.frombuffer(
        b"".join([zero if value is None else value for value in values]), big_endian
    )
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.array(numbers.astype(numbers.dtype.newbyteorder("=")), mask=nulls).cast(type_)


def _days(values: Values) -> pa.Array:
    days = _fixed(4, ">i4", pa.int32(), values)
    return _finite(days, 32, _DAYS_UNTIL_2000).cast(pa.date32())


def _instants(zone: str | None, values: Values) -> pa.Array:
    micros = _fixed(8, ">i8", pa.int64(), values)
    return _finite(micros, 64, _US_UNTIL_2000).cast(pa.timestamp("us", zone))


def _finite(numbers: pa.Array, bits: int, add: int) -> pa.Array:
    """Return numbers with another origin.

    Raises:
        UnreadableValueError: one of them is infinite, or so large that it does not fit.
    """
    plain = numbers.fill_null(0).to_numpy()
    most = (1 << (bits - 1)) - 1
    if len(plain) and (plain.min() == -most - 1 or plain.max() > most - add):
        raise UnreadableValueError("the value 'infinity' or '-infinity'")
    nulls = numbers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(plain + plain.dtype.type(add), mask=nulls)


def _intervals(values: Values) -> pa.Array:
    """Return intervals as durations. A day has 24 hours."""
    return pa.array([_micros(value) for value in values], pa.int64()).cast(pa.duration("us"))


def _micros(value: bytes | None) -> int | None:
    if value is None:
        return None
    micros, days, months = struct.unpack(">qii", value)
    if months:
        raise UnreadableValueError("an interval with months, whose length differs")
    return int(micros + days * _US_PER_DAY)


# ------------------------------------------------------------------------------ other widths


def _texts(values: Values) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _bytes(values: Values) -> pa.Array:
    return pa.array(values, pa.binary())


def _jsonb(values: Values) -> pa.Array:
    """Return documents as text: a byte with the version is before each."""
    return _texts([None if value is None else value[1:] for value in values])


def _uuids(values: Values) -> pa.Array:
    texts = [None if value is None else str(uuid.UUID(bytes=value)) for value in values]
    return pa.array(texts, pa.string())


def _numerics(modifier: int, values: Values) -> pa.Array:
    """Return numbers as decimals of the digits that the column declares, or that they need."""
    numbers = [None if value is None else _decimal(value) for value in values]
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    try:
        if modifier >= 0 and scale <= precision <= _DIGITS_MAX:
            wide = pa.decimal128 if precision <= 38 else pa.decimal256
            return pa.array(numbers, wide(precision, scale))
        found = pa.array(numbers)
    except pa.ArrowInvalid as error:
        raise UnreadableValueError(f"numbers of more than {_DIGITS_MAX} digits") from error
    return found.cast(pa.decimal128(38, 0)) if pa.types.is_null(found.type) else found


def _decimal(value: bytes) -> decimal.Decimal:
    """Return a number of digits of base 10,000. The exponent is that of the first one."""
    count, first, sign, scale = struct.unpack_from(">hhHH", value)
    if sign not in _SIGNS:
        raise UnreadableValueError("the number 'NaN' or 'Infinity'")
    words = struct.unpack_from(f">{count}H", value, 8)
    whole = 0
    for word in words:
        whole = whole * 10_000 + word
    shift = 4 * (first - count + 1) + scale  # between the last digit that is stored and the scale
    whole = whole * 10**shift if shift >= 0 else whole // 10**-shift
    digits = tuple(map(int, str(whole)))
    return decimal.Decimal((_SIGNS[sign], digits, -scale))


def _lists(decode: Decode, values: Values) -> pa.Array:
    """Return arrays of one dimension as lists."""
    items: list[bytes | None] = []
    ends = [0]
    for value in values:
        if value is not None:
            items += _items(value)
        ends.append(len(items))
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), decode(items), mask=nulls)


def _items(value: bytes) -> list[bytes | None]:
    (dimensions,) = struct.unpack_from(">i", value)
    if dimensions == 0:
        return []
    if dimensions > 1:
        raise UnreadableValueError(f"an array of {dimensions} dimensions")
    (count,) = struct.unpack_from(">i", value, 12)
    items: list[bytes | None] = []
    at = 20
    for _ in range(count):
        (length,) = struct.unpack_from(">i", value, at)
        at += 4
        items.append(None if length < 0 else value[at : at + length])
        at += max(length, 0)
    return items


_DECODERS: dict[int, Decode] = {
    16: partial(_fixed, 1, "u1", pa.bool_()),
    17: _bytes,
    19: _texts,
    20: partial(_fixed, 8, ">i8", pa.int64()),
    21: partial(_fixed, 2, ">i2", pa.int16()),
    23: partial(_fixed, 4, ">i4", pa.int32()),
    25: _texts,
    114: _texts,
    700: partial(_fixed, 4, ">f4", pa.float32()),
    701: partial(_fixed, 8, ">f8", pa.float64()),
    1042: _texts,
    1043: _texts,
    1082: _days,
    1083: partial(_fixed, 8, ">i8", pa.time64("us")),
    1114: partial(_instants, None),
    1184: partial(_instants, "UTC"),
    1186: _intervals,
    2950: _uuids,
    3802: _jsonb,
}
"""By the numbers of types, which are those of all servers."""

_ITEMS = {
    199: 114,
    1000: 16,
    1001: 17,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1187: 1186,
    1231: 1700,
    2951: 2950,
    3807: 3802,
}
"""The types of items, by those of arrays."""
