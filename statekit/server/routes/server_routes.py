"""Routes of the server, of jobs and of many keys.

/jobs                                         the served jobs
/{job}                                        operators and states of a job
/{job}/query                                  many keys of several states        (POST)
/{job}/{operator}/{state}/query               many keys                          (POST)
/{job}/{operator}/{state}/stored              their stored rows                  (POST)
/sql                                          SQL                                (POST)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from statekit.query.replica.view import View
from statekit.server.admission.access import forbidden
from statekit.server.answers.problems import Problem
from statekit.server.answers.values import answer
from statekit.server.jobs.metrics import MEDIA_TYPE as METRICS_TYPE
from statekit.server.jobs.served_job import JobSummary, ServedJob
from statekit.server.jobs.sql_queries import FORMATS, SqlQuery, SqlTable, states_of
from statekit.server.jobs.wanted import Wanted
from statekit.server.routes.call import MESSAGE_PACK, RouteCall
from statekit.server.routes.described import DescribedJob, described, readable_types
from statekit.server.routes.reads import KeysOfState, check_count, read_many
from statekit.server.routes.responses import (
    BINARY,
    JSON,
    OF_A_JOB,
    TEXT,
    TYPE,
    answered,
    with_facts,
)
from statekit.server.routes.route_table import RouteTable

routes = RouteTable()


class ServerStatus(TypedDict):
    """The status of a server that runs: also whether its disk is full."""

    status: Literal["ok", "disk_full"]


_IT_IS = {"200": answered("It is.", {JSON: ServerStatus})}


@routes.get("/healthz", _IT_IS, is_open=True)
async def healthz(_: RouteCall) -> Response:
    """Return 200 while the server runs."""
    return JSONResponse(ServerStatus(status="ok"))


@routes.get("/readyz", _IT_IS, is_open=True)
async def readyz(call: RouteCall) -> Response:
    """Return 200 once every job has an epoch that can be read."""
    waiting = sum(job.replica.epoch is None for job in call.served.jobs.values())
    if waiting:
        raise Problem(503, "not_ready", f"{waiting} jobs have no epoch that can be read yet")
    is_full = await run_in_threadpool(lambda: call.served.disk.is_full)
    return JSONResponse(ServerStatus(status="disk_full" if is_full else "ok"))


@routes.get("/metrics", {"200": answered("All metrics.", {METRICS_TYPE: TEXT})})
async def metrics(call: RouteCall) -> Response:
    """Return metrics for Prometheus, for a token that may read everything."""
    if not call.token.may_read_all:
        raise forbidden("metrics, which are of all jobs")
    return Response(call.served.metrics.text(), media_type=METRICS_TYPE)


class _SqlParameters(BaseModel, extra="forbid"):
    to: Literal["json", "csv", "arrow"] | None = Field(
        None, alias="format", description="Of the result."
    )


_SQL = answered(
    "The result.",
    {media_type: {} for media_type in FORMATS.values()} | {JSON: with_facts(SqlTable)},
    *("Statekit-Epoch", "Statekit-Is-Cut"),
)


@routes.post("/sql", {"200": _SQL}, problems=(*OF_A_JOB, 413))
async def query_sql(call: RouteCall, parameters: _SqlParameters, asked: SqlQuery) -> Response:
    """Run a query over the states of one epoch of a job, as JSON, CSV or Arrow."""
    own = call.served.job(call.token, asked.job)
    view = await own.view(Wanted(epoch=asked.epoch, manifest=asked.manifest))
    return await sql_answer(call, own, view, asked, parameters.to)


async def sql_answer(
    call: RouteCall, job: ServedJob, view: View, asked: SqlQuery, to: str | None
) -> Response:
    """Return the result of a query over the states that the token may read, as `Queries.answer`."""
    states = [place for place in states_of(view) if call.token.may_read(job.alias, *place)]
    return await call.served.queries.answer(job, view, asked, states, to, call)


@routes.get("/jobs", {"200": answered("The jobs.", {JSON: {"type": "array", "items": JobSummary}})})
async def jobs(call: RouteCall) -> Response:
    """Return the jobs of which the token may read any state."""
    served = call.served.jobs
    return JSONResponse([job.summary() for alias, job in served.items() if call.token.sees(alias)])


@routes.get("/{job}", {"200": answered("The job.", {JSON: DescribedJob})}, problems=OF_A_JOB)
async def describe(call: RouteCall, epoch: Wanted) -> Response:
    """Return the operators and states of a job, with their types and sizes."""
    view = await call.view(epoch)
    found: DescribedJob = {
        **call.job.facts(view),
        "readable_epochs": call.job.readable_epochs,
        "key_groups": view.manifest.key_groups,
        "operators": described(view, call.may_read),
    }
    return JSONResponse(found)


@routes.get(
    "/{job}/types",
    {"200": answered("The job file.", {JSON: {"type": "object"}})},
    problems=OF_A_JOB,
)
async def types(call: RouteCall, epoch: Wanted) -> Response:
    """Return the types of the states that a token may read, for clients that decode rows."""
    view = await call.view(epoch)
    return Response(readable_types(view.job_file, call.may_read).to_bytes(), media_type=JSON)


class Reads(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query of several states."""

    reads: list[Annotated[KeysOfState, msgspec.Meta(extra_json_schema={TYPE: "read"})]]


