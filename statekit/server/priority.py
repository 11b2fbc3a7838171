"""Priority: single reads go before requests that take long.

Single reads run on the thread of the event loop. Everything else needs the same interpreter: pages,
requests for many keys and files of small states. So few of them run at a time, and each gives way
soon. Processes of queries, rankings and files of large states have a lower priority than the
server.
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
"""Of processes of queries, rankings and files."""

_SWITCH_S = 0.0001
_AT_ONCE = 2
_PAUSE_MAX_S = 0.5


def prefer_single_reads() -> None:
    """Let single reads wait for nothing else in this process for long, once it is ready to serve.

    Threads give way to the event loop after a tenth of a millisecond. Python's own interval is
    5 ms, which each request would wait for several times. Collections of garbage leave out modules
    and all else that is there already: they would stop the event loop for 0.1 s every other second.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()


class Background:
    """Runs reads of many rows in threads, a few at a time. The others wait in their order.

    While there are single reads, too, each pauses as long as it has run. Otherwise, one would
    follow upon another, and single reads would have to share the interpreter all the time.

    Attributes:
        single_reads: how many there were; whoever answers one counts it.
    """

    def __init__(self) -> None:
        self.single_reads = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, which is called in a thread.

        Raises:
            Exception: what the function raises.
        """
        await self._turns.acquire()
        singles, began_s = self.single_reads, stopwatch_s()
        try:
            return await run_in_threadpool(read, *args, **kwargs)
        finally:
            is_alone = self.single_reads == singles
            pause_s = 0.0 if is_alone else min(stopwatch_s() - began_s, _PAUSE_MAX_S)
            asyncio.get_running_loop().call_later(pause_s, self._turns.release)
