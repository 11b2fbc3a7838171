"""`check` finds states that grow without end, and passes those that have an end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest

import statekit as sk
from statekit.testing import check
from tests.support.effort import SOAK


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int
    page: str
    is_open: bool


class Ticket(pydantic.BaseModel):
    customer: str
    number: Annotated[int, pydantic.Field(ge=0, le=1_000)]
    kind: Literal["opened", "closed"]


IN_TIME: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "1 minute"}

# ------------------------------------------------------------------------------------------- wrong


@sk.process(key="customer")
def all_kept(order: Order, kept: sk.ListState[Order]) -> Iterator[int]:
    kept.append(order)
    yield len(kept)


@sk.process(key="customer")
def numbers_seen(order: Order, seen: sk.MapState[int, bool]) -> Iterator[int]:
    if order.cents not in seen:
        seen[order.cents] = True
        yield order.cents


@sk.process(key="customer")
def times_seen(order: Order, seen: sk.ValueState[set[dt.datetime]]) -> Iterator[int]:
    seen.update({*(seen.get() or ()), order.at})
    yield len(seen.get() or ())


@sk.process(key="customer")
def joined_texts(order: Order, text: sk.ValueState[str]) -> Iterator[int]:
    text.update((text.get() or "") + f"{order.at:%Y-%m-%d}/{order.cents};")
    yield len(text.get() or "")


@sk.process(key="customer")
def by_hour_of_processing(
    order: Order, ctx: sk.Context, hours: sk.MapState[int, int]
) -> Iterator[int]:
    hour = int(ctx.processing_time.timestamp()) // 3_600
    hours[hour] = hours.get(hour, 0) + 1
    yield hours[hour]


# ------------------------------------------------------------------------------------------- right


@sk.process(key="customer")
def counted(order: Order, count: sk.ValueState[int]) -> Iterator[int]:
    count.update((count.get() or 0) + 1)
    yield count.get() or 0


@sk.process(key="customer")
def by_page(order: Order, pages: sk.MapState[str, int]) -> Iterator[int]:
    pages[order.page] = pages.get(order.page, 0) + 1
    yield pages[order.page]


@sk.process(key="customer")
def last_hundred(order: Order, kept: sk.ValueState[list[int]]) -> Iterator[int]:
    kept.update([*(kept.get() or []), order.cents][-100:])
    yield len(kept.get() or [])


@sk.process(key="customer")
def expiring(
    order: Order, seen: Annotated[sk.MapState[int, bool], sk.TTL("90 days")]
) -> Iterator[int]:
    seen[order.cents] = True
    yield len(seen)


@sk.process(**IN_TIME)
def cleared_by_a_timer(order: Order, ctx: sk.Context, kept: sk.ListState[int]) -> Iterator[int]:
    kept.append(order.cents)
    ctx.timers.replace(order.at + dt.timedelta(days=60))
    yield len(kept)


@cleared_by_a_timer.on_timer
def clear(timer: sk.Timer, kept: sk.ListState[int]) -> None:
    kept.clear()


@sk.process(key="customer")
def last_quarter(order: Order, days: sk.MapState[str, int]) -> Iterator[int]:
    oldest = (order.at - dt.timedelta(days=90)).date().isoformat()
    for day in [day for day in days if day < oldest]:
        del days[day]
    days[order.at.date().isoformat()] = order.cents
    yield len(days)


@sk.process(key="customer")
def until_it_is_closed(order: Order, kept: sk.ListState[int]) -> Iterator[int]:
    if order.is_open:
        kept.append(order.cents)
    else:
        yield len(kept)
        kept.clear()


@sk.process(key="customer")
def limited_numbers(ticket: Ticket, tickets: sk.MapState[int, str]) -> Iterator[int]:
    tickets[ticket.number] = ticket.kind
    yield len(tickets)


def unpaid_orders() -> sk.Job:
    class Payment(NamedTuple):
        customer: str
        paid: int

    @sk.process(key="customer")
    def unpaid(event: Order | Payment, kept: sk.ListState[int]) -> Iterator[int]:
        if isinstance(event, Order):
            kept.append(event.cents)
        else:
            yield len(kept)
            kept.clear()

    job = sk.Job("unpaid")
    orders = job.source("orders", Order).union(job.source("payments", Payment))
    orders.process(unpaid).sink("paid")
    return job


GROWING = [all_kept, numbers_seen, times_seen, joined_texts, by_hour_of_processing]
BOUNDED = [
    *(counted, by_page, last_hundred, expiring, cleared_by_a_timer, last_quarter),
    *(until_it_is_closed, limited_numbers, unpaid_orders()),
]


@pytest.mark.parametrize("given", GROWING if SOAK else GROWING[1:3], ids=lambda given: given.name)
def test_a_state_that_grows_with_each_record_or_epoch_is_found(given: Any) -> None:
    with pytest.raises(AssertionError, match="'growth' does not hold"):
        check(given, holds=["growth"], depth="quick")


@pytest.mark.parametrize("given", BOUNDED, ids=lambda given: given.name)
def test_a_state_that_has_an_end_is_right(given: Any) -> None:
    check(given, holds=["growth"], depth="quick")


def test_the_message_says_how_many_elements_there_are_and_has_a_test_that_fails_too() -> None:
    with pytest.raises(AssertionError) as raised:
        check(all_kept, holds=["growth"], depth="quick")
    told = str(raised.value)
    assert "state 'kept' of all_kept at the key " in told
    assert "15 elements after 15 repetitions of the history, 30 after 30, 70 after 70, " in told
    written = told.partition("This test runs it again:")[2].partition("If this is intended")[0]
    names: dict[str, Any] = {"Order": Order, "all_kept": all_kept}
    exec("\n".join(line[4:] for line in written.strip("\n").splitlines()), names)
    with pytest.raises(AssertionError, match="'growth' does not hold"):
        names["test_all_kept_growth"]()


def test_a_state_that_grows_on_purpose_is_excused_with_a_reason() -> None:
    report = check(all_kept, excused={"growth": "it is an archive"}, examples=2)
    left_out = {each.name: each.left_out for each in report.properties}
    assert left_out["growth"] == "excused: it is an archive"
