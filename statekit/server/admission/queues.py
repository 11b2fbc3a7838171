"""Admission: the queues of requests that wait or take long, in one class.

A queue has places for requests, and turns for the ones that run at a time. `queues_of` declares
all of them. A request without a place gets 503, with `Retry-After`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from statekit.clock import stopwatch_s
from statekit.server.admission.limits import Queue, queues_of
from statekit.server.admission.options import ServerOptions
from statekit.server.answers.problems import client_left, closing, too_many

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[[Callable[[], bool]], T]
"""A function that a thread calls with a check: it returns whether the result is unwanted."""

_POLL_S = 0.2
"""Seconds between two checks of a waiting request that its client is still connected."""

_PAUSE_MAX_S = 0.5


class _Places:
    """The places and turns of one queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.of_token = Counter[str | None]()
        self.turns = asyncio.Semaphore(queue.at_once)
        self.turns_of_token: dict[str | None, asyncio.Semaphore] = {}

    def enter(self, token: str | None) -> None:
        queue = self.queue
        if self.of_token.total() >= queue.most:
            raise too_many(f"too many {queue.what} already: try again", queue.retry_s)
        if token is not None and self.of_token[token] >= queue.of_token:
            detail = f"too many {queue.what} already for this token: try again"
            raise too_many(detail, queue.retry_s)
        self.of_token[token] += 1

    def leave(self, token: str | None) -> None:
        self.of_token[token] -= 1
        if not self.of_token[token]:
            del self.of_token[token]
            self.turns_of_token.pop(token, None)

    def own_turns(self, token: str | None) -> asyncio.Semaphore:
        """Return the turns of a token that has a place."""
        most = self.queue.at_once_of_token
        return self.turns_of_token.setdefault(token, asyncio.Semaphore(most))


class _Piece:
    """One piece of work in a queue.

    Parameters:
        same: a value that is equal for equal work; None if it is not shared.

    Attributes:
        task: the task that waits for its turn and runs the work.
        requests: the requests that wait for the result.
        is_running: True once its turn has come.
        ends: set once nobody wants the result.
    """

    task: asyncio.Task[Any]

    def __init__(self, same: Hashable | None) -> None:
        self.same = same
        self.requests: list[Request] = []
        self.is_running = False
        self.ends = threading.Event()

    def end(self) -> None:
        """End the work: it is never started, or its thread is asked to stop."""
        self.ends.set()
        if not self.is_running:
            self.task.cancel()


