"""Rows on their way into a table of PostgreSQL: copied, or staged in tasks and then moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from statekit.connectors.postgres import PostgresSession, is_absent, locked_alone, quoted_name
from statekit.errors import ConnectorError
from statekit.records.arrow_sort import row_numbers
from statekit.sinks.database.postgres_columns import COPY_BEGIN, COPY_END, PostgresColumn, copy_rows
from statekit.sinks.database.postgres_table import OWN_PREFIX, TargetTable
from statekit.sinks.protocol.sink import Receipt

_KEPT_BYTES_MAX = 64 << 20
"""A part up to this size is copied again if its connection is lost."""

_PART, _ROW, _REMOVED = (OWN_PREFIX + name for name in ("part", "row", "removed"))
"""Columns of staged rows: the attempt at a part, the place in it, whether the row is deleted."""


def copied_rows(
    session: PostgresSession, target: TargetTable, epoch: int, batches: Iterator[pa.RecordBatch]
) -> int:
    """Copy batches into a table to which rows are only added, and return the number of rows."""
    statement = f"COPY {target.name} ({target.stored_list}) FROM STDIN (FORMAT binary)"
    if target.epoch_column is not None:
        batches = (
            batch.append_column("epoch", _numbers(epoch, batch.num_rows)) for batch in batches
        )
    return session.copy(statement, _copied(batches, target.columns(session)))


@dataclass(frozen=True)
class StagingTable:
    """A table of rows that are not published yet, with the number of the part of each.

    Parameters:
        name: the name as SQL.
        target: the table that the rows are for.
        columns: those of its own, and those of the target.
    """

    name: str
    target: TargetTable
    columns: Sequence[PostgresColumn]

    @classmethod
    def of(cls, session: PostgresSession, name: str, target: TargetTable) -> StagingTable:
        """Return a table with the columns that the target has now. It may not exist yet."""
        own = [PostgresColumn(each, "bigint", "bigint") for each in (_PART, _ROW)]
        if target.delete is not None:
            own.append(PostgresColumn(_REMOVED, "boolean", "boolean"))
        return cls(name, target, [*own, *target.columns(session)[: len(target.fields)]])

    def create(self, session: PostgresSession) -> None:
        """Create the table without a log of its writes, unless it exists."""
        if is_absent(session, self.name):
            locked_alone(session, f"create {self.name}")
            session.run(f"CREATE UNLOGGED TABLE IF NOT EXISTS {self.name} ({self._declared})")

    def create_for_transactions(self, session: PostgresSession) -> None:
        """Create the table for this connection, unless it exists: it is emptied by each commit."""
        words = f"CREATE TEMP TABLE IF NOT EXISTS {self.name} ({self._declared})"
        session.run(f"{words} ON COMMIT DELETE ROWS")

    @property
    def _declared(self) -> str:
        return ", ".join(
            f"{quoted_name(column.name)} {column.full_type.replace('%', '%%')}"
            f"{' NOT NULL' if column.name in self.target.key else ''}"
            for column in self.columns
        )

    def copy(self, session: PostgresSession, part: int, batches: Iterator[pa.RecordBatch]) -> int:
        """Copy the batches of a part into the table, and return the number of rows."""
        names = ", ".join(quoted_name(column.name) for column in self.columns)
        statement = f"COPY {self.name} ({names}) FROM STDIN (FORMAT binary)"
        return session.copy(statement, _copied(self._numbered(part, batches), self.columns))

    def _numbered(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches with the columns of the table, in its order."""
        fields = [pa.field(name, pa.int64()) for name in (_PART, _ROW)]
        start = 0
        for batch in batches:
            rows = batch.num_rows
            own = [_numbers(part, rows), pc.add(row_numbers(rows), start)]
            if self.target.delete is not None:
                own.append(batch.column(self.target.delete))
                fields[2:] = [pa.field(_REMOVED, pa.bool_())]
            stored = [batch.column(field.name) for field in self.target.fields]
            schema = pa.schema([*fields, *self.target.fields])
            yield pa.record_batch([*own, *stored], schema=schema)
            start += rows

    def check_rows(self, session: PostgresSession, receipts: Sequence[Receipt]) -> None:
        """Check that all rows are there: a server that was killed empties tables without a log.

        Raises:
            ConnectorError: rows are missing.
        """
        statement = f"SELECT count(*) FROM {self.name} WHERE {quoted_name(_PART)} = ANY(%(parts)s)"
        found = session.rows(statement, parts=part_numbers(receipts))[0][0]
        wanted = sum(receipt["rows"] for receipt in receipts)
        if found != wanted:
            raise ConnectorError(
                f"sink {self.target.sink!r}: {found} of {wanted} rows of this epoch are staged: "
                "PostgreSQL was restarted after a crash, which empties staging tables. Nothing of "
                "this epoch is committed: start again"
            )

    def move(self, session: PostgresSession, epoch: int, parts: list[int]) -> int:
        """Move the rows of parts into the target, and return the number of rows written.

        Parameters:
            parts: their numbers. Of a key's rows, the last one of the last part counts.
        """
        target = self.target
        with_epoch = "" if target.epoch_column is None else ", %(epoch)s::bigint"
        insert = f"INSERT INTO {target.name} ({target.stored_list})"
        rows = f"SELECT {target.field_list}{with_epoch} FROM"
        of_parts = f"{self.name} WHERE {quoted_name(_PART)} = ANY(%(parts)s)"
        if not target.key:
            return session.run(f"{insert} {rows} {of_parts}", parts=parts, epoch=epoch)
        last = (
            f"SELECT DISTINCT ON ({target.key_list}) * FROM {of_parts} ORDER BY {target.key_list}, "
            f"array_position(%(parts)s, {quoted_name(_PART)}) DESC, {quoted_name(_ROW)} DESC"
        )
        deleted, is_kept = "", ""
        if target.delete is not None:
            is_same = " AND ".join(
                f"old.{key} = last.{key}" for key in map(quoted_name, target.key)
            )
            deleted = (
                f", gone AS (DELETE FROM {target.name} AS old USING last "
                f"WHERE last.{quoted_name(_REMOVED)} AND {is_same})"
            )
            is_kept = f"WHERE {quoted_name(_REMOVED)} IS NOT TRUE"
        statement = (
            f"WITH last AS MATERIALIZED ({last}){deleted} {insert} {rows} last {is_kept} "
            f"ON CONFLICT ({target.key_list}) DO {self._update}"
        )
        return session.run(statement, parts=parts, epoch=epoch)

    @property
    def _update(self) -> str:
        """The action for a row whose key is there."""
        fields = [field.name for field in self.target.stored_fields]
        others = [quoted_name(name) for name in fields if name not in self.target.key]
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        return f"UPDATE SET {updates}" if others else "NOTHING"


class RepeatableBatches:
    """Batches that can be iterated again, as long as they are small.

    Parameters:
        batches: the batches.

    Attributes:
        is_complete: whether an iteration yields all of them.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.is_complete = True
        self._remaining = batches
        self._kept: list[pa.RecordBatch] = []
        self._size = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from tuple(self._kept)
        for batch in self._remaining:
            self._size += batch.nbytes
            self.is_complete = self._size <= _KEPT_BYTES_MAX
            if self.is_complete:
                self._kept.append(batch)
            else:
                self._kept.clear()
            yield batch


def part_numbers(receipts: Sequence[Receipt]) -> list[int]:
    """Return the numbers of staged parts, in their order."""
    return [int(receipt["part"]) for receipt in receipts]


def _copied(
    batches: Iterator[pa.RecordBatch], columns: Sequence[PostgresColumn]
) -> Iterator[bytes | memoryview]:
    return chain((COPY_BEGIN,), copy_rows(batches, columns), (COPY_END,))


def _numbers(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), count)
