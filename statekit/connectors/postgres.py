"""PostgreSQL by psycopg: connections, transactions that are tried again, and typed errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from statekit.connectors.growing_pauses import GrowingPauses
from statekit.errors import ConnectorError, ProcessError, StatekitError, StateTypeError
from statekit.optional_packages import imported
from statekit.shown import shown

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "30000", "application_name": "statekit"}
"""Parameters of connections, unless the URL has others. A server that is gone is noticed within
half a minute.
"""

_IN_TRANSACTION = (
    "SELECT set_config('lock_timeout', '30s', true), "
    "set_config('idle_in_transaction_session_timeout', '60s', true)"
)
"""Bounds for each transaction, so that a process that is suspended does not keep its locks."""

_PASSING = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53300": "too many connections",
    "55P03": "lock not available",
    "57P01": "admin shutdown",
    "57P02": "crash shutdown",
    "57P03": "cannot connect now",
}
"""States of errors after which another try can help, beside lost connections."""

_NO_TEXT = "22021"
"""The code of the error for text that the encoding of the database does not have."""

_REFUSED = re.compile(
    "password|authentication|pg_hba|does not exist|permission denied|certificate|not supported"
)
"""Of errors of connecting, which have no state: those after which no other try helps."""

_ADVICE = {
    "28P01": "correct the user or the password in the URL, or in PGPASSWORD",
    "3D000": "create the database, or correct its name in the URL",
    "3F000": "create the schema, or correct its name",
    "42501": "grant the user of the URL the permission, or use another user",
    "42703": "correct the name of the column, or add it",
    "42P01": "create the table, or correct its name; a sink creates its own at its start",
    "53100": "make space on the disk of the server",
    "55P03": "end the session that has the lock (see pg_stat_activity and pg_locks)",
}


_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, repr=False)
class Database:
    """A database, by the URL or the connection string of libpq. Its repr has no password.

    Connections are opened when they are needed, and kept until `close`. They belong to one process,
    and a pickled copy has none.

    Parameters:
        url: such as `postgresql://user:password@host:5432/database`.
        retry_s: the seconds in which a transaction is tried again after an error that may pass.

    Raises:
        StateTypeError: the URL is not valid.
        StatekitError: psycopg is not installed.

    >>> Database("postgresql://ada:secret@db.example:5432/shop")
    Database('postgresql://ada@db.example:5432/shop')
    """

    url: str
    retry_s: float = 10.0
    _idle: dict[int, list[psycopg.Connection]] = field(
        default_factory=dict, init=False, compare=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise StateTypeError(
                f"url={shown(self.url)}: give a text such as postgresql://user@host:5432/database"
            )
        _ = self._parameters()

    def __repr__(self) -> str:
        return f"Database({self.place!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": {}}

    @property
    def place(self) -> str:
        """The URL with user, host, port and database only, for messages."""
        parts = self._parameters()
        user = f"{parts['user']}@" if "user" in parts else ""
        host = parts.get("host", parts.get("hostaddr", os.environ.get("PGHOST", "localhost")))
        port = parts.get("port", os.environ.get("PGPORT", "5432"))
        return f"postgresql://{user}{host}:{port}/{parts.get('dbname', '')}"

    @property
    def location(self) -> tuple[str, str, str]:
        """Host, port and database, equal for the spellings of one database.

        >>> one = Database("postgresql://ada:secret@DB.example/shop")
        >>> one.location == Database("host=db.example dbname=shop port=5432").location
        True
        """
        parts = self._parameters()
        host = parts.get("host", parts.get("hostaddr", os.environ.get("PGHOST", ""))).lower()
        user = parts.get("user", os.environ.get("PGUSER", ""))
        return (
            "localhost" if host in _LOCAL_HOSTS else host,
            parts.get("port", os.environ.get("PGPORT", "5432")),
            parts.get("dbname", os.environ.get("PGDATABASE", user)),
        )

    def _parameters(self) -> dict[str, str]:
        """Return the parameters of connections."""
        return {**_DEFAULTS, **connection_parameters(self.url), "client_encoding": "UTF8"}

    def transaction(
        self,
        user: str,
        work: Callable[[PostgresSession], T],
        *,
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """Call a function within a transaction, and return its result.

        If the connection is lost, or the error may pass, it is called again in a new transaction.
        The first one may be committed then, if the answer of the server was lost.

        Parameters:
            user: what uses the database, for messages, such as `sink 'totals'`.
            work: uses the session.
            may_repeat: whether `work` can be called again.

        Raises:
            ConnectorError: the database cannot be reached, or refuses.
            ProcessError: a value does not fit its column.
        """
        psycopg = _psycopg()
        pauses: GrowingPauses | None = None
        while True:
            was_idle = bool(self._own_idle())
            try:
                return self._attempt(work)
            except psycopg.Error as error:
                pauses = pauses or GrowingPauses()  # from the first failure on
                # A connection that was idle may be one to a server that was started again since.
                helps = pauses.elapsed_s + pauses.next_s <= self.retry_s or was_idle
                if not (_may_pass(error) and helps and may_repeat()):
                    raise self._typed(user, error) from error
                if was_idle:
                    self.close()
                failed = f"{user}: PostgreSQL at {self.place} failed: {_one_line(error)}"
            pauses.sleep(failed)

    def rolled_back(self, user: str, work: Callable[[PostgresSession], T]) -> T:
        """Call a function within a transaction that is rolled back, and return its result.

        Parameters:
            user, work: as for `transaction`.

        Raises:
            ConnectorError, ProcessError: as for `transaction`.
        """

        def undone(session: PostgresSession) -> None:
            raise _RolledBackError(work(session))

        try:
            self.transaction(user, undone)
        except _RolledBackError as ended:
            return ended.result  # type: ignore[no-any-return]
        raise AssertionError("the function always raises")

    def within(self, limit_s: float) -> Database:
        """Return the same database with a time limit for connections and statements, in seconds."""
        seconds = str(max(1, int(limit_s)))
        parameters = {**self._parameters(), "connect_timeout": seconds}
        options = f"{parameters.get('options', '')} -c statement_timeout={seconds}s"
        parameters["options"] = options.strip()
        return Database(_psycopg("conninfo").make_conninfo(**parameters), 0.0)

    def close(self) -> None:
        """Close the connections of this process that are not in use."""
        while connections := self._own_idle():
            connections.pop().close()

    def _own_idle(self) -> list[psycopg.Connection]:
        return self._idle.setdefault(os.getpid(), [])

    def _attempt(self, work: Callable[[PostgresSession], T]) -> T:
        with contextlib.suppress(IndexError):
            return self._used(self._own_idle().pop(), work)
        connect = _psycopg().connect
        return self._used(
            connect(autocommit=True, prepare_threshold=None, **self._parameters()), work
        )

    def _used(self, connection: psycopg.Connection, work: Callable[[PostgresSession], T]) -> T:
        with contextlib.ExitStack() as if_failed:
            if_failed.callback(connection.close)
            with connection.transaction():
                session = PostgresSession(connection)
                session.run(_IN_TRANSACTION)
                result = work(session)
            if_failed.pop_all()
        self._own_idle().append(connection)
        return result

    def _typed(self, user: str, error: psycopg.Error) -> StatekitError:
        """Return the error of statekit for one of psycopg."""
        state = error.sqlstate or ""
        text = _one_line(error)
        where = f"{user}: PostgreSQL at {self.place}"
        if state[:2] in ("22", "23"):
            advice = "correct the record or the table"
            if state == _NO_TEXT:
                advice = (
                    "text of PostgreSQL has no zero byte, so remove zero bytes in the job, or "
                    "write to another kind of target"
                )
            return ProcessError(
                f"{where} refuses a value: {text}. Nothing of this epoch is committed: {advice}, "
                "then start again"
            )
        if state:
            advice = _ADVICE.get(state, "correct that")
            what = f"{where} failed with {type(error).__name__}: {text}"
        elif "password" in text or "authentication" in text:
            advice, what = _ADVICE["28P01"], f"{where} refused the connection: {text}"
        elif _REFUSED.search(text):
            advice, what = "correct the URL, or the server", f"{where} refused: {text}"
        else:
            advice = "make the server reachable"
            what = f"{where} cannot be reached, or the connection was lost: {text}"
        return ConnectorError(f"{what}. Nothing committed is lost: {advice}, then start again")


class _RolledBackError(Exception):
    """Ends a transaction without a commit, and has the result of its work."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


