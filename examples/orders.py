"""An order as a state machine: it is paid within 30 minutes and shipped within 2 days, or told.

    python examples/orders.py                                         in this process
    statekit run examples.orders:job --checkpoint results/orders/checkpoint --spark 'local[2]'
    pytest examples/orders.py                                         check the function

A timer per order has the time by which the next event must have come. Timers are state: they fire
once, also after a crash, and in order of time with the events of their order.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/orders")
WAITS = {"placed": dt.timedelta(minutes=30), "paid": dt.timedelta(days=2)}
AFTER = {None: "placed", "placed": "paid", "paid": "shipped"}


class Event(NamedTuple):
    order: str
    kind: Literal["placed", "paid", "shipped"]
    at: dt.datetime


class Step(NamedTuple):
    order: str
    status: str
    at: dt.datetime


@sk.process(key="order", event_time="at", lateness="1 minute", ordered=True)
def followed(event: Event, ctx: sk.Context[str], status: sk.ValueState[str]) -> Iterator[Step]:
    if event.kind != AFTER.get(status.get()):
        yield Step(event.order, f"refused: {event.kind} after {status.get()}", event.at)
        return
    yield Step(event.order, event.kind, event.at)
    if event.kind == "shipped":
        status.clear()
        for timer in ctx.timers.list():
            ctx.timers.delete(timer.at)
    else:
        status.update(event.kind)
        ctx.timers.replace(event.at + WAITS[event.kind])


@followed.on_timer
def timed_out(timer: sk.Timer, ctx: sk.Context[str], status: sk.ValueState[str]) -> Iterator[Step]:
    yield Step(ctx.key, "cancelled" if status.get() == "placed" else "delayed", timer.at)
    status.clear()


job = sk.Job("orders")
events = job.source("events", Event, sk.sources.files(DATA / "order_events.jsonl"))
events.process(followed).sink("steps", sk.sinks.json_lines(RESULTS / "steps"))


def test_the_steps_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(followed, depth="quick")


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint", drain=True)
    for file in sorted((RESULTS / "steps").rglob("*.jsonl")):
        print(file.read_text(), end="")
