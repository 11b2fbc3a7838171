"""A job for commands: files in the working directory, and a function that fails while a file says
so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def total(order: Order, sum: sk.ValueState[int]) -> Iterator[Order]:
    failures = Path("failures")
    if order.customer == "unlucky" and (left := int(failures.read_text())):
        failures.write_text(str(left - 1))
        raise ValueError("an unlucky order")
    sum.update((sum.get() or 0) + order.cents)
    yield Order(order.customer, sum.get() or 0)


job = sk.Job("shop")
job.source("orders", Order, sk.sources.json_lines("orders")).process(total).sink(
    "totals", sk.sinks.json_lines("totals")
)

open_job = sk.Job("open")
open_job.source("orders", Order, sk.sources.json_lines("orders")).process(total).sink("totals")
