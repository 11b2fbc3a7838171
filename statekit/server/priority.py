"""Priority: single reads go before requests that take long.

Single reads run on the thread of the event loop. Everything else needs the same interpreter: pages,
requests for many keys and files of states. So few of them run at a time, and each gives way soon.
Processes of queries and rankings have a lower priority than the server.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool

P = ParamSpec("P")
T = TypeVar("T")

NICENESS = 10
"""Of processes of queries and rankings."""

_SWITCH_S = 0.0001
_AT_ONCE = 2


def give_way() -> None:
    """Let threads of this process give way to the event loop after a tenth of a millisecond.

    Python's own interval is 5 ms, which each request would wait for several times.
    """
    sys.setswitchinterval(_SWITCH_S)


class Background:
    """Runs reads of many rows in threads, a few at a time. The others wait in their order."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, which is called in a thread.

        Raises:
            Exception: what the function raises.
        """
        async with self._turns:
            return await run_in_threadpool(read, *args, **kwargs)
