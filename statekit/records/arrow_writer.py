"""Output columns of any annotation: check and write their values."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import operator
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, Literal

import pyarrow as pa

from statekit.codec.annotations import Field, generic_hint, peel, show
from statekit.codec.kept_fields import all_only_fields, why_beside
from statekit.errors import StateTypeError
from statekit.records.arrow_scalars import (
    SCALARS,
    Check,
    MakeArray,
    OutputColumn,
    anything,
    choices,
    instances,
    scalar,
    unchecked,
)
from statekit.records.declaration import (
    MAPPINGS,
    SEQUENCES,
    BesideFields,
    ValueMismatch,
    flavour_of,
    foreign_part,
    misfit,
)
from statekit.records.nested_types import tuple_names
from statekit.records.record_type import RecordType
from statekit.shown import shown, shown_text


@dataclasses.dataclass(frozen=True, slots=True)
class OutputRows:
    """The conversion of values to columns. A record and a fixed tuple have one column per part."""

    names: tuple[str, ...]
    columns: tuple[OutputColumn, ...]
    split: Callable[[list[Any]], list[list[Any]]]
    """Splits values into columns. Raises ValueMismatch for a value of another type."""
    annotations: tuple[Any, ...]
    """The types of the parts."""
    cls: type
    """The exact class of values that are stored unchanged; object for values of one column."""

    @property
    def problem(self) -> str:
        """The reason why the first column without an Arrow type has none."""
        return next((column.problem for column in self.columns if column.problem), "")

    def fields(self) -> list[pa.Field]:
        """Return the columns as Arrow fields."""
        named = zip(self.names, self.columns, strict=True)
        return [pa.field(name, column.arrow, nullable=column.nullable) for name, column in named]


# --- parts of records ----------------------------------------------------------------------------


def is_fixed_tuple(member: Any) -> bool:
    """Return whether an annotation is a tuple of a fixed length, such as tuple[str, int]."""
    arguments = typing.get_args(member)
    return typing.get_origin(member) is tuple and bool(arguments) and Ellipsis not in arguments


def tuple_rows(member: Any, path: str, stack: tuple[Any, ...]) -> OutputRows:
    """Return the columns of a fixed tuple.

    Parameters:
        stack: the record types around it.
    """
    arguments = typing.get_args(member)
    names = tuple_names(len(arguments))
    prefix = f"{path}." if path else ""
    columns = tuple(
        output_column(argument, f"{prefix}{name}", stack)
        for argument, name in zip(arguments, names, strict=True)
    )
    size = len(arguments)
    of_tuple = instances((tuple,), path or "the output", show(member))

    def split(values: list[Any]) -> list[list[Any]]:
        of_tuple(values)
        if not set(map(len, values)) <= {size}:
            wrong = next(value for value in values if len(value) != size)
            raise ValueMismatch(f"{path or 'the output'} needs {size} elements, got {len(wrong)}")
        return [list(map(operator.itemgetter(index), values)) for index in range(size)]

    return OutputRows(names, columns, split, arguments, tuple)


def record_rows(record_type: RecordType, path: str, stack: tuple[Any, ...]) -> OutputRows:
    """Return the columns of a record. `stack` contains the enclosing record types."""
    fields = record_type.fields or {}
    names, is_dict = tuple(fields), record_type.flavour == "typeddict"
    is_named_tuple = record_type.flavour == "namedtuple" and names == record_type.cls._fields
    cls = dict if is_dict else record_type.cls
    annotations = tuple(map(record_type.column_annotation, fields.values()))
    columns = tuple(
        output_column(annotation, f"{path}.{name}", (*stack, record_type.cls))
        for name, annotation in zip(names, annotations, strict=True)
    )
    if is_dict:
        columns = tuple(map(_telling_absent, columns, fields.values()))
    of_type = instances((cls,), path, record_type.name)
    of_fields = _only_fields(cls, path)
    getters = [
        operator.methodcaller("get", name)
        if is_dict and not field.required
        else record_type.getter((name,))
        for name, field in fields.items()
    ]

    def split(values: list[Any]) -> list[list[Any]]:
        of_type(values)
        of_fields(values)
        if is_dict and (extra := set(itertools.chain.from_iterable(values)).difference(names)):
            raise ValueMismatch(f"{path} declares no field {', '.join(sorted(map(repr, extra)))}")
        if is_named_tuple and values:
            return list(map(list, zip(*values, strict=True)))
        try:
            return [list(map(getter, values)) for getter in getters]
        except KeyError as error:
            raise ValueMismatch(f"{path} needs a field {shown(error.args[0])}") from None
        except AttributeError as error:
            raise ValueMismatch(
                f"{path} has a field that was never set: {shown_text(error)}"
            ) from error

    return OutputRows(names, columns, split, annotations, cls)


def _telling_absent(column: OutputColumn, field: Field) -> OutputColumn:
    """Return the column of a TypedDict key. Null represents an absent key, or None."""
    if field.required or not peel(field.annotation)[1]:
        return column
    problem = (
        f"{column.path} may be absent or None, and a column has one null for both: declare it "
        "without None, or without NotRequired"
    )
    return dataclasses.replace(column, arrow=None, problem=column.problem or problem)


def _only_fields(cls: Any, path: str) -> Check:
    """Return a check that records of a class and its subclasses contain only the fields of the
    class.
    """
    all_kept = all_only_fields(cls)

    def check(values: list[Any]) -> None:
        if set(map(type, values)) <= {cls} and (all_kept is None or all_kept(values)):
            return
        for value in values:
            if why := why_beside(cls, value):
                raise BesideFields(f"{path} got {shown(value)}: {why}")

    return unchecked if cls is dict else check


def single_column(annotation: Any) -> OutputRows:
    """Return the rows of values without parts, in one column."""
    column = output_column(annotation, "the output", ())
    return OutputRows(("value",), (column,), lambda values: [values], (annotation,), object)


# --- columns -------------------------------------------------------------------------------------


def output_column(annotation: Any, path: str, stack: tuple[Any, ...]) -> OutputColumn:
    """Return the column of an annotation. `stack` contains the enclosing record types."""
    members, nullable, metadata = peel(annotation)
    declared = show(annotation)
    if set(members) == {int, float}:
        members = (float,)
    if members == (Any,):
        check = anything(path, declared)
        return OutputColumn(path, declared, check, problem=f"{path} is declared as {declared}")
    if len(members) != 1:
        parts = [output_column(member, path, stack) for member in members]
        check = _one_of(parts, nullable, path, declared)
        problem = f"{path} is declared as {declared}, which is no single type"
        return OutputColumn(path, declared, check, problem=problem)
    column = _member_column(members[0], path, declared, metadata, stack)
    return _nullable(column) if nullable else column


def _member_column(
    member: Any, path: str, declared: str, metadata: tuple[Any, ...], stack: tuple[Any, ...]
) -> OutputColumn:
    """Return the column of an annotation that is no union."""
    origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
    if hint := generic_hint(member):
        raise StateTypeError(f"{path} is declared as {declared}: {hint}")
    if is_fixed_tuple(member):
        return _struct(tuple_rows(member, path, stack), path, declared)
    if flavour_of(member) not in (None, "dict"):
        if member in stack:
            check = instances((member,), path, declared)
            return OutputColumn(path, declared, check, problem=f"{path} contains its own type")
        record_type = RecordType.of(member, where=path)
        return _struct(record_rows(record_type, path, stack), path, declared)
    if origin is Literal:
        return choices(arguments, None, path, declared)
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return choices(tuple(m.value for m in member), member, path, declared)
    if origin in SEQUENCES:
        return _list(
            origin, output_column((*arguments, Any)[0], f"{path}[]", stack), path, declared
        )
    if origin in MAPPINGS:
        key, value = arguments or (Any, Any)
        columns = (
            output_column(key, f"{path} (a key)", stack),
            output_column(value, f"{path}{{}}", stack),
        )
        return _map(origin, *columns, path, declared)
    if isinstance(member, type) and member in SCALARS:
        return scalar(member, path, declared, metadata)
    is_class = isinstance(member, type)
    check = instances((member,), path, declared) if is_class else anything(path, declared)
    return OutputColumn(path, declared, check, problem=f"{path} is declared as {declared}")


def _one_of(parts: list[OutputColumn], nullable: bool, path: str, declared: str) -> Check:
    def fits(column: OutputColumn, value: Any) -> bool:
        try:
            column.check([value])
        except BesideFields:
            raise
        except ValueMismatch:
            return False
        return True

    def check(values: list[Any]) -> None:
        for value in values:
            if not (value is None and nullable) and not any(fits(part, value) for part in parts):
                part = foreign_part(value)
                raise misfit(path, declared, value if part is None else part, shown(value))

    return check


def _nullable(column: OutputColumn) -> OutputColumn:
    """Return the same column, with None allowed."""

    def check(values: list[Any]) -> None:
        column.check(_without_nulls(values))

    exact_types = column.exact_types | {types.NoneType}
    return dataclasses.replace(column, check=check, nullable=True, exact_types=exact_types)


def _without_nulls(values: list[Any]) -> list[Any]:
    if types.NoneType not in set(map(type, values)):
        return values
    return [value for value in values if value is not None]


def _with_nulls(make_array: MakeArray) -> MakeArray:
    """Return a function to arrays with nulls, from a function to arrays without."""

    def array(values: list[Any]) -> pa.Array:
        present = _without_nulls(values)
        made = make_array(present)
        if present is values:
            return made
        places = itertools.count()
        rows = [None if value is None else next(places) for value in values]
        return made.take(pa.array(rows, pa.int64()))

    return array


def _struct(rows: OutputRows, path: str, declared: str) -> OutputColumn:
    def check(values: list[Any]) -> None:
        for column, part in zip(rows.columns, rows.split(values), strict=True):
            column.check(part)

    @_with_nulls
    def structs(values: list[Any]) -> pa.Array:
        # A quarter of the time of `pa.array` of dicts.
        parts = map(OutputColumn.build, rows.columns, rows.split(values))
        return pa.StructArray.from_arrays(list(parts), fields=rows.fields())

    problem = rows.problem
    if not rows.columns:
        problem = f"{path} is declared as {declared}, which has no fields"
    if problem:
        return OutputColumn(path, declared, check, problem=problem)
    return OutputColumn(path, declared, check, pa.struct(rows.fields()), make_array=structs)


def _list(origin: Any, element: OutputColumn, path: str, declared: str) -> OutputColumn:
    of_type = instances((origin,), path, declared, refused=(str, bytes))
    unordered = origin in (set, frozenset)

    def check(values: list[Any]) -> None:
        of_type(values)
        element.check(list(itertools.chain.from_iterable(values)))

    if element.problem:
        return OutputColumn(path, declared, check, problem=element.problem)
    arrow = pa.list_(pa.field("element", element.arrow, nullable=element.nullable))

    def of_set(values: Collection[Any]) -> Collection[Any]:
        """Return the elements of a set, sorted if possible, so that a replay has the same order."""
        try:
            return sorted(values, key=None if element.make_array is None else _sortable)
        except TypeError:
            return values

    @_with_nulls
    def lists(values: list[Any]) -> pa.Array:
        ordered = map(of_set, values) if unordered else values
        elements = element.build(list(itertools.chain.from_iterable(ordered)))
        return pa.ListArray.from_arrays(_offsets(values), elements, type=arrow)

    takes_lists = not unordered and element.make_array is None
    make_array = None if takes_lists else lists
    return OutputColumn(path, declared, check, arrow, make_array=make_array)


def _offsets(values: list[Any]) -> pa.Array:
    """Return the offsets of consecutive lists of the sizes of some containers."""
    return pa.array(itertools.accumulate(map(len, values), initial=0), pa.int32())


def _sortable(value: Any) -> Any:
    """Return the value by which an element of a set is sorted: members of an Enum have no order,
    and sets are in order only if one contains the other.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(map(_sortable, value))
    return list(map(_sortable, value)) if isinstance(value, tuple) else value


def _map(
    origin: Any, key: OutputColumn, value: OutputColumn, path: str, declared: str
) -> OutputColumn:
    of_type = instances((origin,), path, declared)

    def parts(values: list[Any]) -> tuple[list[Any], list[Any]]:
        flat = itertools.chain.from_iterable
        return list(flat(values)), list(flat(each.values() for each in values))

    def check(values: list[Any]) -> None:
        of_type(values)
        keys, items = parts(values)
        key.check(keys)
        value.check(items)

    problem = key.problem or value.problem
    if key.nullable:
        problem = f"{path} is declared as {declared}, but a map column has no null keys"
    if problem:
        return OutputColumn(path, declared, check, problem=problem)
    arrow = pa.map_(key.arrow, pa.field("value", value.arrow, nullable=value.nullable))

    @_with_nulls
    def maps(values: list[Any]) -> pa.Array:
        keys, items = parts(values)
        made = key.build(keys), value.build(items)
        return pa.MapArray.from_arrays(_offsets(values), *made, type=arrow)

    return OutputColumn(path, declared, check, arrow, make_array=maps)
