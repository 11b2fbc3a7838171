"""Time limit: the longest time from a request to the start of its answer."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statekit.server.problems import Problem, response_of


class TimeLimit:
    """Ends requests whose answer does not start in time. A started answer has no limit: a stream of
    events has no end, and a file may have a slow reader.

    Parameters:
        app: the application that answers requests.
        seconds: the limit, in seconds.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = asyncio.timeout(self._seconds)

        async def beginning(message: Message) -> None:
            limit.reschedule(None)
            await send(message)

        try:
            async with limit:
                await self._app(scope, receive, beginning)
        except TimeoutError:
            if not limit.expired():
                raise
            problem = Problem(
                503,
                "timeout",
                f"the answer took more than {self._seconds:g} s: ask for less, or try again",
                {"Connection": "close"},  # the rest of the body may still come
            )
            await response_of(problem)(scope, receive, send)
