"""The ASGI application: the routes, the problems and the lifecycle of served jobs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.errors import StatekitError
from statekit.server.access import Access
from statekit.server.admission import Admission
from statekit.server.assets import router as assets_router
from statekit.server.callers import Callers
from statekit.server.direct_reads import SingleReads, StoredReads
from statekit.server.disk import Disk
from statekit.server.hosts import KnownHosts
from statekit.server.insight_routes import router as insight_router
from statekit.server.limits import Limits
from statekit.server.live import LiveChanges
from statekit.server.metrics import Metrics
from statekit.server.observed import MeasuredApp
from statekit.server.openapi import Documents
from statekit.server.openapi import router as openapi_router
from statekit.server.places import Places
from statekit.server.problems import Problem, bad_request, problem_of, response_of
from statekit.server.proxies import Network, TrustedProxies
from statekit.server.rankings import Rankings
from statekit.server.routes import Served, router
from statekit.server.served_job import ServedJob
from statekit.server.sql_queries import Queries
from statekit.server.tables import Tables
from statekit.server.time_limit import TimeLimit

_CONDITIONS = (
    *("If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since"),
    "Range",
)
_GIVEN = ("Authorization", "Content-Type", "Last-Event-ID", *_CONDITIONS)
_EXPOSED = (
    *("Accept-Ranges", "Content-Range", "ETag", "Retry-After", "Statekit-Epoch"),
    "Statekit-Is-Cut",
)
"""Headers of answers that pages of other sites may read. `_GIVEN` are those they may send."""

_logger = logging.getLogger("statekit.server")


class Application:
    """ASGI application that serves jobs. It closes them when it ends.

    Parameters:
        jobs: by alias.
        access: the tokens, and the states that each may read.
        hosts: names of the server that requests may use; "*" for all. They keep a page of another
            site, whose name resolves to this machine, from reading a server without tokens.
        limits: of requests.
        disk: of the server.
        origins: sites whose pages may read the server.
        proxies: networks of the proxies whose `X-Forwarded-For` is trusted.
    """

    def __init__(
        self,
        jobs: Mapping[str, ServedJob],
        access: Access,
        hosts: Sequence[str],
        limits: Limits,
        disk: Disk,
        origins: Sequence[str] = (),
        proxies: Sequence[Network] = (),
    ) -> None:
        admission = Admission(limits)
        metrics = Metrics(jobs, admission, disk)
        self._served = served = Served(
            jobs=jobs,
            access=access,
            limits=limits,
            tables=Tables(disk, admission),
            live=LiveChanges(),
            metrics=metrics,
            queries=Queries(disk, admission),
            rankings=Rankings(limits.ranking_bytes, disk.below("rankings"), admission),
            admission=admission,
            places=_places(jobs, disk),
            disk=disk,
        )
        app = FastAPI(title="statekit", lifespan=self._life, openapi_url=None)
        app.state.served = served
        for routes in (openapi_router, assets_router, insight_router, router):
            app.include_router(routes)
            app.include_router(_heads_of(routes))
        app.state.documents = Documents(app, served)
        _answer_problems(app)
        limited = TimeLimit(StoredReads(app, served), limits.seconds)
        reads = KnownHosts(SingleReads(limited, served), hosts)
        callers = Callers(reads, access, limits.refusals_per_s)
        self._app = TrustedProxies(MeasuredApp(_for_origins(callers, origins), metrics), proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def end_streams(self) -> None:
        """End all event streams, which have no end of their own, all waits, and all long work."""
        self._served.live.close()
        self._served.admission.end()
        self._served.tables.end()
        for job in self._served.jobs.values():
            job.end_waits()

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        for job in self._served.jobs.values():
            job.start()
        yield
        self.end_streams()
        await self._served.admission.close()
        self._served.queries.close()
        for job in self._served.jobs.values():
            job.close()
        self._served.disk.close()


def _for_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an application whose answers, including errors, pages of these sites may read."""
    if not origins:
        return app
    return _Origins(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=_GIVEN,
        expose_headers=_EXPOSED,
        max_age=600,
    )


def _heads_of(routes: APIRouter) -> APIRouter:
    """Return a HEAD route for each GET route. The server leaves the content out."""
    heads = APIRouter()
    for route in routes.routes:
        if isinstance(route, APIRoute) and "GET" in (route.methods or ()):
            heads.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )
    return heads


class _Origins(CORSMiddleware):
    """Lets pages of allowed sites read, and answers all other sites with a problem."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        detail = "a page of this site may not send this request: see --allow-origin"
        return response_of(Problem(400, "forbidden_origin", detail, {"Vary": "Origin"}))


def _answer_problems(app: FastAPI) -> None:
    app.add_exception_handler(Problem, _of_problem)
    app.add_exception_handler(StatekitError, _of_error)
    app.add_exception_handler(RequestValidationError, _of_parameters)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _of_fault)


def _places(jobs: Mapping[str, ServedJob], disk: Disk) -> Places:
    checkpoints = {f"job {alias!r}": job.checkpoint for alias, job in jobs.items()}
    return Places(checkpoints, [disk.directory, *(job.replica.directory for job in jobs.values())])


async def _of_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    served: Served = request.app.state.served
    return served.refusal(error)


async def _of_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StatekitError)
    return await _of_problem(request, problem_of(error))


async def _of_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()]
    return response_of(bad_request("; ".join(faults)))


async def _of_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return response_of(Problem(error.status_code, kind, str(error.detail), headers))


async def _of_fault(_: Request, error: Exception) -> Response:
    _logger.error("a request failed", exc_info=error)
    return response_of(Problem(500, "internal", "the server failed: its log says why"))
