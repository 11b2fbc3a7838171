"""Pauses between the tries of a request to a system outside."""

from __future__ import annotations

import logging
import threading

from statekit.clock import sleep_s, stopwatch_s

_log = logging.getLogger("statekit.connectors")

_FIRST_S = 0.05
_LONGEST_S = 2.0

_TOLD_FROM_S = 0.5
"""How long tries fail before that is logged, in seconds."""


class GrowingPauses:
    """Pauses, each twice as long as the one before, up to two seconds.

    Attributes:
        next_s: the length of the next pause, in seconds.
    """

    def __init__(self) -> None:
        self._begun_s = stopwatch_s()
        self._is_told = False
        self.next_s = _FIRST_S

    @property
    def elapsed_s(self) -> float:
        """The time since this object was made, in seconds."""
        return stopwatch_s() - self._begun_s

    def sleep(self, failed: str) -> None:
        """Wait for the next pause.

        Parameters:
            failed: what has failed and why, without passwords. It is logged once, if tries
                have failed for half a second.
        """
        self._tell(failed)
        sleep_s(self._taken_s())

    def wait(self, event: threading.Event, failed: str) -> bool:
        """Wait for the next pause, or for an event. Return whether the event came.

        Parameters:
            failed: as for `sleep`.
        """
        self._tell(failed)
        return event.wait(self._taken_s())

    def _tell(self, failed: str) -> None:
        if not self._is_told and self.elapsed_s >= _TOLD_FROM_S:
            self._is_told = True
            _log.warning("%s. It is tried again for some time", failed)

    def _taken_s(self) -> float:
        """Return the length of the next pause, which is then over."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, _LONGEST_S)
        return pause_s
