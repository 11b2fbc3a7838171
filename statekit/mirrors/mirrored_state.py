"""A mirrored state: one state of a checkpoint, and the sink of its table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from statekit.backend.rocksdb_options import RocksOptions
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError, StateSchemaError
from statekit.mirrors.versions import RowVersions, StoredVersions, is_rollback
from statekit.query.changes.change_table import DELETED, Form
from statekit.query.changes.resolved_changes import ResolvedChanges, Resolver
from statekit.query.changes.state_changes import StateChanges, StoredChanges
from statekit.sinks.protocol.output_schema import schema_for_sinks
from statekit.sinks.protocol.sink import Outputs, SinkIdentity, TableSink


class MirroredState:
    """One state, and the sink that writes its table.

    Changes of states with one row per key are read from change files. Those of maps and lists,
    which can be cleared, and of states that expire are resolved with a local copy of the rows.

    Parameters:
        changes: of the state.
        operator, state: their names.
        sink: as the user gave it.
        mode: how the table follows the state.
        directory: of the local copy; None for `TMPDIR`.
        rocksdb: memory limits of that copy.

    Attributes:
        name: "operator.state".
        outputs: of the epochs that were written last; None before.
        last: the number of the last commit of the table.
        is_written: whether this process has written the table.
        replaces_others: whether the first step replaces rows of others.
    """

    def __init__(
        self,
        changes: StateChanges,
        operator: str,
        state: str,
        sink: TableSink,
        mode: Form,
        directory: Path | None,
        rocksdb: RocksOptions,
    ) -> None:
        self.changes, self.name = changes, f"{operator}.{state}"
        self._operator, self._given, self._mode = operator, sink, mode
        self._directory, self._rocksdb = directory, rocksdb
        self._sink: TableSink | None = None
        self._resolver: Resolver | None = None
        self._resolved: EpochManifest | None = None
        self._of_resolver = contextlib.ExitStack()
        self.outputs: Outputs | None = None
        self.last: int | None = None
        self.is_written = False
        self.replaces_others = False

    @property
    def place(self) -> str:
        """The place of the table, for people."""
        return self._given.place

    @property
    def sink(self) -> TableSink:
        """The sink of the table. It was prepared."""
        assert self._sink is not None, "a step prepares its tables"
        return self._sink

    def prepare(self, mirror: str, manifest: EpochManifest, *, replaces: bool) -> None:
        """Have the sink prepare the table for the type of the state in an epoch.

        Parameters:
            mirror: the name of the mirror.
            manifest: of the epoch.
            replaces: whether rows of others may be replaced.

        Raises:
            StateTypeError, StateSchemaError: the table cannot have the rows of this state, or it
                has rows of others.
            ConnectorError: the target failed.
        """
        table = self.changes.table(manifest)
        schema = schema_for_sinks(table.schema)
        if self.is_always_whole:
            schema = schema.remove(schema.get_field_index(DELETED))
        checkpoint = self.changes.epochs.job_file(manifest).id
        outputs = Outputs(checkpoint, f"{mirror}.{self.name}", schema)
        if outputs == self.outputs:
            return
        is_log = self._mode == "changes"
        if is_log:
            sink = self._given.appending()
        else:
            keys = [*table.key_names, *table.place_names]
            of_version = ["from_epoch"] if self._mode == "history" else []
            sink = self._given.by_key([*keys, *of_version], DELETED) or self._given
        self._sink = sink
        if self.outputs is None or checkpoint != self.outputs.checkpoint:
            sink.create(outputs)
            self.last = sink.last_epoch(outputs)
            self._check_own(sink, outputs, replaces=replaces)
        is_extended = self._mode == "history" and self.last is not None
        keeps = is_log or (is_extended and not self.replaces_others)
        begin = sink.begin if keeps else sink.begin_owned
        begin(outputs)
        self.outputs = outputs

    def _check_own(self, sink: TableSink, outputs: Outputs, *, replaces: bool) -> None:
        """Check that the table has no rows of others, and that no other sink has written it since.

        Raises:
            StateSchemaError: it has, and they may not be replaced.
        """
        writer = sink.last_writer(outputs)
        if writer is None:
            is_own = self.last is not None or not sink.has_rows(outputs)
        else:
            is_own = writer == (outputs.checkpoint, outputs.sink)
        self.replaces_others = not is_own
        if is_own:
            return
        if writer is not None and _is_of_job(writer):
            raise StateSchemaError(
                f"the table for {self.name} has the output of a job (sink {writer.sink!r}), which "
                "no mirror replaces. Nothing was changed: choose another table, or drop this one"
            )
        if not replaces:
            what = "has rows that this mirror has not written"
            if writer is not None:
                what = f"is that of another mirror, or of another checkpoint (sink {writer.sink!r})"
            raise StateSchemaError(
                f"the table for {self.name} {what}. Nothing was changed: choose another table, or "
                "pass replace=True (--replace) to replace its rows"
            )

    def claim(self) -> None:
        """Make the table that of this mirror, before the rows of a step are published."""
        assert self.outputs is not None, "it was prepared"
        self.sink.claim(self.outputs, None if self.replaces_others else self.last)

    def was_dropped(self) -> bool:
        """Return whether the table is gone. Then the next step creates it."""
        if self._sink is None or self.outputs is None or not self._sink.is_dropped(self.outputs):
            return False
        self.outputs, self.last, self.is_written = None, None, False
        return True

    @property
    def is_always_whole(self) -> bool:
        """Whether each step writes all rows, because the target has no rows by key."""
        return self._mode != "changes" and self._given.by_key(["key"], DELETED) is None

    def has_same_type(self, one: EpochManifest, other: EpochManifest) -> bool:
        """Return whether the rows of two epochs have the same type and the same columns."""
        changes = self.changes
        if one.job_file == other.job_file:
            return True
        return (
            changes.rows(one).state == changes.rows(other).state
            and changes.table(one).schema == changes.table(other).schema
        )

    # ---------------------------------------------------------------------------------- reading

    def batches(
        self, before: EpochManifest | None, epochs: Sequence[EpochManifest]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of some epochs as batches of the outputs.

        Parameters:
            before: the epoch before; None for all rows after the last of the epochs.
            epochs: in order.

        Raises:
            QueryError: an epoch was collected, or an int is too wide.
            CorruptCheckpointError: a file is missing or altered.
        """
        assert self.outputs is not None, "it was prepared"
        schema = self.outputs.schema
        changed = self._all(epochs[-1]) if before is None else self._changed(before, epochs)
        return (batch.select(schema.names).cast(schema) for batch in changed if batch.num_rows)

    def _all(self, after: EpochManifest) -> Iterator[pa.RecordBatch]:
        """Yield all rows after an epoch. A log of changes first clears the earlier ones."""
        changes = self.changes
        if self._mode == "changes":
            yield from changes.batches_of(after, "snapshot", [StoredChanges((), cleared=None)])
        if self._mode == "history":
            self.forget()
            resolved = self._advance(after)
            yield from self._versions.batches(None, after, resolved)
        elif self._is_resolved(after):
            self.forget()
            yield from self._advanced(after)
        else:
            for piece in changes.pieces(None, [after]):
                yield from changes.batches(piece)

    def _changed(
        self, before: EpochManifest, epochs: Sequence[EpochManifest]
    ) -> Iterator[pa.RecordBatch]:
        changes = self.changes
        if self._mode == "history":
            yield from self._changed_versions(before, epochs)
            return
        if not self._is_resolved(before) and not self._is_resolved(epochs[-1]):
            for piece in changes.pieces(before, epochs):
                yield from changes.batches(piece)
            return
        if self._resolved != before:
            self.forget()
            for _ in self._advanced(before):
                pass
        for after in epochs:
            yield from self._advanced(after)

    def _changed_versions(
        self, before: EpochManifest, epochs: Sequence[EpochManifest]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the versions that begin or end in some epochs. A rollback is the only one."""
        assert self.outputs is not None, "it was prepared"
        if self._resolved != before:
            self.forget()
            rows = self._advance(before).now
            self._versions.load(before, rows, StoredVersions(self.sink, self.outputs))
        for after in epochs:
            if is_rollback(before, after):
                yield from self._taken_back(before, after)
            else:
                yield from self._versions.batches(before, after, self._advance(after))
            before = after

    def _taken_back(self, before: EpochManifest, after: EpochManifest) -> Iterator[pa.RecordBatch]:
        """Yield the versions that a rollback changes."""
        assert self.outputs is not None, "it was prepared"
        assert after.previous is not None, "it is a rollback"
        stored = StoredVersions(self.sink, self.outputs)
        at, *regained = self._regained(before, after) or [after]
        if regained:
            self.forget()
        rows = self._advance(at).now
        last = at.epoch if regained else after.previous
        yield from self._versions.taken_back(at, last, rows, stored)
        for own in [*regained, after] if regained else []:
            yield from self._versions.batches(at, own, self._advance(own))
            at = own

    def _regained(self, before: EpochManifest, after: EpochManifest) -> list[EpochManifest]:
        """Return the epochs that a rollback brings back, with the one before them; none if it goes
        back to an epoch that was not rolled back.

        Raises:
            QueryError: one of them was collected, or has another type.
        """
        found: list[EpochManifest] = []
        last = after.previous
        is_regained = last is not None and before.has_abandoned(last)
        try:
            while is_regained and last is not None:
                found.insert(0, self.changes.epochs.manifest(last))
                if not before.has_abandoned(last):
                    break
                last = found[0].previous
            reason = "an epoch on the way has another type"
            is_known = all(self.has_same_type(own, after) for own in found)
        except QueryError as error:
            is_known, reason = False, str(error)
        if not is_known:
            raise QueryError(
                f"the history of {self.name} cannot continue: the job went back to epoch "
                f"{after.previous}, which was rolled back before, and {reason}. Nothing was "
                "written: drop the table for a new history, or give another name and another table"
            )
        return found

    def _is_resolved(self, manifest: EpochManifest) -> bool:
        """Return whether rows of the state can be removed without a mutation of their own."""
        rows = self.changes.rows(manifest)
        return rows.is_local or rows.may_expire or rows.shape is not RowShape.VALUE

    def _advanced(self, after: EpochManifest) -> Iterator[pa.RecordBatch]:
        """Advance the local copy to an epoch, and yield the changed rows."""
        resolved = self._advance(after)
        yield from self.changes.batches_of(after, resolved.kind, resolved.stored())

    def _advance(self, after: EpochManifest) -> ResolvedChanges:
        """Advance the local copy to an epoch, and return its changes."""
        changes, before = self.changes, self._resolved
        if self._resolver is None:
            place = self._of_resolver.enter_context(scratch_directory("mirror", self._directory))
            self._resolver = Resolver(changes.epochs, self._operator, place, self._rocksdb)
            self._of_resolver.callback(self._resolver.close)
            if self._mode == "history":
                self._versions = RowVersions(changes, place / "versions", self._rocksdb)
                self._of_resolver.callback(self._versions.close)
        resolved = self._resolver.advance(after, changes.rows(after), changes.kind(before, after))
        self._resolved = after
        return resolved

    def forget(self) -> None:
        """Remove the local copy."""
        self._resolver, self._resolved = None, None
        self._of_resolver.close()

    def close(self) -> None:
        """Remove the local copy, and close the sink."""
        self.forget()
        if self._sink is not None:
            self._sink.close()


def _is_of_job(writer: SinkIdentity) -> bool:
    """Return whether a sink is one of a job: those of mirrors have the name of a mirror, of an
    operator and of a state, with dots.
    """
    return writer.sink.count(".") < 2
