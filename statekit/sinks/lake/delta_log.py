"""The log of a Delta Lake table, as a sink reads and continues it.

A sink has two transaction identifiers. The version of the first is its last epoch, that of the
second the last epoch whose rows were removed. Of two commits at the same time with the same
identifier, Delta refuses one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from statekit.checkpoint.object_store import without_credentials
from statekit.checkpoint.store import Store
from statekit.clock import now_us, unique_id
from statekit.errors import ProcessError, StateSchemaError
from statekit.sinks.lake.delta_files import epoch_of_delta_file, write_delta_file
from statekit.sinks.lake.lake_columns import Writing, columns_to_add
from statekit.sinks.lake.lake_commits import Note, Stamp, TableLog, files_to_compact, is_in
from statekit.sinks.protocol.sink import EpochRanges, Outputs, Receipt, SinkIdentity

_NOTE = "statekit"
"""The key of the note in the metadata of a commit."""

_NO_REBASE: dict[str, Any] = {"max_commit_retries": 0}
"""A commit with this property follows the version that it was made for, or fails. Without it, Delta
would let a file be removed that a compaction has rewritten.
"""

_CONSTRAINT = "delta.constraints."
_GENERATED = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class DeltaLog(TableLog):
    """The log of a Delta Lake table.

    Parameters:
        path: the path of the table.
        table: at one version.
        outputs: of the sink.
        store: the directory of the table.
    """

    path: str
    table: DeltaTable
    outputs: Outputs
    store: Store

    @property
    def place(self) -> str:  # type: ignore[override]
        return f"the Delta table {self.path}"

    @property
    def _application(self) -> str:
        return f"statekit/{self.outputs.checkpoint}/{self.outputs.sink}"

    @property
    def _removal(self) -> str:
        return f"{self._application}/abandoned"

    @property
    def epoch(self) -> int | None:
        return self.table.transaction_version(self._application)

    @property
    def abandoned(self) -> int | None:
        return self.table.transaction_version(self._removal)

    def notes(self) -> Iterator[tuple[int, Note | None]]:
        for version, application, note in self._notes_of_all():
            yield version, note if application == self._application else None

    def last_writer(self) -> SinkIdentity | None:
        for _, application, note in self._notes_of_all():
            if application is not None and note is not None and note.epoch is not None:
                return SinkIdentity(*application.split("/", 2)[1:])
        return None

    def _notes_of_all(self) -> Iterator[tuple[int, str | None, Note | None]]:
        """Yield the versions, the latest first, each with the sink and its note, if it has one."""
        seen = self.table.version() + 1
        for limit in (20, None):  # the log may be long, and mostly the latest commits are asked for
            for commit in self.table.history(limit):
                if commit["version"] < seen:
                    seen = commit["version"]
                    note = commit.get(_NOTE)
                    yield (
                        (seen, None, None)
                        if note is None
                        else (seen, note["sink"], Note(**note["commit"]))
                    )

    @property
    def has_files(self) -> bool:
        return bool(self.table.file_uris())

    def rows(self, columns: Sequence[str], null: str | None) -> pa.Table:
        wanted = None if null is None else pc.field(null).is_null()
        return self.table.to_pyarrow_dataset().to_table(columns=list(columns), filter=wanted)

    def compact(self, files: int) -> bool:
        actions = pa.table(self.table.get_add_actions(flatten=True))
        paths, sizes = (actions.column(name) for name in ("path", "size_bytes"))
        places = files_to_compact(sizes.to_pylist(), files)
        if not places or self.epoch is None:
            return False
        chosen = [(unquote(paths[place].as_py()), sizes[place].as_py()) for place in places]
        now = now_us() // 1000
        # The name has no epoch: an attempt that replaces its files must not find this one.
        file = write_delta_file(
            self.store,
            f"compacted-{unique_id()}.parquet",
            self._batches(path for path, _ in chosen),
            self._columns,
        )
        added = AddAction(file["file"], file["size"], {}, now, False, file["statistics"])
        removed = [RemoveAction(path, False, now, size, {}) for path, size in chosen]
        self.table.create_write_transaction(
            [*removed, added],
            "append",
            self.table.schema(),
            commit_properties=self.properties(Stamp(Note(unique_id()), self.epoch), follows=True),
        )
        return True

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    def _batches(self, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files with the columns of the table, file by file."""
        import pyarrow.dataset as ds

        columns = self._columns
        yield pa.RecordBatch.from_pylist([], schema=columns)  # a file needs one, also without rows
        for path in paths:
            file = ds.ParquetFileFormat().make_fragment(pa.BufferReader(self.store.read(path)))
            yield from file.to_batches(schema=columns)

    def files(self, epochs: EpochRanges) -> list[Any]:
        actions = pa.table(self.table.get_add_actions(flatten=True))
        paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
        now = now_us() // 1000
        return [
            RemoveAction(path, True, now, size, {})
            for path, size in zip(paths, sizes, strict=True)
            if (epoch := epoch_of_delta_file(self.outputs, path)) is not None
            and is_in(epochs, epoch)
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
        schema = self.table.schema() if columns is None else Schema.from_arrow(columns)
        added = [_addition(receipt, schema) for receipt in receipts]
        is_addition = added and not removed and not overwrites
        self.table.create_write_transaction(
            [*removed, *added],
            "overwrite" if overwrites else "append",
            schema,
            commit_properties=self.properties(stamp, follows=not is_addition),
        )

    def merge(self, stamp: Stamp, rows: pa.Table, writing: Writing) -> None:
        merger = self.table.merge(
            rows,
            predicate=" AND ".join(
                f"t.{_quoted(name)} = s.{_quoted(name)}" for name in writing.key
            ),
            source_alias="s",
            target_alias="t",
            commit_properties=self.properties(stamp, follows=True),
        )
        columns = [_quoted(name) for name in rows.column_names if name != writing.delete]
        values = {name: f"s.{name}" for name in columns}
        insert_if = None
        if writing.delete is not None:
            deleted = f"s.{_quoted(writing.delete)}"
            merger = merger.when_matched_delete(deleted)
            insert_if = f"NOT coalesce({deleted}, false)"
        merger = merger.when_matched_update(values)
        merger.when_not_matched_insert(values, predicate=insert_if).execute()

    def restore(self, stamp: Stamp, version: int) -> bool:
        properties = self.properties(stamp, follows=True)
        self.table.restore(version - 1, commit_properties=properties)
        return True

    def properties(self, stamp: Stamp, *, follows: bool) -> CommitProperties:
        """Return the properties of a commit.

        Parameters:
            follows: whether it has to follow this version of the table.
        """
        versions = {self._application: stamp.epoch, self._removal: stamp.abandoned}
        return CommitProperties(
            custom_metadata=self._metadata(stamp.note),
            app_transactions=[
                Transaction(name, version)
                for name, version in versions.items()
                if version is not None
            ],
            **(_NO_REBASE if follows else {}),
        )

    def _metadata(self, note: Note) -> dict[str, Any]:
        return {_NOTE: {"sink": self._application, "commit": asdict(note)}}

    def check_features(self) -> None:
        metadata = self.table.metadata()
        faults = []
        if metadata.partition_columns:
            faults.append(f"it has the partition columns {', '.join(metadata.partition_columns)}")
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            faults.append("it has column mapping")
        faults += [
            f"it has the constraint {name.removeprefix(_CONSTRAINT)!r}"
            for name in metadata.configuration
            if name.startswith(_CONSTRAINT)
        ]
        faults += [
            f"its column {field.name!r} is generated or has an invariant"
            for field in self.table.schema().fields
            if any(mark in field.metadata for mark in _GENERATED)
        ]
        if faults:
            raise StateSchemaError(
                f"sinks.delta cannot write to {self.place}: {'; '.join(faults)}. Nothing was "
                "written: write to a table without, and fill this one from there"
            )

    def missing_columns(self, schema: pa.Schema) -> list[str]:
        return columns_to_add(self._columns, schema, self.outputs.sink, self.place)

    def add_columns(self, schema: pa.Schema) -> None:
        """Extend the table by the columns that outputs have and it has not.

        Raises:
            StateSchemaError: the outputs do not fit.
        """
        if names := self.missing_columns(schema):
            fields = [field for field in Schema.from_arrow(schema).fields if field.name in names]
            note = CommitProperties(custom_metadata=self._metadata(Note("columns")))
            self.table.alter.add_columns(fields, commit_properties=note)


def _addition(receipt: Receipt, schema: Schema) -> AddAction:
    """Return the action that adds a file.

    Raises:
        ProcessError: a column of the table may not be null, and the file has nulls there.
    """
    nulls = json.loads(receipt["statistics"])["nullCount"]
    for field in schema.fields:
        if not field.nullable and nulls.get(field.name):
            raise ProcessError(
                f"an output has no value in the field {field.name!r}, and this column of the "
                "Delta table may not be null. Nothing of this epoch is committed: emit complete "
                "outputs, then start again"
            )
    size, now = receipt["size"], now_us() // 1000
    return AddAction(receipt["file"], size, {}, now, True, receipt["statistics"])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def in_one_line(error: Exception) -> str:
    """Return an error of Delta Lake in one line, without credentials."""
    text = _COLOUR.sub("", str(error)).partition("<?xml")[0]
    return without_credentials(" ".join(text.replace("↳", "").split()))
