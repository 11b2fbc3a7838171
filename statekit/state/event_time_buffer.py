"""The event-time buffer: records that wait for the watermark, with `@process(ordered=True)`.

A buffered record is one row without a value:

    _waiting    key group (2) + time (8) + encoded key + record + position (12)  → nothing

Rows are in the order of time and, for equal times, of key. Records of one key and time are put into
the order of their ties when they are handled. The position (epoch, 6 bytes; input, 1; running
number, 5) distinguishes equal records. The input is its place in the operator's list of buffered
inputs, counted from 1; it is 0 in rows of earlier versions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice, takewhile
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from statekit.backend.interface import Backend, StateSize, first_of_groups
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import WAITING
from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.state_kinds import POSITION_BYTES
from statekit.codec.key_codec import KeyCodec
from statekit.codec.value_codec import ValueCodec
from statekit.errors import StateTypeError
from statekit.keygroup import group_of_row, pack_group
from statekit.state.timers import DUE, EVENT_TAG, WakesAt
from statekit.timestamp import micros_of_sortable, sortable_micros

# So many due records and timers of one key group are in memory at a time, and all records of a key
# that have the same time.
DUE_MAX = 20_000

INPUTS_MAX = 255
"""The maximum number of inputs of an operator while records are buffered, including former
inputs.
"""


def record_of_row(row_end: bytes) -> bytes:
    """Return the encoded record of a row.

    Parameters:
        row_end: the part of the row after the key.
    """
    return row_end[:-POSITION_BYTES]


class BufferedRecord(NamedTuple):
    """A record that is due.

    Parameters:
        time: its event time in microseconds.
        record: the record.
        input: its place in the list of buffered inputs, counted from 1; 0 if it is not known.
        epoch, number: when it arrived: the epoch, and its number among the records that the shard
            buffered in it.
    """

    time: int
    record: Any
    input: int
    epoch: int
    number: int


TieRule = Literal["values", "arrival"]
"""What decides the order of records of one key and time."""

TieOrder = Callable[[list[BufferedRecord]], list[BufferedRecord]]
"""Puts records of one key and time into their order."""


class DueGroup(NamedTuple):
    """Due records of one key group.

    Parameters:
        group: the key group.
        until_us: records and timers up to this time are to be handled.
        keys: each key with due records or timers, in order, and its records in order of time.
    """

    group: int
    until_us: int
    keys: list[tuple[Any, list[BufferedRecord]]]


class _Due(NamedTuple):
    """A due row. Instances sort by time."""

    time: int
    prefix: bytes
    key: Any
    row: bytes = b""
    """The row of a buffered record; empty for a timer."""
    content: bytes = b""


@dataclass
class EventTimeBuffer:
    """The buffered records of one shard.

    Parameters:
        plan: the shard and its watermark.
        batch: takes the changes.
        backend: has the rows.
        codec: of records.
        key_codec: of keys.
        wakes_at: called with records and timers that are not due.
        has_timers: whether the operator has timers, which fire between the records.
        tie_order: puts records of one key and time into their order.
        given_up: the classes of records that the operator no longer takes: those that come due are
            dropped.
    """

    plan: ShardPlan
    batch: Batch
    backend: Backend
    codec: ValueCodec[Any]
    key_codec: KeyCodec[Any]
    wakes_at: WakesAt
    has_timers: bool
    tie_order: TieOrder
    given_up: frozenset[type] = frozenset()

    def __post_init__(self) -> None:
        self._now = self.plan.now_us["event"]
        self._epoch = self.plan.epoch.to_bytes(6, "big")
        self._arrived = 0
        self._rows_added = 0
        self._bytes_added = 0

    def add(self, prefix: bytes, time: int, record: Any, place: int) -> None:
        """Buffer a record.

        Parameters:
            prefix: its key group and encoded key.
            time: its event time in microseconds.
            place: of its input in the list of buffered inputs, counted from 1.

        Raises:
            StateTypeError: the record has values that cannot be stored.
        """
        position = self._epoch + place.to_bytes(1, "big") + self._arrived.to_bytes(5, "big")
        self._arrived += 1
        if not self.codec.accepts(record):  # it could be written, and not be read back
            raise StateTypeError(self.codec.reason(record))
        content = self.codec.encode(record)
        row = prefix[:2] + sortable_micros(time) + prefix[2:] + content + position
        self._bytes_added += self.batch.put(WAITING, row, b"")
        self._rows_added += 1
        # Also for the first instant, which the clamped time of the epoch has reached already.
        self.wakes_at("event", time)

    @property
    def added(self) -> StateSize:
        """The growth of the buffer in this epoch, in rows and bytes."""
        return StateSize(self._rows_added, self._bytes_added)

    def due_groups(self, apply_changes: Callable[[], None]) -> Iterator[DueGroup]:
        """Yield due records, one key group after the other, sorted by time within a group.

        Parameters:
            apply_changes: applies all changes to the backend. It is called between two parts of a
                key group with many records.
        """
        for group in self._due_groups():
            while True:
                due = self._some_due(group)
                is_last = len(due) < DUE_MAX
                yield self._taken(group, due, self._now if is_last else due[-1].time)
                if is_last:
                    break
                apply_changes()

    def _some_due(self, group: int) -> list[_Due]:
        """Return the next due records and timers of a key group. All ties of the last one are
        included.
        """
        following = self._due_in(group)
        due = list(islice(following, DUE_MAX))
        if len(due) == DUE_MAX and due[-1].row:
            last = due[-1]
            due += takewhile(lambda item: item.row and item[:2] == last[:2], following)
        return due

    def _taken(self, group: int, due: list[_Due], until: int) -> DueGroup:
        keys: dict[bytes, tuple[Any, list[BufferedRecord]]] = {}
        for (_, prefix), items in groupby(due, key=itemgetter(0, 1)):
            ties = []
            for item in items:
                _, records = keys.setdefault(prefix, (item.key, []))
                if item.row:
                    ties.append(self._buffered(item))
            if self.given_up:
                ties = [tie for tie in ties if type(tie.record) not in self.given_up]
            records += ties if len(ties) < 2 else self.tie_order(ties)
        if rows := [item.row for item in due if item.row]:  # the first ones of the key group
            self.batch.delete_range(WAITING, rows[0], rows[-1] + b"\x00")
            self._rows_added -= len(rows)
            self._bytes_added -= sum(map(len, rows))
        return DueGroup(group, until, [keys[prefix] for prefix in sorted(keys)])

    def _buffered(self, item: _Due) -> BufferedRecord:
        position = item.row[-POSITION_BYTES:]
        epoch, number = int.from_bytes(position[:6], "big"), int.from_bytes(position[7:], "big")
        record = self.codec.decode(item.content)
        return BufferedRecord(item.time, record, position[6], epoch, number)

    def _due_groups(self) -> Iterator[int]:
        """Yield key groups with due records or timers. Seeks skip all other key groups."""
        group, last = self.plan.base.groups
        while group <= last:
            soonest: dict[int, int] = defaultdict(lambda: self._now + 1)
            for row in self._firsts(group, last):
                here = group_of_row(row)
                soonest[here] = min(soonest[here], micros_of_sortable(row, len(row) - 8))
            if not soonest:
                return
            group = min(soonest)
            if soonest[group] <= self._now:
                yield group
            for row in self._firsts(group, group, after=self._now):
                self.wakes_at("event", micros_of_sortable(row, len(row) - 8))
            group += 1

    def _firsts(self, group: int, last: int, *, after: int | None = None) -> Iterator[bytes]:
        """Yield key group and time of the first buffered record and of the first timer."""
        later = b"" if after is None else sortable_micros(after + 1)
        end = pack_group(last + 1)
        row = self.backend.first(WAITING, pack_group(group) + later, end)
        if row is not None:
            yield row[:10]
        if self.has_timers:
            row = first_of_groups(self.backend, DUE, EVENT_TAG, (group, last), later)
            if row is not None:
                yield row[:2] + row[3:11]

    def _due_in(self, group: int) -> Iterator[_Due]:
        start, behind = pack_group(group), sortable_micros(self._now + 1)
        waiting = (
            self._record(row) for row, _ in self.backend.scan(WAITING, start, start + behind)
        )
        if not self.has_timers:
            return waiting
        start += EVENT_TAG
        timers = (self._timer(row) for row, _ in self.backend.scan(DUE, start, start + behind))
        return merge(waiting, timers, key=lambda due: due.time)

    def _record(self, row: bytes) -> _Due:
        key, end = self.key_codec.decode(row, 10)
        content = record_of_row(row[end:])
        return _Due(micros_of_sortable(row, 2), row[:2] + row[10:end], key, row, content)

    def _timer(self, row: bytes) -> _Due:
        key, end = self.key_codec.decode(row, 11)
        return _Due(micros_of_sortable(row, 3), row[:2] + row[11:end], key)
