"""Priority: single reads run before requests that take long.

Single reads run on the thread of the event loop. Pages, requests for many keys and files of small
states need the same interpreter. So only a few of them run at a time, and their threads give way to
the event loop soon. Processes of queries, rankings and files of large states have a lower priority
than the server.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool

from statekit.clock import stopwatch_s

P = ParamSpec("P")
T = TypeVar("T")

NICENESS = 5
"""Niceness of the processes of queries, rankings and files."""

_SWITCH_S = 0.0001
_AT_ONCE = 2
_PAUSE_MAX_S = 0.5


def prefer_single_reads() -> None:
    """Shorten the waits of single reads for other work in this process. Call it before serving.

    Threads give way to the event loop after a tenth of a millisecond. Python's default is 5 ms, and
    each request would wait that long several times. Garbage collection skips all present objects,
    such as modules: otherwise it would stop the event loop for 0.1 s every other second.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()


class Background:
    """Runs reads of many rows in threads, a few at a time. The others wait in order of arrival.

    If single reads arrive during such a read, a pause of the same length follows it. Otherwise the
    reads would follow each other directly, and single reads would always share the interpreter.

    Attributes:
        single_reads: number of single reads so far. The code that answers one counts it.
    """

    def __init__(self) -> None:
        self.single_reads = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and return its result.

        Raises:
            Exception: the function raised it.
        """
        await self._turns.acquire()
        singles, began_s = self.single_reads, stopwatch_s()
        try:
            return await run_in_threadpool(read, *args, **kwargs)
        finally:
            is_alone = self.single_reads == singles
            pause_s = 0.0 if is_alone else min(stopwatch_s() - began_s, _PAUSE_MAX_S)
            asyncio.get_running_loop().call_later(pause_s, self._turns.release)
