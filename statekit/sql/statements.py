"""Statements: checks that a query reads only states, and nothing of the process that runs it.

DuckDB has tables and functions that show its configuration, its files and its memory. A query is
checked twice: its text, before DuckDB resolves names, and its plan, which has the resolved tables.
Only the table functions that are listed here are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import duckdb

from statekit.errors import QueryError

_TABLE_FUNCTIONS = frozenset(
    {
        "generate_series",
        "histogram",
        "histogram_values",
        "icu_calendar_names",
        "json_each",
        "json_tree",
        "pg_timezone_names",
        "query_table",
        "range",
        "repeat",
        "repeat_row",
        "summary",
        "test_all_types",
        "test_vector_types",
        "unnest",
    }
)
"""Table functions that read only their arguments. The plan has the table of `query_table`."""

_SCANS = frozenset({"python_arrow_scan", *_TABLE_FUNCTIONS})
"""Scans that a plan may have. The first one reads states."""

_CONFIGURATION = frozenset({"current_setting", "@@", "getvariable", "write_log"})
"""Functions that read or change the process."""

_SHOWN = frozenset({"DESCRIBE", "SUMMARY"})

_READS = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})

_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*explain(?![\w$])(?:\s+analyze(?![\w$]))?", re.I | re.S
)
_OPTIONS = re.compile(r"\s*\([\w\s,']*\)")
"""The options of EXPLAIN, as in `explain (format json) select 1`."""


def checked(database: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Check the text of a query before it is bound, and return the query without EXPLAIN and its
    options.

    Raises:
        QueryError: it is not one statement that reads, or it calls a forbidden function.
        duckdb.Error: it cannot be parsed.
    """
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type not in _READS:
        raise _no_query()
    selects = sql
    if statements[0].type == duckdb.StatementType.EXPLAIN:
        selects = _explained(database, sql)
    for part in parts(parsed(database, selects)):
        _check(part)
    return selects


def check_plan(database: duckdb.DuckDBPyConnection, selects: str) -> None:
    """Check the tables that a query reads by its plan, since it may compute names of tables.

    Parameters:
        selects: as `checked` returns it.

    Raises:
        QueryError: it reads something other than states.
    """
    ((_, plan),) = database.execute(f"explain (format json) {selects}").fetchall()
    for part in parts(json.loads(plan)):
        facts = part.get("extra_info")
        scan = facts.get("Function") if isinstance(facts, dict) else None
        if scan is not None and str(scan).casefold() not in _SCANS:
            raise _forbidden(str(scan).casefold())


def _explained(database: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the query in an EXPLAIN statement."""
    begins = _EXPLAIN.match(sql)
    rest = "" if begins is None else sql[begins.end() :]
    options = _OPTIONS.match(rest)
    for selects in ([] if options is None else [rest[options.end() :]]) + [rest]:
        try:
            found = database.extract_statements(selects)
        except duckdb.Error:
            continue
        if len(found) == 1 and found[0].type == duckdb.StatementType.SELECT:
            return selects
    raise _no_query()


def parsed(database: duckdb.DuckDBPyConnection, selects: str) -> Any:
    """Return the syntax tree of a query.

    Raises:
        QueryError: DuckDB cannot show it.
    """
    ((text,),) = database.execute("select json_serialize_sql(?)", [selects]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError as error:
        raise QueryError("the query is nested too deeply: divide it") from error
    if tree["error"]:
        raise QueryError(f"the query cannot be checked: {tree.get('error_message')}")
    return tree["statements"]


def parts(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a syntax tree."""
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def _check(part: dict[str, Any]) -> None:
    """Check one part of a syntax tree.

    Raises:
        QueryError: it calls a forbidden function.
    """
    kind = str(part.get("type"))
    name = str(part.get("function_name", "")).casefold()
    if name in _CONFIGURATION:
        raise _forbidden(name)
    if kind == "TABLE_FUNCTION":
        function = str(part["function"].get("function_name", "")).casefold()
        if function not in _TABLE_FUNCTIONS:
            raise _forbidden(function)
    if kind == "SHOW_REF" and part.get("show_type") not in _SHOWN:
        raise _forbidden(f"show {part.get('table_name')}")


def _forbidden(what: str) -> QueryError:
    return QueryError(
        f"a query may not read or call {what!r:.100}: it reads states, and nothing of the process, "
        "its files and its configuration. The table states lists the states"
    )


def _no_query() -> QueryError:
    return QueryError("give one statement that reads: select, explain, describe or summarize")
