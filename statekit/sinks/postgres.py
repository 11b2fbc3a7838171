"""A sink of rows in a table of PostgreSQL, with each epoch exactly once.

A task of Spark copies its part into a staging table, and the driver moves all parts into the table
in one transaction, which also records the epoch. In a run in one process, that transaction copies
the rows from memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

import pyarrow as pa

from statekit.clock import unique_id
from statekit.connectors.postgres import (
    Database,
    PostgresSession,
    is_absent,
    is_name,
    locked_alone,
    name_parts,
    quoted_name,
)
from statekit.declared_call import declarable
from statekit.errors import FencedError, RestoreError, StateTypeError
from statekit.shown import shown
from statekit.sinks.database.postgres_log import LastPublication, SinkLog
from statekit.sinks.database.postgres_staging import (
    RepeatableBatches,
    StagingTable,
    copied_rows,
    part_numbers,
)
from statekit.sinks.database.postgres_table import OWN_PREFIX, TargetTable
from statekit.sinks.protocol.sink import (
    Attempt,
    Outputs,
    Part,
    Publication,
    Receipt,
    SinkIdentity,
    TableSink,
)

_logger = logging.getLogger("statekit.sinks")

_TABLES_WITH_PREFIX = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = coalesce(%(schema)s, current_schema()) AND c.relkind = 'r'
    AND starts_with(c.relname, %(prefix)s)
"""

_LOCK_FOR_ROWS = "SELECT pg_advisory_xact_lock_shared(hashtextextended(%(name)s, 0))"
_TRY_LOCK_ALONE = "SELECT pg_try_advisory_xact_lock(hashtextextended(%(name)s, 0))"

Mode = Literal["append", "upsert"]


