"""SQL worker: runs one query in a child process.

Its answer is the result as an Arrow stream. Each state in the query is first written to a Parquet
file, so that DuckDB reads only the columns that it needs. DuckDB is locked: it reads no other file
and no address, loads no extension and changes no option.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from statekit.codec.schema import Schema
from statekit.errors import QueryError, StateTypeError
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.child_process import ChildWork
from statekit.query.tables.export import export
from statekit.query.tables.read import StateTable, WideInts
from statekit.sql.json_columns import (
    Names,
    arrays_in,
    checked_durations,
    marked_result,
    sql_name,
    with_json,
)
from statekit.sql.pushdown import key_of
from statekit.sql.request import Request
from statekit.sql.statements import check_plan, checked, parsed

_PUSHED_DOWN = frozenset({"str", "int", "bool", "date"})
"""Kinds of keys that DuckDB and statekit read from a literal in the same way."""

_SPILLED, _NOWHERE = "spilled", "none"
"""Directories below that of the query, which is the current directory of its process, so that no
error contains a path of this machine. The second one does not exist.
"""

_BYTES_MAX = 64 * 1024 * 1024
"""Limit of the size of a result."""


def result_of_query(request: Request, directory: Path) -> pa.Table:
    """Return the result of a query.

    Parameters:
        directory: for files of the query.

    Raises:
        QueryError: the query is not valid, fails, or reads a state that does not exist.
    """
    reader = CheckpointReader(request.checkpoint, epoch=request.epoch)
    try:
        with duckdb.connect(":memory:") as database:
            # Before DuckDB parses the query and before its states are added.
            _lock(database, request.memory_bytes)
            selects = checked(database, request.sql)
            arrays = _add_states(database, reader, request, selects, directory)
            table = _result(database, selects, request, arrays)
    except duckdb.OutOfMemoryException as error:
        raise QueryError(
            f"the query took more memory than it may ({request.memory_bytes / 2**20:,.0f} MB for "
            "DuckDB): read fewer columns or rows, or aggregate in steps"
        ) from error
    except duckdb.Error as error:
        told = str(error).replace(str(directory), "…")
        raise QueryError(f"{told}. {_advice(reader, request)}") from error
    return table.replace_schema_metadata({"epoch": str(reader.manifest.epoch)})


def _result(
    database: duckdb.DuckDBPyConnection, selects: str, request: Request, arrays: Names
) -> pa.Table:
    """Return the first rows of the result, and one more row if there are more.

    Parameters:
        arrays: the structs of states that JSON shows as arrays.
    """
    relation = database.sql(selects)  # binds names, and reads nothing
    check_plan(database, selects)
    if selects is not request.sql:
        relation = database.sql(request.sql)  # explains it
    found = _first(relation.to_arrow_reader(), request.rows + 1)
    return marked_result(found, relation.types, arrays)


def _first(batches: pa.RecordBatchReader, rows: int) -> pa.Table:
    found: list[pa.RecordBatch] = []
    left, size = rows, 0
    for batch in batches:
        found.append(batch.slice(0, left))
        size += found[-1].nbytes
        if size > _BYTES_MAX:
            raise QueryError(
                f"the result has more than {_BYTES_MAX // 2**20} MB: read fewer columns or rows"
            )
        left -= found[-1].num_rows
        if left <= 0:
            break
    return pa.Table.from_batches(found, schema=batches.schema)


def _add_states(
    database: duckdb.DuckDBPyConnection,
    reader: CheckpointReader,
    request: Request,
    selects: str,
    directory: Path,
) -> Names:
    """Add a table for each state in the query, and the table `states`, which lists all states.

    Parameters:
        selects: the query without EXPLAIN.

    Returns:
        The structs of these states that JSON shows as arrays.
    """
    database.register("states", _listed(reader, request))
    numbers, arrays = itertools.count(), Names()
    named = {place: _mentions(request.sql, *place) for place in _readable(reader, request)}
    is_about_one = sum(named.values()) == 1
    for operator, state in (place for place, times in named.items() if times):
        table = StateTable(reader, operator, state)
        key = _key_in(database, selects, reader, operator, state) if is_about_one else None
        path = directory / f"{next(numbers)}.parquet"
        rows = _rows(table, key, request.wide_ints)
        shown = pa.RecordBatchReader.from_batches(rows.schema, checked_durations(rows))
        export(shown, path, "parquet")
        arrays |= arrays_in(rows.schema)
        database.execute(f"create schema if not exists {sql_name(operator)}")
        name = f"rows of {operator}.{state}"
        database.register(name, ds.dataset(path, format="parquet"))
        columns = with_json(rows.schema, database.table(sql_name(name)))
        view = f"{sql_name(operator)}.{sql_name(state)}"
        database.execute(f"create view {view} as {columns.sql_query()}")
    return arrays


def _rows(table: StateTable, key: Any, wide_ints: WideInts) -> pa.RecordBatchReader:
    """Return the rows of a key; all rows if the key is None or not a key of the operator."""
    try:
        return table.reader(key=key, wide_ints=wide_ints)
    except StateTypeError:
        return table.reader(wide_ints=wide_ints)


def _mentions(sql: str, operator: str, state: str) -> int:
    """Return the number of times that a query contains the name of a state, also within texts.

    >>> _mentions('select * from Bank."total" b, bank.totals', "bank", "total")
    1
    """
    names = (rf'"?{re.escape(name)}"?' for name in (operator, state))
    return len(re.findall(r"(?<!\w)" + r"\s*\.\s*".join(names) + r"(?!\w)", sql, re.IGNORECASE))


def _key_in(
    database: duckdb.DuckDBPyConnection,
    selects: str,
    reader: CheckpointReader,
    operator: str,
    state: str,
) -> Any:
    """Return the single key that a query of one state reads; None if it may read several keys."""
    if reader.state(operator, state).is_local:
        return None
    fields = reader.operator(operator).key
    if not _PUSHED_DOWN.issuperset(_kind(Schema.from_json(field.type)) for field in fields):
        return None
    names = [field.name for field in fields]
    parts = key_of(parsed(database, selects), (operator, state), names)
    if parts is None:
        return None
    return parts[0] if len(parts) == 1 else parts


def _kind(schema: Schema) -> str:
    """Return the kind of a type; for an optional type, the kind of its inner type."""
    return schema.items[0].kind if schema.kind == "optional" else schema.kind


def _lock(database: duckdb.DuckDBPyConnection, memory_bytes: int) -> None:
    """Configure DuckDB so that queries cannot read files, load extensions or change options."""
    options = {
        "memory_limit": f"{memory_bytes}B",
        "threads": "1",
        "TimeZone": "UTC",
        "temp_directory": _SPILLED,
        "home_directory": _NOWHERE,  # queries can ask for these
        "secret_directory": _NOWHERE,
        "extension_directory": _NOWHERE,
        "allow_persistent_secrets": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    for name, value in options.items():
        database.execute(f"set {name} = '{value}'")


def _readable(reader: CheckpointReader, request: Request) -> list[tuple[str, str]]:
    every = [(own.name, state.name) for own in reader.job.operators for state in own.states]
    allowed = request.states
    return every if allowed is None else [place for place in every if place in allowed]


def _listed(reader: CheckpointReader, request: Request) -> pa.Table:
    """Return the table `states`: all states that the query may read, with their sizes."""
    rows = []
    for operator, state in _readable(reader, request):
        sizes = reader.manifest.operators.get(operator)
        rows.append(
            {
                "operator": operator,
                "state": state,
                "kind": reader.state(operator, state).kind,
                "rows": 0 if sizes is None else sizes.rows.get(state, 0),
                "bytes": 0 if sizes is None else sizes.bytes.get(state, 0),
            }
        )
    columns = {"operator": pa.string(), "state": pa.string(), "kind": pa.string()}
    schema = pa.schema({**columns, "rows": pa.int64(), "bytes": pa.int64()})
    return pa.Table.from_pylist(rows, schema=schema)


def _advice(reader: CheckpointReader, request: Request) -> str:
    names = [f"{operator}.{state}" for operator, state in _readable(reader, request)]
    return f"Tables are states: {', '.join(names) or 'none'}; states lists them"


def _answer(request: Request, directory: Path) -> bytes:
    """Run the query in its directory, and return the result as an Arrow stream."""
    os.chdir(directory)
    table = result_of_query(request, directory)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


CHILD_WORK = ChildWork(Request, _answer)
