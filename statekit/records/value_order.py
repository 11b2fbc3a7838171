"""The order of records by their values. It breaks ties between records of the same time.

The order depends on values only, and not on how they are stored: `Decimal("1.5")` and
`Decimal("1.50")` are equal. So it is the same in every runtime.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import sys
import uuid
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from math import isnan
from typing import Any

from statekit.codec.annotations import struct_fields, struct_flavour
from statekit.shown import shown
from statekit.timestamp import datetime_to_micros

_EPOCH = dt.timedelta(0)
_NO_LIMIT = sys.maxsize


def order_of_value(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts values of any declared type.

    None comes first, then numbers and truth values by value with NaN as the largest, texts by code
    point, bytes, dates, times, instants, intervals and UUIDs. Sequences and records are in the
    order of their first element that differs; sets as their sorted elements, maps as their sorted
    entries. Other values are in the order of their text.

    >>> sorted([Decimal("2.50"), 2.5, None, float("nan"), 1, "b", "a"], key=order_of_value)
    [None, 1, Decimal('2.50'), 2.5, nan, 'a', 'b']
    >>> order_of_value(("a", Decimal("1.5"))) == order_of_value(("a", Decimal("1.50")))
    True
    """
    if value is None:
        return (0,)
    if isinstance(value, enum.Enum):
        return order_of_value(value.value)
    if isinstance(value, bool | int | float | Decimal):
        return (2,) if _is_nan(value) else (1, value)
    if isinstance(value, str):
        return (3, value)
    if isinstance(value, bytes | bytearray | memoryview):
        return (4, bytes(value))
    if isinstance(value, dt.datetime):
        return (7, datetime_to_micros(value)) if value.tzinfo else (6, value)
    if isinstance(value, dt.date):
        return (5, value.toordinal())
    if isinstance(value, dt.time):
        return (8, value.replace(tzinfo=None), value.utcoffset() or _EPOCH)
    if isinstance(value, dt.timedelta):
        return (9, value)
    if isinstance(value, uuid.UUID):
        return (10, value.bytes)
    return _order_of_parts(value)


def _is_nan(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float) and isnan(value)


@functools.lru_cache(maxsize=1024)
def _fields_of(cls: type) -> tuple[str, ...] | None:
    """Return the field names of a record class; None for any other class."""
    if struct_flavour(cls) is None:
        return None
    return tuple(field.name for field in struct_fields(cls))


def _order_of_parts(value: Any) -> tuple[Any, ...]:
    """Return the sort key of a value with parts."""
    cls: Any = type(value)
    names = _fields_of(cls)
    if names is not None:
        return (11, *(order_of_value(getattr(value, name, None)) for name in names))
    if isinstance(value, Mapping):
        return (13, *sorted((order_of_value(k), order_of_value(v)) for k, v in value.items()))
    if isinstance(value, Set):
        return (12, *sorted(map(order_of_value, value)))
    if isinstance(value, Iterable):
        return (11, *map(order_of_value, value))
    return (14, type(value).__name__, shown(value, _NO_LIMIT))
