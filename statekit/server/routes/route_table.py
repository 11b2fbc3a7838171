"""Route table: each route is declared once, where its function is.

The path, the parameters, the body and the answers of a route follow from one declaration:

    @routes.get("/{job}/{operator}/{state}/query", VALUES, problems=(413,))
    async def query_state(call: RouteCall, operator: str, state: str, asked: Keys) -> Response

The names in a path are arguments of the function, as text. `{job}` is `call.job` instead: the table
has checked that the token may read the job, the operator and the state in the path. An argument of
a pydantic model is the parameters of the query, and one of a msgspec struct is the body: the table
checks both. The OpenAPI document follows from the same declarations (`openapi`).
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statekit.errors import StatekitError
from statekit.server.admission.limits import read_body
from statekit.server.admission.time_limit import TimeLimit
from statekit.server.answers.problems import Problem, bad_request, failed, problem_of
from statekit.server.routes.call import MESSAGE_PACK, RouteCall, Served

Handler = Callable[..., Awaitable[Response]]
Refusal = Callable[[RouteCall, Problem], Response]

_logger = logging.getLogger("statekit.server")

PATH_NAME = re.compile(r"\{(\w+)(?::([^}]+))?\}")
"""A name in a path, and the texts that it may be; `rest` for the rest of the path."""

_ANY_TEXT = re.compile(r"\{\w+(:rest)?\}")
"""A part of a path that is any text."""

_DEPTH_MAX = 5
"""Paths with more parts are found by routes with the rest of a path only."""

ROUTE = "statekit.route"
"""Key of the name of a request's route in an ASGI scope."""


@dataclass(eq=False)
class HttpRoute:
    """A route.

    Parameters:
        method, path: of its requests.
        handler: the function that answers requests.
        answers: the OpenAPI responses without a problem, by status.
        problems: statuses of the problems that not all routes have.
        body_type: media type of the body.
        is_open: requests need no token.
        is_shown: the document has the route.
        is_typed: the document has it for each state or job, with its types.

    Attributes:
        name: the name of the route, in metrics and in the document.
        names: the names in the path, with the texts that they may be.
        place: how many of them are the job, the operator and the state. They are the first ones.
        query: the model of its parameters; None if it has none.
        body: the type of its body; None if it has none.
    """

    method: str
    path: str
    handler: Handler
    answers: Mapping[str, Any]
    problems: tuple[int, ...] = ()
    body_type: str = "application/json"
    is_open: bool = False
    is_shown: bool = True
    is_typed: bool = False

    def __post_init__(self) -> None:
        self.name = self.handler.__name__
        self.parts = self.path.split("/")[1:]
        self.names = dict(PATH_NAME.findall(self.path))
        self.has_rest = "rest" in self.names.values()
        self.place = len(self.names.keys() & {"job", "operator", "state"})
        self.query: type[BaseModel] | None = None
        self.body: type[msgspec.Struct] | None = None
        for argument in inspect.signature(self.handler, eval_str=True).parameters.values():
            if inspect.isclass(own := argument.annotation):
                self.query = own if issubclass(own, BaseModel) else self.query
                self.body = own if issubclass(own, msgspec.Struct) else self.body
        self._literals = [(n, part) for n, part in enumerate(self.parts) if "{" not in part]
        self._patterns = {
            place: _pattern(part)
            for place, part in enumerate(self.parts)
            if not _ANY_TEXT.fullmatch(part)
        }
        fields = {} if self.query is None else self.query.model_fields
        is_needed = any(own.is_required() for own in fields.values())
        self._defaults = None if is_needed else () if self.query is None else (self.query(),)

    def arguments(self, parts: list[str]) -> list[str] | None:
        """Return the texts of the names in a path; None if the path is of another route.

        >>> async def read(call: RouteCall, state: str, to: str) -> Response: ...
        >>> HttpRoute("GET", "/{state}.{to:csv|arrow}", read, {}).arguments(["a.b.csv"])
        ['a.b', 'csv']
        """
        for place, part in self._literals:
            if parts[place] != part:
                return None
        found = [*parts]
        if self._patterns:
            found = []
            for place, part in enumerate(parts):
                pattern = self._patterns.get(place)
                if pattern is None:
                    found.append(part)
                elif (match := pattern.fullmatch(part)) is None:
                    return None
                else:
                    found += match.groups()
        most = len(self.names)
        if self.has_rest and len(found) != most:
            return [*found[: most - 1], "/".join(found[most - 1 :])]
        return found

    def parameters(self, query_string: bytes) -> tuple[BaseModel, ...]:
        """Return the checked parameters of a request, as arguments.

        Raises:
            Problem: a parameter is unknown, absent or not valid.
        """
        if not query_string and self._defaults is not None:
            return self._defaults
        given = dict(QueryParams(query_string))
        model = self.query or _NoParameters
        try:
            found = model.model_validate(given)
        except ValidationError as error:
            raise _refused(model, error) from error
        return () if self.query is None else (found,)


def _pattern(part: str) -> re.Pattern[str]:
    """Return the pattern of a part of a path that is not any text."""
    literals = part.replace(".", r"\.")
    return re.compile(PATH_NAME.sub(lambda own: f"({own[2] or '.+'})", literals))


