"""The part of the sinks of lake tables that does not depend on the format of the table."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from statekit.checkpoint.store import Store, in_parallel
from statekit.checkpoint.writable import check_writable
from statekit.clock import sleep_s, unique_id
from statekit.errors import ConnectorError, FencedError
from statekit.sinks.lake.lake_columns import STAGED, Writing, with_types
from statekit.sinks.lake.lake_commits import (
    Abandonment,
    FilesAdded,
    RowsMerged,
    TableChange,
    TableLog,
)
from statekit.sinks.protocol.parquet_writing import SPOOL_BYTES_MAX, write_parquet
from statekit.sinks.protocol.sink import Attempt, Outputs, Part, Receipt, SinkIdentity, TableSink

_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0)
"""The pauses before tries of a commit, if other writers of the table commit at the same time."""


class LakeSink(TableSink):
    """A sink of a table that consists of data files and a log.

    Attributes:
        writing: how the table is changed.
    """

    writing: Writing

    @property
    @abstractmethod
    def store(self) -> Store:
        """The directory of the table."""

    @abstractmethod
    def write_file(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """Write a data file under its final name. The log of the table does not have it yet.

        Returns:
            A receipt with the number of `rows`.
        """

    @abstractmethod
    def log(self, outputs: Outputs) -> TableLog:
        """Return the log of the table as it is now."""

    @abstractmethod
    def conflicts(self) -> type[Exception]:
        """Return the class of errors of commits that another one preceded."""

    @abstractmethod
    def failures(self) -> AbstractContextManager[None]:
        """Convert errors of the library of the format to ConnectorError."""

    @abstractmethod
    def with_writing(self, writing: Writing) -> LakeSink:
        """Return a sink of the same table that changes it in another way."""

    @abstractmethod
    def files_place(self, declared: Outputs) -> str | None:
        """Return the directory of data files; None if it is not known before the table exists."""

    @property
    @abstractmethod
    def may_exist(self) -> bool:
        """Whether the table can exist: not if its local directory does not."""

    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        schema = self.writing.schema_of_table(declared)
        try:
            with self.failures():
                exists = self.may_exist and not self.is_dropped(declared)
                if exists:
                    log = self.log(declared)
                    log.check_features()
                    log.missing_columns(schema)
                place = self.files_place(declared)
            yield f"table {self.place} {'fits' if exists else 'does not exist and is made'}"
            if place is not None:
                yield f"{place}: {check_writable(place, STAGED, limit_s)}"
        finally:
            self.close()

    def committed(self, log: TableLog) -> None:
        """Make commits after a version durable."""

    def by_key(self, key: Sequence[str], delete: str) -> LakeSink:
        return self.with_writing(Writing("upsert", tuple(key), delete))

    def has_rows(self, outputs: Outputs) -> bool:
        with self.failures():
            return self.log(outputs).has_files

    def stored(self, outputs: Outputs, columns: Sequence[str], null: str | None = None) -> pa.Table:
        with self.failures():
            rows = self.log(outputs).rows(columns, null)
        types = pa.schema([outputs.schema.field(name) for name in columns])
        return rows.select(list(columns)).cast(types)

    def last_writer(self, outputs: Outputs) -> SinkIdentity | None:
        with self.failures():
            return self.log(outputs).last_writer()

    def appending(self) -> LakeSink:
        return self.with_writing(Writing())

    def last_epoch(self, outputs: Outputs) -> int | None:
        with self.failures():
            return self.log(outputs).epoch

    def open(self, attempt: Attempt) -> None:
        if attempt.is_first and self.writing.mode == "upsert":
            # Staged rows of this very epoch may belong to another run that is about to be fenced.
            own, of_epoch = (_staged_name(attempt.outputs, epoch) for epoch in ("", attempt.epoch))
            staged = [path for path in self.store.names(STAGED) if path.startswith(own)]
            self.store.remove(path for path in staged if not path.startswith(of_epoch))

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        writing = self.writing
        if writing.mode == "upsert" and not part.replaces_all:
            schema = writing.schema_of_files(part.outputs)
            return self._stage(part, pa.Table.from_batches(with_types(batches, schema), schema))
        schema = writing.schema_of_table(part.outputs)
        columns = (batch.select(schema.names) for batch in batches)
        return self.write_file(part, with_types(columns, schema))

    def _stage(self, part: Part, rows: pa.Table) -> Receipt:
        """Write the last rows of the keys of a part, to be merged into the table."""
        last = self.writing.last_rows(rows, part.outputs.sink)
        begin = _staged_name(part.outputs, part.epoch)
        name = f"{begin}-{part.writer}-{part.number}-{unique_id()}"
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
            write_parquet(file, iter(last.to_batches()))
            self.store.put_file(name, file)
        return {"staged": name}

    def compact(self, outputs: Outputs, files: int) -> bool:
        with self.failures():
            log = self.log(outputs)
            try:
                is_compacted = log.compact(files)
            except self.conflicts():
                return False  # another writer has committed meanwhile: the next time
            if is_compacted:
                self.committed(log)
            return is_compacted

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        writing = self.writing
        if not (receipts or attempt.is_first or attempt.replaces_all):
            return
        if attempt.is_first and attempt.without_outputs:
            # Not in `abandon`, which does not get the outputs: two sinks may share this object.
            self._commit(Abandonment(attempt, unique_id(), writing.mode))
            self.begin(attempt.outputs)  # an older version of the table may have fewer columns
        if writing.mode == "upsert" and not attempt.replaces_all:
            rows = self._staged_rows(attempt.outputs, receipts)
            self._commit(RowsMerged(attempt, unique_id(), rows, writing))
            self.store.remove(receipt["staged"] for receipt in receipts)
        else:
            overwrites = writing.mode == "overwrite" or attempt.replaces_all
            columns = writing.schema_of_table(attempt.outputs) if attempt.replaces_all else None
            self._commit(FilesAdded(attempt, unique_id(), receipts, overwrites, columns))

    def _commit(self, change: TableChange) -> None:
        """Commit a change, again if another writer of the table has committed meanwhile.

        Raises:
            FencedError: another run has taken over.
            ConnectorError: the table cannot be reached, or others commit all the time.
        """
        for pause in _PAUSES_S:
            sleep_s(pause)
            with self.failures():
                log = self.log(change.attempt.outputs)
                try:
                    if not pause or not log.has(change.id):
                        change.commit(log)
                    self.committed(log)
                    return
                except self.conflicts():
                    continue
        raise ConnectorError(
            f"sink {log.outputs.sink!r} cannot commit to {log.place}, because others change it all "
            f"the time ({len(_PAUSES_S)} tries). Nothing of this epoch is committed: let others "
            "write less often, then start again"
        )

    def _staged_rows(self, outputs: Outputs, receipts: Sequence[Receipt]) -> pa.Table:
        """Return the last row of each key in all parts of an epoch."""
        import pyarrow.parquet as pq

        def read(name: str) -> pa.Table:
            content = self.store.read_if_there(name)
            if content is None:
                raise FencedError(
                    f"{self.store.at(name)} was removed: another run writes to this table. Stop "
                    "one of them, then start the other again; nothing committed is lost"
                )
            return pq.read_table(pa.BufferReader(content))

        parts = in_parallel(read, [str(receipt["staged"]) for receipt in receipts])
        rows = pa.concat_tables([self.writing.schema_of_files(outputs).empty_table(), *parts])
        return rows if len(parts) < 2 else self.writing.last_rows(rows, outputs.sink)


def _staged_name(outputs: Outputs, epoch: int | str) -> str:
    number = f"{epoch:020d}" if isinstance(epoch, int) else epoch
    return f"{STAGED}/{outputs.sink}-{outputs.checkpoint}-{number}"
