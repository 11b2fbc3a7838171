"""What `check` cannot use is refused, and a check that checks nothing is no pass."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import importlib
import ipaddress
import math
import re
import sys
import threading
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import strategies as st

import statekit as sk
from statekit.testing import check
from statekit.testing.checks.search import without_others
from statekit.testing.runs.source_records import History
from statekit.testing.written_test import CodeWriter


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


def two_sources() -> sk.Job:
    job = sk.Job("shop")
    orders, more = job.source("orders", Order), job.source("more", Order)
    orders.union(more).process(spent).sink("out")
    return job


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holds": "errors"}, r"give a list of properties, as holds=\['errors'\]"),
        ({"holds": 5}, "give a list of properties"),
        ({"holds": []}, "names no property"),
        (
            {"holds": {"restarts": 3}},
            r"'restarts': 3}: Input should be a valid set. Give what a fai",
        ),
        ({"holds": {"parallelism": 0}}, r"greater than 0. Give .* or holds=\['parallelism'\]"),
        ({"holds": {"epochs": [-1]}}, "greater than or equal to 0"),
        ({"holds": {"faults": ["fail"]}}, "instance of Fault"),
        ({"excused": ["repeats"]}, "give a dict with a reason"),
        ({"excused": {"repeats": None}}, "say why, in a sentence"),
        ({"depth": ["quick"]}, "use one of quick, normal, deep"),
        ({"history": 5}, "give a list of epochs"),
        ({"history": [Order("a", 1)]}, "give a list of epochs"),
        ({"history": [{"nowhere": []}]}, "names 'nowhere': the sources"),
        ({"history": [[1]]}, "history= has 1: "),
        ({"events": []}, "at least one record"),
        ({"events": 5}, "give a list of records"),
        ({"events": Order}, "give a list of records"),
        ({"events": Order("a", 1)}, "give a list of records"),
        ({"events": [1]}, r"events= has 1: "),
        ({"events": st.integers()}, r"events= has 0: "),
        ({"events": st.nothing()}, "no records can be drawn"),
        ({"events": st.integers().filter(lambda n: False)}, "have 0 records together"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        check(spent, **{"depth": "quick", **options})


def test_examples_for_several_sources_are_given_by_name() -> None:
    with pytest.raises(sk.StateTypeError, match=r"give a dict, as events=\{'orders'"):
        check(two_sources(), events=[Order("a", 1)])


class Strict(pydantic.BaseModel):
    customer: str

    @pydantic.field_validator("customer")
    @classmethod
    def is_known(cls, customer: str) -> str:
        if customer[::-1] != "ecalevol ada":  # no constant of the code is such a customer
            raise ValueError("who is that?")
        return customer


@sk.process(key="customer")
def never_called(record: Strict) -> Iterator[int]:
    raise ValueError("nobody sees this")


def test_a_check_without_records_is_no_pass() -> None:
    with pytest.raises(sk.StateTypeError, match=r"nothing is checked: the class refuses most"):
        check(never_called, depth="quick")


LOCK = threading.Lock()


def test_an_object_that_cannot_be_sent_is_a_difference_between_processes() -> None:
    @sk.process(key="customer")
    def locked(order: Order, lock: sk.ValueState[int]) -> Iterator[int]:
        with held:
            yield order.cents

    held = LOCK
    with pytest.raises(AssertionError, match="cannot be sent to another process, as Spark does"):
        check(locked, holds=["processes"])


class Color(enum.Enum):
    RED = "r"


class Flags(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Made:
    color: Color
    hidden: int = dataclasses.field(default=1, repr=False)
    derived: int = dataclasses.field(default=2, init=False)


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")


class AnyAlias(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias="a b")


class Struct(msgspec.Struct):
    color: Color
    price: decimal.Decimal
    id: uuid.UUID


@pytest.mark.parametrize(
    "value",
    [
        Order("a", 1),
        Made(Color.RED, 7),
        Aliased(no=5),
        Struct(Color.RED, decimal.Decimal("1.50"), uuid.UUID(int=7)),
        AnyAlias.model_validate({"a b": 5}),
        decimal.Decimal("1.50"),
        uuid.UUID(int=7),
        {"a": [Color.RED, {1}, frozenset({2}), (3,), set()]},
        b"bytes",
        None,
        Flags.READ | Flags.WRITE,
        [math.inf, -math.inf],
        ipaddress.IPv4Address("10.0.0.1"),
        datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_written_as_python_that_makes_them(value: Any) -> None:
    names = {**globals(), "IPv4Address": ipaddress.IPv4Address}
    assert eval(CodeWriter().source_of(value), names) == value  # noqa: S307 - that is what is tested


class Priced(NamedTuple):
    customer: str
    price: decimal.Decimal
    color: Color
    id: uuid.UUID


def test_a_printed_test_of_decimals_enums_and_uuids_runs() -> None:
    with pytest.raises(AssertionError, match="too dear") as caught:
        check(sk.process(key="customer")(_dear))
    text = str(caught.value).split("This test runs it again:")[1].split("If this is intended")[0]
    names = {**globals(), "_dear": sk.process(key="customer")(_dear)}
    exec(re.sub(r"^    ", "", text, flags=re.MULTILINE), names)
    with pytest.raises(AssertionError, match="'errors' does not hold"):
        names["test__dear_errors"]()


def _dear(order: Priced, seen: sk.ValueState[int]) -> Iterator[int]:
    if order.price > 3 and order.color is Color.RED:
        raise ValueError("too dear")
    yield 1


SHOP = """
import enum
from collections.abc import Iterator
from typing import NamedTuple
import statekit as sk

