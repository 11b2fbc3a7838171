"""Pages of the dashboard, rendered on the server.

/-/                                  the jobs; POST signs in and out
/-/sql?job=&sql=                     a query and its result
/-/submitted                         the submitted jobs
/-/submitted/{name}                  a submitted job; POST changes it
/-/{job}                             a job
/-/{job}/{operator}?key=             an operator, or everything that it has for a key
/-/{job}/{operator}/{state}?view=    a state

With the header `Statekit-Known`, the identity of an epoch, the pages of a job wait a while for
another epoch before they answer.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.errors import StatekitError
from statekit.server.admission.callers import PAGES, check_typed, cookie_name
from statekit.server.admission.limits import read_body
from statekit.server.answers.problems import Problem
from statekit.server.dashboard import operator_page, sql_page, state_page, submitted_page
from statekit.server.dashboard.job_facts import JobFacts, facts_of_job, last_facts
from statekit.server.dashboard.page_answers import (
    is_of_other_site,
    page,
    problem_page,
    sign_in_page,
)
from statekit.server.dashboard.plan import picture_of
from statekit.server.dashboard.texts import count, duration
from statekit.server.jobs.served_job import JobSummary, ServedJob
from statekit.server.routes.call import RouteCall, Served
from statekit.server.routes.route_table import RoutedApp, RouteTable

routes = RouteTable(
    *(sql_page.routes, submitted_page.routes, operator_page.routes, state_page.routes)
)

_JOBS_PAUSE_MS = 3000
"""Pause of a browser between two requests for news."""

_EPOCHS, _EPOCHS_OF_CARD = 120, 60
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
    cards = [await _card(call, job) for alias, job in served.jobs.items() if token.sees(alias)]
    return page(call, "jobs", known="jobs", pause=_JOBS_PAUSE_MS, jobs=cards)


async def _card(call: RouteCall, job: ServedJob) -> dict[str, Any]:
    summary = job.summary()
    facts = None
    if summary["epoch"] is not None:
        try:
            facts = await facts_of_job(call, job, job.last(), _EPOCHS_OF_CARD)
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


@routes.get(f"{PAGES}{{job}}", {})
async def job_page(call: RouteCall) -> Response:
    """Return the page of a job: numbers, plan, epochs over time, operators with their states, and
    mirrors.
    """
    facts = await last_facts(call, _EPOCHS)
    last = facts.epochs[-1]["operators"] if facts.epochs else {}
    plan = picture_of(facts.operators, last)
    shown: dict[str, Any] = {"numbers": facts.numbers(), "charts": facts.charts()}
    shown["failure"] = facts.failure()
    return facts.page("job", plan=plan, mirrors=facts.mirrors(), **shown)
