"""State with a TTL: stamped rows, and an index of when they expire.

A row of a state with a TTL has a stamp before its value. No value starts with its first byte, so
rows with and without a stamp are distinguished:

    C1 + era (1 byte) + written (8 bytes, sortable) + value

Eras are counted from 1: a row that begins with C1 00 has no stamp but the mark of its generation
(`row_versions`). A stamp comes before such a mark.

Only stamps of the state's present era count. The era increases when expiry is turned on or moves to
another clock. A row of an earlier era, or without a stamp, stays until it is written again.

Each row that expires has a row in the index. It finds the expired rows without reading any others:

    _expiry    key group (2) + state + 00 + clock (1) + mark (8) + rest of the row key  → nothing

The mark is the first write time of the row, rounded up to a sixteenth of the TTL. Writing the row
again does not change the index. When the mark has expired and the row has not, the index row moves
to the last write time. So a row that is written often costs one lookup per TTL, and an expired row
is deleted up to a sixteenth of the TTL late. Every reader treats it as expired on time. If a row
that was written more than once is deleted, its index row stays until it is due.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from struct import Struct

from statekit.backend.interface import Backend, first_of_groups
from statekit.checkpoint.job_file import CLOCK_TAGS, EXPIRY, ROW_MARK, Clock, TtlRecord
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import group_of_row
from statekit.state.key_scope import KeyScope
from statekit.timestamp import micros_of_sortable, sortable_micros
from statekit.watermark import BEGINNING

PERMANENT = 1 << 62
"""The write time of a row that never expires."""

UNWRITTEN = -PERMANENT
"""The write time of a row that does not exist."""

_STAMP = Struct(">cBQ")
_STAMP_BYTES = _STAMP.size
_SIGN = 1 << 63
_MARKS_PER_TTL = 16
_PIECE = 1_000  # rows of the index per step


def unstamped(row: bytes, era: int) -> tuple[bytes, int]:
    """Return the value of a row, and its write time if that counts; else `PERMANENT`.

    Raises:
        CorruptCheckpointError: the stamp is cut short.

    >>> unstamped(b"value", era=1) == (b"value", PERMANENT)
    True
    """
    if row[:1] != ROW_MARK or row[1:2] == b"\x00":
        return row, PERMANENT
    if len(row) < _STAMP_BYTES:
        raise CorruptCheckpointError(
            f"a row of {len(row)} bytes, {row.hex()}, is cut short within its stamp: restore an "
            "earlier epoch"
        )
    _, stamped_era, written = _STAMP.unpack_from(row)
    return row[_STAMP_BYTES:], written - _SIGN if stamped_era == era else PERMANENT


def stamp_of(row: bytes) -> bytes:
    """Return the stamp of a row, of any era; empty if it has none.

    >>> stamp_of(b"value"), len(stamp_of(bytes.fromhex("c1018000000000000000") + b"value"))
    (b'', 10)
    """
    value, _ = unstamped(row, era=0)
    return row[: len(row) - len(value)]


def has_expired(written: int, ttl: TtlRecord | None, now: int) -> bool:
    """Return whether a row with that write time has expired.

    >>> ttl = TtlRecord(duration_us=10, clock="event", refresh="write")
    >>> has_expired(100, ttl, 109), has_expired(100, ttl, 110), has_expired(PERMANENT, ttl, 110)
    (False, True, False)
    """
    return ttl is not None and written + ttl.duration_us <= now


def ttl_text(ttl: TtlRecord) -> str:
    """Return a TTL as text.

    >>> ttl_text(TtlRecord(duration_us=60_000_000, clock="event", refresh="write"))
    'expires 0:01:00 after the last write in event time'
    >>> ttl_text(TtlRecord(duration_us=86_400_000_000, clock="processing", refresh="read"))
    'expires 1 day after the last read or write in processing time'
    """
    duration = str(dt.timedelta(microseconds=ttl.duration_us))
    duration = duration.removesuffix(", 0:00:00").replace(",", "")
    after = "write" if ttl.refresh == "write" else "read or write"
    clock = "event time" if ttl.clock == "event" else "processing time"
    return f"expires {duration} after the last {after} in {clock}"


def index_entry(
    state: str, ttl: TtlRecord, era: int, row_key: bytes, row: bytes
) -> tuple[bytes, int] | None:
    """Return the index row of a row, and when it is due; None if the row does not expire."""
    _, written = unstamped(row, era)
    if written == PERMANENT:
        return None
    mark = _mark(written, _step(ttl.duration_us))
    return _entry(row_key, _tag(state, ttl.clock), mark), mark + ttl.duration_us


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
    """When the rows of one state expire, in one shard.

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
        self._era = scope.eras.get(state, 1)
        self._duration = 0 if ttl is None else ttl.duration_us
        self.clock: Clock = "processing" if ttl is None else ttl.clock
        self._by_event = self.clock == "event"
        self._step = _step(self._duration)
        # The index of the clock, and that of the other clock, which may have had a former era.
        names = [_tag(state, clock) for clock in CLOCK_TAGS]
        self._tag, self._other_tag = names if self._by_event else reversed(names)
        self.indexed = 0
        """How many rows this epoch added to the index."""
        self.refreshes = ttl is not None and ttl.refresh == "read"
        self.wake_us: int | None = None
        self._instant = PERMANENT if ttl is None else scope.clocks.processing_time_us
        self._last_stamp = (PERMANENT, b"")
        self.tick()

    def tick(self) -> None:
        """Read the clock again."""
        scope = self._scope
        self._now = scope.clocks.expiry_us if self._by_event else scope.clocks.processing_time_us
        self._expired_until = self._now - self._duration
        """What was written then, or before, has expired."""

    def write_as_of(self, written_us: int) -> None:
        """Use this processing time as the write time of the next writes."""
        self._instant = written_us

    def stamp(self, before: int) -> int:
        """Return the write time of a row that is written now, given its earlier write time."""
        if not self._by_event:
            return self._instant
        scope = self._scope
        now = scope.clocks.expiry_us if scope.clocks.event_us is None else scope.clocks.event_us
        if now == BEGINNING:
            return PERMANENT  # event time has not begun: who is to say when this was
        return now if before == PERMANENT or now > before else before

    def is_over(self, written: int) -> bool:
        """Return whether a row with that write time has expired."""
        return written <= self._expired_until

    def read(self, row: bytes) -> tuple[bytes | None, int]:
        """Return the value of a row, None if it has expired, and its write time."""
        value, written = unstamped(row, self._era)
        if self._ttl is None:
            return value, PERMANENT
        return (None if written <= self._expired_until else value), written

    def split(self, row: bytes) -> tuple[bytes, int]:
        """Return the value of a row, expired or not, and its write time."""
        value, written = unstamped(row, self._era)
        return value, PERMANENT if self._ttl is None else written

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
        rows = []
        for row_key, value, before, written in zip(row_keys, values, befores, times, strict=False):
            if written == PERMANENT:
                rows.append(value)
                continue
            if before in (PERMANENT, UNWRITTEN):
                self._index(row_key, written)
            elif written < before:  # written without reading the old row
                written = before
            if packed_for != written:
                stamp = _STAMP.pack(ROW_MARK, self._era, written + _SIGN)
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
        if self.wake_us is None or time < self.wake_us:
            self.wake_us = time

    # ---------------------------------------------------------------------------------- removal

    def sweep(
        self, backend: Backend, groups: tuple[int, int], most: int
    ) -> Iterator[tuple[bytes, int]]:
        """Delete expired rows. Yield the key and the size in bytes of each deleted row.

        All changes must have been applied to the backend.

        Parameters:
            groups: first and last key group of the shard.
            most: the maximum number of index rows to process; if some are left, `wake_us` is now.
        """
        self.tick()
        self.wake_us = None
        # Index rows of another clock, or of a state without a TTL, are all removed.
        until = self._expired_until if self._ttl is not None else PERMANENT - 1
        pieces = self._due_entries(backend, groups, self._tag, until)
        if self._ttl is None or self._era > 1:
            others = self._due_entries(backend, groups, self._other_tag, PERMANENT - 1)
            pieces = chain(pieces, others)
        # A row that was cleared and written again, or by both clocks, has two rows in the index.
        removed_keys: set[bytes] = set()
        for entries, rest_at in pieces:
            yield from self._remove(backend, entries[:most], rest_at, removed_keys)
            most -= len(entries)
            if most <= 0:
                self.wake_us = self._now
                return

    def _due_entries(
        self, backend: Backend, groups: tuple[int, int], tag: bytes, until: int
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield adjacent index rows of one clock up to a mark, and where the rest of the row key
        begins in them.
        """
        find = partial(first_of_groups, backend, EXPIRY, tag)
        mark_at = 2 + len(tag)
        (group, last), later = groups, b""
        while (first := find((group, last), later)) is not None:
            group = group_of_row(first)
            if (mark := micros_of_sortable(first, mark_at)) > until:
                self._wakes_at(mark + self._duration)
                group, later = group + 1, b""
                continue
            later = sortable_micros(until + 1)
            due = backend.scan(EXPIRY, first, first[:mark_at] + later)
            while entries := [entry for entry, _ in islice(due, _PIECE)]:
                yield entries, mark_at + 8

    def _remove(
        self, backend: Backend, entries: list[bytes], rest_at: int, removed_keys: set[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Delete adjacent index rows, and the rows that they stand for if those have expired.

        Yields the key and the size in bytes of each deleted row.
        """
        batch, state = self._scope.batch, self._state
        batch.delete_range(EXPIRY, entries[0], entries[-1] + b"\x00")
        row_keys = [entry[:2] + entry[rest_at:] for entry in entries]
        rows = backend.get_many(state, row_keys)
        for row_key, row in zip(row_keys, rows, strict=True):
            if row is None or row_key in removed_keys:
                continue
            value, written = self.read(row)
            if value is None:
                removed_keys.add(row_key)
                batch.delete(state, row_key)
                yield row_key, len(row_key) + len(row)
            elif written != PERMANENT:
                self._index(row_key, written)
        if batch.full:
            self._scope.spill()
