"""The snapshots of an Iceberg table, as a sink reads and continues them.

The numbers of a sink are properties of the table, so that they outlive its snapshots. Each snapshot
has the note of its commit. A commit fails if the main branch has changed since the table was read:
pyiceberg would repeat it on top of the other commit, which may be one of the same epoch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    IsNull,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import (
    ArrowScan,
    PyArrowFile,
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from statekit.checkpoint.object_store import sync_path
from statekit.clock import unique_id
from statekit.errors import ProcessError, StateSchemaError
from statekit.sinks.lake.iceberg_files import (
    LOCAL_CATALOG,
    epoch_of_file,
    file_name,
    footer_of,
    table_store,
    with_field_ids,
    write_data_file,
)
from statekit.sinks.lake.lake_columns import Writing, columns_to_add
from statekit.sinks.lake.lake_commits import Note, Stamp, TableLog, files_to_compact, is_in
from statekit.sinks.protocol.sink import EpochRanges, Outputs, Receipt, SinkIdentity

_NO_RETRY = {"commit.retry.num-retries": "0"}
_MERGES = "commit.manifest-merge.enabled"

_NEW_TABLE = {_MERGES: "true", "write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a new table, so that its metadata stays small with many epochs."""


def opened_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """Return a catalog. The directory of a file of SQLite is created."""
    uri = properties.get("uri", "")
    if uri.startswith(LOCAL_CATALOG):
        Path(uri[len(LOCAL_CATALOG) - 1 :]).parent.mkdir(parents=True, exist_ok=True)
    io_ = {"py-io-impl": f"{__name__}.DurableFileIO"} if properties else {}
    return load_catalog(name, **io_, **properties)


