"""Combine small batches of a stream of rows into larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

Piece = TypeVar("Piece", pa.RecordBatch, pa.Table)


def gathered(pieces: Iterable[Piece], *, rows: int, size: int) -> Iterator[list[Piece]]:
    """Pieces in lists, each ended by the piece that makes it large enough.

    A list is emptied when the next one is asked for, so that only one of them is in memory.

    Parameters:
        rows: as many are enough.
        size: as many bytes are enough, if that is less.

    >>> pieces = [pa.record_batch({"n": list(range(n))}) for n in (1, 2, 3, 1)]
    >>> [list(map(len, held)) for held in gathered(pieces, rows=3, size=1_000_000)]
    [[1, 2], [3], [1]]
    """
    held: list[Piece] = []
    held_rows = held_size = 0
    for piece in pieces:
        held.append(piece)
        held_rows += piece.num_rows
        held_size += piece.nbytes
        if held_rows >= rows or held_size >= size:
            yield held
            held.clear()
            held_rows = held_size = 0
    if held:
        yield held