def _may_pass(error: psycopg.Error) -> bool:
    state = error.sqlstate
    if state is not None:
        return state in _PASSING or state.startswith("08")
    psycopg = _psycopg()
    is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_lost and _REFUSED.search(str(error)) is None


def connection_parameters(url: str) -> dict[str, str]:
    """Return the parameters in a URL or connection string of libpq.

    Raises:
        StateTypeError: the URL is not valid. The message has no part of it, since a password with a
            character that has to be escaped can be in any part.
        StatekitError: psycopg is not installed.

    >>> connection_parameters("postgresql://db.example/shop?sslmode=require")
    {'dbname': 'shop', 'host': 'db.example', 'sslmode': 'require'}
    """
    conninfo = _psycopg("conninfo")
    with contextlib.suppress(_psycopg().Error):
        parsed = conninfo.conninfo_to_dict(url)
        parts = {name: str(value) for name, value in parsed.items() if value is not None}
        names = (parts.get(name, "") for name in ("host", "hostaddr", "dbname"))
        has_port = re.fullmatch(r"[\d,]*", parts.get("port", "")) is not None
        if has_port and not any("@" in name for name in names):
            return parts
    # Outside of the block, so that the error of libpq, which shows a part, is not its context.
    raise StateTypeError(
        "the URL of PostgreSQL is not valid, and not shown, because of its password: write it as "
        "postgresql://user:password@host:5432/database, with @ as %40 and / as %2F in the password"
    )


