"""Several inputs: what a union carries, which function takes it, what handles broadcast ones."""

from collections.abc import Iterator
from typing import NamedTuple

import statekit as sk
from statekit.testing import Harness


class Order(NamedTuple):
    account: str


class Payment(NamedTuple):
    account: str


class Refund(NamedTuple):
    account: str


class Rule(NamedTuple):
    limit: int


@sk.process(key="account")
def settle(event: Order | Payment, open: sk.ValueState[int]) -> Iterator[str]:
    if isinstance(event, Order):
        yield event.account


@sk.process(key="account")
def three(event: Order | Payment | Refund) -> None: ...


@sk.process(key="account")
def checked(order: Order, rules: sk.BroadcastState[str, Rule]) -> Iterator[str]:
    yield f"{rules['largest'].limit}"


@checked.on_broadcast
def learn(rule: Rule, rules: sk.BroadcastState[str, Rule]) -> None:
    rules["largest"] = rule


job = sk.Job("shop")
orders, payments = job.source("orders", Order), job.source("payments", Payment)
refunds, rules = job.source("refunds", Refund), job.source("rules", Rule)
both: sk.Stream[Order | Payment] = orders.union(payments)
turned: sk.Stream[Payment | Order] = orders.union(payments)
same: sk.Stream[Order] = orders.union(job.source("more", Order), job.source("most", Order))
chained: sk.Stream[Order | Payment | Refund] = orders.union(payments).union(refunds)
every = orders.union(payments, refunds)
mixed: sk.Stream[Order | Payment] = job.source("events", Order, Payment)
settled: sk.Stream[str] = both.process(settle)
payments.union(orders).process(settle, name="again")
mixed.process(settle, name="mixed")
every.process(three)
chained.process(three, name="chained")
both.union(refunds).process(three, name="again")
told: sk.Stream[str] = orders.process(checked, broadcast=rules)
orders.process(checked, broadcast=[rules, refunds])
Harness(checked).send(Order("a"), broadcast=[Rule(5)])
Harness(checked).broadcast(Rule(5))

orders.process(settle)  # error: incompatible type
both.process(three)  # error: incompatible type
every.process(settle)  # error: incompatible type
wrong: sk.Stream[Order] = orders.union(payments)  # error: incompatible type
orders.union(rules).process(settle)  # error: incompatible type
orders.union(5)  # error: No overload variant
job.source("other", "Order", Payment)  # error: No overload variant
orders.process(checked, broadcast=Rule(5))  # error: incompatible type "Rule"


@checked.on_broadcast  # error: incompatible type
def loud(rule: Rule) -> Iterator[str]:
    yield "loud"


@checked.on_broadcast  # error: incompatible type
def no_parameters() -> None: ...
