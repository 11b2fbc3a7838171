"""Digests of values. Values with the same stored form have equal digests, in every process."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from statekit.codec.value_codec import ValueCodec, value_codec
from statekit.errors import StateTypeError

BYTES = 16


def digest(value: Any, of: Any) -> bytes:
    """Return a digest of a value: 16 bytes of BLAKE2b over its stored form.

    Values of one type with the same stored form have equal digests, on every machine and in every
    replay. The order of a set is not stored. The order of a dict is, and so are the sign of a zero
    and the last zeros of a Decimal, although Python compares such values as equal.

    Parameters:
        of: the type of the value.

    Raises:
        StateTypeError: the type cannot be stored, or the value is not of that type.

    >>> digest({"a", "b"}, set[str]) == digest({"b", "a"}, set[str])
    True
    >>> digest(1, int).hex()
    '4a9e6f9b8d43f6ad008f8c291929dee2'
    """
    codec = _codec(of)
    if not codec.accepts(value):
        raise StateTypeError(f"digest(…, {codec.schema.brief}): {codec.reason(value)}")
    return hashlib.blake2b(codec.encode(value), digest_size=BYTES).digest()


@functools.lru_cache(maxsize=256)
def _codec(of: Any) -> ValueCodec[Any]:
    return value_codec(of)
