"""Versions: the history of the rows of a state, with the epochs and times of begin and end.

A version is a row of the table. Its key is that of the row, and the epoch in which it began, so
that a step that is taken again changes nothing. When a row changes, the old version is written
again with its end. Its begin is kept in an index on the local disk:

    since    row key, without its key group → epoch and time of the begin of the current version

The index follows from the current versions in the table, which a start reads.

A rollback takes the table back: versions that began in epochs that do not count any more are
deleted, and those that ended in them are current again. Their values are those of the state after
the rollback. A rollback to an epoch that was itself rolled back brings epochs back, whose versions
the table has lost: it is taken back to the epoch before them, and they are followed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochManifest
from statekit.errors import StateSchemaError
from statekit.keygroup import GROUP_BYTES
from statekit.query.changes.change import TwoRows
from statekit.query.changes.change_table import DELETED, VERSION
from statekit.query.changes.resolved_changes import ResolvedChanges, RowsAt
from statekit.query.changes.state_changes import StateChanges, StoredChanges
from statekit.records.arrow_sort import row_numbers
from statekit.sinks.protocol.sink import Outputs, TableSink

T = TypeVar("T")

_SINCE = "since"
_BEGIN = Struct(">qq")
_ROWS = 10_000
_NUMBER = "statekit row number"

_FROM, _UNTIL, _FROM_EPOCH, _UNTIL_EPOCH = (field.name for field in VERSION)


class StoredVersions(NamedTuple):
    """The versions that are in the table.

    Parameters:
        sink: of the table.
        outputs: of the sink.
    """

    sink: TableSink
    outputs: Outputs

    def read(self, keys: Sequence[str], null: str | None = None) -> pa.Table:
        """Return the keys of versions, with their begin and the epoch of their end.

        Parameters:
            keys: the names of the columns of the key.
            null: a column that is null in the rows; None for all rows.
        """
        return self.sink.stored(self.outputs, [*keys, _FROM, _FROM_EPOCH, _UNTIL_EPOCH], null)


class RowVersions:
    """Finds the versions of rows that begin and end. Close it after use.

    Parameters:
        changes: of the state.
        directory: for the index.
        rocksdb: memory limits of the index.
    """

    def __init__(self, changes: StateChanges, directory: Path, rocksdb: RocksOptions) -> None:
        self._changes = changes
        self._index = RocksBackend(directory, [_SINCE], rocksdb)

    def batches(
        self, before: EpochManifest | None, after: EpochManifest, resolved: ResolvedChanges
    ) -> Iterator[pa.RecordBatch]:
        """Yield the versions that end in an epoch, and those that begin.

        Parameters:
            before: the epoch before; None before the first.
            after: the epoch.
            resolved: its changes.
        """
        begin = _BEGIN.pack(after.epoch, after.processing_time_us)
        for shard, pairs in groupby(resolved.unequal(), itemgetter(0)):
            for some in _lists(pair for _, pair in pairs):
                old = [(row_key, row) for row_key, row, _ in some if row is not None]
                if before is not None and old:
                    yield from self._ended(before, after, shard, old)
                new = [(row_key, row) for row_key, _, row in some if row is not None]
                opened = [StoredChanges(new, shard=shard)]
                yield from self._changes.batches_of(after, resolved.kind, opened)
                self._note(shard, some, begin)

    def _note(self, shard: int | None, some: Sequence[TwoRows], begin: bytes) -> None:
        """Add the begin of the versions that begin, and forget those that end."""
        noted = Batch()
        for row_key, _, new in some:
            if new is None:
                noted.delete(_SINCE, _index_key(shard, row_key))
            else:
                noted.put(_SINCE, _index_key(shard, row_key), begin)
        self._index.write(noted)

    def _ended(
        self,
        before: EpochManifest,
        after: EpochManifest,
        shard: int | None,
        old: Sequence[tuple[bytes, bytes]],
    ) -> Iterator[pa.RecordBatch]:
        """Yield versions that end in an epoch, with the columns that they have after it."""
        found = self._index.get_many(_SINCE, [_index_key(shard, row_key) for row_key, _ in old])
        schema = self._changes.table(after).schema
        begins = [_BEGIN.unpack(begin) for begin in found if begin is not None]
        assert len(begins) == len(old), "the index has each current row"
        stored = self._changes.batches_of(before, "changes", [StoredChanges(old, shard=shard)])
        place = 0
        for batch in stored:
            count = batch.num_rows
            own = begins[place : place + count]
            place += count
            ends = {
                _FROM_EPOCH: [epoch for epoch, _ in own],
                _FROM: [time for _, time in own],
                _UNTIL_EPOCH: [after.epoch] * count,
                _UNTIL: [after.processing_time_us] * count,
            }
            values = {name: pa.array(own) for name, own in ends.items()}
            kept = [name for name in batch.schema.names if name not in values]
            rows = pa.Table.from_batches([batch]).select(kept)
            yield from _filled(rows, schema, values).to_batches()

    # --------------------------------------------------------------------- what the table has

    def load(self, manifest: EpochManifest, rows: RowsAt, stored: StoredVersions) -> None:
        """Fill the index from the current versions in the table.

        Parameters:
            manifest: the epoch that the table equals.
            rows: those of the state after it.
            stored: the table.

        Raises:
            StateSchemaError: the table has other rows, since others have changed it.
        """
        keys, index_keys = self._keys(manifest), list[bytes]()
        parts = [self._changes.table(manifest).schema.empty_table().select(keys)]
        for shard, some, batch in self._rows(manifest, rows):
            index_keys += (_index_key(shard, row_key) for row_key, _ in some)
            parts.append(pa.Table.from_batches([batch]).select(keys))
        current = stored.read(keys, _UNTIL_EPOCH)
        joined = _joined(pa.concat_tables(parts), current, keys)
        if not len(index_keys) == joined.num_rows == current.num_rows:
            raise _changed_by_others(stored)
        self._note_begins(index_keys, joined)

    def _note_begins(self, index_keys: Sequence[bytes], versions: pa.Table) -> None:
        """Add the begins of versions to the index.

        Parameters:
            index_keys: of all rows.
            versions: of some of them, with the number of the row.
        """
        begins = (versions.column(name).cast(pa.int64()) for name in (_NUMBER, _FROM_EPOCH, _FROM))
        columns = [column.to_pylist() for column in begins]
        for some_begins in _lists(zip(*columns, strict=True)):
            noted = Batch()
            for number, epoch, time in some_begins:
                noted.put(_SINCE, index_keys[number], _BEGIN.pack(epoch, time))
            self._index.write(noted)

    def taken_back(
        self, at: EpochManifest, last: int, rows: RowsAt, stored: StoredVersions
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a rollback changes, and fill the index for the epochs after it.

        Parameters:
            at: the epoch of the rollback, or the one that the table is taken back to.
            last: the last epoch whose versions count.
            rows: those of the state after it.
            stored: the table.

        Raises:
            StateSchemaError: the table has other rows, since others have changed it.
        """
        keys, schema = self._keys(at), self._changes.table(at).schema
        versions = stored.read(keys)
        is_gone = pc.greater(versions.column(_FROM_EPOCH), last)
        gone = versions.filter(is_gone)
        marked = {DELETED: pa.array([True] * gone.num_rows)}
        yield from _filled(gone.select([*keys, _FROM_EPOCH]), schema, marked).to_batches()
        versions = versions.filter(pc.invert(is_gone))
        ends = versions.column(_UNTIL_EPOCH)
        current = versions.filter(pc.or_kleene(ends.is_null(), pc.greater(ends, last)))
        count = 0
        for shard, some, batch in self._rows(at, rows, expired=True):
            found = _joined(pa.Table.from_batches([batch]).select(keys), current, keys)
            count += found.num_rows
            self._note_begins([_index_key(shard, row_key) for row_key, _ in some], found)
            yield from _current_again(at, rows, some, batch, found)
            yield from self._unknown(at, rows, shard, some, found)
        if count != current.num_rows:
            raise _changed_by_others(stored)

    def _unknown(
        self,
        at: EpochManifest,
        rows: RowsAt,
        shard: int | None,
        some: Sequence[tuple[bytes, bytes]],
        found: pa.Table,
    ) -> Iterator[pa.RecordBatch]:
        """Yield versions for the rows that have none, since the history began after them."""
        known = set(found.column(_NUMBER).to_pylist())
        opened = [
            row
            for number, row in enumerate(some)
            if number not in known and not rows.rows.is_expired(row[1], rows.now_us)
        ]
        stored = [StoredChanges(opened, shard=shard)]
        yield from self._changes.batches_of(at, "snapshot", stored)
        begin = _BEGIN.pack(at.epoch, at.processing_time_us)
        self._note(shard, [(row_key, None, row) for row_key, row in opened], begin)

    def _rows(
        self, manifest: EpochManifest, rows: RowsAt, *, expired: bool = False
    ) -> Iterator[tuple[int | None, Sequence[tuple[bytes, bytes]], pa.RecordBatch]]:
        """Yield all rows of a state as batches, each with the rows as they are stored."""
        for shard, own in rows.by_shard(expired=expired):
            for some in _lists(own):
                opened = [StoredChanges(some, shard=shard)]
                batches = list(self._changes.batches_of(manifest, "snapshot", opened))
                table = pa.Table.from_batches(batches).combine_chunks()
                yield shard, some, table.to_batches()[0]

    def _keys(self, manifest: EpochManifest) -> list[str]:
        table = self._changes.table(manifest)
        return [*table.key_names, *table.place_names]

    def close(self) -> None:
        """Release the index."""
        self._index.close()


