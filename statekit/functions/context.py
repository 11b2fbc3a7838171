"""`Context`: what a process function can read besides its record and its states."""

from __future__ import annotations

import datetime as dt
from typing import Any

from statekit.errors import StateTypeError
from statekit.state.key_scope import Visit
from statekit.state.timers import Timers
from statekit.timestamp import instant


class Context:
    """What a process function may know beside its record and its states.

    Declare a parameter of this type to get it.
    """

    __slots__ = ("_timers", "_visit", "shard")

    def __init__(self, visit: Visit, shard: int, timers: Timers | None) -> None:
        self._visit = visit
        self._timers = timers
        self.shard = shard

    @property
    def key(self) -> Any:
        """The key being visited: a scalar, or a tuple when the key has several fields."""
        return self._visit.key

    @property
    def epoch(self) -> int:
        """The number of the epoch, the same when the epoch is replayed."""
        return self._visit.epoch

    @property
    def operator(self) -> str:
        """The name of the operator that runs."""
        return self._visit.operator

    @property
    def watermark(self) -> dt.datetime:
        """How far event time has come: no record at or before it is still handled.

        The same for all keys of an epoch. The first instant of the year 1 before any record was
        committed, the last one of 9999 when no record can follow.
        """
        return instant(self._visit.watermark_us)

    @property
    def processing_time(self) -> dt.datetime:
        """The one instant that all of the epoch takes place at; the same when it is replayed."""
        return instant(self._visit.processing_time_us)

    @property
    def event_time(self) -> dt.datetime:
        """The event time of the record, or the time of the timer, that is being handled.

        Of records that a function takes all at once, it is that of the one taken last: before any
        is, that of the first, and behind the last of all, the latest of them.

        Raises:
            StateTypeError: the operator has no event time, or a processing-time timer is due.
        """
        if self._visit.event_us is None:
            raise StateTypeError(
                f"operator {self._visit.operator!r} has no event time here: declare "
                "@process(event_time=...); a processing-time timer has none in any case"
            )
        return instant(self._visit.event_us)

    @property
    def timers(self) -> Timers:
        """Times at which this key is called again.

        Raises:
            StateTypeError: the operator handles none.
        """
        if self._timers is None:
            raise StateTypeError(
                f"operator {self._visit.operator!r} handles no timers: decorate a function with "
                f"@{self._visit.operator}.on_timer"
            )
        return self._timers
