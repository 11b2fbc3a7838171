"""Observed requests: counts of requests, and an access log without keys and values.

A line is `GET /shop/sales/total 200 1.3 ms 192.0.2.7 reports`: the method, job, operator and state;
status and time of the answer; the address of the client and the name of its token.
"""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statekit.clock import stopwatch_s
from statekit.server.admission.callers import token_name
from statekit.server.jobs.metrics import Metrics
from statekit.server.logs import ACCESS_LOG, printable_path
from statekit.server.routes.route_table import ROUTE

_access_log = logging.getLogger(ACCESS_LOG)


class MeasuredApp:
    """Measures the requests of an application, and logs them.

    Parameters:
        app: the application that answers requests.
        metrics: the counters.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = stopwatch_s(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.open_requests += 1
        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.open_requests -= 1
            self._note(scope, status, stopwatch_s() - began_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.answered(scope.get(ROUTE, "none"), status, seconds)
        if _access_log.isEnabledFor(logging.INFO):
            place, address = printable_path(_place(scope)), (scope.get("client") or ("-",))[0]
            facts = (scope["method"], place, status, 1000 * seconds, address, token_name(scope))
            _access_log.info("%s %s %d %.1f ms %s %s", *facts)


def _place(scope: Scope) -> str:
    """Return the address of a request without its key and parameters.

    >>> _place({"path": "/shop/sales/total/rome/5"})
    '/shop/sales/total'
    """
    return "/".join(scope["path"].split("/")[:4])
