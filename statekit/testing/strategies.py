"""Hypothesis strategies of values of annotations, and of records. They use the types alone."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from statekit.codec.annotations import (
    Field,
    struct_fields,
    struct_flavour,
    union_members,
    with_metadata,
)
from statekit.errors import StateTypeError
from statekit.records.record_type import RecordType
from statekit.shown import shown
from statekit.testing.written_test import alias_of

__all__ = [
    "fields_of",
    "instance",
    "is_limited",
    "is_made",
    "record_type_with",
    "records",
    "values",
]

T = TypeVar("T")

_SIZE_MAX = 4
"""Maximum number of elements of a generated list, set or dict. Longer ones find little more, and
take longer.
"""

_FIRST, _LAST = dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)
_LARGE = 10**9  # sums of some of these fit a state
_STEP = 0.25  # of floats: sums and means of multiples are the same in any order
_CHARACTERS = st.characters(exclude_categories=["Cs"])  # so that texts are valid UTF-8
_TEXTS = st.text(_CHARACTERS, max_size=8)
_INSTEAD = "give examples of records with events=[...], or a strategy of Hypothesis"
_FLOATS_MIN = 64  # so many floats are within limits at least
_DAYS = [dt.date(2024, 2, 29), dt.date(2025, 12, 31), dt.date(2026, 1, 1), dt.date(2000, 2, 29)]
CLOCK_CHANGES = [
    *(dt.datetime(2026, 3, 29, 1), dt.datetime(2026, 10, 25, 1)),  # in Europe
    *(dt.datetime(2026, 3, 8, 7), dt.datetime(2026, 11, 1, 6)),  # in New York
]
"""In UTC."""

_INSTANTS = st.sampled_from(
    [
        at
        for day in _DAYS
        for at in (dt.datetime(day.year, day.month, day.day, hour) for hour in (0, 23))
    ]
    + CLOCK_CHANGES
)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(-5, 5) | st.integers(-_LARGE, _LARGE),
    float: (st.integers(-5, 5) | st.integers(-_LARGE, _LARGE)).map(lambda number: number * _STEP),
    str: st.sampled_from(["a", "b", ""]) | _TEXTS,
    bytes: st.binary(max_size=8),
    dt.date: st.dates(_FIRST.date(), _LAST.date()) | st.sampled_from(_DAYS),
    dt.datetime: (st.datetimes(_FIRST, _LAST) | _INSTANTS).map(
        lambda at: at.replace(tzinfo=dt.UTC, fold=0)
    ),
    dt.timedelta: st.timedeltas(dt.timedelta(days=-10_000), dt.timedelta(days=10_000)),
    decimal.Decimal: st.decimals(-(10**12), 10**12, places=6),
    uuid.UUID: st.uuids(),
    Any: st.none() | st.booleans() | st.integers(-5, 5) | _TEXTS,
}


# ---------------------------------------------------------------------------------------- values


def values(annotation: type[T] | Any, *, constants: Sequence[Any] = ()) -> st.SearchStrategy[T]:
    """Return a strategy of the values of an annotation that a state or a record may have.

    Numbers are often small, so that equal ones occur, and never so large that sums of some do not
    fit; times are of this century and the one before. Limits in `Annotated`, such as those of
    pydantic's `Field(ge=0)`, are kept.

    Parameters:
        annotation: as for a state: scalars, enums, containers, unions, classes with fields.
        constants: numbers and texts that occur, too, and numbers next to them.

    Raises:
        StateTypeError: a part of it is not supported.

    >>> from hypothesis import find
    >>> find(values(dict[str, list[int]]), lambda value: any(map(sum, value.values())))
    {'a': [1]}
    """
    return _Values(constants).of(annotation)


class _Values:
    """Strategies of the parts of one annotation.

    Parameters:
        constants: as for `values`.

    Attributes:
        open: strategies of the classes that it is inside of: a class may contain itself.
    """

    def __init__(self, constants: Sequence[Any] = ()) -> None:
        self._constants = constants
        self.open: dict[Any, st.SearchStrategy[Any]] = {}

    def of(self, annotation: Any) -> st.SearchStrategy[Any]:
        """Return a strategy of the values of a part."""
        bare, metadata = with_metadata(annotation)
        if (members := union_members(bare)) is not None:
            by_size = sorted(members, key=lambda member: member is not type(None))
            return st.one_of(*map(self.of, by_size))
        origin, arguments = typing.get_origin(bare), typing.get_args(bare)
        if origin is typing.Literal:
            return st.sampled_from(arguments)
        if origin is not None:
            return self._container(annotation, origin, arguments, _Limits(metadata))
        if isinstance(bare, type) and issubclass(bare, enum.Enum):
            return st.sampled_from(bare)
        if struct_flavour(bare) is not None:
            return self._struct(bare)
        try:
            scalar = _SCALARS[bare]
        except (KeyError, TypeError):
            raise StateTypeError(
                f"no values of {shown(annotation)} can be made: {_INSTEAD}"
            ) from None
        return _Limits(metadata).kept(bare, scalar, _near(bare, self._constants))

    def _container(
        self, annotation: Any, origin: Any, arguments: tuple[Any, ...], limits: _Limits
    ) -> st.SearchStrategy[Any]:
        if origin is tuple and arguments[-1:] != (...,):
            return st.tuples(*map(self.of, arguments))
        sizes = limits.sizes()
        if sizes["min_size"] == 0 and any(argument in self.open for argument in arguments):
            # A class that contains itself: most of its containers are empty, so that it ends.
            few = [{"max_size": most} for most in (0, 0, 1, 2)]
            return st.one_of(*(self._filled(annotation, origin, arguments, each) for each in few))
        return self._filled(annotation, origin, arguments, sizes)

    def _filled(
        self, annotation: Any, origin: Any, arguments: tuple[Any, ...], sizes: dict[str, Any]
    ) -> st.SearchStrategy[Any]:
        """Return a strategy of containers of the given sizes."""
        if origin is tuple:
            return st.lists(self.of(arguments[0]), **sizes).map(tuple)
        if origin in (dict, Mapping):
            return st.dictionaries(*map(self.of, arguments), **sizes)
        if origin in (list, Sequence):
            return st.lists(self.of(arguments[0]), **sizes)
        if origin in (set, frozenset):
            return (st.sets if origin is set else st.frozensets)(self.of(arguments[0]), **sizes)
        raise StateTypeError(f"no values of {shown(annotation)} can be made: {_INSTEAD}")

    def _struct(self, cls: Any) -> st.SearchStrategy[Any]:
        if cls in self.open:
            return self.open[cls]
        self.open[cls] = st.deferred(lambda: made)
        made = self.fields(cls).map(lambda fields: instance(cls, fields)).filter(is_made)
        del self.open[cls]
        return made

    def fields(self, cls: Any, given: Mapping[str, Any] | None = None) -> st.SearchStrategy[Any]:
        """Return a strategy of the fields of a class, by name.

        Parameters:
            given: strategies of some of them, instead of those of their annotations; None for
                fields that are left out.
        """
        given = given or {}
        required: dict[str, st.SearchStrategy[Any]] = {}
        optional: dict[str, st.SearchStrategy[Any]] = {}
        for field in struct_fields(cls):
            if not field.init or (field.name in given and given[field.name] is None):
                continue
            may_lack = struct_flavour(cls) == "typeddict" and not field.required
            place = optional if may_lack and field.name not in given else required
            own = given.get(field.name)
            place[field.name] = self._field(cls, field) if own is None else own
        return st.fixed_dictionaries(required, optional=optional)

    def _field(self, cls: Any, field: Field) -> st.SearchStrategy[Any]:
        try:
            return self.of(field.annotation)
        except StateTypeError as error:
            raise StateTypeError(f"{cls.__name__}.{field.name}: {error}") from error


def _near(kind: Any, constants: Sequence[Any]) -> list[Any]:
    """Return the constants of a scalar type. Of numbers, also those next to them, where comparisons
    change; but no large ones, so that sums fit a state.
    """
    if kind is str:
        return [each for each in constants if type(each) is str]
    if kind not in (int, float):
        return []
    numbers = [each for each in constants if type(each) in (int, float) and abs(each) <= _LARGE]
    step = 1 if kind is int else _STEP
    near = [math.floor(each / step) + one for each in numbers for one in (0, 1, -1)]
    return list(dict.fromkeys(kind(each * step) for each in near))


def instance(cls: Any, fields: dict[str, Any]) -> Any:
    """Return an instance of a class; None if its validators refuse these fields."""
    if struct_flavour(cls) == "typeddict":
        names = [field.name for field in struct_fields(cls)]
        return {name: fields[name] for name in names if name in fields}  # in their order
    try:
        if struct_flavour(cls) != "pydantic":
            return cls(**fields)
        named = {alias_of(cls.model_fields[name]) or name: fields[name] for name in fields}
        return cls.model_validate(named)
    except Exception:  # noqa: BLE001 - whatever a validator of the user raises
        return None


def is_made(made: Any) -> bool:
    """Return whether `instance` made one."""
    return made is not None


def is_limited(metadata: Iterable[Any]) -> bool:
    """Return whether numbers with such metadata have a largest one, or are multiples."""
    return _Limits(metadata).are_few


_LIMITS = (
    *("ge", "gt", "le", "lt", "multiple_of"),
    *("min_length", "max_length", "max_digits", "decimal_places", "pattern"),
)
"""Names of the limits in annotated_types, pydantic, msgspec and statekit."""


class _Limits:
    """Limits of values, from the metadata of an annotation.

    Parameters:
        metadata: of `Annotated`.
    """

    def __init__(self, metadata: Iterable[Any]) -> None:
        self._known: dict[str, Any] = {}
        for each in _flat(metadata):
            for name in _LIMITS:
                if (limit := getattr(each, name, None)) is not None:
                    self._known[name] = limit

    @property
    def are_few(self) -> bool:
        """True if there is a largest number, or numbers are multiples."""
        return any(name in self._known for name in ("le", "lt", "multiple_of"))

    def sizes(self) -> dict[str, Any]:
        """Return the sizes of a container, as arguments of its strategy."""
        least = self._known.get("min_length", 0)
        most = self._known.get("max_length", least + _SIZE_MAX)
        return {"min_size": least, "max_size": min(most, least + _SIZE_MAX)}

    def kept(
        self, kind: Any, strategy: st.SearchStrategy[Any], constants: Sequence[Any] = ()
    ) -> st.SearchStrategy[Any]:
        """Return a strategy of the values within the limits.

        Parameters:
            kind: the scalar type.
            strategy: of all its values.
            constants: that occur, too, if they are within.
        """
        within = [each for each in constants if self._allows(each)]
        kept = self._kept(kind, strategy)
        # Behind the others: what fails with a simple value is shown with that.
        return kept | st.sampled_from(within) if within else kept

    def _allows(self, constant: Any) -> bool:
        if isinstance(constant, str):
            return "pattern" not in self._known and self._is_so_long(constant)
        return self._holds(constant)

    def _kept(self, kind: Any, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        """Return a strategy of the values within the limits, without constants."""
        if not self._known:
            return strategy
        if kind is bytes:
            return st.binary(**self.sizes())
        if kind is str:
            return self._texts()
        least = self._known.get("ge", self._known.get("gt"))
        most = self._known.get("le", self._known.get("lt"))
        if kind is int:
            strategy = self._ints(least, most)
        elif kind is float:
            strategy = self._floats(least, most)
        elif kind is decimal.Decimal:
            strategy = self._decimals(least, most)
        return strategy.filter(self._holds)

    def _texts(self) -> st.SearchStrategy[str]:
        """Return a strategy of texts within the limits of length, or that match a pattern."""
        if "pattern" not in self._known:
            return st.text("ab☃", **self.sizes())
        pattern = self._known["pattern"]
        try:
            matching = st.from_regex(pattern, alphabet=_CHARACTERS)
            matching.validate()
        except (re.error, InvalidArgument) as error:
            raise StateTypeError(
                f"no values of the pattern {shown(pattern)} can be made ({error}): {_INSTEAD}"
            ) from None
        # Python's $ also matches before a line break at the end, that of pydantic does not
        return matching.filter(lambda text: self._is_so_long(text) and text[-1:] != "\n")

    def _is_so_long(self, text: str) -> bool:
        least, most = self._known.get("min_length", 0), self._known.get("max_length", len(text))
        return bool(least <= len(text) <= most)

    def _ints(self, least: int | None, most: int | None) -> st.SearchStrategy[int]:
        """Return a strategy of ints, often near the least or the largest one, or near 0."""
        low, high = map(int, _range(least, most))
        step = self._known.get("multiple_of", 1)
        return _near_zero(-(-low // step), high // step).map(lambda number: number * step)

    def _floats(self, least: float | None, most: float | None) -> st.SearchStrategy[float]:
        """Return a strategy of floats, as multiples of a step that is a power of two."""
        low, high = _range(least, most)
        step = _STEP
        while high > low and (high - low) / step < _FLOATS_MIN:
            step /= 2
        if step * _FLOATS_MIN < min(abs(low), abs(high)) * sys.float_info.epsilon or low == high:
            return st.floats(low, high)
        numbers = _near_zero(math.ceil(low / step), math.floor(high / step))
        return numbers.map(lambda number: number * step)

    def _decimals(self, least: Any, most: Any) -> st.SearchStrategy[decimal.Decimal]:
        """Return a strategy of decimals within the limits of digits and places."""
        places = self._known.get("decimal_places", 2)
        whole = self._known.get("max_digits", 18) - places
        largest = decimal.Decimal(10**whole - 1)
        low = -largest if least is None else max(decimal.Decimal(least), -largest)
        high = largest if most is None else min(decimal.Decimal(most), largest)
        return st.decimals(low, high, places=places, allow_nan=False)

    def _holds(self, value: Any) -> bool:
        checks: dict[str, Callable[[Any], bool]] = {
            "ge": lambda limit: value >= limit,
            "gt": lambda limit: value > limit,
            "le": lambda limit: value <= limit,
            "lt": lambda limit: value < limit,
            "multiple_of": lambda limit: value % limit == 0,
        }
        return all(checks[name](of) for name, of in self._known.items() if name in checks)


def _near_zero(first: int, last: int) -> st.SearchStrategy[int]:
    """Return a strategy of ints, of which about half are the nearest to 0."""
    near = min(max(first, 0), last)
    return st.integers(max(near - 5, first), min(near + 5, last)) | st.integers(first, last)


def _range(least: Any, most: Any) -> tuple[Any, Any]:
    """Return the limits of numbers. Where one is missing, sums of some still fit a state."""
    if least is None:
        least = -_LARGE if most is None else min(-_LARGE, most - _LARGE)
    return least, max(_LARGE, least + _LARGE) if most is None else most


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Yield metadata, and the members of its groups."""
    for each in metadata:
        if isinstance(each, Iterable) and not isinstance(each, str | bytes):
            yield from _flat(each)  # a group of annotated_types
        else:
            yield each
            yield from getattr(each, "metadata", ())  # pydantic's Field


