"""Waits: a limited number of requests that wait for an epoch while their clients are connected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from statekit.clock import stopwatch_s
from statekit.server.problems import client_left, too_many

_POLL_S = 0.5
"""Seconds between two checks of a waiting request that its client is still connected."""


class Waits:
    """Counts the requests that wait.

    Parameters:
        most: limit of waiting requests.
        of_token: limit of waiting requests of one token.
    """

    def __init__(self, most: int, of_token: int) -> None:
        self._most, self._of_token_max = most, of_token
        self._of_token = Counter[str]()

    @contextmanager
    def one(self, token: str) -> Iterator[None]:
        """Count a request of a token while it waits.

        Raises:
            Problem: too many requests wait already.
        """
        if self._of_token[token] >= self._of_token_max or self._of_token.total() >= self._most:
            raise too_many("too many requests wait for an epoch already: try again", retry_s=5)
        self._of_token[token] += 1
        try:
            yield
        finally:
            self._of_token[token] -= 1
            if not self._of_token[token]:
                del self._of_token[token]


@dataclass(frozen=True)
class Waiter:
    """A request that may wait for an epoch.

    Parameters:
        waits: of the server.
        request: its connection.
        token: the name of its token.
    """

    waits: Waits
    request: Request
    token: str

    async def wait(self, event: asyncio.Future[Any], timeout_s: float) -> bool:
        """Wait for an event, and return whether it happened in time.

        Raises:
            Problem: too many requests wait already, or the client has left.
        """
        until_s = stopwatch_s() + timeout_s
        with self.waits.one(self.token):
            while not event.done() and (left_s := until_s - stopwatch_s()) > 0:
                await asyncio.wait([event], timeout=min(left_s, _POLL_S))
                if await self.request.is_disconnected():
                    raise client_left()
        return event.done()
