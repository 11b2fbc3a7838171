"""Records out: what a function yields, checked and turned into Arrow record batches.

What lives here: `OutputType`, compiled from the T of a function's `Iterator[T]`. It derives the
Arrow schema, checks every output against the declared type, and builds record batches column by
column. pyarrow alone is no check: it silently stores 1.5 in an int64 column and takes a naive
datetime for UTC. So the types of a whole column are compared first, as one set built in C, and
only then does the column become an array. In-process the same check runs without the batch.

What does not live here: the way in and the record types themselves (`records`), stored values
(`codec`), and the sink that the batches go to.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import itertools
import operator
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa

from statekit.errors import ProcessError, StateTypeError
from statekit.records import (
    EPOCH,
    MAPPINGS,
    SEQUENCES,
    Misfit,
    RecordType,
    flavour_of,
    peel,
    shorten,
    show,
)

__all__ = ["OutputType"]

Check = Callable[[list[Any]], None]
Lower = Callable[[list[Any]], list[Any]]
Guards = dict[type, Callable[[Any], bool] | None]

UTC_TIME = pa.timestamp("us", "UTC")
HINT = (
    "It works in-process only: a Spark sink needs a schema. Yield a record whose fields have "
    "concrete types, a fixed tuple, or a scalar."
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """How values of one annotation are checked and written."""

    path: str
    declared: str
    check: Check
    """Raises Misfit if a value (nulls included) is not of the declared type."""
    arrow: Any = None
    """The Arrow type; None if there is none, and then `problem` says why."""
    problem: str = ""
    nullable: bool = False
    lower: Lower | None = None
    """Values (nulls included) as objects that pyarrow stores; None if they already are."""
    array: Callable[[list[Any]], Any] | None = None
    """A faster way than `pa.array` to make the array."""
    guards: Guards = dataclasses.field(default_factory=dict)
    """For one value at a time: exact type -> is the value certainly good (None: always)."""

    def build(self, values: list[Any]) -> Any:
        """The Arrow array of checked values."""
        try:
            if self.array is not None:
                return self.array(values)
            lowered = values if self.lower is None else self.lower(values)
            return pa.array(lowered, self.arrow)
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
            held = f" {shorten(values[0])}" if len(values) == 1 else ""
            raise Misfit(
                f"{self.path}, declared as {self.declared} (Arrow {self.arrow}), cannot hold"
                f"{held}: {error}"
            ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Values that have parts: records and fixed tuples."""

    names: tuple[str, ...]
    columns: tuple[_Column, ...]
    split: Callable[[list[Any]], list[list[Any]]]
    """Values -> their columns; raises Misfit if a value is not of the declared type."""
    single: Callable[[Any], tuple[Any, ...]]
    """The parts of one value of exactly `cls`; LookupError or AttributeError if it lacks one."""
    cls: type


