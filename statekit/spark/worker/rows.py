"""Split a worker's Arrow batches into shards, sort them by key, and read them as records.

Rows of one stream have the key group, the columns of the record, and the arrival. Rows of several
streams, or of a stream with several types, have the key group, the key fields, the number of the
input, one struct column per slot, and the arrival. A slot is one record type of one stream; its
column is null in the rows of all others. If a stream has several types, rows have the number of
their slot, too. A shard starts with its mark, a row with only a negative number in place of a key
group. Broadcast rows come next, with the same number.

Rows are sorted by key group, key, input (if there are several) and arrival. Arrow sorts whole key
groups in a fifth of the time that Spark takes to compare rows by several columns. A key group that
does not fit into memory is checked piece by piece: it is in order if Spark sorted by all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import IncompleteEpochError, ProcessError, UnsortedError
from statekit.functions.process import Process
from statekit.records.arrow_sort import comparable_parts, order_by, sort_keys
from statekit.records.combined_rows import CombinedRows
from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch
from statekit.records.record_type import RecordReader, RecordType
from statekit.runtime.shard_input import KeyedBatchBuilder, ShardInput
from statekit.shown import shown

GROUP = "__statekit_group"
ARRIVAL = "__statekit_arrival"
INPUT = "__statekit_input"
SLOT = "__statekit_slot"

FIRST_MARK = -1
"""The mark of shard 0 in the column of the key group, which sorts before all records. The mark of
shard 1 is -2.
"""


# A piece ends with the key group in which it gets so large, or within one that is far larger.
# Kinds of keys that are the values of their columns.
_PLAIN_KINDS = frozenset({"bool", "int", "str", "bytes", "dynamic"})

_ENOUGH_ROWS = 50_000
_ENOUGH_BYTES = 8 * 1024 * 1024
_MOST_BYTES = 64 * 1024 * 1024

Batches = Iterator[pa.RecordBatch]
AnyProcess = Process[Any, Any, Any]


def row_of(number: int) -> str:
    """Return the name of the column with the records of a slot."""
    return f"__statekit_row_{number}"


def shards_in_turn(batches: Batches) -> Iterator[tuple[int, Batches]]:
    """Yield the number of each shard of a Spark partition, with an iterator over its batches.

    Read the batches of one shard before the next shard; unread ones are skipped.
    """
    for shard, pieces in groupby(_cut_at_marks(batches), itemgetter(0)):
        yield shard, (rows for _, rows in pieces)


def _cut_at_marks(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut batches at marks, and yield pieces without marks, each with the number of its shard."""
    shard: int | None = None
    for batch in batches:
        groups = batch.column(GROUP)
        is_mark = pc.less(groups, 0)
        if INPUT in batch.schema.names:  # broadcast rows have an input, and marks have none
            is_mark = pc.and_(is_mark, pc.is_null(batch.column(INPUT)))
        starts = pc.indices_nonzero(is_mark).to_pylist()
        ends = [*starts, batch.num_rows]
        if ends[0] > 0:
            if shard is None:
                raise IncompleteEpochError(
                    "a shard's records do not start with its mark: Spark split or reordered a "
                    "partition; nothing of this epoch is committed"
                )
            yield shard, batch.slice(0, ends[0])
        for start, end in zip(starts, ends[1:], strict=True):
            shard = FIRST_MARK - groups[start].as_py()
            yield shard, batch.slice(start + 1, end - start - 1)


# ------------------------------------------------------------------------------------------ sorting


def in_order(batches: Batches, key: Sequence[str], operator: str) -> Batches:
    """Yield the rows of a shard sorted by key group, key and arrival.

    Parameters:
        batches: by key group, which is their first column; the arrival is their last.
        key: the names of the columns of the key, and of the input if there are several.
        operator: its name.

    Raises:
        UnsortedError: a key group is not in order and too large to sort here; or a row arrived
            twice.
    """
    last: tuple[Any, ...] = ()
    for piece, largest in _pieces(batches):
        rows = _in_order(piece, key, largest)
        del piece  # it is large, and may have been copied
        # Each piece is sorted here. Between pieces, the order must be right already.
        if rows is None or rows.first <= last:
            raise UnsortedError(
                "the rows of a shard are not in the order of their keys and arrival. Nothing of "
                "this epoch is committed. Start the job again, and report it if it happens once "
                "more, as Spark was asked to sort them",
                operator,
            )
        last = rows.last
        yield from rows.batches
        del rows


