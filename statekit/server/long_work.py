"""Long work: work for requests, a few at a time, each only while a client waits for it."""

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
"""A function that a thread calls with a check: it returns whether the result is unwanted."""

_POLL_S = 0.2


class _Place:
    """One piece of work in the queue.

    Parameters:
        token: the name of the token that has started it; None if its places are not limited.
        same: a value that is equal for equal work; None if it is not shared.

    Attributes:
        task: the task that waits for its turn and runs the work.
        requests: the requests that wait for the result.
        is_running: True once its turn has come.
        ends: set once nobody wants the result.
    """

    task: asyncio.Task[Any]

    def __init__(self, token: str | None, same: Hashable | None) -> None:
        self.token, self.same = token, same
        self.requests: list[Request] = []
        self.is_running = False
        self.ends = threading.Event()

    def end(self) -> None:
        """End the work: it is never started, or its thread is asked to stop."""
        self.ends.set()
        if not self.is_running:
            self.task.cancel()


class LongWork:
    """Runs long work in threads.

    Parameters:
        what: the name of the work in errors, in the plural.
        at_once: number of pieces of work that run at a time.
        waiting_max: limit of pieces of work that run or wait.
        of_token: limit of such pieces of one token; None for no limit.
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
        """Run work for a request, and return its result.

        Parameters:
            token: the name of the request's token; None if its places are not limited.
            same: a value that is equal for equal work, which then runs once for all its requests.

        Raises:
            Problem: too much work waits already, the client has left, or the server ends.
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
        """Return equal work that runs or waits; None if there is none."""
        if same is None:
            return None
        found = (p for p in self._places if p.same == same and not p.ends.is_set())
        return next(found, None)

    def _begun(self, work: Work[Any], token: str | None, same: Hashable | None) -> _Place:
        """Queue new work, and return its place."""
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
            task.exception()  # asyncio logs an error that is never retrieved

    def end(self) -> None:
        """End all work, and answer all requests that wait for it."""
        self._is_closing = True
        for place in tuple(self._places):
            place.end()

    async def close(self) -> None:
        """End all work, and wait until its threads have ended."""
        self.end()
        if tasks := [place.task for place in self._places]:
            await asyncio.wait(tasks)
