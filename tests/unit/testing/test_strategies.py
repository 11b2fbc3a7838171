"""Generated values fit their annotations, and histories have what streams have."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.codec.value_codec import value_codec
from statekit.testing.histories import Generated, histories, histories_of
from statekit.testing.strategies import records, values

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int | None = None


@dataclasses.dataclass
class Data:
    customer: str
    cents: int
    total: int = dataclasses.field(init=False, default=0)


class Struct(msgspec.Struct):
    customer: str
    cents: int = 0


class Named(TypedDict):
    customer: str
    cents: NotRequired[int]


class Model(pydantic.BaseModel):
    customer: Annotated[str, pydantic.Field(min_length=1, alias="Customer")]
    cents: Annotated[int, pydantic.Field(ge=0)]

    @pydantic.field_validator("cents")
    @classmethod
    def even(cls, cents: int) -> int:
        if cents % 2:
            raise ValueError("odd")
        return cents


class Tree(NamedTuple):
    value: int
    branches: list[Tree]


ANNOTATIONS: list[Any] = [
    *(bool, int, float, str, bytes, dt.date, dt.datetime, dt.timedelta, decimal.Decimal),
    *(uuid.UUID, Colour, Literal["a", 1, None], int | None, str | bytes | None),
    *(list[int], set[str], frozenset[int], dict[str, list[float]], tuple[int, str]),
    *(tuple[int, ...], tuple[()], Order, Data, Struct, Named, Model, Tree, list[Order | Data]),
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
@settings(max_examples=50)
@given(data=st.data())
def test_values_of_an_annotation_can_be_stored(annotation: Any, data: st.DataObject) -> None:
    codec = value_codec(annotation)
    value = data.draw(values(annotation))
    assert codec.accepts(value), codec.reason(value)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("annotation", "holds"),
    [
        (Annotated[int, annotated_types.Ge(0)], lambda value: value >= 0),
        (Annotated[int, annotated_types.Interval(gt=1, lt=4)], lambda value: value in (2, 3)),
        (Annotated[int, msgspec.Meta(multiple_of=7)], lambda value: value % 7 == 0),
        (Annotated[float, pydantic.Field(le=1.5)], lambda value: value <= 1.5),
        (
            Annotated[str, pydantic.Field(pattern=r"^C\d+$", max_length=5)],
            lambda value: re.fullmatch(r"C\d{1,4}", value),
        ),
        (Annotated[str, annotated_types.Len(2, 3)], lambda value: 2 <= len(value) <= 3),
        (Annotated[bytes, msgspec.Meta(max_length=1)], lambda value: len(value) <= 1),
        (Annotated[list[int], annotated_types.MinLen(2)], lambda value: len(value) >= 2),
        (
            Annotated[decimal.Decimal, sk.Decimals(4, 1)],
            lambda value: abs(value) < 1000 and value * 10 == int(value * 10),
        ),
    ],
    ids=["ge", "interval", "multiple", "le", "pattern", "text", "bytes", "list", "decimal"],
)
@given(data=st.data())
def test_limits_are_kept(
    annotation: Any, holds: Callable[[Any], bool], data: st.DataObject
) -> None:
    assert holds(data.draw(values(annotation)))


def test_small_numbers_are_equal_often_and_large_ones_occur() -> None:
    assert find(values(list[int]), lambda found: len(found) == 2 and len(set(found)) == 1)
    assert find(values(int), lambda found: found > 10**8) > 10**8


@given(values(Model))
def test_validators_are_asked(model: Model) -> None:
    assert model.cents % 2 == 0
    assert model.customer


def test_a_class_may_contain_itself() -> None:
    assert find(values(Tree), lambda found: bool(found.branches)).branches


@given(records(Order, cents=st.just(7)))
def test_fields_may_be_given(order: Order) -> None:
    assert order.cents == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: values(complex),
            "no values of <class 'complex'> can be made: give examples of records with",
        ),
        (lambda: values(list[complex]), "no values of <class 'complex'>"),
        (lambda: records(dict), r"records\(dict\): a dict does not say which fields it has"),
        (lambda: records(Order, price=st.just(1)), "no field 'price': choose from customer, at"),
        (lambda: histories(Order, key="who").example(), "no field 'who'"),
        (lambda: histories(Order, key="customer", keys=0).example(), "give at least one key"),
    ],
)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_what_has_no_values_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        make()


# ------------------------------------------------------------------------------------- histories


ORDERS = histories(Order, key="customer", event_time="at", lateness="1 minute", keys=3)


@given(ORDERS)
def test_a_history_has_few_keys(epochs: list[list[Order]]) -> None:
    assert len({order.customer for epoch in epochs for order in epoch}) <= 3


@given(histories(Order, key=("customer", "cents"), keys=[("ada", 1), ("bob", 2)]))
def test_keys_may_be_given(epochs: list[list[Order]]) -> None:
    keys = {(order.customer, order.cents) for epoch in epochs for order in epoch}
    assert keys <= {("ada", 1), ("bob", 2)}


GENERATED = settings(max_examples=2_000, phases=[Phase.generate])


def times(epochs: list[list[Order]]) -> list[dt.datetime]:
    return [order.at for epoch in epochs for order in epoch]


def is_late(epochs: list[list[Order]]) -> bool:
    """Whether a record comes after the watermark has passed it, epoch by epoch."""
    watermark = None
    for epoch in epochs:
        if watermark is not None and any(order.at <= watermark for order in epoch):
            return True
        latest = max([order.at for order in epoch], default=None)
        if latest is not None:
            reached = latest - dt.timedelta(minutes=1)
            watermark = reached if watermark is None else max(watermark, reached)
    return False


@pytest.mark.parametrize(
    "wanted",
    [
        lambda epochs: len(epochs) >= 3 and all(epochs),
        lambda epochs: len(set(times(epochs))) < len(times(epochs)) - 1,
        lambda epochs: times(epochs) != sorted(times(epochs)),
        is_late,
        lambda epochs: len(times(epochs)) > 5 and not is_late(epochs),
        lambda epochs: any(not epoch for epoch in epochs),
    ],
    ids=["epochs", "ties", "out of order", "late", "in time", "an empty epoch"],
)
def test_a_history_has_what_streams_have(wanted: Callable[[list[list[Order]]], bool]) -> None:
    assert wanted(find(ORDERS, wanted, settings=GENERATED))


def test_importing_the_kit_imports_no_hypothesis() -> None:
    code = "import sys, statekit.testing; assert 'hypothesis' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Click(NamedTuple):
    user: str
    at: dt.datetime
    pieces: int


def test_histories_have_values_and_times_that_break_things() -> None:
    distances = [dt.timedelta(minutes=30)]
    made = Generated(Click, ("user",), "at", distances=distances)
    numbers: set[int] = set()
    apart: set[dt.timedelta] = set()
    days: set[dt.date] = set()

    @settings(
        max_examples=1_000,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(histories_of({"clicks": [made]}))
    def collect(history: list[dict[str, list[Click]]]) -> None:
        clicks = [click for epoch in history for click in epoch["clicks"]]
        numbers.update(click.pieces for click in clicks)
        assert abs(sum(click.pieces for click in clicks)) < 2**63
        apart.update(b.at - a.at for a, b in pairwise(clicks))
        days.update(click.at.date() for click in clicks)

    collect()
    assert {0, 2**31, 2**53 + 1, 2**63 - 1} <= numbers
    instant = dt.timedelta(microseconds=1)
    assert {distances[0] - instant, distances[0], distances[0] + instant} <= apart
    assert {dt.date(2024, 2, 29), dt.date(2026, 1, 1), dt.date(2026, 3, 29)} <= days
