"""The order of values that breaks ties does not depend on how values are stored."""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.records.value_order import order_of_value


class Colour(enum.Enum):
    RED = 2
    BLUE = 1


class Point(NamedTuple):
    x: int
    y: Decimal


@dataclass
class Box:
    at: Point
    tags: set[str]


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
KINDS: list[list[Any]] = [
    [None],
    [-math.inf, -1, Decimal("-0.5"), 0, True, Decimal("1.5"), 2.5, 10**30, math.inf, math.nan],
    ["", "a", "b", "\uffff", "\U00010000"],
    [b"", b"a", b"\xff"],
    [dt.date(2025, 12, 31), dt.date(2026, 1, 1)],
    [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)],
    [NOON - dt.timedelta(seconds=1), NOON, NOON + dt.timedelta(microseconds=1)],
    [dt.time(1), dt.time(2)],
    [dt.timedelta(-1), dt.timedelta(0), dt.timedelta(days=1)],
    [UUID(int=1), UUID(int=2**100)],
]


def test_values_of_a_kind_are_in_their_order_and_kinds_follow_each_other() -> None:
    ascending = list(itertools.chain.from_iterable(KINDS))
    keys = list(map(order_of_value, ascending))
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (Decimal("131.5"), Decimal("131.50")),
        (Decimal("2"), 2),
        (Point(1, Decimal("1.5")), Point(1, Decimal("1.50"))),
        (NOON, NOON.astimezone(dt.timezone(dt.timedelta(hours=2)))),
        ({"b", "a"}, {"a", "b"}),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ([1, 2], (1, 2)),
        (Colour.RED, 2),
        (Decimal("nan"), math.nan),
    ],
)
def test_equal_values_are_equal_however_they_are_stored(one: Any, same: Any) -> None:
    assert order_of_value(one) == order_of_value(same)


def test_records_are_in_the_order_of_their_fields() -> None:
    boxes = [
        Box(Point(1, Decimal(2)), {"b"}),
        Box(Point(1, Decimal(2)), {"a", "c"}),
        Box(Point(0, Decimal(9)), set()),
        Box(Point(1, Decimal("1.9")), {"z"}),
    ]
    assert sorted(boxes, key=order_of_value) == [boxes[2], boxes[3], boxes[1], boxes[0]]


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.decimals(allow_nan=True),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.datetimes(timezones=st.just(dt.UTC)),
        st.uuids(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_any_values_have_one_order_whatever_their_arrival(values: list[Any], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    assert [order_of_value(value) for value in sorted(values, key=order_of_value)] == [
        order_of_value(value) for value in sorted(shuffled, key=order_of_value)
    ]
