"""Restarts of a job that has failed: how often, after which pauses, and after which errors."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Self, TypeVar

from statekit.clock import stopwatch_s
from statekit.errors import (
    BootstrapError,
    CorruptCheckpointError,
    FencedError,
    QueryError,
    RescaleError,
    RestoreError,
    StateSchemaError,
    StateTypeError,
)
from statekit.job.options import RunOptions
from statekit.shown import shown, shown_error
from statekit.timestamp import duration_to_micros

_log = logging.getLogger("statekit.run")

T = TypeVar("T")
O = TypeVar("O", bound=RunOptions)  # noqa: E741

_TEXT = re.compile(r"\s*([0-9]{1,6})\s+in\s+(.+)")

_FIRST_S = 1.0
_LONGEST_S = 60.0
"""The first pause, and the longest one, in seconds."""

_FINAL = (
    StateTypeError,
    StateSchemaError,
    FencedError,
    RestoreError,
    RescaleError,
    CorruptCheckpointError,
    BootstrapError,
    QueryError,
)
"""Errors that a restart would meet again: somebody must change the code, an option or a file."""


def is_mended_by_restart(error: BaseException) -> bool:
    """Return whether a job may succeed when it is started again after an error.

    It may after failures of user functions, sources, sinks and stores. It cannot after errors about
    types, options, or a checkpoint that has another writer, other types or damage.

    >>> is_mended_by_restart(OSError("no space left")), is_mended_by_restart(FencedError(""))
    (True, False)
    """
    return isinstance(error, Exception) and not isinstance(error, _FINAL)


@dataclass
class Restarts:
    """Decides whether a failed job is started again.

    Parameters:
        times: how often, at most, within the interval.
        within_s: the interval in seconds.

    >>> restarts = Restarts.of("2 in 10 minutes")
    >>> [restarts.pause_s(OSError("no space left")) for _ in range(3)]
    [1.0, 2.0, None]
    """

    times: int
    within_s: float
    _failed_s: deque[float] = field(default_factory=deque)
    _pause_s: float = _FIRST_S

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the restarts of a text such as "5 in 10 minutes".

        Raises:
            StateTypeError: the text is not valid.
        """
        parts = _TEXT.fullmatch(str(text))
        if parts is None or not int(parts[1]):
            raise StateTypeError(
                f"restart={shown(text)}: say how often within which time, as in '5 in 10 minutes'"
            )
        within_us = duration_to_micros(parts[2], "restart")
        if not within_us:
            raise StateTypeError(f"restart={shown(text)}: give more time than nothing")
        return cls(int(parts[1]), within_us / 1e6)

    def pause_s(self, error: BaseException) -> float | None:
        """Return after how many seconds the job is started again; None if it is not."""
        return self.next_pause_s() if is_mended_by_restart(error) else None

    def next_pause_s(self) -> float | None:
        """Count a failure that a restart may mend, and return the pause in seconds; None if there
        were too many.

        Pauses double from 1 s to 60 s. After an interval without a failure they begin at 1 s.
        """
        now_s = stopwatch_s()
        while self._failed_s and now_s - self._failed_s[0] > self.within_s:
            self._failed_s.popleft()
        if not self._failed_s:
            self._pause_s = _FIRST_S
        if len(self._failed_s) >= self.times:
            return None
        self._failed_s.append(now_s)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_S)
        return pause_s


def restarted(attempt: Callable[[O], T], options: O, stop: Event, stopped: T) -> T:
    """Run a job, and start it again after failures as `options.restart` says.

    Parameters:
        attempt: runs it once, with the options that it gets.
        options: of the first attempt. Later ones do not go back to an epoch.
        stop: ends the run, also in a pause.
        stopped: is returned if it is stopped in a pause.

    Raises:
        BaseException: the error of the last attempt.
    """
    assert options.restart is not None, "the caller has looked"
    restarts = Restarts.of(options.restart)
    while True:
        try:
            return attempt(options)
        except BaseException as error:
            pause_s = restarts.pause_s(error)
            if pause_s is None:
                raise
            _log.warning(
                "the job failed with %s. It is started again in %.0f s", shown_error(error), pause_s
            )
        if stop.wait(pause_s):
            return stopped
        options = replace(options, from_epoch=None)
