"""Several typed outputs of one function, and stateless functions between operators."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.records.output_union import OutputUnion, output_type_of
from statekit.spark.worker.pickling import pickled, unpickled
from statekit.testing import Harness
from tests.support.instants import at


class Order(NamedTuple):
    customer: str
    cents: int


class Total(NamedTuple):
    customer: str
    cents: int


@dataclasses.dataclass
class Alert:
    customer: str
    reasons: list[str]


class Refund(pydantic.BaseModel):
    customer: str
    cents: int


class TimedOrder(NamedTuple):
    customer: str
    at: dt.datetime


class TimedRefund(NamedTuple):
    customer: str
    at: dt.datetime


@sk.process(key="customer")
def watch(order: Order, total: sk.ValueState[int]) -> Iterator[Total | Alert]:
    total.update((total.get() or 0) + order.cents)
    yield Total(order.customer, total.get() or 0)
    if order.cents > 1000:
        yield Alert(order.customer, [f"{order.cents} cents"])


@sk.process(key="customer")
def kinds(event: Total | Alert, seen: sk.ListState[str]) -> Iterator[tuple[str, str]]:
    seen.append(type(event).__name__)
    yield event.customer, " ".join(seen)


@sk.process(key="customer")
def alerts_of(alert: Alert, count: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    count.update((count.get() or 0) + 1)
    alert.reasons.append("changed by this consumer alone")
    yield alert.customer, count.get() or 0


def large(order: Order) -> bool:
    return order.cents >= 100


def halves(order: Order) -> Iterator[Order]:
    yield order._replace(cents=order.cents // 2)
    yield order._replace(cents=order.cents - order.cents // 2)


def refund(order: Order) -> Refund:
    return Refund(customer=order.customer, cents=-order.cents)


ORDERS = [Order("ada", 500), Order("bob", 2000), Order("ada", 3000), Order("bob", 50)]


def run(job: sk.Job, orders: list[Order] | None = None, **options: Any) -> dict[str, list[Any]]:
    done = job.run({"orders": ORDERS if orders is None else orders}, **options)
    return {sink.name: done[sink.name] for sink in job.plan.sinks}


# ----------------------------------------------------------------------------- several outputs


def test_each_class_is_a_stream_and_all_of_them_are_one() -> None:
    job = sk.Job("shop")
    watched = job.source("orders", Order).process(watch)
    watched.sink("all")
    watched.of(Total).sink("totals")
    watched.of(Alert).sink("alerts")
    assert watched.of(Total).name == watched.of(Total).name == "watch.Total"
    outputs = run(job)
    assert [out for out in outputs["all"] if isinstance(out, Total)] == outputs["totals"]
    assert [out for out in outputs["all"] if isinstance(out, Alert)] == outputs["alerts"]
    assert sorted(outputs["totals"]) == [
        Total("ada", 500), Total("ada", 3500), Total("bob", 2000), Total("bob", 2050)
    ]  # fmt: skip
    assert {alert.customer: alert.reasons for alert in outputs["alerts"]} == {
        "ada": ["3000 cents"],
        "bob": ["2000 cents"],
    }


def test_a_function_of_all_classes_gets_them_in_the_order_in_which_they_were_emitted() -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(watch).process(kinds).sink("kinds")
    assert dict(run(job)["kinds"]) == {"ada": "Total Total Alert", "bob": "Total Alert Total"}


def test_consumers_of_one_class_do_not_see_what_another_one_changes() -> None:
    job = sk.Job("shop")
    alerts = job.source("orders", Order).process(watch).of(Alert)
    alerts.process(alerts_of).sink("first")
    alerts.process(alerts_of, name="again").sink("second")
    alerts.sink("alerts")
    outputs = run(job)
    assert outputs["first"] == outputs["second"]
    assert [len(alert.reasons) for alert in outputs["alerts"]] == [1, 1]


def test_one_class_of_a_union_of_streams_is_selected() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    refunds = orders.map(refund)
    orders.union(refunds).of(Refund).sink("refunds")
    orders.process(watch)
    assert orders.union(refunds).of(Order).name == "orders"
    assert [found.cents for found in run(job)["refunds"]] == [-order.cents for order in ORDERS]


def test_a_class_that_is_not_emitted_cannot_be_selected() -> None:
    watched = sk.Job("shop").source("orders", Order).process(watch)
    with pytest.raises(sk.StateTypeError, match=r"of\(Order\).*'watch' has Total \| Alert"):
        watched.of(Order)


def test_an_output_of_another_class_fails_the_epoch() -> None:
    @sk.process(key="customer")
    def wrong(order: Order) -> Iterator[Total | Alert]:
        yield order  # type: ignore[misc]

    job = sk.Job("shop")
    job.source("orders", Order).process(wrong).sink("out")
    match = r"output 0, Order\(.*\), is a Order: emit an instance of just one of Total \| Alert"
    with pytest.raises(sk.ProcessError, match=match):
        run(job)


def test_an_output_that_does_not_fit_its_class_fails_the_epoch_with_its_field() -> None:
    @sk.process(key="customer")
    def wrong(order: Order) -> Iterator[Total | Alert]:
        yield Total(order.customer, "many")  # type: ignore[arg-type]

    job = sk.Job("shop")
    job.source("orders", Order).process(wrong).sink("out")
    with pytest.raises(sk.ProcessError, match=r"does not fit Total: .*cents"):
        run(job)


def another_total() -> Any:
    class Total(NamedTuple):
        other: int

    return Total


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match=r"two types of .* have the name Total"):
        output_type_of(Total | another_total(), where="f, return annotation")


def test_late_records_of_several_types_are_selected_by_class() -> None:
    @sk.process(key="customer", event_time="at")
    def timed(event: TimedOrder | TimedRefund) -> Iterator[str]:
        yield event.customer

    job = sk.Job("late")
    source = job.source("events", TimedOrder, TimedRefund)
    seen = source.process(timed)
    seen.sink("seen")
    seen.late.of(TimedRefund).sink("late-refunds")
    events = [TimedOrder("ada", at(10)), TimedRefund("bob", at(5)), TimedOrder("eve", at(4))]
    done = job.run({"events": events}, epoch_size=1)
    assert done["seen"] == ["ada"]
    assert done["late-refunds"] == [TimedRefund("bob", at(5))]


def test_the_harness_returns_outputs_of_all_classes() -> None:
    outputs = Harness(watch).send(Order("ada", 2000))
    assert outputs == [Total("ada", 2000), Alert("ada", ["2000 cents"])]


@given(st.lists(st.booleans(), max_size=30))
@settings(max_examples=50, deadline=None)
def test_outputs_of_several_types_are_the_columns_of_each_class_in_order(picks: list[bool]) -> None:
    union = output_type_of(Total | Alert, where="f, return annotation")
    assert isinstance(union, OutputUnion)
    outputs = [
        Total(str(n), n) if pick else Alert(str(n), [str(n)]) for n, pick in enumerate(picks)
    ]
    rows = union.to_batch(outputs).to_pylist()
    assert union.stored(outputs) == outputs
    assert rows == [
        {"Total": {"customer": str(n), "cents": n}, "Alert": None}
        if pick
        else {"Total": None, "Alert": {"customer": str(n), "reasons": [str(n)]}}
        for n, pick in enumerate(picks)
    ]


# ----------------------------------------------------------------------- stateless functions


def test_records_are_mapped_filtered_and_multiplied_in_the_order_of_arrival() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.filter(large).flat_map(halves).map(refund).sink("refunds")
    orders.process(watch).sink("watched")
    assert [(found.customer, found.cents) for found in run(job)["refunds"]] == [
        ("ada", -250), ("ada", -250), ("bob", -1000), ("bob", -1000), ("ada", -1500), ("ada", -1500)
    ]  # fmt: skip


def test_a_function_of_several_outputs_yields_streams_of_each_class() -> None:
    def both(order: Order) -> Iterator[Total | Refund]:
        yield Total(*order)
        yield refund(order)

    job = sk.Job("shop")
    orders = job.source("orders", Order)
    found = orders.flat_map(both)
    found.of(Refund).sink("refunds")
    found.of(Total).sink("totals")
    orders.process(watch)
    outputs = run(job)
    assert outputs["totals"] == [Total(*order) for order in ORDERS]
    assert [refund.cents for refund in outputs["refunds"]] == [-order.cents for order in ORDERS]


def test_a_lambda_needs_a_name_and_the_type_of_its_outputs() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    with pytest.raises(sk.StateTypeError, match=r"a lambda has no name.*map\(…, name=…\)"):
        orders.map(lambda order: order, into=Order)
    with pytest.raises(sk.StateTypeError, match=r"type of its outputs is not known.*into=T"):
        orders.map(lambda order: order, name="same")
    same = orders.map(lambda order: order, into=Order, name="same")
    same.filter(lambda order: order.cents > 1000, name="dear").process(watch).sink("out")
    assert len([out for out in run(job)["out"] if isinstance(out, Total)]) == 2


def test_a_function_is_applied_to_each_stream_of_a_union() -> None:
    job = sk.Job("shop")
    orders, more = job.source("orders", Order), job.source("more", Order)
    doubled = orders.union(more).map(lambda order: Total(*order), into=Total, name="totals")
    assert doubled.name == "totals.orders | totals.more"
    doubled.process(summed).sink("out")
    done = job.run({"orders": [Order("ada", 1)], "more": [Order("ada", 2)]})
    assert done["out"] == [("ada", 1), ("ada", 3)]


@sk.process(key="customer")
def summed(total: Total, sum: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    sum.update((sum.get() or 0) + total.cents)
    yield total.customer, sum.get() or 0


def two(order: Order, ctx: sk.Context) -> Order:
    return order


def none(order: Order) -> None: ...


def of_totals(total: Total) -> Total:
    return total


def same(order: Order) -> Order:
    return order


def two_records(order: Order) -> Iterator[bool]:
    yield True


async def later(order: Order) -> Order:
    return order


@pytest.mark.parametrize(
    ("kind", "fn", "said"),
    [
        ("map", two, "must take one argument, the record; it takes order, ctx"),
        ("map", none, "a map emits one record for each"),
        ("map", of_totals, "the function takes Total, and the stream has Order"),
        ("map", later, "give an ordinary function of one record"),
        ("flat_map", refund, "must be Iterator"),
        ("filter", of_totals, "the function takes Total"),
        ("filter", two_records, "a filter keeps the records for which it returns True"),
        ("filter", same, "the function returns Order, and a filter keeps"),
        ("map", 5, "give an ordinary function of one record"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_where_it_is_declared(
    kind: str, fn: Any, said: str
) -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    with pytest.raises(sk.StateTypeError, match=said):
        getattr(orders, kind)(fn)
    assert job.plan.transforms == []


def test_a_function_that_fails_names_its_stream_and_the_record() -> None:
    def inverse(order: Order) -> Order:
        return order._replace(cents=1 // order.cents)

    job = sk.Job("shop")
    job.source("orders", Order).map(inverse).process(watch).sink("out")
    match = (
        r"map 'inverse' failed in epoch 0 with ZeroDivisionError.*Order\(customer='b', cents=0\)"
    )
    with pytest.raises(sk.ProcessError, match=match):
        run(job, [Order("a", 1), Order("b", 0), Order("c", 2)])


def test_a_function_that_raises_stop_iteration_fails_and_does_not_end_the_stream() -> None:
    def stops(order: Order) -> Order:
        raise StopIteration

    job = sk.Job("shop")
    job.source("orders", Order).map(stops).process(watch).sink("out")
    with pytest.raises(sk.ProcessError, match="StopIteration"):
        run(job)


def test_streams_of_functions_have_names_of_their_own() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.filter(large)
    with pytest.raises(sk.StateTypeError, match="same name as stream 'large'"):
        orders.filter(large)
    orders.filter(large, name="large-2")


def test_event_time_follows_the_records_that_a_filter_keeps() -> None:
    @sk.process(key="customer", event_time="at")
    def timed(event: TimedOrder) -> Iterator[str]:
        yield event.customer

    job = sk.Job("timed")
    kept = job.source("events", TimedOrder).filter(lambda e: e.customer != "x", name="kept")
    seen = kept.process(timed)
    seen.sink("seen")
    seen.late.sink("late")
    events = [TimedOrder("x", at(100)), TimedOrder("ada", at(10)), TimedOrder("bob", at(9))]
    done = job.run({"events": events}, epoch_size=1)
    assert (done["seen"], done["late"]) == (["ada"], [TimedOrder("bob", at(9))])


def test_stateless_functions_are_pickled_with_their_types() -> None:
    job = sk.Job("shop")
    job.source("orders", Order).map(lambda order: Total(*order), into=Total, name="totals")
    (transform,) = job.plan.transforms
    function = unpickled(pickled(transform.function))
    assert function.apply([Order("ada", 1)], "totals", 0) == [Total("ada", 1)]
    assert function.output_type.name == "Total"


def test_the_tree_and_the_plan_of_a_job_show_them() -> None:
    job = sk.Job("shop")
    watched = job.source("orders", Order).filter(large).process(watch)
    watched.of(Alert).process(alerts_of).sink("alerts")
    assert str(job).splitlines() == [
        "job shop",
        "└── source orders: Order",
        "    └── filter large → Order",
        "        └── operator watch by customer → Total | Alert",
        "            ├── state total: value[int]",
        "            └── of watch.Alert → Alert",
        "                └── operator alerts_of by customer → tuple[str, int]",
        "                    ├── state count: value[int]",
        "                    └── sink alerts",
    ]
    assert job.explain().splitlines()[1:] == [
        "pass 1, fed by orders",
        "    reads customer, cents of orders, and nothing else",
        "    shuffled once, by the key group of customer",
        "    filter large: in the same tasks as watch",
        "    watch: called for each record",
        "    of watch.Alert: in the same tasks as alerts_of",
        "    alerts_of: called for each record, in the same tasks as watch",
    ]
