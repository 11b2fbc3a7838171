"""`Context`: what a process function can read besides its record and its states."""

from __future__ import annotations

import datetime as dt
from typing import Any

from statekit.errors import StateTypeError
from statekit.state.key_scope import KeyScope
from statekit.state.timers import Timers
from statekit.timestamp import instant


class Context:
    """What a process function may know beside its record and its states.

    Declare a parameter of this type to get it.
    """

    __slots__ = ("_scope", "_timers", "shard")

    def __init__(self, scope: KeyScope, shard: int, timers: Timers | None) -> None:
        self._scope = scope
        self._timers = timers
        self.shard = shard

    @property
    def key(self) -> Any:
        """The current key: a scalar, or a tuple when the key has several fields."""
        return self._scope.key

    @property
    def epoch(self) -> int:
        """The number of the epoch, the same when the epoch is replayed."""
        return self._scope.epoch

    @property
    def operator(self) -> str:
        """The name of the operator that runs."""
        return self._scope.operator

    @property
    def watermark(self) -> dt.datetime:
        """How far event time has come: no record at or before it is still handled.

        The same for all keys of an epoch. The first instant of the year 1 before any record was
        committed, the last one of 9999 when no record can follow.
        """
        return instant(self._scope.clocks.watermark_us)

    @property
    def processing_time(self) -> dt.datetime:
        """The one instant that all of the epoch takes place at; the same when it is replayed."""
        return instant(self._scope.clocks.processing_time_us)

    @property
    def event_time(self) -> dt.datetime:
        """The event time of the record, or the time of the timer, that is being handled.

        Of records that a function takes all at once, it is that of the one taken last: before any
        is, that of the first, and behind the last of all, the latest of them.

        Raises:
            StateTypeError: the operator has no event time, or a processing-time timer is due.
        """
        if self._scope.clocks.event_us is None:
            raise StateTypeError(
                f"operator {self._scope.operator!r} has no event time here: declare "
                "@process(event_time=...); a processing-time timer has none in any case"
            )
        return instant(self._scope.clocks.event_us)

    @property
    def timers(self) -> Timers:
        """Times at which this key is called again.

        Raises:
            StateTypeError: the operator handles none.
        """
        if self._timers is None:
            raise StateTypeError(
                f"operator {self._scope.operator!r} handles no timers: decorate a function with "
                f"@{self._scope.operator}.on_timer"
            )
        return self._timers
