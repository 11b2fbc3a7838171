"""Preaggregation: combine records per key in Arrow, before any Python function is called.

A combined row has the key, the number of its records, and a value per aggregate. Arrow's hash
aggregation runs in one thread, so the same batch always gives the same rows, nearly in the order in
which keys first occur.

With windows there is a row per key and pane, and one row for all late records of the key. It also
has the pane and the largest event time, so it is in the same windows as its records. In sessions a
row lasts from its pane to that time.
"""

from __future__ import annotations

import contextlib
import decimal
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import GenericAlias
from typing import Any, NamedTuple, Optional, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statekit.codec.annotations import peel, struct_flavour
from statekit.errors import CALL_FAILURES, ProcessError, StateTypeError
from statekit.records.arrow_sort import row_numbers
from statekit.records.combined_rows import CombinedRows
from statekit.records.group_lists import GroupLists
from statekit.records.grouping import DIGITS, Aggregates, Groups, grouped, listed, without_late
from statekit.records.output_type import OutputType
from statekit.records.panes import Panes
from statekit.records.partial_aggregate import ARRIVED_FIRST, NUMBER, PartialAggregate, without_none
from statekit.records.rebatch import rebatched
from statekit.records.record_type import RecordType
from statekit.shown import shown, shown_text
from statekit.timestamp import MAX_MICROS, MIN_MICROS
from statekit.watermark import BEGINNING

# Each aggregation builds a hash table of the keys, so it gets many records.
_RECORDS_AT_ONCE = 500_000
_ROWS_AT_ONCE = 1_000_000
_BYTES_AT_ONCE = 64 * 1024 * 1024

_FIRST = "__statekit_first"  # the number of the first row of a key

_WIDER = {float: pa.float64(), decimal.Decimal: pa.decimal128(DIGITS, 0)}
"""The Arrow type for fields of these types whose column has integers."""


