"""Data files of an Iceberg table: their names, and the columns that readers find by field ids."""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.records.nested_types import parts_of, with_parts
from statekit.sinks.lake.lake_columns import STAGED
from statekit.sinks.protocol.parquet_writing import SPOOL_BYTES_MAX, write_parquet
from statekit.sinks.protocol.sink import Outputs, Receipt

LOCAL_CATALOG = "sqlite:////"
"""How the address of a catalog in a local file begins. Its last character begins the path."""

_FIELD_ID = b"PARQUET:field_id"


def table_store(location: str) -> Store:
    """Return the directory of a table.

    Parameters:
        location: its address in the catalog. Iceberg neither escapes nor unescapes local paths.
    """
    return Store(location.removeprefix("file://"), drafts=STAGED)


def write_data_file(
    store: Store, location: str, name: str, batches: Iterator[pa.RecordBatch], columns: pa.Schema
) -> Receipt:
    """Write a data file, and return a receipt with the footer, which has the statistics.

    Parameters:
        store: the directory of the table.
        location: its address in the catalog.
        name: the begin of the name of the file.
        columns: the schema of the batches, with field ids.
    """
    path = f"data/{name}-{unique_id()[:16]}.parquet"
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
        metadata = write_parquet(file, batches, columns)
        size = store.put_file(path, file).size
    footer = io.BytesIO()
    metadata.write_metadata_file(footer)
    return {
        "file": f"{location}/{path}",
        "size": size,
        "rows": metadata.num_rows,
        "footer": base64.b64encode(footer.getvalue()).decode(),
    }


def footer_of(receipt: Receipt) -> Any:
    """Return the Parquet metadata of a file."""
    import pyarrow.parquet as pq

    return pq.read_metadata(io.BytesIO(base64.b64decode(receipt["footer"])))


def file_name(outputs: Outputs, epoch: int, part: int) -> str:
    """Return the begin of the name of a file."""
    return f"{_prefix(outputs)}{epoch:020d}-{part:05d}"


def epoch_of_file(outputs: Outputs, path: str) -> int | None:
    """Return the epoch of a file that this sink has named; None for any other file.

    >>> outputs = Outputs("5f", "orders", pa.schema([]))
    >>> epoch_of_file(outputs, "s3://bucket/data/" + file_name(outputs, 7, 0))
    7
    """
    name, prefix = path.rpartition("/")[2], _prefix(outputs)
    number = name.removeprefix(prefix)[:20]
    return int(number) if name.startswith(prefix) and number.isdecimal() else None


def _prefix(outputs: Outputs) -> str:
    return f"{outputs.sink}-{outputs.checkpoint}-epoch-"


def with_field_ids(schema: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """Return a schema with the field ids of the columns of the same names."""
    return pa.schema([_with_id(field, columns.field(field.name)) for field in schema])


def _with_id(field: pa.Field, column: pa.Field) -> pa.Field:
    type_, id_ = field.type, column.metadata[_FIELD_ID]
    if pa.types.is_struct(type_):
        type_ = pa.struct([_with_id(part, column.type.field(part.name)) for part in type_])
    elif pa.types.is_large_list(type_):  # rows that pyiceberg has read may have such lists
        type_ = pa.large_list(_with_id(type_.value_field, column.type.field(0)))
    elif parts := parts_of(type_):
        own = [column.type.field(0)] if len(parts) == 1 else parts_of(column.type)
        pairs = zip(parts, own, strict=True)
        type_ = with_parts(type_, [_with_id(part, of) for part, of in pairs])
    return field.with_type(type_).with_metadata({_FIELD_ID: id_})
