"""Running a query in a process that is ended in time."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa

from statekit.clock import stopwatch_s
from statekit.errors import QueryError, class_of_kind
from statekit.sql.request import FAILED, Failure, Request

_POLL_S = 0.2

_END_BY_ITSELF_S = 5.0
"""How long after its time a process ends by itself, if nobody has ended it."""

ROWS_MAX = 100_000
"""The largest result."""


class SqlResult(NamedTuple):
    """The result of a query.

    Parameters:
        table: its rows.
        epoch: the epoch that all states are of.
        is_cut: whether there are more rows.
    """

    table: pa.Table
    epoch: int
    is_cut: bool


def run_sql(
    checkpoint: str,
    sql: str,
    epoch: int | None = None,
    *,
    rows: int = 10_000,
    timeout_s: float = 30.0,
    memory: str = "1GB",
    states: list[tuple[str, str]] | None = None,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> SqlResult:
    """Run a query over the states of an epoch.

    A state is the table `operator.state`, with the columns of `statekit.read`. The table `states`
    lists them.

    Parameters:
        checkpoint: a directory or an object store URL.
        sql: one statement that reads.
        epoch: which epoch; None for the last one.
        rows: how many rows at most.
        timeout_s: the longest time, in seconds.
        memory: how much memory DuckDB may take.
        states: the states that may be read, as operator and state; None for all.
        is_unwanted: asked while the query runs; it is ended once nobody wants the result.

    Raises:
        QueryError: it is no query, it fails, or it takes too long or too much memory.
        StatekitError: the checkpoint cannot be read.
    """
    if importlib.util.find_spec("duckdb") is None:
        raise QueryError("SQL needs DuckDB: pip install 'statekit[sql]'")
    if not 1 <= rows <= ROWS_MAX:
        raise QueryError(f"rows={rows}: give a number from 1 to {ROWS_MAX:,}")
    with tempfile.TemporaryDirectory(prefix="statekit-sql-") as directory:
        request = Request(
            checkpoint=checkpoint,
            epoch=epoch,
            sql=sql,
            rows=rows,
            memory=memory,
            directory=directory,
            seconds=timeout_s + _END_BY_ITSELF_S,
            parent=os.getpid(),
            states=states,
        )
        encoded = msgspec.msgpack.encode(request)
        code, output, errors = _ran(encoded, timeout_s, is_unwanted)
    if code == FAILED:
        failure = msgspec.json.decode(output, type=Failure)
        raise (class_of_kind(failure.kind) or QueryError)(failure.detail)
    if code != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise QueryError(
            f"the process of the query ended with {code} ({last[:300]}): it may have taken too "
            "much memory. Read fewer columns or rows"
        )
    table = pa.ipc.open_stream(output).read_all()
    found = int((table.schema.metadata or {})[b"epoch"])
    return SqlResult(table.slice(0, rows), found, table.num_rows > rows)


def _ran(
    request: bytes, timeout_s: float, is_unwanted: Callable[[], bool]
) -> tuple[int, bytes, bytes]:
    """Run the process, and return its exit code, output and errors."""
    until_s = stopwatch_s() + timeout_s
    with subprocess.Popen(
        [sys.executable, "-m", "statekit.sql.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        given: bytes | None = request
        try:
            while True:
                try:
                    output, errors = process.communicate(given, _POLL_S)
                except subprocess.TimeoutExpired:
                    given = None
                else:
                    return process.returncode, output, errors
                _check_is_wanted(until_s, timeout_s, is_unwanted)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _check_is_wanted(until_s: float, timeout_s: float, is_unwanted: Callable[[], bool]) -> None:
    if stopwatch_s() > until_s:
        raise QueryError(
            f"the query took more than {timeout_s:g} s: read fewer rows, or give it more time"
        )
    if is_unwanted():
        raise QueryError("the query was ended: nobody waits for its result")
