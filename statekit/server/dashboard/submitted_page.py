"""Pages of submitted jobs: their status, and forms that start, stop and change them.

The forms work without JavaScript. Browsers send the cookie with the token only with forms of this
site; each form has a text that follows from the token, too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from statekit.errors import StateTypeError
from statekit.server.admission.callers import FORMS
from statekit.server.admission.limits import read_body
from statekit.server.answers.problems import Problem
from statekit.server.dashboard.page_answers import page
from statekit.server.routes.call import RouteCall
from statekit.server.routes.route_table import RouteTable
from statekit.server.routes.submitted_routes import (
    check_own_site,
    job_service_of,
    managed,
    shown_jobs,
)
from statekit.service.job_service import JobService

routes = RouteTable()

_PAUSE_MS = 3000
_LOG_LINES = 60
_REASON_SHOWN = 300
_LINE_SHOWN = 120
"""The most characters of a reason in the list, where 100 jobs may have failed."""

_KINDS = {
    "running": "good",
    "ended": "good",
    "stopped": "wait",
    "starting": "wait",
    "stopping": "wait",
    "waiting": "bad",
    "working": "wait",
    "deleting": "wait",
    "failed": "bad",
}
"""The colour of each status."""


def _deleted(service: JobService, name: str, typed: str) -> dict[str, Any]:
    if typed != name:
        raise StateTypeError(f"to delete the job, type its name, {name}")
    return service.delete(name)


_ACTIONS: dict[str, Callable[[JobService, str, str], dict[str, Any]]] = {
    "start": lambda service, name, _: service.start(name),
    "stop": lambda service, name, _: service.stop(name),
    "delete": _deleted,
    "restart": lambda service, name, _: service.restart(name),
    "rescale": lambda service, name, given: service.rescale(name, _number(given)),
    "rollback": lambda service, name, given: service.roll_back(name, _number(given), None),
    "savepoint": lambda service, name, given: service.save(name, given, None),
}
"""What the forms do, with the text that was typed."""


@routes.get(FORMS, {})
async def submitted_page(call: RouteCall) -> Response:
    """Return the page of the submitted jobs that the token may manage."""
    jobs = await run_in_threadpool(shown_jobs, job_service_of(call), call.token)
    return _page(call, "submitted", jobs=list(map(_shown, jobs)))


@routes.get(f"{FORMS}/{{name}}", {})
async def submitted_job_page(call: RouteCall, name: str) -> Response:
    """Return the page of a submitted job, with its log."""
    service = managed(call, name)
    job = await run_in_threadpool(service.job, name)
    log = await run_in_threadpool(service.log, name, _LOG_LINES)
    return _page(call, "submitted-job", job=_shown(job), log="\n".join(log))


@routes.post(f"{FORMS}/{{name}}", {})
async def change_from_page(call: RouteCall, name: str) -> Response:
    """Change a job by a form of a page.

    Raises:
        Problem: another site sent it, or the token may not manage the job.
    """
    service = managed(call, name)
    check_own_site(call)
    form = parse_qs((await read_body(call)).decode(errors="replace"))
    action, given, proof = (form.get(field, [""])[0] for field in ("action", "value", "form"))
    if not hmac.compare_digest(proof.encode(), _form(call).encode()):
        raise Problem(403, "forbidden", "the form is not of this page: load the page again")
    if action not in _ACTIONS:
        raise Problem(400, "bad_request", f"there is no action {action!r:.50}")
    await run_in_threadpool(_ACTIONS[action], service, name, given.strip())
    # Relative to the page of the job: a proxy may serve it below a path.
    is_of_job = form.get("from", [""])[0] == "job" and action != "delete"
    location = f"./{name}" if is_of_job else "../submitted"
    return RedirectResponse(location, 303, {"Cache-Control": "no-store"})


def _page(call: RouteCall, template: str, **context: Any) -> Response:
    """Return a page that asks for news, with the text that its forms send."""
    live = {**context, "known": "submitted", "pause": _PAUSE_MS}
    return page(call, template, form=_form(call), **live)


def _form(call: RouteCall) -> str:
    """Return the text that forms of the token have."""
    return hmac.new(call.token.sha256.encode(), b"forms", hashlib.sha256).hexdigest()


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise StateTypeError(f"{text!r:.50} is not a number: give one, such as 4")
    return int(text)


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a job with the fields of the templates."""
    reason = job["last_failure"] or ""
    line = reason.strip().partition("\n")[0]
    return {
        **job,
        "kind": _KINDS[job["status"]],
        "reason": reason[:_REASON_SHOWN],
        "reason_line": line if len(line) <= _LINE_SHOWN else f"{line[: _LINE_SHOWN - 1]}…",
        "is_to_run": job["desired"] == "running" and job["status"] not in ("failed", "ended"),
    }
