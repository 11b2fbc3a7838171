"""Unique rows: of the rows that were written for one row key, the state makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow.compute as pc

from statekit.query.tables.packed_bytes import RowColumns

Repeated = Callable[[bytes, list[bytes]], bytes]
"""Returns the row for a row key that was written several times, in the order of writing."""


def unique_rows(batches: Iterable[RowColumns], repeated: Repeated) -> Iterator[RowColumns]:
    """Yield rows in the order of their row keys. Each row key is there once.

    Parameters:
        batches: rows in the order of their row keys.
        repeated: returns the row for a row key that was written several times. Of more rows than a
            batch has, it gets some at a time, behind the row that it returned before.

    >>> batches = [RowColumns.of([b"a", b"b"], [b"1", b"2"]), RowColumns.of([b"b"], [b"3"])]
    >>> found = unique_rows(batches, lambda key, rows: b"+".join(rows))
    >>> [rows.rows.to_pylist() for rows in found]
    [[b'1'], [b'2+3']]
    """
    last: RowColumns | None = None  # rows of its row key may follow
    for rows in batches:
        rows = _without_repetition(
            rows if last is None else RowColumns.joined([last, rows]), repeated
        )
        complete, last = rows.divided(len(rows.keys) - 1)
        if len(complete.keys):
            yield complete
    if last is not None:
        yield last


def _without_repetition(rows: RowColumns, repeated: Repeated) -> RowColumns:
    keys = rows.keys
    if not pc.any(pc.equal(keys[1:], keys[:-1])).as_py():
        return rows
    new_keys, new_rows = list[bytes](), list[bytes]()
    pairs = zip(keys.to_pylist(), rows.rows.to_pylist(), strict=True)
    for key, of_key in groupby(pairs, itemgetter(0)):
        found = [row for _, row in of_key]
        new_keys.append(key)
        new_rows.append(found[0] if len(found) == 1 else repeated(key, found))
    return RowColumns.of(new_keys, new_rows)
