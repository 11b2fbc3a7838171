"""Columns of keys as stored keys and key groups, without the keys.

The encoding is that of `codec/key_codec`, and the hash that of `keygroup`. Keys of other types,
with nulls or with escaped bytes are encoded one by one elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from statekit.codec.vectorized import hashes_of_ints
from statekit.keygroup import SEED
from statekit.query.encoded.binary_columns import Strings, fixed, joined_rows, sortable_bytes

PACKED_KINDS = frozenset(("int", "str", "bytes"))
"""Kinds of fields that are encoded here, if their columns are int64, text or binary."""

_END = b"\0\0"
_INT, _TEXTS = pa.int64(), (pa.string(), pa.binary())


def packed_keys(columns: Sequence[pa.Array]) -> pa.Array | None:
    """Return the stored bytes of keys; None if they have to be encoded one by one.

    Parameters:
        columns: of each field: int64, text or bytes.

    >>> packed_keys([pa.array(["a"]), pa.array([1])]).to_pylist()
    [b'a\\x00\\x00\\x80\\x00\\x00\\x00\\x00\\x00\\x00\\x01']
    """
    parts: list[pa.Array | bytes] = []
    for column in columns:
        if column.null_count or column.type not in (_INT, *_TEXTS):
            return None
        if column.type == _INT:
            parts.append(fixed(sortable_bytes(column.to_numpy())))
        elif not Strings.of(column).own_data.all():
            return None  # a zero byte is escaped
        else:
            parts += [column.cast(pa.binary()), _END]
    return joined_rows(parts)


def groups_of_columns(columns: Sequence[pa.Array], groups: int) -> npt.NDArray[np.int64]:
    """Return the key group of each key.

    Parameters:
        columns: of each field: int64, text or bytes, without nulls.
        groups: how many key groups there are.
    """
    hashed: npt.NDArray[np.uint64] | None = None
    for column in columns:
        if column.type == _INT:
            hashed = hashes_of_ints(column.to_numpy(), hashed)
        else:
            seeds = repeat(SEED) if hashed is None else hashed.tolist()
            found = map(xxhash.xxh64_intdigest, column.cast(pa.binary()).to_pylist(), seeds)
            hashed = np.fromiter(found, np.uint64, len(column))
    assert hashed is not None, "a key has a field"
    return hashed.view(np.int64) % groups
