"""The ASGI application: the routes, the problems and the lifecycle of served jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.query.tables.child_process import ForkServer
from statekit.server.admission.access import Access
from statekit.server.admission.callers import Callers
from statekit.server.admission.hosts import KnownHosts
from statekit.server.admission.limits import Rates
from statekit.server.admission.options import ServerOptions
from statekit.server.admission.proxies import Network, TrustedProxies
from statekit.server.admission.queues import Admission
from statekit.server.answers.places import Places
from statekit.server.answers.problems import Problem, response_of
from statekit.server.dashboard.pages import Pages
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.live import LiveChanges
from statekit.server.jobs.metrics import Metrics
from statekit.server.jobs.priority import NICENESS
from statekit.server.jobs.rankings import Rankings
from statekit.server.jobs.served_job import ServedJob
from statekit.server.jobs.sql_queries import Queries
from statekit.server.jobs.tables import Tables
from statekit.server.observed import MeasuredApp
from statekit.server.routes import assets, job_routes, server_routes, state_routes, submitted_routes
from statekit.server.routes.call import Served
from statekit.server.routes.documents import documents_of
from statekit.server.routes.route_table import PATH_NAME, RoutedApp, RouteTable
from statekit.service.job_service import JobService

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

_RANKING_BYTES = 2 * 2**30
"""Memory limit of the process of a ranking."""

ROUTES = RouteTable(
    *(assets.routes, submitted_routes.routes, state_routes.routes),
    *(server_routes.routes, job_routes.routes),
)

RESERVED = {"docs", "openapi.json"} | {
    route.parts[0] for route in ROUTES.routes if not PATH_NAME.match(route.parts[0])
}
"""Names that are not allowed as aliases of jobs: addresses of the server begin with them."""


class Application:
    """ASGI application that serves jobs. It closes them when it ends.

    Parameters:
        jobs: by alias.
        access: the tokens, and the states that each may read.
        hosts: names of the server that requests may use; "*" for all. They keep a page of another
            site, whose name resolves to this machine, from reading a server without tokens.
        options: of the server.
        disk: of the server.
        proxies: networks of the proxies whose `X-Forwarded-For` is trusted.
        service: runs submitted jobs; None to run none.
    """

    def __init__(
        self,
        jobs: Mapping[str, ServedJob],
        access: Access,
        hosts: Sequence[str],
        options: ServerOptions,
        disk: Disk,
        proxies: Sequence[Network] = (),
        service: JobService | None = None,
    ) -> None:
        admission, self._forks = Admission(options), ForkServer(NICENESS)
        metrics = Metrics(jobs, admission, disk, service)
        self._served = served = Served(
            jobs=jobs,
            access=access,
            options=options,
            rates=Rates(options.rate),
            tables=Tables(disk, admission, self._forks),
            live=LiveChanges(),
            metrics=metrics,
            queries=Queries(disk, admission, self._forks),
            rankings=Rankings(_RANKING_BYTES, disk, admission, self._forks),
            admission=admission,
            places=_places(jobs, disk),
            disk=disk,
            service=service,
        )
        table = documents_of(ROUTES, served)
        answers = Pages(RoutedApp(table, served), served)
        callers = Callers(KnownHosts(answers, hosts), access, options.refusals)
        self._app = TrustedProxies(
            MeasuredApp(_for_origins(callers, options.allow_origin), metrics), proxies
        )
        self._lifespan = Router(lifespan=self._life)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._app if scope["type"] == "http" else self._lifespan)(scope, receive, send)

    def end_streams(self) -> None:
        """End all event streams, which have no end of their own, all waits, and all long work."""
        self._served.live.close()
        self._served.admission.end()
        self._served.tables.end()
        for job in self._served.jobs.values():
            job.end_waits()

    @asynccontextmanager
    async def _life(self, _: object) -> AsyncIterator[None]:
        for job in self._served.jobs.values():
            job.start()
        service = self._served.service
        if service is not None:
            service.supervisor.start()
        yield
        self.end_streams()
        if service is not None:
            await run_in_threadpool(service.close)
        await self._served.admission.close()
        self._forks.close()
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


class _Origins(CORSMiddleware):
    """Lets pages of allowed sites read, and answers all other sites with a problem."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        detail = "a page of this site may not send this request: see --allow-origin"
        return response_of(Problem(400, "forbidden_origin", detail, {"Vary": "Origin"}))


def _places(jobs: Mapping[str, ServedJob], disk: Disk) -> Places:
    checkpoints = {f"job {alias!r}": job.checkpoint for alias, job in jobs.items()}
    return Places(checkpoints, [disk.directory, *(job.replica.directory for job in jobs.values())])
