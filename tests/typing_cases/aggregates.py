"""Known aggregates: which calls fit, and what comes out of them."""

from typing import NamedTuple

import statekit as sk


class Order(NamedTuple):
    customer: str
    cents: int


class Customer(NamedTuple):
    customer: str
    total: int


@sk.process(key="customer")
def rich(customer: Customer, most: sk.ValueState[int]) -> None:
    most.update(customer.total)


@sk.process(key="customer")
def raw(order: Order) -> None: ...


orders = sk.Job("shop").source("orders", Order)
total = sk.Sum("cents")

orders.aggregate(key="customer", n=sk.Count(), total=total, ttl=sk.TTL("1 day"))
orders.aggregate(key=("customer",), total=total, into=Customer, name="totals").process(rich)
orders.aggregate(key="customer", total=total).process(rich)
customers = orders.aggregate(key="customer", total=total, into=Customer)
customers.process(raw)  # error: Argument 1 to "process"
orders.aggregate(key="customer", total="cents")  # error: expected "FieldAggregate"
orders.aggregate(total=total)  # error: Missing named argument "key"
sk.Sum()  # error: Missing positional argument "field"
sk.Count(3)  # error: Argument 1 to "Count"

orders.distinct("customer").process(raw)
orders.last(on="customer", by="cents").process(raw)
orders.first(by="cents").process(raw)
orders.last(on="customer")  # error: Missing named argument "by"
orders.top(3, "-cents", on="customer", into=Customer).process(rich)
orders.top(3, "-cents", on="customer", into=Customer).process(raw)  # error: Argument 1 to "process"
orders.count(on="customer", emit="final", event_time="at", into=Customer).process(rich)
orders.count(emit="sometimes")  # error: Argument "emit" to "count"
orders.aggregate(key=(), total=total, emit="change")
