"""Joins, and what their results are."""

from __future__ import annotations

from typing import NamedTuple, assert_type

import statekit as sk


class Order(NamedTuple):
    id: int
    customer: int


class Customer(NamedTuple):
    customer: int
    city: str


class Located(NamedTuple):
    id: int
    city: str
    deleted: bool


def described(order: Order, customer: Customer) -> str:
    return f"{order.id} of {customer.city}"


job = sk.Job("shop")
orders, customers = job.source("orders", Order), job.source("customers", Customer)
month = sk.TTL("30 days")

found = orders.join(customers, on="customer", ttl=month, into=described)
assert_type(found, sk.OperatorStream[str, Order | Customer])
assert_type(
    orders.join(customers, on="customer", how="semi", ttl=month),
    sk.OperatorStream[Order, Order | Customer],
)
located = orders.join(
    customers,
    on="customer",
    how="inner",
    into=Located,
    emit="changes",
    key=(["id", "customer"], "customer"),
    deletes=(None, "city"),
)
assert_type(located, sk.OperatorStream[Located, Order | Customer])
orders.join(customers, on="customer", emit="all")  # error: No overload variant of "join"
orders.join(customers, on="customer", ttl="30 days")  # error: No overload variant of "join"
orders.join(customers, on="customer", key=1)  # error: No overload variant of "join"
