"""Source of the rows of a table or query of PostgreSQL, in the order of a growing column."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from statekit.clock import sleep_s, stopwatch_s
from statekit.connectors.postgres import Database, PostgresSession, is_name, name_parts, quoted_name
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, RestoreError, StateTypeError
from statekit.records.union import Records
from statekit.shown import shown
from statekit.sources.decoding.decoder import OFFSET_PREFIX, check_first_rows
from statekit.sources.postgres_horizon import Horizon, Position, WaitFor
from statekit.sources.postgres_values import arrow_column, is_readable
from statekit.sources.source import Offset, Offsets, Source

_logger = logging.getLogger("statekit.sources")

_PARTITION = "all"

_ROWS_MAX = 10_000
"""Rows of a batch."""

_COUNTED_MAX = 10_000
"""Rows that are counted at most behind an epoch: 2 to 3 milliseconds of the server by an index."""

_POLL_S = 0.05
"""How often the database is asked while there is nothing new, in seconds."""

_INTEGERS = (20, 21, 23)
"""The numbers of the types whose values are numbers in offsets. Others are text."""

_SETTINGS = (
    "SELECT set_config('transaction_read_only', 'on', true), set_config('TimeZone', 'UTC', true), "
    "set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'iso_8601', true)"
)
"""A query changes nothing, and the text of a value is the same in each session."""

_IS_TABLE_WITHOUT_KEY = """
SELECT c.relkind = 'r' AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
        AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = c.oid
            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) <@ %(by)s::text[])
