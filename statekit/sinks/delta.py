"""A sink of Delta Lake tables, with each epoch in one commit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statekit.checkpoint.object_store import StoreOptions, sync_path, without_credentials
from statekit.checkpoint.store import Store
from statekit.checkpoint.store_url import local_path, place_elsewhere, same_place
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StatekitError
from statekit.optional_packages import check_installed
from statekit.sinks.lake.delta_files import added_files, new_file_name, write_delta_file
from statekit.sinks.lake.lake_columns import STAGED, WriteMode, Writing
from statekit.sinks.lake.lake_commits import TableLog
from statekit.sinks.lake.lake_sink import LakeSink
from statekit.sinks.protocol.sink import Outputs, Part, Receipt

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from statekit.sinks.lake.delta_log import DeltaLog


@dataclass(frozen=True)
class Delta(LakeSink):
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

    @property
    def target(self) -> object:
        return same_place(self.path)

    @property
    def place(self) -> str:
        return f"delta:{without_credentials(self.path)}"

    @cached_property
    def store(self) -> Store:
        return Store(self.path, drafts=STAGED)

    def __getstate__(self) -> dict[str, Any]:
        # Each process opens the directory.
        return {"path": place_elsewhere(self.path), "writing": self.writing}

    def begin(self, outputs: Outputs) -> None:
        schema = self.writing.schema_of_table(outputs)
        with self.failures():
            self._create(schema)
            log = self.log(outputs)
            log.check_features()
            log.add_columns(schema)

    def create(self, outputs: Outputs) -> None:
        with self.failures():
            self._create(self.writing.schema_of_table(outputs))

    def begin_owned(self, outputs: Outputs) -> None:
        with self.failures():
            self._create(self.writing.schema_of_table(outputs))
            self.log(outputs).check_features()

    def is_dropped(self, outputs: Outputs) -> bool:
        from deltalake.exceptions import TableNotFoundError

        with self.failures():
            try:
                self._table()
            except TableNotFoundError:
                return True
            return False

    @property
    def may_exist(self) -> bool:
        path = local_path(self.path)
        return path is None or path.exists()

    def files_place(self, declared: Outputs) -> str:
        return self.path

    def write_file(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        schema = self.writing.schema_of_table(part.outputs)
        return write_delta_file(self.store, new_file_name(part), batches, schema)

    def with_writing(self, writing: Writing) -> Delta:
        return replace(self, writing=writing)

    def log(self, outputs: Outputs) -> DeltaLog:
        from statekit.sinks.lake.delta_log import DeltaLog

        return DeltaLog(self.path, self._table(), outputs, self.store)

    def conflicts(self) -> type[Exception]:
        from deltalake.exceptions import CommitFailedError

        return CommitFailedError

    @property
    def _uri(self) -> str:
        root = self.store.root
        return self.store.url if root is None else str(root)

    @property
    def _options(self) -> dict[str, str] | None:
        """The limits of requests, as for a checkpoint. Credentials are in the environment."""
        if self.store.root is not None:
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

    def _create(self, schema: pa.Schema) -> None:
        """Create the table if there is none."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError, TableNotFoundError

        try:
            self._table()
        except TableNotFoundError:
            columns, options = Schema.from_arrow(schema), self._options
            with contextlib.suppress(CommitFailedError):  # another run has created it
                DeltaTable.create(self._uri, columns, mode="ignore", storage_options=options)

    def committed(self, log: TableLog) -> None:
        root = self.store.root
        if root is None:
            return
        from statekit.sinks.lake.delta_log import DeltaLog

        assert isinstance(log, DeltaLog)
        version = log.table.version() + 1
        while (commit := root / "_delta_log" / f"{version:020d}.json").exists():
            if self.writing.mode == "upsert":
                for path in added_files(commit.read_bytes()):
                    if (file := root / path).exists():
                        sync_path(file)
            sync_path(commit)
            version += 1
        sync_path(root / "_delta_log")

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Convert errors of Delta Lake to ConnectorError."""
        from deltalake.exceptions import DeltaError

        from statekit.sinks.lake.delta_log import in_one_line

        try:
            yield
        except StatekitError:
            raise
        except (DeltaError, OSError) as error:
            raise ConnectorError(
                f"the Delta table {self.path} failed with {in_one_line(error)}. Nothing of this "
                "epoch is committed: check that the path, the permissions and the store are as "
                "they should be, then start again"
            ) from None


@declarable("sinks.delta")
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
    check_installed("sinks.delta", "deltalake", "delta")
    return Delta(str(path), Writing.of("sinks.delta", mode, key, delete))