@dataclass(frozen=True)
class Postgres(TableSink):
    """Rows in a table of PostgreSQL, with each epoch exactly once. See `postgres`.

    Parameters:
        database: with the table.
        table: the name of the table, perhaps with its schema.
        mode: whether rows are added, or replace those with their key.
        key: the fields by which rows are replaced.
        delete: the field of type bool that marks keys to be deleted.
        epoch_column: the column with the number of the epoch.
    """

    database: Database
    table: str
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    delete: str | None = None
    epoch_column: str | None = None
    _runs: dict[tuple[str, str], _Run] | None = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The runs of this process, by checkpoint and sink. None in a task of Spark."""

    def __post_init__(self) -> None:
        name_parts(self.table)
        if self.mode not in ("append", "upsert"):
            raise StateTypeError(f"mode={shown(self.mode)}: give 'append' or 'upsert'")
        if self.mode == "upsert" and not self.key:
            raise StateTypeError(
                "mode='upsert' needs key=: the field, or fields, of each row's key"
            )
        if self.mode == "append" and (self.key or self.delete is not None):
            raise StateTypeError("key= and delete= are options of mode='upsert'")
        if self.delete in self.key:
            raise StateTypeError(f"delete={self.delete!r} is a field of the key, too")
        if self.epoch_column is not None and not is_name(self.epoch_column):
            raise StateTypeError(f"epoch_column={shown(self.epoch_column)} is no name of a column")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": None}

    # ---------------------------------------------------------------------------- in the driver

    def begin(self, outputs: Outputs) -> None:
        self._begin(outputs, is_owned=False)

    def begin_owned(self, outputs: Outputs) -> None:
        self._begin(outputs, is_owned=True)

    def create(self, outputs: Outputs) -> None:
        self._begin(outputs, is_owned=True)

    def _begin(self, outputs: Outputs, *, is_owned: bool) -> None:
        target = self._target(outputs)
        assert self._runs is not None, "the driver begins"
        created = self._runs.get((outputs.checkpoint, outputs.sink))

        def prepare(session: PostgresSession) -> _Run:
            table_of_sinks = target.own("sinks")
            locked_alone(session, f"create {table_of_sinks}")
            was_absent = is_absent(session, target.name)
            is_new = was_absent or (created is not None and created.is_of_new_table)
            log = SinkLog(table_of_sinks, outputs, target.prepare(session, is_owned=is_owned))
            log.create(session, is_new=was_absent)
            if not is_owned and self.mode == "append" and self.epoch_column is not None:
                log.own_epochs(session, self.epoch_column, is_new=is_new)
            return _Run(log, is_of_new_table=is_new)

        run = self.database.transaction(_user(outputs), prepare)
        self._runs[outputs.checkpoint, outputs.sink] = run

    @property
    def target(self) -> object:
        names = name_parts(self.table)
        return self.database.location, names if len(names) > 1 else ("public", *names)

    @property
    def place(self) -> str:
        return f"postgres:{self.database.place}#{self.table}"

    def by_key(self, key: Sequence[str], delete: str) -> Postgres:
        return replace(self, mode="upsert", key=tuple(key), delete=delete)

    def has_rows(self, outputs: Outputs) -> bool:
        statement = f"SELECT EXISTS (SELECT FROM {self._target(outputs).name})"
        run = self.database.transaction
        return bool(run(_user(outputs), lambda session: session.rows(statement)[0][0]))

    def stored(self, outputs: Outputs, columns: Sequence[str], null: str | None = None) -> pa.Table:
        names = ", ".join(map(quoted_name, columns))
        where = "" if null is None else f" WHERE {quoted_name(null)} IS NULL"
        statement = f"SELECT {names} FROM {self._target(outputs).name}{where}"
        rows = self.database.transaction(_user(outputs), lambda session: session.rows(statement))
        schema = pa.schema([outputs.schema.field(name) for name in columns])
        values = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(own, field.type) for own, field in zip(values, schema, strict=True)]
        return pa.table(arrays, schema=schema)

    def last_writer(self, outputs: Outputs) -> SinkIdentity | None:
        run = self._run(outputs)
        if run.is_of_new_table:
            return None
        return self.database.transaction(_user(outputs), run.log.last_writer)

    def is_dropped(self, outputs: Outputs) -> bool:
        name = self._target(outputs).name
        return self.database.transaction(_user(outputs), lambda session: is_absent(session, name))

    def appending(self) -> Postgres:
        return replace(self, mode="append", key=(), delete=None)

    def last_epoch(self, outputs: Outputs) -> int | None:
        run = self._run(outputs)
        if run.is_of_new_table:
            return None
        return self.database.transaction(_user(outputs), run.log.locked).epoch

    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        target, database = self._target(declared), self.database.within(limit_s)

        def tried(session: PostgresSession) -> str:
            session.run("SELECT set_config('lock_timeout', '2s', true)")  # a job may be running
            was_absent = is_absent(session, target.name)
            name = target.prepare(session)
            SinkLog(target.own("sinks"), declared, name).create(session, is_new=was_absent)
            target.check_rights(session)
            return f"table {self.table} {'can be made' if was_absent else 'fits'}"

        try:
            found = database.rolled_back(_user(declared), tried)
            yield f"{found} at {database.place}"
        finally:
            database.close()

    def open(self, attempt: Attempt) -> None:
        run = self._run(attempt.outputs)
        run.kept.clear()
        if attempt.is_first:
            user = _user(attempt.outputs)
            run.number = self.database.transaction(user, run.log.next_run)
            self._drop_staged(attempt)

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        if self._runs is not None:
            kept = self._run(part.outputs).kept
            kept += batches
            return {"kept": sum(batch.num_rows for batch in kept)}
        try:
            return self._stage(part, batches)
        finally:
            self.database.close()

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        self.publish_all([Publication(self, attempt, receipts)])

    @property
    def transactions(self) -> object:
        return self.database

    def publish_all(self, publications: Sequence[Publication]) -> None:
        name = unique_id()

        def publish(session: PostgresSession) -> None:
            for sink, attempt, receipts in publications:
                assert isinstance(sink, Postgres), "it has the same database"
                sink._publish(session, attempt, receipts, name)

        users = ", ".join(_user(own.attempt.outputs) for own in publications)
        self.database.transaction(users, publish)
        for sink, attempt, receipts in publications:
            assert isinstance(sink, Postgres), "it has the same database"
            sink._published(attempt, receipts)

    def _published(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        """Remove the rows of an epoch that were on their way."""
        run = self._run(attempt.outputs)
        run.kept.clear()
        run.is_of_new_table = False
        if any("part" in receipt for receipt in receipts):
            self._drop_staged(attempt)

    def close(self) -> None:
        self.database.close()

    def _run(self, outputs: Outputs) -> _Run:
        assert self._runs is not None, "the driver publishes"
        return self._runs[outputs.checkpoint, outputs.sink]

    def _target(self, outputs: Outputs) -> TargetTable:
        return TargetTable(
            name_parts(self.table),
            outputs.schema,
            outputs.sink,
            self.key,
            self.delete,
            self.epoch_column,
        )

    # ------------------------------------------------------------------------------- publishing

    def _publish(
        self,
        session: PostgresSession,
        attempt: Attempt,
        receipts: Sequence[Receipt],
        publication: str,
    ) -> None:
        run, target = self._run(attempt.outputs), self._target(attempt.outputs)
        last = run.log.locked(session)
        if last.publication == publication:
            return  # it is committed, and the answer of the server was lost
        _check_is_latest(attempt, run, last)
        if last.epoch == attempt.epoch and last.run != run.number:
            attempt.check_owner()  # the run that has published it may have committed it since
        abandoned = last.abandoned
        if attempt.is_first:
            self._abandon(session, target, attempt, last)
            abandoned = attempt.without_outputs
        if attempt.replaces_all:
            target.empty(session)
        elif last.epoch == attempt.epoch and self.mode == "append":
            self._remove_last(session, target, last)
        if any("part" in receipt for receipt in receipts):
            name = target.own(self._staged_name(attempt))
            staging = StagingTable.of(session, name, target)
            staging.check_rows(session, receipts)
            rows = staging.move(session, attempt.epoch, part_numbers(receipts))
        else:
            rows = self._write_kept(session, target, attempt.epoch, run.kept)
        run.log.record(session, attempt.epoch, run.number, publication, rows, abandoned)

    def _abandon(
        self, session: PostgresSession, target: TargetTable, attempt: Attempt, last: LastPublication
    ) -> None:
        """Remove the rows of epochs that do not count any more, or log that they stay."""
        new = [each for each in attempt.without_outputs if each not in last.abandoned]
        if self.mode == "append" and self.epoch_column is not None:
            column = quoted_name(self.epoch_column)
            statement = f"DELETE FROM {target.name} WHERE {column} BETWEEN %(first)s AND %(end)s"
            for first, end in new:
                session.run(statement, first=first, end=end)
            return
        if last.epoch is None:
            return
        until = last.epoch
        if self.mode == "append" and any(first <= until <= end for first, end in new):
            self._remove_last(session, target, last)
            until -= 1
        stay = [(first, min(end, until)) for first, end in new if first <= until]
        if stay:
            _logger.warning(
                "sink %r: the rows of epochs that were rolled back stay in table %s%s: %s",
                target.sink,
                self.table,
                " until their keys are written again" if self.key else "",
                ", ".join(f"epochs {first} to {end}" for first, end in stay),
            )

    def _remove_last(
        self, session: PostgresSession, target: TargetTable, last: LastPublication
    ) -> None:
        """Remove the rows that the last publication has added.

        Raises:
            RestoreError: the table has no column of epochs, and the rows were changed since.
        """
        if not last.rows:
            return
        if self.epoch_column is not None:
            column = quoted_name(self.epoch_column)
            session.run(f"DELETE FROM {target.name} WHERE {column} = %(epoch)s", epoch=last.epoch)
            return
        # Without a column, the server's own: the transaction that has added a row.
        statement = f"DELETE FROM {target.name} WHERE xmin::text = %(by)s"
        removed = session.run(statement, by=str(last.transaction % 2**32))
        if removed != last.rows:
            raise RestoreError(
                f"sink {target.sink!r}: epoch {last.epoch} was published before a crash with "
                f"{last.rows} rows, and {removed} of them are in {self.table} unchanged, so that "
                "they cannot be replaced. Nothing was written: delete the rows of this epoch and "
                f"set rows = 0 in its row of {OWN_PREFIX}sinks, then start again, or use "
                "epoch_column="
            )

    def _write_kept(
        self,
        session: PostgresSession,
        target: TargetTable,
        epoch: int,
        batches: Sequence[pa.RecordBatch],
    ) -> int:
        """Write the rows of this process to the table, and return their number."""
        if not batches:
            return 0
        if self.mode == "append":
            return copied_rows(session, target, epoch, iter(batches))
        staging = StagingTable.of(session, "", target)
        columns = (f"{column.name} {column.full_type}" for column in staging.columns)
        name = quoted_name(f"{OWN_PREFIX}kept_{_digest(target.sink, self.table, *columns)}")
        staging = replace(staging, name=name)
        staging.create_for_transactions(session)
        staging.copy(session, 0, iter(batches))
        return staging.move(session, epoch, [0])

    # ---------------------------------------------------------------------------------- staging

    def _stage(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """Copy a part into the staging table of its epoch."""
        user, target = _user(part.outputs), self._target(part.outputs)
        name = target.own(self._staged_name(part))
        number, again = int(unique_id()[:15], 16), RepeatableBatches(batches)

        def create(session: PostgresSession) -> StagingTable:
            staging = StagingTable.of(session, name, target)
            staging.create(session)
            return staging

        def copy(session: PostgresSession) -> int:
            session.rows(_LOCK_FOR_ROWS, name=f"drop {name}")
            return staging.copy(session, number, iter(again))

        # Its own transaction: a table that is not committed keeps other tasks from creating it.
        staging = self.database.transaction(user, create)
        rows = self.database.transaction(user, copy, may_repeat=lambda: again.is_complete)
        return {"part": number, "rows": rows}

    def _staged_name(self, of: Attempt | Part) -> str:
        """Return the name of the staging table of an epoch, behind the prefix of own tables."""
        return f"{self._staged_prefix(of.outputs)}{of.epoch}_{of.writer[:8]}"

    def _staged_prefix(self, outputs: Outputs) -> str:
        return f"staged_{_digest(outputs.checkpoint, outputs.sink, self.table)}_"

    def _drop_staged(self, attempt: Attempt) -> None:
        """Drop the staging tables of earlier epochs, and that of this run."""
        target = self._target(attempt.outputs)
        prefix = OWN_PREFIX + self._staged_prefix(attempt.outputs)
        schema = target.names[0] if len(target.names) > 1 else None

        def drop(session: PostgresSession) -> None:
            for (name,) in session.rows(_TABLES_WITH_PREFIX, schema=schema, prefix=prefix):
                epoch, _, writer = name.removeprefix(prefix).partition("_")
                if int(epoch) < attempt.epoch or attempt.writer.startswith(writer):
                    staged = target.own(name.removeprefix(OWN_PREFIX))
                    # A task of a run that was killed may still write to it: then it is dropped
                    # after another epoch.
                    if session.rows(_TRY_LOCK_ALONE, name=f"drop {staged}")[0][0]:
                        session.run(f"DROP TABLE IF EXISTS {staged}")

        self.database.transaction(_user(attempt.outputs), drop)


@declarable("sinks.postgres")
def postgres(
    url: str,
    table: str,
    *,
    key: str | Sequence[str] | None = None,
    mode: Mode = "append",
    delete: str | None = None,
    epoch_column: str | None = "_epoch",
    retry_s: float = 10.0,
) -> Postgres:
    """Return a sink that writes rows to a table of PostgreSQL, with each epoch exactly once, in any
    runtime.

    The table is created from the type of the records if it is absent, and gets a column for each
    new field. Needs the extra `postgres`.

    Parameters:
        url: the URL or the connection string of libpq. PGPASSWORD and the password file of libpq
            work, too. A password is never shown.
        table: its name, as in `orders` or `shop.orders`. Names keep their case.
        key: with mode "upsert", the field or fields of the key of rows.
        mode: "append" adds rows; "upsert" replaces the row of each key by the last one of an epoch.
        delete: with mode "upsert", a field of type bool. A record in which it is true deletes the
            row of its key. The field has no column.
        epoch_column: a column for the number of the epoch, by which rows of epochs that were rolled
            back are removed; None for none.
        retry_s: the seconds in which a transaction is tried again if the connection is lost or the
            error may pass.

    Raises:
        StateTypeError: an option is not valid.
        StatekitError: psycopg is not installed.

    >>> postgres("postgresql://ada:secret@db/shop", "totals", key="customer", mode="upsert")
    Postgres(database=Database('postgresql://ada@db:5432/shop'), table='totals', mode='upsert', \
key=('customer',), delete=None, epoch_column='_epoch')
    """
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    return Postgres(Database(url, retry_s), table, mode, keys, delete, epoch_column)


# ------------------------------------------------------------------------------------------ runs


@dataclass
class _Run:
    """A run that writes to a sink, in the driver.

    Parameters:
        log: the row of the sink.
        number: of the run: a later one has a larger number.
        kept: the rows of the epoch, if they are written in this process.
        is_of_new_table: whether the run has created the table, and published nothing yet.
    """

    log: SinkLog
    number: int = 0
    kept: list[pa.RecordBatch] = field(default_factory=list)
    is_of_new_table: bool = False


def _check_is_latest(attempt: Attempt, run: _Run, last: LastPublication) -> None:
    """Check that no later run, and no later epoch, has been published.

    Raises:
        FencedError: a later run has published.
        RestoreError: an epoch of a newer copy of the checkpoint was published.
    """
    sink = attempt.outputs.sink
    if last.run > run.number:
        raise FencedError(
            f"sink {sink!r}: a run that was started later has published epoch {last.epoch} to "
            f"{run.log.target}. Epoch {attempt.epoch} of this run was not written: stop one of "
            "them; nothing is lost"
        )
    if last.epoch is not None and last.epoch > attempt.epoch:
        raise RestoreError(
            f"sink {sink!r}: {run.log.target} contains epoch {last.epoch}, which is later than "
            f"epoch {attempt.epoch} of this checkpoint: it was restored from an older copy. "
            f"Nothing was written: delete the rows of later epochs, and the row of this sink in "
            f"{run.log.table}, then start again"
        )


def _digest(*names: str) -> str:
    """Return a part of a table's name that differs for other names."""
    return blake2b("\0".join(names).encode(), digest_size=8).hexdigest()


def _user(outputs: Outputs) -> str:
    return f"sink {outputs.sink!r}"
