"""Routes of submitted jobs, for tokens that may manage them.

/submitted                        the jobs; submit one                  (GET, POST)
/submitted/{name}                 a job
/submitted/{name}/document        its document
/submitted/{name}/log             what it has printed
/submitted/{name}/start           let it run                                 (POST)
/submitted/{name}/stop            stop it after its epoch                    (POST)
/submitted/{name}/restart         let it run in a new process                (POST)
/submitted/{name}/delete          delete it, if it does not run              (POST)
/submitted/{name}/rescale         another parallelism                        (POST)
/submitted/{name}/rollback        back to an earlier epoch                   (POST)
/submitted/{name}/savepoint       write a savepoint                          (POST)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response
from typing_extensions import TypedDict

from statekit.server.admission.access import Token
from statekit.server.answers.problems import Problem
from statekit.server.jobs.served_job import Count, InstantText
from statekit.server.routes.call import RouteCall
from statekit.server.routes.responses import JSON, TEXT, answered
from statekit.server.routes.route_table import RouteTable
from statekit.service.job_service import LOG_LINES_MAX, JobService, Submission
from statekit.service.supervised_job import Status

routes = RouteTable()

PLACE = "/submitted"
_NAME = f"{PLACE}/{{name}}"


class DoneOperationAnswer(TypedDict):
    """The last rollback or savepoint of a job, and why it failed."""

    operation: Literal["rollback", "savepoint"]
    id: str
    error: str | None
    at: InstantText | None


class SubmittedJobAnswer(TypedDict):
    """A submitted job: what its users want of it, and what it does."""

    name: str
    status: Status
    desired: Literal["running", "stopped", "deleted"]
    process: Count | None
    checkpoint: str
    spark: str | None
    parallelism: Count | None
    follow: bool
    restart: str
    trigger: str | None
    heartbeat: str | None
    alert_after: str
    epoch: Count | None
    last_epoch_at: InstantText | None
    last_epoch_age_s: Count | None
    is_late: bool
    records_per_second: float | None
    lag: dict[str, Any]
    state_rows: Count | None
    state_bytes: Count | None
    failures: Count
    last_failure: str | None
    last_failure_at: InstantText | None
    operation: Literal["rollback", "savepoint"] | None
    done: DoneOperationAnswer | None


class SubmittedDocument(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a submission."""

    name: str
    document: Annotated[msgspec.Raw, msgspec.Meta(description="The job, as Job.to_json gives it.")]
    checkpoint: str | None = None
    settings: list[str] = []
    replace: bool = False
    spark: str | None = None
    parallelism: int | None = None
    follow: bool = True
    restart: str | None = None
    trigger: str | None = None
    heartbeat: str | None = None
    alert_after: str | None = None


