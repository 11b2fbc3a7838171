"""Jobs for `statekit check`: with functions that workers get, or do not get."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator

import statekit as sk
from tests.support.sinks import Order, Spent, spending

CODE = """
def by_five(order):
    return order.cents % 5 == 0
"""

only_here = types.ModuleType("only_here")
"""A module that other processes do not find."""

exec(CODE, vars(only_here))
sys.modules["only_here"] = only_here


def locked() -> Callable[[Order], bool]:
    lock = threading.Lock()

    def is_large(order: Order) -> bool:
        with lock:
            return order.cents > 100

    return is_large


reached = sk.Job("shop")
reached.source("orders", Order, sk.sources.rate(1)).process(spending).sink(
    "spent", sk.sinks.console()
)

not_pickled = sk.Job("shop")
orders = not_pickled.source("orders", Order, sk.sources.rate(1))
orders.filter(locked()).process(spending).sink("spent", sk.sinks.console())

not_unpickled = sk.Job("shop")
orders = not_unpickled.source("orders", Order, sk.sources.rate(1))
orders.filter(only_here.by_five).process(spending).sink("spent", sk.sinks.console())


def with_text() -> sk.Job:
    """The job, with another type of its state and one state more."""

    @sk.process(key="customer")
    def spending(
        order: Order, total: sk.ValueState[str], seen: sk.ValueState[int]
    ) -> Iterator[Spent]:
        yield Spent(order.customer, 0)

    made = sk.Job("shop")
    made.source("orders", Order, sk.sources.rate(1)).process(spending).sink(
        "spent", sk.sinks.console()
    )
    return made


def as_text(cents: int) -> str:
    return str(cents)


def migrated() -> sk.Job:
    """The job, with another type of its state and a hook that converts it."""

    @sk.process(key="customer", migrate={"total": as_text})
    def spending(order: Order, total: sk.ValueState[str]) -> Iterator[Spent]:
        yield Spent(order.customer, 0)

    made = sk.Job("shop")
    made.source("orders", Order, sk.sources.rate(1)).process(spending).sink(
        "spent", sk.sinks.console()
    )
    return made


def without_state() -> sk.Job:
    """The job, without its state."""

    @sk.process(key="customer")
    def spending(order: Order) -> Iterator[Spent]:
        yield Spent(order.customer, 0)

    made = sk.Job("shop")
    made.source("orders", Order, sk.sources.rate(1)).process(spending).sink(
        "spent", sk.sinks.console()
    )
    return made
