"""Direct reads: the two most frequent requests, answered without the routes, which take several
times as long. The answers are the same.

GET /{job}/{operator}/{state}/{key}           a single read
POST /{job}/{operator}/{state}/stored         the stored rows of many keys, for clients with types

With parameters they go through the routes, as all other requests.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import StatekitError
from statekit.server.answers import encode, is_known, tag_of, value_with_facts
from statekit.server.observed import DIRECT_READ
from statekit.server.problems import Problem, bad_request, problem_of
from statekit.server.routes import Served, read_stored_rows
from statekit.server.served_job import LAST

_JSON = (b"content-type", b"application/json")

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""


class _DirectReads:
    """Answers one kind of request, and passes all others to the routes.

    Parameters:
        routes: the application with the routes.
        served: the jobs and resources of the server.
    """

    def __init__(self, routes: ASGIApp, served: Served) -> None:
        self._routes = routes
        self._served = served


class SingleReads(_DirectReads):
    """Answers single reads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        try:
            place = _place(scope)
            headers = dict(scope["headers"])
            is_single = (
                scope["method"] == "GET"
                and not scope["query_string"]
                and len(place) == 4
                and b"event-stream" not in headers.get(b"accept", b"")
            )
            found = self._read(scope, place, headers) if is_single else None
        except Problem as problem:
            scope[DIRECT_READ] = "single_read"
            await self._served.refusal(problem)(scope, receive, send)
            return
        if found is None:
            await self._routes(scope, receive, send)
            return
        scope[DIRECT_READ] = "single_read"
        self._served.admission.single_reads += 1
        await _send(send, *found)

    def _read(self, scope: Scope, place: list[str], headers: dict[bytes, bytes]) -> Answer | None:
        """Return the answer of a single read; None for a list or a map, which may be too large to
        read at once and is left to the routes.
        """
        alias, operator, state, key = place
        token = self._served.token(scope)
        job = self._served.job(token, alias, operator, state)
        view = job.last()
        try:
            rows = view.state(operator, state)
            if rows.shape is not RowShape.VALUE:
                self._served.limits.forget(token.name)
                return None
            value = rows.get(key)
            found = job.facts(view, operator)
        except StatekitError as error:
            raise problem_of(error) from error
        if value is None:
            raise Problem(404, "absent", f"state {state!r} has nothing for this key", **found)
        encoded = encode(value)
        tag = tag_of(encoded)
        tagged = [(b"etag", tag.encode()), (b"cache-control", b"no-cache")]
        known = headers.get(b"if-none-match")
        if known is not None and is_known(tag, known.decode("latin-1")):
            return 304, tagged, b""
        return 200, [_JSON, *tagged], value_with_facts(encoded, found)


class StoredReads(_DirectReads):
    """Answers requests for stored rows."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        place = _place(scope) if is_post and not scope["query_string"] else []
        if len(place) != 4 or place[-1] != "stored":
            await self._routes(scope, receive, send)
            return
        scope[DIRECT_READ] = "stored"
        try:
            response = await self._read(place, Request(scope, receive))
        except Problem as problem:
            response = self._served.refusal(problem)
        await response(scope, receive, send)

    async def _read(self, place: list[str], request: Request) -> Response:
        alias, operator, state, _ = place
        token = self._served.token(request.scope)
        try:
            return await read_stored_rows(
                self._served, token, (alias, operator, state), request, LAST
            )
        except StatekitError as error:
            raise problem_of(error) from error


def _place(scope: Scope) -> list[str]:
    """Return the parts of an address.

    Raises:
        Problem: they are not UTF-8.
    """
    try:
        return [unquote_to_bytes(part).decode() for part in scope["raw_path"].split(b"/")[1:]]
    except UnicodeDecodeError as error:
        what = "the address has bytes that are no UTF-8: write keys in UTF-8"
        raise bad_request(what) from error


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
