"""Map keys to key groups, and key groups to shards.

Python's own `hash` is not used: it is salted per process.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

import xxhash

from statekit.errors import RescaleError, StateTypeError
from statekit.foreign import foreign_hint
from statekit.number_faults import int_fault
from statekit.shown import shown, type_name
from statekit.timestamp import datetime_to_micros, timedelta_to_micros

DEFAULT_GROUPS = 128
MAX_GROUPS = 32_768
SEED = 42
"""The seed of the hash of keys, that of Spark."""

_SIGN = 1 << 63
_WRAP = 1 << 64
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()

GROUP_BYTES = 2
"""The length of a key group at the start of each row key, in bytes."""

_GROUP = Struct(">H")

pack_group: Callable[[int], bytes] = _GROUP.pack
"""Packs a key group into two bytes, the start of its row keys."""


def group_of_row(row_key: bytes) -> int:
    """Return the key group of a row.

    >>> group_of_row(pack_group(300) + b"the rest")
    300
    """
    group: int = _GROUP.unpack_from(row_key)[0]
    return group


_hash64 = xxhash.xxh64_intdigest


def _hash_int(value: int, seed: int) -> int:
    try:
        return _hash64(value.to_bytes(8, "little", signed=True), seed)
    except OverflowError:
        raise StateTypeError(
            f"{value} cannot be a key: an int must fit 64 bits with a sign, use a str"
        ) from None


def _hash_str(value: str, seed: int) -> int:
    try:
        return _hash64(value.encode(), seed)
    except UnicodeEncodeError:
        raise StateTypeError(
            f"{shown(value)} cannot be a key: it has lone surrogates, use valid text"
        ) from None


def _hash_date(value: dt.date, seed: int) -> int:
    days = value.toordinal() - _EPOCH_DAY
    return _hash64(days.to_bytes(4, "little", signed=True), seed)


def _hash_datetime(value: dt.datetime, seed: int) -> int:
    return _hash64(datetime_to_micros(value).to_bytes(8, "little", signed=True), seed)


def _hash_timedelta(value: dt.timedelta, seed: int) -> int:
    return _hash_int(timedelta_to_micros(value), seed)


def _hash_tuple(fields: Iterable[Any], seed: int) -> int:
    for field in fields:
        hash_field = _HASHERS.get(type(field)) or _hasher(field)
        seed = hash_field(field, seed)
    return seed


_KEY_FIELDS = (
    ": use bool, int, str, bytes, date, datetime, timedelta, UUID, an Enum or a NamedTuple of "
    "those, or None"
)


def _hasher(field: Any) -> Callable[[Any, int], int]:
    """Return the hash function for key fields of a class that is not built in.

    Raises:
        StateTypeError: it cannot be a key field.
    """
    if isinstance(field, enum.Enum):
        return lambda member, seed: _hash_tuple((member.value,), seed)
    if isinstance(field, tuple) and hasattr(field, "_fields"):
        return _hash_tuple
    raise StateTypeError(
        f"{shown(field, 100)} ({type_name(field)}) cannot be a key field"
        + (foreign_hint(field) or _KEY_FIELDS)
    )


_HASHERS: dict[type, Callable[[Any, int], int]] = {
    type(None): lambda _value, seed: seed,
    bool: lambda value, seed: _hash64(value.to_bytes(4, "little"), seed),
    int: _hash_int,
    str: _hash_str,
    bytes: _hash64,
    dt.date: _hash_date,
    dt.datetime: _hash_datetime,
    dt.timedelta: _hash_timedelta,
    uuid.UUID: lambda value, seed: _hash64(value.bytes, seed),
    tuple: _hash_tuple,
}


def key_hash(fields: Iterable[Any]) -> int:
    """Return the hash of a key's fields as a signed 64-bit integer, equal to Spark's `xxhash64`.

    Parameters:
        fields: bool, int, str, bytes, date, datetime, timedelta, UUID, or None each; an Enum, which
            is hashed as its value; or a tuple of those, hashed as its parts.

    Raises:
        StateTypeError: a field is of another type, or out of range.

    >>> key_hash(["UA", None]) == key_hash(["UA"])
    True
    """
    value = _hash_tuple(fields, SEED)
    return value - _WRAP if value >= _SIGN else value


def key_group(key: Any, groups: int = DEFAULT_GROUPS) -> int:
    """Return the key group of a key.

    Parameters:
        key: one field, or a tuple of fields.
        groups: how many key groups there are.

    Raises:
        StateTypeError: a field is of a type that keys cannot have.

    >>> key_group("hello"), key_group(("UA", 1545))
    (50, 26)
    """
    return key_hash(key_fields(key)) % groups


def key_fields(key: Any) -> tuple[Any, ...]:
    """Return the fields of a key as a tuple. A scalar key has one field.

    >>> key_fields("hello"), key_fields(("UA", 1545))
    (('hello',), ('UA', 1545))
    """
    return key if type(key) is tuple else (key,)


def check_groups(groups: int) -> int:
    """Check and return a number of key groups.

    Raises:
        RescaleError: it is not from 1 to 32768.

    >>> check_groups(128)
    128
    """
    if type(groups) is not int or not 1 <= groups <= MAX_GROUPS:
        fault = int_fault(groups, f"use an int from 1 to {MAX_GROUPS}", least=1, most=MAX_GROUPS)
        raise RescaleError(f"key_groups={shown(groups)}{fault}")
    return groups


def check_parallelism(shards: int, groups: int = DEFAULT_GROUPS) -> int:
    """Check and return a number of shards.

    Raises:
        RescaleError: it is below 1 or above the number of key groups.

    >>> check_parallelism(4, 128)
    4
    """
    check_groups(groups)
    if type(shards) is not int or not 1 <= shards <= groups:
        use = f"use an int from 1 to {groups}, the number of key groups"
        fault = int_fault(shards, use, least=1, most=groups)
        raise RescaleError(f"parallelism={shown(shards)}{fault}")
    return shards


def shard_of_group(group: int, shards: int, groups: int = DEFAULT_GROUPS) -> int:
    """Return the shard that holds a key group.

    Raises:
        RescaleError: the key group or the number of shards is out of range.

    >>> [shard_of_group(group, 4, 10) for group in range(10)]
    [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    """
    check_parallelism(shards, groups)
    if not 0 <= group < groups:
        raise RescaleError(f"key group {group}: use one from 0 to {groups - 1}")
    return group * shards // groups


def group_range(shard: int, shards: int, groups: int = DEFAULT_GROUPS) -> tuple[int, int]:
    """Return the first and the last key group of a shard.

    Raises:
        RescaleError: the shard or the number of shards is out of range.

    >>> [group_range(shard, 3, 128) for shard in range(3)]
    [(0, 42), (43, 85), (86, 127)]
    """
    check_parallelism(shards, groups)
    if not 0 <= shard < shards:
        raise RescaleError(f"shard {shard}: use one from 0 to {shards - 1}")
    return -(-shard * groups // shards), -(-(shard + 1) * groups // shards) - 1


def group_ranges(shards: int, groups: int) -> list[tuple[int, int]]:
    """Return the first and the last key group of each shard.

    Raises:
        RescaleError: the number of shards is out of range.

    >>> group_ranges(3, 128)
    [(0, 42), (43, 85), (86, 127)]
    """
    check_parallelism(shards, groups)
    return [group_range(shard, shards, groups) for shard in range(shards)]
