"""Work of requests that takes long: a few at a time, each only as long as a client waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from statekit.server.problems import client_left, closing, too_many

T = TypeVar("T")

Work = Callable[[Callable[[], bool]], T]
"""Is called in a thread, with a function that tells whether the result is unwanted."""

_POLL_S = 0.2


class _Place:
    """One piece of work in the queue.

    Parameters:
        token: the name of the token that has begun it; None if its places are not limited.
        same: what equal work has, too; None if it is not shared.

    Attributes:
        task: waits for its turn, and runs the work.
        requests: those that wait for the result.
        is_running: whether its turn has come.
        ends: is set once nobody wants the result.
    """

    task: asyncio.Task[Any]

    def __init__(self, token: str | None, same: Hashable | None) -> None:
        self.token, self.same = token, same
        self.requests: list[Request] = []
        self.is_running = False
        self.ends = threading.Event()

    def end(self) -> None:
        """End the work: it is never begun, or its thread is asked to stop."""
        self.ends.set()
        if not self.is_running:
            self.task.cancel()


class LongWork:
    """Runs work in threads.

    Parameters:
        what: its name in errors, in the plural.
        at_once: how many run at a time.
        waiting_max: how many may run or wait.
        of_token: how many of these may be of one token.
    """

    def __init__(
        self, what: str, at_once: int, waiting_max: int = 16, of_token: int | None = None
    ) -> None:
        self._what = what
        self._turns = asyncio.Semaphore(at_once)
        self._waiting_max, self._of_token = waiting_max, of_token
        self._places: set[_Place] = set()
        self._is_closing = False

    async def run(
        self,
        request: Request,
        work: Work[T],
        *,
        token: str | None = None,
        same: Hashable | None = None,
    ) -> T:
        """Return the result of some work for a request.

        Parameters:
            token: the name of the request's token, if it may hold only so many places.
            same: what equal work has, too: it runs once for all requests that wait for it.

        Raises:
            Problem: too many wait already, the client has left, or the server ends.
        """
        if self._is_closing:
            raise closing()
        if await request.is_disconnected():
            raise client_left()
        place = self._shared(same) or self._begun(work, token, same)
        place.requests.append(request)
        try:
            while not place.task.done():
                await asyncio.wait([place.task], timeout=_POLL_S)
                if self._is_closing:
                    raise closing()
                if await request.is_disconnected():
                    raise client_left()
            if place.task.cancelled():  # before its turn, as the server ends
                raise closing()
            result: T = place.task.result()
            return result
        finally:
            place.requests.remove(request)
            if not place.requests:
                place.end()

    def _shared(self, same: Hashable | None) -> _Place | None:
        """Return equal work that goes on."""
        if same is None:
            return None
        found = (p for p in self._places if p.same == same and not p.ends.is_set())
        return next(found, None)

    def _begun(self, work: Work[Any], token: str | None, same: Hashable | None) -> _Place:
        """Return new work in the queue."""
        of_token = sum(place.token == token for place in self._places)
        is_of_many = token is not None and self._of_token is not None
        if len(self._places) >= self._waiting_max:
            raise too_many(f"too many {self._what} wait already: try again", retry_s=5)
        if is_of_many and self._of_token is not None and of_token >= self._of_token:
            raise too_many(
                f"{of_token} {self._what} of this token run or wait already: try again", retry_s=5
            )
        place = _Place(token, same)
        place.task = asyncio.ensure_future(self._ran(place, work))
        self._places.add(place)
        place.task.add_done_callback(lambda task: self._leave(place, task))
        return place

    async def _ran(self, place: _Place, work: Work[T]) -> T:
        async with self._turns:
            if all([await request.is_disconnected() for request in place.requests]):
                raise client_left()
            place.is_running = True
            return await run_in_threadpool(work, place.ends.is_set)

    def _leave(self, place: _Place, task: asyncio.Task[Any]) -> None:
        self._places.discard(place)
        if not task.cancelled():
            task.exception()  # nobody may be there any more who retrieves it

    def end(self) -> None:
        """End all work, and answer all requests that wait for it."""
        self._is_closing = True
        for place in tuple(self._places):
            place.end()

    async def close(self) -> None:
        """End all work, and return when its threads have ended."""
        self.end()
        if tasks := [place.task for place in self._places]:
            await asyncio.wait(tasks)
