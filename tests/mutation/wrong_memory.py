"""Wrong functions: they keep something outside of the states, or depend on the process."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from typing import Any

import statekit as sk
from tests.mutation.cases import BY_KEY, Cases, Order, Visit

WRONG = Cases()

TOTALS: dict[str, int] = {}
SEEN: set[str] = set()
NUMBERS = itertools.count()
BY_DAY: defaultdict[str, list[int]] = defaultdict(list)
LAST_PAGE: dict[str, str] = {}
POPULAR: Counter[str] = Counter()


@WRONG.add("totals in a dict of the module")
@sk.process(**BY_KEY)
def module_totals(order: Order) -> Iterator[int]:
    TOTALS[order.customer] = TOTALS.get(order.customer, 0) + order.cents
    yield TOTALS[order.customer]


@WRONG.add("what was seen is in a set of the module")
@sk.process(**BY_KEY)
def module_seen(order: Order, orders: sk.ValueState[int]) -> Iterator[str]:
    orders.update((orders.get() or 0) + 1)
    if order.customer not in SEEN:
        SEEN.add(order.customer)
        yield f"welcome {order.customer}"


@WRONG.add("a value of a state is cached in the module, and the cache is read first")
@sk.process(**BY_KEY)
def cache_before_state(visit: Visit, page: sk.ValueState[str]) -> Iterator[str | None]:
    yield LAST_PAGE.get(visit.customer)
    page.update(visit.page)
    LAST_PAGE[visit.customer] = visit.page


@WRONG.add("numbers come from a generator of the module")
@sk.process(**BY_KEY)
def generated_numbers(order: Order) -> Iterator[tuple[int, str]]:
    yield next(NUMBERS), order.customer


class Pricing:
    """Has its last price at the class."""

    last = 0
    known: dict[str, int] = {}  # noqa: RUF012 - this is what is wrong

    def price(self, cents: int) -> int:
        before, Pricing.last = Pricing.last, cents
        return before


@WRONG.add("the price before is an attribute of a class")
@sk.process(**BY_KEY)
def class_attribute(order: Order) -> Iterator[int]:
    yield Pricing().price(order.cents)


@WRONG.add("a dict of a class is shared by all of its objects")
@sk.process(**BY_KEY)
def class_dict(order: Order) -> Iterator[int]:
    yield Pricing().known.setdefault(order.customer, order.cents)


@functools.cache
def box_of(customer: str) -> list[int]:
    return []


@WRONG.add("lru_cache returns the same list each time, and it is changed")
@sk.process(**BY_KEY)
def cached_list(order: Order) -> Iterator[int]:
    box_of(order.customer).append(order.cents)
    yield sum(box_of(order.customer))


RATES = {"": 1}


@functools.cache
def rate_of(customer: str) -> int:
    return RATES[""]


@WRONG.add("a cached function reads a global that records change")
@sk.process(**BY_KEY)
def cached_rate(order: Order) -> Iterator[int]:
    yield rate_of(order.customer)
    RATES[""] = order.cents


def amounts(order: Order, held: list[int] = []) -> list[int]:  # noqa: B006 - that is wrong
    held.append(order.cents)
    return held


@WRONG.add("a mutable default")
@sk.process(**BY_KEY)
def mutable_default(order: Order) -> Iterator[int]:
    yield max(amounts(order))


def counting() -> Any:
    count = 0

    @sk.process(**BY_KEY)
    def closure_counter(order: Order) -> Iterator[int]:
        nonlocal count
        count += 1
        yield count

    return closure_counter


WRONG.add("a counter in a closure")(counting())


@WRONG.add("a list per day of a defaultdict of the module, which is emptied now and then")
@sk.process(**BY_KEY)
def batches_in_memory(order: Order) -> Iterator[int]:
    waiting = BY_DAY[order.customer]
    waiting.append(order.cents)
    if len(waiting) == 3:
        yield sum(waiting)
        waiting.clear()


@WRONG.add("a Counter of all keys, of which the most common is emitted")
@sk.process(key="page")
def most_common(visit: Visit) -> Iterator[str]:
    POPULAR[visit.page] += 1
    yield POPULAR.most_common(1)[0][0]


def averaging() -> Generator[float, int, None]:
    total = count = 0
    cents = yield 0.0
    while True:
        total, count = total + cents, count + 1
        cents = yield total / count


AVERAGE: dict[str, Generator[float, int, None]] = {}


@WRONG.add("a running generator for each key")
@sk.process(**BY_KEY)
def running_generator(order: Order) -> Iterator[float]:
    if order.customer not in AVERAGE:
        AVERAGE[order.customer] = averaging()
        next(AVERAGE[order.customer])
    yield AVERAGE[order.customer].send(order.cents)


@WRONG.add("a random sample")
@sk.process(**BY_KEY)
def random_sample(order: Order, seen: sk.ValueState[int]) -> Iterator[Order]:
    seen.update((seen.get() or 0) + 1)
    if random.random() < 0.5:
        yield order


@WRONG.add("a random identifier")
@sk.process(**BY_KEY)
def random_identifier(order: Order, first: sk.ValueState[str]) -> Iterator[str]:
    if first.get() is None:
        first.update(str(uuid.uuid4()))
    yield first.get() or ""


@WRONG.add("the clock of the computer")
@sk.process(**BY_KEY)
def clock_of_the_computer(order: Order) -> Iterator[float]:
    yield time.time()


@WRONG.add("the age of a record by the clock of the computer")
@sk.process(**BY_KEY)
def age_by_clock(order: Order) -> Iterator[int]:
    yield int((dt.datetime.now(dt.UTC) - order.at).total_seconds() * 1e6)


@WRONG.add("hash() of a text, which each process salts")
@sk.process(**BY_KEY)
def salted_hash(order: Order) -> Iterator[int]:
    yield hash(order.customer) % 16


@WRONG.add("the first element of a set")
@sk.process(**BY_KEY)
def first_of_a_set(visit: Visit, pages: sk.ListState[str]) -> Iterator[str]:
    pages.append(visit.page)
    yield next(iter({*pages.get(), "/", "/cart", "/pay"}))


@WRONG.add("a set is joined to a text")
@sk.process(**BY_KEY)
def joined_set(visit: Visit, pages: sk.MapState[str, int]) -> Iterator[str]:
    pages[visit.page] = 1
    yield ",".join(frozenset([*pages, "home", "search"]))


@WRONG.add("the day in the time zone of the computer")
@sk.process(**BY_KEY)
def local_day(order: Order, last: sk.ValueState[str]) -> Iterator[bool]:
    day = dt.datetime.fromtimestamp(order.at.timestamp()).date().isoformat()
    yield day != last.get()
    last.update(day)


@WRONG.add("whether it is summer time on the computer")
@sk.process(**BY_KEY)
def local_summer_time(order: Order) -> Iterator[int]:
    local = time.localtime(order.at.timestamp())
    yield local.tm_hour * 2 + local.tm_isdst
