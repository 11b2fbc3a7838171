"""Generated types of keys, of every kind that is supported, with keys of each."""

import datetime as dt
import enum
import itertools
import typing
import uuid
from typing import Any, NamedTuple

from hypothesis import strategies as st

__all__ = ["KeyType", "key_types"]


class KeyType(NamedTuple):
    """A type of keys and a strategy of keys."""

    annotation: Any
    keys: st.SearchStrategy[Any]


class Colour(enum.Enum):
    RED = "GREEN"  # the name of another member
    GREEN = "RED"
    SNOW = "☃"


class Level(enum.IntEnum):
    LOW = -(2**63)
    TOP = 2**63 - 1
    HIGHEST = 2**63 - 1  # an alias


_LONGEST = dt.timedelta(microseconds=2**63 - 1)
_LITERALS: list[tuple[Any, ...]] = [("a", "'a'", '"a"'), (1, -1), (True, False)]
_SCALARS = [
    KeyType(bool, st.booleans()),
    KeyType(int, st.integers(-(2**63), 2**63 - 1)),
    KeyType(float, st.floats(allow_nan=False)),
    KeyType(str, st.text(max_size=5) | st.sampled_from(["null", "5", '"a"', "[]", "a/b", ".."])),
    KeyType(bytes, st.binary(max_size=4)),
    KeyType(dt.date, st.dates()),
    KeyType(dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    KeyType(dt.timedelta, st.timedeltas(-_LONGEST, _LONGEST)),
    KeyType(uuid.UUID, st.uuids()),
    KeyType(Colour, st.sampled_from(Colour)),
    KeyType(Level, st.sampled_from(Level)),
    *[KeyType(typing.Literal[values], st.sampled_from(values)) for values in _LITERALS],
]
_COUNTER = itertools.count()


def key_types() -> st.SearchStrategy[KeyType]:
    """Types of keys, with strategies of their keys."""
    return st.recursive(st.sampled_from(_SCALARS), _composites, max_leaves=4)


def _composites(inner: st.SearchStrategy[KeyType]) -> st.SearchStrategy[KeyType]:
    some = st.lists(inner, max_size=3)
    return st.one_of(
        inner.map(_optional), inner.map(_variadic), some.map(_tuple), some.map(_named_tuple)
    )


def _optional(of: KeyType) -> KeyType:
    annotation: Any = typing.Union[of.annotation, None]  # noqa: UP007  built at run time
    return KeyType(annotation, st.none() | of.keys)


def _variadic(of: KeyType) -> KeyType:
    annotation: Any = tuple.__class_getitem__((of.annotation, ...))
    return KeyType(annotation, st.lists(of.keys, max_size=3).map(tuple))


def _tuple(items: list[KeyType]) -> KeyType:
    annotation: Any = tuple.__class_getitem__(tuple(of.annotation for of in items))
    return KeyType(annotation, st.tuples(*[of.keys for of in items]))


def _named_tuple(items: list[KeyType]) -> KeyType:
    fields = [(f"f{at}", of.annotation) for at, of in enumerate(items)]
    cls: Any = typing.NamedTuple(f"Key{next(_COUNTER)}", fields)  # type: ignore[misc]
    return KeyType(cls, st.tuples(*[of.keys for of in items]).map(cls._make))
