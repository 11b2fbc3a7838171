"""Jobs with conditions and computed fields on Spark: the records of one process, and rows that are
dropped before the shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import statekit as sk
from tests.support.spark_runs import Runs

pytestmark = pytest.mark.slow

SCHEMA = "customer string, cents bigint, country string"


class Order(NamedTuple):
    customer: str
    cents: int
    country: str | None


class Checked(pydantic.BaseModel):
    customer: str
    cents: int = pydantic.Field(ge=0)
    country: str | None


class Bill(NamedTuple):
    payer: str
    euros: float
    label: str


class Total(NamedTuple):
    payer: str
    euros: float


ORDERS = [
    Order("abcdef"[n % 6], 37 * n % 5_000, [None, "de", "fr", "us"][n % 4]) for n in range(2_000)
]
COMPUTED: dict[str, Any] = {
    "payer": "customer",
    "euros": sk.col("cents") / 100,
    "label": sk.expr("upper(customer) || COALESCE(country, '?')"),
}


@sk.process(key="payer")
def total(bill: Bill, euros: sk.ValueState[float]) -> Iterator[Total]:
    euros.update((euros.get() or 0.0) + bill.euros)
    yield Total(bill.payer, euros.get() or 0.0)


def job(cls: type[Any] = Order) -> sk.Job:
    made = sk.Job("shop")
    orders = made.source("orders", cls)
    large = orders.filter("cents > 1000 AND (country IN ('de', 'fr') OR country IS NULL)")
    bills = large.select(Bill, **COMPUTED)
    totals = bills.process(total).sink("totals")
    totals.filter(sk.col("euros") > 100, name="rich").sink("rich")
    bills.filter("label LIKE 'A%'", name="of-a").sink("bills")
    return made


@pytest.mark.parametrize("cls", [Order, Checked])
def test_records_are_those_of_a_run_in_one_process(runs: Runs, cls: type[Any]) -> None:
    rows: Any = ORDERS
    frame = runs.spark.createDataFrame(rows, SCHEMA).coalesce(1)
    names = ("totals", "rich", "bills")
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in names}
    runs.start(job(cls), {"orders": frame}, outputs=sinks, parallelism=2)
    expected = job(cls).run({"orders": [order._asdict() for order in ORDERS]})
    for name in names:
        found = sorted(tuple(row.values()) for row in runs.parquet(name))
        assert found == sorted(map(tuple, expected.outputs[name])) != [], name


def test_a_row_for_which_a_condition_fails_ends_the_job(runs: Runs) -> None:
    made = sk.Job("shop")
    good = made.source("orders", Order).filter("10 / (cents - 1000) > 1")
    good.select(Bill, **COMPUTED).process(total).sink("totals")
    rows: Any = [Order("ada", 1000, None)]
    frame = runs.spark.createDataFrame(rows, SCHEMA)
    sinks = {"totals": sk.sinks.parquet(runs.home / "totals")}
    with pytest.raises(sk.ProcessError, match=r"10 / \(cents - 1000\) divides by zero"):
        runs.start(made, {"orders": frame}, outputs=sinks, parallelism=2)


def test_a_source_that_statekit_reads_is_filtered_in_any_runtime(runs: Runs) -> None:
    place = runs.home / "orders"
    place.mkdir()

    def of_file() -> sk.Job:
        made = sk.Job("shop")
        orders = made.source("orders", Order, sk.sources.json_lines(place))
        bills = orders.filter("cents > 1000 AND country IS NOT NULL").select(Bill, **COMPUTED)
        bills.sink("bills", sk.sinks.parquet(runs.home / "bills")).process(total)
        return made

    def write(name: str, orders: list[Order]) -> None:
        lines = (msgspec.json.encode(order._asdict()) + b"\n" for order in orders)
        (place / name).write_bytes(b"".join(lines))

    write("1.json", ORDERS[:700])
    query = of_file().start(runs.spark, checkpoint=runs.checkpoint, trigger={"availableNow": True})
    query.await_termination()
    write("2.json", ORDERS[700:])
    of_file().run(checkpoint=runs.checkpoint)
    right = [order for order in ORDERS if order.cents > 1000 and order.country is not None]
    wanted = [
        (order.customer, order.cents / 100, order.customer.upper() + (order.country or ""))
        for order in right
    ]
    assert sorted(tuple(row.values()) for row in runs.parquet("bills")) == sorted(wanted)
    assert sum(runs.state("total", "euros").values()) == pytest.approx(
        sum(order.cents for order in right) / 100
    )