@dataclass(eq=False, repr=False)
class Combiner:
    """Combines records of a type by key.

    Parameters:
        record: their type, whose fields are declared.
        key: names of the fields that records are grouped by. Without any, all records are one
            group: its key is True, in a field that only combined rows have.
        given: the aggregates of each group.
        panes: also group by these; None without windows.

    Attributes:
        is_global: whether all records are one group.
        parts: the aggregates with a column of their own: each once, without the number of records.
        combined: the record type of the rows: the key, the pane, the number of records, the
            aggregates, and the largest event time in microseconds. Pane and time exist for windows
            only.
        key_size: how many fields the key has.
        required: names of the fields that are read and cannot be None.
        number_at: the index of the number of records; the aggregates follow it.

    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> record = RecordType.of(Order, where="example")
    >>> from statekit.records.partial_aggregate import PartialAggregate
    >>> parts = [PartialAggregate("sum", "cents"), PartialAggregate("max", "cents")]
    >>> combiner = Combiner(record, ("customer",), parts)
    >>> list(combiner.combine([Order("ada", 5), Order("bob", 1), Order("ada", 2)]))
    [Combined(customer='ada', number=2, part_1=7, part_2=5), \
Combined(customer='bob', number=1, part_1=1, part_2=1)]
    """

    record: RecordType
    key: tuple[str, ...]
    given: Sequence[PartialAggregate]
    panes: Panes | None = None

    def __post_init__(self) -> None:
        record, panes = self.record, self.panes
        self.is_global = not self.key
        grouped_by = self.key
        if self.is_global:
            self.key = (_name_of_all(record),)
        key = self.key
        self.parts = parts = [part for part in dict.fromkeys(self.given) if part != NUMBER]
        self.key_size = len(key)
        times = () if panes is None else (panes.event_time,)
        if any(part.takes_records for part in parts):
            times = (*times, *(record.fields or ()))
        fields = dict.fromkeys((*grouped_by, *(of.field for of in parts if of.field), *times))
        fields = fields or dict.fromkeys(list(record.fields or ())[:1])  # columns have the length
        types = {name: _annotation(record, name) for name in fields}
        self.required = [name for name, annotation in types.items() if not peel(annotation)[1]]
        name = (
            record.name if record.name.isidentifier() else "Record"
        )  # that of a generic model is not
        self._projected = _with_fields(name, types, record.where)
        spelled = {of: types[of] for of in grouped_by if _has_spellings(types[of])}
        self._spelled = _with_fields(name, spelled, record.where) if spelled else None
        pane, self.number, *values, time = _free_names(key, len(parts))
        self._group_names = key if panes is None else (*key, pane)
        self.number_at = len(self._group_names)
        # The function that merges each value of a row, by the value's name.
        self._merges: dict[str, str | GroupLists] = {
            name: part.merge(record) for name, part in zip(values, parts, strict=True)
        }
        row_types: dict[str, Any] = {name: types.get(name, bool) for name in key}
        row_types |= dict.fromkeys((*self._group_names[len(key) :], self.number), int)
        for name, part in zip(values, parts, strict=True):
            row_types[name] = self._type_of(part, types)
        if panes is not None:
            self._merges[time] = "max"
            row_types[time] = int
        self.combined = _with_fields("Combined", row_types, record.where)

    def _type_of(self, part: PartialAggregate, types: dict[str, Any]) -> Any:
        """Return the annotation of a part in combined rows."""
        if part.verb in ("first", "arrived"):
            return GenericAlias(list, (self.record.cls,))
        if part.verb == "list":
            element = self.record.cls if part.field is None else without_none(types[part.field])
            pair = GenericAlias(tuple, (int, element))
            return GenericAlias(list, (element if self.panes is None else pair,))
        if part.verb == "count" or part.field is None:
            return int
        return Optional[types[part.field]]  # noqa: UP045

    @property
    def reduces(self) -> bool:
        """True if combined rows are smaller than the records, and are not lists of all records."""
        return all(part.verb != "list" for part in self.parts)

    @property
    def has_spellings(self) -> bool:
        """True if columns of a source may contain one key in several forms."""
        return self._spelled is not None

    @property
    def merges(self) -> bool:
        """True if several combined rows of a key are merged into one. Merging lists of windows
        would only make them longer.
        """
        return self.reduces or self.panes is None

    @property
    def description(self) -> list[str]:
        """The aggregates of a key, as text."""
        return [part.description for part in dict.fromkeys(self.given)]

    def place_of(self, part: PartialAggregate) -> int:
        """Return the index of an aggregate in a combined row."""
        return self.number_at + (0 if part == NUMBER else 1 + self.parts.index(part))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the combined rows of tables with the given schema."""
        return self.rows(schema.empty_table()).schema

    def annotation(self, field: str) -> Any:
        """Return the annotation of a field of the records."""
        return _annotation(self.record, field)

    def read(self, columns: Collection[str] | None = None) -> RecordType:
        """Return the record type to read from a source: only the needed fields, or all fields if
        records must be created.

        Parameters:
            columns: of the source; None if it has a column for each field.
        """
        return self.record if self.makes_records(columns) else self._projected

    def makes_records(self, columns: Collection[str] | None = None) -> bool:
        """Return whether records must be created from a source before they are combined, because
        their class computes fields.

        Parameters:
            columns: of the source; None if it has a column for each field.
        """
        if self.record.may_change_fields:
            return True
        return columns is not None and not set(columns).issuperset(self._projected.field_names)

    def combine(
        self, records: Sequence[Any] | pa.Table, late_us: int = BEGINNING, *, restores: bool = False
    ) -> CombinedRows:
        """Combine records.

        Parameters:
            records: records, or a table with the columns of `read`.
            late_us: the watermark that makes a record late.
            restores: whether the job wrote the rows of the table, as for `RecordType.reader`.

        Raises:
            ProcessError: a record does not fit its type, or a sum is too large.
        """
        if isinstance(records, pa.Table):
            rows = self.rows(records, late_us, restores=restores)
        else:
            rows = self._grouped(*self._aggregated(self._columns(records), late_us))
        reader = self.combined.reader(rows.schema, restores=True)
        first, *others = (
            CombinedRows(self.combined.cls, reader.columns(batch), self.key_size)
            for batch in rows.combine_chunks().to_batches() or [_empty(rows.schema)]
        )
        return first.followed_by(others) if others else first

    def rows(
        self, table: pa.Table, late_us: int = BEGINNING, *, restores: bool = False
    ) -> pa.Table:
        """Return the combined rows of a table with the columns of `read`.

        Parameters:
            late_us: the watermark that makes a record late.
            restores: whether the job wrote the rows of the table, as for `RecordType.reader`.

        Raises:
            ProcessError: a record does not fit its type, or a sum is too large.
        """
        return self._grouped(*self._aggregated(self._checked(table, restores), late_us))

    def combined_sorted(
        self, batches: Iterable[pa.RecordBatch], late_us: int, *, restores: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the combined rows of each batch. Batches are sorted by key, and so are the rows.

        Parameters:
            batches: with the columns of `read` between two others, which keep the values of the
                first record of a row.
            late_us: the watermark that makes a record late.
            restores: whether the job wrote the rows, as for `RecordType.reader`.

        Raises:
            ProcessError: a record does not fit its type, or a sum is too large.
        """
        for batch in batches:
            if batch.num_rows:
                table = pa.Table.from_batches([batch])
                outer = table.select([0, table.num_columns - 1])
                grouping = self._aggregated(self._checked(table, restores), late_us)
                rows = self._in_order(outer, *grouping)
                first, last, *names = rows.column_names
                yield from rows.select([first, *names, last]).combine_chunks().to_batches()

    def _checked(self, table: pa.Table, restores: bool) -> pa.Table:
        """Check a table, and return the columns to aggregate."""
        if self.makes_records(table.column_names):
            return self._columns(_read(self.record, table, restores=restores))
        if any(table.column(name).null_count for name in self.required):
            _read(self._projected, table)  # raises an error that names the record
        # Rows that the job wrote have each key in one form already.
        return table if restores else self._in_one_form(table)

    def _in_one_form(self, table: pa.Table) -> pa.Table:
        """Return a table of a source in which equal keys have equal column values."""
        if self._spelled is None:
            return table
        form = OutputType(self._spelled.cls, self.record.where, noun="record")
        keys = form.to_batch(_read(self._spelled, table))
        for name, column in zip(keys.schema.names, keys.columns, strict=True):
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def combined_batches(
        self, batches: Iterable[pa.RecordBatch], late_us: int, *, restores: bool = False
    ) -> Iterator[pa.Table]:
        """Yield the combined rows of many batches; one row per key as far as memory allows.

        Parameters:
            late_us: the watermark that makes a record late.
            restores: whether the job wrote the rows, as for `RecordType.reader`.
        """
        records = rebatched(batches, rows=_RECORDS_AT_ONCE, size=_BYTES_AT_ONCE)
        tables_of = map(pa.Table.from_batches, records)
        combined = (self.rows(table, late_us, restores=restores) for table in tables_of)
        for tables in rebatched(combined, rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
            if len(tables) == 1:
                yield tables[0]
            else:
                rows = pa.concat_tables(tables)
                yield self._grouped(self._groups(rows), self._merging(rows))

    def merged(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Merge the rows of batches that are sorted by key. The result has one row per key and
        pane, in order.

        Columns before the key have the values of the first row.
        """
        pending: pa.Table | None = None
        for batch in batches:
            rows = pa.table(batch.columns, batch.schema.names)
            if pending is not None:
                last = len(pending) - 1
                if last:
                    yield pending.slice(0, last)
                rows = pa.concat_tables([pending.slice(last), rows])  # its key may continue
            outer = rows.select(range(rows.column_names.index(self.key[0])))
            pending = self._in_order(outer, self._groups(rows), self._merging(rows))
        if pending is not None:
            yield pending

    def _in_order(self, outer: pa.Table, groups: Groups, aggregates: Aggregates) -> pa.Table:
        """Group like `_grouped`, and sort the groups by first occurrence.

        Parameters:
            outer: columns to put in front; a group has the values of its first row.
        """
        rows = self._numbered(groups, aggregates)
        columns = outer.take(rows.column(_FIRST)).columns
        names = [*outer.column_names, *rows.column_names[:-1]]
        return pa.table([*columns, *rows.columns[:-1]], names)

    def _groups(self, rows: pa.Table) -> Groups:
        return {name: rows.column(name) for name in self._group_names}

    def _merging(self, rows: pa.Table) -> Aggregates:
        """Return the aggregates that merge combined rows."""
        number: Aggregates = [("sum", rows.column(self.number))]
        return number + [(verb, rows.column(name)) for name, verb in self._merges.items()]

    def _aggregated(self, table: pa.Table, late_us: int) -> tuple[Groups, Aggregates]:
        """Return the grouping columns by name, and the aggregates of each group."""
        times = None if self.panes is None else self._times(table, self.panes.event_time)
        aggregates: Aggregates = [("count_all", None)]
        for part, merge in zip(self.parts, self._merges.values(), strict=False):
            column = self._structs(table) if part.takes_records else None
            if part.field is not None:
                column = self._values(table, part.field)
            if isinstance(merge, GroupLists):
                assert column is not None
                column = listed(column, times) if part.verb == "list" else column
                aggregates.append((merge, column))
            else:
                aggregates.append((part.verb if part.field else "count_all", column))
        if self.is_global:
            groups = {self.key[0]: pa.chunked_array([pa.repeat(True, len(table))])}
        else:
            groups = {name: table.column(name) for name in self.key}
        if self.panes is not None:
            assert times is not None
            keys = list(groups.values())
            groups[self._group_names[-1]] = panes = self.panes.of(keys, times, late_us)
            aggregates = without_late(aggregates, panes)
            aggregates.append(("max", times))
        return groups, aggregates

    def _structs(self, table: pa.Table) -> pa.ChunkedArray:
        records = table.select(list(self.record.fields or ()))
        columns = [column.combine_chunks() for column in records.columns]
        return pa.chunked_array([pa.StructArray.from_arrays(columns, fields=list(records.schema))])

    def _values(self, table: pa.Table, field: str) -> pa.ChunkedArray:
        """Return the values of a field. Integers are cast to the declared type."""
        column, (kinds, *_) = table.column(field), peel(_annotation(self.record, field))
        if pa.types.is_integer(column.type) and kinds[0] in _WIDER:
            return column.cast(_WIDER[kinds[0]], safe=False)
        return column

    def _times(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        """Return the event times of records, in microseconds."""
        times = table.column(name).cast(pa.int64())
        ends = pc.min_max(times).as_py().values()
        if times.null_count or any(not MIN_MICROS <= (end or 0) <= MAX_MICROS for end in ends):
            # Reading raises an error that names the record if Python cannot hold its time.
            records = _read(self._projected, table)
            timeless = next(record for record in records if getattr(record, name) is None)
            raise ProcessError(
                f"{self.record.where}: event time {name!r} of {shown(timeless)} is no instant: "
                "give each record one, or leave such records out"
            )
        return times

    def _grouped(self, groups: Groups, aggregates: Aggregates) -> pa.Table:
        """Return one row per group, with a column per grouping column and a column per aggregate.

        Rows of one key are in order of arrival if a function needs it.
        """
        if self.panes is not None and ARRIVED_FIRST in self.parts:
            return self._numbered(groups, aggregates).drop_columns([_FIRST])
        keys, values = grouped(groups, aggregates, self.key, self.record.where)
        names = [*keys, self.number, *self._merges]
        return pa.table([*keys.values(), *values], names)

    def _numbered(self, groups: Groups, aggregates: Aggregates) -> pa.Table:
        """Return the rows of `_grouped` with the number of the first row of each, sorted by it."""
        numbers = pa.chunked_array([row_numbers(len(next(iter(groups.values()))))])
        aggregates = [*aggregates, ("min", numbers)]
        keys, values = grouped(groups, aggregates, self.key, self.record.where)
        rows = pa.table([*keys.values(), *values], [*keys, self.number, *self._merges, _FIRST])
        return rows.take(pc.sort_indices(rows.column(_FIRST)))

    def _columns(self, records: Sequence[Any]) -> pa.Table:
        """Return the aggregated fields of records as a table."""
        try:
            batch = self._outputs.batch_of_columns(list(map(list, self._split(records))))
        except CALL_FAILURES:  # below, the error names the record
            batch = self._outputs.to_batch(list(map(self._project, records)))
        return pa.Table.from_batches([batch])

    @cached_property
    def _outputs(self) -> OutputType:
        return OutputType(self._projected.cls, self.record.where, noun="record")

    @cached_property
    def _split(self) -> Callable[[Sequence[Any]], Sequence[Sequence[Any]]]:
        """A function from records to columns of their aggregated fields."""
        names = self._projected.field_names
        if self.record.flavour != "typeddict":
            return self.record.columns_of(names)
        columns_of = self._projected.columns_of(names)  # a key field may not be absent
        return lambda records: columns_of(list(map(self._project, records)))

    @cached_property
    def _project(self) -> Callable[[Any], Any]:
        """A function from a record to its aggregated fields."""
        names, cls = self._projected.field_names, self._projected.cls
        if self.record.flavour == "typeddict" and not self.is_global:
            key_of = self.record.getter(self.key)

            def project(record: Any) -> Any:
                try:
                    key_of(record)
                except KeyError as error:
                    raise self.record.missing(error, record) from None
                return cls(*map(record.get, names))  # another key may be absent

            return project
        if self.record.flavour == "typeddict":
            return lambda record: cls(*map(record.get, names))
        get = self.record.getter(names)
        return (lambda record: cls(get(record))) if len(names) == 1 else lambda r: cls(*get(r))


@contextlib.contextmanager
def with_operator_name(operator: str) -> Iterator[None]:
    """Prepend the name of an operator to errors about its records."""
    try:
        yield
    except ProcessError as error:
        raise ProcessError(f"operator {operator!r}: {shown_text(error)}") from error


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _read(record: RecordType, table: pa.Table, *, restores: bool = False) -> list[Any]:
    reader = record.reader(table.schema, restores=restores)
    return [record for batch in table.to_batches() for record in reader.read(batch)]


def has_columns(record: RecordType, fields: Iterable[str]) -> bool:
    """Return whether fields can be combined: columns represent their values, and rows can contain
    them.
    """
    if record.may_change_fields:
        return False
    try:
        cast("Any", NamedTuple)("Fields", [(name, Any) for name in fields])
        for name in fields:
            _ = OutputType(_annotation(record, name), where=record.where).arrow_schema
    except (StateTypeError, ValueError):  # ValueError: a name that no NamedTuple may have
        return False
    return True


def _has_spellings(annotation: Any) -> bool:
    """Return whether a column may contain one key in several forms: a UUID in several spellings, or
    a struct with more fields than its class.
    """
    members = peel(annotation)[0]
    return any(member is uuid.UUID or struct_flavour(member) is not None for member in members)


def _annotation(record: RecordType, name: str) -> Any:
    assert record.fields is not None, "its fields are known"
    return record.column_annotation(record.fields[name])


def _with_fields(name: str, types: dict[str, Any], where: str) -> RecordType:
    """Return a record type with these fields: a NamedTuple, or a Struct if a name begins with an
    underscore, which a NamedTuple refuses.
    """
    of, fields = cast("Any", NamedTuple), list(types.items())
    if any(each.startswith("_") for each in types):
        of = msgspec.defstruct
    return RecordType.of(of(name, fields), where=where)


def _name_of_all(record: RecordType) -> str:
    """Return the name of the key field of all records, which differs from their own fields."""
    name = "everything"
    while name in (record.fields or {}):
        name += "_"
    return name


def _free_names(key: tuple[str, ...], parts: int) -> list[str]:
    """Return column names that differ from all key fields."""
    names = ["pane", "number", *(f"part_{n + 1}" for n in range(parts)), "time"]
    while not set(key).isdisjoint(names):
        names = [f"{name}_" for name in names]
    return names
