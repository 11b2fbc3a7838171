"""Work of requests that takes long: a few at a time, each only as long as its client waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from statekit.server.problems import Problem

T = TypeVar("T")

_POLL_S = 0.2


class LongWork:
    """Runs work in threads.

    Parameters:
        what: its name in errors, in the plural.
        at_once: how many run at a time.
        waiting_max: how many more may wait.
    """

    def __init__(self, what: str, at_once: int, waiting_max: int = 16) -> None:
        self._what = what
        self._running = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._waiting_max = waiting_max

    async def run(self, request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
        """Return the result of some work for a request.

        Parameters:
            work: is called in a thread, with a function that tells whether the result is unwanted.

        Raises:
            Problem: too many wait already.
        """
        if self._waiting >= self._waiting_max:
            raise Problem(
                503,
                "too_many",
                f"too many {self._what} wait already: try again",
                {"Retry-After": "5"},
            )
        self._waiting += 1
        try:
            async with self._running:
                return await _while_wanted(request, work)
        finally:
            self._waiting -= 1


async def _while_wanted(request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
    ends = threading.Event()
    running = asyncio.ensure_future(run_in_threadpool(work, ends.is_set))
    try:
        while not running.done():
            await asyncio.wait([running], timeout=_POLL_S)
            if await request.is_disconnected():
                ends.set()
        return running.result()
    finally:
        ends.set()
