"""`WindowOptions`: the options of windows, with their defaults and checks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from statekit.checkpoint.job_file import Clock
from statekit.functions.process import NOTHING_RENAMED
from statekit.job.windows.early_results import EarlyTimes
from statekit.job.windows.instants import window_duration
from statekit.job.windows.window_kind import Window
from statekit.records.result_type import ResultRecords
from statekit.shown import shown
from statekit.timestamp import LATENESS_MAX, lateness_to_micros, timedelta_to_micros

_ZERO = dt.timedelta(0)


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """Options of windows, as users give them. `check` says whether they fit.

    Parameters:
        key, event_time, lateness, ordered, renamed: as for `@process`. Without key fields, windows
            have all records.
        allowed_lateness: how long a window is kept for late records after it has fired.
        emit: let a window fire when it is complete ("close") or at each record ("change").
        early: the time between early results of windows that have changed; None without.
        early_clock: the clock of early results; None for that of windows.
        clock: the clock of windows.
        combines: whether records may be combined before they are routed: those of one stream.
    """

    key: str | tuple[str, ...] | list[str]
    event_time: str | None = None
    lateness: dt.timedelta | str = _ZERO
    allowed_lateness: dt.timedelta | str = _ZERO
    emit: Literal["close", "change"] = "close"
    ordered: bool = False
    early: dt.timedelta | str | None = None
    early_clock: Clock | None = None
    clock: Clock = "event"
    combines: bool = True
    renamed: Mapping[str, str] = field(default_factory=lambda: NOTHING_RENAMED)

    @property
    def key_names(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def is_processing(self) -> bool:
        """True if windows are intervals of processing time."""
        return self.clock == "processing"

    @property
    def at_change(self) -> bool:
        """True if windows fire at each record."""
        return self.emit == "change"

    @cached_property
    def late(self) -> dt.timedelta:
        """How far the watermark is behind the records."""
        return dt.timedelta(microseconds=lateness_to_micros(self.lateness, "lateness"))

    @cached_property
    def allowed(self) -> dt.timedelta:
        """How long a window is kept after it has fired."""
        micros = lateness_to_micros(self.allowed_lateness, "allowed_lateness")
        return dt.timedelta(microseconds=micros)

    @cached_property
    def early_times(self) -> EarlyTimes | None:
        """The instants of early results; None without early ones."""
        if self.early is None:
            return None
        return EarlyTimes(window_duration(self.early, "early"), self.early_clock or self.clock)

    def is_ordered(self, window: Window) -> bool:
        """Return whether records are handled in order of time."""
        return self.ordered or (window.in_order and not self.is_processing)

    @property
    def definition(self) -> dict[str, str]:
        """The options that may not change while there is state, without the kind of windows."""
        fixed = {"allowed_lateness": str(self.allowed), "emit": self.emit}
        if self.early is not None:  # its times may change
            fixed["early"] = "True"
        if self.is_processing:
            fixed["clock"] = self.clock
        return fixed

    # ------------------------------------------------------------------------------------- checks

    def check(self, results: ResultRecords, window: Window) -> None:
        """Check the options of windows over some records.

        Raises:
            StateTypeError: an option is not valid; the message names it.
        """
        if not isinstance(window, Window):
            raise results.error(
                f'{shown(window)} is no window: give tumbling("1 hour"), '
                'sliding("1 hour", "5 minutes"), session("30 minutes") or count_windows(100)'
            )
        if self.emit not in ("close", "change"):
            raise results.error(f'emit={shown(self.emit)}: use "close" or "change"')
        self._check_latenesses(results, window)
        self._check_clock(results, window)
        self._check_early(results)
        if not self.is_processing:
            self._check_times(results, window)
        for name in (*self.key_names, *filter(None, (self.event_time,))):
            results.annotation(name)
        if len(set(self.key_names)) < len(self.key_names):
            raise results.error(f"key={self.key_names} must name different fields")

    def _check_latenesses(self, results: ResultRecords, window: Window) -> None:
        if timedelta_to_micros(self.allowed + self.late) > LATENESS_MAX:
            raise results.error(
                f"lateness={shown(self.lateness)} and "
                f"allowed_lateness={shown(self.allowed_lateness)}: give "
                "durations of at most 285 years together"
            )
        if self.is_ordered(window) and self.allowed:
            raise results.error(
                "with ordered=True, or at_most= of sessions, no record arrives after the end of "
                "its window, so allowed_lateness= has no effect: add it to lateness="
            )

    def _check_clock(self, results: ResultRecords, window: Window) -> None:
        """Check that windows of processing time have no options of event time."""
        if self.clock not in ("event", "processing"):
            raise results.error(f'clock={shown(self.clock)}: use "event" or "processing"')
        if not self.is_processing:
            return
        if not window.has_times:
            raise results.error(
                f"clock= is for windows of time, and {window} have none: leave it out"
            )
        of_event_time = {
            "ordered": self.ordered,
            "early_clock": self.early_clock == "event",
            "lateness": self.late,
            "allowed_lateness": self.allowed,
        }
        if given := [name for name, is_given in of_event_time.items() if is_given]:
            raise results.error(
                f'{given[0]}= is about event time, and clock="processing" has none: leave it out'
            )
        if self.event_time is not None:
            raise results.error(
                'event_time= has no effect with clock="processing", where a record has the time '
                "at which it is processed: leave one of them out"
            )

    def _check_early(self, results: ResultRecords) -> None:
        if self.early_clock not in ("event", "processing", None):
            raise results.error(
                f'early_clock={shown(self.early_clock)}: use "event" or "processing"'
            )
        if self.early_times is not None and self.at_change:
            raise results.error(
                'early= has no effect with emit="change", which fires at each record'
            )

    def _check_times(self, results: ResultRecords, window: Window) -> None:
        """Check the options that need event time, or windows of time."""
        if self.event_time is None and window.has_times:
            raise results.error(f"{window}: say which field has the event_time")
        of_time = {
            "allowed_lateness": self.allowed,
            "emit": self.at_change,
            "ordered": self.is_ordered(window),
            "early": self.early_times is not None,
        }
        given = [name for name, is_given in of_time.items() if is_given]
        if not window.has_times and (refused := [n for n in given if n != "ordered"]):
            raise results.error(
                f"{refused[0]}= is for windows of time, and a window of {window} fires with its "
                "last record: leave it out"
            )
        if self.event_time is None and (given or self.late):
            raise results.error(
                f"{given[0] if given else 'lateness'}= needs event time: say which field has the "
                "event_time"
            )
