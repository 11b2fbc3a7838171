"""Output columns of scalars, Enums or Literals: check and write their values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import operator
import struct
import types
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.foreign import is_foreign
from statekit.number_faults import int_fault
from statekit.records.arrow_reader import EPOCH
from statekit.records.declaration import ValueMismatch, foreign_part, misfit
from statekit.shown import shown, shown_text, type_name
from statekit.timestamp import MAX_MICROS, MIN_MICROS

Check = Callable[[list[Any]], None]
MakeArray = Callable[[list[Any]], Any]

UTC_TIME = pa.timestamp("us", "UTC")


@dataclasses.dataclass(frozen=True, slots=True)
class OutputColumn:
    """The check and the conversion of values of one annotation."""

    path: str
    declared: str
    check: Check
    """Raises ValueMismatch if a value (nulls included) is not of the declared type."""
    arrow: Any = None
    """The Arrow type; None if there is none, for the reason in `problem`."""
    problem: str = ""
    nullable: bool = False
    make_array: MakeArray | None = None
    """Returns the array of checked values (nulls included); None if `pa.array` takes them."""
    exact_types: frozenset[type] = frozenset()
    """Values of exactly these types are read back unchanged, unless `all_exact` returns False."""
    all_exact: Callable[[list[Any]], bool] | None = None
    """Returns whether all given values of `exact_types` are read back unchanged."""

    def is_stored(self, values: list[Any]) -> bool:
        """Return whether a reader of the column certainly returns the same values."""
        if not self.exact_types.issuperset(map(type, values)):
            return False
        return self.all_exact is None or self.all_exact(values)

    def build(self, values: list[Any]) -> Any:
        """Return the Arrow array of checked values."""
        try:
            if self.make_array is not None:
                return self.make_array(values)
            return pa.array(values, self.arrow)
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
            value = f" {shown(values[0])}" if len(values) == 1 else ""
            raise ValueMismatch(
                f"{self.path}, declared as {self.declared} (Arrow {self.arrow}), cannot hold"
                f"{value}: {shown_text(error)}"
            ) from error


def anything(path: str, declared: str) -> Check:
    """Return a check that accepts every value except values of NumPy and pandas, and containers
    with such values.
    """

    def check(values: list[Any]) -> None:
        for value in values:
            if (part := foreign_part(value)) is not None:
                raise misfit(path, declared, part, shown(value))

    return check


def unchecked(values: list[Any]) -> None:
    """Accept every value. Another check has already checked it."""


def instances(
    accepted: tuple[Any, ...], path: str, declared: str, refused: tuple[type, ...] = ()
) -> Check:
    """Return a check that all values are of these types or of subclasses that are not refused."""
    exact = set(accepted)

    def check(values: list[Any]) -> None:
        if set(map(type, values)) <= exact:
            return
        for value in values:
            is_misfit = not isinstance(value, accepted) or isinstance(value, refused)
            if is_misfit or is_foreign(value):
                actual = f"{shown(value)} of type {type_name(value)}"
                actual = "None" if value is None else actual
                raise misfit(path, declared, value, actual)

    return check


def _as_floats(values: list[Any]) -> list[Any]:
    if set(map(type, values)) <= {float, types.NoneType}:
        return values
    return [None if value is None else float(value) for value in values]


def _packed(
    form: str, arrow: Any, convert: Callable[[list[Any]], list[Any]] | None = None
) -> MakeArray:
    """Return a function that creates arrays of numbers from bytes of `struct.pack`, the format of
    Arrow.
    """

    def array(values: list[Any]) -> Any:
        try:  # twice as fast as pa.array for ints, six times for floats
            data = struct.pack(f"{len(values)}{form}", *values)
        except struct.error:  # a null, or too large: pyarrow explains it
            return pa.array(values if convert is None else convert(values), arrow)
        return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(data)])

    return array


def _texts(values: list[Any]) -> Any:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _check_zones(values: list[Any], path: str) -> None:
    """Refuse datetimes without a time zone."""
    if {value.tzinfo for value in values} <= {dt.UTC}:
        return
    for value in values:
        if value.utcoffset() is None:
            raise ValueMismatch(
                f"{path} got the naive datetime {shown(value)}, which is no point in time: give it "
                "a time zone, such as tzinfo=datetime.UTC"
            )


def _instants(values: list[Any]) -> Any:
    # Eight times as fast as pa.array of datetimes.
    try:
        since = list(map(operator.sub, values, itertools.repeat(EPOCH)))
    except TypeError:  # a null
        since = [None if value is None else value - EPOCH for value in values]
    instants = pa.array(since, pa.duration("us")).view(UTC_TIME)
    ends = pc.min_max(instants.view(pa.int64())).as_py().values()
    if any(not MIN_MICROS <= (end or 0) <= MAX_MICROS for end in ends):
        raise OverflowError("an instant in UTC is outside of the years 1 to 9999")
    return instants


def micros_of(instants: list[dt.datetime]) -> list[int]:
    """Return instants in UTC as microseconds since 1970.

    >>> micros_of([dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)])
    [1000000]
    """
    found: list[int] = _instants(instants).view(pa.int64()).to_pylist()
    return found


def _all_in_utc(values: list[Any]) -> bool:
    return {value.tzinfo for value in values if value is not None} <= {dt.UTC}


@declarable("Decimals")
@dataclasses.dataclass(frozen=True)
class Decimals:
    """The precision of a Decimal field: `Annotated[Decimal, Decimals(12, 2)]`.

    It is the type of the column on Spark. Without it, it is `decimal(38, 18)`. A value that has
    more digits is an error, and one that has fewer gets all of its places.

    Parameters:
        max_digits: in all, 1 to 38.
        decimal_places: after the point, 0 to `max_digits`.

    Raises:
        StateTypeError: there is no such column type.

    >>> from typing import Annotated
    >>> from statekit.records.output_type import OutputType
    >>> amounts = OutputType(Annotated[decimal.Decimal, Decimals(12, 2)], where="bills, output")
    >>> amounts.arrow_schema.field("value").type
    Decimal128Type(decimal128(12, 2))
    >>> amounts.stored([decimal.Decimal("131.5")])
    [Decimal('131.50')]
    """

    max_digits: int
    decimal_places: int

    def __post_init__(self) -> None:
        use = "give 1 to 38 digits, and at most as many places of these"
        fault = int_fault(self.max_digits, use, least=1, most=38) or int_fault(
            self.decimal_places, use, most=self.max_digits
        )
        if fault:
            numbers = f"{shown(self.max_digits)}, {shown(self.decimal_places)}"
            raise StateTypeError(f"Decimals({numbers}){fault}")


def _decimal_type(metadata: tuple[Any, ...]) -> pa.DataType:
    digits = places = None
    for item in itertools.chain(metadata, *(getattr(m, "metadata", ()) for m in metadata)):
        digits = getattr(item, "max_digits", None) or digits
        item_places = getattr(item, "decimal_places", None)
        places = places if item_places is None else item_places
    both = digits is not None and places is not None
    return pa.decimal128(digits if both else 38, 18 if places is None else places)


class _Scalar(NamedTuple):
    """The check and the conversion of values of a scalar type, as for `OutputColumn`."""

    arrow: Any
    accepted: tuple[type, ...]
    refused: tuple[type, ...] = ()
    make_array: MakeArray | None = None


SCALARS: dict[type, _Scalar] = {
    bool: _Scalar(pa.bool_(), (bool,)),
    int: _Scalar(pa.int64(), (int,), (bool,), _packed("q", pa.int64())),
    float: _Scalar(pa.float64(), (float, int), (bool,), _packed("d", pa.float64(), _as_floats)),
    str: _Scalar(pa.string(), (str,)),
    bytes: _Scalar(pa.binary(), (bytes,)),
    dt.date: _Scalar(pa.date32(), (dt.date,), (dt.datetime,)),
    dt.datetime: _Scalar(UTC_TIME, (dt.datetime,), (), _instants),
    dt.timedelta: _Scalar(pa.duration("us"), (dt.timedelta,)),
    decimal.Decimal: _Scalar(None, (decimal.Decimal,)),
    uuid.UUID: _Scalar(pa.string(), (uuid.UUID,), (), _texts),
}


def scalar(cls: type, path: str, declared: str, metadata: tuple[Any, ...] = ()) -> OutputColumn:
    """Return the column of a scalar type."""
    arrow, accepted, refused, make_array = SCALARS[cls]
    of_type = instances(accepted, path, declared, refused)

    def check_instants(values: list[Any]) -> None:
        of_type(values)
        _check_zones(values, path)

    is_decimal, is_datetime = cls is decimal.Decimal, cls is dt.datetime
    return OutputColumn(
        path,
        declared,
        check_instants if is_datetime else of_type,
        _decimal_type(metadata) if is_decimal else arrow,
        make_array=make_array,
        exact_types=frozenset() if is_decimal else frozenset({cls}),
        all_exact=_all_in_utc if is_datetime else None,
    )


def choices(
    values: tuple[Any, ...], cls: type[enum.Enum] | None, path: str, declared: str
) -> OutputColumn:
    """Return the column of an Enum, stored as its values, or of a Literal."""
    kinds = tuple(dict.fromkeys(map(type, values)))
    stored = OutputColumn(
        path,
        declared,
        unchecked,
        problem=f"{path} is declared as {declared}, whose values are not of one scalar type",
    )
    if len(kinds) == 1 and kinds[0] in SCALARS:
        stored = scalar(kinds[0], path, declared)
    allowed = {(type(value), value) for value in values}

    def check(choices: list[Any]) -> None:
        for value in choices:
            if type(value) not in kinds or (type(value), value) not in allowed:
                raise misfit(path, declared, value, shown(value))

    def of_members(members: list[Any]) -> Any:
        return stored.build([None if member is None else member.value for member in members])

    return OutputColumn(
        path,
        declared,
        check if cls is None else instances((cls,), path, declared),
        stored.arrow,
        stored.problem,
        make_array=stored.make_array if cls is None else of_members,
        exact_types=frozenset(kinds if cls is None else {cls}),
    )
