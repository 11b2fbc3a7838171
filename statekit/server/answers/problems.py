"""Problems: error answers, as `application/problem+json` (RFC 9457).

`kind` is stable. Errors of statekit keep their kinds. The text of a fault of the server is only in
its log, since it may contain names of files.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response
from typing_extensions import TypedDict

from statekit.errors import QueryError, StatekitError, StateSchemaError, StateTypeError

MEDIA_TYPE = "application/problem+json"

PROBLEMS: dict[int, tuple[str, tuple[str, ...]]] = {
    400: ("The request cannot be understood.", ("bad_request", "state_type", "query", "wide_ints")),
    401: ("The request has no known token.", ("unauthorized",)),
    403: ("The token may not read this.", ("forbidden",)),
    404: ("There is no such thing, or nothing for the key.", ("absent", "not_found", "query")),
    405: ("The address has no such method.", ("method_not_allowed",)),
    409: ("The epoch is not reached.", ("behind",)),
    410: ("The epoch can no longer be read.", ("gone",)),
    412: ("The file is not the one that is meant.", ("precondition",)),
    413: ("Too many keys, or too many bytes.", ("too_large",)),
    416: ("The file has no such part.", ("range",)),
    421: ("The server does not have this name.", ("unknown_host",)),
    429: ("Too many requests.", ("too_many",)),
    500: ("The server failed.", ("internal", "state_schema")),
    503: (
        "Nothing can be read now.",
        (
            *("not_ready", "too_many", "timeout", "disk_full", "closing"),
            *("storage", "corrupt_checkpoint", "statekit"),
        ),
    ),
}
"""The meaning of each status of a problem, and its kinds."""

_logger = logging.getLogger("statekit.server")


class ProblemBody(TypedDict):
    """The body of a problem, which a client gets in place of an answer (RFC 9457)."""

    type: Literal["about:blank"]
    title: str
    status: int
    kind: Annotated[str, msgspec.Meta(description="What went wrong, for programs.")]
    detail: Annotated[str, msgspec.Meta(description="What went wrong and what to do.")]


class Problem(Exception):  # noqa: N818  the term of RFC 9457
    """An error answer.

    Parameters:
        status: the HTTP status.
        kind: the kind of the problem, for programs.
        detail: the cause of the problem and advice, for people.
        headers: of the answer.
        facts: further members of the answer, such as the epoch.

    >>> Problem(404, "absent", "state total has nothing for this key", epoch=7).body
    b'{"type":"about:blank","title":"Not Found","status":404,"kind":"absent",\
"detail":"state total has nothing for this key","epoch":7}'
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: dict[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}
        self.facts = facts

    @property
    def body(self) -> bytes:
        members = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "kind": self.kind,
            "detail": self.detail,
            **self.facts,
        }
        return msgspec.json.encode(members)


_STATUS: dict[type[StatekitError], int] = {
    StateTypeError: 400,
    QueryError: 404,
    StateSchemaError: 500,
}


def problem_of(error: StatekitError) -> Problem:
    """Return the problem for an error of statekit. Log it if it is a fault of the server.

    >>> problem_of(StateTypeError("'x' is not a key of type int")).status
    400
    """
    status = _STATUS.get(type(error), 503)
    if status < 500:
        return Problem(status, error.kind, str(error))
    _logger.warning("a request failed: %s", error)
    return Problem(status, error.kind, "the server cannot do this now: its log says why, try again")


def bad_request(detail: str) -> Problem:
    """Return the problem for a request that is not valid."""
    return Problem(400, "bad_request", detail)


def too_many(detail: str, retry_s: int) -> Problem:
    """Return the problem for a request when the server has too much to do.

    Parameters:
        retry_s: the seconds until the client may try again.
    """
    return Problem(503, "too_many", detail, {"Retry-After": str(retry_s)})


def client_left() -> Problem:
    """Return the problem for a request whose client has closed the connection. It appears only in
    the log and in metrics.
    """
    return Problem(400, "left", "the client has closed the connection")


def closing() -> Problem:
    """Return the problem for a request that the end of the server interrupts."""
    return Problem(503, "closing", "the server ends: send the request again", {"Retry-After": "1"})


def failed() -> Problem:
    """Return the problem for an unexpected error of the server."""
    return Problem(500, "internal", "the server failed: its log says why")


def response_of(problem: Problem) -> Response:
    """Return the response with a problem."""
    return Response(problem.body, problem.status, problem.headers, MEDIA_TYPE)
