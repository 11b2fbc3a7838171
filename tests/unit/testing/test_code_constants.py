"""Histories of checks have the numbers, texts and durations that the code of functions has."""

from __future__ import annotations

import datetime as dt
import types
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, cast

import pydantic
import pytest
from hypothesis import find

import statekit as sk
from statekit.testing import check
from statekit.testing.drivers.code_constants import constants_of
from statekit.testing.strategies import values


class Payment(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int
    rate: float
    reason: str


BONUS = {"paid back by the shop": 4_711}
QUARTER = dt.timedelta(minutes=23)
LETTERS = {"z", "b", "y", "a"}


def bonus_of(payment: Payment) -> int:
    return BONUS.get(payment.reason, 0)


@sk.process(key="customer")
def text_of_a_helper(payment: Payment) -> Iterator[int]:
    yield 100 // (bonus_of(payment) - 4_711)


@sk.process(key="customer")
def number_in_the_code(payment: Payment) -> Iterator[float]:
    yield 1 / (payment.cents - 73_021)


@sk.process(key="customer")
def number_next_to_one_in_the_code(payment: Payment) -> Iterator[float]:
    yield 1 / max(payment.cents - 73_021, 0) if payment.cents in range(73_020, 73_022) else 0.0


@sk.process(key="customer")
def float_in_the_code(payment: Payment) -> Iterator[float]:
    yield 1 / (payment.rate - 1_234.5)


@sk.process(key="customer")
def key_in_the_code(payment: Payment) -> Iterator[float]:
    yield 1 / (payment.customer != "internal-account")


@sk.process(key="customer")
def duration_of_the_module(payment: Payment, last: sk.ValueState[dt.datetime]) -> Iterator[float]:
    before = last.get()
    last.update(payment.at)
    yield 1.0 if before is None else 1 / ((payment.at - before) / QUARTER - 1)


def in_closure() -> Any:
    limit = 88_123

    @sk.process(key="customer")
    def number_of_a_closure(payment: Payment) -> Iterator[float]:
        yield 1 / (payment.cents - limit)

    return number_of_a_closure


FAILING = [
    *(text_of_a_helper, number_in_the_code, number_next_to_one_in_the_code, float_in_the_code),
    *(key_in_the_code, in_closure()),
]


@pytest.mark.parametrize("given", FAILING, ids=lambda given: given.name)
def test_a_record_has_a_constant_of_the_code(given: Any) -> None:
    with pytest.raises(AssertionError, match="'errors' does not hold"):
        check(given, holds=["errors"], depth="quick")


def test_two_records_are_a_duration_of_the_module_apart() -> None:
    in_time = sk.process(key="customer", event_time="at")(duration_of_the_module.fn)
    with pytest.raises(AssertionError, match="'errors' does not hold"):
        check(in_time, holds=["errors"], depth="normal")


def test_constants_outside_of_the_limits_of_a_field_do_not_occur() -> None:
    limited: Any = values(Annotated[int, pydantic.Field(le=100)], constants=[7_000, 99])
    assert find(limited, lambda number: number > 90) <= 100
    short: Any = values(Annotated[str, pydantic.Field(max_length=3)], constants=["opened", "end"])
    assert find(short, lambda text: text == "end") == "end"


def test_long_texts_and_what_others_use_are_no_constants() -> None:
    def documented(number: int) -> str:
        """Return a text that says how large a number is, in so many words."""
        return "large" if number > 12 else "small"

    assert constants_of([cast("types.FunctionType", documented)]) == [12, "large", "small"]


def test_elements_of_sets_have_the_same_order_in_each_process() -> None:
    def is_known(text: str) -> bool:
        return text in LETTERS

    assert constants_of([cast("types.FunctionType", is_known)]) == ["a", "b", "y", "z"]
