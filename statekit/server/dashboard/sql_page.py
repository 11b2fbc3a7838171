"""The page of SQL: a query over the states of one epoch, with its result as table, plot, files."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from statekit.clock import stopwatch_s
from statekit.query.replica.view import View
from statekit.server.admission.access import Token
from statekit.server.admission.callers import PAGES
from statekit.server.dashboard.charts import bars, chart
from statekit.server.dashboard.page_answers import Addresses, is_of_other_site, page, tried
from statekit.server.dashboard.texts import count, json_text
from statekit.server.jobs.sql_queries import SqlQuery
from statekit.server.jobs.wanted import LAST, Checksum, EpochNumber, Wanted
from statekit.server.routes.call import RouteCall
from statekit.server.routes.described import described
from statekit.server.routes.route_table import RouteTable
from statekit.server.routes.server_routes import sql_answer

routes = RouteTable()

_ROWS_SHOWN, _ROWS_OF_FILE = 200, 100_000
_BARS, _LINES, _LABEL_LENGTH = 30, 6, 500

_NUMBER = re.compile("u?int|float|double|decimal|halffloat")
_TIME = re.compile("timestamp|date")
_PLAIN_NAME = re.compile("[a-z_][a-z0-9_]*")


class _SqlParameters(BaseModel, extra="forbid"):
    job: str | None = None
    sql: str = ""
    explain: bool = False
    epoch: EpochNumber = None
    manifest: Checksum = None
    format: str | None = None


@routes.get(f"{PAGES}sql", {})
async def query_page(call: RouteCall, asked: _SqlParameters) -> Response:
    """Return the page of a query, or its result as a file."""
    seen = [alias for alias in call.served.jobs if call.token.sees(alias)]
    job, sql, to = asked.job or next(iter(seen), None), asked.sql, asked.format
    context: dict[str, Any] = {
        "is_sql": True,
        "jobs": seen,
        "job": job,
        "sql": sql,
        "problem": None,
    }
    if job is None:
        return page(call, "sql", **context, result=None, tables=[])
    statement = f"explain {sql}" if asked.explain and sql.strip() else sql
    if is_of_other_site(call):
        statement, to = "", None
    own = call.served.job(call.token, job)
    is_exact = asked.epoch is not None and asked.manifest is not None
    wanted = Wanted(epoch=asked.epoch, manifest=asked.manifest) if is_exact else LAST
    view = await own.view(wanted)
    if to is not None:
        query = SqlQuery(job, statement, view.id.epoch, view.id.manifest, _ROWS_OF_FILE)
        found = await sql_answer(call, own, view, query, to)
        found.headers["Content-Disposition"] = f'attachment; filename="result.{to}"'
        return found
    result, status = None, 200
    if statement.strip():
        query = SqlQuery(job, statement, view.id.epoch, view.id.manifest, _ROWS_SHOWN)
        began_s = stopwatch_s()
        answer, problem = await tried(call, sql_answer(call, own, view, query, "json"))
        if answer is not None:
            value = json.loads(bytes(answer.body))["value"]
            result = _result(call, job, statement, view, value, stopwatch_s() - began_s)
        if problem is not None:
            context["problem"], status = problem, problem.status
    tables = _tables(call.token, job, view)
    return page(call, "sql", [job], status, **context, result=result, tables=tables)


def _result(
    request: RouteCall, job: str, statement: str, view: View, value: Any, seconds: float
) -> dict[str, Any]:
    rows, columns = value["rows"], value["columns"]
    for column in columns:
        column["is_number"] = _NUMBER.match(column["type"]) is not None
        column["is_time"] = _TIME.match(column["type"]) is not None
    number = f"{count(len(rows))} {'row' if len(rows) == 1 else 'rows'}"
    is_plan = len(columns) == 2 and columns[0]["name"] == "explain_key"
    exactly = {"job": job, "sql": statement, "epoch": view.id.epoch, "manifest": view.id.manifest}
    to = Addresses(request).to
    plot = {} if is_plan else _plot(columns, rows)
    return {
        "size": f"the first {number}" if value["is_cut"] else number,
        "epoch": view.epoch,
        "seconds": seconds,
        "csv": to("sql", **exactly, format="csv"),
        "arrow": to("sql", **exactly, format="arrow"),
        "explained": "\n".join(str(row[1]) for row in rows) if is_plan else None,
        "columns": columns,
        "rows": rows,
        "chart": plot.get("chart"),
        "bars": plot.get("bars"),
        "bars_title": plot.get("title", ""),
        "bars_label": plot.get("label", ""),
    }


def _plot(columns: list[Any], rows: list[list[Any]]) -> dict[str, Any]:
    """Return a plot of the numbers by the first column: lines over times and numbers, bars over
    texts.
    """
    numeric = [place for place, column in enumerate(columns) if column["is_number"] and place > 0]
    if len(rows) < 2 or not numeric:
        return {}
    first = columns[0]
    if first["is_time"] or first["is_number"]:
        found = [(_position(first, row[0]), row) for row in rows if row[0] is not None]
        placed = sorted(
            (each for each in found if math.isfinite(each[0])), key=lambda each: each[0]
        )
        lines = [
            (columns[place]["name"], [_number(row[place]) for _, row in placed])
            for place in numeric[:_LINES]
        ]
        title = f"{', '.join(name for name, _ in lines)} by {first['name']}"
        x = [at for at, _ in placed]
        if len(x) == len(found) and x:
            own = chart(title, x, lines, is_time=first["is_time"], x_name=first["name"])
            return {"chart": own}
    names = ["none" if row[0] is None else _text(row[0]) for row in rows[:_BARS]]
    values = [_number(row[numeric[0]]) for row in rows[:_BARS]]
    label = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
    title = f"{columns[numeric[0]]['name']} by {first['name']}"
    return {"bars": bars(names, values), "title": title, "label": label[:_LABEL_LENGTH]}


def _text(cell: Any) -> str:
    return cell if isinstance(cell, str) else json_text(cell)


def _number(cell: Any) -> float | None:
    """Return a number of a result; None if it is none, or not finite."""
    if cell is None:
        return None
    try:
        value = cell if isinstance(cell, int | float) else float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _position(column: Any, cell: Any) -> float:
    """Return the place of a cell on the horizontal axis. Times without a zone are UTC."""
    if not column["is_time"]:
        found = _number(cell)
        return math.nan if found is None else found
    try:
        moment = dt.datetime.fromisoformat(str(cell))
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def _tables(token: Token, job: str, view: View) -> list[dict[str, Any]]:
    """Return the tables that a query of a token may read."""
    operators = described(view, partial(token.may_read, job))
    return [
        {
            "name": f"{_quoted(operator['operator'])}.{_quoted(state['state'])}",
            "key": ", ".join(field["name"] for field in operator["key"]),
            "type": state["type"],
            "rows": state["rows"],
        }
        for operator in operators
        for state in operator["states"]
    ]


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f'"{name}"'
