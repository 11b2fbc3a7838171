"""Preaggregate records per key in Arrow, before rows are made of them.

A row has the key, how many records it stands for, and a value per part. Arrow's hash aggregation
runs in one thread, so that the same batch always gives the same rows, nearly in the order in which
keys first came.

For windows there is a row for each key and pane, and one for all late records of the key. It has
the pane, too, and the largest event time: by that it is in the windows that its records are in, or
late as they are. In sessions it is from its pane to that time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Optional, cast

import pyarrow as pa
import pyarrow.compute as pc

from statekit.codec.annotations import peel
from statekit.errors import ProcessError, StateTypeError
from statekit.records.arrow_sums import DIGITS, comparable, fits, kept_as, summable, to_kept
from statekit.records.declaration import shorten
from statekit.records.output_type import OutputType
from statekit.records.panes import LATE, Panes, first_of
from statekit.records.rebatch import gathered
from statekit.records.record_type import RecordType
from statekit.timestamp import MAX_MICROS, MIN_MICROS
from statekit.watermark import BEGINNING

Verb = Literal["count", "sum", "min", "max"]


class Part(NamedTuple):
    """What is made of some records.

    Parameters:
        verb: how.
        field: of which values other than None; None counts the records themselves.
    """

    verb: Verb
    field: str | None


_AGAIN = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""How rows that were combined are combined once more."""

_Groups = dict[str, pa.ChunkedArray]
_Asked = list[tuple[str, pa.ChunkedArray | None]]
"""Aggregates, each of a column; None for one of the rows themselves."""

# Arrow looks each record up in a table of the keys: many at a time, as the table is made anew.
_RECORDS_AT_ONCE = 500_000
_ROWS_AT_ONCE = 1_000_000
_BYTES_AT_ONCE = 64 * 1024 * 1024  # if that is less

_FIRST = "__statekit_first"  # the number of the first row of a key

_WIDER = {float: pa.float64(), decimal.Decimal: pa.decimal128(DIGITS, 0)}
"""What fields of these types are where their column has integers."""


