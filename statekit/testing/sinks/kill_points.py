"""Moments at which a process can be killed while a sink writes: each line of Python, and around the
commit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal, NamedTuple

from statekit.errors import ProcessError
from statekit.sinks.sink import Callback, Sink

Moment = Literal["line", "written", "committed"]
"""Before a line is run; after the sink has returned and before the commit; after the commit."""


class KillPoint(NamedTuple):
    """A moment at which a process can be killed.

    Parameters:
        epoch: the epoch that is written.
        file, line: the line that runs next.
    """

    epoch: int
    moment: Moment
    file: str = ""
    line: int = 0


class Failure(NamedTuple):
    """An error, with its place in the user's code.

    Parameters:
        text: its class and message.
        file, line: the line of the user's code that raised it; empty if none did.
    """

    text: str
    file: str = ""
    line: int = 0


class JobStart(NamedTuple):
    """Result of one start of a job.

    Parameters:
        reached: the moments that the start reached, in order.
        killed: whether it was killed at the last of them.
        error: the error with which it failed; None if it did not fail.
    """

    reached: list[KillPoint]
    killed: bool = False
    error: Failure | None = None


_INSTALLED = {
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[2]),
}
"""Directories of the standard library, of installed packages and of statekit."""


class UsersCode:
    """The files of code that are a user's: not generated, of the standard library or installed.

    Parameters:
        given: a sink or another function; its file is the user's, wherever it is.
    """

    def __init__(self, given: object) -> None:
        function: Any = function_of(given)
        self._file = function.__code__.co_filename if hasattr(function, "__code__") else None
        self.has = functools.cache(self._has)

    def _has(self, file: str) -> bool:
        if file == self._file:
            return True
        return not file.startswith("<") and not any(map(Path(file).is_relative_to, _INSTALLED))

    def failure(self, error: BaseException) -> Failure:
        """Return an error with the innermost line of the user's code in its traceback. An error
        that names the epoch in which the user's code failed is replaced by the error of that code.
        """
        while isinstance(error, ProcessError) and error.__cause__ is not None:
            error = error.__cause__
        text = "".join(traceback.format_exception_only(error)).strip()
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if self.has(frame[0])]
        return Failure(text, own[-1].filename, own[-1].lineno or 0) if own else Failure(text)


class KillPoints:
    """Counter of the moments that a start reaches. It kills its process group at one of them.

    Parameters:
        code: the code whose lines are moments.
        kill_at: the number of the moment, from 1; None for none.
        answer: the file to which the `JobStart` is written, right before the kill or at the end.
    """

    def __init__(self, code: UsersCode, kill_at: int | None, answer: IO[bytes]) -> None:
        self.reached: list[KillPoint] = []
        self._kill_at = kill_at
        self._answer = answer
        self._is_traced = code.has

    def reach(self, point: KillPoint) -> None:
        """Count a moment, and kill the process if the moment is `kill_at`."""
        self.reached.append(point)
        if len(self.reached) == self._kill_at:
            self.end(JobStart(self.reached, killed=True))
            os.killpg(0, signal.SIGKILL)

    def end(self, start: JobStart) -> None:
        """Write the result of the start."""
        pickle.dump(start, self._answer)
        self._answer.flush()

    @contextlib.contextmanager
    def in_sink(self, epoch: int) -> Iterator[None]:
        """Count each line that this thread runs, and the moment after the last one."""

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
            file = frame.f_code.co_filename
            if event == "line":
                self.reach(KillPoint(epoch, "line", file, frame.f_lineno))
            return trace if self._is_traced(file) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)
        self.reach(KillPoint(epoch, "written"))

    def next_epoch(self) -> None:
        """Count the moment after the commit, if an epoch was committed."""
        if self.reached and self.reached[-1].moment == "written":
            self.reach(KillPoint(self.reached[-1].epoch, "committed"))


def function_of(sink: Any) -> Any:
    """Return the function of a sink, or its method that writes."""
    if isinstance(sink, Callback):
        return function_of(sink.fn)
    if isinstance(sink, Sink):
        return type(sink).write
    if isinstance(sink, functools.partial):
        return function_of(sink.func)
    if inspect.isroutine(sink):
        return inspect.unwrap(getattr(sink, "__func__", sink))
    return type(sink).__call__
