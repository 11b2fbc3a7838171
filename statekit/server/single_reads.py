"""Single reads: `GET /{job}/{operator}/{state}/{key}` without parameters, the usual request.

It is answered without the routes, which take several times as long. The answers are the same.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import StatekitError
from statekit.server.answers import encode, is_known, tag_of, value_with_facts
from statekit.server.observed import SINGLE_READ
from statekit.server.problems import Problem, bad_request, problem_of, response_of
from statekit.server.routes import Served

_JSON = (b"content-type", b"application/json")

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""


class SingleReads:
    """Answers single reads, and leaves all other requests to the routes.

    Parameters:
        routes: the application that has them.
        served: what requests are answered from.
    """

    def __init__(self, routes: ASGIApp, served: Served) -> None:
        self._routes = routes
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            parts = scope["raw_path"].split(b"/")
            headers = dict(scope["headers"])
            is_single = (
                scope["method"] == "GET"
                and not scope["query_string"]
                and len(parts) == 5
                and b"event-stream" not in headers.get(b"accept", b"")
            )
            try:
                place = [unquote_to_bytes(part).decode() for part in parts[1:]]
                found = self._read(place, headers) if is_single else None
            except UnicodeDecodeError:
                scope[SINGLE_READ] = True
                what = "the address has bytes that are no UTF-8: write keys in UTF-8"
                await response_of(bad_request(what))(scope, receive, send)
                return
            except Problem as problem:
                scope[SINGLE_READ] = True
                await response_of(problem)(scope, receive, send)
                return
            if found is not None:
                scope[SINGLE_READ] = True
                await _send(send, *found)
                return
        await self._routes(scope, receive, send)

    def _read(self, place: list[str], headers: dict[bytes, bytes]) -> Answer | None:
        """Return the answer of a single read; None for a list or a map, which may be too large to
        read at once.
        """
        alias, operator, state, key = place
        token = self._served.token(headers.get(b"authorization"))
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


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
