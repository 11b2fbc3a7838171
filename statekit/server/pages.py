"""Pages of the dashboard, rendered on the server.

/-/                                  the jobs; POST signs in and out
/-/sql?job=&sql=                     a query and its result
/-/{job}                             a job
/-/{job}/{operator}?key=             an operator, or everything that it has for a key
/-/{job}/{operator}/{state}?view=    a state

With the header `Statekit-Known`, the identity of an epoch, the pages of a job wait a while for
another epoch before they answer.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote

from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.checkpoint.epoch_id import EpochId
from statekit.errors import QueryError, StatekitError
from statekit.query.replica.view import View
from statekit.query.tables.top import Measure
from statekit.server.access import Token, forbidden
from statekit.server.call import RouteCall, Served
from statekit.server.callers import PAGES, check_typed, cookie_name
from statekit.server.dashboard.keys import typed_key
from statekit.server.dashboard.plan import picture_of
from statekit.server.dashboard.texts import count, duration, json_text
from statekit.server.job_facts import JobFacts, facts_of_job
from statekit.server.key_page import key_page
from statekit.server.limits import read_body
from statekit.server.page_answers import (
    Addresses,
    is_of_other_site,
    page,
    problem_page,
    sign_in_page,
)
from statekit.server.problems import Problem, bad_request
from statekit.server.route_table import RoutedApp, RouteTable
from statekit.server.served_job import JobSummary, ServedJob
from statekit.server.skew_part import ranking_part, shards_part
from statekit.server.sql_page import sql_page
from statekit.server.state_page import StateAsked, state_page
from statekit.server.tables import MEDIA_TYPES, Asked
from statekit.server.wanted import Checksum, EpochNumber, Wanted
from statekit.server.watch import EVENT_STREAM
from statekit.server.watch_page import PageWatch

routes = RouteTable()

_WAIT_S = 5.0
"""Longest wait for another epoch. Then the page is sent again with its age."""

_PAUSE_MS, _JOBS_PAUSE_MS = 1000, 3000
"""Pauses of a browser between two requests for news."""

_EPOCHS, _EPOCHS_OF_CARD, _EPOCHS_OF_STATE = 120, 60, 200
_BEHIND_MAX = 2


class Pages:
    """Answers requests for pages, and passes all others on.

    Parameters:
        others: the application that answers all other requests.
        served: the jobs and resources of the server.
    """

    def __init__(self, others: ASGIApp, served: Served) -> None:
        self._pages = RoutedApp(routes, served, problem_page)
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"].startswith(PAGES)
        await (self._pages if is_page else self._others)(scope, receive, send)


# ------------------------------------------------------------------------------ signing in and out


@routes.post(PAGES, {}, is_open=True)
async def sign_in(call: RouteCall) -> Response:
    """Keep a token in a cookie for the pages; without a token, remove it.

    Raises:
        Problem: another site sent the form, or it is too large.
    """
    if is_of_other_site(call):
        raise Problem(403, "forbidden", "a form of another site may not sign in or out here")
    form = parse_qs((await read_body(call)).decode(errors="replace"))
    typed = form.get("token", [""])[0].strip()
    # A path after ./ is below this site, whatever it is.
    following = f"./{form.get('next', [''])[0].lstrip('/')}"
    if not typed:
        return _with_cookie(call, "./", "", "; Max-Age=0")
    try:
        is_known = check_typed(call.scope, typed)
    except Problem as problem:
        return sign_in_page(call, following, problem)
    if not is_known:
        unknown = Problem(401, "unauthorized", "The server does not know this token.")
        return sign_in_page(call, following, unknown)
    return _with_cookie(call, following, quote(typed, safe=""), "")


def _with_cookie(call: RouteCall, location: str, value: str, suffix: str) -> Response:
    """Return a redirect that sets the cookie. It has no path, so that it counts for the folder of
    the pages as the browser sees it, also below the path of a proxy.
    """
    is_secure = call.url.scheme == "https" or call.headers.get("origin", "").startswith("https:")
    cookie = f"{cookie_name(call.scope)}={value}; HttpOnly; SameSite=Strict{suffix}"
    headers = {
        "Set-Cookie": cookie + ("; Secure" if is_secure else ""),
        "Cache-Control": "no-store",
    }
    return RedirectResponse(location, 303, headers)


# ------------------------------------------------------------------------------------------ jobs


@routes.get(PAGES, {})
async def jobs_page(call: RouteCall) -> Response:
    """Return the page of all jobs of which the token may read any state."""
    served, token = call.served, call.token
    cards = [await _card(job, token) for alias, job in served.jobs.items() if token.sees(alias)]
    return page(call, "jobs", known="jobs", pause=_JOBS_PAUSE_MS, jobs=cards)


async def _card(job: ServedJob, token: Token) -> dict[str, Any]:
    summary = job.summary()
    facts = None
    if summary["epoch"] is not None:
        try:
            facts = await facts_of_job(job, token, job.last(), _EPOCHS_OF_CARD)
        except (Problem, StatekitError):
            summary["has_error"] = True
    status = dict(zip(("kind", "text"), _status(summary, facts), strict=True))
    return {"alias": job.alias, "epoch": summary["epoch"], "status": status, "facts": facts}


def _status(summary: JobSummary, facts: JobFacts | None) -> tuple[str, str]:
    behind = (summary["latest_epoch"] or 0) - (summary["epoch"] or 0)
    if summary["has_error"]:
        return "bad", "cannot be followed: see the server's log"
    if summary["is_rebuilding"]:
        return "wait", "copies are being restored"
    if facts is None:
        return "wait", "no epoch yet"
    if behind > _BEHIND_MAX:
        return "wait", f"{count(behind)} epochs behind"
    if facts.quiet_s is not None:
        return "wait", f"no epoch for {duration(facts.quiet_s)}"
    return "good", "up to date"


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
    sql, file = asked.sql, asked.format
    statement = f"explain {sql}" if asked.explain and sql.strip() else sql
    if is_of_other_site(call):
        statement, file = "", None
    epoch_id = None
    if asked.epoch is not None and asked.manifest is not None:
        epoch_id = EpochId(asked.epoch, asked.manifest)
    return await sql_page(call, asked.job, sql, statement, epoch_id, file)


# -------------------------------------------------------------------------------- pages of a job


async def _shown(call: RouteCall) -> View:
    """Return the last epoch. Wait for another one than that which the browser shows."""
    epoch_id = EpochId.of_text(_known(call) or "")
    if epoch_id is None:
        return call.job.last()
    return await call.job.other_than(Wanted.exactly(epoch_id), _WAIT_S, call.wait)


def _known(call: RouteCall) -> str | None:
    """Return the epoch that the browser shows; None for a new page."""
    return call.header(b"statekit-known")


def _live(facts: JobFacts) -> dict[str, Any]:
    return {"known": str(facts.view.id), "pause": _PAUSE_MS, "facts": facts}


@routes.get(f"{PAGES}{{job}}", {})
async def job_page(call: RouteCall) -> Response:
    """Return the page of a job: numbers, plan, epochs over time, operators with their states."""
    facts = await facts_of_job(call.job, call.token, await _shown(call), _EPOCHS)
    last = facts.epochs[-1]["operators"] if facts.epochs else {}
    return page(
        call,
        "job",
        [call.job.alias],
        **_live(facts),
        numbers=facts.numbers(),
        plan=picture_of(facts.operators, last),
        charts=facts.charts(),
    )


class _OperatorParameters(BaseModel, extra="forbid"):
    """`field`, `history` and `all` may be there several times."""

    key: str | None = None
    epoch: EpochNumber = None
    by: Measure | None = None
    count: bool = False
    field: str | None = None
    history: str | None = None
    all: str | None = None


@routes.get(f"{PAGES}{{job}}/{{name}}", {})
async def operator_page(call: RouteCall, name: str, asked: _OperatorParameters) -> Response:
    """Return the page of an operator; with `key`, that of a key."""
    alias = call.job.alias
    if not call.token.sees(alias, name):
        raise forbidden(f"{alias}/{name}")
    facts = await facts_of_job(call.job, call.token, await _shown(call), _EPOCHS)
    operator = _operator(facts, name)
    given = call.query_params
    if asked.field is not None:
        text = json_text(typed_key(operator["key"], given.getlist("field")))
        return RedirectResponse(Addresses(call).to(alias, name, key=text), 303)
    if asked.key is not None:
        shown = given.getlist("history"), given.getlist("all")
        return await key_page(call, facts, operator, asked.key, asked.epoch, *shown)
    is_counted = asked.count and _known(call) is None
    return page(
        call,
        "operator",
        [alias, name],
        **_live(facts),
        operator=operator,
        flow=facts.flow(name),
        ranking=await ranking_part(call, facts, operator, None, asked.by, is_counted),
        **shards_part(call, facts, name, None),
    )


def _operator(facts: JobFacts, operator: str) -> dict[str, Any]:
    found = facts.operator(operator)
    if found is None:
        raise Problem(404, "not_found", f"job {facts.job.alias} has no operator {operator!r:.200}")
    return found


class _StateParameters(BaseModel, extra="forbid"):
    """`field` may be there several times."""

    view: str | None = None
    start: str | None = None
    cursor: str | None = None
    prefix: str = ""
    epoch: EpochNumber = None
    by: Measure | None = None
    count: bool = False
    field: str | None = None
    after: str = ""
    format: str | None = None


@routes.get(f"{PAGES}{{job}}/{{operator}}/{{state}}", {})
async def page_of_state(
    call: RouteCall, operator: str, state: str, given: _StateParameters
) -> Response:
    """Return the page of a state, its live changes, or all of its rows as a file."""
    own = call.job
    if call.watches:
        last = call.header(b"last-event-id") or given.after
        watch = PageWatch(call, (operator, state), given.prefix, last)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(watch.events(), 200, headers, EVENT_STREAM)
    if given.format is not None and not is_of_other_site(call):
        return await _file(call, operator, state, given.format)
    facts = await facts_of_job(own, call.token, await _shown(call), _EPOCHS_OF_STATE, operator)
    described = _operator(facts, operator)
    if given.field is not None:
        text = json_text(typed_key(described["key"], call.query_params.getlist("field")))
        to = Addresses(call).to(own.alias, operator, state, start=text, epoch=given.epoch)
        return RedirectResponse(to, 303)
    shown = call.header(b"statekit-shown") or ""
    asked = StateAsked(
        given.view,
        given.start or None,
        given.cursor,
        given.prefix,
        given.epoch,
        given.by,
        given.count,
        int(shown) if shown.isdecimal() and len(shown) < 18 else None,
    )
    return await state_page(call, facts, described, state, asked, _known(call) is not None)


async def _file(call: RouteCall, operator: str, state: str, to: str) -> Response:
    """Return all rows of a state as a file to save."""
    format_ = next((each for each in MEDIA_TYPES if each == to), None)
    if format_ is None:
        raise bad_request(f"format={to!r:.50}: give one of {', '.join(MEDIA_TYPES)}")
    view = call.job.last()
    if state not in view.record(operator).holds:
        raise QueryError(f"operator {operator!r} has no state {state!r:.200}")
    asked = Asked(operator, state, format_, False)
    found = await call.served.tables.response(call.job, view, asked, call)
    name = f"{call.job.alias}-{operator}-{state}.{to}"
    found.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return found
