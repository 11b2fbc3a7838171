"""A job for the service: each has directories of its own, and its totals tell whether an order was
counted twice or not at all.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk
from statekit.documents.settings import with_settings

MODULE = "tests.support.submitted_jobs"


HOSTILE_LINES = (
    '{"epoch": NaN}',
    '{"epoch": "x", "lag": 5, "records_per_second": "zz"}',
    '{"epoch": 1e999, "state_rows": -1}',
    '{"epoch": ' + "[" * 60_000,
    '{"progress": {"epoch": 77}}',
    "\x1b]0;owned\x07",
)
"""What a module may print: none of it is about an epoch."""


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def counted(order: Order, sum: sk.ValueState[int]) -> Iterator[Order]:
    if order.customer == "unlucky":
        raise ValueError("an unlucky order")
    if order.customer == "printing":
        for line in HOSTILE_LINES:
            print(line, flush=True)
    if order.customer in ("forking", "leaving"):
        if os.fork() == 0:
            if order.customer == "leaving":
                os.setsid()  # no group of the job any more
            time.sleep(30)
            os._exit(0)
        os._exit(7)
    sum.update((sum.get() or 0) + order.cents)
    yield Order(order.customer, sum.get() or 0)


job = sk.Job("counted")
job.source("orders", Order, sk.sources.json_lines("orders")).process(counted).sink(
    "totals", sk.sinks.json_lines("totals")
)


def document(home: Path) -> str:
    """Return the document of the job with its files in a directory."""
    (home / "orders").mkdir(parents=True, exist_ok=True)
    (home / "totals").mkdir(exist_ok=True)
    return with_settings(
        job.to_json(), [f"source.orders.path={home}/orders", f"sink.totals.path={home}/totals"]
    )


def order(home: Path, name: str, *orders: tuple[str, int]) -> None:
    """Write a file of orders at once."""
    lines = [json.dumps({"customer": customer, "cents": cents}) for customer, cents in orders]
    draft = home / f".{name}"
    draft.write_text("".join(f"{line}\n" for line in lines))
    draft.rename(home / "orders" / f"{name}.jsonl")


def totals(home: Path) -> list[tuple[str, int]]:
    """Return all records of the sink, sorted."""
    found = [
        json.loads(line)
        for path in sorted((home / "totals").glob("*.json*"))
        for line in path.read_text().splitlines()
    ]
    return sorted((row["customer"], row["cents"]) for row in found)
