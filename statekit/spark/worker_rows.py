"""Split a worker's Arrow batches into shards, and read them as records.

Rows of one stream have the key group, the columns of the record, and the arrival. Rows of several
have the key group, the key fields, the number of the input, one column per input, a struct of that
input's columns which is null in the rows of all others, and the arrival. A shard starts with its
mark, a row with a negative number in the place of a key group and nothing else. Broadcast rows come
next; they have that number, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import IncompleteEpochError, ProcessError
from statekit.functions.process import Process
from statekit.keygroup import key_group
from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch
from statekit.records.preaggregate import Combiner
from statekit.records.record_type import RecordReader
from statekit.spark.row_records import RowRecords

GROUP = "__statekit_group"
ARRIVAL = "__statekit_arrival"
INPUT = "__statekit_input"

FIRST_MARK = -1
"""What shard 0 is sent in the place of a key group, before all records; shard 1 is sent -2, …"""


def row_of(number: int) -> str:
    """The column with what an input has in a row."""
    return f"__statekit_row_{number}"


@dataclass(frozen=True)
class Layout:
    """Which records the inputs of an operator have, by number.

    Parameters:
        inputs: per input, which of the types that the process function takes.
        broadcasts: per broadcast input, which of the types that its handlers take.
        reader: makes the reader of a shard's batches; None is `UnionRows`.
    """

    inputs: tuple[int, ...]
    broadcasts: tuple[int, ...]
    reader: Callable[..., UnionRows] | None = None


class ShardsInTurn:
    """The shards of a Spark partition: for each its number, and an iterator over its batches.

    The batches of one have to be taken before the next one comes; what is left is passed over.

    Parameters:
        batches: of the partition.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._pieces = _cut_at_marks(batches)
        self._next: tuple[int | None, pa.RecordBatch] | None = None

    def __iter__(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        self._next = next(self._pieces, None)
        while self._next is not None:
            mark, rows = self._next
            if mark is None:
                raise IncompleteEpochError(
                    "a shard's records do not start with its mark: Spark split or reordered a "
                    "partition; nothing of this epoch is committed"
                )
            own = self._rows(rows)
            yield FIRST_MARK - mark, own
            deque(own, maxlen=0)

    def _rows(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield rows
        for piece in self._pieces:
            mark, rows = piece
            if mark is not None:
                self._next = piece
                return
            yield rows
        self._next = None


def _cut_at_marks(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The batches in pieces: behind a mark, with what it says; without one, what goes on."""
    for batch in batches:
        groups = batch.column(GROUP)
        is_mark = pc.less(groups, 0)
        if INPUT in batch.schema.names:  # broadcast rows have an input, and marks have none
            is_mark = pc.and_(is_mark, pc.is_null(batch.column(INPUT)))
        starts = pc.indices_nonzero(is_mark).to_pylist()
        ends = [*starts, batch.num_rows]
        if ends[0] > 0:
            yield None, batch.slice(0, ends[0])
        for start, end in zip(starts, ends[1:], strict=True):
            yield groups[start].as_py(), batch.slice(start + 1, end - start - 1)


def chunks_of(
    declared: Process[Any, Any, Any], batches: Iterator[pa.RecordBatch], key_groups: int
) -> Iterator[KeyedBatch]:
    """Typed records of each batch of one stream, from between the key group and the arrival."""
    (record_type,) = declared.taken.members
    reader = None
    filled = (batch.remove_column(batch.num_columns - 1) for batch in batches if batch.num_rows)
    if declared.combiner is not None:
        yield from _combined_chunks(declared, declared.combiner, filled)
        return
    for batch in filled:
        if reader is None:
            reader = record_type.reader(batch.schema, first_column=1)
        records, groups = reader.read(batch), batch.column(0).to_pylist()
        keys = _keys(declared, batch, records)
        times = _times(declared, batch, records)
        if declared.key and record_type.may_change_fields:
            _check_keys(declared, keys, groups, records, key_groups)
        yield KeyedBatch(keys, groups, keys, records, times)


def _combined_chunks(
    declared: Process[Any, Any, Any], combiner: Combiner, batches: Iterator[pa.RecordBatch]
) -> Iterator[KeyedBatch]:
    """Combined rows, as columns or one by one: partitions had rows of the same keys, too."""
    reader = None
    size = combiner.key_size
    for rows in combiner.merged(batches):
        (batch,) = rows.combine_chunks().to_batches()
        if reader is None:
            reader = combiner.combined.reader(batch.schema, first_column=1)
        columns, groups = reader.columns(batch), batch.column(0).to_pylist()
        keys = columns[0] if size == 1 else list(zip(*columns[:size], strict=True))
        if declared.takes_columns:
            yield KeyedBatch(keys, groups, keys, columns)
        else:
            yield KeyedBatch(
                keys, groups, keys, list(map(combiner.combined.cls, *columns)), columns[-1]
            )


class UnionRows:
    """Typed records of the batches of several streams. Take the news first, and then the chunks.

    Parameters:
        declared: the process function.
        batches: of the shard, without its mark.
        layout: which records the inputs have.
        key_groups: how many there are.
    """

    def __init__(
        self,
        declared: Process[Any, Any, Any],
        batches: Iterator[pa.RecordBatch],
        layout: Layout,
        key_groups: int,
    ) -> None:
        self._declared = declared
        self._batches = batches
        self._key_groups = key_groups
        self._types = [declared.record_type.members[member] for member in layout.inputs]
        handled = declared.handlers.record_type
        if handled is not None:
            self._types += [handled.members[member] for member in layout.broadcasts]
        self._readers: dict[int, RecordReader] = {}
        self._first: pa.RecordBatch | None = None

    def news(self) -> Iterator[BroadcastRecords]:
        """The broadcast records, which come before all others."""
        for batch in self._batches:
            count = pc.sum(pc.less(batch.column(GROUP), 0)).as_py() or 0
            rows = batch.slice(0, count)
            for number in sorted(set(rows.column(INPUT).to_pylist())):
                yield number, self._read(number, self._rows(rows, number))
            if count < batch.num_rows:
                self._first = batch.slice(count)
                return

    def chunks(self) -> Iterator[KeyedBatch]:
        """All other records, those of several inputs in the order of their rows."""
        if self._first is not None:
            yield self._chunk(self._first)
        for batch in self._batches:
            if batch.num_rows:
                yield self._chunk(batch)

    def _chunk(self, batch: pa.RecordBatch) -> KeyedBatch:
        declared = self._declared
        groups, numbers = batch.column(GROUP).to_pylist(), batch.column(INPUT).to_pylist()
        next_record: dict[int, Callable[[], Any]] = {}
        next_time: dict[int, Callable[[], int]] = {}
        for number in set(numbers):
            rows = self._rows(batch, number)
            found = self._read(number, rows)
            next_record[number] = iter(found).__next__
            next_time[number] = iter(self._times(number, rows, found)).__next__
        records = [next_record[number]() for number in numbers]
        times = [next_time[number]() for number in numbers] if declared.event_time else ()
        keys = _keys(declared, batch, records)
        if declared.key and declared.record_type.may_change_fields:
            _check_keys(declared, keys, groups, records, self._key_groups)
        return KeyedBatch(keys, groups, keys, records, times, numbers)

    def _times(self, number: int, rows: pa.RecordBatch, records: list[Any]) -> Sequence[int]:
        return _times(self._declared, rows, records)

    def _rows(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """The rows of one input: the number, so that rows of no columns count, and its columns."""
        numbers = batch.column(INPUT)
        mine = pc.equal(numbers, number)
        own = batch.column(row_of(number)).filter(mine)
        schema = pa.schema([(INPUT, numbers.type), *own.type])
        return pa.RecordBatch.from_arrays([numbers.filter(mine), *own.flatten()], schema=schema)

    def _read(self, number: int, rows: pa.RecordBatch) -> list[Any]:
        reader = self._readers.get(number)
        if reader is None:
            reader = self._types[number].reader(rows.schema, first_column=1)
            self._readers[number] = reader
        return reader.read(rows)


def _keys(declared: Process[Any, Any, Any], batch: pa.RecordBatch, records: list[Any]) -> list[Any]:
    """The keys of a batch: from the column where that is the same and faster."""
    if not declared.key:
        return [()] * len(records)
    if isinstance(declared.record_type, RowRecords):  # its values are those of the columns
        columns = [batch.column(name).to_pylist() for name in declared.key]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    first = batch.column(declared.key[0])
    plain = len(declared.key) == 1 and not pa.types.is_temporal(first.type)
    if plain and not declared.taken.may_change_fields:
        return list(first.to_pylist())
    return list(map(declared.key_of(), records))


def _times(
    declared: Process[Any, Any, Any], batch: pa.RecordBatch, records: list[Any]
) -> Sequence[int]:
    """The event times of a batch, in microseconds: from the column where that is the same."""
    if declared.event_time is None:
        return ()
    column = batch.column(declared.event_time)
    if isinstance(declared.record_type, RowRecords):
        return list(column.cast(pa.int64()).to_pylist())
    plain = pa.types.is_timestamp(column.type) and column.type.tz and column.type.unit == "us"
    if not plain or column.null_count or declared.record_type.may_change_fields:
        return list(map(declared.time_of(), records))
    return list(column.cast(pa.int64()).to_pylist())


def _check_keys(
    declared: Process[Any, Any, Any],
    keys: list[Any],
    groups: list[int],
    records: list[Any],
    key_groups: int,
) -> None:
    """Make sure that records went to the shard of the key they have now.

    The JVM chose it by the columns; a validator or `__post_init__` may have changed the field.
    """
    last: Any = _check_keys  # equals no key
    for key, group, record in zip(keys, groups, records, strict=True):
        if key != last:
            last = key
            if key_group(key, key_groups) != group:
                fields = ", ".join(declared.key)
                raise ProcessError(
                    f"operator {declared.name!r}: {declared.record_type.name} changes its key "
                    f"({fields}) to {key!r} while {record!r} is made, after the records were "
                    "routed by the columns: change the column in the DataFrame instead"
                )
