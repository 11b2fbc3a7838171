"""State with a TTL: stamped rows, and an index of their expiry.

A row of a state with a TTL has a stamp before its value. No value starts with its first byte, so
rows with and without a stamp are distinguished:

    C1 + era (1 byte) + written (8 bytes, sortable) + value

Eras are counted from 1: a row that begins with C1 00 has no stamp but the mark of its generation
(`row_versions`). A stamp comes before such a mark.

Only stamps of the state's present era count. The era increases when expiry is turned on or moves to
another clock, and when it is turned off. A row of an earlier era, or without a stamp, counts as
written when the present era began (`Era.since_us`), unless it had expired when an earlier era ended
(`Era.ended`). No row is rewritten for that.

Each row that expires has a row in the index. It finds the expired rows without reading any others:

    _expiry    key group (2) + state + 00 + clock (1) + mark (8) + rest of the row key  → nothing

The mark is the first write time of the row, rounded up to a sixteenth of the TTL. Writing the row
again does not change the index. When the mark has expired and the row has not, the index row moves
to the last write time. So a row that is written often costs one lookup per TTL, and an expired row
is deleted up to a sixteenth of the TTL late. Every reader treats it as expired on time. If a row
that was written more than once is deleted, its index row stays until it is due.

Rows that were there when an era began are not in the index. In their place it has a row for each of
their key groups, whose mark is the beginning of the era and whose rest is empty. When it is due, a
scan of the key group deletes the expired rows, a bounded number of rows per epoch. The value of the
index row is where the scan continues: the row key after the key group.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from struct import Struct

from statekit.backend.interface import Backend, due_of_groups, first_of_groups, prefix_end
from statekit.checkpoint.era import PERMANENT, UNWRITTEN, Era
from statekit.checkpoint.job_file import CLOCK_TAGS, EXPIRY, ROW_MARK, Clock, TtlRecord
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import GROUP_BYTES, group_of_row, pack_group
from statekit.state.key_scope import KeyScope
from statekit.timestamp import MAX_MICROS, TIME_BYTES, sortable_micros
from statekit.watermark import BEGINNING

_STAMP = Struct(">cBQ")
_STAMP_BYTES = _STAMP.size
_NO_ERA = Era(0)
_FIRST_ERA = Era(1)
_SIGN = 1 << 63
_MARKS_PER_TTL = 16
_PIECE = 1_000  # rows of the index per step
_SCANNED_BYTES_MAX = 16 * 1024 * 1024  # of rows that a scan of a key group reads in an epoch


def unstamped(row: bytes, era: Era) -> tuple[bytes, int]:
    """Return the value and the write time of a row.

    Raises:
        CorruptCheckpointError: the stamp is cut short.

    >>> unstamped(b"value", Era(1)) == (b"value", PERMANENT)
    True
    >>> unstamped(b"value", Era(1, since_us=7))
    (b'value', 7)
    """
    if row[:1] != ROW_MARK or row[1:2] == b"\x00":
        return row, era.written(0, PERMANENT) if era.ended else era.since_us
    if len(row) < _STAMP_BYTES:
        raise CorruptCheckpointError(
            f"a row of {len(row)} bytes, {row.hex()}, is cut short within its stamp: restore an "
            "earlier epoch"
        )
    _, number, written = _STAMP.unpack_from(row)
    written -= _SIGN
    if number != era.number or written == PERMANENT:
        written = era.written(number, written)
    return row[_STAMP_BYTES:], written


def without_stamp(row: bytes) -> bytes:
    """Return the value of a row, ignoring its stamp.

    Raises:
        CorruptCheckpointError: the stamp is cut short.
    """
    return unstamped(row, _NO_ERA)[0]


def stamp_of(row: bytes) -> bytes:
    """Return the stamp of a row, of any era; empty if the row has none.

    >>> stamp_of(b"value"), len(stamp_of(bytes.fromhex("c1018000000000000000") + b"value"))
    (b'', 10)
    """
    return row[: len(row) - len(without_stamp(row))]


def expired_until(ttl: TtlRecord | None, era: Era, now: int) -> int:
    """Return the latest write time of rows that have expired at a time of the TTL's clock.

    Without a TTL, only rows that expired in an earlier era have.

    >>> ttl = TtlRecord(duration_us=10, clock="processing", refresh="write")
    >>> expired_until(ttl, Era(1), 110), expired_until(ttl, Era(1, paused_us=60), 110)
    (100, 40)
    """
    if ttl is None:
        return UNWRITTEN
    return max(now - era.paused_us - ttl.duration_us, era.floor_us)


def ttl_text(ttl: TtlRecord) -> str:
    """Return a TTL as text.

    >>> ttl_text(TtlRecord(duration_us=60_000_000, clock="event", refresh="write"))
    'expires 0:01:00 after the last write in event time'
    >>> ttl_text(TtlRecord(duration_us=86_400_000_000, clock="processing", refresh="read"))
    'expires 1 day after the last read or write in processing time'
    >>> ttl_text(
    ...     TtlRecord(duration_us=1_000_000, clock="processing", refresh="write", downtime=False)
    ... )
    'expires 0:00:01 after the last write in processing time without downtime'
    """
    duration = str(dt.timedelta(microseconds=ttl.duration_us))
    duration = duration.removesuffix(", 0:00:00").replace(",", "")
    after = "write" if ttl.refresh == "write" else "read or write"
    clock = "event time" if ttl.clock == "event" else "processing time"
    without = "" if ttl.downtime else " without downtime"
    return f"expires {duration} after the last {after} in {clock}{without}"


def index_entry(
    state: str, ttl: TtlRecord, era: Era, row_key: bytes, row: bytes
) -> tuple[bytes, int] | None:
    """Return the index row of a row, and its due time by the clock of the TTL; None if the row does
    not expire.
    """
    _, written = unstamped(row, era)
    if written == UNWRITTEN:  # it had expired in an earlier era
        written = era.since_us
    if written == PERMANENT:
        return None
    mark = _mark(written, _step(ttl.duration_us))
    due_us = mark + ttl.duration_us + era.paused_us
    return _entry(row_key, _tag(state, ttl.clock), mark), due_us


def _step(duration: int) -> int:
    return max(1, duration // _MARKS_PER_TTL)


def _mark(written: int, step: int) -> int:
    return -(-written // step) * step


def _tag(state: str, clock: Clock) -> bytes:
    """Return the prefix of the index rows of one state and clock, after the key group."""
    return state.encode() + b"\x00" + CLOCK_TAGS[clock]


def _entry(row_key: bytes, tag: bytes, mark: int) -> bytes:
    return row_key[:2] + tag + sortable_micros(mark) + row_key[2:]


class Expiry:
    """The expiry of the rows of one state in one shard.

    Parameters:
        state: its name.
        ttl: as declared; None for a state whose rows had a TTL in an earlier era and have none now.
        scope: the key scope; its clocks have the times of the epoch.

    Attributes:
        clock: the clock that counts.
        refreshes: whether a read restarts the TTL.
        wake_us: the next time at which a row is to be deleted; None without any.
    """

    def __init__(self, state: str, ttl: TtlRecord | None, scope: KeyScope) -> None:
        self._state = state
        self._scope = scope
        self._ttl = ttl
        self._era = era = scope.eras.get(state, _FIRST_ERA)
        self._paused = era.paused_us
        self._duration = 0 if ttl is None else ttl.duration_us
        self._age = self._duration + self._paused
        self.clock: Clock = "processing" if ttl is None else ttl.clock
        self._by_event = self.clock == "event"
        self._step = _step(self._duration)
        # The index of the clock, and that of the other clock, which may have had a former era.
        names = [_tag(state, clock) for clock in CLOCK_TAGS]
        self._tag, self._other_tag = names if self._by_event else reversed(names)
        self.indexed = 0
        """The number of rows that were added to the index in this epoch."""
        self.refreshes = ttl is not None and ttl.refresh == "read"
        self.wake_us: int | None = None
        instant = scope.clocks.processing_time_us - self._paused
        self._instant = PERMANENT if ttl is None else instant
        self._last_stamp = (PERMANENT, b"")
        self._permanent = b""
        if era.ended:
            self._permanent = _STAMP.pack(ROW_MARK, era.number, PERMANENT + _SIGN)
        self._left = 0  # rows that the sweep of this epoch may process
        self.tick()

    def tick(self) -> None:
        """Read the clock again."""
        clocks = self._scope.clocks
        self._now = now = clocks.expiry_us if self._by_event else clocks.processing_time_us
        until = UNWRITTEN if self._ttl is None else now - self._age
        self._expired_until = max(until, self._era.floor_us)
        """The write time up to which rows have expired."""

    @property
    def complete_since_us(self) -> int | None:
        """The write time from which on all unexpired rows exist; None if all unexpired rows exist.

        Rows that were written earlier may not exist, because the state did not, or because they
        expired by a shorter TTL.
        """
        times = (self._era.since_us, self._era.floor_us)
        return max((time for time in times if abs(time) != PERMANENT), default=None)

    def write_as_of(self, written_us: int) -> None:
        """Use this processing time as the write time of the next writes."""
        self._instant = written_us

    def stamp(self, before: int) -> int:
        """Return the write time of a row that is written now, given its earlier write time."""
        if not self._by_event:  # a value whose own lifetime is longer keeps it
            return self._instant if before == PERMANENT else max(self._instant, before)
        scope = self._scope
        now = scope.clocks.expiry_us if scope.clocks.event_us is None else scope.clocks.event_us
        if now == BEGINNING:
            return PERMANENT  # event time has not begun: who is to say when this was
        return now if before == PERMANENT or now > before else before

    def stamp_for(self, lifetime_us: int | None) -> int:
        """Return the write time of a row that expires after a lifetime of its own from now on: the
        time at which it would have been written to expire then.

        Parameters:
            lifetime_us: None for a row that stays until the end of all times.
        """
        now = self.stamp(UNWRITTEN)
        if now == PERMANENT:
            return PERMANENT
        if lifetime_us is None or lifetime_us > MAX_MICROS - now - self._age:
            # The row of the index is due up to a sixteenth of the duration later.
            return max(now, MAX_MICROS - 2 * self._age)
        return now + lifetime_us - self._duration

    def is_over(self, written: int) -> bool:
        """Return whether a row with this write time has expired."""
        return written <= self._expired_until

    def read(self, row: bytes) -> tuple[bytes | None, int]:
        """Return the value of a row (None if it has expired) and its write time."""
        value, written = self.split(row)
        return (None if written <= self._expired_until else value), written

    def has_expired(self, row: bytes) -> bool:
        """Return whether a row has expired."""
        return self.is_over(self.split(row)[1])

    def split(self, row: bytes) -> tuple[bytes, int]:
        """Return the value of a row, expired or not, and its write time."""
        value, written = unstamped(row, self._era)
        if self._ttl is None and written != UNWRITTEN:
            written = PERMANENT
        return value, written

    def row(self, row_key: bytes, value: bytes, before: int, written: int) -> bytes:
        """Return a value with its stamp, to replace a row that was written at `before`."""
        return self.rows((row_key,), (value,), (before,), (written,))[0]

    def rows(
        self,
        row_keys: Iterable[bytes],
        values: Iterable[bytes],
        befores: Iterable[int],
        times: Iterable[int],
    ) -> list[bytes]:
        """Return values with their stamps, to replace rows with earlier write times, or none.

        Rows without an index row get one.
        """
        packed_for, stamp = self._last_stamp
        era, rows = self._era, []
        since, permanent = era.since_us, self._permanent
        for row_key, value, before, written in zip(row_keys, values, befores, times, strict=False):
            if written == PERMANENT:
                # With earlier eras, a row without a stamp would be one of before them.
                rows.append(permanent + value)
                continue
            if before == PERMANENT:
                self._index(row_key, written)
            else:
                written = max(written, before)  # it may be written without reading the old row
                if before in (UNWRITTEN, since):
                    self._index(row_key, written)
            if packed_for != written:
                stamp = _STAMP.pack(ROW_MARK, era.number, written + _SIGN)
                packed_for = written
            rows.append(stamp + value)
        self._last_stamp = (packed_for, stamp)
        return rows

    def forget(self, row_key: bytes, written: int) -> None:
        """Delete the index row of a row that is removed before it expires.

        If the row was written again, its index row has an older write time and stays until it is
        due.
        """
        if written not in (PERMANENT, UNWRITTEN):
            entry = _entry(row_key, self._tag, _mark(written, self._step))
            self._scope.batch.delete(EXPIRY, entry)

    def _index(self, row_key: bytes, written: int) -> None:
        mark = _mark(written, self._step)
        self._scope.batch.put(EXPIRY, _entry(row_key, self._tag, mark), b"")
        self.indexed += 1
        self._wakes_at(mark + self._duration)

    def _wakes_at(self, time: int) -> None:
        time += self._paused
        if self.wake_us is None or time < self.wake_us:
            self.wake_us = time

    # ---------------------------------------------------------------------------------- removal

    def begin_scan(self, backend: Backend, groups: tuple[int, int]) -> None:
        """Add an index row for each key group with rows. These rows existed before the era began.

        All changes must have been applied to the backend.

        Parameters:
            groups: first and last key group of the shard.
        """
        group, last = groups
        mark = _mark(self._era.since_us, self._step)
        while (first := first_of_groups(backend, self._state, b"", (group, last))) is not None:
            group = group_of_row(first)
            self._scope.batch.put(EXPIRY, _entry(pack_group(group), self._tag, mark), b"")
            self._wakes_at(mark + self._duration)
            group += 1

    def sweep(
        self, backend: Backend, groups: tuple[int, int], most: int
    ) -> Iterator[tuple[bytes, int]]:
        """Delete expired rows. Yield the key and the size in bytes of each deleted row.

        All changes must have been applied to the backend.

        Parameters:
            groups: first and last key group of the shard.
            most: the maximum number of index rows to process, and of rows to scan; if some are
                left, `wake_us` is now.
        """
        self.tick()
        self.wake_us = None
        # Index rows of another clock, or of a state without a TTL, are all removed.
        until = self._expired_until if self._ttl is not None else PERMANENT - 1
        pieces = self._due_entries(backend, groups, self._tag, until)
        if self._ttl is None or self._era.number > 1:
            others = self._due_entries(backend, groups, self._other_tag, PERMANENT - 1)
            pieces = chain(pieces, others)
        # A row that was cleared and written again, or by both clocks, has two rows in the index.
        removed_keys: set[bytes] = set()
        self._left = most
        for entries, rest_at in pieces:
            entries = entries[: self._left]
            self._left -= len(entries)
            yield from self._remove(backend, entries, rest_at, removed_keys)
            if self._left <= 0:
                self.wake_us = self._now
                return

    def _due_entries(
        self, backend: Backend, groups: tuple[int, int], tag: bytes, until: int
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield adjacent index rows of one clock up to a mark, with the offset of the rest of the
        row key.
        """
        rest_at = GROUP_BYTES + len(tag) + TIME_BYTES

        def wakes_at(mark: int) -> None:
            self._wakes_at(mark + self._duration)

        for due in due_of_groups(backend, EXPIRY, tag, groups, until, wakes_at):
            while entries := [entry for entry, _ in islice(due, _PIECE)]:
                yield entries, rest_at

    def _remove(
        self, backend: Backend, entries: list[bytes], rest_at: int, removed_keys: set[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Delete adjacent index rows, and the rows that they refer to if these have expired.

        Yields the key and the size in bytes of each deleted row.
        """
        batch, state = self._scope.batch, self._state
        batch.delete_range(EXPIRY, entries[0], entries[-1] + b"\x00")
        of_rows = [entry for entry in entries if len(entry) > rest_at]
        row_keys = [entry[:2] + entry[rest_at:] for entry in of_rows]
        rows = backend.get_many(state, row_keys)
        for row_key, row in zip(row_keys, rows, strict=True):
            if row is None or row_key in removed_keys:
                continue
            value, written = self.read(row)
            if value is None:
                yield self._removed(row_key, row, removed_keys)
            elif written != PERMANENT:
                self._index(row_key, written)
        for entry in entries:
            if len(entry) == rest_at:
                yield from self._scan(backend, entry, removed_keys)
        if batch.full:
            self._scope.spill()

    def _removed(self, row_key: bytes, row: bytes, removed_keys: set[bytes]) -> tuple[bytes, int]:
        """Delete a row. Return its key and its size in bytes."""
        removed_keys.add(row_key)
        self._scope.batch.delete(self._state, row_key)
        return row_key, len(row_key) + len(row)

    def _scan(
        self, backend: Backend, entry: bytes, removed_keys: set[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Delete expired rows of a key group, starting where the last scan ended. If rows are left,
        the index row stays.

        Yields the key and the size in bytes of each deleted row.
        """
        group = entry[:2]
        start = group + (backend.get(EXPIRY, entry) or b"")
        stored = backend.scan(self._state, start, prefix_end(group))
        size, rows = 0, list[tuple[bytes, bytes]]()
        for row_key, row in stored:
            if rows and (self._left <= 0 or size > _SCANNED_BYTES_MAX):
                self._left = 0
                self._scope.batch.put(EXPIRY, entry, row_key[2:])
                break
            rows.append((row_key, row))
            size += len(row)
            self._left -= 1
        for row_key, row in rows:
            if row_key not in removed_keys and self.read(row)[0] is None:
                yield self._removed(row_key, row, removed_keys)