class _NoParameters(BaseModel, extra="forbid"):
    """The parameters of a route that has none."""


def _refused(model: type[BaseModel], error: ValidationError) -> Problem:
    known = sorted(own.alias or name for name, own in model.model_fields.items())
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        name = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            names = ", ".join(known) or "none"
            faults.append(f"there is no parameter {name!r:.50} here: there are {names}")
        else:
            faults.append(": ".join(filter(None, (name, fault["msg"]))))
    return bad_request("; ".join(faults))


class RouteTable:
    """The routes of a server, and the ASGI application that answers requests by them.

    HEAD requests are answered as GET requests are. uvicorn leaves the content out.

    Attributes:
        routes: in the order in which they are tried.
    """

    def __init__(self, *tables: RouteTable) -> None:
        self.routes: list[HttpRoute] = [route for table in tables for route in table.routes]

    def get(
        self, path: str, answers: Mapping[str, Any], **options: Any
    ) -> Callable[[Handler], Handler]:
        """Declare a route for GET requests. See `HttpRoute` for the options."""
        return self._declare("GET", path, answers, options)

    def post(
        self, path: str, answers: Mapping[str, Any], **options: Any
    ) -> Callable[[Handler], Handler]:
        """Declare a route for POST requests. See `HttpRoute` for the options."""
        return self._declare("POST", path, answers, options)

    def _declare(
        self, method: str, path: str, answers: Mapping[str, Any], options: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            self.routes.append(HttpRoute(method, path, handler, answers, **options))
            return handler

        return declare


class RoutedApp:
    """The ASGI application of a route table.

    A request without an answer in time ends with a problem. Sending the answer has no limit: a
    stream of events has no end, and a file may have a slow reader.

    Parameters:
        table: the routes.
        served: the jobs and resources of the server.
        refusal: returns the response with a problem.
    """

    def __init__(self, table: RouteTable, served: Served, refusal: Refusal | None = None) -> None:
        self._served = served
        self._refusal: Refusal = refusal or (lambda _, problem: served.refusal(problem))
        self._limit = TimeLimit(served.options.timeout)
        self._by_depth: dict[int, list[HttpRoute]] = {}
        for route in table.routes:
            depth = len(route.parts)
            for own in range(depth, _DEPTH_MAX + 1) if route.has_rest else (depth,):
                self._by_depth.setdefault(own, []).append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._limit:
                response = await self._answered(scope, receive)
        except Problem as problem:
            response = self._refusal(RouteCall(scope, receive, self._served), problem)
        except StatekitError as error:
            own = problem_of(error)
            response = self._refusal(RouteCall(scope, receive, self._served), own)
        except Exception as error:
            _logger.error("a request failed", exc_info=error)
            response = self._refusal(RouteCall(scope, receive, self._served), failed())
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive) -> Response:
        route, arguments = self._found(scope["method"], _parts(scope["raw_path"]))
        scope[ROUTE] = route.name
        call = RouteCall(scope, receive, self._served)
        if not route.is_open:
            call.token = self._served.token(scope)
            if route.place:
                call.job = self._served.job(call.token, *arguments[: route.place])
                del arguments[0]
        values: list[Any] = [*arguments, *route.parameters(scope["query_string"])]
        if route.body is not None:
            body = await read_body(call)
            values.append(_decoded(body, route))
        return await route.handler(call, *values)

    def _found(self, method: str, parts: list[str]) -> tuple[HttpRoute, list[str]]:
        """Return the route of a request, and the texts of the names in its path.

        Raises:
            Problem: there is none.
        """
        routes = self._by_depth.get(min(len(parts), _DEPTH_MAX), ())
        wanted = "GET" if method == "HEAD" else method
        for route in routes:
            if route.method == wanted and (found := route.arguments(parts)) is not None:
                return route, found
        others = {own.method for own in routes if own.arguments(parts) is not None}
        if not others:
            raise Problem(404, "not_found", "there is no such address")
        allowed = ", ".join(own for own in ("GET", "HEAD", "POST") if own in others | {"HEAD"})
        detail = f"this address has no method {method!r:.20}: use {allowed}"
        raise Problem(405, "method_not_allowed", detail, {"Allow": allowed})


def _parts(raw_path: bytes) -> list[str]:
    """Return the parts of an address.

    Raises:
        Problem: they are not UTF-8.
    """
    try:
        if b"%" not in raw_path:
            return raw_path.decode().split("/")[1:]
        return [unquote_to_bytes(part).decode() for part in raw_path.split(b"/")[1:]]
    except UnicodeDecodeError as error:
        what = "the address has bytes that are no UTF-8: write keys in UTF-8"
        raise bad_request(what) from error


def _decoded(body: bytes, route: HttpRoute) -> msgspec.Struct:
    """Decode the body of a request.

    Raises:
        Problem: it is not of the type of the route.
    """
    decode = msgspec.msgpack.decode if route.body_type == MESSAGE_PACK else msgspec.json.decode
    try:
        found: msgspec.Struct = decode(body, type=route.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}") from error
    return found
