"""Commits of a sink to a Delta Lake table, and what the log of the table says about them.

A sink has two transaction identifiers. The version of the first is its last epoch. The version of
the second is the last epoch whose outputs were removed after a rollback. Of two commits at the same
time with the same identifier, Delta refuses one. A commit that removes rows has to follow the
version that it was made for: Delta would let a file be removed that a compaction has rewritten.
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from statekit.checkpoint.object_store import without_credentials
from statekit.clock import now_us
from statekit.errors import FencedError, ProcessError, RestoreError, StateSchemaError
from statekit.sinks.delta_files import epoch_of_file, is_in
from statekit.sinks.lake import WriteMode, Writing, columns_to_add
from statekit.sinks.sink import Attempt, EpochRanges, Outputs, Receipt

_logger = logging.getLogger("statekit.sinks")

_NOTE = "statekit"
"""The key of the note that a commit of a sink has in its metadata."""

_NO_REBASE: dict[str, Any] = {"max_commit_retries": 0}
"""A commit with this property follows the version that it was made for, or fails."""

_CONSTRAINT = "delta.constraints."
_GENERATED = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class DeltaLog:
    """The log of a table, as one sink reads it.

    Parameters:
        path: the path of the table, for messages.
        table: at one version.
        outputs: of the sink.
    """

    path: str
    table: DeltaTable
    outputs: Outputs

    @property
    def application(self) -> str:
        """The transaction identifier of epochs."""
        return f"statekit/{self.outputs.checkpoint}/{self.outputs.sink}"

    @property
    def _removal(self) -> str:
        return f"{self.application}/abandoned"

    @property
    def epoch(self) -> int | None:
        """The last epoch that is in the table, or was removed from it."""
        return self.table.transaction_version(self.application)

    @property
    def abandoned(self) -> int | None:
        """The last epoch whose outputs were removed."""
        return self.table.transaction_version(self._removal)

    def notes(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield the versions of the table, the latest first, with the note of this sink; None for
        commits of others.
        """
        seen = self.table.version() + 1
        for limit in (20, None):  # the log may be long, and mostly the latest commits are asked for
            for commit in self.table.history(limit):
                if commit["version"] < seen:
                    seen = commit["version"]
                    note = commit.get(_NOTE)
                    yield seen, note if note and note["sink"] == self.application else None

    def has(self, change: str) -> bool:
        """Return whether the table has the commit of a change."""
        return any(note is not None and note["id"] == change for _, note in self.notes())

    def files(self, epochs: EpochRanges) -> list[RemoveAction]:
        """Return removals of the files that the sink has added for some epochs."""
        actions = pa.table(self.table.get_add_actions(flatten=True))
        paths = actions.column("path").to_pylist()
        now = now_us() // 1000
        epochs_of = (epoch_of_file(self.outputs, path) for path in paths)
        return [
            RemoveAction(path, True, now, size, {})
            for path, epoch, size in zip(
                paths, epochs_of, actions.column("size_bytes").to_pylist(), strict=True
            )
            if epoch is not None and is_in(epochs, epoch)
        ]

    def properties(
        self, note: dict[str, Any], *, epoch: int | None, abandoned: int | None = None, **more: Any
    ) -> CommitProperties:
        """Return the properties of a commit of the sink.

        Parameters:
            note: about the commit.
            epoch: the last epoch that is in the table after it.
            abandoned: the last epoch whose outputs are removed by it.
        """
        versions = {self.application: epoch, self._removal: abandoned}
        return CommitProperties(
            custom_metadata={_NOTE: {"sink": self.application, **note}},
            app_transactions=[
                Transaction(name, version)
                for name, version in versions.items()
                if version is not None
            ],
            **more,
        )

    def check_owner(self, attempt: Attempt) -> bool:
        """Check that no other run has taken over, and return whether an earlier attempt has
        published this epoch.

        Raises:
            FencedError: another run has.
        """
        last, abandoned = self.epoch, self.abandoned
        is_published = last == attempt.epoch
        if last is not None and last > attempt.epoch:
            what = f"has epoch {last} of this sink and checkpoint"
        elif abandoned is not None and abandoned >= attempt.epoch:
            what = "had this epoch removed after a rollback"
        elif is_published and not attempt.is_first:
            what = "has this epoch of another run"
        else:
            return is_published
        raise FencedError(
            f"sink {self.outputs.sink!r} cannot write epoch {attempt.epoch}: the Delta table "
            f"{self.path} {what}. Another run of the job writes to this table, and it keeps its "
            "rows. Stop one of them, then start the other again. If the checkpoint was restored "
            "from an older copy, write to a new table"
        )


