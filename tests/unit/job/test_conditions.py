"""`filter` by a condition and `select` with computed fields."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest

import statekit as sk
from statekit.spark.worker.pickling import pickled, unpickled
from statekit.testing import check


class Order(NamedTuple):
    customer: str
    cents: int
    country: str | None = None


class Bill(NamedTuple):
    payer: str
    euros: float


class Return(NamedTuple):
    customer: str


ORDERS = [
    Order("ada", 5000, "de"),
    Order("bob", 200, "fr"),
    Order("cy", 3000),
    Order("di", 0, "us"),
]


def read_by_a_function(stream: sk.Stream[Any], cls: Any) -> None:
    """Let an operator read a stream, as a job without one has no state."""

    def reads(record: Any) -> None: ...

    reads.__annotations__ |= {"record": cls, "return": None}
    stream.process(sk.process()(reads))


def kept(condition: Any, records: list[Any] | None = None, cls: Any = Order) -> list[Any]:
    """The records that a filter keeps."""
    job = sk.Job("shop")
    found = job.source("orders", cls).filter(condition).sink("out")
    read_by_a_function(found, cls)
    return job.run({"orders": ORDERS if records is None else records})["out"]


def test_a_filter_keeps_the_records_for_which_a_condition_is_true() -> None:
    assert kept("cents > 1000 AND country IN ('de', 'fr')") == [ORDERS[0]]
    assert kept((sk.col("cents") > 1000) & (sk.col("country") == "de")) == [ORDERS[0]]
    assert kept("country <> 'de'") == [ORDERS[1], ORDERS[3]]
    assert kept("NOT (country = 'de') OR country IS NULL") == ORDERS[1:]


def test_a_condition_names_its_stream_after_the_filtered_one() -> None:
    orders = sk.Job("shop").source("orders", Order)
    assert orders.filter("cents > 1").name == "orders.filtered"
    assert orders.filter(sk.col("cents") > 1, name="large").name == "large"
    with pytest.raises(sk.StateTypeError, match="Choose another name"):
        orders.filter("cents > 2")


def test_each_stream_of_a_union_is_filtered() -> None:
    job = sk.Job("shop")
    first, second = job.source("first", Order), job.source("second", Order)
    both = first.union(second).filter("cents > 1000")
    both.process(count).sink("counts")
    run = job.run({"first": ORDERS, "second": ORDERS[:2]})
    assert sorted(run.outputs["counts"]) == [("ada", 1), ("ada", 2), ("cy", 1)]


@sk.process(key="customer")
def count(order: Order, orders: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    orders.update((orders.get() or 0) + 1)
    yield order.customer, orders.get() or 0


@sk.process(key="customer")
def both_types(order: Order) -> Iterator[Order | Return]:
    yield order
    yield Return(order.customer)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("cent > 1", "filter\\(cent > 1\\): in cent: Order has no field 'cent'"),
        ("cents > 'a'", "cents is BIGINT, 'a' is VARCHAR"),
        ("cents", "cents is BIGINT, and a filter needs a condition"),
        (sk.col("cents") + 1, "cents \\+ 1 is BIGINT, and a filter needs a condition"),
    ],
)
def test_a_condition_is_checked_when_it_is_declared(condition: Any, why: str) -> None:
    with pytest.raises(sk.StateTypeError, match=why):
        kept(condition)


def test_a_condition_needs_the_fields_of_one_type() -> None:
    job = sk.Job("shop")
    with pytest.raises(sk.StateTypeError, match="a dict does not say which fields it has"):
        job.source("rows", dict).filter("cents > 1")
    stream = job.source("orders", Order).process(both_types)
    with pytest.raises(sk.StateTypeError, match="select one with of"):
        stream.filter("customer = 'ada'")


def test_a_record_for_which_a_condition_fails_is_named() -> None:
    with pytest.raises(sk.ProcessError, match=r"divides by zero.*record was Order.*'di'"):
        kept("1000 / cents > 1")


def selected(into: Any, records: Any = tuple(ORDERS), taken: Any = Order, **fields: Any) -> Any:
    """The records that a select makes."""
    job = sk.Job("shop")
    read_by_a_function(job.source("orders", taken).select(into, **fields).sink("out"), into)
    return job.run({"orders": records})["out"]


def test_fields_are_computed() -> None:
    euros = [50.0, 2.0, 30.0, 0.0]
    for given in (sk.col("cents") / 100, sk.expr("cents / 100")):
        bills = selected(Bill, payer="customer", euros=given)
        assert bills == [Bill(of.customer, each) for of, each in zip(ORDERS, euros, strict=True)]


def test_an_int_becomes_a_float_or_a_decimal_that_holds_it() -> None:
    class Sum(NamedTuple):
        euros: float
        exact: decimal.Decimal

    assert selected(Sum, euros=sk.col("cents"), exact=sk.expr("CAST(cents AS DECIMAL(20, 0))")) == [
        Sum(float(order.cents), decimal.Decimal(order.cents)) for order in ORDERS
    ]
    (first, *_) = selected(Sum, euros=sk.col("cents"), exact=sk.col("cents"))
    assert type(first.euros) is float


class Labelled(pydantic.BaseModel):
    label: str = pydantic.Field(max_length=5)


class Exact(NamedTuple):
    euros: Annotated[decimal.Decimal, sk.Decimals(4, 2)]


class Land(NamedTuple):
    country: str


class Choice(NamedTuple):
    country: Literal["de", "fr"]


class Since(NamedTuple):
    at: dt.datetime


@pytest.mark.parametrize(
    ("into", "fields", "why"),
    [
        (Bill, {"euros": sk.col("customer")}, "Bill.euros is float, and customer is VARCHAR"),
        (Land, {"country": sk.expr("country || '!'")}, "may be NULL: give it a value"),
        (Choice, {"country": sk.expr("'de'")}, "Choice.country is Literal.* and 'de' is VARCHAR"),
        (Exact, {"euros": sk.col("cents")}, "Exact.euros is .*, and cents is BIGINT"),
        (Since, {"at": sk.col("cents")}, "Since.at is datetime, and cents is BIGINT"),
        (Bill, {"euros": sk.col("cent") / 100}, "Order has no field 'cent'"),
        (Bill, {"euros": "cents / 100"}, "or give an expression such as euros=sk.expr"),
    ],
)
def test_a_computed_field_is_checked_when_it_is_declared(into: Any, fields: Any, why: str) -> None:
    given = {"payer": "customer", **fields} if into is Bill else fields
    with pytest.raises(sk.StateTypeError, match=why):
        selected(into, **given)


def test_a_null_is_replaced_by_coalesce() -> None:
    lands = selected(Land, country=sk.expr("COALESCE(country, '?')"))
    assert [land.country for land in lands] == ["de", "fr", "?", "us"]


def test_a_class_that_checks_its_values_gets_them() -> None:
    label = sk.expr("upper(customer)")
    assert selected(Labelled, label=label)[0] == Labelled(label="ADA")
    with pytest.raises(sk.ProcessError, match="at most 5 characters"):
        selected(Labelled, label=sk.expr("customer || ' and others'"))


def test_columns_are_enough_unless_a_class_changes_values() -> None:
    job = sk.Job("shop")
    orders, models = job.source("orders", Order), job.source("models", Labelled)
    plain: list[sk.Stream[Any]] = [
        orders.filter("cents > 1"),
        orders.select(Bill, payer="customer", euros=sk.col("cents")),
    ]
    checked: list[sk.Stream[Any]] = [
        models.filter("label = 'a'"),
        models.select(Land, country=sk.col("label")),
    ]
    of_columns = {each.name: each.function.selects_columns for each in job.plan.transforms}
    assert all(of_columns[stream.name] for stream in plain)
    assert not any(of_columns[stream.name] for stream in checked)
    for transform in job.plan.transforms:
        again = unpickled(pickled(transform)).function
        assert again.selects_columns is transform.function.selects_columns


def test_the_event_time_of_a_computed_field_has_no_field_of_the_source() -> None:
    class Click(NamedTuple):
        ad: str
        at: dt.datetime

    job = sk.Job("ads")
    clicks = job.source("clicks", Click)
    later = clicks.select(Click, at=sk.expr("at + INTERVAL '1' HOUR"))
    windows = later.window(sk.tumbling("1 hour"), key="ad", event_time="at")
    windows.aggregate(clicks=sk.Count()).sink("hourly")
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    run = job.run({"clicks": [Click("a", noon), Click("a", noon)]})
    (found,) = run.outputs["hourly"]
    assert (found.start, found.clicks) == (noon + dt.timedelta(hours=1), 2)


def doubled(order: Order) -> Order:
    return order._replace(cents=2 * order.cents)


def test_conditions_run_before_the_shuffle_or_in_the_tasks_of_an_operator() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    large = orders.filter("cents > 1", name="large").filter("cents > 2", name="larger")
    large.map(doubled).process(both_types, name="first").of(Order).filter(
        "cents > 5", name="behind"
    ).process(count).sink("counts")
    # A function makes the records of this one: the tasks that call it filter them.
    orders.map(doubled, name="twice").filter("cents > 3", name="mapped").process(
        count, name="second"
    ).sink("others")
    plan = job.explain()
    for name in ("large", "larger"):
        assert f"filter {name}: over the rows of" in plan
    assert "filter behind: in the same tasks as" in plan
    assert "filter mapped: in the same tasks as second" in plan


@pytest.mark.slow
def test_the_checks_of_a_job_compare_conditions_with_their_model() -> None:
    job = sk.Job("shop")
    large = job.source("orders", Order).filter("cents > 1000 OR country = 'de'", name="large")
    large.process(count).sink("counts")
    large.select(Bill, payer="customer", euros=sk.expr("cents % 1000 / 4")).sink("bills")
    assert check(job, examples=20).properties[0].histories