def is_rollback(before: EpochManifest, after: EpochManifest) -> bool:
    """Return whether an epoch is a rollback, which takes histories back."""
    return before.abandoned != after.abandoned


def _lists(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield the rows in lists of some thousands."""
    rest = iter(rows)
    while some := list(islice(rest, _ROWS)):
        yield some


def _current_again(
    after: EpochManifest,
    rows: RowsAt,
    some: Sequence[tuple[bytes, bytes]],
    batch: pa.RecordBatch,
    found: pa.Table,
) -> Iterator[pa.RecordBatch]:
    """Yield the versions that a rollback changes among those that are current after it: they have
    no end any more, or they end because the row has expired by the time of the rollback.

    Parameters:
        some: rows as they are stored.
        batch: the same rows as columns.
        found: their versions, with the number of the row.
    """
    places = found.column(_NUMBER).to_pylist()
    is_over = pa.array([rows.rows.is_expired(some[place][1], rows.now_us) for place in places])
    is_over = is_over.cast(pa.bool_())
    epoch, time = pa.scalar(after.epoch), pa.scalar(after.processing_time_us)
    values = {
        _FROM_EPOCH: found.column(_FROM_EPOCH),
        _FROM: found.column(_FROM),
        _UNTIL_EPOCH: pc.if_else(is_over, epoch, pa.scalar(None, pa.int64())),
        _UNTIL: pc.if_else(is_over, time, pa.scalar(None, pa.int64())),
    }
    kept = [name for name in batch.schema.names if name not in values]
    taken = pa.Table.from_batches([batch]).take(found.column(_NUMBER)).select(kept)
    changed = _filled(taken, batch.schema, values)
    is_changed = pc.or_(found.column(_UNTIL_EPOCH).is_valid(), is_over)
    yield from changed.filter(is_changed).to_batches()


def _index_key(shard: int | None, row_key: bytes) -> bytes:
    """Return the key of a row in the index, which is the same with other key groups."""
    return row_key[GROUP_BYTES:] if shard is None else shard.to_bytes(4) + row_key


def _joined(rows: pa.Table, versions: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the versions of some rows, with the number of the row."""
    numbered = rows.append_column(_NUMBER, row_numbers(rows.num_rows))
    fitting = pa.table({name: versions.column(name) for name in versions.column_names})
    for place, name in enumerate(keys):
        column = fitting.column(name).cast(numbered.schema.field(name).type)
        fitting = fitting.set_column(place, name, column)
    return numbered.join(fitting, list(keys), join_type="inner")


def _filled(rows: pa.Table, schema: pa.Schema, values: Mapping[str, Any]) -> pa.Table:
    """Return rows with all columns of a schema: null if they have neither a column nor a value."""
    known = {name: rows.column(name) for name in rows.column_names} | dict(values)
    arrays = [
        known[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _changed_by_others(stored: StoredVersions) -> StateSchemaError:
    return StateSchemaError(
        f"the table for {stored.outputs.sink} has other current versions than its state has rows, "
        "so that others have changed it. Nothing was written: drop the table for a new history, or "
        "give another name and another table"
    )
