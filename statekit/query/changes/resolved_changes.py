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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from statekit.backend.interface import prefix_end
from statekit.backend.mutation import Batch, in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import own_files
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.retention import still_kept
from statekit.errors import QueryError
from statekit.keygroup import GROUP_BYTES, MAX_GROUPS, pack_group
from statekit.query.changes.change import Change, Kind, TwoRows, change_of_row, unequal_rows
from statekit.query.changes.net_changes import NetChanges, joined
from statekit.query.changes.state_changes import StoredChanges, regrouped
from statekit.query.replica.follower import Follower
from statekit.query.replica.operator_copy import EpochRows
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.state_rows import Row, StateRows, expiry_time_us
from statekit.timestamp import MAX_MICROS, MIN_MICROS, sortable_micros

DUE = "due"
_DEADLINE_BYTES = 8
_NEVER = b"\xff" * _DEADLINE_BYTES
_SHARD_BYTES = 4
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

    def scan(self, start: bytes, end: bytes, *, expired: bool = False) -> Iterator[Row]:
        """Yield the rows in a range.

        Parameters:
            expired: whether with those that have expired.
        """
        stored = self.stored.scan(self.rows.state.name, start, end)
        return stored if expired else self.rows.unexpired(stored, self.now_us)

    def all(self, *, expired: bool = False) -> Iterator[Row]:
        """Yield all rows. The row keys of operator state begin with the number of the shard instead
        of its key group.

        Parameters:
            expired: whether with those that have expired.
        """
        if not self.rows.is_local:
            yield from self.scan(*_ALL, expired=expired)
            return
        for number, shard in enumerate(self.manifest.operators[self.rows.operator.name].shards):
            prefix, of_shard = pack_group(shard.first_group), number.to_bytes(_SHARD_BYTES, "big")
            for row_key, row in self.scan(prefix, prefix_end(prefix), expired=expired):
                yield of_shard + row_key[GROUP_BYTES:], row

    def by_shard(self, *, expired: bool = False) -> Iterator[tuple[int | None, Iterator[Row]]]:
        """Yield all rows: those of operator state by shard, with row keys without it; others
        together, with None.

        Parameters:
            expired: whether with those that have expired.
        """
        rows = self.all(expired=expired)
        if not self.rows.is_local:
            yield None, rows
            return
        for shard, own in groupby(rows, lambda row: row[0][:_SHARD_BYTES]):
            yield int.from_bytes(shard), ((key[_SHARD_BYTES:], row) for key, row in own)


@dataclass(frozen=True)
class ResolvedChanges:
    """The resolved changes of an epoch. They can be read until the resolver advances.

    Parameters:
        kind: their origin.
        before: the rows before the epoch; None if there are none.
        now: the rows after it.
        pairs: yields the rows that may have changed, as `RowsAt.all` returns them.
    """

    kind: Kind
    before: RowsAt | None
    now: RowsAt
    pairs: Callable[[], Iterator[TwoRows]]

    def changes(self) -> Iterator[Change]:
        """Yield the changes, each with the value before."""
        rows, rows_before = self.now.rows, self._rows_before
        for shard, (row_key, old, new) in self.unequal():
            earlier = None if old is None or rows_before is None else rows_before.value(old)
            yield change_of_row(rows, row_key, new, shard, earlier)

    def stored(self) -> Iterator[StoredChanges]:
        """Yield the changes as they are stored, for each shard of operator state apart."""
        for shard, own in groupby(self.unequal(), itemgetter(0)):
            yield StoredChanges(((row_key, new) for _, (row_key, _, new) in own), shard=shard)

    @property
    def _rows_before(self) -> StateRows | None:
        return None if self.before is None else self.before.rows

    def unequal(self) -> Iterator[tuple[int | None, TwoRows]]:
        """Yield the changed rows; those of operator state with their shard, and row keys without
        it.
        """
        for pair in unequal_rows(self.pairs(), self._rows_before, self.now.rows):
            if not self.now.rows.is_local:
                yield None, pair
                continue
            row_key, old, new = pair
            shard = int.from_bytes(row_key[:_SHARD_BYTES], "big")
            yield shard, (row_key[_SHARD_BYTES:], old, new)


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
        self._repository = reader.repository
        self._follower = Follower(reader, directory, [operator], None, options)
        self._due = RocksBackend(directory / "due", [DUE], options)
        self._now: RowsAt | None = None
        self._before: RowsAt | None = None

    def advance(self, after: EpochManifest, rows: StateRows, kind: Kind) -> ResolvedChanges:
        """Advance to an epoch, and return its changes, which can be read until the next call.

        Parameters:
            after: the first epoch, or the one after that of the last call.
            rows: the decoder of its rows.
            kind: the origin of the changes since the last call.
        """
        self._forget_before()
        before, self._before = self._now, self._now
        self._follower.apply(after)
        now = self._now = RowsAt(after, self._follower.rows()[rows.operator.name], rows)
        if kind == "changes" and before is not None and not rows.is_local:
            with self._net(before, now) as net:
                self._index(((key, row) for key, row in net.rows if row is not None), rows)
            return ResolvedChanges(kind, before, now, partial(self._touched, before, now))
        self._index(now.scan(*_ALL), rows)
        kind = "snapshot" if before is None else "difference"
        return ResolvedChanges(kind, before, now, partial(_compared, before, now))

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

    def _net(self, before: RowsAt, now: RowsAt) -> NetChanges:
        shards = own_files(self._repository, before.manifest, now.manifest, now.rows.operator.name)
        refs = [ref for _, refs in shards for ref in refs if not ref.local]
        return NetChanges(self._repository, refs, now.rows.state.name)

    def _touched(self, before: RowsAt, now: RowsAt) -> Iterator[TwoRows]:
        """Yield the rows that an epoch wrote, cleared, or found expired."""
        kept = still_kept(self._repository, now.manifest.epoch, QueryError)
        with kept, self._net(before, now) as net:
            for bounds in net.cleared:
                net.touch(row_key for row_key, _ in before.scan(*bounds))
            if now.rows.state.ttl is not None:
                due = self._due.scan(DUE, due_key(MIN_MICROS), due_key(now.now_us + 1))
                net.touch(entry[_DEADLINE_BYTES:] for entry, _ in due)
            for row_key, _ in net.rows:
                yield row_key, before.get(row_key), now.get(row_key)

    def close(self) -> None:
        """Release the copies and the index."""
        for rows in (self._before, self._now):
            if rows is not None:
                rows.stored.close("the feed was closed: open it again")
        self._due.close()
        self._follower.close()


def _compared(before: RowsAt | None, now: RowsAt) -> Iterator[TwoRows]:
    """Yield all rows of two epochs."""
    with contextlib.ExitStack() as closing:
        old = iter(()) if before is None else before.all()
        is_regrouped = before is not None and before.manifest.key_groups != now.manifest.key_groups
        if is_regrouped and not now.rows.is_local:
            old = regrouped(old, now.rows, closing)
        yield from joined(old, now.all())


def due_key(deadline_us: int) -> bytes:
    """Return the start of the index entries with a deadline."""
    return sortable_micros(max(deadline_us, MIN_MICROS)) if deadline_us <= MAX_MICROS else _NEVER
