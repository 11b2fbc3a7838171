"""Rebatching: combine small batches of a stream of rows into larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)


def rebatched(batches: Iterable[Batch], *, rows: int, size: int) -> Iterator[list[Batch]]:
    """Yield lists of consecutive batches that reach `rows` or `size`.

    A list is emptied when the next one is asked for, so that only one of them is in memory.

    Parameters:
        rows: so many rows are enough.
        size: so many bytes are enough.

    >>> batches = [pa.record_batch({"n": list(range(n))}) for n in (1, 2, 3, 1)]
    >>> [list(map(len, some)) for some in rebatched(batches, rows=3, size=1_000_000)]
    [[1, 2], [3], [1]]
    """
    some: list[Batch] = []
    some_rows = some_size = 0
    for batch in batches:
        some.append(batch)
        some_rows += batch.num_rows
        some_size += batch.nbytes
        if some_rows >= rows or some_size >= size:
            yield some
            some.clear()
            some_rows = some_size = 0
    if some:
        yield some
