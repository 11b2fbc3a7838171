"""Calls: requests on their way through a route, and the resources of the server.

The handlers of all routes get a `RouteCall`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from statekit.query.replica.view import View
from statekit.server.admission.access import Access, Token, forbidden
from statekit.server.admission.callers import token_of
from statekit.server.admission.limits import Rates
from statekit.server.admission.options import ServerOptions
from statekit.server.admission.queues import Admission
from statekit.server.answers.places import Places
from statekit.server.answers.problems import Problem, response_of
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.live import LiveChanges
from statekit.server.jobs.metrics import Metrics
from statekit.server.jobs.rankings import Rankings
from statekit.server.jobs.served_job import ServedJob
from statekit.server.jobs.sql_queries import Queries
from statekit.server.jobs.tables import Tables
from statekit.server.jobs.wanted import Wanted
from statekit.server.jobs.watch import EVENT_STREAM
from statekit.service.job_service import JobService

MESSAGE_PACK = "application/vnd.msgpack"


@dataclass(frozen=True)
class Served:
    """The jobs and resources with which the routes answer requests.

    Parameters:
        jobs: by alias.
        access: the tokens, and the states that each may read.
        options: of the server.
        rates: limit the requests of each token.
        tables: the files of states.
        live: the states with watchers.
        metrics: of the server.
        queries: runs SQL of requests.
        rankings: ranks keys.
        admission: the queues of requests that wait or take long.
        places: the places that answers must not contain.
        disk: of the server.
        service: runs submitted jobs; None on a server that runs none.
    """

    jobs: Mapping[str, ServedJob]
    access: Access
    options: ServerOptions
    rates: Rates
    tables: Tables
    live: LiveChanges
    metrics: Metrics
    queries: Queries
    rankings: Rankings
    admission: Admission
    places: Places
    disk: Disk
    service: JobService | None = None

    def token(self, scope: Scope) -> Token:
        """Return the token of a request, and count the request.

        Raises:
            Problem: the token is absent or unknown, or it has made too many requests.
        """
        token = token_of(scope)
        self.rates.count(token.name)
        return token

    def job(
        self, token: Token, alias: str, operator: str | None = None, state: str | None = None
    ) -> ServedJob:
        """Return a job, after checking that the token may read the state, or any state of the job.

        Raises:
            Problem: the token may not read it, or there is no such job.
        """
        place = [part for part in (alias, operator, state) if part is not None]
        is_whole = len(place) == 1
        if not (token.sees(alias) if is_whole else token.may_read(*place)):
            raise forbidden("/".join(place))
        if alias not in self.jobs:
            raise Problem(404, "not_found", f"no job is served as {alias!r:.100}")
        return self.jobs[alias]

    def refusal(self, problem: Problem) -> Response:
        """Return the response with a problem. Names replace the places in its text."""
        return response_of(self.places.hidden(problem))


class RouteCall(Request):
    """A request on its way through a route.

    Attributes:
        served: the jobs and resources of the server.
        token: its token. A request to an open route has none.
        job: the job in its path, of which the token may read what the path names.
    """

    token: Token
    job: ServedJob

    def __init__(self, scope: Scope, receive: Receive, served: Served) -> None:
        super().__init__(scope, receive)
        self.served = served

    async def wait(self, event: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for an event, and return whether it happened in time.

        Raises:
            Problem: too many requests wait already, or the client has left.
        """
        return await self.served.admission.wait(event, timeout_s, self, self.token.name)

    async def view(self, wanted: Wanted, operator: str | None = None) -> View:
        """Return a view of the epoch of the job that the request asks for.

        Raises:
            Problem: as for `ServedJob.view`.
        """
        return await self.job.view(wanted, operator, self.wait)

    def may_read(self, operator: str, state: str = "") -> bool:
        """Return whether the token may read a state of the job, or all of an operator."""
        return self.token.may_read(self.job.alias, operator, state)

    def header(self, name: bytes) -> str | None:
        """Return the first value of a header; None if the request does not have it.

        Parameters:
            name: in lower case.
        """
        for own, value in self.scope["headers"]:
            if own == name:
                text: str = value.decode("latin-1")
                return text
        return None

    @property
    def known_tag(self) -> str | None:
        """The tag of the value that the client has."""
        return self.header(b"if-none-match")

    @property
    def watches(self) -> bool:
        """True if the request asks for events."""
        accept = self.header(b"accept")
        return accept is not None and EVENT_STREAM in accept and self.method == "GET"
