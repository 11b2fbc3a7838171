"""Query run: runs a query in a process, within a time limit."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from statekit.byte_size import size_bytes
from statekit.checkpoint.epoch_id import EpochId
from statekit.errors import QueryError
from statekit.number_faults import int_fault
from statekit.query.tables.child_process import ForkServer, run_child
from statekit.query.tables.read import WideInts
from statekit.shown import shown
from statekit.sql.request import Request

_WORKER = "statekit.sql.worker"
"""The module that runs a query in a process of its own. Only that process needs DuckDB."""

ROWS_MAX = 100_000
"""Limit of the rows of a result."""

MEMORY_MIN = 500 * 2**20
"""Smallest memory limit of the process of a query. Python and libraries take most of it."""

_OTHERS = 375 * 2**20
"""Memory that Python, and the code and the stacks of libraries take."""

_COUNTED = 0.85
"""Fraction of the rest that is the limit of DuckDB, since it allocates more than it counts."""

SQL_LENGTH_MAX = 500_000
"""Limit of the characters of a query: DuckDB takes seconds to parse a longer one."""


class SqlResult(NamedTuple):
    """The result of a query.

    Parameters:
        table: its rows.
        epoch: the epoch of all states.
        is_cut: True if there are more rows.
    """

    table: pa.Table
    epoch: int
    is_cut: bool


def memory_of_duckdb(memory_bytes: int) -> int:
    """Return the memory limit of DuckDB in a process with a memory limit, both in bytes.

    >>> memory_of_duckdb(2**30) // 2**20
    551
    """
    return int((memory_bytes - _OTHERS) * _COUNTED)


def run_sql(
    checkpoint: str,
    sql: str,
    epoch: int | EpochId | None = None,
    *,
    rows: int = 10_000,
    timeout_s: float = 30.0,
    memory: str = "1GB",
    states: list[tuple[str, str]] | None = None,
    wide_ints: WideInts = False,
    is_unwanted: Callable[[], bool] = lambda: False,
    directory: Path | None = None,
    forks: ForkServer | None = None,
) -> SqlResult:
    """Run a query over the states of an epoch.

    A state is the table `operator.state`, with the columns of `statekit.read`. The table `states`
    lists them.

    Parameters:
        checkpoint: a directory or an object store URL.
        sql: one statement that reads.
        epoch: number or identity of the epoch; None for the last one.
        rows: limit of the rows of the result.
        timeout_s: the longest time, in seconds.
        memory: memory limit of the process of the query, as "1GB"; "500MB" or more.
        states: the states that may be read, as operator and state; None for all.
        wide_ints: as for `statekit.read`, for states with ints of 2^63 or more.
        is_unwanted: asked while the query runs; it is ended once nobody wants the result.
        directory: for the files of the query; None for `TMPDIR`.
        forks: forks the process; None to start one for this call alone.

    Raises:
        QueryError: the query is not valid, fails, or takes too long or too much memory.
        StatekitError: the checkpoint cannot be read.
    """
    if importlib.util.find_spec("duckdb") is None:
        raise QueryError("SQL needs DuckDB: pip install 'statekit[sql]'")
    if len(sql) > SQL_LENGTH_MAX:
        raise QueryError(f"the query has {len(sql):,} characters: give {SQL_LENGTH_MAX:,} at most")
    if fault := int_fault(rows, f"give a number from 1 to {ROWS_MAX:,}", least=1, most=ROWS_MAX):
        raise QueryError(f"rows={shown(rows)}{fault}")
    memory_bytes = size_bytes(memory, "memory")
    if memory_bytes < MEMORY_MIN:
        raise QueryError(
            f"memory={memory}: the process of a query needs {MEMORY_MIN // 2**20}MB or more"
        )
    place = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
    output = run_child(
        _WORKER,
        Request(place, epoch, sql, rows, memory_of_duckdb(memory_bytes), states, wide_ints),
        "query",
        timeout_s=timeout_s,
        is_unwanted=is_unwanted,
        below=directory,
        memory_bytes=memory_bytes,
        forks=forks,
    )
    table = pa.ipc.open_stream(output).read_all()
    found = int((table.schema.metadata or {})[b"epoch"])
    return SqlResult(table.slice(0, rows), found, table.num_rows > rows)