@dataclass(frozen=True)
class IcebergLog(TableLog):
    """The snapshots of an Iceberg table.

    Parameters:
        table: as it is now.
        outputs: of the sink.
    """

    table: Table
    outputs: Outputs

    @classmethod
    def create(cls, catalog: Catalog, name: str, schema: pa.Schema) -> None:
        """Create a table if there is none."""
        with contextlib.suppress(NoSuchTableError):
            catalog.load_table(name)
            return
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        with contextlib.suppress(TableAlreadyExistsError):  # another run has created it
            catalog.create_table(name, schema, properties=_NEW_TABLE)

    @property
    def place(self) -> str:  # type: ignore[override]
        return f"the Iceberg table {'.'.join(self.table.name())}"

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, with their field ids as metadata."""
        return self.table.schema().as_arrow()

    def _property(self, name: str) -> str:
        return f"statekit.{self.outputs.checkpoint}.{self.outputs.sink}.{name}"

    def _number(self, name: str) -> int | None:
        found = self.table.properties.get(self._property(name))
        return None if found is None else int(found)

    @property
    def epoch(self) -> int | None:
        return self._number("epoch")

    @property
    def abandoned(self) -> int | None:
        return self._number("abandoned")

    def last_note(self) -> Note | None:
        found = self.table.properties.get(self._property("note"))
        return None if found is None else Note(**json.loads(found))

    def notes(self) -> Iterator[tuple[Snapshot, Note | None]]:
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            yield snapshot, self._note(snapshot)
            snapshot = self._parent(snapshot)

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        parent = snapshot.parent_snapshot_id
        return None if parent is None else self.table.snapshot_by_id(parent)

    def _note(self, snapshot: Snapshot) -> Note | None:
        found = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if found.get("statekit.sink") != self._property("epoch"):
            return None
        epoch = found.get("statekit.epoch")
        rows, files = (int(found[f"statekit.{name}"]) for name in ("rows", "files"))
        return Note(found["statekit.id"], None if epoch is None else int(epoch), rows, files)

    def last_writer(self) -> SinkIdentity | None:
        snapshot = self.table.current_snapshot()
        while snapshot is not None:
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if found.get("statekit.epoch") is not None:
                name = found["statekit.sink"].removeprefix("statekit.").removesuffix(".epoch")
                return SinkIdentity(*name.split(".", 1))
            snapshot = self._parent(snapshot)
        return None

    @property
    def has_files(self) -> bool:
        return bool(self._live(self.table.current_snapshot()))

    def rows(self, columns: Sequence[str], null: str | None) -> pa.Table:
        wanted = AlwaysTrue() if null is None else IsNull(term=Reference(null))
        return self.table.scan(row_filter=wanted, selected_fields=tuple(columns)).to_arrow()

    def compact(self, files: int) -> bool:
        tasks = [task for task in self.table.scan().plan_files() if not task.delete_files]
        places = files_to_compact([task.file.file_size_in_bytes for task in tasks], files)
        if not places or self.epoch is None:
            return False
        chosen = [tasks[place] for place in places]
        schema = self.columns
        rows = (batch for task in chosen for batch in self._read(task).to_batches())
        # The name has no epoch: an attempt that replaces its files must not find this one.
        written = self._written(rows, schema, f"compacted-{unique_id()}")
        self._commit(Stamp(Note(unique_id()), self.epoch), [written], [of.file for of in chosen])
        return True

    def files(self, epochs: EpochRanges) -> list[Any]:
        return [
            file
            for file in self._live(self.table.current_snapshot())
            if (epoch := epoch_of_file(self.outputs, file.file_path)) is not None
            and is_in(epochs, epoch)
        ]

    def _live(self, snapshot: Snapshot | None) -> list[DataFile]:
        """Return the data files of a snapshot."""
        manifests = [] if snapshot is None else snapshot.manifests(self.table.io)
        return [
            entry.data_file
            for manifest in manifests
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
        ]

    def add(
        self,
        stamp: Stamp,
        receipts: Sequence[Receipt],
        removed: list[Any],
        *,
        overwrites: bool,
        columns: pa.Schema | None = None,
    ) -> None:
        added = [self._data_file(receipt) for receipt in receipts]
        live = self._live(self.table.current_snapshot()) if overwrites else removed
        self._commit(stamp, added, live)

    def merge(self, stamp: Stamp, rows: pa.Table, writing: Writing) -> None:
        written, removed = [], []
        for task in self.table.scan(row_filter=_key_range(rows, writing)).plan_files():
            present = self._read(task)
            kept = writing.without(present, rows)
            if kept.num_rows < present.num_rows:
                removed.append(task.file)
                written.append(kept)
        if writing.delete is not None:
            deleted = rows.column(writing.delete).fill_null(False)
            rows = rows.filter(pc.invert(deleted)).drop_columns([writing.delete])
        parts = [*_together(written), rows]
        added = [
            self._written(part.to_batches(), part.schema, file_name(self.outputs, stamp.epoch, 0))
            for part in parts
            if part.num_rows
        ]
        self._commit(stamp, added, removed)

    def restore(self, stamp: Stamp, version: Snapshot) -> bool:
        before = self._parent(version)
        is_gone = before is None and version.parent_snapshot_id is not None
        if is_gone or self._has_deletes(before):
            return False
        now = {file.file_path: file for file in self._live(self.table.current_snapshot())}
        then = {file.file_path: file for file in self._live(before)}
        added = [then[path] for path in then.keys() - now.keys()]
        removed = [now[path] for path in now.keys() - then.keys()]
        self._commit(stamp, added, removed)
        return True

    def _has_deletes(self, snapshot: Snapshot | None) -> bool:
        """Return whether another writer has deleted rows of files. They would be there again."""
        manifests = [] if snapshot is None else snapshot.manifests(self.table.io)
        return any(manifest.content == ManifestContent.DELETES for manifest in manifests)

    def _commit(self, stamp: Stamp, added: list[DataFile], removed: list[DataFile]) -> None:
        table, note = self.table, stamp.note
        merges = table.properties.get(_MERGES) == "true"
        # Only in memory: pyiceberg reads from there how often to repeat a commit.
        unrepeated = {**table.metadata.properties, **_NO_RETRY}
        table.metadata = table.metadata.model_copy(update={"properties": unrepeated})
        summary = {f"statekit.{name}": str(v) for name, v in asdict(note).items() if v is not None}
        numbers = {"epoch": stamp.epoch, "abandoned": stamp.abandoned}
        transaction = _CachedTransaction(table)
        update = transaction.update_snapshot(
            snapshot_properties={"statekit.sink": self._property("epoch"), **summary}
        )
        append = update.merge_append if merges else update.fast_append
        producer: Any = update.overwrite() if removed else append()
        for file in removed:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
        producer.commit()
        properties = {name: str(n) for name, n in numbers.items() if n is not None}
        if note.epoch is not None:
            properties["note"] = json.dumps(asdict(note))  # snapshots expire
        transaction.set_properties({self._property(name): v for name, v in properties.items()})
        transaction.commit_transaction()

    def _data_file(self, receipt: Receipt) -> DataFile:
        """Return the entry of a file for a manifest, with statistics.

        Raises:
            ProcessError: a column of the table may not be null, and the file has nulls there.
        """
        schema, properties = self.table.schema(), self.table.properties
        found = data_file_statistics_from_parquet_metadata(
            footer_of(receipt),
            stats_columns=compute_statistics_plan(schema, properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        ).to_serialized_dict()
        for field in schema.fields:
            if field.required and found["null_value_counts"].get(field.field_id):
                raise ProcessError(
                    f"an output has no value in the field {field.name!r}, and this column of "
                    f"{self.place} is required. Nothing of this epoch is committed: emit complete "
                    "outputs, then start again"
                )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=receipt["file"],
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=receipt["size"],
            sort_order_id=None,
            spec_id=self.table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **found,
        )

    def _read(self, task: FileScanTask) -> pa.Table:
        """Return all rows of a data file, with the columns of the table. Files have text of either
        type of Arrow.
        """
        table = self.table
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        return scan.to_table([task]).cast(self.columns)

    def _written(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, name: str) -> DataFile:
        """Write rows as a data file, and return its entry for a manifest.

        Parameters:
            schema: of the rows.
            name: the begin of the name of the file.
        """
        location, columns = self.table.location(), with_field_ids(schema, self.columns)
        return self._data_file(
            write_data_file(table_store(location), location, name, iter(rows), columns)
        )

    def check_features(self) -> None:
        if not self.table.spec().is_unpartitioned():
            names = ", ".join(field.name for field in self.table.spec().fields)
            raise StateSchemaError(
                f"sinks.iceberg cannot write to {self.place}: it has the partition fields {names}. "
                "Nothing was written: write to a table without, and fill this one from there"
            )

    def missing_columns(self, schema: pa.Schema) -> list[str]:
        return columns_to_add(self.columns, schema, self.outputs.sink, self.place)

    def add_columns(self, schema: pa.Schema) -> None:
        """Extend the table by the columns that outputs have and it has not.

        Raises:
            StateSchemaError: the outputs do not fit.
        """
        if self.missing_columns(schema):
            with self.table.update_schema() as update:
                update.union_by_name(schema)


def _together(parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of small files together, so that the number of files does not grow with each
    epoch.
    """
    small = [part for part in parts if part.nbytes < _SMALL_BYTES]
    yield from (part for part in parts if part.nbytes >= _SMALL_BYTES)
    if small:
        yield pa.concat_tables(small)


