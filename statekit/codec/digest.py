"""Digests of values: equal values of a type have equal digests, in every process."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from statekit.codec.value_codec import ValueCodec, value_codec

BYTES = 16


def digest(value: Any, of: Any) -> bytes:
    """Return a digest of a value, 16 bytes of BLAKE2b over its stored form.

    Equal values of one type have equal digests, on every machine and in every replay.

    Parameters:
        of: the type of the value.

    Raises:
        StateTypeError: the type cannot be stored, or the value is not of that type.

    >>> digest({"a", "b"}, set[str]) == digest({"b", "a"}, set[str])
    True
    >>> digest(1, int).hex()
    '4a9e6f9b8d43f6ad008f8c291929dee2'
    """
    return hashlib.blake2b(_codec(of).encode(value), digest_size=BYTES).digest()


@functools.lru_cache(maxsize=256)
def _codec(of: Any) -> ValueCodec[Any]:
    return value_codec(of)
