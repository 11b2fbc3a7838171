"""SQL queries of requests. A few run at a time, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from statekit.errors import QueryError
from statekit.query.replica.view import View
from statekit.query.tables.child_process import ForkServer
from statekit.query.tables.export import csv_text
from statekit.records.json_rows import json_values
from statekit.server.admission.queues import Admission
from statekit.server.answers.problems import Problem, bad_request
from statekit.server.answers.values import encode
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.served_job import ServedJob
from statekit.sql.run import ROWS_MAX, SqlResult, run_sql

_SECONDS, _MEMORY, _ROWS = 30.0, "1GB", 10_000

FORMATS = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}
"""Media types of the formats of results."""


class SqlQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an SQL request.

    Parameters:
        job: the job whose states are queried.
        sql: one statement that reads.
        epoch: number of the epoch; None for the last one.
        manifest: the checksum of its manifest; None for any epoch of that number.
        rows: limit of the rows of the result.
        wide_ints: column type of ints, for states with ints of 2^63 or more; None for int64.
    """

    job: str
    sql: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    manifest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", max_length=32)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = _ROWS
    wide_ints: Literal["decimal", "text"] | None = None


class SqlColumn(TypedDict):
    """A column of the result of a query."""

    name: str
    type: str


class SqlTable(TypedDict):
    """The result of a query. It is cut if there are more rows."""

    columns: list[SqlColumn]
    rows: list[list[Any]]
    is_cut: bool


def states_of(view: View) -> list[tuple[str, str]]:
    """Return all states of a job, as operator and state."""
    return [(name, state.name) for name in view.operators for state in view.record(name).states]


class Queries:
    """Runs SQL queries. A few run at a time, and the others wait.

    Parameters:
        disk: of the server.
        admission: of the server.
        forks: forks the processes of queries.
    """

    def __init__(self, disk: Disk, admission: Admission, forks: ForkServer) -> None:
        self._disk, self._admission = disk, admission
        self._directory = disk.below("sql")
        self._forks = forks

    async def answer(
        self,
        job: ServedJob,
        view: View,
        asked: SqlQuery,
        states: list[tuple[str, str]],
        to: str | None,
        request: Request,
    ) -> Response:
        """Return the result of a query.

        Parameters:
            states: those that the query may read.
            to: the format: "json", "csv" or "arrow"; None for the format that the request accepts.

        Raises:
            Problem: the query is not valid, fails, or takes too much; the format does not exist or
                cannot show a value; too many queries wait; or the disk is full.
            StatekitError: the checkpoint cannot be read.
        """
        wanted = to or _accepted(request.headers.get("accept", ""))
        if wanted not in FORMATS:
            raise bad_request(f"format={wanted!r:.50}: give one of {', '.join(FORMATS)}")

        await run_in_threadpool(self._disk.check_request)

        def run(is_unwanted: Callable[[], bool]) -> Response:
            found = run_sql(
                job.checkpoint,
                asked.sql,
                view.id,
                rows=asked.rows,
                timeout_s=_SECONDS,
                memory=_MEMORY,
                states=states,
                wide_ints=asked.wide_ints == "decimal" or (asked.wide_ints or False),
                is_unwanted=is_unwanted,
                directory=self._directory,
                forks=self._forks,
            )
            headers = {
                "Statekit-Epoch": str(view.epoch),
                "Statekit-Is-Cut": str(found.is_cut).lower(),
            }
            return Response(_encoded(found, wanted, job, view), 200, headers, FORMATS[wanted])

        try:
            async with job.reads_checkpoint(view):
                return await self._admission.run("queries", run, request)
        except QueryError as error:
            raise Problem(400, error.kind, str(error)) from error


def _accepted(accept: str) -> str:
    """Return the format of an `Accept` header; "json" if it has none."""
    return next((name for name, media_type in FORMATS.items() if media_type in accept), "json")


def _encoded(found: SqlResult, to: str, job: ServedJob, view: View) -> bytes:
    """Encode a result in a format.

    Raises:
        QueryError: the format cannot show a value.
    """
    table = found.table
    try:
        if to == "csv":
            return csv_text(table).encode()
        if to == "arrow":
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            return bytes(sink.getvalue())
        rows = [row for batch in table.to_batches() for row in json_values(batch)]
        columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        value = {"columns": columns, "rows": rows, "is_cut": found.is_cut}
        return encode({"value": value, **job.facts(view)})
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise QueryError(
            f"a value of the result cannot be shown as {to} ({error}): cast it to text, or ask for "
            "Arrow"
        ) from error