@dataclass(frozen=True)
class TableChange(ABC):
    """A change of the table by an attempt.

    Parameters:
        attempt: of an epoch.
        id: unique, by which a commit that was not answered is found.
    """

    attempt: Attempt
    id: str

    @abstractmethod
    def commit(self, log: DeltaLog) -> None:
        """Commit the change to the table as it is in the log.

        Raises:
            FencedError: another run has taken over.
            CommitFailedError: another writer has changed the table meanwhile.
        """

    def note(self, rows: int, files: int) -> dict[str, Any]:
        """Return the note of the commit."""
        return {"id": self.id, "epoch": self.attempt.epoch, "rows": rows, "files": files}


@dataclass(frozen=True)
class FilesAdded(TableChange):
    """Data files of an epoch are added; they replace those of an earlier attempt.

    Parameters:
        receipts: one per file.
        overwrites: whether they replace all rows of the table.
    """

    receipts: Sequence[Receipt]
    overwrites: bool

    def commit(self, log: DeltaLog) -> None:
        own = ((self.attempt.epoch, self.attempt.epoch),)
        replaces = log.check_owner(self.attempt) and not self.overwrites
        replaced = log.files(own) if replaces else []
        if replaces and _files_committed(log, own) > len(replaced):
            self._keep(log)
        elif replaced or self.receipts:
            self._replace(log, replaced)

    def _replace(self, log: DeltaLog, replaced: list[RemoveAction]) -> None:
        schema = log.table.schema()
        additions = [_addition(receipt, schema) for receipt in self.receipts]
        note = self.note(self._rows, len(additions))
        limit = _NO_REBASE if replaced or self.overwrites else {}
        log.table.create_write_transaction(
            [*replaced, *additions],
            "overwrite" if self.overwrites else "append",
            schema,
            commit_properties=log.properties(note, epoch=self.attempt.epoch, **limit),
        )

    @property
    def _rows(self) -> int:
        return sum(receipt["rows"] for receipt in self.receipts)

    def _keep(self, log: DeltaLog) -> None:
        """Keep the rows of an earlier attempt that another writer has moved to other files.

        Raises:
            RestoreError: this attempt has other rows.
        """
        epoch = self.attempt.epoch
        noted = next(note for _, note in log.notes() if note and note.get("epoch") == epoch)
        if noted["rows"] != self._rows:
            raise RestoreError(
                f"sink {log.outputs.sink!r} cannot replace epoch {epoch} in the Delta table "
                f"{log.path}: an attempt before a crash wrote {noted['rows']} rows, this one has "
                f"{self._rows}, and another writer has rewritten the files of the first. Nothing "
                "of this epoch is committed. Restore the table to the version before it was "
                "rewritten, then start the job again"
            )


def _files_committed(log: DeltaLog, epochs: EpochRanges) -> int:
    """Return how many files the last commits of some epochs have added."""
    files: dict[int, int] = {}
    first = min(first for first, _ in epochs)
    for _, note in log.notes():
        if note is None or "epoch" not in note:
            continue
        if note["epoch"] < first:
            break
        if is_in(epochs, note["epoch"]):
            files.setdefault(note["epoch"], note["files"])
    return sum(files.values())


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
                "outputs, then start the job again"
            )
    size, now = receipt["size"], now_us() // 1000
    return AddAction(receipt["file"], size, {}, now, True, receipt["statistics"])


