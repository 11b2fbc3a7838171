"""Answers of pages: HTML with its policies, problems as pages, and the addresses of pages."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.responses import HTMLResponse, Response

from statekit.errors import StatekitError
from statekit.server.admission.callers import PAGES
from statekit.server.answers.problems import Problem, problem_of
from statekit.server.dashboard.template import html
from statekit.server.routes.call import RouteCall

T = TypeVar("T")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Policy of the pages: scripts, styles and data of this server alone."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}
_PACKED_BYTES_MIN = 1_000


class Addresses:
    """Addresses of pages, relative to the page of a request: a proxy may serve them below a path.

    Parameters:
        request: for a page.
    """

    def __init__(self, request: RouteCall) -> None:
        self.root = "../" * _below_pages(request).count("/") or "./"

    def to(self, *place: str, **parameters: Any) -> str:
        """Return the address of a page: names, and the parameters that are not None or empty."""
        path = "/".join(quote(part, safe="") for part in place)
        pairs = [(name, value) for name, value in parameters.items() if value not in (None, "", [])]
        query = urlencode(pairs, quote_via=quote, doseq=True)
        return f"{self.root}{path}{'?' if query else ''}{query}"


def page(
    request: RouteCall, template: str, place: Sequence[str] = (), status: int = 200, **context: Any
) -> Response:
    """Return a page.

    Parameters:
        place: job, operator and state of the page.
        context: for the template.
    """
    served = request.served
    addresses = Addresses(request)
    base = {
        "root": addresses.root,
        "assets": f"{addresses.root}../assets/",
        "to": addresses.to,
        "place": list(place),
        "is_sql": False,
        "has_service": served.service is not None,
        "is_submitted": template.startswith("submitted"),
        "is_signed_in": not served.access.is_open and template != "sign-in",
    }
    body = html(template, **{**base, **context}).encode(errors="backslashreplace")
    headers = {**_HEADERS, "Vary": "Accept-Encoding, Cookie"}
    if len(body) > _PACKED_BYTES_MIN and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 5), "gzip"
    return HTMLResponse(body, status, headers)


def shown_problem(request: RouteCall, error: Problem | StatekitError) -> Problem:
    """Return the problem of an error, as users may see it."""
    problem = error if isinstance(error, Problem) else problem_of(error)
    return request.served.places.hidden(problem)


def known_epoch(request: RouteCall) -> str | None:
    """Return the epoch that the browser shows; None for a new page."""
    return request.header(b"statekit-known")


def is_of_other_site(request: RouteCall) -> bool:
    """Return whether a page of another site made the browser send a request: it then starts no long
    work.
    """
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


async def tried(request: RouteCall, work: Awaitable[T]) -> tuple[T | None, Problem | None]:
    """Return the result of a part of a page, or the problem to show in its place."""
    try:
        return await work, None
    except (Problem, StatekitError) as error:
        return None, shown_problem(request, error)


def problem_page(request: RouteCall, error: Problem | StatekitError) -> Response:
    """Return the page of a problem: for an absent token, the form that asks for one."""
    problem = shown_problem(request, error)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        return sign_in_page(request)
    title = HTTPStatus(problem.status).phrase
    found = page(request, "problem", status=problem.status, title=title, problem=problem)
    found.headers.update(problem.headers)
    return found


def sign_in_page(
    request: RouteCall, following: str | None = None, problem: Problem | None = None
) -> Response:
    """Return the form that asks for a token.

    Parameters:
        following: the address to show then, below that of the pages; None for that of the request.
        problem: why the token was not accepted.
    """
    if following is None:
        query = request.url.query
        following = _below_pages(request) + (f"?{query}" if query else "")
    status = 401 if problem is None else problem.status
    return page(request, "sign-in", status=status, next=following, problem=problem)


def _below_pages(request: RouteCall) -> str:
    """Return the path of a request below the folder of the pages, in its quoted form."""
    path: bytes = request.scope["raw_path"]
    return path.decode("latin-1").removeprefix(PAGES)
