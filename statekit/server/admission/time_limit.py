"""Time limit: the longest time from a request to its answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from statekit.server.answers.problems import Problem


class TimeLimit:
    """Ends tasks that take too long. Each request is a task.

    One timer is for all tasks: `asyncio.timeout` would set one per request, which takes a part of
    the time of a single read.

    Parameters:
        seconds: the limit, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[asyncio.Task[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._open[task] = until_s = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until_s, self._check)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._open.pop(task, None) is not None:
            return
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise Problem(
                503,
                "timeout",
                f"the answer took more than {self._seconds:g} s: ask for less, or try again",
                {"Connection": "close"},  # the rest of the body may still come
            )

    def _check(self) -> None:
        """End the tasks whose time is over, and wait for the end of the next one's."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for task, until_s in [*self._open.items()]:  # the oldest one first
            if until_s > loop.time():
                self._timer = loop.call_at(until_s, self._check)
                return
            del self._open[task]
            task.cancel()
