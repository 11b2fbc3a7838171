"""Timers: their storage, and the search for due timers.

A key has a set of timers per clock and name. Setting a timer twice has the effect of setting it
once, and deleting an absent timer does nothing. A timer is two rows in the same batch as all other
changes of its key. P is the key's prefix (key group and encoded key):

    _timers        P + clock (1 byte) + time (8) + name                       → nothing
    _timers.due    key group (2) + clock (1) + time (8) + encoded key + name  → nothing

The first row finds the timers of a key. The second finds the due timers, by a range scan per key
group that stops at the first timer that is not due, so pending timers cost nothing.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush, merge
from itertools import chain, islice

from statekit.backend.interface import Backend, StateSize, due_of_groups
from statekit.checkpoint.job_file import CLOCK_TAGS, TIMERS, Clock
from statekit.checkpoint.manifest import ShardPlan
from statekit.codec.key_codec import KeyCodec
from statekit.codec.vectorized import sortable_ints
from statekit.errors import CorruptCheckpointError, ProcessError, StateTypeError
from statekit.foreign import foreign_hint
from statekit.keygroup import GROUP_BYTES, group_of_row
from statekit.shown import shown, shown_text, type_name
from statekit.state import base
from statekit.state.key_scope import KeyScope
from statekit.state.undo_log import UndoDict, UndoLog
from statekit.timestamp import (
    MAX_MICROS,
    datetime_to_micros,
    micros_of_sortable,
    micros_to_datetime,
    sortable_micros,
)

DUE = f"{TIMERS}.due"
"""The name of the rows that are sorted by time. Due timers are read from them."""

# So many due timers are read at a time; their keys are then processed in order of keys.
_DUE_MAX = 50_000

# Stored timers of the current key are kept in memory if there are no more than this.
_KEPT_MAX = 100

# A timer that fires so often for the same time, since its callbacks set it again, would never end.
_AGAIN_MAX = 10_000

CLOCKS: tuple[Clock, ...] = tuple(CLOCK_TAGS)
_END = {b"\x00": b"\x01", b"\x01": b"\x02"}  # the end of the rows of each clock
EVENT_TAG = CLOCK_TAGS["event"]


@dataclass(frozen=True, slots=True)
class Timer:
    """A time at which a callback is called for a key.

    Attributes:
        at: when the timer fires, an aware datetime.
        name: name of the timer, which chooses the callback.
        clock: "event" fires when the watermark has reached `at`, "processing" when the processing
            time has.
    """

    at: dt.datetime
    name: str = "default"
    clock: Clock = "event"


# A timer as it is stored after the key, and the places of its parts.
_Row = bytes
_TAG, _AT, _NAMED = slice(1), slice(1, 9), 9
_KEYED = GROUP_BYTES + _NAMED  # the place of the key in a row of due timers


def _firing_order(row: _Row) -> tuple[bytes, _Row]:
    """Return the sort key of timers of several clocks. Timers of the same clock sort by their
    bytes.
    """
    return row[_AT], row


def due_row(group: bytes, key: bytes, row: _Row) -> bytes:
    """Return the row of `_timers.due` of a timer.

    Parameters:
        group: its key group, packed.
        key: its key, encoded.
        row: the part of its row in `_timers` after the key.
    """
    return group + row[:_NAMED] + key + row[_NAMED:]


def timer_of_row(row: _Row) -> Timer:
    """Return the timer of a row.

    Parameters:
        row: the part after the key in `_timers`.

    Raises:
        CorruptCheckpointError: the row is not that of a timer.
    """
    try:
        at = micros_to_datetime(micros_of_sortable(row, 1))
        return Timer(at, row[_NAMED:].decode(), CLOCKS[row[0]])
    except (IndexError, ValueError, OverflowError) as error:
        raise CorruptCheckpointError(
            f"a timer's row {row.hex()} cannot be read: {shown_text(error)}. Restore the "
            "checkpoint from a "
            "backup"
        ) from error


class Timers:
    """The timers of the current key: `ctx.timers`.

    Parameters:
        scope: the key scope of the shard.
        backend: has the rows.
        handled: returns whether a timer of that name has a callback.
        has_event_time: whether the operator has event time.
        now_us: the time of each clock in this epoch.
        joins: whether changes take effect while timers fire. If not, a due timer that is set then
            fires in the next epoch, and a due timer that is deleted then still fires.

    Attributes:
        set_due: clocks for which a timer was set that was due already and has not fired.
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
        self._read, self._read_all, self._scan, _ = backend.reader(TIMERS)
        self._handled = handled
        self._has_event_time = has_event_time
        self._joins = joins
        self._now = {CLOCK_TAGS[clock]: sortable_micros(now) for clock, now in now_us.items()}
        # The timers that the backend has, as far as they were read, one by one or all of a clock;
        # and the changes that are not in the batch yet: whether each timer is set.
        self._stored: dict[_Row, bool] = {}
        self._of_clock: dict[bytes, Sequence[_Row]] = {}
        self._changed: dict[_Row, bool] = {}
        self._entered = False
        self._spills = 0
        self._due_timers: DueTimers | None = None
        self.set_due: set[Clock] = set()
        self._wake: dict[bytes, bytes] = {}
        self._rows_added = 0
        self._bytes_added = 0

    def take_undo_log(self, undo: UndoLog) -> None:
        """Have changes of failed calls taken back. Call it before the first change."""
        self._changed, self._wake = UndoDict(undo), UndoDict(undo)
        undo.note_attributes(self, ("_rows_added", "_bytes_added"))

    def set(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Set a timer. If the time has passed, the timer fires in this epoch.

        Raises:
            StateTypeError: `at` is no aware datetime, no callback handles the name, or the operator
                has no such clock.
        """
        self._set(self._row(at, name, clock))

    def delete(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Delete a timer, if it is set.

        Raises:
            StateTypeError: as for `set`.
        """
        row = self._row(at, name, clock)
        if self._is_set(row):
            self._change(row, False)

    def replace(self, at: dt.datetime, name: str = "default", clock: Clock = "event") -> None:
        """Set a timer, and delete all other timers of the same name and clock.

        This reads all timers of the key and the clock. If a key has hundreds of timers, delete the
        old timer and set the new one instead.

        Raises:
            StateTypeError: as for `set`.
        """
        row = self._row(at, name, clock)
        for other in self._rows(row[_TAG]):
            if other[_NAMED:] == row[_NAMED:] and other != row:
                self._change(other, False)
        self._set(row)

    def list(self, name: str | None = None, clock: Clock | None = None) -> Sequence[Timer]:
        """Return the timers of this key in order of time: all, or those of one name or clock."""
        tags = CLOCK_TAGS.values() if clock is None else (self._tag(clock),)
        rows = merge(*map(self._rows, tags), key=_firing_order)
        wanted = None if name is None else name.encode()
        return [timer_of_row(row) for row in rows if wanted in (None, row[_NAMED:])]

    # ------------------------------------------------------------------------- many keys at a time

    def set_all(self, prefixes: Iterable[bytes], at_us: Collection[int], name: str) -> None:
        """Set timers of event time for many keys. Nothing is cached.

        Parameters:
            prefixes: key group and encoded key of each timer.
            at_us: the time of each timer, in microseconds.
            name: of all of them.
        """
        named, now = name.encode(), self._now[EVENT_TAG]
        times = sortable_ints(at_us)
        rows = sorted({p + EVENT_TAG + at + named for p, at in zip(prefixes, times, strict=True)})
        stored = self._read_all(rows)
        new = [row for row, found in zip(rows, stored, strict=True) if found is None]
        skip = -_NAMED - len(named)
        due = [due_row(row[:GROUP_BYTES], row[GROUP_BYTES:skip], row[skip:]) for row in new]
        for family, of_family in ((TIMERS, new), (DUE, due)):
            self._scope.batch.put_all(family, of_family, [b""] * len(new))
        self._rows_added += len(new)
        self._bytes_added += sum(map(len, new))
        waiting = [at for at in times if at > now]
        if len(waiting) < len(times):
            self.set_due.add("event")
        if waiting:
            self._wake[EVENT_TAG] = min((*waiting, self._wake.get(EVENT_TAG, b"\xff")))

    def take_all(
        self, groups: tuple[int, int], name: str, wakes_at: Callable[[int], None]
    ) -> Iterator[Sequence[bytes]]:
        """Delete the due timers of event time of many keys, which `set_all` has set.

        Parameters:
            groups: first and last key group.
            name: of all of them.
            wakes_at: called with the soonest timers that are not due.

        Yields:
            The key group and encoded key of keys with due timers, sorted, some at a time.
        """
        skip, now_us = -len(name.encode()), micros_of_sortable(self._now[EVENT_TAG])
        for rows in due_of_groups(self._backend, DUE, EVENT_TAG, groups, now_us, wakes_at):
            while due := [row for row, _ in islice(rows, _DUE_MAX)]:
                timers = [
                    row[:GROUP_BYTES] + row[_KEYED:skip] + row[GROUP_BYTES:_KEYED] + row[skip:]
                    for row in due
                ]
                self._scope.batch.delete_all(TIMERS, timers)
                self._scope.batch.delete_all(DUE, due)
                self._rows_added -= len(due)
                self._bytes_added -= sum(map(len, timers))
                yield sorted({timer[: skip - _NAMED] for timer in timers})
                self._scope.spill()  # a key may have more of them

    # --------------------------------------------------------------------------------- firing

    def due_timers(self, clocks: Sequence[Clock], due: Sequence[Clock]) -> DueTimers:
        """Return the due timers of this key, which are taken one by one.

        Parameters:
            clocks: whose timers are taken.
            due: those of the clocks that had due timers before the first one fired.
        """
        self._enter()  # also if nothing is taken: rows that were read belong to this key only
        self._due_timers = DueTimers(
            self, [CLOCK_TAGS[clock] for clock in clocks], [CLOCK_TAGS[c] for c in due]
        )
        return self._due_timers

    @property
    def added(self) -> StateSize:
        """The growth of the timers of the shard in this epoch, in rows and bytes."""
        return StateSize(self._rows_added, self._bytes_added)

    @property
    def wake_us(self) -> dict[Clock, int]:
        """The earliest timer per clock that was set in this epoch and is not due."""
        return {
            clock: micros_of_sortable(self._wake[tag])
            for clock, tag in CLOCK_TAGS.items()
            if tag in self._wake
        }

    def wakes_at(self, at_us: int, clock: Clock = "event") -> None:
        """Record the time of something that is due without a timer."""
        at, tag = sortable_micros(at_us), CLOCK_TAGS[clock]
        if at < self._wake.get(tag, b"\xff"):
            self._wake[tag] = at

    def _due(self, tag: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Return the stored timers of this key that are due by one clock, in order of time."""
        start = self._scope.prefix + tag
        end = start + self._now[tag] + b"\xff"  # after all names, which are UTF-8
        return self._scan(start, end)

    # -------------------------------------------------------------------------------- changes

    def _row(self, at: dt.datetime, name: str, clock: Clock) -> _Row:
        tag = self._tag(clock)
        if clock == "event" and not self._has_event_time:
            raise self._wrong(
                "there is no event time here: declare @process(event_time=...), or use "
                'clock="processing"'
            )
        given: tuple[object, object] = at, name
        if not isinstance(given[0], dt.datetime):
            raise self._wrong(f"the time of a timer is a datetime, not {_misfit(given[0])}")
        if type(given[1]) is not str:
            raise self._wrong(f"the name of a timer is a str, not {_misfit(given[1])}")
        try:
            row = tag + sortable_micros(datetime_to_micros(at)) + name.encode()
        except (StateTypeError, UnicodeEncodeError) as error:
            raise self._wrong(str(error)) from None
        if not self._handled(name):
            raise self._wrong(
                f"no function handles timers named {name!r}: decorate one with "
                f"@{self._scope.operator}.on_timer or .on_timer({name!r})"
            )
        return row

    def _tag(self, clock: Clock) -> bytes:
        if clock not in CLOCK_TAGS:
            raise self._wrong(f'clock={shown(clock)}: use "event" or "processing"')
        return CLOCK_TAGS[clock]

    def _wrong(self, reason: str) -> StateTypeError:
        scope = self._scope
        return StateTypeError(
            f"timer of operator {scope.operator!r} at key {shown(scope.key)} in epoch "
            f"{scope.epoch}: "
            f"{reason}. Nothing of this epoch is committed"
        )

    def _endless(self, timer: Timer) -> ProcessError:
        scope = self._scope
        return ProcessError(
            f"operator {scope.operator!r} does not end {scope.place} in epoch {scope.epoch}: its "
            f"callback was called {_AGAIN_MAX:,} times for the same timer, {timer}, which was set "
            "again each time. A timer that is due fires in the same epoch: set the next one for a "
            "later time. Nothing of this epoch is committed"
        )

    def _set(self, row: _Row) -> None:
        tag, at = row[_TAG], row[_AT]
        if at <= self._now[tag] and (self._joins or self._due_timers is None):
            if self._due_timers is None or not self._due_timers.add(row):
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
        """Set a timer that is not set, or delete a timer that is set."""
        self._enter()
        size = len(self._scope.prefix) + len(row)
        self._rows_added += 1 if is_set else -1
        self._bytes_added += size if is_set else -size
        if self._stored.get(row) is is_set:
            del self._changed[row]  # back to the stored timers
        else:
            self._changed[row] = is_set
        if len(self._stored) + len(self._changed) >= base.PENDING_ROWS_MAX:
            self._spill()

    def _spill(self) -> None:
        """Write changes to the backend; after the call, if it may have to be taken back."""
        undo = self._scope.undo
        if undo is not None and undo.defers(self._spill):
            return
        self._put_changes()
        self._scope.spill()
        self._spills += 1

    def _rows(self, tag: bytes) -> Sequence[_Row]:
        """Return the timers of one clock, stored and pending, in order of time."""
        stored, changed = self._stored_of(tag), self._changed
        if not changed:
            return stored
        rows = [row for row in stored if row not in changed]
        rows += [row for row, is_set in changed.items() if is_set and row[_TAG] == tag]
        return sorted(rows)

    def _stored_of(self, tag: bytes) -> Sequence[_Row]:
        """Return the stored timers of this key and one clock, in order of time."""
        rows = self._of_clock.get(tag)
        if rows is None:
            prefix = self._scope.prefix
            skip = len(prefix)
            rows = [key[skip:] for key, _ in self._scan(prefix + tag, prefix + _END[tag])]
            if len(rows) <= _KEPT_MAX:
                self._enter()
                self._of_clock[tag] = rows
        return rows

    def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            self._scope.touched.append(self._flush)

    def _flush(self) -> None:
        self._put_changes()
        self._entered = False
        self._due_timers = None

    def _put_changes(self) -> None:
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
        self._changed.clear()
        self._stored = {}
        self._of_clock = {}


class DueTimers:
    """The due timers of a key in order of time, including timers that callbacks set meanwhile.

    Parameters:
        timers: of the key.
        tags: of the clocks whose timers are taken.
        due: tags of those clocks for which the backend has due timers.

    Attributes:
        at_us: the time of the timer that was taken last.
    """

    def __init__(self, timers: Timers, tags: Sequence[bytes], due: Sequence[bytes]) -> None:
        self.at_us = 0
        self._timers = timers
        self._tags = tags
        self._skip = len(timers._scope.prefix)
        stored = [rows for tag in due if (rows := timers._due(tag))]
        self._stored = iter(stored[0]) if len(stored) == 1 else merge(*stored, key=self._order)
        self._spills = timers._spills
        self._next = self._next_stored()
        self._joined: list[tuple[bytes, _Row]] = []
        # How often each timer that joined has fired since time reached `_reached`.
        self._fired: Counter[_Row] = Counter()
        self._reached = b""

    def add(self, row: _Row) -> bool:
        """Add a due timer that was set meanwhile. Return whether its clock is one of the fired
        clocks.
        """
        if row[_TAG] not in self._tags:
            return False
        heappush(self._joined, _firing_order(row))
        return True

    def take(self, until_us: int = MAX_MICROS) -> Timer | None:
        """Delete the earliest due timer up to a time, and return it; None if there is none.

        Raises:
            ProcessError: a timer is set again whenever it fires, so that this never ends.
        """
        timers, until = self._timers, sortable_micros(until_us)
        while (row := self._soonest(until)) is not None:
            is_set = timers._is_set(row)  # it may have been deleted, or occur twice
            if is_set:
                timers._change(row, False)
            if is_set or not timers._joins:
                self.at_us = micros_of_sortable(row, 1)
                return timer_of_row(row)
        self._fired.clear()
        return None

    def _soonest(self, until: bytes) -> _Row | None:
        stored, joined = self._next, self._joined
        if joined and (stored is None or joined[0] <= _firing_order(stored)):
            if joined[0][0] > until:
                return None
            row = heappop(joined)[1]
            if self._timers._is_set(row):  # it may be there twice
                self._count(row)
            return row
        if stored is None or stored[_AT] > until:
            return None
        self._next = self._next_stored()
        return stored

    def _count(self, row: _Row) -> None:
        """Count the firings of a timer that joined."""
        if row[_AT] > self._reached:
            self._reached = row[_AT]
            self._fired.clear()
        self._fired[row] += 1
        if self._fired[row] > _AGAIN_MAX:
            raise self._timers._endless(timer_of_row(row))

    def _next_stored(self) -> _Row | None:
        key_and_row = next(self._stored, None)
        if key_and_row is None:
            return None
        row = key_and_row[0][self._skip :]
        # The scan shows the rows at its start. After a spill they may have changed.
        if self._spills == self._timers._spills:
            self._timers._stored.setdefault(row, True)
        return row

    def _order(self, key_and_row: tuple[bytes, bytes]) -> tuple[bytes, _Row]:
        return _firing_order(key_and_row[0][self._skip :])


WakesAt = Callable[[Clock, int], None]
"""Records that a shard has something to do at a time of a clock, even without records."""


def due_keys(
    backend: Backend,
    plan: ShardPlan,
    codec: KeyCodec[object],
    clocks: Sequence[Clock],
    wakes_at: WakesAt,
) -> Iterator[Sequence[tuple[int, object]]]:
    """Yield due keys with their key groups, in lists of bounded size, each sorted by key.

    Parameters:
        backend: has the rows.
        plan: the shard and the time of each clock.
        codec: of keys.
        clocks: whose timers are read.
        wakes_at: called with the soonest timers that are not due.
    """
    groups, now_us = plan.base.groups, plan.now_us
    scans = (
        scan
        for clock in clocks
        for scan in due_of_groups(
            backend, DUE, CLOCK_TAGS[clock], groups, now_us[clock], partial(wakes_at, clock)
        )
    )
    rows = chain.from_iterable(scans)
    while due := list(islice(rows, _DUE_MAX)):
        keys: dict[bytes, tuple[int, object]] = {}
        for row, _ in due:
            key, end = codec.decode(row, 2 + _NAMED)
            keys[row[:2] + row[2 + _NAMED : end]] = (group_of_row(row), key)
        yield [keys[prefix] for prefix in sorted(keys)]


def _misfit(given: object) -> str:
    """Return a value of a wrong type as text for a message."""
    return f"{shown(given)} of type {type_name(given)}{foreign_hint(given)}"
