"""Tables that users give: Arrow tables, frames, files and bounded sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekit.errors import StateTypeError
from statekit.shown import shown, shown_text
from statekit.sources.files import parquet
from statekit.sources.source import Source

_BATCH_ROWS = 65_536
_ALL_ROWS = 1 << 62
_OFFSET = "__offset"
"""Columns of sources whose name begins so say where a row is."""


def record_batches(
    origin: Any, name: str, *, may_be_empty: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as record batches of bounded size.

    The first batch of a table has no rows, so that columns are checked without rows, too.

    Parameters:
        origin: an Arrow table, batch or reader; a frame of pandas, Polars or another library with
            Arrow's C stream interface; an iterable of batches; the path or URL of Parquet files; or
            a bounded source.
        name: what the rows are of, for messages.
        may_be_empty: whether something that can be read once only may have no rows.

    Raises:
        StateTypeError: it is something else, or a reader or a source without rows.
        ConnectorError, StorageError: it cannot be read.

    >>> [batch.num_rows for batch in record_batches(pa.table({"n": [1, 2]}), "numbers")]
    [0, 2]
    """
    if isinstance(origin, str | Path):
        origin = parquet(origin, static=True)
    if isinstance(origin, Source):
        yield from _rows_of_once(_batches_of_source(origin, name), name, may_be_empty=may_be_empty)
    elif isinstance(origin, pa.RecordBatchReader):
        yield from _rows_of_once(origin, name, may_be_empty=may_be_empty)
    elif isinstance(origin, pa.RecordBatch):
        yield origin.slice(0, 0)
        yield from _in_pieces([origin])
    elif hasattr(origin, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(origin)
        yield pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in reader.schema], schema=reader.schema
        )
        yield from _in_pieces(reader)
    elif isinstance(origin, Iterable):
        batches = (_checked(each, each, name) for each in origin)
        yield from _rows_of_once(batches, name, may_be_empty=may_be_empty)
    else:
        _checked(None, origin, name)


def is_table(origin: object) -> bool:
    """Return whether rows are given as columns, other than as an iterable of batches."""
    is_read = isinstance(origin, str | Path | Source | pa.RecordBatch | pa.RecordBatchReader)
    return is_read or hasattr(origin, "__arrow_c_stream__")


def given_table(origin: Any, name: str) -> pa.Table:
    """Return the rows of a table, as `record_batches` takes it, as an Arrow table.

    Raises:
        StateTypeError: it is something else, a reader or a source without rows, or of files whose
            columns differ in their types.
        ConnectorError, StorageError: it cannot be read.
    """
    if isinstance(origin, pa.Table):
        return origin
    tables = [pa.Table.from_batches([batch]) for batch in record_batches(origin, name)]
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise StateTypeError(
            f"the rows of {name} are of files whose columns differ: {shown_text(error)}. Give an "
            "Arrow table"
        ) from error


def _in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(start, _BATCH_ROWS)


def _checked(batch: object, origin: object, name: str) -> pa.RecordBatch:
    """Return a batch of an iterable.

    Raises:
        StateTypeError: it is no batch.
    """
    if isinstance(batch, pa.RecordBatch):
        return batch
    raise StateTypeError(
        f"the rows of {name} are {shown(origin, 200)}: give an Arrow table, a frame of pandas or "
        "Polars, the path of Parquet files, or a bounded source. Nothing was read"
    )


def _rows_of_once(
    batches: Iterable[pa.RecordBatch], name: str, *, may_be_empty: bool
) -> Iterator[pa.RecordBatch]:
    """Yield rows that can be read once only: none at all would be a mistake more often than not."""
    is_empty = not may_be_empty
    for piece in _in_pieces(batches):
        is_empty = False
        yield piece
    if is_empty:
        raise StateTypeError(
            f"the rows of {name} are from a reader or a source that has none, such as a reader "
            "that was read already or a path without files. Nothing is committed: give an Arrow "
            "table with the columns if there are no rows"
        )


def _batches_of_source(source: Source, name: str) -> Iterator[pa.RecordBatch]:
    if not source.is_bounded:
        raise StateTypeError(
            f"the rows of {name} are from a source without an end: use one that is bounded, such "
            "as sources.parquet(path, static=True), or read it by running the job. Nothing was read"
        )
    with closing(source):
        source.open(reads_here=True)
        start = source.earliest()
        for partition, end in sorted(source.latest(start, _ALL_ROWS, 0.0).items()):
            if partition not in start or start[partition] != end:
                for batch in source.read(partition, start.get(partition), end):
                    names = [each for each in batch.schema.names if not each.startswith(_OFFSET)]
                    yield batch.select(names)
