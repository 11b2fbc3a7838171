"""Stored structs whose fields have other names now, wherever they are in a type."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import pytest

from statekit.codec.field_renaming import FieldRenaming
from statekit.codec.schema_evolution import why_unreadable
from statekit.codec.value_codec import value_codec


class Sold(NamedTuple):
    customer: str
    cents: int


def before() -> Any:
    class Sold(NamedTuple):
        buyer: str
        cents: int

    return Sold


RENAMING = FieldRenaming(frozenset({"Sold"}), {"buyer": "customer"})
DAY = dt.date(2026, 1, 1)


def of(record: Any, kind: str) -> tuple[Any, Any]:
    """A type with a class of records, and a value of it."""
    one: Any = record("ann", 5)
    nested: Any = dataclass(type("Nested", (), {"__annotations__": {"buyer": str, "paid": record}}))
    cases: dict[str, tuple[Any, Any]] = {
        "itself": (record, one),
        "list": (list[record], [one, one]),
        "tuple": (tuple[int, record], (1, one)),
        "variadic": (tuple[record, ...], (one, one)),
        "frozenset": (frozenset[record], frozenset([one])),
        "map": (dict[str, record], {"buyer": one}),
        "pairs": (dict[dt.date, list[record]], {DAY: [one]}),
        "key": (dict[record, int], {one: 1}),
        "optional": (record | None, one),
        "None": (record | None, None),
        "union": (Union[int, record], one),  # noqa: UP007
        "tagged": (Union[dict[str, int], record], one),  # noqa: UP007
        "struct": (nested, nested("buyer", one)),
    }
    return cases[kind]


KINDS = [
    *("itself", "list", "tuple", "variadic", "frozenset", "map", "pairs", "key", "optional"),
    *("None", "union", "tagged", "struct"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_struct_is_read_by_its_new_names_wherever_it_is(kind: str) -> None:
    (former, stored), (now, expected) = of(before(), kind), of(Sold, kind)
    codec, old = value_codec(now), value_codec(former)
    read = RENAMING.reader(codec)
    assert repr(read(old.encode(stored))) == repr(expected)
    assert repr(read(codec.encode(expected))) == repr(expected)
    as_stored = RENAMING.as_stored(codec.schema, old.schema)
    assert why_unreadable(old.schema, as_stored) is None


def test_a_field_that_was_removed_gives_its_name_to_a_renamed_one() -> None:
    class Both(NamedTuple):
        buyer: str
        customer: str
        cents: int

    row = value_codec(Both).encode(Both("ann", "of before", 5))
    assert RENAMING.reader(value_codec(Sold))(row) == Sold("ann", 5)


def test_a_struct_inside_of_itself_is_read_by_its_new_names() -> None:
    def tree(name: str) -> Any:
        found: dict[str, Any] = {"__annotations__": {name: str, "below": "list[Sold]"}}
        cls: Any = dataclass(type("Sold", (), found))
        cls.__module__ = __name__
        return cls

    former, now = tree("buyer"), tree("customer")
    for cls in (former, now):
        cls.__annotations__["below"] = list[cls]  # type: ignore[valid-type]
    row = value_codec(former).encode(former("ann", [former("bob", [])]))
    assert repr(RENAMING.reader(value_codec(now))(row)) == repr(now("ann", [now("bob", [])]))