class OutputType:
    """The declared output of a function. `record_type` is None for scalars and tuples.

    >>> class Count(typing.NamedTuple):
    ...     tail: str
    ...     flights: int
    >>> counts = OutputType.of(Count, where="count, output")
    >>> counts.to_batch([Count("N1", 2)]).to_pylist()
    [{'tail': 'N1', 'flights': 2}]
    """

    def __init__(self, annotation: Any, where: str) -> None:
        self.annotation = annotation
        self.where = where
        self.name = show(annotation)
        self.record_type: RecordType | None = None
        members, nullable, _ = peel(annotation)
        member = members[0] if len(members) == 1 and not nullable else None
        self._rows: _Rows | None = None
        if member is not None and flavour_of(member) is not None:
            self.record_type = RecordType.of(member, where=where)
            self.name = self.record_type.name
            if self.record_type.flavour != "dict":
                self._rows = _record_rows(self.record_type, self.name, ())
        elif _is_fixed_tuple(member):
            self._rows = _tuple_rows(member, "", ())
        if self._rows is None:
            self._columns: tuple[_Column, ...] = (_column(annotation, "the output", ()),)
            self._names: tuple[str, ...] = ("value",)
        else:
            self._columns, self._names = self._rows.columns, self._rows.names
        self._guards = tuple(column.guards for column in self._columns)

    @classmethod
    def of(cls, annotation: Any, *, where: str) -> OutputType:
        """The output type of an annotation; `where` names the declaration in errors.

        Types without an Arrow type pass, until someone asks for `arrow_schema`.

        Raises:
            StateTypeError: the annotation names a type that cannot be resolved.

        >>> OutputType.of(tuple[str, int], where="count, output").arrow_schema.names
        ['_1', '_2']
        """
        return cls(annotation, where)

    @functools.cached_property
    def arrow_schema(self) -> Any:
        """The schema of the batches: a column per field, `_1`, `_2`, ... or `value`.

        Raises:
            StateTypeError: a type has no Arrow type; names the field and says what to do.

        >>> OutputType.of(int, where="count, output").arrow_schema
        value: int64 not null
        """
        problem = next((column.problem for column in self._columns if column.problem), "")
        if not self._columns:
            problem = f"{self.name} has no fields"
        if problem:
            raise StateTypeError(f"{self.where}: {problem}. {HINT}")
        return pa.schema(
            [
                pa.field(name, column.arrow, nullable=column.nullable)
                for name, column in zip(self._names, self._columns, strict=True)
            ]
        )

    def to_batch(self, records: list[Any]) -> Any:
        """The outputs as one record batch, after checking each of them.

        Raises:
            StateTypeError: the declared type has no Arrow schema.
            ProcessError: an output does not fit; names the field, its type, the value, the output.

        >>> OutputType.of(int, where="count, output").to_batch([1.5])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        statekit.errors.ProcessError: count, output: output 0, 1.5, does not fit int: ...
        """
        schema = self.arrow_schema
        try:
            arrays = self._arrays(records)
        except Exception as error:
            raise self._explained(records, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def check_all(self, records: list[Any]) -> None:
        """Raise the ProcessError that `to_batch` would raise, without the batch.

        >>> OutputType.of(int, where="count, output").check_all([1, 2, 3])
        """
        try:
            self._arrays(records)
        except Exception as error:
            raise self._explained(records, error) from error

    def check(self, record: Any) -> None:
        """`check_all` for one output: it costs about 1 µs for flat records of common types.

        >>> OutputType.of(int, where="count, output").check(3)
        """
        rows = self._rows
        try:
            if rows is None:
                row = (record,)
            elif type(record) is rows.cls:
                row = rows.single(record)
            else:
                return self.check_all([record])
            for value, guards in zip(row, self._guards, strict=True):
                guard = guards[type(value)]
                if guard is not None and not guard(value):
                    return self.check_all([record])
        except (AttributeError, LookupError, ValueError):
            return self.check_all([record])
        return None

    def _arrays(self, records: list[Any]) -> list[Any]:
        values = [records] if self._rows is None else self._rows.split(records)
        arrays = []
        for column, part in zip(self._columns, values, strict=True):
            column.check(part)
            if column.arrow is not None:
                arrays.append(column.build(part))
        return arrays

    def _explained(self, records: list[Any], error: Exception) -> ProcessError:
        """The error about the first output that does not fit, found by checking one by one."""
        found, cause = "a batch of outputs", error
        for index, record in enumerate(records):
            try:
                self._arrays([record])
            except Exception as first:  # noqa: BLE001 - told with its output
                found, cause = f"output {index}, {shorten(record)},", first
                break
        return ProcessError(f"{self.where}: {found} does not fit {self.name}: {cause}")


# --- parts of records ----------------------------------------------------------------------------


def _is_fixed_tuple(member: Any) -> bool:
    arguments = typing.get_args(member)
    return typing.get_origin(member) is tuple and bool(arguments) and Ellipsis not in arguments


def _tuple_rows(member: Any, path: str, stack: tuple[Any, ...]) -> _Rows:
    arguments = typing.get_args(member)
    names = tuple(f"_{index + 1}" for index in range(len(arguments)))
    prefix = f"{path}." if path else ""
    columns = tuple(
        _column(argument, f"{prefix}{name}", stack)
        for argument, name in zip(arguments, names, strict=True)
    )
    size = len(arguments)
    of_tuple = _instances((tuple,), path or "the output", show(member))

    def split(values: list[Any]) -> list[list[Any]]:
        of_tuple(values)
        if not set(map(len, values)) <= {size}:
            wrong = next(value for value in values if len(value) != size)
            raise Misfit(f"{path or 'the output'} needs {size} elements, got {len(wrong)}")
        return [list(map(operator.itemgetter(index), values)) for index in range(size)]

    return _Rows(names, columns, split, tuple, tuple)


def _record_rows(record_type: RecordType, path: str, stack: tuple[Any, ...]) -> _Rows:
    fields = record_type.fields or {}
    names, cls, flavour = tuple(fields), record_type.cls, record_type.flavour
    columns = []
    for name, field in fields.items():
        annotation = record_type.column_annotation(field)
        columns.append(_column(annotation, f"{path}.{name}", (*stack, cls)))
    real = dict if flavour == "typeddict" else cls
    of_type = _instances((real,), path, record_type.name)
    if flavour == "typeddict":
        split = _dict_split(record_type, path, of_type)
        return _Rows(names, tuple(columns), split, _dict_parts(names), dict)
    getters = [record_type.getter((name,)) for name in names]

    def split_attributes(values: list[Any]) -> list[list[Any]]:
        of_type(values)
        try:
            return [list(map(getter, values)) for getter in getters]
        except AttributeError as error:
            raise Misfit(f"{path} has a field that was never set: {error}") from error

    single = record_type.getter(names) if len(names) > 1 else _parts(getters)
    return _Rows(names, tuple(columns), split_attributes, single, cls)


def _parts(getters: list[Callable[[Any], Any]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(getter(value) for getter in getters)


def _dict_parts(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """The parts of a dict that has exactly these keys; any other is checked the long way."""

    def parts(value: dict[str, Any]) -> tuple[Any, ...]:
        if len(value) != len(names):
            raise LookupError
        return tuple(map(value.__getitem__, names))

    return parts


def _dict_split(
    record_type: RecordType, path: str, of_type: Check
) -> Callable[[list[Any]], list[list[Any]]]:
    fields = record_type.fields or {}
    declared = set(fields)

    def split(values: list[Any]) -> list[list[Any]]:
        of_type(values)
        extra = set(itertools.chain.from_iterable(values)) - declared
        if extra:
            raise Misfit(f"{path} declares no field {', '.join(sorted(map(repr, extra)))}")
        columns = []
        for name, field in fields.items():
            try:
                if field.required:
                    columns.append(list(map(operator.itemgetter(name), values)))
                else:
                    columns.append([value.get(name) for value in values])
            except KeyError:
                raise Misfit(f"{path} needs a field {name!r}") from None
        return columns

    return split


# --- columns -------------------------------------------------------------------------------------


def _column(annotation: Any, path: str, stack: tuple[Any, ...]) -> _Column:
    """The column of an annotation; `stack` holds the record types around it."""
    members, nullable, metadata = peel(annotation)
    declared = show(annotation)
    if set(members) == {int, float}:
        members = (float,)
    if members == (Any,):
        return _Column(path, declared, _anything, problem=f"{path} is declared as {declared}")
    if len(members) != 1:
        parts = [_column(member, path, stack) for member in members]
        check = _one_of(parts, nullable, path, declared)
        problem = f"{path} is declared as {declared}, which is no single type"
        return _Column(path, declared, check, problem=problem)
    column = _member_column(members[0], path, declared, metadata, stack)
    return _nullable(column) if nullable else column


def _member_column(
    member: Any, path: str, declared: str, metadata: tuple[Any, ...], stack: tuple[Any, ...]
) -> _Column:
    """The column of an annotation that is no union."""
    origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
    if _is_fixed_tuple(member):
        return _struct(_tuple_rows(member, path, stack), path, declared)
    if flavour_of(member) not in (None, "dict"):
        if member in stack:
            check = _instances((member,), path, declared)
            return _Column(path, declared, check, problem=f"{path} contains its own type")
        record_type = RecordType.of(member, where=path)
        return _struct(_record_rows(record_type, path, stack), path, declared)
    if origin is Literal:
        return _choices(arguments, None, path, declared)
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return _choices(tuple(m.value for m in member), member, path, declared)
    if origin in SEQUENCES:
        return _list(origin, _column((*arguments, Any)[0], f"{path}[]", stack), path, declared)
    if origin in MAPPINGS:
        key, value = arguments or (Any, Any)
        columns = _column(key, f"{path} (a key)", stack), _column(value, f"{path}{{}}", stack)
        return _map(origin, *columns, path, declared)
    if isinstance(member, type) and member in _SCALARS:
        return _SCALARS[member](path, declared, metadata)
    check = _instances((member,), path, declared) if isinstance(member, type) else _anything
    return _Column(path, declared, check, problem=f"{path} is declared as {declared}")


def _nullable(column: _Column) -> _Column:
    """The same column with None allowed."""

    def without_nulls(values: list[Any]) -> list[Any]:
        if types.NoneType not in set(map(type, values)):
            return values
        return [value for value in values if value is not None]

    def check(values: list[Any]) -> None:
        column.check(without_nulls(values))

    def lower(values: list[Any]) -> list[Any]:
        assert column.lower is not None
        lowered = iter(column.lower(without_nulls(values)))
        return [None if value is None else next(lowered) for value in values]

    return dataclasses.replace(
        column,
        check=check,
        nullable=True,
        lower=None if column.lower is None else lower,
        guards={**column.guards, types.NoneType: None} if column.guards else {},
    )


def _struct(rows: _Rows, path: str, declared: str) -> _Column:
    def check(values: list[Any]) -> None:
        for column, part in zip(rows.columns, rows.split(values), strict=True):
            column.check(part)

    def lower(values: list[Any]) -> list[Any]:
        parts = [
            part if column.lower is None else column.lower(part)
            for column, part in zip(rows.columns, rows.split(values), strict=True)
        ]
        return [dict(zip(rows.names, row, strict=True)) for row in zip(*parts, strict=True)]

    problem = next((column.problem for column in rows.columns if column.problem), "")
    if not rows.columns:
        problem = f"{path} is declared as {declared}, which has no fields"
    if problem:
        return _Column(path, declared, check, problem=problem)
    named = zip(rows.names, rows.columns, strict=True)
    arrow = pa.struct([pa.field(n, column.arrow, nullable=column.nullable) for n, column in named])
    return _Column(path, declared, check, arrow, lower=lower)


def _list(origin: Any, element: _Column, path: str, declared: str) -> _Column:
    of_type = _instances((origin,), path, declared, refused=(str, bytes))
    unordered = origin in (set, frozenset)

    def check(values: list[Any]) -> None:
        of_type(values)
        element.check(list(itertools.chain.from_iterable(values)))

    def lower(values: list[Any]) -> list[Any]:
        flat = list(itertools.chain.from_iterable(values))
        lowered = iter(flat if element.lower is None else element.lower(flat))
        lists = [list(itertools.islice(lowered, len(value))) for value in values]
        return list(map(_ordered, lists)) if unordered else lists

    if element.problem:
        return _Column(path, declared, check, problem=element.problem)
    arrow = pa.list_(pa.field("element", element.arrow, nullable=element.nullable))
    needed = unordered or element.lower is not None
    return _Column(path, declared, check, arrow, lower=lower if needed else None)


def _ordered(values: list[Any]) -> list[Any]:
    """A set's elements in an order that a replay repeats, if they have an order."""
    try:
        return sorted(values)
    except TypeError:
        return values


def _map(origin: Any, key: _Column, value: _Column, path: str, declared: str) -> _Column:
    of_type = _instances((origin,), path, declared)

    def parts(values: list[Any]) -> tuple[list[Any], list[Any]]:
        flat = itertools.chain.from_iterable
        return list(flat(values)), list(flat(each.values() for each in values))

    def check(values: list[Any]) -> None:
        of_type(values)
        keys, items = parts(values)
        key.check(keys)
        value.check(items)

    def lower(values: list[Any]) -> list[Any]:
        keys, items = parts(values)
        keys = keys if key.lower is None else key.lower(keys)
        entries = zip(keys, items if value.lower is None else value.lower(items), strict=True)
        return [list(itertools.islice(entries, len(each))) for each in values]

    problem = key.problem or value.problem
    if key.nullable:
        problem = f"{path} is declared as {declared}, but a map column has no null keys"
    if problem:
        return _Column(path, declared, check, problem=problem)
    arrow = pa.map_(key.arrow, pa.field("value", value.arrow, nullable=value.nullable))
    return _Column(path, declared, check, arrow, lower=lower)


def _choices(
    values: tuple[Any, ...], cls: type[enum.Enum] | None, path: str, declared: str
) -> _Column:
    """An Enum, stored as its values, or a Literal."""
    kinds = tuple(dict.fromkeys(map(type, values)))
    stored = _SCALARS[kinds[0]](path, declared, ()) if kinds and kinds[0] in _SCALARS else None
    problem = ""
    if stored is None or len(kinds) > 1:
        problem = f"{path} is declared as {declared}, whose values are not of one scalar type"
        stored = _Column(path, declared, _anything)
    guards: Guards
    if cls is not None:
        check = _instances((cls,), path, declared)
        guards = {cls: None}
    else:
        allowed = {(type(value), value) for value in values}
        guards = {kind: lambda value: (type(value), value) in allowed for kind in kinds}

        def check(found: list[Any]) -> None:
            for value in found:
                if type(value) not in kinds or (type(value), value) not in allowed:
                    raise Misfit(f"{path} is declared as {declared}, got {shorten(value)}")

    def lower(found: list[Any]) -> list[Any]:
        plain = found if cls is None else [value.value for value in found]
        return plain if stored.lower is None else stored.lower(plain)

    return _Column(path, declared, check, stored.arrow, problem, lower=lower, guards=guards)


# --- scalars -------------------------------------------------------------------------------------


def _anything(values: list[Any]) -> None:
    """The check of a type that everything is."""


def _fits_64_bits(value: int) -> bool:
    return -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF


def _encodes(value: str) -> bool:
    """Whether the text is free of lone surrogates, which UTF-8 cannot hold."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _instances(
    accepted: tuple[Any, ...], path: str, declared: str, refused: tuple[type, ...] = ()
) -> Check:
    """A check that all values are of these types or of subclasses that are not refused."""
    exact = set(accepted)

    def check(values: list[Any]) -> None:
        if set(map(type, values)) <= exact:
            return
        for value in values:
            if not isinstance(value, accepted) or isinstance(value, refused):
                kind = type(value).__name__
                got = "None" if value is None else f"{shorten(value)} of type {kind}"
                raise Misfit(f"{path} is declared as {declared}, got {got}")

    return check


def _one_of(parts: list[_Column], nullable: bool, path: str, declared: str) -> Check:
    def fits(column: _Column, value: Any) -> bool:
        try:
            column.check([value])
        except Misfit:
            return False
        return True

    def check(values: list[Any]) -> None:
        for value in values:
            if not (value is None and nullable) and not any(fits(part, value) for part in parts):
                raise Misfit(f"{path} is declared as {declared}, got {shorten(value)}")

    return check


def _scalar(
    arrow: Any,
    *accepted: type,
    refused: tuple[type, ...] = (),
    guards: Guards | None = None,
    lower: Lower | None = None,
) -> Callable[[str, str, tuple[Any, ...]], _Column]:
    def make(path: str, declared: str, metadata: tuple[Any, ...]) -> _Column:
        check = _instances(accepted, path, declared, refused)
        return _Column(path, declared, check, arrow, lower=lower, guards=guards or {})

    return make


def _as_floats(values: list[Any]) -> list[Any]:
    if set(map(type, values)) <= {float, types.NoneType}:
        return values
    return [None if value is None else float(value) for value in values]


def _datetime(path: str, declared: str, metadata: tuple[Any, ...]) -> _Column:
    of_type = _instances((dt.datetime,), path, declared)

    def check(values: list[Any]) -> None:
        of_type(values)
        if {value.tzinfo for value in values} <= {dt.UTC}:
            return
        for value in values:
            if value.utcoffset() is None:
                raise Misfit(
                    f"{path} got the naive datetime {value!r}, which is no point in time: give it "
                    "a time zone, such as tzinfo=datetime.UTC"
                )

    def array(values: list[Any]) -> Any:
        # Four times as fast as pa.array of datetimes.
        since = [None if v is None else _in_utc(v) - EPOCH for v in values]
        return pa.array(since, pa.duration("us")).view(UTC_TIME)

    def lower(values: list[Any]) -> list[Any]:
        return list(map(_in_utc, values))

    guards: Guards = {dt.datetime: lambda value: value.tzinfo is dt.UTC}
    return _Column(path, declared, check, UTC_TIME, lower=lower, array=array, guards=guards)


def _in_utc(value: dt.datetime) -> dt.datetime:
    """The same instant in UTC; one outside of the years 1 to 9999 is an OverflowError."""
    return value if value.tzinfo is dt.UTC else value.astimezone(dt.UTC)


def _decimal(path: str, declared: str, metadata: tuple[Any, ...]) -> _Column:
    digits = places = None
    for item in itertools.chain(metadata, *(getattr(m, "metadata", ()) for m in metadata)):
        digits = getattr(item, "max_digits", None) or digits
        found = getattr(item, "decimal_places", None)
        places = found if found is not None else places
    both = digits is not None and places is not None
    arrow = pa.decimal128(digits if both else 38, 18 if places is None else places)
    check = _instances((decimal.Decimal,), path, declared)
    return _Column(path, declared, check, arrow)


def _uuids(values: list[Any]) -> list[Any]:
    return list(map(str, values))


_SCALARS: dict[type, Callable[[str, str, tuple[Any, ...]], _Column]] = {
    bool: _scalar(pa.bool_(), bool, guards={bool: None}),
    int: _scalar(pa.int64(), int, refused=(bool,), guards={int: _fits_64_bits}),
    float: _scalar(
        pa.float64(), float, int, refused=(bool,), guards={float: None}, lower=_as_floats
    ),
    str: _scalar(pa.string(), str, guards={str: _encodes}),
    bytes: _scalar(pa.binary(), bytes, guards={bytes: None}),
    dt.date: _scalar(pa.date32(), dt.date, refused=(dt.datetime,), guards={dt.date: None}),
    dt.datetime: _datetime,
    dt.timedelta: _scalar(
        pa.duration("us"), dt.timedelta, guards={dt.timedelta: lambda v: abs(v.days) < 10**8}
    ),
    decimal.Decimal: _decimal,
    uuid.UUID: _scalar(pa.string(), uuid.UUID, guards={uuid.UUID: None}, lower=_uuids),
}
