"""Resolved changes: changes row by row, with the value before, and with rows that expire.

The change files of an epoch have neither: a range of rows may be cleared at once, and an expired
row is removed some time later. So a resolved feed keeps a copy of the operator's rows, as a replica
does, and compares the rows that an epoch touched before and after it. The deadline of a row follows
from its stamp. An index on the local disk finds the rows whose deadline an epoch has passed:

    due    deadline (8 bytes, sortable) + row key  → nothing

Each written row adds an entry. The entry is checked once, when it is due: if the row has a later
deadline by then, it has a later entry too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from statekit.backend.interface import prefix_end
from statekit.backend.mutation import Batch, in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.own_files import follows_by_files, own_files
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.retention import still_kept
from statekit.errors import QueryError
from statekit.keygroup import GROUP_BYTES, MAX_GROUPS, pack_group
from statekit.query.changes.change import Change, ChangeSource, change_of_row
from statekit.query.changes.change_sources import is_same_row, regrouped
from statekit.query.changes.net_changes import NetChanges, joined
from statekit.query.replica.follower import Follower
from statekit.query.replica.operator_copy import EpochRows
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.state_rows import Row, StateRows, expiry_time_us
from statekit.timestamp import MAX_MICROS, MIN_MICROS, sortable_micros

DUE = "due"
_DEADLINE_BYTES = 8
_NEVER = b"\xff" * _DEADLINE_BYTES
_ALL = group_bounds(0, MAX_GROUPS - 1)


@dataclass(frozen=True)
class RowsAt:
    """The rows of one state after an epoch.

    Parameters:
        manifest: of the epoch.
        stored: its rows.
        rows: their decoder.
    """

    manifest: EpochManifest
    stored: EpochRows
    rows: StateRows

    @property
    def now_us(self) -> int:
        """Time of the epoch by the clock of the TTL, in microseconds."""
        return expiry_time_us(self.manifest, self.rows.operator.name, self.rows.state)

    def get(self, row_key: bytes) -> bytes | None:
        """Return the row at a row key; None if there is none, or if it has expired."""
        row = self.stored.get(self.rows.state.name, row_key)
        return None if row is None or self.rows.is_expired(row, self.now_us) else row

    def of_shards(self) -> dict[tuple[int, bytes], bytes]:
        """Return operator state, by the number of the shard and the rest of the row key."""
        name, found = self.rows.state.name, dict[tuple[int, bytes], bytes]()
        for number, shard in enumerate(self.manifest.operators[self.rows.operator.name].shards):
            prefix = pack_group(shard.first_group)
            for row_key, row in self.stored.scan(name, prefix, prefix_end(prefix)):
                found[number, row_key[GROUP_BYTES:]] = row
        return found

    def scan(self, start: bytes, end: bytes) -> Iterator[Row]:
        """Yield the rows in a range that have not expired."""
        stored = self.stored.scan(self.rows.state.name, start, end)
        return self.rows.unexpired(stored, self.now_us)


class Resolver:
    """Finds the resolved changes of one state, epoch by epoch. Close it after use.

    Parameters:
        reader: of the checkpoint.
        operator: the operator's name.
        directory: an empty one on the local disk.
        options: limits of RocksDB.
    """

    def __init__(
        self, reader: EpochReader, operator: str, directory: Path, options: RocksOptions
    ) -> None:
        self._reader = reader
        self._follower = Follower(reader, directory, [operator], None, options)
        self._due = RocksBackend(directory / "due", [DUE], options)
        self._now: RowsAt | None = None
        self._before: RowsAt | None = None

    def advance(self, after: EpochManifest, rows: StateRows) -> ChangeSource:
        """Advance to an epoch, and return its changes, which can be read until the next call.

        Parameters:
            after: the first epoch, or the one after that of the last call.
            rows: the decoder of its rows.
        """
        self._forget_before()
        before, self._before = self._now, self._now
        self._follower.apply(after)
        now = self._now = RowsAt(after, self._follower.rows()[rows.operator.name], rows)
        if before is None:
            self._index(now.scan(*_ALL), rows)
            return ChangeSource("snapshot", after, ComparedRows(None, now).changes)
        is_same = before.rows.state == rows.state
        if rows.is_local or not (is_same and follows_by_files(before.manifest, after)):
            self._index(now.scan(*_ALL), rows)
            return ChangeSource("difference", after, ComparedRows(before, now).changes)
        touched = TouchedRows(before, now, self._reader.repository, self._due)
        self._index(touched.written(), rows)
        return ChangeSource("changes", after, touched.changes)

    def _forget_before(self) -> None:
        """Release the rows before the last epoch, and index entries that were due in it."""
        if self._before is not None and self._now is not None:
            self._before.stored.close("read the changes of an epoch before you take the next one")
            end = due_key(self._now.now_us + 1)
            over = Batch()
            over.delete_range(DUE, due_key(MIN_MICROS), end)
            self._due.write(over)
        self._follower.remove_unread()

    def _index(self, written: Iterable[Row], rows: StateRows) -> None:
        """Add rows that expire to the index."""
        if rows.state.ttl is None:
            return
        deadlines = ((row_key, rows.deadline_us(row)) for row_key, row in written)
        for batch in in_batches(
            (DUE, due_key(deadline) + row_key, b"")
            for row_key, deadline in deadlines
            if deadline is not None and deadline <= MAX_MICROS
        ):
            self._due.write(batch)

    def close(self) -> None:
        """Release the copies and the index."""
        for rows in (self._before, self._now):
            if rows is not None:
                rows.stored.close("the feed was closed: open it again")
        self._due.close()
        self._follower.close()


@dataclass(frozen=True)
class _Resolved:
    """Changes between the rows before an epoch and after it."""

    before: RowsAt | None
    now: RowsAt

    def _change(
        self, row_key: bytes, old: bytes | None, new: bytes | None, shard: int | None = None
    ) -> Iterator[Change]:
        """Yield the change of a row; nothing if it is the same."""
        if old is None and new is None:
            return
        rows, rows_before = self.now.rows, None if self.before is None else self.before.rows
        if old is None or rows_before is None:
            yield change_of_row(rows, row_key, new, shard)
        elif new is None or not is_same_row(rows_before, old, rows, new):
            yield change_of_row(rows, row_key, new, shard, rows_before.value(old))


@dataclass(frozen=True)
class ComparedRows(_Resolved):
    """Changes between two states that are compared completely."""

    def changes(self) -> Iterator[Change]:
        """Yield the net changes."""
        if self.now.rows.is_local:
            yield from self._of_shards()
            return
        before = iter(()) if self.before is None else self.before.scan(*_ALL)
        with contextlib.ExitStack() as closing:
            if (
                self.before is not None
                and self.before.manifest.key_groups != self.now.manifest.key_groups
            ):
                before = regrouped(before, self.now.rows, closing)
            for row_key, old, new in joined(before, self.now.scan(*_ALL)):
                yield from self._change(row_key, old, new)

    def _of_shards(self) -> Iterator[Change]:
        """Yield the changes of operator state, by the numbers of the shards."""
        old = {} if self.before is None else self.before.of_shards()
        new = self.now.of_shards()
        for place in sorted(old.keys() | new.keys()):
            number, subkey = place
            yield from self._change(subkey, old.get(place), new.get(place), number)


@dataclass(frozen=True)
class TouchedRows(_Resolved):
    """Changes of the rows that an epoch wrote, cleared, or found expired."""

    repository: Repository
    due: RocksBackend

    def changes(self) -> Iterator[Change]:
        """Yield the net changes."""
        before, epoch = self.before, self.now.manifest.epoch
        assert before is not None
        with still_kept(self.repository, epoch, QueryError), self._net() as net:
            for bounds in net.cleared:
                net.touch(row_key for row_key, _ in before.scan(*bounds))
            net.touch(self._expired())
            for row_key, _ in net.rows:
                yield from self._change(row_key, before.get(row_key), self.now.get(row_key))

    def _net(self) -> NetChanges:
        assert self.before is not None
        operator = self.now.rows.operator.name
        shards = own_files(self.repository, self.before.manifest, self.now.manifest, operator)
        refs = [ref for _, refs in shards for ref in refs if not ref.local]
        return NetChanges(self.repository, refs, self.now.rows.state.name)

    def _expired(self) -> Iterator[bytes]:
        """Yield the row keys of index entries that became due."""
        if self.now.rows.state.ttl is not None:
            end = due_key(self.now.now_us + 1)
            for entry, _ in self.due.scan(DUE, due_key(MIN_MICROS), end):
                yield entry[_DEADLINE_BYTES:]

    def written(self) -> Iterator[Row]:
        """Yield the rows that the epoch wrote."""
        with self._net() as net:
            for row_key, row in net.rows:
                if row is not None:
                    yield row_key, row


def due_key(deadline_us: int) -> bytes:
    """Return the start of the index entries with a deadline."""
    return sortable_micros(max(deadline_us, MIN_MICROS)) if deadline_us <= MAX_MICROS else _NEVER