class _Rows(NamedTuple):
    """Sorted rows, with the sort keys of the first and the last row."""

    batches: list[pa.RecordBatch]
    first: tuple[Any, ...]
    last: tuple[Any, ...]


class _Largest(NamedTuple):
    """The largest number of rows and of bytes in a batch."""

    rows: int
    size: int

    def cut(self, table: pa.Table) -> list[pa.RecordBatch]:
        """Cut a table into batches with at most that many rows, and about that many bytes."""
        rows = min(self.rows, len(table) * 2 * self.size // table.nbytes)
        return list(table.to_batches(max(1, rows)))


def _pieces(batches: Batches) -> Iterator[tuple[pa.Table, _Largest]]:
    """Yield complete key groups, or as much of one as fits into memory, with the largest batch
    size.
    """
    batches_held: list[pa.RecordBatch] = []
    rows = size = 0
    largest = _Largest(0, 0)
    for batch in batches:
        if not batch.num_rows:
            continue
        batches_held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        largest = _Largest(max(largest.rows, batch.num_rows), max(largest.size, batch.nbytes))
        if rows < _ENOUGH_ROWS and size < _ENOUGH_BYTES:
            continue
        first_group, last_group = batches_held[0].column(0)[0], batch.column(0)[-1]
        if first_group == last_group and size < _MOST_BYTES:
            continue
        table = pa.Table.from_batches(batches_held)
        rows = pc.index(table.column(0), last_group).as_py() or rows
        batches_held, ended = table.slice(rows).to_batches(), [table.slice(0, rows)]
        rows, size = sum(map(len, batches_held)), sum(of.nbytes for of in batches_held)
        del table
        yield ended.pop(), largest  # nothing here keeps it any longer
    if batches_held:
        batches_held, ended = [], [pa.Table.from_batches(batches_held)]
        yield ended.pop(), largest


def _in_order(piece: pa.Table, key: Sequence[str], largest: _Largest) -> _Rows | None:
    """Return the rows of a piece in sorted order; None if a row arrived twice."""
    sorted_by = map(piece.column, (0, *key, piece.num_columns - 1))
    columns = [part for column in sorted_by for part in comparable_parts(column)]
    keys = [each for column in columns for each in sort_keys(column)]
    if _ascends(keys):
        return _Rows(piece.to_batches(), _place(columns, 0), _place(columns, -1))
    order = order_by(keys)
    if not _ascends([each.take(order) for each in keys]):
        return None
    first, last = (_place(columns, order[at].as_py()) for at in (0, -1))
    return _Rows(largest.cut(piece.combine_chunks().take(order)), first, last)


def _ascends(keys: Sequence[pa.Array]) -> bool:
    """Return whether each row is greater than the previous one."""
    *others, last = keys
    above = pc.greater(last.slice(1), last.slice(0, len(last) - 1))
    for column in reversed(others):
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        above = pc.or_(pc.greater(after, before), pc.and_(pc.equal(after, before), above))
    return pc.all(above, min_count=0).as_py() is True


def _place(columns: Sequence[pa.Array], at: int) -> tuple[Any, ...]:
    """Return the sort key of a row. Null sorts first."""
    values = [column[at].as_py() for column in columns]
    return tuple((value is not None, value) for value in values)


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class ColumnRecords(RecordType):
    """Records whose keys and times are read directly from columns, without a conversion.

    Parameters:
        derived: SQL expressions of the key columns that a record does not contain, by column name.
    """

    derived: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def may_change_fields(self) -> bool:
        return False


class RowBatchBuilder(KeyedBatchBuilder):
    """Builds keyed batches of Arrow rows. Reads keys and times from columns where possible."""

    def batch_of_rows(
        self,
        rows: pa.RecordBatch,
        records: list[Any],
        times: Sequence[int],
        inputs: Sequence[int] = (),
    ) -> KeyedBatch:
        """Return a keyed batch of records, given the rows that they were read from."""
        groups, keys = rows.column(GROUP).to_pylist(), self._row_keys(rows, records)
        if self._process.key and self._process.record_type.may_change_fields:
            self._check_keys(keys, groups, records)
        return KeyedBatch(keys, groups, keys, records, times, inputs)

    @cached_property
    def _has_plain_key(self) -> bool:
        """True if the key is the unchanged value of a single column. Times are checked
        separately.
        """
        schema = self._process.key_codec.schema
        kind = schema.items[0].kind if schema.kind == "optional" else schema.kind
        return len(self._process.key) == 1 and kind in _PLAIN_KINDS

    def _row_keys(self, rows: pa.RecordBatch, records: list[Any]) -> list[Any]:
        process = self._process
        if not process.key:
            return [()] * len(records)
        if isinstance(process.record_type, ColumnRecords):  # its values are those of the columns
            columns = [rows.column(name).to_pylist() for name in process.key]
            return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        first = rows.column(process.key[0])
        is_plain = self._has_plain_key and not pa.types.is_temporal(first.type)
        if is_plain and not process.record_type.may_change_fields:
            return list(first.to_pylist())
        return self.keys(records)

    def row_times(self, rows: pa.RecordBatch, records: list[Any]) -> Sequence[int]:
        """Return the event time of each row in microseconds; empty without event time."""
        process = self._process
        if process.event_time is None:
            return ()
        column = rows.column(process.event_time)
        if not isinstance(process.record_type, ColumnRecords):
            type_ = column.type
            is_plain = pa.types.is_timestamp(type_) and type_.tz and type_.unit == "us"
            if not is_plain or column.null_count or process.record_type.may_change_fields:
                return list(map(process.time_of(), records))
        return list(column.cast(pa.int64()).to_pylist())

    def _check_keys(self, keys: list[Any], groups: list[int], records: list[Any]) -> None:
        """Check that each record is in the key group of its key.

        The JVM computed the key group from the columns. A validator or `__post_init__` may have
        changed the field.
        """
        place = 0
        for key, group, size in self.key_runs(keys, records):
            if group != groups[place]:
                fields = ", ".join(self._process.key)
                raise ProcessError(
                    f"operator {self._operator!r}: {self._process.record_type.name} changes "
                    f"its key ({fields}) to {shown(key)} while {shown(records[place])} is made, "
                    "after the "
                    "records were routed by the columns: change the column in the DataFrame "
                    "instead"
                )
            place += size

    def batch_of_columns(self, columns: list[list[Any]], groups: list[int]) -> KeyedBatch:
        """Return a keyed batch of combined rows: the columns of the key come first, the time
        last.
        """
        combiner = self._process.traits.combiner
        assert combiner is not None
        rows = CombinedRows(combiner.combined.cls, columns, combiner.key_size)
        return self.taken(self.batch(self.keys(rows), groups, rows))


def batches_of_rows(
    process: AnyProcess, rows: Batches, key_groups: int, *, restores: bool = False
) -> Iterator[KeyedBatch]:
    """Yield the keyed batches of the rows of a stream: one per batch of rows, unless a combiner
    merges them.

    Parameters:
        restores: whether the job wrote the rows, as for `RecordType.reader`.
    """
    builder = RowBatchBuilder(process, key_groups)
    (record_type,) = process.taken.members
    reader = None
    # The last column is the arrival.
    filled = (batch.remove_column(batch.num_columns - 1) for batch in rows if batch.num_rows)
    combiner = process.traits.combiner
    if combiner is not None and combiner.merges:
        tables = combiner.merged(filled)
        filled = (batch for table in tables for batch in table.combine_chunks().to_batches())
    for batch in filled:
        reader = reader or record_type.reader(
            batch.schema, first_column=1, restores=restores or combiner is not None
        )
        if combiner is None:
            records = reader.read(batch)
            yield builder.batch_of_rows(batch, records, builder.row_times(batch, records))
        else:
            groups = batch.column(0).to_pylist()
            yield builder.batch_of_columns(reader.columns(batch), groups)


def input_types(process: AnyProcess) -> list[RecordType]:
    """Return the record types of a process function and of its broadcast handlers."""
    handled = process.handlers.record_type
    return [*process.record_type.members, *(() if handled is None else handled.members)]


class UnionRows:
    """Reads the rows of a shard whose operator has several streams, or a stream of several types.

    Parameters:
        process: the process function.
        batches: of the shard, without its mark.
        key_groups: the number of key groups.
        types: per slot, the number of its type in `input_types`.
        restores: per slot, whether the job wrote its rows, as for `RecordType.reader`.
    """

    def __init__(
        self,
        process: AnyProcess,
        batches: Batches,
        key_groups: int,
        types: Sequence[int],
        restores: Sequence[bool],
    ) -> None:
        self._process = process
        self._batches = batches
        self._builder = RowBatchBuilder(process, key_groups)
        self._types = [input_types(process)[number] for number in types]
        self._restores = restores
        self._readers: dict[int, RecordReader] = {}

    def shard_input(self) -> ShardInput:
        """Return the input of the shard. Records are read on demand."""
        return ShardInput(self._broadcast(), self._keyed())

    def _broadcast(self) -> Iterator[BroadcastRecords]:
        for batch in self._batches:
            count = pc.sum(pc.less(batch.column(GROUP), 0)).as_py() or 0
            rows = batch.slice(0, count)
            for number in sorted(set(rows.column(INPUT).to_pylist())):
                yield number, self._records(rows.filter(pc.equal(rows.column(INPUT), number)))[0]
            if count < batch.num_rows:
                self._batches = chain((batch.slice(count),), self._batches)
                return

    def _keyed(self) -> Iterator[KeyedBatch]:
        for rows in self._batches:
            if rows.num_rows:
                yield self._batch(rows)

    def _batch(self, rows: pa.RecordBatch) -> KeyedBatch:
        records, times = self._records(rows, has_time=self._process.event_time is not None)
        numbers = rows.column(INPUT).to_pylist()
        return self._builder.batch_of_rows(rows, records, times, numbers)

    def _records(
        self, rows: pa.RecordBatch, *, has_time: bool = False
    ) -> tuple[list[Any], list[int]]:
        """Return the records of rows of any slots, and their event times if there are any."""
        column = rows.column(SLOT if SLOT in rows.schema.names else INPUT)
        slots = column.to_pylist()
        of_slots, times_of_slots = {}, {}
        for slot in set(slots):
            own = self._rows(rows, slot, column)
            of_slots[slot] = self._read(slot, own)
            if has_time:
                times_of_slots[slot] = self._times(slot, own, of_slots[slot])
        return in_turn(slots, of_slots), in_turn(slots, times_of_slots) if has_time else []

    def _times(self, slot: int, rows: pa.RecordBatch, records: list[Any]) -> Sequence[int]:
        return self._builder.row_times(rows, records)

    def _rows(self, batch: pa.RecordBatch, slot: int, slots: pa.Array) -> pa.RecordBatch:
        """Return the rows of one slot: their number, because rows may have no columns, and their
        columns.
        """
        mine = pc.equal(slots, slot)
        own = batch.column(row_of(slot)).filter(mine)
        schema = pa.schema([(INPUT, slots.type), *own.type])
        return pa.RecordBatch.from_arrays([slots.filter(mine), *own.flatten()], schema=schema)

    def _read(self, slot: int, rows: pa.RecordBatch) -> list[Any]:
        reader = self._readers.get(slot)
        if reader is None:
            restores = self._restores[slot]
            reader = self._types[slot].reader(rows.schema, first_column=1, restores=restores)
            self._readers[slot] = reader
        return reader.read(rows)


def in_turn(numbers: Iterable[int], items: Mapping[int, Iterable[Any]]) -> list[Any]:
    """Return the next item of each number. This is the inverse of sorting items by number."""
    following = {number: iter(of).__next__ for number, of in items.items()}
    return [following[number]() for number in numbers]


UnionReader = Callable[[AnyProcess, Batches, int], UnionRows]
"""`UnionRows` without its last arguments: reads the rows of a shard of one operator."""


class StreamReader:
    """Reads the rows of a stream as records: of one type, or of several in struct columns.

    Parameters:
        members: the type or types.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
    """

    def __init__(self, members: Sequence[RecordType], *, restores: bool) -> None:
        self._members = members
        self._restores = restores
        self._readers: list[RecordReader] = []

    def read(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the records of a batch.

        Raises:
            ProcessError: the columns do not fit the types.
        """
        if len(self._members) == 1:
            if not self._readers:
                (member,) = self._members
                self._readers = [member.reader(batch.schema, restores=self._restores)]
            return self._readers[0].read(batch)
        columns = [batch.column(member.name) for member in self._members]
        if not self._readers:
            schemas = [pa.schema(list(column.type)) for column in columns]
            of_types = zip(self._members, schemas, strict=True)
            self._readers = [
                member.reader(schema, restores=self._restores) for member, schema in of_types
            ]
        numbers = [0] * batch.num_rows
        records = {}
        for number, (column, reader) in enumerate(zip(columns, self._readers, strict=True)):
            places = pc.indices_nonzero(column.is_valid()).to_pylist()
            for place in places:
                numbers[place] = number
            own = column.drop_null()
            rows = pa.RecordBatch.from_arrays(own.flatten(), schema=pa.schema(list(own.type)))
            records[number] = reader.read(rows)
        return in_turn(numbers, records)
