"""Rows in any order, sorted by their row keys on the local disk.

A transform writes the rows of all shards at once. They are gathered in a database, so that memory
has one batch of them, and read back shard by shard. Each row key is followed by the number of the
row in the order of writing: so rows with the same row key are all kept, in that order, and the
state decides what becomes of them. Zeros in row keys are escaped, because a row key may begin with
another one: the number begins with two zeros, and so comes before all that follows a shorter key.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import add, eq, itemgetter

import numpy as np

from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.repository import group_bounds
from statekit.query.tables.packed_bytes import RowBatch, row_batches

Repeated = Callable[[bytes, list[bytes]], bytes]
"""Returns the row for a row key that was written several times, in the order of writing."""

_NUMBER_BYTES = 8
_ZERO, _ESCAPED = b"\0", b"\0\xff"


class SortedRows:
    """Gathers rows of some families, and returns them in the order of their row keys. A context
    manager.

    Parameters:
        families: the names of the families.

    >>> with SortedRows(["sum"]) as rows:
    ...     rows.put("sum", RowBatch([b"00b", b"00a"], [b"1", b"2"]))
    ...     rows.put("sum", RowBatch([b"00a"], [b"3"]))
    ...     batches = rows.batches("sum", (0, 32767), lambda key, rows: b"+".join(rows))
    ...     [batch.rows for batch in batches]
    [[b'2+3'], [b'1']]
    """

    def __init__(self, families: Sequence[str]) -> None:
        self._families = families
        self._batch = Batch()
        self._count = 0
        self._closing = contextlib.ExitStack()
        self._backend: RocksBackend | None = None

    def __enter__(self) -> SortedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def put(self, family: str, rows: RowBatch) -> None:
        """Add rows.

        Raises:
            StorageError: the local disk is full or failed.
        """
        first, self._count = self._count, self._count + len(rows.keys)
        numbers = np.arange(first, self._count, dtype=np.int64).astype(">i8")
        places: list[bytes] = numbers.view(f"V{_NUMBER_BYTES}").tolist()
        self._batch.put_all(family, list(map(add, map(_escaped, rows.keys), places)), rows.rows)
        if self._batch.full:
            self._gather()

    def batches(
        self, family: str, groups: tuple[int, int], repeated: Repeated
    ) -> Iterator[RowBatch]:
        """Yield the rows of some key groups, in the order of their row keys. Each row key is there
        once.

        Parameters:
            groups: the first and the last key group.
            repeated: returns the row for a row key that was written several times. Of more rows
                than a batch has, it gets some at a time, behind the row that it returned before.
        """
        self._gather()
        if self._backend is None:
            return
        stored = self._backend.scan(family, *map(_escaped, group_bounds(*groups)))
        ahead = RowBatch([], [])
        for batch in row_batches(stored):
            ahead.extend(RowBatch(list(map(_row_key, batch.keys)), batch.rows))
            # Rows of the last row key may follow.
            complete, ahead = ahead.divided(bisect_left(ahead.keys, ahead.keys[-1]))
            if complete.keys:
                yield _without_repetition(complete, repeated)
            ahead = _without_repetition(ahead, repeated)
        if ahead.keys:
            yield ahead

    def _gather(self) -> None:
        if not len(self._batch):
            return
        if self._backend is None:
            directory = self._closing.enter_context(scratch_directory("transform"))
            self._backend = RocksBackend(directory, self._families)
            self._closing.callback(self._backend.close)
        self._backend.write(self._batch)
        self._batch.clear()


def _escaped(row_key: bytes) -> bytes:
    """Return a row key in which a number of `_NUMBER_BYTES` ends it, in the same order.

    >>> sorted([_escaped(b"x\\0"), _escaped(b"x") + bytes(8)])
    [b'x\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'x\\x00\\xff']
    """
    return row_key.replace(_ZERO, _ESCAPED)


def _row_key(stored: bytes) -> bytes:
    return stored[:-_NUMBER_BYTES].replace(_ESCAPED, _ZERO)


def _without_repetition(batch: RowBatch, repeated: Repeated) -> RowBatch:
    keys = batch.keys
    if not any(map(eq, keys[1:], keys)):
        return batch
    found = RowBatch([], [])
    for key, pairs in groupby(zip(keys, batch.rows, strict=True), itemgetter(0)):
        rows = [row for _, row in pairs]
        found.keys.append(key)
        found.rows.append(rows[0] if len(rows) == 1 else repeated(key, rows))
    return found
