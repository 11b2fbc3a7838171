"""Generated annotations of every supported kind, with values that nearly fit them.

`typed_values` gives pairs of an annotation and a value. The annotation may accept the value,
convert it (an int in a float, a datetime in another zone), or just miss it (an int of 65 bits, a
lone surrogate).
"""

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import typing
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import typing_extensions
from hypothesis import strategies as st

__all__ = ["Typed", "annotations", "shape", "typed_values"]


class Typed(NamedTuple):
    """An annotation and a strategy of values for it."""

    annotation: Any
    values: st.SearchStrategy[Any]
    hashable: bool


class Color(enum.Enum):
    RED = "red"
    SNOW = "☃"


class Level(enum.IntEnum):
    LOW = -5
    TOP = 2**63 - 1
    HIGHEST = 2**63 - 1  # an alias


class Unit(enum.StrEnum):
    KM = "km"


_ZONES = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("America/New_York")]
_INTS = st.one_of(
    st.integers(-(2**65), 2**65),
    st.sampled_from([-(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**53 + 1, 10**400]),
)
_TEXTS = st.text(st.characters(exclude_categories=()), max_size=4)
_INSTANTS = st.datetimes(timezones=st.sampled_from(_ZONES), allow_imaginary=False)
_SCALARS = [
    Typed(bool, st.booleans(), True),
    Typed(int, _INTS, True),
    Typed(float, st.one_of(st.floats(), _INTS), True),
    Typed(str, _TEXTS, True),
    Typed(bytes, st.binary(max_size=4), True),
    Typed(dt.date, st.dates(), True),
    Typed(dt.datetime, st.one_of(_INSTANTS, st.datetimes()), True),
    Typed(dt.timedelta, st.timedeltas(), True),
    Typed(decimal.Decimal, st.decimals(allow_nan=False), True),
    Typed(uuid.UUID, st.uuids(), True),
    Typed(Color, st.sampled_from(Color), True),
    Typed(Level, st.sampled_from([*Level, -5]), True),
    Typed(Unit, st.sampled_from([*Unit, "km"]), True),
    *[
        Typed(typing.Literal[values], st.sampled_from([*values, "?", 1, None]), True)
        for values in [("r", None), (1, True), (None,), ("a", 1, False), (-(2**63), "\n")]
    ],
]
_COUNTER = itertools.count()


def annotations() -> st.SearchStrategy[Typed]:
    """Annotations with strategies of their values."""
    return st.recursive(st.sampled_from(_SCALARS), _containers, max_leaves=5)


def typed_values() -> st.SearchStrategy[tuple[Any, Any]]:
    """Annotations with a value each."""

    def pairs(of: Typed) -> st.SearchStrategy[tuple[Any, Any]]:
        return st.tuples(st.just(of.annotation), of.values)

    return annotations().flatmap(pairs)


def _containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    hashable = inner.filter(lambda of: of.hashable)
    some = st.lists(inner, max_size=3)
    return st.one_of(
        inner.map(_list),
        some.map(_tuple),
        inner.map(_variadic),
        st.tuples(hashable, st.booleans()).map(lambda pair: _set(*pair)),
        st.tuples(hashable, inner).map(lambda pair: _dict(*pair)),
        inner.map(_optional),
        st.lists(inner, min_size=2, max_size=3).map(_union),
        st.tuples(st.sampled_from(_STRUCTS), some).map(lambda pair: _struct(*pair)),
    )


def _list(of: Typed) -> Typed:
    return Typed(list[of.annotation], st.lists(of.values, max_size=3), False)  # type: ignore[name-defined]


def _tuple(items: list[Typed]) -> Typed:
    annotation: Any = tuple.__class_getitem__(tuple(of.annotation for of in items))
    values = st.tuples(*[of.values for of in items])
    return Typed(annotation, values, all(of.hashable for of in items))


def _variadic(of: Typed) -> Typed:
    annotation: Any = tuple.__class_getitem__((of.annotation, ...))
    return Typed(annotation, st.lists(of.values, max_size=3).map(tuple), of.hashable)


def _set(of: Typed, frozen: bool) -> Typed:
    if frozen:
        values = st.frozensets(of.values, max_size=3)
        return Typed(frozenset[of.annotation], values, True)  # type: ignore[name-defined]
    return Typed(set[of.annotation], st.sets(of.values, max_size=3), False)  # type: ignore[name-defined]


def _dict(key: Typed, of: Typed) -> Typed:
    values = st.dictionaries(key.values, of.values, max_size=3)
    return Typed(dict[key.annotation, of.annotation], values, False)  # type: ignore[name-defined]


def _optional(of: Typed) -> Typed:
    annotation: Any = typing.Union[of.annotation, None]  # noqa: UP007  built at run time
    return Typed(annotation, st.one_of(st.none(), of.values), of.hashable)


def _union(members: list[Typed]) -> Typed:
    annotation: Any = typing.Union[tuple(of.annotation for of in members)]  # noqa: UP007
    return Typed(
        annotation, st.one_of(*[of.values for of in members]), all(of.hashable for of in members)
    )


# ------------------------------------------------------------------ structs


def _named_tuple(name: str, fields: dict[str, Any]) -> Any:
    return typing.NamedTuple(name, list(fields.items()))


def _dataclass(name: str, fields: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(name, list(fields.items()))


def _frozen_dataclass(name: str, fields: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(name, list(fields.items()), frozen=True)


def _typed_dict(name: str, fields: dict[str, Any]) -> Any:
    # Before Python 3.12, pydantic refuses models that contain one of `typing`.
    return typing_extensions.TypedDict(name, fields)  # type: ignore[operator]


def _msgspec(name: str, fields: dict[str, Any]) -> Any:
    return msgspec.defstruct(name, list(fields.items()), frozen=True)


def _pydantic(name: str, fields: dict[str, Any]) -> Any:
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return pydantic.create_model(
        name, __config__=pydantic.ConfigDict(frozen=True, arbitrary_types_allowed=True), **required
    )


_STRUCTS: list[Callable[[str, dict[str, Any]], Any]] = [
    _named_tuple,
    _dataclass,
    _frozen_dataclass,
    _typed_dict,
    _msgspec,
    _pydantic,
]


def _struct(make: Callable[[str, dict[str, Any]], Any], fields: list[Typed]) -> Typed:
    name = f"Struct{next(_COUNTER)}"
    cls = make(name, {f"f{at}": of.annotation for at, of in enumerate(fields)})
    build: Callable[..., Any] = cls.model_construct if make is _pydantic else cls
    values = st.builds(build, **{f"f{at}": of.values for at, of in enumerate(fields)})
    hashable = make in (_named_tuple, _frozen_dataclass, _msgspec) and all(
        of.hashable for of in fields
    )
    return Typed(cls, values, hashable)


def shape(value: Any) -> Any:
    """A value in a form in which only what is the very same is equal: NaN is, 1 and 1.0 are not."""
    cls = type(value)
    if isinstance(value, dict):
        return cls, [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return cls, list(map(shape, value))
    if isinstance(value, set | frozenset):
        return cls, sorted(map(repr, map(shape, value)))
    if isinstance(value, dt.datetime):
        return cls, value.isoformat(), value.fold, value.tzinfo is dt.UTC
    if isinstance(value, pydantic.BaseModel):
        return cls, shape(dict(value)), sorted(value.model_fields_set)
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return cls, [(name, shape(getattr(value, name))) for name in _names(cls)]
    return cls, repr(value)


def _names(cls: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    names: tuple[str, ...] = cls.__struct_fields__
    return names
