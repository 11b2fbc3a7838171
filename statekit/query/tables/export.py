"""Export a table of a state to a file: Parquet, CSV, Arrow or a DuckDB database.

The file is written as a draft beside its final name and renamed at the end. A killed export leaves
a draft, and never a part of a file under the final name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from statekit.clock import unique_id
from statekit.errors import QueryError, StorageError
from statekit.records.json_rows import flat
from statekit.shown import shown

Format = Literal["parquet", "csv", "arrow", "duckdb"]
FORMATS: tuple[Format, ...] = get_args(Format)

Write = Callable[[pa.RecordBatch], Any]


def export(
    reader: pa.RecordBatchReader,
    into: Path,
    to: Format,
    *,
    name: str = "rows",
    overwrite: bool = False,
) -> int:
    """Write all rows of a reader to a file, and return their number.

    Parameters:
        reader: as `statekit.read` returns it.
        into: the file.
        to: its format. In CSV nested values are JSON text, and bytes are hex.
        name: of the table in a DuckDB database.
        overwrite: replace an existing file.

    Raises:
        QueryError: there is no such format, the file exists, or `duckdb` is not installed.
        StorageError: the file cannot be written.

    >>> import tempfile
    >>> table = pa.table({"n": [1, 2]})
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     export(table.to_reader(), Path(directory) / "rows.parquet", "parquet")
    2
    """
    if to not in FORMATS:
        raise QueryError(
            f"export to {shown(to, 100)}: there is no such format, and nothing was written; use "
            f"one of {', '.join(FORMATS)}"
        )
    with _file_errors(into):
        is_directory, exists = into.is_dir(), into.exists()
    if is_directory or (exists and not overwrite):
        raise QueryError(
            f"{into} exists already, and was not changed: choose another file"
            + ("" if is_directory else ", or pass --overwrite (overwrite=True)")
        )
    if to == "duckdb" and importlib.util.find_spec("duckdb") is None:
        raise QueryError(
            "the format duckdb needs the package duckdb, which is not installed: pip install "
            "duckdb, or choose another format"
        )
    draft = into.with_name(f".{unique_id()}.draft")
    rows = 0
    try:
        with _file_errors(into), _WRITERS[to](draft, reader.schema, name) as write:
            for batch in reader:
                write(batch)
                rows += batch.num_rows
        with _file_errors(into):
            _publish(draft, into)
    finally:
        for left in (draft, draft.with_name(f"{draft.name}.wal")):
            left.unlink(missing_ok=True)
    return rows


def csv_text(table: pa.Table) -> str:
    """Return a table as CSV: nested values are JSON text, and bytes are hex.

    >>> csv_text(pa.table({"n": [1], "l": [[2]]}))
    '"n","l"\\n1,"[2]"\\n'
    """
    written = io.BytesIO()
    batches = [flat(batch) for batch in table.to_batches()]
    empty = flat(pa.RecordBatch.from_pylist([], schema=table.schema))
    pa_csv.write_csv(pa.Table.from_batches(batches, schema=empty.schema), written)
    return written.getvalue().decode()


def _publish(draft: Path, into: Path) -> None:
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    draft.replace(into)


@contextlib.contextmanager
def _file_errors(into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {into}: {error}. Nothing was written under that name: check that the "
            "directory exists, that the name is at most 255 bytes long, and that the disk has space"
        ) from error


# ------------------------------------------------------------------------------------ formats


@contextlib.contextmanager
def _parquet(path: Path, schema: pa.Schema, _: str) -> Iterator[Write]:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _arrow(path: Path, schema: pa.Schema, _: str) -> Iterator[Write]:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, schema, options=options) as writer:
        yield writer.write_batch


@contextlib.contextmanager
def _csv(path: Path, schema: pa.Schema, _: str) -> Iterator[Write]:
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    with pa_csv.CSVWriter(path, flat(empty).schema) as writer:
        yield lambda batch: writer.write_batch(flat(batch))


@contextlib.contextmanager
def _duckdb(path: Path, schema: pa.Schema, name: str) -> Iterator[Write]:
    import duckdb

    table = '"' + name.replace('"', '""') + '"'
    try:
        with duckdb.connect(str(path)) as database:
            database.register("batch", schema.empty_table())
            database.execute(f"create table {table} as select * from batch")

            def write(batch: pa.RecordBatch) -> None:
                database.register("batch", pa.Table.from_batches([batch]))
                database.execute(f"insert into {table} select * from batch")

            yield write
    except duckdb.Error as error:
        raise OSError(f"DuckDB: {error}") from error


_WRITERS: dict[Format, Callable[[Path, pa.Schema, str], Any]] = {
    "parquet": _parquet,
    "csv": _csv,
    "arrow": _arrow,
    "duckdb": _duckdb,
}
