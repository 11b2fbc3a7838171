"""Parquet files of sinks, in row groups that compress well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from statekit.records.rebatch import rebatched

SPOOL_BYTES_MAX = 32 << 20
"""Files up to this size are kept in memory until they are stored."""

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
"""The size of a row group of Parquet in memory: large enough to compress well."""


def write_parquet(
    file: IO[bytes], batches: Iterator[pa.RecordBatch], schema: pa.Schema | None = None
) -> Any:
    """Write batches of one schema, at least one, and return the metadata of the file.

    Parameters:
        schema: the same schema with metadata of the file; None for that of the batches.
    """
    import pyarrow.parquet as pq  # a tenth of a second for those who write no such files

    written: list[Any] = []
    with contextlib.ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        for some in rebatched(batches, rows=_GROUP_ROWS, size=_GROUP_BYTES):
            table = pa.Table.from_batches(some)
            if writer is None:
                made = pq.ParquetWriter(file, schema or table.schema, metadata_collector=written)
                writer = opened.enter_context(made)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
    return written[0]
