"""Fraud: an alert when a card is used in three countries within one hour.

    python examples/fraud.py                                          in this process
    statekit run examples.fraud:job --checkpoint results/fraud/checkpoint --spark 'local[2]'
    pytest examples/fraud.py                                          check the function

The function keeps the time of the last payment in each country, as one row of RocksDB per country.
`ordered=True` gives it the payments of a card in order of time, however they arrive.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/fraud")
HOUR = dt.timedelta(hours=1)


class Payment(NamedTuple):
    card: str
    country: str
    cents: int
    at: dt.datetime


class Alert(NamedTuple):
    card: str
    countries: list[str]
    at: dt.datetime


@sk.process(key="card", event_time="at", lateness="5 minutes", ordered=True)
def fast_travel(payment: Payment, last: sk.MapState[str, dt.datetime]) -> Iterator[Alert]:
    for country, at in list(last.items()):
        if payment.at - at > HOUR:
            del last[country]
    is_new = payment.country not in last
    last[payment.country] = payment.at
    if is_new and len(last) >= 3:
        yield Alert(payment.card, sorted(last), payment.at)


job = sk.Job("fraud")
payments = job.source("payments", Payment, sk.sources.files(DATA / "payments.jsonl"))
payments.process(fast_travel).sink("alerts", sk.sinks.json_lines(RESULTS / "alerts"))


def test_the_alerts_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(fast_travel, depth="quick")


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint", drain=True)
    for file in sorted((RESULTS / "alerts").rglob("*.jsonl")):
        print(file.read_text(), end="")
