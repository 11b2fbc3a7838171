"""Routes that read one state.

/{job}/{operator}/{state}                     a range of keys; with ?key= one key
/{job}/{operator}/{state}.{format}            all rows, as a file
/{job}/{operator}/{state}/{key}               one key, as text
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError
from statekit.query.replica.view import View
from statekit.query.tables.export import Format
from statekit.server.answers.problems import Problem, bad_request
from statekit.server.answers.values import answer
from statekit.server.jobs.live import Place
from statekit.server.jobs.tables import MEDIA_TYPES, Asked
from statekit.server.jobs.wanted import Wanted
from statekit.server.jobs.watch import EVENT_STREAM, Watch, starts_with
from statekit.server.routes.call import RouteCall
from statekit.server.routes.parameters import (
    FileParameters,
    PartParameters,
    StateParameters,
    wide_ints_of,
)
from statekit.server.routes.reads import AskedPart, json_of, page_of_keys, read_key
from statekit.server.routes.responses import (
    JSON,
    NOT_MODIFIED,
    OF_A_JOB,
    OF_AN_EPOCH,
    TEXT,
    TYPE,
    answered,
)
from statekit.server.routes.route_table import RouteTable

routes = RouteTable()

_OF_FILES = (*OF_A_JOB, 412, 416)
_FILES: dict[str, Any] = {media_type: {} for media_type in MEDIA_TYPES.values()}
_FILE_HEADERS = ("ETag", "Last-Modified", "Statekit-Epoch")
_PARTS = _FILES | {"multipart/byteranges": {}}
_OF_STATES = {"anyOf": [{TYPE: "page"}, {TYPE: "answer"}, {TYPE: "count"}]}
_PAGES = {JSON: _OF_STATES, **_FILES, EVENT_STREAM: TEXT}


@routes.get(
    f"/{{job}}/{{operator}}/{{state}}.{{format:{'|'.join(MEDIA_TYPES)}}}",
    {
        "200": answered("The file.", _FILES, *_FILE_HEADERS),
        "206": answered("Parts of it.", _PARTS, *_FILE_HEADERS),
        **NOT_MODIFIED,
        **OF_AN_EPOCH,
    },
    problems=_OF_FILES,
)
async def file(
    call: RouteCall, operator: str, state: str, format: Format, parameters: FileParameters
) -> Response:
    """Return all rows of a state as a file, of which parts can be asked for.

    A file has the address of its epoch: without `epoch`, the answer redirects to that address.
    """
    return await _file(call, operator, state, format, parameters)


@routes.get(
    "/{job}/{operator}/{state}",
    {
        "200": answered("A page of keys, their number, or the value of a key.", _PAGES),
        "206": answered("Parts of a file.", _PARTS),
        **NOT_MODIFIED,
        **OF_AN_EPOCH,
    },
    problems=(*_OF_FILES, 413),
    is_typed=True,
)
async def read_state(
    call: RouteCall, operator: str, state: str, parameters: StateParameters
) -> Response:
    """Read keys of a state in their order, or one key given as JSON.

    With `count` the answer is the number of rows.

    With `Accept` of a file, return all rows. With `Accept: text/event-stream`, watch the key or the
    keys; without `rows` the stream has only changes. `prefix` is that of keys, and with a key that
    of its map keys.
    """
    key, cursor = parameters.key, parameters.cursor
    if call.watches:
        data = None if key is None else [json_of(key, "key")]
        prefix = parameters.prefix
        begins = None if prefix is None else json_of(prefix, "prefix")
        return _watched(call, (operator, state), data, begins, is_json=True, rows=parameters.rows)
    if (to := _accepted(call)) is not None:
        if key is not None:
            raise bad_request("a file has all keys: leave key= out, or read it as JSON")
        return await _file(call, operator, state, to, parameters)
    if parameters.wide_ints is not None:
        raise bad_request("wide_ints= is for files and SQL: JSON has ints of any size")
    view = await _view(call, operator, parameters, None if key is not None else cursor)
    if key is not None:
        data = json_of(key, "key")
        return await _one(call, view, (operator, state), parameters.part, data, is_json=True)
    return await call.served.admission.read(
        lambda: answer(
            page_of_keys(view.state(operator, state), parameters.part, cursor),
            call.job.facts(view, operator),
            None,
        )
    )


@routes.get(
    "/{job}/{operator}/{state}/{key:rest}",
    {
        "200": answered(
            "What the state has for the key.", {JSON: {TYPE: "answer"}, EVENT_STREAM: TEXT}, "ETag"
        ),
        **NOT_MODIFIED,
    },
    problems=OF_A_JOB,
    is_typed=True,
)
async def single_read(
    call: RouteCall, operator: str, state: str, key: str, parameters: PartParameters
) -> Response:
    """Read one key of a state, given as text. With `Accept: text/event-stream`, watch it."""
    if call.watches:
        return _watched(call, (operator, state), [key], None, is_json=False, rows=parameters.rows)
    view = await call.view(parameters, operator)
    return await _one(call, view, (operator, state), parameters.part, key, is_json=False)


async def _view(call: RouteCall, operator: str, wanted: Wanted, cursor: str | None) -> View:
    """Return a view of the epoch of a cursor, or of the one that the request asks for."""
    if cursor is None:
        return await call.view(wanted, operator)
    view = await call.job.view_of_cursor(cursor)
    if not wanted.is_of(view):
        raise bad_request(f"the cursor is of epoch {view.epoch}: leave epoch= out, or pass that")
    return view


async def _file(
    call: RouteCall, operator: str, state: str, to: Format, parameters: FileParameters
) -> Response:
    """Return a file with all rows of a state; without an epoch, a redirect to its address."""
    tables, job = call.served.tables, call.job
    asked = Asked(operator, state, to, wide_ints_of(parameters.wide_ints))
    if parameters.epoch_id is not None:
        kept = tables.kept(job, parameters.epoch_id, asked, call)
        if kept is not None:  # maybe longer than the epoch
            return kept
    view = await call.view(parameters, operator)
    if state not in (names := view.record(operator).holds):
        raise QueryError(
            f"operator {operator!r} has no state {state!r} in epoch {view.epoch}: it has "
            f"{', '.join(names) or 'none'}"
        )
    if parameters.epoch is not None:
        return await tables.response(job, view, asked, call)
    given = call.query_params.multi_items()
    others = [own for own in given if own[0] not in Wanted.model_fields]
    exactly = urlencode([*others, ("epoch", view.epoch), ("manifest", view.id.manifest)])
    location = f"{call.scope['raw_path'].decode('latin-1')}?{exactly}"
    is_whole = call.method == "GET" and "range" not in call.headers
    return await tables.redirect(job, view, asked, location, with_content=is_whole)


def _accepted(call: RouteCall) -> Format | None:
    """Return the format of a file that a request accepts; None if it accepts JSON."""
    accepts = call.headers.get("accept", "")
    if JSON in accepts:
        return None
    return next((to for to, media_type in MEDIA_TYPES.items() if media_type in accepts), None)


async def _one(
    call: RouteCall, view: View, place: tuple[str, str], part: AskedPart, key: Any, *, is_json: bool
) -> Response:
    state = view.state(*place)
    key_of = state.key_from_json if is_json else state.key_from_text

    def read() -> Any:
        return read_key(state, key_of(key), part)

    is_one_row = state.shape is RowShape.VALUE or part.entry is not None
    if is_one_row:
        call.served.admission.single_reads += 1
    value = read() if is_one_row else await call.served.admission.read(read)
    found = call.job.facts(view, place[0])
    # An empty list may be a value. As elements it is that there are none.
    if value is None or not (value or is_one_row or part.is_range):
        raise Problem(404, "absent", f"state {place[1]!r} has nothing for this key", **found)
    return answer(value, found, call.known_tag)


def _watched(
    call: RouteCall,
    place: tuple[str, str],
    key: list[Any] | None,
    prefix: Any,
    *,
    is_json: bool,
    rows: bool,
) -> Response:
    """Return a stream of events, which lasts until the watcher or the server ends it."""
    if key is not None:
        state = call.job.last().state(*place)
        key_of = state.key_from_json if is_json else state.key_from_text
        key = [state.shown_key(key_of(key[0]))]
    watch = Watch(
        call.served.live,
        call.served.admission,
        call.job,
        *place,
        key=key,
        matches=None if prefix is None else starts_with(prefix),
        after=Place.of_text(call.header(b"last-event-id") or ""),
        rows=rows,
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(watch.events(), 200, headers, EVENT_STREAM)
