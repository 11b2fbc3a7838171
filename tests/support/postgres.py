"""A PostgreSQL server of Debian's package on loopback, with a cluster of its own.

PostgreSQL refuses to run as root, so the server runs as another user if the tests run as root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg.rows import dict_row

from statekit.clock import unique_id
from tests.support.ports import free_port
from tests.support.timeouts import PATIENCE_S

__all__ = ["PASSWORD", "USER", "PostgresSchema", "PostgresServer"]

USER = "statekit"
PASSWORD = "sentinel/of+the@secret"
"""No message may have it. It has characters that a URL has to escape."""

_INSTALLED = Path("/usr/lib/postgresql")
_FOR_TESTS = {"fsync": "off", "full_page_writes": "off", "max_connections": "60"}
"""Killed processes lose nothing without fsync, since the operating system goes on."""


class PostgresServer:
    """A server with password authentication, from `with` to its end.

    Parameters:
        options: of the server, beside those for tests; None for the server's own defaults only.

    Attributes:
        port: the port on loopback, the same after a restart.

    Raises:
        RuntimeError: PostgreSQL is not installed, or does not start.
    """

    def __init__(self, options: dict[str, str] | None = _FOR_TESTS) -> None:
        self._programs = _programs()
        self._options = options or {}
        self._home = Path(tempfile.mkdtemp(prefix="statekit-postgres-"))
        self._data = self._home / "data"
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def __enter__(self) -> Self:
        if "user" in self._user:
            os.chown(self._home, self._user["user"], self._user["group"])
        password = self._home / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        words = ["--username", USER, "--pwfile", password, "--auth", "scram-sha-256"]
        self._run("initdb", "-D", self._data, *words, "-E", "UTF8", "--locale", "C", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        until = time.monotonic() + PATIENCE_S
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": self._home}
        words = [
            w for name, of in {**options, **self._options}.items() for w in ("-c", f"{name}={of}")
        ]
        command = [self._programs / "postgres", "-D", self._data, "-p", str(self.port), *words]
        log = self._home / "log"
        self._process = None
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                if self._process is not None and not self._is_still_ending(log.read_text()):
                    break
                with log.open("ab") as to:
                    self._process = subprocess.Popen(
                        list(map(str, command)), stdout=to, stderr=to, cwd="/", **self._user
                    )
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-4000:]}")

    @staticmethod
    def _is_still_ending(log: str) -> bool:
        """Return whether processes of the server that was killed have its memory or its lock."""
        last = " ".join(log.splitlines()[-6:])
        return "shared memory" in last or "lock file" in last

    def kill(self) -> None:
        """End all processes of the server with SIGKILL."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            all_of_it = [server, *server.children(recursive=True)]
            for process in all_of_it:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(PATIENCE_S)

    @property
    def owner(self) -> tuple[int, int]:
        """The user and the group of the server's processes."""
        return self._user.get("user", os.geteuid()), self._user.get("group", os.getegid())

    @property
    def pid(self) -> int:
        """The number of the server's first process, which starts all others."""
        assert self._process is not None
        return self._process.pid

    def url(self, *, schema: str | None = None, password: str = PASSWORD, user: str = USER) -> str:
        """Return the URL of the database `postgres`.

        Parameters:
            schema: the one in which tables are that are named without a schema.
        """
        query = "" if schema is None else f"?options={quote(f'-csearch_path={schema}', safe='')}"
        return (
            f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/postgres{query}"
        )

    def rows(self, statement: str, schema: str | None = None) -> list[Any]:
        """Run a statement, and return its rows."""
        with psycopg.connect(self.url(schema=schema), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def new_schema(self) -> PostgresSchema:
        """Make an empty schema."""
        schema = PostgresSchema(self, f"s_{unique_id()}")
        self.rows(f"CREATE SCHEMA {schema.name}")
        return schema

    def _run(self, program: str, *words: object) -> None:
        command: Sequence[str] = [str(self._programs / program), *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd="/", check=False, **self._user
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}")


@dataclass(frozen=True)
class PostgresSchema:
    """A schema of a server, in which names of tables without a schema are."""

    server: PostgresServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url(schema=self.name)

    def rows(self, statement: str) -> list[Any]:
        """Run a statement, and return its rows."""
        return self.server.rows(statement, self.name)

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return all rows of a table, by the names of the columns."""
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {name}".encode()).fetchall()

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        statement = f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.name}'"
        return sorted(name for (name,) in self.rows(statement))


def _programs() -> Path:
    """Return the directory of the newest server that is installed."""
    found = sorted(_INSTALLED.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    if on_path is None:
        raise RuntimeError("these tests need PostgreSQL: apt-get install postgresql")
    return Path(on_path).resolve().parent


def _user() -> dict[str, Any]:
    """Return the user of the server's processes, as options of `subprocess`."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