@dataclass(frozen=True)
class RowsMerged(TableChange):
    """Rows of an epoch are merged into the table by their key. A second merge changes nothing.

    Parameters:
        rows: one per key.
        writing: with the key and the field that marks deletes.
    """

    rows: pa.Table
    writing: Writing

    def commit(self, log: DeltaLog) -> None:
        log.check_owner(self.attempt)
        if not self.rows.num_rows:
            return
        note = self.note(self.rows.num_rows, 0)
        key, delete = self.writing.key, self.writing.delete
        merger = log.table.merge(
            self.rows,
            predicate=" AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key),
            source_alias="s",
            target_alias="t",
            commit_properties=log.properties(note, epoch=self.attempt.epoch, **_NO_REBASE),
        )
        columns = [name for name in self.rows.column_names if name != delete]
        values = {_quoted(name): f"s.{_quoted(name)}" for name in columns}
        insert_if = None
        if delete is not None:
            merger = merger.when_matched_delete(f"s.{_quoted(delete)}")
            insert_if = f"NOT coalesce(s.{_quoted(delete)}, false)"
        merger = merger.when_matched_update(values)
        merger.when_not_matched_insert(values, predicate=insert_if).execute()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Abandonment(TableChange):
    """Rows of epochs that were rolled back are removed.

    With `append`, these are the files that the sink has added. With other modes, the table is
    restored to the version before, if nobody else has changed it since.

    Parameters:
        mode: of the sink.
    """

    mode: WriteMode

    def commit(self, log: DeltaLog) -> None:
        done, last = log.abandoned, max(last for _, last in self.attempt.without_outputs)
        if log.epoch is None or (done is not None and done >= last):
            return
        epochs = tuple(
            (first if done is None else max(first, done + 1), end)
            for first, end in self.attempt.without_outputs
            if done is None or end > done
        )
        properties = log.properties(
            {"id": self.id}, epoch=max(log.epoch, last), abandoned=last, **_NO_REBASE
        )
        if self.mode != "append" and (version := _version_before(log, epochs)) is not None:
            log.table.restore(version, commit_properties=properties)
            return
        removed = self._removed(log, epochs) if self.mode == "append" else []
        log.table.create_write_transaction(
            [*removed], "append", log.table.schema(), commit_properties=properties
        )

    def _removed(self, log: DeltaLog, epochs: EpochRanges) -> list[RemoveAction]:
        removed = log.files(epochs)
        if _files_committed(log, epochs) > len(removed):
            raise RestoreError(
                f"sink {log.outputs.sink!r} cannot remove the rows of epochs that were rolled back "
                f"({_shown(epochs)}) from the Delta table {log.path}: another writer has rewritten "
                "their files, for example by OPTIMIZE. Nothing was removed. Restore the table to "
                "the version before it was rewritten, then start the job again"
            )
        return removed


def _version_before(log: DeltaLog, epochs: EpochRanges) -> int | None:
    """Return the version of the table before the first commit of some epochs; None if there is no
    such commit, or others have committed since.
    """
    first, found = min(first for first, _ in epochs), None
    others = others_since = False
    for version, note in log.notes():
        others = others or note is None
        if note is None or "epoch" not in note:
            continue
        if note["epoch"] < first:
            break
        found, others_since = version, others
    if found is None:
        return None
    if others_since:
        _logger.warning(
            "sink %s: rows of epochs that were rolled back (%s) stay in the Delta table %s until "
            "later outputs replace them, because others have changed the table since",
            log.outputs.sink,
            _shown(epochs),
            log.path,
        )
        return None
    return found - 1


def _shown(epochs: EpochRanges) -> str:
    return f"{min(first for first, _ in epochs)} to {max(last for _, last in epochs)}"


def check_features(path: str, table: DeltaTable) -> None:
    """Check that a table needs nothing of a writer that the sink does not do.

    Raises:
        StateSchemaError: it does.
    """
    metadata = table.metadata()
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
        for field in table.schema().fields
        if any(mark in field.metadata for mark in _GENERATED)
    ]
    if faults:
        raise StateSchemaError(
            f"sinks.delta cannot write to the Delta table {path}: {'; '.join(faults)}. Nothing was "
            "written: write to a table without, and fill this one from there"
        )


def add_columns(log: DeltaLog, schema: pa.Schema) -> None:
    """Extend a table by the columns that outputs have and it has not.

    Raises:
        StateSchemaError: the outputs do not fit.
    """
    own, table = pa.schema(log.table.schema().to_arrow()), f"the Delta table {log.path}"
    if names := columns_to_add(own, schema, log.outputs.sink, table):
        fields = [field for field in Schema.from_arrow(schema).fields if field.name in names]
        properties = log.properties({"id": "columns", "columns": names}, epoch=None)
        log.table.alter.add_columns(fields, commit_properties=properties)


def in_one_line(error: Exception) -> str:
    """Return an error of Delta Lake in one line, without credentials."""
    text = _COLOUR.sub("", str(error)).partition("<?xml")[0]
    return without_credentials(" ".join(text.replace("↳", "").split()))
