"""Timers: the rows that keep them, and which are due.

A key has a set of timers per clock and name: setting one twice is setting it once, deleting an
absent one does nothing. A timer is two rows in the same batch as all other changes of its key, with
P the key's prefix (key group and encoded key):

    _timers        P + clock (1 byte) + time (8) + name                       → nothing
    _timers.due    key group (2) + clock (1) + time (8) + encoded key + name  → nothing

The first finds the timers of a key, the second those that are due, by a range scan per key group
that stops at the first which is not: timers that wait cost nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from itertools import islice

from statekit.backend.interface import Backend, StateSize, first_of_groups
from statekit.checkpoint.job_file import CLOCK_TAGS, TIMERS, Clock
from statekit.codec.key_codec import KeyCodec
from statekit.errors import CorruptCheckpointError, StateTypeError
from statekit.keygroup import group_of_row
from statekit.state import base as state
from statekit.state.key_scope import KeyScope
from statekit.timestamp import (
    MAX_MICROS,
    datetime_to_micros,
    micros_of_sortable,
    micros_to_datetime,
    sortable_micros,
)

DUE = f"{TIMERS}.due"
"""Where the timers that are due are found."""

# Keys with due timers are gathered by so many timers at a time, then processed in order of keys.
_GATHERED_MAX = 50_000

# Timers of a key that the backend has are kept in memory while the key is processed, up to so many.
_KEPT_MAX = 100

CLOCKS: tuple[Clock, ...] = tuple(CLOCK_TAGS)
_BEHIND = {b"\x00": b"\x01", b"\x01": b"\x02"}  # all rows of a clock
EVENT_TAG = CLOCK_TAGS["event"]


@dataclass(frozen=True, slots=True)
class Timer:
    """A time at which a key is called.

    Attributes:
        at: an aware datetime.
        name: which of the key's timers it is; chooses the callback.
        clock: "event" fires when the watermark has reached `at`, "processing" when the wall clock
            has.
    """

    at: dt.datetime
    name: str = "default"
    clock: Clock = "event"


# A timer as it is stored behind the key, and where its parts are.
_Row = bytes
_TAG, _AT, _NAMED = slice(1), slice(1, 9), 9


def _firing_order(row: _Row) -> tuple[bytes, _Row]:
    """What timers of several clocks are sorted by; those of one clock sort as they are."""
    return row[_AT], row


def due_row(group: bytes, key: bytes, row: _Row) -> bytes:
    """The row of `_timers.due` that belongs to a timer.

    Parameters:
        group: its key group, packed.
        key: encoded.
        row: what follows the key in `_timers`.
    """
    return group + row[:_NAMED] + key + row[_NAMED:]


def timer_of_row(row: _Row) -> Timer:
    """The timer that is stored as this behind its key.

    Raises:
        CorruptCheckpointError: it is not one.
    """
    return _timer(row, micros_of_sortable(row, 1))


def _timer(row: _Row, at_us: int) -> Timer:
    try:
        return Timer(micros_to_datetime(at_us), row[_NAMED:].decode(), CLOCKS[row[0]])
    except (IndexError, ValueError, OverflowError) as error:
        raise CorruptCheckpointError(
            f"a timer's row {row.hex()} cannot be read: {error}. Restore the checkpoint from a "
            "backup"
        ) from error


class Timers:
    """The timers of the current key: `ctx.timers`.

    Parameters:
        scope: the stay at a key, shared with all states.
        backend: holds the rows.
        handled: whether a timer of that name has a callback.
        has_event_time: whether the event clock runs.
        now_us: what each clock shows in this epoch.
        joins: whether what is changed while timers ring counts at once. If not, a timer that is set
            and due waits for the next epoch, and one that was due and is deleted rings.
    """

    def __init__(
        self,
        scope: KeyScope,
        backend: Backend,
        *,
        handled: Callable[[str], bool],
        has_event_time: bool,
        now_us: dict[Clock, int],
        joins: bool = True,
    ) -> None:
        self._scope = scope
        self._backend = backend
        self._read = backend.getter(TIMERS)
        self._scan = backend.scanner(TIMERS)
        self._handled = handled
        self._has_event_time = has_event_time
        self._joins = joins
        self._now = {CLOCK_TAGS[clock]: sortable_micros(now) for clock, now in now_us.items()}
        # What the backend holds, as far as it was looked up, row by row or all of a clock, and how
        # it is to change.
        self._stored: dict[_Row, bool] = {}
        self._of_clock: dict[bytes, Sequence[_Row]] = {}
        self._changed: dict[_Row, bool] = {}
        self._entered = False
        self._spills = 0
        self._agenda: Agenda | None = None
        self.set_due: set[Clock] = set()
        """The clocks by which a timer was set that is due already and has not been called."""
        self._wake: dict[bytes, bytes] = {}
        self._rows_added = 0
        self._bytes_added = 0

    def set(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Ask to be called at a time. A time that has passed is due in this very epoch.

        Raises:
            StateTypeError: `at` is no aware datetime, nobody handles the name, or the operator
                has no such clock.
        """
        self._set(self._row(at, name, clock))

    def delete(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Take a timer back; nothing happens if there is none.

        Raises:
            StateTypeError: as for `set`.
        """
        row = self._row(at, name, clock)
        if self._is_set(row):
            self._change(row, False)

    def replace(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Set a timer, and take back all others of that name and clock.

        It looks at all timers of the key and the clock. Where a key has hundreds, delete the one
        that is known, and set the other.

        Raises:
            StateTypeError: as for `set`.
        """
        row = self._row(at, name, clock)
        for other in self._rows(row[_TAG]):
            if other[_NAMED:] == row[_NAMED:] and other != row:
                self._change(other, False)
        self._set(row)

    def list(self, name: str | None = None, clock: Clock | None = None) -> Sequence[Timer]:
        """The timers of this key, soonest first; those of a name, of a clock, or all."""
        if clock not in (None, *CLOCKS):
            raise self._wrong(f'clock={clock!r}: use "event" or "processing"')
        tags = [CLOCK_TAGS[clock]] if clock is not None else list(CLOCK_TAGS.values())
        rows = merge(*map(self._rows, tags), key=_firing_order)
        wanted = None if name is None else name.encode()
        return [
            _timer(row, micros_of_sortable(row, 1))
            for row in rows
            if wanted in (None, row[_NAMED:])
        ]

    # --------------------------------------------------------------------------------- firing

    def agenda(self, clocks: Sequence[Clock], due: Sequence[Clock]) -> Agenda:
        """The due timers of this key, to be taken one by one.

        Parameters:
            clocks: by which they are due.
            due: those of the clocks by which timers were due before any was called.
        """
        self._enter()  # even if nothing is taken, what was looked up is of this key alone
        self._agenda = Agenda(
            self, [CLOCK_TAGS[clock] for clock in clocks], [CLOCK_TAGS[c] for c in due]
        )
        return self._agenda

    @property
    def added(self) -> StateSize:
        """By how much this epoch changed what the shard holds."""
        return StateSize(self._rows_added, self._bytes_added)

    @property
    def wake_us(self) -> dict[Clock, int]:
        """Per clock, the soonest of the timers that were set in this epoch and are not due."""
        return {
            clock: micros_of_sortable(self._wake[tag])
            for clock, tag in CLOCK_TAGS.items()
            if tag in self._wake
        }

    def _due(self, tag: bytes) -> Iterable[tuple[bytes, bytes]]:
        """What the backend holds of this key that is due by one clock, soonest first."""
        start = self._scope.prefix + tag
        end = start + self._now[tag] + b"\xff"  # behind all names, which are UTF-8
        return self._scan(start, end)

    # -------------------------------------------------------------------------------- changes

    def _row(self, at: dt.datetime, name: str, clock: Clock) -> _Row:
        if clock not in CLOCK_TAGS:
            raise self._wrong(f'clock={clock!r}: use "event" or "processing"')
        if clock == "event" and not self._has_event_time:
            raise self._wrong(
                "there is no event time here: declare @process(event_time=...), or use "
                'clock="processing"'
            )
        if not isinstance(at, dt.datetime):
            raise self._wrong(f"a timer is one of a datetime, and not of {at!r}")
        if not isinstance(name, str):
            raise self._wrong(f"the name of a timer is a text, and not {name!r}")
        try:
            row = CLOCK_TAGS[clock] + sortable_micros(datetime_to_micros(at)) + name.encode()
        except (StateTypeError, UnicodeEncodeError) as error:
            raise self._wrong(str(error)) from None
        if not self._handled(name):
            raise self._wrong(
                f"nobody handles timers named {name!r}: decorate a function with "
                f"@{self._scope.operator}.on_timer or .on_timer({name!r})"
            )
        return row

    def _wrong(self, reason: str) -> StateTypeError:
        scope = self._scope
        return StateTypeError(
            f"timer of operator {scope.operator!r} at key {scope.key!r} in epoch {scope.epoch}: "
            f"{reason}. Nothing of this epoch is committed"
        )

    def _set(self, row: _Row) -> None:
        tag, at = row[_TAG], row[_AT]
        if at <= self._now[tag] and (self._joins or self._agenda is None):
            if self._agenda is None or not self._agenda.joined_by(row):
                self.set_due.add(CLOCKS[row[0]])
        elif at < self._wake.get(tag, b"\xff"):
            self._wake[tag] = at
        if not self._is_set(row):
            self._change(row, True)

    def _is_set(self, row: _Row) -> bool:
        changed = self._changed.get(row)
        if changed is not None:
            return changed
        stored = self._stored.get(row)
        if stored is None:
            self._enter()
            of_clock = self._of_clock.get(row[_TAG])
            if of_clock is None:
                stored = self._read(self._scope.prefix + row) is not None
            else:
                stored = row in of_clock
            self._stored[row] = stored
        return stored

    def _change(self, row: _Row, is_set: bool) -> None:
        """Set a timer that is not set, or delete one that is."""
        self._enter()
        size = len(self._scope.prefix) + len(row)
        self._rows_added += 1 if is_set else -1
        self._bytes_added += size if is_set else -size
        if self._stored.get(row) is is_set:
            del self._changed[row]  # back to what is stored
        else:
            self._changed[row] = is_set
        if len(self._stored) + len(self._changed) >= state.PENDING_ROWS_MAX:
            self._hand_on()
            self._scope.spill()
            self._spills += 1

    def _rows(self, tag: bytes) -> Sequence[_Row]:
        """The timers of one clock, stored and pending, as they are now, soonest first."""
        stored, changed = self._stored_of(tag), self._changed
        if not changed:
            return stored
        rows = [row for row in stored if row not in changed]
        rows += [row for row, is_set in changed.items() if is_set and row[_TAG] == tag]
        return sorted(rows)

    def _stored_of(self, tag: bytes) -> Sequence[_Row]:
        """What the backend holds of this key and one clock, soonest first."""
        rows = self._of_clock.get(tag)
        if rows is None:
            prefix = self._scope.prefix
            skip = len(prefix)
            found = self._scan(prefix + tag, prefix + _BEHIND[tag])
            rows = [key[skip:] for key, _ in found]
            if len(rows) <= _KEPT_MAX:
                self._enter()
                self._of_clock[tag] = rows
        return rows

    def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            self._scope.touched.append(self)

    def _leave(self) -> None:
        self._hand_on()
        self._entered = False
        self._agenda = None

    def _hand_on(self) -> None:
        batch, prefix = self._scope.batch, self._scope.prefix
        group, key = prefix[:2], prefix[2:]
        for row, is_set in self._changed.items():
            here, due = prefix + row, due_row(group, key, row)
            if is_set:
                batch.put(TIMERS, here, b"")
                batch.put(DUE, due, b"")
            else:
                batch.delete(TIMERS, here)
                batch.delete(DUE, due)
        self._changed = {}
        self._stored = {}
        self._of_clock = {}


class Agenda:
    """The due timers of one key, soonest first; those set meanwhile join in.

    Parameters:
        timers: of the key.
        tags: of the clocks that count.
        due: of those by which the backend holds timers that are due.

    Attributes:
        at_us: the time of the timer that was taken last.
    """

    def __init__(self, timers: Timers, tags: Sequence[bytes], due: Sequence[bytes]) -> None:
        self.at_us = 0
        self._timers = timers
        self._tags = tags
        self._skip = len(timers._scope.prefix)
        found = [rows for tag in due if (rows := timers._due(tag))]
        self._waiting = iter(found[0]) if len(found) == 1 else merge(*found, key=self._order)
        self._spills = timers._spills
        self._upcoming = self._next_stored()
        self._joined: list[tuple[bytes, _Row]] = []

    def joined_by(self, row: _Row) -> bool:
        """A due timer was set. Returns whether it is one for this agenda."""
        if row[_TAG] not in self._tags:
            return False
        heappush(self._joined, _firing_order(row))
        return True

    def take(self, until_us: int = MAX_MICROS) -> Timer | None:
        """Remove the soonest due timer up to a time and return it; None if there is none."""
        timers, until = self._timers, sortable_micros(until_us)
        while (row := self._soonest(until)) is not None:
            is_set = timers._is_set(row)  # it may have been deleted, or have come twice
            if is_set:
                timers._change(row, False)
            if is_set or not timers._joins:
                self.at_us = micros_of_sortable(row, 1)
                return _timer(row, self.at_us)
        return None

    def _soonest(self, until: bytes) -> _Row | None:
        stored, joined = self._upcoming, self._joined
        if joined and (stored is None or joined[0] <= _firing_order(stored)):
            return heappop(joined)[1] if joined[0][0] <= until else None
        if stored is None or stored[_AT] > until:
            return None
        self._upcoming = self._next_stored()
        return stored

    def _next_stored(self) -> _Row | None:
        found = next(self._waiting, None)
        if found is None:
            return None
        row = found[0][self._skip :]
        # The scan shows what there was when it began; after a spill that says nothing any more.
        if self._spills == self._timers._spills:
            self._timers._stored.setdefault(row, True)
        return row

    def _order(self, found: tuple[bytes, bytes]) -> tuple[bytes, _Row]:
        return _firing_order(found[0][self._skip :])


class DueKeys:
    """Keys that have due timers, in pieces of bounded size, each in order of keys.

    Parameters:
        backend: holds the rows.
        groups: the key groups of the shard, first and last.
        now_us: what each clock shows.
        codec: of keys.
        clocks: whose timers.

    Attributes:
        wake_us: when iterated to the end, the soonest timer per clock that was not due.
    """

    def __init__(
        self,
        backend: Backend,
        groups: tuple[int, int],
        now_us: dict[Clock, int],
        codec: KeyCodec[object],
        clocks: Sequence[Clock] = CLOCKS,
    ) -> None:
        self._clocks = clocks
        self._backend = backend
        self._groups = groups
        self._now_us = now_us
        self._decode = codec.decode
        self.wake_us: dict[Clock, int] = {}

    def __iter__(self) -> Iterator[Sequence[tuple[int, object]]]:
        rows = (row for clock in self._clocks for row in self._rows(clock))
        while gathered := list(islice(rows, _GATHERED_MAX)):
            found: dict[bytes, tuple[int, object]] = {}
            for row in gathered:
                key, end = self._decode(row, 2 + _NAMED)
                found[row[:2] + row[2 + _NAMED : end]] = (group_of_row(row), key)
            yield [found[prefix] for prefix in sorted(found)]

    def _rows(self, clock: Clock) -> Iterator[bytes]:
        """Due rows of one clock. Key groups without any are jumped over."""
        tag, now = CLOCK_TAGS[clock], self._now_us[clock]
        (group, last), later = self._groups, b""
        while (first := first_due(self._backend, tag, (group, last), later)) is not None:
            group, soonest = group_of_row(first), micros_of_sortable(first, 3)
            if soonest > now:
                self.wake_us[clock] = min(soonest, self.wake_us.get(clock, soonest))
                group, later = group + 1, b""
                continue
            later = sortable_micros(now + 1)
            for row, _ in self._backend.scan(DUE, first, first[:3] + later):
                yield row


def first_due(
    backend: Backend, tag: bytes, groups: tuple[int, int], later: bytes = b""
) -> bytes | None:
    """The first row of one clock in `_timers.due` within key groups.

    Parameters:
        later: in the first of the groups, only rows from this time on.
    """
    return first_of_groups(backend, DUE, tag, groups, later)