class Order(NamedTuple):
    class Color(enum.Enum):
        RED = 1
    customer: str
    color: Color

@sk.process(key="customer")
def refused(order: Order) -> Iterator[int]:
    raise ValueError("never")
"""


def test_a_printed_test_imports_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("some_shop")
    with pytest.raises(AssertionError, match="never") as caught:
        check(shop.refused, events=[shop.Order("ada", shop.Order.Color.RED)])
    assert "from some_shop import Order, refused\n" in str(caught.value)
    text = str(caught.value).split("This test runs it again:")[1].split("If this is intended")[0]
    names: dict[str, Any] = {}
    exec(re.sub(r"^    ", "", text, flags=re.MULTILINE), names)
    with pytest.raises(AssertionError, match="'errors' does not hold"):
        names["test_refused_errors"]()


def test_records_that_matter_only_together_are_left_out_together() -> None:
    """With an odd number of orders, it does not fail: none can be left out alone."""

    def fails(history: History, _: None) -> bool:
        numbers = [number for epoch in history for number in epoch["orders"]]
        return 7 in numbers and len(numbers) % 2 == 0

    (epoch,), _ = without_others([{"orders": [*range(10, 35), 7]}], None, fails)
    assert len(epoch["orders"]) == 2


def test_a_crash_stays_before_its_epoch_when_an_epoch_is_left_out() -> None:
    """An epoch without records would be shown otherwise, since the crash is in the epoch 2."""

    def fails(history: History, before: set[int]) -> bool:
        return any(0 < number < len(history) and history[number]["orders"] for number in before)

    history: History = [{"orders": []}, {"orders": [1]}, {"orders": [2]}, {"orders": [3]}]
    assert without_others(history, {2}, fails) == ([{"orders": []}, {"orders": [2]}], {1})


SHOP_WITH_JOB = (
    SHOP
    + """
def never(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    raise ValueError("never")

as_called = sk.process(key="customer")(never)
shop = sk.Job("shop")
_ = shop.source("orders", Order).process(refused).sink("out")
is_right = lambda orders, emitted: True
"""
)


def printed(given: Any, **options: Any) -> str:
    """Return the test that a failed check prints."""
    with pytest.raises(AssertionError) as caught:
        check(given, depth="quick", **options)
    return str(caught.value).split("This test runs it again:")[1].split("If this is intended")[0]


@pytest.fixture
def job_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "job_shop.py").write_text(SHOP_WITH_JOB)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("job_shop")
    del sys.modules["job_shop"]


def test_a_printed_test_imports_jobs_and_functions_by_the_names_of_their_module(
    job_shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "shop", job_shop.shop)  # as after an import of it
    assert "from job_shop import Order, shop\n" in printed(job_shop.shop)
    assert "from job_shop import Order, as_called\n" in printed(job_shop.as_called)


def test_a_printed_test_says_which_names_its_file_needs() -> None:
    def never(orders: list[Any], emitted: list[Any]) -> bool:
        return not orders

    text = printed(spent_of_decimals, invariant=never, holds=["invariant"])
    assert "# For a file that has Color, Priced, never, spent_of_decimals.\n" in text
    text = printed(spent_of_decimals, invariant=lambda *_: False, holds=["invariant"])
    assert "invariant=function" in text


@sk.process(key="customer")
def spent_of_decimals(order: Priced, total: sk.ValueState[decimal.Decimal]) -> Iterator[int]:
    yield 1


def test_a_job_without_operators_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="job 'empty' has no operator"):
        check(sk.Job("empty"))


JOB = two_sources()


def test_the_printed_test_names_what_the_caller_calls_it() -> None:
    with pytest.raises(AssertionError, match=r"check\(JOB, excused="):
        check(
            JOB, holds=["errors"], events={"orders": [Order("a", 2**70)], "more": [Order("a", 1)]}
        )


class Nested(msgspec.Struct):
    name: str
    parts: list[Nested] = []


@dataclasses.dataclass
class Positive:
    name: str
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


@sk.process(key="name")
def of_nested(record: Nested, seen: sk.ValueState[int]) -> Iterator[int]:
    yield len(record.parts)


@sk.process(key="name")
def of_positive(record: Positive, seen: sk.ValueState[int]) -> Iterator[int]:
    yield record.number


@pytest.mark.parametrize("given", [of_nested, of_positive], ids=repr)
def test_records_that_contain_themselves_or_refuse_values_are_made(given: Any) -> None:
    check(given, holds=["repeats", "disk"], depth="quick")


class Opened(NamedTuple):
    customer: str
    at: datetime.time


def test_the_field_whose_values_cannot_be_made_is_named() -> None:
    @sk.process(key="customer")
    def opened(record: Opened) -> Iterator[int]:
        yield 1

    with pytest.raises(
        sk.StateTypeError, match=r"Opened.at: no values of .*give examples of records"
    ):
        check(opened)
