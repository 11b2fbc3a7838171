"""Records that are buffered until the watermark passes them: `@process(ordered=True)`.

A waiting record is one row without content, so that the order of rows is the order of handling:

    _waiting    key group (2) + time (8) + encoded key + record + position (12)  → nothing

Encoded keys and records are prefix-free, so records of one key and time come in the order of their
bytes. The position (epoch and running number, as in lists) keeps equal records apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from statekit.backend.interface import Backend, StateSize
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import WAITING
from statekit.checkpoint.manifest import ShardPlan
from statekit.codec.key_codec import KeyCodec
from statekit.codec.value_codec import ValueCodec
from statekit.keygroup import group_of_row, pack_group
from statekit.state.timers import DUE, EVENT_TAG, first_due
from statekit.timestamp import micros_of_sortable, sortable_micros

# So many records and timers of one key group are in memory at a time.
SLICE_MAX = 20_000

_POSITION_BYTES = 12


def record_of_row(rest: bytes) -> bytes:
    """The record, encoded, out of what follows the key in a waiting row."""
    return rest[:-_POSITION_BYTES]


class DueGroup(NamedTuple):
    """What is due in one key group up to a time.

    Parameters:
        group: the key group.
        until_us: records and timers up to here are to be handled.
        keys: each key that has any, in order, with its records as (time, record) in order.
    """

    group: int
    until_us: int
    keys: list[tuple[Any, list[tuple[int, Any]]]]


class _Due(NamedTuple):
    """A row that is due. Sorts by time."""

    time: int
    prefix: bytes
    key: Any
    row: bytes = b""
    """Of a waiting record; empty for a timer."""
    content: bytes = b""


class Waiting:
    """The waiting records of one shard.

    Parameters:
        plan: which shard, and its watermark.
        batch: where changes go.
        backend: holds the rows.
        codec: of records.
        key_codec: of keys.
        has_timers: whether timers may be due, too.
    """

    def __init__(
        self,
        plan: ShardPlan,
        batch: Batch,
        backend: Backend,
        codec: ValueCodec[Any],
        key_codec: KeyCodec[Any],
        *,
        has_timers: bool,
    ) -> None:
        self._batch = batch
        self._backend = backend
        self._codec = codec
        self._decode_key = key_codec.decode
        self._groups = plan.base.groups
        self._now = plan.now_us["event"]
        self._has_timers = has_timers
        self._epoch = plan.epoch.to_bytes(6, "big")
        self._arrived = 0
        self._rows_added = 0
        self._bytes_added = 0
        self.wake_us: int | None = None
        """The soonest record or timer that is not due; complete once the slices are through."""

    def add(self, prefix: bytes, time: int, record: Any) -> None:
        """Let a record wait. `prefix` is its key group and encoded key.

        Raises:
            StateTypeError: the record has parts that cannot be stored.
        """
        position = self._epoch + self._arrived.to_bytes(6, "big")
        self._arrived += 1
        content = self._codec.encode(record)
        row = prefix[:2] + sortable_micros(time) + prefix[2:] + content + position
        self._bytes_added += self._batch.put(WAITING, row, b"")
        self._rows_added += 1
        self._wakes_at(time)

    @property
    def added(self) -> StateSize:
        """By how much this epoch changed what the shard holds."""
        return StateSize(self._rows_added, self._bytes_added)

    def slices(self, settle: Callable[[], None]) -> Iterator[DueGroup]:
        """What is due, one key group after the other, each in order of time.

        Parameters:
            settle: applies all changes, so that a second slice of a group sees what became of the
                first.
        """
        for group in self._due_groups():
            while True:
                due = list(islice(self._due_in(group), SLICE_MAX))
                is_last = len(due) < SLICE_MAX
                yield self._slice(group, due, self._now if is_last else due[-1].time)
                if is_last:
                    break
                settle()

    def _slice(self, group: int, due: list[_Due], until: int) -> DueGroup:
        keys: dict[bytes, tuple[Any, list[tuple[int, Any]]]] = {}
        for found in due:
            _, records = keys.setdefault(found.prefix, (found.key, []))
            if found.row:
                records.append((found.time, self._codec.decode(found.content)))
        self._remove([found.row for found in due if found.row])
        return DueGroup(group, until, [keys[prefix] for prefix in sorted(keys)])

    def _remove(self, rows: list[bytes]) -> None:
        """Remove the first waiting rows of a key group, all in one."""
        if rows:
            self._batch.delete_range(WAITING, rows[0], rows[-1] + b"\x00")
            self._rows_added -= len(rows)
            self._bytes_added -= sum(map(len, rows))

    def _due_groups(self) -> Iterator[int]:
        """Key groups with anything due; those without anything are jumped over."""
        group, last = self._groups
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
                self._wakes_at(micros_of_sortable(row, len(row) - 8))
            group += 1

    def _firsts(self, group: int, last: int, *, after: int | None = None) -> Iterator[bytes]:
        """Key group and time of the first waiting record and of the first timer."""
        later = b"" if after is None else sortable_micros(after + 1)
        end = pack_group(last + 1)
        row = self._backend.first(WAITING, pack_group(group) + later, end)
        if row is not None:
            yield row[:10]
        if self._has_timers:
            row = first_due(self._backend, EVENT_TAG, (group, last), later)
            if row is not None:
                yield row[:2] + row[3:11]

    def _due_in(self, group: int) -> Iterator[_Due]:
        start, behind = pack_group(group), sortable_micros(self._now + 1)
        waiting = (
            self._record(row) for row, _ in self._backend.scan(WAITING, start, start + behind)
        )
        if not self._has_timers:
            return waiting
        start += EVENT_TAG
        timers = (self._timer(row) for row, _ in self._backend.scan(DUE, start, start + behind))
        return merge(waiting, timers, key=lambda due: due.time)

    def _record(self, row: bytes) -> _Due:
        key, end = self._decode_key(row, 10)
        content = record_of_row(row[end:])
        return _Due(micros_of_sortable(row, 2), row[:2] + row[10:end], key, row, content)

    def _timer(self, row: bytes) -> _Due:
        key, end = self._decode_key(row, 11)
        return _Due(micros_of_sortable(row, 3), row[:2] + row[11:end], key)

    def _wakes_at(self, time: int) -> None:
        if time > self._now and (self.wake_us is None or time < self.wake_us):
            self.wake_us = time
