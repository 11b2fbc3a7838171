"""Which values of a growing column are complete: no row with a smaller one can be committed later.

Transactions do not commit in the order in which they take values of a sequence or of the clock. A
transaction takes its values while it runs. So if a value is visible, each transaction with a
smaller one is committed, or it was running at that moment. When all that were running have ended,
all rows up to that value are visible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from statekit.connectors.postgres import PostgresSession
from statekit.errors import ConnectorError

WaitFor = Literal["transactions", "writers", "nothing"]
"""The transactions that may still commit smaller values: all of the database, or those that have
written to the table, or none.
"""

Position = tuple[str, ...]
"""The values of the growing columns of a row, as text."""

_PREPARED = "-1/"
"""Begins the identifiers of transactions that are prepared, and so belong to no session."""

_TRANSACTIONS = """
SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted
    AND l.pid <> pg_backend_pid()
    AND (a.pid IS NULL OR a.datname = current_database() AND a.usesysid IS NOT NULL)
UNION ALL
SELECT '-1/' || transaction::text FROM pg_prepared_xacts WHERE database = current_database()
"""
"""Each transaction locks its own identifier. Those of autovacuum have no user."""

_WRITERS = """
WITH RECURSIVE parts (part) AS (
    SELECT to_regclass(%(table)s)::oid
    UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts ON i.inhparent = part
)
SELECT l.virtualtransaction FROM pg_locks l JOIN parts ON l.relation = part
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
"""
"""A statement that writes locks its table before it takes a value of a sequence."""


@dataclass
class Horizon:
    """The value of the growing column up to which all rows are visible.

    Parameters:
        wait_for: the transactions that may commit smaller values.
        table: the quoted name, for "writers".

    Attributes:
        complete: no row will appear up to here; None before the first one is known.
        running: transactions that were running when `seen` was seen, and still are.
        seen: the next value, which is complete when they have ended; None if there is none.
    """

    wait_for: WaitFor
    table: str | None = None
    complete: Position | None = None
    running: frozenset[str] = frozenset()
    seen: Position | None = None

    def advance(
        self,
        session: PostgresSession,
        last: Callable[[Position | None], Position | None],
        after: Position | None,
    ) -> None:
        """Look at the database, and move on if that is possible.

        Parameters:
            last: returns the largest value after another one, as far as it is visible now.
            after: where the next epoch starts.
        """
        if self.seen is not None:
            self.running = still_running(self.running, self._running_now(session))
            if self.running:
                return
            self.complete, self.seen = self.seen, None
        seen = last(after if self.complete is None else self.complete)
        if seen is None:
            return
        # After the value was seen: a transaction that ends in between is visible to all readers.
        running = self._running_now(session)
        if running:
            self.seen, self.running = seen, running
        else:
            self.complete = seen

    def _running_now(self, session: PostgresSession) -> frozenset[str]:
        """Return the transactions that are running.

        Raises:
            ConnectorError: this server does not know them, since it is a replica.
        """
        if self.wait_for == "nothing":
            return frozenset()
        if session.rows("SELECT pg_is_in_recovery()")[0][0]:
            raise ConnectorError(
                "PostgreSQL at the URL of the source is a replica, which does not know the "
                "transactions of its primary. Nothing was read: give the URL of the primary, or "
                'wait_for="nothing" if rows are committed in the order of their values'
            )
        if self.wait_for == "writers":
            found = session.rows(_WRITERS, table=(self.table or "").replace("%%", "%"))
        else:
            found = session.rows(_TRANSACTIONS)
        return frozenset(name for (name,) in found)


def still_running(before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
    """Return which of the transactions that were running have not ended.

    One that was prepared since goes on under another name. So if any has disappeared, all that are
    prepared count.

    >>> sorted(still_running(frozenset({"3/7", "4/1"}), frozenset({"4/1", "5/2", "-1/99"})))
    ['-1/99', '4/1']
    >>> still_running(frozenset({"3/7"}), frozenset({"5/2"}))
    frozenset()
    """
    ended = {name for name in before - now if not name.startswith(_PREPARED)}
    prepared = {name for name in now if name.startswith(_PREPARED)}
    return (before & now) | (prepared if ended else frozenset())
