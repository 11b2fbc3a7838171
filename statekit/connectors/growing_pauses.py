"""Pauses between the tries of a request to a system outside."""

from __future__ import annotations

import threading

from statekit.clock import sleep_s, stopwatch_s

_FIRST_S = 0.05
_LONGEST_S = 2.0


class GrowingPauses:
    """Pauses, each twice as long as the one before, up to two seconds.

    Attributes:
        next_s: the length of the next pause, in seconds.
    """

    def __init__(self) -> None:
        self._begun_s = stopwatch_s()
        self.next_s = _FIRST_S

    @property
    def elapsed_s(self) -> float:
        """The time since this object was made, in seconds."""
        return stopwatch_s() - self._begun_s

    def sleep(self) -> None:
        """Wait for the next pause."""
        sleep_s(self._taken_s())

    def wait(self, event: threading.Event) -> bool:
        """Wait for the next pause, or for an event. Return whether the event came."""
        return event.wait(self._taken_s())

    def _taken_s(self) -> float:
        """Return the length of the next pause, which is then over."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, _LONGEST_S)
        return pause_s