FROM pg_class c WHERE c.oid = to_regclass(%(name)s)
"""

_QUERY = re.compile(r"\s*(?:--|/\*|\(|(?:select|with|values|table)\s)", re.IGNORECASE)


@dataclass(eq=False)
class PostgresSource(Source):
    """Rows of a table or query, in the order of a growing column. See `postgres`.

    Parameters:
        database: with the rows.
        table: the quoted name of the table; None for a query.
        rows: the table or the query, as SQL behind FROM.
        by: the growing columns.
        static: whether the rows that are there at the start are all.
        wait_for: the transactions that may still commit smaller values.
        settle_s: how long a run waits for them at its start, in seconds.
    """

    database: Database
    table: str | None
    rows: str
    by: tuple[str, ...]
    static: bool
    wait_for: WaitFor
    settle_s: float

    def __post_init__(self) -> None:
        self._horizon = Horizon(self.wait_for, self.table)
        self._waits_for: Position | None = None
        self._waits_since_s = 0.0
        self._has_warned = False
        self._reads_here = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reads_here": False}

    @property
    def is_bounded(self) -> bool:
        return self.static

    def open(self, *, reads_here: bool) -> None:
        self._horizon = Horizon(self.wait_for, self.table)
        self._waits_for, self._reads_here = None, reads_here
        self.database.transaction(self._user, self._check)

    def close(self) -> None:
        self.database.close()

    def earliest(self) -> Offsets:
        return {_PARTITION: None}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        after = self._position(start[_PARTITION])
        until_s = stopwatch_s() + wait_s
        while True:
            end = self.database.transaction(
                self._user, lambda session: self._end(session, after, limit)
            )
            if end is not None:
                return {_PARTITION: end}
            now_s = stopwatch_s()
            if now_s >= until_s and not self._is_settling(now_s):
                return dict(start)
            sleep_s(_POLL_S)

    @property
    def lag_limit(self) -> int | None:
        return _COUNTED_MAX

    def lag(self, offsets: Offsets) -> int | None:
        """Return how many rows are visible after these offsets, at most 10,000: counting all of
        them would take as long as to read them.
        """
        if self.static:
            return None  # rows that were added since are not read
        after = self._position(offsets[_PARTITION])
        return self.database.transaction(self._user, partial(self._count, after=after))

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        after, to = self._position(start), self._position(end)
        try:
            while True:
                page = self.database.transaction(
                    self._user, partial(self._page, after=after, to=to)
                )
                if page.batch.num_rows:
                    yield page.batch
                if page.last is None:
                    return
                after = page.last
        finally:
            if not self._reads_here:
                self.database.close()

    def probe(self, declared: Records, limit_s: float) -> Iterator[str]:
        database = self.database.within(limit_s)
        try:
            database.transaction(self._user, self._check)
            yield f"{self._user} at {database.place} can be read"
            first = partial(self._page, after=None, to=None, rows=1)
            batch = database.transaction(self._user, first).batch
            columns = batch.select([n for n in batch.schema.names if n[:8] != OFFSET_PREFIX])
            for member in declared.members:
                member.reader(columns.schema)
            yield check_first_rows(self.decoder(declared, self._user), _PARTITION, batch)
        finally:
            database.close()

    @property
    def _user(self) -> str:
        return "a query" if self.table is None else f"table {self._table_name}"

    @property
    def _table_name(self) -> str:
        return (self.table or "").replace("%%", "%")

    # --------------------------------------------------------------------------- in the driver

    def _check(self, session: PostgresSession) -> None:
        """Check that there are rows with these columns, and that rows have different values.

        Raises:
            StateTypeError: they do not.
        """
        session.run(_SETTINGS)
        _Columns.of(session, self.rows, self.by)
        if self.table is None:
            return
        found = session.rows(_IS_TABLE_WITHOUT_KEY, by=list(self.by), name=self._table_name)
        if found and found[0][0]:
            raise StateTypeError(
                f"by={_shown_columns(self.by)}: table {self._table_name} has no primary key and no "
                "unique index on these columns, so that a row with the same value as another one "
                'can be left out: add a column that is unique, as in by=("updated_at", "id"), or '
                "create the index"
            )

    def _is_settling(self, now_s: float) -> bool:
        """Return whether a run that has just begun waits for transactions before it reads.

        Raises:
            ConnectorError: they run for too long, and a static table has to be read completely.
        """
        horizon = self._horizon
        if not horizon.running:
            return False
        if self._waits_for != horizon.seen:
            self._waits_for, self._waits_since_s, self._has_warned = horizon.seen, now_s, False
        if now_s - self._waits_since_s < self.settle_s:
            return horizon.complete is None
        what = (
            f"{self._user}: {len(horizon.running)} transactions have been running for "
            f"{self.settle_s:g} seconds, and may still commit rows with smaller values"
        )
        advice = "end them (see pg_stat_activity), or see wait_for="
        if self.static:
            raise ConnectorError(f"{what}. Nothing was read: {advice}, then start the job again")
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("%s. Newer rows are read when they have ended: %s", what, advice)
        return False

    def _end(self, session: PostgresSession, after: Position | None, limit: int) -> Offset | None:
        """Return where the next epoch ends; None if no row can be read yet."""
        session.run(_SETTINGS)
        columns, horizon = _Columns.of(session, self.rows, self.by), self._horizon
        if not self.static or horizon.complete is None:
            horizon.advance(session, lambda seen: columns.last(session, seen), after)
        if horizon.complete is None or horizon.complete == after:
            return None
        end = columns.last(session, after, horizon.complete, limit)
        return None if end is None else columns.offset(end)

    def _count(self, session: PostgresSession, after: Position | None) -> int:
        session.run(_SETTINGS)
        return _Columns.of(session, self.rows, self.by).count(session, after, _COUNTED_MAX)

    # ------------------------------------------------------------------------------- in tasks

    def _page(
        self,
        session: PostgresSession,
        after: Position | None,
        to: Position | None,
        rows: int = _ROWS_MAX,
    ) -> _Page:
        """Return the next rows of a range.

        Raises:
            StateTypeError: two rows have the same value.
        """
        session.run(_SETTINGS)
        columns = _Columns.of(session, self.rows, self.by)
        found = session.columns(
            f"SELECT {columns.selected}, {columns.by_texts} FROM {self.rows} "
            f"WHERE {columns.range(after, to)} ORDER BY {columns.by_list} LIMIT {rows + 1}",
            **columns.values(after, to),
        )
        fields, by = found[: -len(self.by)], found[-len(self.by) :]
        texts = [[(value or b"").decode() for value in column.values] for column in by]
        positions = list(zip(*texts, strict=True))
        for first, second in itertools.pairwise(positions):
            if first == second:
                raise StateTypeError(
                    f"{self._user}: two rows have {', '.join(first)} in {_shown_columns(self.by)}. "
                    "Nothing of this epoch is committed: rows with the same value can be left out, "
                    "so add a column that is unique to by=, and start with a new checkpoint"
                )
        batch = pa.record_batch(
            {each.name: arrow_column(each, self._user) for each in fields}
            | columns.offset_columns(texts)
        )
        is_last = len(positions) <= rows
        return _Page(batch[:rows], None if is_last else positions[rows - 1])

    def _position(self, offset: Offset | None) -> Position | None:
        """Return an offset as values of the growing columns.

        Raises:
            RestoreError: it is one of other columns.
        """
        if offset is None:
            return None
        values = offset if isinstance(offset, list) else [offset]
        if len(values) != len(self.by):
            raise RestoreError(
                f"{self._user} was read by {len(values)} columns, up to {shown(offset)}, and now "
                f"by={_shown_columns(self.by)}: give the columns as before, or start with a new "
                "checkpoint"
            )
        return tuple(map(str, values))


@declarable("sources.postgres")
def postgres(
    url: str,
    table_or_query: str,
    *,
    by: str | Sequence[str] = "id",
    static: bool = False,
    wait_for: WaitFor = "transactions",
    settle_s: float = 10.0,
    retry_s: float = 10.0,
) -> PostgresSource:
    """Return a source of the rows of a table or query of PostgreSQL, in any runtime.

    Rows are read in the order of a growing column. A row that is committed after one with a larger
    value is not left out: rows are read when all transactions have ended that were running when
    the largest value was seen. Needs the extra `postgres`.

    Parameters:
        url: the URL or the connection string of libpq. PGPASSWORD and the password file of libpq
            work, too. A password is never shown.
        table_or_query: a name, as in `orders` or `shop.orders`, or a query, as in
            `SELECT id, customer FROM orders WHERE cents > 0`.
        by: the column whose values grow, and differ in all rows, or several: `("updated_at",
            "id")`. Rows in which one of them is null are not read.
        static: whether the source ends: a run reads the rows that are there when it begins, before
            the first record of streams.
        wait_for: which transactions may commit smaller values: `"transactions"`, all of the
            database; `"writers"`, those that have written to the table, for columns whose default
            is taken from a sequence; `"nothing"`, if rows are committed in the order of values.
        settle_s: how long a run waits at its start for transactions that are running, in seconds.
        retry_s: the seconds in which a transaction is tried again if the connection is lost or the
            error may pass.

    Raises:
        StateTypeError: an option is not valid.
        StatekitError: psycopg is not installed.

    >>> postgres("postgresql://ada:secret@db/shop", "shop.orders", by=("updated_at", "id")).by
    ('updated_at', 'id')
    """
    columns = (by,) if isinstance(by, str) else tuple(by)
    if not columns or len(set(columns)) < len(columns) or not all(map(_is_column, columns)):
        raise StateTypeError(
            f"by={shown(by)}: give the name of a growing column, or different names of several"
        )
    if wait_for not in ("transactions", "writers", "nothing"):
        raise StateTypeError(
            f"wait_for={shown(wait_for)}: give 'transactions', 'writers' or 'nothing'"
        )
    if not settle_s >= 0:
        raise StateTypeError(f"settle_s={shown(settle_s)}: give a number from 0 on")
    is_query = _QUERY.match(table_or_query) is not None
    if is_query and wait_for == "writers":
        raise StateTypeError("wait_for='writers' needs the name of a table, and not a query")
    if is_query:
        query = table_or_query.rstrip().rstrip(";").replace("%", "%%")
        table, rows = None, f"({query}\n) AS q"
    else:
        table = quoted_name(*name_parts(table_or_query))
        rows = f"{table} AS q"
    database = Database(url, retry_s)
    return PostgresSource(database, table, rows, columns, static, wait_for, settle_s)


# ---------------------------------------------------------------------------------- statements


class _Page(NamedTuple):
    """Rows of a range.

    Parameters:
        batch: the rows.
        last: where the next page starts; None if there is none.
    """

    batch: pa.RecordBatch
    last: Position | None


@dataclass(frozen=True)
class _Columns:
    """The columns of a table or query, and statements with them.

    Parameters:
        rows: the table or the query, as SQL behind FROM.
        by: the growing columns.
        selected: all columns, as SQL.
        by_types: the types of the growing columns, as SQL.
        by_is_integer: whether the values of each growing column are numbers in offsets.
    """

    rows: str
    by: tuple[str, ...]
    selected: str
    by_types: tuple[str, ...]
    by_is_integer: tuple[bool, ...]

    @classmethod
    def of(cls, session: PostgresSession, rows: str, by: tuple[str, ...]) -> _Columns:
        """Ask the database for the columns.

        Raises:
            StateTypeError: a growing column is missing, or two columns have the same name.
        """
        found = session.columns(f"SELECT q.* FROM {rows} LIMIT 0")
        names = [column.name for column in found]
        numbers = {column.name: column.type_number for column in found}
        if len(numbers) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise StateTypeError(f"the query has two columns {twice!r}: name them with AS")
        if missing := [name for name in by if name not in numbers]:
            raise StateTypeError(
                f"by={_shown_columns(by)}: there is no column {missing[0]!r}, only "
                f"{', '.join(map(repr, names))}"
            )
        types = [
            session.rows("SELECT format_type(%(number)s::oid, NULL)", number=numbers[name])[0][0]
            for name in by
        ]
        selected = (
            f"q.{quoted_name(name)}"
            if is_readable(number)
            else f"q.{quoted_name(name)}::text AS {quoted_name(name)}"
            for name, number in numbers.items()
        )
        return cls(
            rows,
            by,
            ", ".join(selected),
            tuple(type_.replace("%", "%%") for type_ in types),
            tuple(numbers[name] in _INTEGERS for name in by),
        )

    @property
    def by_list(self) -> str:
        return ", ".join(f"q.{quoted_name(name)}" for name in self.by)

    @property
    def by_texts(self) -> str:
        return ", ".join(f"q.{quoted_name(name)}::text" for name in self.by)

    def range(self, after: Position | None, to: Position | None) -> str:
        """Return the condition of the rows after a position and up to another one."""
        parts = [f"q.{quoted_name(name)} IS NOT NULL" for name in self.by]
        for position, sign, prefix in ((after, ">", "a"), (to, "<=", "t")):
            if position is not None:
                values = (
                    f"%({prefix}{number})s::{type_}" for number, type_ in enumerate(self.by_types)
                )
                parts.append(f"({self.by_list}) {sign} ({', '.join(values)})")
        return " AND ".join(parts)

    def values(self, after: Position | None, to: Position | None) -> dict[str, str]:
        """Return the values of the condition."""
        return {
            f"{prefix}{number}": value
            for prefix, position in (("a", after), ("t", to))
            for number, value in enumerate(position or ())
        }

    def last(
        self,
        session: PostgresSession,
        after: Position | None,
        to: Position | None = None,
        limit: int | None = None,
    ) -> Position | None:
        """Return the position of the last row of a range, or of its first `limit` rows."""
        within = f"FROM {self.rows} WHERE {self.range(after, to)}"
        down = ", ".join(f"q.{quoted_name(name)} DESC" for name in self.by)
        if limit is not None:
            within = (
                f"FROM (SELECT {self.by_list} {within} ORDER BY {self.by_list} LIMIT {limit}) q"
            )
        statement = f"SELECT {self.by_texts} {within} ORDER BY {down} LIMIT 1"
        found = session.rows(statement, **self.values(after, to))
        return tuple(found[0]) if found else None

    def count(self, session: PostgresSession, after: Position | None, most: int) -> int:
        """Return the number of rows after a position; `most` if there are more.

        They are counted in order. Otherwise the server may look at all rows for those behind it.
        """
        within = f"FROM {self.rows} WHERE {self.range(after, None)} ORDER BY {self.by_list}"
        statement = f"SELECT count(*) FROM (SELECT {within} LIMIT {most}) q"
        found = session.rows(statement, **self.values(after, None))
        return int(found[0][0])

    def offset(self, position: Position) -> Offset:
        """Return a position as JSON: one value, or a list of them."""
        values = [
            int(value) if is_integer else value
            for value, is_integer in zip(position, self.by_is_integer, strict=True)
        ]
        return values[0] if len(values) == 1 else values

    def offset_columns(self, texts: Sequence[Sequence[str]]) -> dict[str, pa.Array]:
        """Return the columns that say where a row is."""
        names = (
            [OFFSET_PREFIX]
            if len(self.by) == 1
            else [f"{OFFSET_PREFIX}_{name}" for name in self.by]
        )
        return {
            name: pa.array(map(int, column)) if is_integer else pa.array(column, pa.string())
            for name, column, is_integer in zip(names, texts, self.by_is_integer, strict=True)
        }


def _is_column(name: object) -> bool:
    return isinstance(name, str) and is_name(name)


def _shown_columns(by: tuple[str, ...]) -> str:
    return repr(by[0]) if len(by) == 1 else repr(by)
