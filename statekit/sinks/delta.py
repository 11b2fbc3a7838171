"""A sink of Delta Lake tables, with each epoch in one commit."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statekit.checkpoint.object_store import StoreOptions, sync_path
from statekit.checkpoint.store import Store, in_parallel
from statekit.clock import sleep_s, unique_id
from statekit.errors import ConnectorError, FencedError, StatekitError
from statekit.sinks.delta_files import NanColumns, added_files, file_name, statistics
from statekit.sinks.lake import WriteMode, Writing, need_package, with_types
from statekit.sinks.parquet_writing import SPOOL_BYTES_MAX, write_parquet
from statekit.sinks.sink import Attempt, Outputs, Part, Receipt, Sink

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from statekit.sinks.delta_commits import TableChange

_STAGED = "_statekit"
"""The folder of rows that are merged into the table. Delta leaves out such names."""

_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0)
"""The pauses before tries of a commit, if other writers of the table commit at the same time."""


@dataclass(frozen=True)
class Delta(Sink):
    """Rows of a Delta Lake table, with each epoch in one commit. See `delta`.

    Parameters:
        path: the directory of the table, or its URL.
        writing: how the table is changed.
    """

    path: str
    writing: Writing

    @property
    def directory(self) -> str | None:
        return self.path.rstrip("/") if self.writing.mode == "overwrite" else None

    @cached_property
    def _store(self) -> Store:
        return Store(self.path, drafts=_STAGED)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "writing": self.writing}  # each process opens the directory

    def begin(self, outputs: Outputs) -> None:
        from statekit.sinks.delta_commits import DeltaLog, add_columns, check_features

        schema = self.writing.schema_of_table(outputs)
        with self._failures():
            table = self._created(schema)
            check_features(self.path, table)
            add_columns(DeltaLog(self.path, table, outputs), schema)

    def open(self, attempt: Attempt) -> None:
        if attempt.is_first and self.writing.mode == "upsert":
            # Staged rows of this very epoch may belong to another run that is about to be fenced.
            own, of_epoch = (_staged_name(attempt.outputs, epoch) for epoch in ("", attempt.epoch))
            staged = [path for path in self._store.names(_STAGED) if path.startswith(own)]
            self._store.remove(path for path in staged if not path.startswith(of_epoch))

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        schema = self.writing.schema_of_files(part.outputs)
        typed = with_types(batches, schema)
        if self.writing.mode == "upsert":
            return self._stage(part, pa.Table.from_batches(typed, schema))
        nan, name = NanColumns(), file_name(part)
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
            metadata = write_parquet(file, nan.noted(typed))
            size = self._store.put_file(name, file).size
        stats = statistics(schema, metadata, nan)
        return {"file": name, "size": size, "rows": metadata.num_rows, "statistics": stats}

    def _stage(self, part: Part, rows: pa.Table) -> Receipt:
        """Write the last rows of the keys of a part, to be merged into the table."""
        last = self.writing.last_rows(rows, part.outputs.sink)
        begin = _staged_name(part.outputs, part.epoch)
        name = f"{begin}-{part.writer}-{part.number}-{unique_id()}"
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
            write_parquet(file, iter(last.to_batches()))
            self._store.put_file(name, file)
        return {"staged": name, "rows": last.num_rows}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        from statekit.sinks.delta_commits import Abandonment, FilesAdded, RowsMerged

        mode = self.writing.mode
        if not receipts and not attempt.is_first:
            return
        if attempt.is_first and attempt.without_outputs:
            # Not in `abandon`, which does not get the outputs: two sinks may share this object.
            self._commit(Abandonment(attempt, unique_id(), mode))
            self.begin(attempt.outputs)  # an older version of the table may have fewer columns
        if mode == "upsert":
            rows = self._staged_rows(attempt.outputs, receipts)
            self._commit(RowsMerged(attempt, unique_id(), rows, self.writing))
            self._store.remove(receipt["staged"] for receipt in receipts)
        else:
            self._commit(FilesAdded(attempt, unique_id(), receipts, mode == "overwrite"))

    def _commit(self, change: TableChange) -> None:
        """Commit a change, again if another writer of the table has committed meanwhile.

        Raises:
            FencedError: another run of the job has taken over.
            ConnectorError: the table cannot be reached, or others commit all the time.
        """
        from deltalake.exceptions import CommitFailedError

        from statekit.sinks.delta_commits import DeltaLog, in_one_line

        failed = ""
        for tries, pause in enumerate(_PAUSES_S):
            sleep_s(pause)
            with self._failures():
                log = DeltaLog(self.path, self._table(), change.attempt.outputs)
                try:
                    if not tries or not log.has(change.id):
                        change.commit(log)
                    self._make_durable(log.table.version())
                    return
                except CommitFailedError as error:
                    failed = in_one_line(error)
        raise ConnectorError(
            f"sink {change.attempt.outputs.sink!r} cannot commit to the Delta table {self.path}, "
            f"because others change it all the time: {failed}. Nothing of this epoch is "
            "committed: let others write less often, then start the job again"
        )

    def _staged_rows(self, outputs: Outputs, receipts: Sequence[Receipt]) -> pa.Table:
        """Return the last row of each key in all parts of an epoch."""
        import pyarrow.parquet as pq

        def read(name: str) -> pa.Table:
            content = self._store.read_if_there(name)
            if content is None:
                raise FencedError(
                    f"{self._store.at(name)} was removed: another run of the job writes to this "
                    "table. Stop one of them, then start the other again; nothing committed is lost"
                )
            return pq.read_table(pa.BufferReader(content))

        parts = in_parallel(read, [str(receipt["staged"]) for receipt in receipts])
        rows = pa.concat_tables([self.writing.schema_of_files(outputs).empty_table(), *parts])
        return rows if len(parts) < 2 else self.writing.last_rows(rows, outputs.sink)

    @property
    def _uri(self) -> str:
        root = self._store.root
        return self._store.url if root is None else str(root)

    @property
    def _options(self) -> dict[str, str] | None:
        """The limits of requests, as for a checkpoint. Credentials are in the environment."""
        if self._store.root is not None:
            return None
        options = StoreOptions.of(os.environ)
        limits = {
            "timeout": options.timeout_seconds,
            "connect_timeout": options.connect_seconds,
            "retry_timeout": options.retry_seconds,
        }
        return {name: f"{seconds}s" for name, seconds in limits.items()}

    def _table(self) -> DeltaTable:
        """Return the table as it is now."""
        from deltalake import DeltaTable

        return DeltaTable(self._uri, storage_options=self._options)

    def _created(self, schema: pa.Schema) -> DeltaTable:
        """Return the table, which is created if there is none."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError, TableNotFoundError

        try:
            return self._table()
        except TableNotFoundError:
            with contextlib.suppress(CommitFailedError):  # another run has created it
                delta = Schema.from_arrow(schema)
                DeltaTable.create(self._uri, delta, mode="ignore", storage_options=self._options)
            return self._table()

    def _make_durable(self, version: int) -> None:
        """Make the commits of a local table after a version durable, with the files of merges."""
        root = self._store.root
        if root is None:
            return
        log = root / "_delta_log"
        while (commit := log / f"{version + 1:020d}.json").exists():
            if self.writing.mode == "upsert":
                for path in added_files(commit.read_bytes()):
                    if (file := root / path).exists():
                        sync_path(file)
            sync_path(commit)
            version += 1
        sync_path(log)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert errors of Delta Lake to ConnectorError."""
        from deltalake.exceptions import DeltaError

        from statekit.sinks.delta_commits import in_one_line

        try:
            yield
        except StatekitError:
            raise
        except (DeltaError, OSError) as error:
            raise ConnectorError(
                f"the Delta table {self.path} failed with {in_one_line(error)}. Nothing of this "
                "epoch is committed: check that the path, the permissions and the store are as "
                "they should be, then start the job again"
            ) from None


def delta(
    path: object,
    *,
    mode: WriteMode = "append",
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
) -> Delta:
    """Return a sink that writes a Delta Lake table, with each epoch exactly once, in any runtime.

    Tasks write data files. One commit of the driver makes all files of an epoch visible, with the
    transaction identifier of the checkpoint and the sink, and the number of the epoch as its
    version. The table is created from the type of the outputs if there is none, and extended by
    new fields. Needs the extra `delta`.

    Parameters:
        path: the directory of the table, or a URL such as `s3://bucket/orders`, as for
            checkpoints.
        mode: `append` adds the rows of each epoch. `upsert` replaces the rows with the same key by
            the last output of each key. `overwrite` replaces all rows by those of an epoch that
            has any.
        key: the field or fields of the key, for `upsert`.
        delete: a boolean field of outputs, for `upsert`: if it is true, the row with this key is
            deleted. The table has no such column.

    Raises:
        StateTypeError: the options do not fit together.
        StatekitError: the package deltalake is not installed.

    >>> delta("/data/orders", mode="upsert", key="id").writing.key
    ('id',)
    """
    need_package("sinks.delta", "deltalake", "delta")
    return Delta(str(path), Writing.of("sinks.delta", mode, key, delete))


def _staged_name(outputs: Outputs, epoch: int | str) -> str:
    number = f"{epoch:020d}" if isinstance(epoch, int) else epoch
    return f"{_STAGED}/{outputs.sink}-{outputs.checkpoint}-{number}"