def _psycopg(submodule: str = "") -> Any:
    """Return the package psycopg, or a module of it.

    Raises:
        StatekitError: it is not installed.
    """
    module = f"psycopg.{submodule}" if submodule else "psycopg"
    return imported(module, "PostgreSQL", "psycopg", "postgres")


# ----------------------------------------------------------------------------------- sessions


_NO_VALUES = {"unused": None}
"""With any value, psycopg reads two percent signs as one."""


class ResultColumn(NamedTuple):
    """A column of the result of a query.

    Parameters:
        name: its name.
        type_number: the number of its type in `pg_type`.
        modifier: the number behind the modifiers of its type, such as digits; -1 if it has none.
        values: in the binary format; None for null.
    """

    name: str
    type_number: int
    modifier: int
    values: list[bytes | None]


@dataclass(frozen=True)
class PostgresSession:
    """A connection within a transaction.

    Parameters:
        connection: of psycopg.
    """

    connection: psycopg.Connection

    def run(self, statement: str, **values: Any) -> int:
        """Run a statement, and return the number of rows that it changed.

        Parameters:
            statement: SQL with names as `quoted_name` returns them, and `%(name)s` for values.
            values: of the statement.
        """
        return self.connection.execute(statement.encode(), values or _NO_VALUES).rowcount

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a query, and return its rows."""
        return self.connection.execute(statement.encode(), values or _NO_VALUES).fetchall()

    def columns(self, statement: str, **values: Any) -> list[ResultColumn]:
        """Run a query, and return its columns with values in the binary format."""
        query, given = statement.encode(), values or _NO_VALUES
        with self.connection.execute(query, given, binary=True) as cursor:
            result = cursor.pgresult
            assert result is not None, "the query has run"
            rows = range(result.ntuples)
            return [
                ResultColumn(
                    (result.fname(at) or b"").decode(),
                    result.ftype(at),
                    result.fmod(at),
                    [result.get_value(row, at) for row in rows],
                )
                for at in range(result.nfields)
            ]

    def copy(self, statement: str, data: Iterable[bytes | memoryview]) -> int:
        """Send data to `COPY … FROM STDIN`, and return the number of rows that arrived."""
        with self.connection.cursor() as cursor:
            with cursor.copy(statement.encode(), _NO_VALUES) as copying:
                for each in data:
                    copying.write(each)
            return cursor.rowcount


def quoted_name(*parts: str) -> str:
    """Return a name as SQL for `PostgresSession`, where a percent sign is written twice.

    >>> quoted_name("shop", 'the "best" of 5%')
    '"shop"."the ""best"" of 5%%"'
    """
    return ".".join('"' + part.replace('"', '""').replace("%", "%%") + '"' for part in parts)


def name_parts(table: str) -> tuple[str, ...]:
    """Return the schema, if any, and the name of a table. A name with a dot is quoted as in SQL.

    Raises:
        StateTypeError: it is no name of a table.

    >>> name_parts("shop.orders"), name_parts('"v1.0"')
    (('shop', 'orders'), ('v1.0',))
    """
    part = r'"((?:[^"]|"")+)"|([^".]+)'
    match = re.fullmatch(rf"(?:(?:{part})\.)?(?:{part})", table) if _is_text(table) else None
    parts = [] if match is None else [of for of in match.groups() if of]
    names = tuple(name.replace('""', '"') for name in parts)
    if not names or not all(map(is_name, names)):
        raise StateTypeError(
            f"table={shown(table)} is no name of a table: give 'orders' or 'schema.orders', each "
            "part with at most 63 bytes, and in double quotes if it has a dot"
        )
    return names


def _is_text(table: object) -> bool:
    return isinstance(table, str)


def is_name(name: str) -> bool:
    """Return whether PostgreSQL keeps a name whole: it cuts longer ones without an error."""
    try:
        return 0 < len(name.encode()) <= 63 and "\0" not in name
    except UnicodeEncodeError:
        return False


def is_absent(session: PostgresSession, table: str) -> bool:
    """Return whether there is no such table, by its quoted name."""
    statement = "SELECT to_regclass(%(name)s) IS NULL"
    return bool(session.rows(statement, name=table.replace("%%", "%"))[0][0])


def locked_alone(session: PostgresSession, name: str) -> None:
    """Wait until no other transaction has this name locked, and lock it until the commit."""
    session.run("SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))", name=name)