class WantedParallelism(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rescale."""

    parallelism: Annotated[int, msgspec.Meta(ge=1)]


class EpochToGoBackTo(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rollback. `id` is unique: a request that is sent twice is done once."""

    epoch: Annotated[int, msgspec.Meta(ge=0)]
    id: str | None = None


class WantedSavepoint(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a savepoint. `id` is unique, as in a rollback."""

    name: str
    id: str | None = None


_JOB = {"200": answered("The job.", {JSON: SubmittedJobAnswer})}
_OF_JOB = (400, 404)


def managed(call: RouteCall, name: str) -> JobService:
    """Return the service, after checking that the token may manage a job.

    Raises:
        Problem: it may not, or this server runs no jobs.
    """
    service = job_service_of(call)
    if not call.token.may_manage(name):
        raise _forbidden(name)
    return service


def job_service_of(call: RouteCall) -> JobService:
    """Return the service of this server.

    Raises:
        Problem: it runs no jobs.
    """
    service = call.served.service
    if service is None:
        raise Problem(404, "not_found", "this server runs no jobs: start it with `statekit server`")
    return service


def _forbidden(name: str) -> Problem:
    detail = f"this token may not manage {name:.200}: ask for one that may (--manage)"
    return Problem(403, "forbidden", detail)


def check_own_site(call: RouteCall) -> None:
    """Check that no page of another site made a browser send a request.

    Raises:
        Problem: one did.
    """
    site, origin = call.headers.get("sec-fetch-site"), call.headers.get("origin")
    if site is not None:  # it holds behind a proxy, too
        is_other = site not in ("same-origin", "none")
    else:
        is_other = origin is not None and urlsplit(origin).netloc != call.headers.get("host")
    if is_other:
        raise Problem(403, "forbidden", "a page of another site may not change jobs here")


async def _changed(
    call: RouteCall, name: str, change: Callable[[JobService], dict[str, Any]]
) -> Response:
    service = managed(call, name)
    check_own_site(call)
    return JSONResponse(await run_in_threadpool(change, service))


def shown_jobs(service: JobService, token: Token) -> list[dict[str, Any]]:
    """Return the descriptions of the jobs that a token may manage."""
    return [job for name, job in service.jobs().items() if token.may_manage(name)]


@routes.get(
    PLACE,
    {"200": answered("The jobs.", {JSON: {"type": "array", "items": SubmittedJobAnswer}})},
    problems=(404,),
)
async def submitted(call: RouteCall) -> Response:
    """Return the submitted jobs that the token may manage."""
    return JSONResponse(await run_in_threadpool(shown_jobs, job_service_of(call), call.token))


@routes.post(PLACE, _JOB, problems=(*_OF_JOB, 413))
async def submit(call: RouteCall, asked: SubmittedDocument) -> Response:
    """Submit a job, or another document of one."""
    names = ("spark", "parallelism", "follow", "restart", "trigger", "heartbeat", "alert_after")
    submission = Submission(
        name=asked.name,
        document=bytes(asked.document).decode(errors="replace"),
        checkpoint=asked.checkpoint,
        settings=asked.settings,
        replace=asked.replace,
        options={name: getattr(asked, name) for name in names},
    )
    managed(call, asked.name)
    check_own_site(call)
    admission = call.served.admission
    with admission.place("submissions", call.token.name):
        async with admission.turn_of("submissions", call.token.name):
            return await _changed(call, asked.name, lambda service: service.submit(submission))


@routes.get(_NAME, _JOB, problems=_OF_JOB)
async def submitted_job(call: RouteCall, name: str) -> Response:
    """Return a submitted job."""
    return JSONResponse(await run_in_threadpool(managed(call, name).job, name))


@routes.get(
    f"{_NAME}/document",
    {"200": answered("The document.", {JSON: {"type": "object"}})},
    problems=_OF_JOB,
)
async def submitted_document(call: RouteCall, name: str) -> Response:
    """Return the document of a submitted job."""
    found = await run_in_threadpool(managed(call, name).document, name)
    return Response(found, media_type=JSON)


class LogParameters(BaseModel, extra="forbid"):
    """The part of a log."""

    lines: int = Field(200, ge=1, le=LOG_LINES_MAX, description="Number of the last lines.")


@routes.get(f"{_NAME}/log", {"200": answered("The lines.", {"text/plain": TEXT})}, problems=_OF_JOB)
async def submitted_log(call: RouteCall, name: str, asked: LogParameters) -> Response:
    """Return the last lines that a job has printed on the machine of this server."""
    lines = await run_in_threadpool(managed(call, name).log, name, asked.lines)
    return PlainTextResponse("".join(f"{line}\n" for line in lines))


class StartParameters(BaseModel, extra="forbid"):
    """How a job is started."""

    anew: bool = Field(
        False, description="Also with an empty checkpoint, or another one: outputs are repeated."
    )


@routes.post(f"{_NAME}/start", _JOB, problems=_OF_JOB)
async def start_submitted(call: RouteCall, name: str, asked: StartParameters) -> Response:
    """Let a job run. One that runs already goes on."""
    return await _changed(call, name, lambda service: service.start(name, anew=asked.anew))


@routes.post(f"{_NAME}/stop", _JOB, problems=_OF_JOB)
async def stop_submitted(call: RouteCall, name: str) -> Response:
    """Stop a job after its epoch, until it is started."""
    return await _changed(call, name, lambda service: service.stop(name))


@routes.post(f"{_NAME}/restart", _JOB, problems=_OF_JOB)
async def restart_submitted(call: RouteCall, name: str) -> Response:
    """Let a job run in a new process."""
    return await _changed(call, name, lambda service: service.restart(name))


@routes.post(f"{_NAME}/delete", _JOB, problems=_OF_JOB)
async def delete_submitted(call: RouteCall, name: str) -> Response:
    """Delete a job that does not run, with its log. Its checkpoint stays where it is."""
    return await _changed(call, name, lambda service: service.delete(name))


@routes.post(f"{_NAME}/rescale", _JOB, problems=(*_OF_JOB, 413))
async def rescale_submitted(call: RouteCall, name: str, asked: WantedParallelism) -> Response:
    """Give a job another parallelism. A running job starts again with it."""
    return await _changed(call, name, lambda service: service.rescale(name, asked.parallelism))


@routes.post(f"{_NAME}/rollback", _JOB, problems=(*_OF_JOB, 413))
async def roll_back_submitted(call: RouteCall, name: str, asked: EpochToGoBackTo) -> Response:
    """Continue a job from an earlier epoch."""
    return await _changed(
        call, name, lambda service: service.roll_back(name, asked.epoch, asked.id)
    )


@routes.post(f"{_NAME}/savepoint", _JOB, problems=(*_OF_JOB, 413))
async def save_submitted(call: RouteCall, name: str, asked: WantedSavepoint) -> Response:
    """Write a savepoint of a job, which may run meanwhile."""
    return await _changed(call, name, lambda service: service.save(name, asked.name, asked.id))
