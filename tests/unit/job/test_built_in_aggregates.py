"""Known aggregates, kept without a call per record, are what plain Python makes of the records."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.testing import Harness

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Sale(NamedTuple):
    shop: str | None
    number: int
    cents: int
    euros: decimal.Decimal | None
    weight: float | None
    name: str | None
    at: dt.datetime
    day: dt.date
    took: dt.timedelta


def sale(shop: str | None = "a", number: int = 1, **fields: Any) -> Sale:
    euros, took = decimal.Decimal("1.5"), dt.timedelta(seconds=3)
    made = Sale(shop, number, 5, euros, 2.5, "x", NOON, NOON.date(), took)
    return made._replace(**fields)


class Order(pydantic.BaseModel):
    shop: str
    cents: int

    @pydantic.field_validator("shop")
    @classmethod
    def lower(cls, shop: str) -> str:
        return shop.lower()


AGGREGATES: dict[str, sk.FieldAggregate] = {
    "sales": sk.Count(),
    "named": sk.Count("name"),
    "cents": sk.Sum("cents"),
    "euros": sk.Sum("euros"),
    "weight": sk.Sum("weight"),
    "took": sk.Sum("took"),
    "lightest": sk.Min("weight"),
    "heaviest": sk.Max("weight"),
    "first_name": sk.Min("name"),
    "last": sk.Max("at"),
    "first_day": sk.Min("day"),
    "longest": sk.Max("took"),
    "mean_cents": sk.Mean("cents"),
    "mean_euros": sk.Mean("euros"),
    "mean_took": sk.Mean("took"),
}


def stream(*key: str, **aggregates: sk.FieldAggregate) -> sk.Stream[Any]:
    aggregate: Any = sk.Job("shop").source("sales", Sale).aggregate
    made: sk.Stream[Any] = aggregate(key=key or "shop", **aggregates or AGGREGATES)
    return made


def total(values: list[Any]) -> Any:
    return sum(values[1:], values[0]) if values else None


def mean(values: list[Any]) -> Any:
    if not values or not isinstance(values[0], decimal.Decimal):
        return total(values) / len(values) if values else None
    with decimal.localcontext(prec=76):
        return round(total(values) / len(values), 18)


def model(sales: list[Sale]) -> dict[str, Any]:
    def of(field: str) -> list[Any]:
        return [value for sale in sales if (value := getattr(sale, field)) is not None]

    weights = [weight for weight in of("weight") if not math.isnan(weight)] or of("weight")
    return {
        "sales": len(sales),
        "named": len(of("name")),
        "cents": total(of("cents")),
        "euros": total(of("euros")),
        "weight": total(of("weight")),
        "took": total(of("took")),
        "lightest": min(weights, default=None),
        "heaviest": max(weights, default=None),
        "first_name": min(of("name"), default=None),
        "last": max(of("at")),
        "first_day": min(of("day")),
        "longest": max(of("took")),
        "mean_cents": mean(of("cents")),
        "mean_euros": mean(of("euros")),
        "mean_took": mean(of("took")),
    }


def same(found: Any, expected: Any) -> bool:
    both_nan = found != found and expected != expected
    return both_nan or (found == expected and type(found) is type(expected))


# Halves are added up exactly, in whatever order.
WEIGHTS = st.sampled_from([0.0, 0.5, -1.5, 2.0**40, math.inf, math.nan]) | st.none()
SALES = st.builds(
    sale,
    shop=st.sampled_from(["a", "b", "", None]),
    number=st.integers(0, 1),
    cents=st.integers(-(2**55), 2**55) | st.integers(0, 3),
    euros=st.decimals(-1000, 1000, places=4) | st.none(),
    weight=WEIGHTS,
    name=st.sampled_from(["", "a", "ä", "zz"]) | st.none(),
    at=st.datetimes(dt.datetime(1969, 1, 1), dt.datetime(2040, 1, 1), timezones=st.just(dt.UTC)),
    day=st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    took=st.timedeltas(dt.timedelta(days=-3), dt.timedelta(days=3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SALES, max_size=12), max_size=4), st.sampled_from([1, 3]))
def test_results_and_states_are_those_of_plain_python(
    batches: list[list[Sale]], parallelism: int
) -> None:
    harness = Harness(stream("shop", "number"), parallelism=parallelism, key_groups=4)
    held: dict[tuple[Any, int], list[Sale]] = {}
    for batch in batches:
        touched = dict.fromkeys((sale.shop, sale.number) for sale in batch)
        for record in batch:
            held.setdefault((record.shop, record.number), []).append(record)
        results = {(r.shop, r.number): r for r in harness.send(*batch)}
        assert results.keys() == touched.keys()
        for key, result in results.items():
            expected = model(held[key])
            assert all(same(getattr(result, n), value) for n, value in expected.items()), expected
    for key, sales in held.items():
        for name, value in model(sales).items():
            assert same(harness.state(name, key), value)


def test_each_key_puts_out_one_result_per_epoch_and_all_records_count() -> None:
    harness = Harness(stream(cents=sk.Sum("cents")))
    assert harness.send(sale("a"), sale("b"), sale("a")) == [("a", 10), ("b", 5)]
    assert harness.send(sale("b")) == [("b", 10)]
    assert harness.send() == []


def test_the_number_of_records_is_that_before_they_were_combined(tmp_path: Path) -> None:
    job = sk.Job("shop")
    job.source("sales", Sale).aggregate(key="shop", cents=sk.Sum("cents")).sink("sums")
    run = job.run({"sales": [sale("a")] * 7}, checkpoint=tmp_path)
    assert run["sums"] == [("a", 35)]
    repository = Repository(tmp_path)
    (operator,) = repository.manifest(0).operators.values()
    assert operator.records_by_input == {"sales": 7}


@pytest.mark.parametrize(
    ("held", "sent"), [(2**62, [2**62]), (0, [2**62, 2**62]), (-(2**63), [-1])]
)
def test_a_sum_that_is_too_large_fails_and_changes_nothing(held: int, sent: list[int]) -> None:
    harness = Harness(stream(cents=sk.Sum("cents")))
    harness.send(sale(cents=held))
    text = r"sum of int64 values, that of the key shop='a', does not fit|at key 'a' .*cannot hold|"
    with pytest.raises(sk.StatekitError, match=text + "output 0, .*does not fit"):
        harness.send(sale("b"), *(sale(cents=cents) for cents in sent))
    assert harness.state("cents", "a") == held


def test_large_values_that_cancel_out_are_summed_exactly() -> None:
    harness = Harness(stream(cents=sk.Sum("cents")))
    cents = [2**62, 2**62, -(2**62), -(2**62), 3]
    assert harness.send(*(sale(cents=value) for value in cents)) == [("a", 3)]


def test_decimals_of_as_many_digits_as_a_column_has_are_summed_exactly() -> None:
    harness = Harness(stream(euros=sk.Sum("euros"), mean=sk.Mean("euros")))
    many = decimal.Decimal("12345678901234567890.123456789012345678")
    for count in (1, 2, 3):
        with decimal.localcontext(prec=38):
            expected = many * count
        assert harness.send(sale(euros=many)) == [("a", expected, many)]


def test_a_record_with_none_where_its_type_has_none_of_it_fails() -> None:
    harness = Harness(stream(cents=sk.Sum("cents")))
    with pytest.raises(sk.ProcessError, match="cents"):
        harness.send(sale(cents=None))


def test_validators_of_records_see_them_before_they_are_combined() -> None:
    source = sk.Job("shop").source("orders", Order)
    harness = Harness(source.aggregate(key="shop", orders=sk.Count(), cents=sk.Sum("cents")))
    assert harness.send({"shop": "A", "cents": 2}, {"shop": "a", "cents": 3}) == [("a", 2, 5)]


def test_aggregates_may_have_any_name() -> None:
    names = ("keys", "rows", "context", "number", "states")
    made = stream(**dict.fromkeys(names, sk.Count()))
    assert Harness(made).send(sale()) == [("a", 1, 1, 1, 1, 1)]


def test_results_are_of_a_class_of_the_users() -> None:
    class Of(NamedTuple):
        cents: int
        shop: str | None

    source = sk.Job("shop").source("sales", Sale)
    made = source.aggregate(key="shop", cents=sk.Sum("cents"), number=sk.Count(), into=Of)
    assert Harness(made).send(sale()) == [Of(5, "a")]


def test_aggregates_are_kept_for_their_ttl() -> None:
    source = sk.Job("shop").source("sales", Sale)
    harness = Harness(source.aggregate(key="shop", number=sk.Count(), ttl=sk.TTL("1 hour")))
    harness.send(sale())
    harness.advance_processing_time(dt.datetime.fromtimestamp(7200, dt.UTC))
    assert harness.send(sale()) == [("a", 1)]


def test_an_aggregate_that_is_added_later_begins_with_nothing(tmp_path: Path) -> None:
    def run(sent: int, **aggregates: sk.FieldAggregate) -> list[Any]:
        job = sk.Job("shop")
        source: Any = job.source("sales", Sale)
        source.aggregate(key="shop", **aggregates).sink("out")
        return job.run({"sales": [sale()] * sent}, checkpoint=tmp_path)["out"]

    assert run(1, cents=sk.Sum("cents")) == [("a", 5)]
    assert run(2, cents=sk.Sum("cents"), sales=sk.Count()) == [("a", 10, 1)]
    with pytest.raises(sk.StateSchemaError, match="cents: Sum"):
        run(3, cents=sk.Max("cents"), sales=sk.Count())


@pytest.mark.parametrize(
    ("key", "aggregates", "message"),
    [
        ("shop", {}, "name an aggregate"),
        ("shop", {"cents": "sum"}, "give Count"),
        ("shop", {"shop": sk.Count()}, "two fields"),
        ("town", {"n": sk.Count()}, "'town' is not a field of Sale"),
        ("shop", {"n": sk.Sum("name")}, r"sum\('name'\): the field is str"),
        ("shop", {"n": sk.Mean("at")}, r"mean\('at'\)"),
        ("shop", {"n": sk.Max("price")}, "'price' is not a field"),
        ("weight", {"n": sk.Count()}, "float"),
    ],
)
def test_invalid_arguments_are_refused(key: str, aggregates: Any, message: str) -> None:
    source: Any = sk.Job("shop").source("sales", Sale)
    with pytest.raises(sk.StateTypeError, match=message):
        source.aggregate(key=key, **aggregates)


def test_a_union_and_plain_dicts_are_refused() -> None:
    job = sk.Job("shop")
    both = job.source("sales", Sale).union(job.source("more", Sale))
    with pytest.raises(sk.StateTypeError, match="union"):
        both.aggregate(key="shop", n=sk.Count())
    with pytest.raises(sk.StateTypeError, match="a dict has no declared fields"):
        job.source("rows", dict).aggregate(key="shop", n=sk.Count())


@pytest.mark.parametrize("add", ["aggregate", "count", "last", "top", "distinct"])
def test_a_ttl_of_another_type_is_refused_by_every_operator_per_key(add: str) -> None:
    orders = sk.Job("shop").source("orders", Order)
    declare: dict[str, Any] = {
        "aggregate": lambda ttl: orders.aggregate(key="shop", n=sk.Count(), ttl=ttl),
        "count": lambda ttl: orders.count(on="shop", ttl=ttl),
        "last": lambda ttl: orders.last(on="shop", by="cents", ttl=ttl),
        "top": lambda ttl: orders.top(2, by="cents", on="shop", ttl=ttl),
        "distinct": lambda ttl: orders.distinct("shop", ttl=ttl),
    }
    with pytest.raises(sk.StateTypeError, match=r"ttl=.30 days.: give a TTL, as in ttl=sk.TTL\("):
        declare[add]("30 days")