class Admission:
    """Admits requests to the queues of a server.

    If single reads arrive during a turn of a queue that `gives_way`, a pause of the same length
    follows that turn. Otherwise the reads would follow each other directly, and single reads would
    always share the interpreter.

    Parameters:
        options: with the limits of the queues.

    Attributes:
        single_reads: number of single reads so far. The code that answers one counts it.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.single_reads = 0
        self._queues = {name: _Places(queue) for name, queue in queues_of(options).items()}
        self._pieces: set[_Piece] = set()
        self._is_closing = False

    def taken(self, queue: str) -> int:
        """Return the number of taken places of a queue."""
        return self._queues[queue].of_token.total()

    def enter(self, queue: str, token: str | None = None) -> Callable[[], None]:
        """Take a place of a queue, and return the function that gives it back.

        Parameters:
            token: the name of the request's token; None if its places are not limited.

        Raises:
            Problem: no place is left.
        """
        places = self._queues[queue]
        places.enter(token)
        return lambda: places.leave(token)

    @contextmanager
    def place(self, queue: str, token: str | None = None) -> Iterator[None]:
        """Hold a place of a queue.

        Raises:
            Problem: no place is left.
        """
        leave = self.enter(queue, token)
        try:
            yield
        finally:
            leave()

    @asynccontextmanager
    async def turn_of(self, queue: str, token: str) -> AsyncIterator[None]:
        """Wait for a turn of a queue and of a token that has a place in it, and hold it."""
        async with self._queues[queue].own_turns(token), self.turn(queue):
            yield

    @asynccontextmanager
    async def turn(self, queue: str) -> AsyncIterator[None]:
        """Wait for a turn of a queue, in order of arrival, and hold it."""
        places = self._queues[queue]
        await places.turns.acquire()
        singles, began_s = self.single_reads, stopwatch_s()
        try:
            yield
        finally:
            pauses = places.queue.gives_way and self.single_reads != singles
            pause_s = min(stopwatch_s() - began_s, _PAUSE_MAX_S) if pauses else 0.0
            asyncio.get_running_loop().call_later(pause_s, places.turns.release)

    async def wait(
        self, event: asyncio.Future[Any], timeout_s: float, request: Request, token: str
    ) -> bool:
        """Wait for an event for a request, and return whether it happened in time.

        Parameters:
            token: the name of the request's token.

        Raises:
            Problem: too many requests wait already, or the client has left.
        """
        until_s = stopwatch_s() + timeout_s
        with self.place("waits", token):
            while not event.done() and (left_s := until_s - stopwatch_s()) > 0:
                await asyncio.wait([event], timeout=min(left_s, _POLL_S))
                if await request.is_disconnected():
                    raise client_left()
        return event.done()

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that reads many rows in a thread, and return its result.

        Raises:
            Exception: the function raised it.
        """
        async with self.turn("reads"):
            return await run_in_threadpool(function, *args, **kwargs)

    async def run(
        self,
        queue: str,
        work: Work[T],
        request: Request,
        *,
        token: str | None = None,
        same: Hashable | None = None,
    ) -> T:
        """Run long work for a request in a thread, and return its result.

        Parameters:
            token: the name of the request's token; None if its places are not limited.
            same: a value that is equal for equal work, which then runs once for all its requests.

        Raises:
            Problem: no place is left, the client has left, or the server ends.
        """
        await self._check_wanted(request)
        piece = self._shared(same) or self._begun(queue, work, token, same)
        piece.requests.append(request)
        try:
            while not piece.task.done():
                await asyncio.wait([piece.task], timeout=_POLL_S)
                await self._check_wanted(request)
            if piece.task.cancelled():  # before its turn, as the server ends
                raise closing()
            result: T = piece.task.result()
            return result
        finally:
            piece.requests.remove(request)
            if not piece.requests:
                piece.end()

    async def _check_wanted(self, request: Request) -> None:
        if self._is_closing:
            raise closing()
        if await request.is_disconnected():
            raise client_left()

    def _shared(self, same: Hashable | None) -> _Piece | None:
        """Return equal work that runs or waits; None if there is none."""
        if same is None:
            return None
        found = (each for each in self._pieces if each.same == same and not each.ends.is_set())
        return next(found, None)

    def _begun(
        self, queue: str, work: Work[Any], token: str | None, same: Hashable | None
    ) -> _Piece:
        leave = self.enter(queue, token)
        piece = _Piece(same)
        piece.task = asyncio.ensure_future(self._ran(queue, piece, work))
        self._pieces.add(piece)

        def end(task: asyncio.Task[Any]) -> None:
            leave()
            self._pieces.discard(piece)
            if not task.cancelled():
                task.exception()  # asyncio logs an error that is never retrieved

        piece.task.add_done_callback(end)
        return piece

    async def _ran(self, queue: str, piece: _Piece, work: Work[T]) -> T:
        async with self.turn(queue):
            if all([await request.is_disconnected() for request in piece.requests]):
                raise client_left()
            piece.is_running = True
            return await run_in_threadpool(work, piece.ends.is_set)

    def end(self) -> None:
        """End all work, and answer all requests that wait for it."""
        self._is_closing = True
        for piece in tuple(self._pieces):
            piece.end()

    async def close(self) -> None:
        """End all work, and wait until its threads have ended."""
        self.end()
        if tasks := [piece.task for piece in self._pieces]:
            await asyncio.wait(tasks)