_SMALL_BYTES = 64 << 20
"""Rows of files that are rewritten and have fewer bytes in memory are joined to one file."""


def _key_range(rows: pa.Table, writing: Writing) -> BooleanExpression:
    """Return an expression that is true for all rows with one of the keys. Files without such rows
    are not read.
    """
    found: BooleanExpression = AlwaysTrue()
    for name in writing.key:
        column = rows.column(name)
        if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
            ends = pc.min_max(column).as_py()
            low, high = literal(ends["min"]), literal(ends["max"])
            term = Reference(name)
            inside = And(
                GreaterThanOrEqual(term=term, value=low), LessThanOrEqual(term=term, value=high)
            )
            found = And(found, inside)
    return found


class _CachedTransaction(Transaction):
    """A transaction that does not copy the metadata of the table each time it looks at it, which
    takes as long as all else with some hundred snapshots.
    """

    _known: tuple[Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._known is None or self._known[0] is not self._updates:
            self._known = (self._updates, super().table_metadata)
        return self._known[1]


class DurableFileIO(PyArrowFileIO):
    """Files of tables. Those on a local disk are durable as soon as they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        scheme, _, path = self.parse_location(location)
        if scheme == "file":
            made.create = partial(_created, made.create, Path(path))  # type: ignore[method-assign]
        return made


def _created(create: Callable[[bool], Any], path: Path, overwrite: bool = False) -> _DurableStream:
    return _DurableStream(create(overwrite), path)


class _DurableStream:
    """A stream into a local file, which is synced when it is closed."""

    def __init__(self, stream: Any, path: Path) -> None:
        self._stream, self._path = stream, path

    def write(self, data: bytes) -> int:
        written: int = self._stream.write(data)
        return written

    def tell(self) -> int:
        place: int = self._stream.tell()
        return place

    def close(self) -> None:
        self._stream.close()
        sync_path(self._path)
        sync_path(self._path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
