"""Routes that read state.

/jobs                                         the served jobs
/{job}                                        operators and states of a job
/{job}/query                                  many keys of several states        (POST)
/{job}/{operator}/{state}                     a range of keys; with ?key= one key
/{job}/{operator}/{state}/query               many keys                          (POST)
/{job}/{operator}/{state}/{key}               one key, as text
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Scope

from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError
from statekit.query.export import Format
from statekit.query.view import View
from statekit.server.access import Access, Token, forbidden
from statekit.server.admission import Admission, Waiter
from statekit.server.answers import answer
from statekit.server.callers import token_of
from statekit.server.described import described, readable_types
from statekit.server.disk import Disk
from statekit.server.limits import Limits, read_body
from statekit.server.live import LiveChanges, Place
from statekit.server.metrics import MEDIA_TYPE as METRICS_TYPE
from statekit.server.metrics import Metrics
from statekit.server.parameters import check_parameters
from statekit.server.places import Places
from statekit.server.problems import Problem, bad_request, response_of
from statekit.server.rankings import Rankings
from statekit.server.reads import (
    ROWS_MAX,
    KeysOfState,
    Part,
    check_count,
    json_of,
    page_of_keys,
    read_key,
    read_many,
)
from statekit.server.served_job import LAST, ServedJob, Wanted, is_of
from statekit.server.sql_queries import Queries, SqlQuery, states_of
from statekit.server.tables import MEDIA_TYPES, Asked, Tables
from statekit.server.watch import EVENT_STREAM, Watch, asks_to_watch, starts_with

T = TypeVar("T")

RESERVED = frozenset(
    {"assets", "docs", "healthz", "jobs", "metrics", "openapi.json", "readyz", "sql"}
)
"""Names that are not allowed as aliases of jobs."""

_OF_EPOCHS = ("epoch", "manifest", "as_of", "min_epoch", "min_watermark", "wait")
"""Parameters that choose the epoch."""

WideIntsOfFile = Literal["decimal", "text"]
"""Form of ints in a file, for states with ints of 2^63 or more."""

WAIT_MAX_S = 60.0
"""Longest wait for an epoch, in seconds."""


@dataclass(frozen=True)
class Served:
    """The jobs and resources with which the routes answer requests.

    Parameters:
        jobs: by alias.
        access: the tokens, and the states that each may read.
        limits: of requests.
        tables: the files of states.
        live: the states with watchers.
        metrics: of the server.
        queries: runs SQL of requests.
        rankings: ranks keys.
        admission: the queues of requests that wait or take long.
        places: the places that answers must not contain.
        disk: of the server.
    """

    jobs: Mapping[str, ServedJob]
    access: Access
    limits: Limits
    tables: Tables
    live: LiveChanges
    metrics: Metrics
    queries: Queries
    rankings: Rankings
    admission: Admission
    places: Places
    disk: Disk

    def token(self, scope: Scope) -> Token:
        """Return the token of a request, and count the request.

        Raises:
            Problem: the token is absent or unknown, or it has made too many requests.
        """
        token = token_of(scope)
        self.limits.count(token.name)
        return token

    def job(
        self, token: Token, alias: str, operator: str | None = None, state: str | None = None
    ) -> ServedJob:
        """Return a job, after checking that the token may read the state, or any state of the job.

        Raises:
            Problem: the token may not read it, or there is no such job.
        """
        place = [part for part in (alias, operator, state) if part is not None]
        is_whole = len(place) == 1
        if not (token.sees(alias) if is_whole else token.may_read_place(*place)):
            raise forbidden("/".join(place))
        if alias not in self.jobs:
            raise Problem(404, "not_found", f"no job is served as {alias!r:.100}")
        return self.jobs[alias]

    def refusal(self, problem: Problem) -> Response:
        """Return the response with a problem. Names replace the places in its text."""
        return response_of(self.places.hidden(problem))


router = APIRouter()


# FastAPI runs functions without `async` in threads, which takes longer than these do.


async def _served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


Jobs = Annotated[Served, Depends(_served)]


async def _token(request: Request, served: Jobs) -> Token:
    token = served.token(request.scope)
    check_parameters(request)
    return token


Allowed = Annotated[Token, Depends(_token)]


async def _waiter(request: Request, served: Jobs, token: Allowed) -> Waiter:
    return Waiter(served.admission, request, token.name)


Waiting = Annotated[Waiter, Depends(_waiter)]


_NO_EPOCH = "manifest= is the checksum of an epoch's manifest: give epoch=, too"

Checksum = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")]
"""Checksum of a manifest."""


async def _wanted(
    waiter: Waiting,
    epoch: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    manifest: Checksum = None,
    as_of: dt.datetime | None = None,
    min_epoch: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    min_watermark: dt.datetime | None = None,
    wait: Annotated[float, Query(ge=0, le=WAIT_MAX_S)] = 0.0,
) -> Wanted:
    for name, instant in (("as_of", as_of), ("min_watermark", min_watermark)):
        if instant is not None and instant.tzinfo is None:
            raise bad_request(f"{name}={instant}: give it with its zone, as in …T12:00:00Z")
    given = [each for each in (epoch, as_of, min_epoch, min_watermark) if each is not None]
    if len(given) > 1:
        raise bad_request("give one of epoch, as_of, min_epoch and min_watermark")
    if manifest is not None and epoch is None:
        raise bad_request(_NO_EPOCH)
    return Wanted(epoch, manifest, as_of, min_epoch, min_watermark, wait, waiter) if given else LAST


async def _part(
    entry: str | None = None,
    start: str | None = None,
    end: str | None = None,
    limit: Annotated[int | None, Query(ge=1, le=ROWS_MAX)] = None,
    reverse: bool = False,
) -> Part:
    """Return the part of a value, or of the keys of a state, that a request asks for."""
    return Part(entry, start, end, limit, reverse)


Epoch = Annotated[Wanted, Depends(_wanted)]
PartAsked = Annotated[Part, Depends(_part)]
ResultFormat = Annotated[str | None, Query(alias="format")]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return 200 while the server runs."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(served: Jobs) -> dict[str, str]:
    """Return 200 once every job has an epoch that can be read."""
    waiting = sum(job.replica.epoch is None for job in served.jobs.values())
    if waiting:
        raise Problem(503, "not_ready", f"{waiting} jobs have no epoch that can be read yet")
    return {"status": "disk_full" if await run_in_threadpool(lambda: served.disk.is_full) else "ok"}


@router.get("/metrics")
async def metrics(served: Jobs, token: Allowed) -> Response:
    """Return the metrics of the server, for Prometheus."""
    if not token.may_read_all:
        raise forbidden("metrics, which are of all jobs")
    return Response(served.metrics.text(), media_type=METRICS_TYPE)


@router.post("/sql")
async def query_sql(
    request: Request, served: Jobs, token: Allowed, to: ResultFormat = None
) -> Response:
    """Run a query over the states of one epoch of a job, as JSON, CSV or Arrow."""
    asked = decoded(await read_body(request, served.limits), SqlQuery)
    own = served.job(token, asked.job)
    if asked.manifest is not None and asked.epoch is None:
        raise bad_request(_NO_EPOCH)
    view = await own.view(LAST if asked.epoch is None else Wanted(asked.epoch, asked.manifest))
    states = [place for place in states_of(view) if token.may_read(asked.job, *place)]
    return await served.queries.answer(own, view, asked, states, to, request)


@router.get("/jobs")
async def jobs(served: Jobs, token: Allowed) -> list[dict[str, Any]]:
    """Return the jobs of which the token may read any state."""
    return [job.summary() for alias, job in served.jobs.items() if token.sees(alias)]


@router.get("/{job}")
async def describe(job: str, served: Jobs, token: Allowed, epoch: Epoch) -> Response:
    """Return the operators and states of a job, with their types and sizes."""
    own = served.job(token, job)
    view = await own.view(epoch)
    found = described(view, lambda operator, state: token.may_read(job, operator, state))
    groups = view.manifest.key_groups
    return JSONResponse(
        {
            **own.facts(view),
            "readable_epochs": own.readable_epochs,
            "key_groups": groups,
            "operators": found,
        }
    )


@router.post("/{job}/query")
async def query(job: str, request: Request, served: Jobs, token: Allowed, epoch: Epoch) -> Response:
    """Read keys of several states after one epoch."""
    own = served.job(token, job)
    asked = decoded(await read_body(request, served.limits), _Reads).reads
    for each in asked:
        served.job(token, job, each.operator, each.state)
    view = await own.view(epoch)
    return await served.admission.read(
        lambda: answer(list(read_many(view, asked)), own.facts(view), None)
    )


@router.post("/{job}/{operator}/{state}/query")
async def query_state(
    job: str,
    operator: str,
    state: str,
    request: Request,
    served: Jobs,
    token: Allowed,
    epoch: Epoch,
) -> Response:
    """Read many keys of a state."""
    own = served.job(token, job, operator, state)
    keys = decoded(await read_body(request, served.limits), _Keys).keys
    view = await own.view(epoch, operator)
    asked = [KeysOfState(operator, state, keys)]
    return await served.admission.read(
        lambda: answer(next(read_many(view, asked)), own.facts(view, operator), None)
    )


@router.get("/{job}/types")
async def types(job: str, served: Jobs, token: Allowed, epoch: Epoch) -> Response:
    """Return the types of the states that a token may read, for clients that decode rows."""
    view = await served.job(token, job).view(epoch)
    file = readable_types(view.job_file, lambda *place: token.may_read(job, *place))
    return Response(file.to_bytes(), media_type="application/json")


@router.post("/{job}/{operator}/{state}/stored")
async def stored(
    job: str,
    operator: str,
    state: str,
    request: Request,
    served: Jobs,
    token: Allowed,
    epoch: Epoch,
) -> Response:
    """Return the stored rows of many keys, in MessagePack."""
    return await read_stored_rows(served, token, (job, operator, state), request, epoch)


async def read_stored_rows(
    served: Served, token: Token, place: tuple[str, str, str], request: Request, epoch: Wanted
) -> Response:
    """Return the answer of `stored`.

    Raises:
        Problem: the token may not read them, the body cannot be read, or there is no such epoch.
        StatekitError: the rows cannot be read.
    """
    job, operator, state = place
    own = served.job(token, job, operator, state)
    body = await read_body(request, served.limits)
    keys = decoded(body, _StoredKeys, msgspec.msgpack.decode).keys
    check_count(len(keys))
    view = await own.view(epoch, operator)
    found_state = view.state(operator, state)
    rows: Any = found_state.hot_rows(keys)  # a thread takes longer than to look them up
    if rows is None:
        rows = await served.admission.read(found_state.stored_rows, keys)
    found = {**own.facts(view, operator), "types": view.job_file_checksum, "rows": rows}
    return Response(msgspec.msgpack.encode(found), media_type="application/vnd.msgpack")


@router.get("/{job}/{operator}/{state}")
async def read_state(
    job: str,
    operator: str,
    state: str,
    request: Request,
    served: Jobs,
    token: Allowed,
    epoch: Epoch,
    part: PartAsked,
    key: str | None = None,
    cursor: str | None = None,
    prefix: str | None = None,
    rows: bool = True,
    wide_ints: WideIntsOfFile | None = None,
) -> Response:
    """Read one key in JSON; a range of keys; or all rows, as Arrow, Parquet or CSV.

    A file has the address of its epoch: without `epoch`, the answer redirects to that address.

    With `Accept: text/event-stream`, watch the key or the keys; `prefix` is that of keys, and
    without `rows` the stream has only changes.
    """
    state, to = _format(state, request)
    own = served.job(token, job, operator, state)
    if request.method == "GET" and asks_to_watch(request.headers.get("accept")):
        data = None if key is None else [json_of(key, "key")]
        begins = None if prefix is None else json_of(prefix, "prefix")
        return _watched(
            request, served, own, (operator, state), data, begins, is_json=True, rows=rows
        )
    if to is not None:
        if key is not None:
            raise bad_request("a file has all keys: leave key= out, or read it as JSON")
        table = Asked(operator, state, to, wide_ints == "decimal" or (wide_ints or False))
        return await _file(request, served, own, epoch, table)
    if wide_ints is not None:
        raise bad_request("wide_ints= is for files and SQL: JSON has ints of any size")
    if cursor is not None and key is None:
        view = await own.view_of_cursor(cursor)
        if not is_of(view, epoch):
            raise bad_request(
                f"the cursor is of epoch {view.epoch}: leave epoch= out, or pass that"
            )
    else:
        view = await own.view(epoch, operator)
    if key is not None:
        data = json_of(key, "key")
        return await _one(request, own, view, (operator, state), part, data, is_json=True)
    return await served.admission.read(
        lambda: answer(
            page_of_keys(view.state(operator, state), part, cursor), own.facts(view, operator), None
        )
    )


@router.get("/{job}/{operator}/{state}/{key:path}")
async def read_one(
    job: str,
    operator: str,
    state: str,
    key: str,
    request: Request,
    served: Jobs,
    token: Allowed,
    epoch: Epoch,
    part: PartAsked,
    rows: bool = True,
) -> Response:
    """Read one key in text form. With `Accept: text/event-stream`, watch it."""
    own = served.job(token, job, operator, state)
    if request.method == "GET" and asks_to_watch(request.headers.get("accept")):
        return _watched(
            request, served, own, (operator, state), [key], None, is_json=False, rows=rows
        )
    view = await own.view(epoch, operator)
    return await _one(request, own, view, (operator, state), part, key, is_json=False)


async def _file(
    request: Request, served: Served, job: ServedJob, epoch: Wanted, asked: Asked
) -> Response:
    """Return a file with all rows of a state; without an epoch, a redirect to its address."""
    if epoch.epoch_id is not None:
        kept = served.tables.kept(job, epoch.epoch_id, asked, request)
        if kept is not None:  # maybe longer than the epoch
            return kept
    view = await job.view(epoch, asked.operator)
    if asked.state not in (names := view.record(asked.operator).holds):
        raise QueryError(
            f"operator {asked.operator!r} has no state {asked.state!r} in epoch {view.epoch}: it "
            f"has {', '.join(names) or 'none'}"
        )
    if epoch.epoch is not None:
        return await served.tables.response(job, view, asked, request)
    others = [own for own in request.query_params.multi_items() if own[0] not in _OF_EPOCHS]
    exactly = urlencode([*others, ("epoch", view.epoch), ("manifest", view.id.manifest)])
    location = f"{request.scope['raw_path'].decode('latin-1')}?{exactly}"
    is_whole = request.method == "GET" and "range" not in request.headers
    return await served.tables.redirect(job, view, asked, location, with_content=is_whole)


def _format(state: str, request: Request) -> tuple[str, Format | None]:
    """Return the name of a state without the suffix of a format, and the format of the file; None
    if the request does not ask for a file.
    """
    name, _, suffix = state.rpartition(".")  # a state may have the name of a format
    accepts = request.headers.get("accept", "")
    for to, media_type in MEDIA_TYPES.items():
        if name and suffix == to:
            return name, to
        if media_type in accepts and "application/json" not in accepts:
            return state, to
    return state, None


async def _one(
    request: Request,
    job: ServedJob,
    view: View,
    place: tuple[str, str],
    part: Part,
    key: Any,
    *,
    is_json: bool,
) -> Response:
    state = view.state(*place)

    def read() -> Any:
        return read_key(state, state.key_from_json(key) if is_json else key, part)

    is_one_row = state.shape is RowShape.VALUE or part.entry is not None
    served: Served = request.app.state.served
    value = read() if is_one_row else await served.admission.read(read)
    found = job.facts(view, place[0])
    # An empty list may be a value. As elements it is that there are none.
    if value is None or not (value or is_one_row or part.is_range):
        raise Problem(404, "absent", f"state {place[1]!r} has nothing for this key", **found)
    return answer(value, found, request.headers.get("if-none-match"))


def _watched(
    request: Request,
    served: Served,
    job: ServedJob,
    place: tuple[str, str],
    key: list[Any] | None,
    prefix: Any,
    *,
    is_json: bool,
    rows: bool,
) -> Response:
    """Return a stream of events, which lasts until the watcher or the server ends it."""
    if key is not None:
        state = job.last().state(*place)
        key = [state.shown_key(state.key_from_json(key[0]) if is_json else key[0])]
    watch = Watch(
        served.live,
        served.admission,
        job,
        *place,
        key=key,
        matches=None if prefix is None else starts_with(prefix),
        after=Place.of_text(request.headers.get("last-event-id", "")),
        rows=rows,
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(watch.events(), 200, headers, EVENT_STREAM)


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query of one state."""

    keys: list[Any]


class _Reads(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a query of several states."""

    reads: list[KeysOfState]


class _StoredKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for stored rows."""

    keys: list[bytes]


def decoded(body: bytes, cls: type[T], decode: Callable[..., T] = msgspec.json.decode) -> T:
    """Decode the body of a request.

    Parameters:
        decode: the decoder for JSON or MessagePack.

    Raises:
        Problem: it is not of this class.
    """
    try:
        return decode(body, type=cls)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}") from error
