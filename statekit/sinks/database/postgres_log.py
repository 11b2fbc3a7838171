"""The table `_statekit_sinks`: the last publication of each sink in a schema of PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from statekit.connectors.postgres import PostgresSession, is_absent
from statekit.errors import ConnectorError, RestoreError
from statekit.sinks.protocol.sink import EpochRanges, Outputs, SinkIdentity

_COLUMNS = (
    "checkpoint text, sink text, target text, epochs_in text, runs bigint NOT NULL DEFAULT 0, "
    "run bigint NOT NULL DEFAULT 0, epoch bigint, publication text, "
    "transaction bigint NOT NULL DEFAULT 0, rows bigint NOT NULL DEFAULT 0, "
    "abandoned text NOT NULL DEFAULT '[]', published_at timestamptz, "
    "PRIMARY KEY (checkpoint, sink, target)"
)

_IS_OWN = "(checkpoint = %(checkpoint)s AND sink = %(sink)s AND target = %(target)s)"


class LastPublication(NamedTuple):
    """The last publication of a sink.

    Parameters:
        run: the number of the run that has published.
        epoch: what it has published; None if nothing was published.
        publication: the name of the attempt to publish.
        transaction: the transaction that has written the rows.
        rows: the number of rows.
        abandoned: the ranges of epochs whose rows were removed.
    """

    run: int
    epoch: int | None
    publication: str | None
    transaction: int
    rows: int
    abandoned: EpochRanges


@dataclass(frozen=True)
class SinkLog:
    """The row of a sink in the table `_statekit_sinks`, which is locked while it publishes.

    Parameters:
        table: the name of the table of sinks, as SQL.
        outputs: those of the sink.
        target: the table that the sink writes, with its schema.
    """

    table: str
    outputs: Outputs
    target: str

    def create(self, session: PostgresSession, *, is_new: bool) -> None:
        """Create the table of sinks and the row, unless they exist.

        Parameters:
            is_new: whether the target was made by this run.
        """
        if is_absent(session, self.table):
            session.run(f"CREATE TABLE {self.table} ({_COLUMNS})")
        session.run(
            f"INSERT INTO {self.table} (checkpoint, sink, target) "
            "VALUES (%(checkpoint)s, %(sink)s, %(target)s) ON CONFLICT DO NOTHING",
            **self._identity,
        )
        if is_new:
            session.run(f"UPDATE {self.table} SET rows = 0 WHERE {_IS_OWN}", **self._identity)

    @property
    def _identity(self) -> dict[str, str]:
        outputs = self.outputs
        return {"checkpoint": outputs.checkpoint, "sink": outputs.sink, "target": self.target}

    def own_epochs(self, session: PostgresSession, column: str, *, is_new: bool) -> None:
        """Make the numbers in a column those of this sink.

        Parameters:
            is_new: whether the table was made by this run.

        Raises:
            RestoreError: they are those of another sink or another checkpoint.
        """
        others = "target = %(target)s AND epochs_in = %(column)s AND NOT " + _IS_OWN
        if is_new:
            session.run(f"DELETE FROM {self.table} WHERE {others}", column=column, **self._identity)
        found = session.rows(
            f"SELECT sink, checkpoint FROM {self.table} WHERE {others}",
            column=column,
            **self._identity,
        )
        if found:
            sink, checkpoint = found[0]
            raise RestoreError(
                f"sink {self.outputs.sink!r}: column {column!r} of {self.target} has the epochs of "
                f"sink {sink!r} of another checkpoint ({checkpoint}), so that a rollback would "
                "remove rows of both. Nothing was written: choose another table, give another "
                "epoch_column= or none, or drop this table if its rows are not needed"
            )
        session.run(
            f"UPDATE {self.table} SET epochs_in = %(column)s WHERE {_IS_OWN}",
            column=column,
            **self._identity,
        )

    def last_writer(self, session: PostgresSession) -> SinkIdentity | None:
        """Return the sink that has published last to the target; None if none has."""
        found = session.rows(
            f"SELECT checkpoint, sink FROM {self.table} WHERE target = %(target)s "
            "AND epoch IS NOT NULL ORDER BY transaction DESC LIMIT 1",
            target=self.target,
        )
        return SinkIdentity(*found[0]) if found else None

    def next_run(self, session: PostgresSession) -> int:
        """Count a run of the sink, and return its number."""
        statement = f"UPDATE {self.table} SET runs = runs + 1 WHERE {_IS_OWN} RETURNING runs"
        return int(self._only(session.rows(statement, **self._identity))[0])

    def locked(self, session: PostgresSession) -> LastPublication:
        """Return the last publication, and keep others from publishing until the commit."""
        fields = ", ".join(LastPublication._fields)
        statement = f"SELECT {fields} FROM {self.table} WHERE {_IS_OWN} FOR UPDATE"
        last = LastPublication(*self._only(session.rows(statement, **self._identity)))
        ranges = tuple((first, end) for first, end in json.loads(str(last.abandoned)))
        return last._replace(abandoned=ranges)

    def _only(self, rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        if not rows:
            raise ConnectorError(
                f"sink {self.outputs.sink!r}: its row in {self.table} was deleted during the run. "
                "Nothing of this epoch is committed: start again, which creates it"
            )
        return rows[0]

    def record(
        self,
        session: PostgresSession,
        epoch: int,
        run: int,
        publication: str,
        rows: int,
        abandoned: EpochRanges,
    ) -> None:
        """Record a publication in the transaction that has written its rows."""
        session.run(
            f"UPDATE {self.table} SET run = %(run)s, epoch = %(epoch)s, rows = %(rows)s, "
            "publication = %(publication)s, transaction = txid_current(), "
            f"abandoned = %(abandoned)s, published_at = now() WHERE {_IS_OWN}",
            run=run,
            epoch=epoch,
            rows=rows,
            publication=publication,
            abandoned=json.dumps(abandoned),
            **self._identity,
        )