class Combiner:
    """Combines records of a type by key.

    Parameters:
        record: their type, whose fields are known.
        key: names of the fields that records are grouped by.
        parts: what is to be known of each group.
        panes: by which records are grouped beside; None without windows.

    Attributes:
        combined: the rows, as records: the key, the pane, the number of records, the parts, and the
            largest event time in microseconds; pane and time for windows only.
        key_size: how many fields the key has.
        number_at: the place of the number of records; the parts follow it.

    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> record = RecordType.of(Order, where="example")
    >>> combiner = Combiner(record, ("customer",), [Part("sum", "cents"), Part("max", "cents")])
    >>> combiner.records([Order("ada", 5), Order("bob", 1), Order("ada", 2)])
    [Combined(customer='ada', number=2, part_1=7, part_2=5), \
Combined(customer='bob', number=1, part_1=1, part_2=1)]
    """

    def __init__(
        self,
        record: RecordType,
        key: tuple[str, ...],
        parts: Sequence[Part],
        panes: Panes | None = None,
    ) -> None:
        self._record = record
        self._key = key
        self.key_size = len(key)
        self._parts = tuple(parts)
        self._panes = panes
        times = () if panes is None else (panes.event_time,)
        looked_at = dict.fromkeys((*key, *(part.field for part in parts if part.field), *times))
        types = {name: _annotation(record, name) for name in looked_at}
        self._required = [name for name, of in types.items() if not peel(of)[1]]
        name = record.name if record.name.isidentifier() else "Record"  # a generic model's is none
        self._needed = _named_tuple(name, types, record.where)
        pane, self.number, *values, time = _names_beside(key, len(self._parts))
        self._by = key if panes is None else (*key, pane)
        self.number_at = len(self._by)
        # How each value of a row is combined once more, by its name.
        self._again = {
            name: _AGAIN[part.verb] for name, part in zip(values, self._parts, strict=True)
        }
        made = {name: types[name] for name in key}
        made |= dict.fromkeys((*self._by[len(key) :], self.number), int)
        made |= {name: _kept(part, types) for name, part in zip(values, self._parts, strict=True)}
        if panes is not None:
            self._again[time] = "max"
            made[time] = int
        self.combined = _named_tuple("Combined", made, record.where)

    @property
    def told(self) -> list[str]:
        """What is made of the records of a key, in words."""
        parts = dict.fromkeys(self._parts) or (Part("count", None),)
        return [part.verb + ("" if part.field is None else f" of {part.field}") for part in parts]

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the rows of tables with a schema."""
        return self.rows(schema.empty_table()).schema

    def read(self, columns: Collection[str] | None = None) -> RecordType:
        """What is read of a source: the fields looked at, or all of them, to make records first.

        Parameters:
            columns: of the source; None: as many as the records have fields.
        """
        return self._record if self.makes_records(columns) else self._needed

    def makes_records(self, columns: Collection[str] | None = None) -> bool:
        """Whether what is in a field only a record can tell, and no column.

        Parameters:
            columns: of the source; None: as many as the records have fields.
        """
        fields = self._record.fields or {}
        if self._record.may_change_fields:
            return True
        names = self._needed.field_names
        is_absent = columns is not None and not set(columns).issuperset(names)
        return is_absent or not all(fields[name].init for name in names)

    def records(self, records: Sequence[Any], late_us: int = BEGINNING) -> list[Any]:
        """The rows of records, as records.

        Parameters:
            late_us: the watermark that makes a record late.

        Raises:
            ProcessError: a record does not fit its type, or a sum is too large.
        """
        rows = self._grouped(*self._asked(self._columns(records), late_us))
        return _read(self.combined, rows)

    def rows(self, table: pa.Table, late_us: int = BEGINNING) -> pa.Table:
        """The rows of a table of what is to be `read`.

        Parameters:
            late_us: the watermark that makes a record late.

        Raises:
            ProcessError: a record does not fit its type, or a sum is too large.
        """
        return self._grouped(*self._asked(self._checked(table), late_us))

    def each(self, batches: Iterable[pa.RecordBatch], late_us: int) -> Iterator[pa.RecordBatch]:
        """A row for each record, as if it had been combined; what stands around them stays so.

        Parameters:
            batches: with a column before and one behind those that are to be `read`.
            late_us: the watermark that makes a record late.

        Raises:
            ProcessError: a record does not fit its type.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            groups, asked = self._asked(self._checked(table), late_us)
            one = pa.repeat(pa.scalar(1, pa.int64()), len(batch))
            columns = list(groups.values())
            for verb, column in asked:
                value = one
                if column is not None and verb == "count":
                    value = pc.is_valid(column).cast(pa.int64())
                elif column is not None:  # of the type that rows of several records have
                    value = column.cast(kept_as(verb, column.type))
                columns.append(value)
            first, *_, last = batch.schema.names
            names = [first, *groups, self.number, *self._again, last]
            rows = pa.table([table.column(0), *columns, table.column(last)], names)
            yield from rows.combine_chunks().to_batches()

    def _checked(self, table: pa.Table) -> pa.Table:
        """What is looked at of records, which fit their type."""
        if self.makes_records(table.column_names):
            return self._columns(_read(self._record, table))
        if any(table.column(name).null_count for name in self._required):
            _read(self._needed, table)  # says which record has a None, and fails
        return table

    def in_pieces(self, batches: Iterable[pa.RecordBatch], late_us: int) -> Iterator[pa.Table]:
        """The rows of many batches, combined as far as memory allows.

        Parameters:
            late_us: the watermark that makes a record late.
        """
        records = gathered(batches, rows=_RECORDS_AT_ONCE, size=_BYTES_AT_ONCE)
        made = (self.rows(pa.Table.from_batches(held), late_us) for held in records)
        for tables in gathered(made, rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE):
            yield tables[0] if len(tables) == 1 else self.again(pa.concat_tables(tables))

    def merged(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The rows of batches in which those of a key follow each other: one for each, in order.

        What stands in front of the key, the first of its rows says.
        """
        held: pa.Table | None = None
        for batch in batches:
            rows = pa.table(batch.columns, batch.schema.names)
            if held is not None:
                last = len(held) - 1
                if last:
                    yield held.slice(0, last)
                rows = pa.concat_tables([held.slice(last), rows])  # its key may go on
            held = self._in_order(rows)
        if held is not None:
            yield held

    def again(self, rows: pa.Table) -> pa.Table:
        """Rows that have been combined, of several tables: one for each key and pane."""
        return self._grouped(self._groups(rows), self._asked_again(rows))

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """The same, in the order in which keys first came; what stands before the key stays so."""
        before = rows.column_names.index(self._key[0])
        numbers = pc.indices_nonzero(rows.column(self.number))  # of all rows: none stands for none
        asked = [*self._asked_again(rows), ("min", pa.chunked_array([numbers]))]
        made = self._grouped(self._groups(rows), asked, [_FIRST])
        made = made.take(pc.sort_indices(made.column(_FIRST)))
        columns = rows.select(range(before)).take(made.column(_FIRST)).columns
        names = [*rows.column_names[:before], *made.column_names[:-1]]
        return pa.table([*columns, *made.columns[:-1]], names)

    def _groups(self, rows: pa.Table) -> _Groups:
        return {name: rows.column(name) for name in self._by}

    def _asked_again(self, rows: pa.Table) -> _Asked:
        """What is asked for of rows, to combine them once more."""
        asked = [("sum", rows.column(self.number))]
        return asked + [(verb, rows.column(name)) for name, verb in self._again.items()]

    def first_of(self, row: Any) -> dt.datetime:
        """The first event time of the records of a row, for sessions."""
        return first_of(row[self.key_size])

    def time_of(self, row: Any) -> int:
        """The largest event time of the records of a row, in microseconds."""
        time: int = row[-1]
        return time

    def _asked(self, table: pa.Table, late_us: int) -> tuple[_Groups, _Asked]:
        """What records are grouped by, by name, and what is asked for of each group."""
        asked: _Asked = [("count_all", None)]
        for part in self._parts:
            column = None if part.field is None else self._values(table, part.field)
            asked.append((part.verb if part.field else "count_all", column))
        groups = {name: table.column(name) for name in self._key}
        if self._panes is not None:
            times = self._times(table, self._panes.event_time)
            keys = list(groups.values())
            groups[self._by[-1]] = panes = self._panes.of(keys, times, late_us)
            asked = _without_late(asked, panes)
            asked.append(("max", times))
        return groups, asked

    def _values(self, table: pa.Table, field: str) -> pa.ChunkedArray:
        """What is in a field, of the type that it is declared as: integers may be more."""
        column, (kinds, *_) = table.column(field), peel(_annotation(self._record, field))
        if pa.types.is_integer(column.type) and kinds[0] in _WIDER:
            return column.cast(_WIDER[kinds[0]], safe=False)  # as fields are read
        return column

    def _times(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        """The event times of records, in microseconds."""
        times = table.column(name).cast(pa.int64())
        ends = pc.min_max(times).as_py().values()
        if times.null_count or any(not MIN_MICROS <= (end or 0) <= MAX_MICROS for end in ends):
            # Reading fails where an instant is none in Python, and says which record has it.
            without = next(r for r in _read(self._needed, table) if getattr(r, name) is None)
            raise ProcessError(
                f"{self._record.where}: event time {name!r} of {shorten(without)} is no instant: "
                "give each record one, or leave such records out"
            )
        return times

    def _grouped(
        self,
        groups: _Groups,
        asked: _Asked,
        more: Sequence[str] = (),
    ) -> pa.Table:
        """A column per group, and one per aggregate that is asked for.

        Parameters:
            groups: what rows are grouped by, by name.
            more: names of those that are asked for beside what a row has.
        """
        columns, names = list(groups.values()), [f"key_{n}" for n in range(len(groups))]
        made: list[tuple[Any, str]] = []
        for n, (verb, column) in enumerate(asked):
            if column is not None:
                columns.append(summable(column) if verb == "sum" else comparable(column))
                names.append(f"value_{n}")
            made.append(([] if column is None else f"value_{n}", verb))
        grouped = pa.table(columns, names).group_by(names[: len(groups)], use_threads=False)
        found = grouped.aggregate(made).columns
        keys = dict(zip(groups, found, strict=False))
        values = [
            column if given is None else self._back(verb, column, given.type, keys)
            for column, (verb, given) in zip(found[len(groups) :], asked, strict=True)
        ]
        return pa.table([*keys.values(), *values], [*keys, self.number, *self._again, *more])

    def _back(
        self,
        verb: str,
        made: pa.ChunkedArray,
        given: pa.DataType,
        keys: dict[str, pa.ChunkedArray],
    ) -> pa.ChunkedArray:
        """An aggregate with the type of the values it was made of, or a wider one.

        Parameters:
            keys: that it is of, for messages.
        """
        if verb == "count":
            return made
        wanted = kept_as(verb, given)
        try:
            return to_kept(made, wanted)
        except pa.ArrowInvalid as error:
            at = next(n for n in range(len(made)) if not fits(made.slice(n, 1), wanted))
            key = ", ".join(f"{name}={keys[name][at].as_py()!r}" for name in self._key)
            raise ProcessError(
                f"{self._record.where}: a sum of {given} values, that of the key {key}, does not "
                f"fit {wanted}: {error}; sum a field of Decimal, or of float"
            ) from error

    def _columns(self, records: Sequence[Any]) -> pa.Table:
        """The fields that are looked at."""
        made = self._outputs.to_batch(list(map(self._take, records)))
        return pa.Table.from_batches([made])

    @cached_property
    def _outputs(self) -> OutputType:
        made = OutputType.of(self._needed.cls, where=self._record.where)
        made.told_as = "record"
        return made

    @cached_property
    def _take(self) -> Callable[[Any], Any]:
        """What is looked at of a record."""
        names, cls = self._needed.field_names, self._needed.cls
        if self._record.flavour == "typeddict":
            return lambda record: cls._make(map(record.get, names))  # a key may be absent
        get = self._record.getter(names)
        return (lambda record: cls(get(record))) if len(names) == 1 else lambda r: cls._make(get(r))


@contextlib.contextmanager
def told_with(operator: str) -> Iterator[None]:
    """Errors about records say which operator takes them."""
    try:
        yield
    except ProcessError as error:
        raise ProcessError(f"operator {operator!r}: {error}") from error


def _read(record: RecordType, table: pa.Table) -> list[Any]:
    reader = record.reader(table.schema)
    return [record for batch in table.to_batches() for record in reader.read(batch)]


def has_columns(record: RecordType, fields: Iterable[str]) -> bool:
    """Whether columns say what is in these fields of records, and combined rows can have them."""
    if record.may_change_fields:
        return False
    try:
        _named_tuple("Fields", dict.fromkeys(fields, Any), record.where)
        for name in fields:
            _ = OutputType.of(_annotation(record, name), where=record.where).arrow_schema
    except (StateTypeError, ValueError):  # ValueError: a name that no NamedTuple may have
        return False
    return True


def _annotation(record: RecordType, name: str) -> Any:
    assert record.fields is not None, "its fields are known"
    return record.column_annotation(record.fields[name])


def _kept(part: Part, types: dict[str, Any]) -> Any:
    """The type of what a part is kept as."""
    if part.verb == "count":
        return int
    assert part.field is not None, "it is of a field"
    of_field = types[part.field]
    return Optional[of_field]  # noqa: UP045


def _named_tuple(name: str, types: dict[str, Any], where: str) -> RecordType:
    made = cast("Any", NamedTuple)(name, list(types.items()))
    return RecordType.of(made, where=where)


def _names_beside(key: tuple[str, ...], parts: int) -> list[str]:
    """Names of columns that no field of the key has."""
    names = ["pane", "number", *(f"part_{n + 1}" for n in range(parts)), "time"]
    while not set(key).isdisjoint(names):
        names = [f"{name}_" for name in names]
    return names


def _without_late(asked: _Asked, panes: pa.ChunkedArray) -> _Asked:
    """The same without the values of late records, which nobody wants: they are counted."""
    late = pc.equal(panes, LATE)
    if not pc.any(late).as_py():
        return asked
    return [
        (verb, column if column is None else pc.if_else(late, pa.scalar(None, column.type), column))
        for verb, column in asked
    ]