# --------------------------------------------------------------------------------------- records


def records(cls: type[T], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[T]:
    """Return a strategy of the records of a class.

    Parameters:
        fields: strategies of some fields, instead of those of their types.

    Raises:
        StateTypeError: the class does not say which fields its records have, or has no such field.

    >>> from typing import NamedTuple
    >>> from hypothesis import find
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> find(records(Order, customer=st.just("ada")), lambda order: order.cents > 3)
    Order(customer='ada', cents=4)
    """
    record_type_with(cls, fields)
    return fields_of(cls, fields).map(lambda found: instance(cls, found)).filter(is_made)


def fields_of(
    cls: Any, given: Mapping[str, Any], constants: Sequence[Any] = ()
) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of the fields of a class, by name.

    Parameters:
        given: strategies of some of them, instead of those of their types; None for fields that are
            left out.
        constants: as for `values`.
    """
    return _Values(constants).fields(cls, given)


def record_type_with(cls: Any, fields: Iterable[str]) -> RecordType:
    """Return the record type of a class, after checking that it has some fields."""
    record = RecordType.of(cls, where="records")
    if record.fields is None:
        raise StateTypeError(
            "records(dict): a dict does not say which fields it has: give a NamedTuple, a "
            "dataclass, a TypedDict or the like, or a strategy of your own"
        )
    if unknown := [name for name in fields if name not in record.fields]:
        raise StateTypeError(
            f"records({record.name}): it has no field {', '.join(map(repr, unknown))}: choose from "
            f"{', '.join(record.fields)}"
        )
    return record