class Keys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query of one state."""

    keys: Annotated[list[Any], msgspec.Meta(extra_json_schema={TYPE: "keys"})]


class StoredKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for stored rows."""

    keys: list[bytes]


_LISTS = with_facts({"type": "array", "items": {"type": "array"}})
_SEVERAL = answered("For each read the values of its keys.", {JSON: _LISTS}, "ETag")
_VALUES = answered("In the order of the keys.", {JSON: {TYPE: "values"}}, "ETag")
_OF_KEYS = (*OF_A_JOB, 413)


@routes.post("/{job}/query", {"200": _SEVERAL}, problems=_OF_KEYS, is_typed=True)
async def query(call: RouteCall, epoch: Wanted, asked: Reads) -> Response:
    """Read keys of several states after one epoch; null for absent ones."""
    job = call.job
    for each in asked.reads:
        call.served.job(call.token, job.alias, each.operator, each.state)
    view = await call.view(epoch)
    return await call.served.admission.read(
        lambda: answer(list(read_many(view, asked.reads)), job.facts(view), None)
    )


@routes.post("/{job}/{operator}/{state}/query", {"200": _VALUES}, problems=_OF_KEYS, is_typed=True)
async def query_state(
    call: RouteCall, operator: str, state: str, epoch: Wanted, asked: Keys
) -> Response:
    """Read many keys of a state; null for absent ones."""
    view = await call.view(epoch, operator)
    reads = [KeysOfState(operator, state, asked.keys)]
    return await call.served.admission.read(
        lambda: answer(next(read_many(view, reads)), call.job.facts(view, operator), None)
    )


@routes.post(
    "/{job}/{operator}/{state}/stored",
    {"200": answered("The rows, and the facts of the epoch.", {MESSAGE_PACK: BINARY})},
    problems=_OF_KEYS,
    body_type=MESSAGE_PACK,
)
async def stored(
    call: RouteCall, operator: str, state: str, epoch: Wanted, asked: StoredKeys
) -> Response:
    """Return the stored rows of many keys, in MessagePack."""
    check_count(len(asked.keys))
    view = await call.view(epoch, operator)
    found_state = view.state(operator, state)
    rows: Any = found_state.hot_rows(asked.keys)  # a thread takes longer than to look them up
    if rows is None:
        rows = await call.served.admission.read(found_state.stored_rows, asked.keys)
    facts = call.job.facts(view, operator)
    found = {**facts, "types": view.job_file_checksum, "rows": rows}
    return Response(msgspec.msgpack.encode(found), media_type=MESSAGE_PACK)
