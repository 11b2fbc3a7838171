"""Nexmark's queries as jobs.

What lives here: records, process functions and jobs, as a user would write them, and `QUERIES`.
What does not: the same queries in SQL (`sql`), which say what the results have to be.

Queries 4, 18 and 19 never come to an end: what they put out takes the place of what they put out
for the same key before, and the last one counts. The others put out each result once.
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.events import START
from tests.bench.nexmark.fronts import Front

__all__ = ["LATENESS", "QUERIES", "Query"]

LATENESS = "1 second"
WINDOW = dt.timedelta(seconds=10)


class Bid(NamedTuple):
    auction: int
    bidder: int
    price: int
    at: dt.datetime


BIDS = Front("bid", {name: name for name in Bid._fields})


# ------------------------------------------------- 3: who sells in category 10 in three states?


class Seller(NamedTuple):
    seller: int
    name: str
    city: str
    state: str


class Offer(NamedTuple):
    seller: int
    auction: int


class LocalItem(NamedTuple):
    name: str
    city: str
    state: str
    auction: int


@sk.process(key="seller")
def local_items(
    event: Seller | Offer, known: sk.ValueState[Seller], waiting: sk.ListState[int]
) -> Iterator[LocalItem]:
    """Joins what a seller offers with the seller, whichever comes first, forever."""
    if isinstance(event, Seller):
        known.update(event)
        for auction in waiting:
            yield LocalItem(event.name, event.city, event.state, auction)
        waiting.clear()
    elif (seller := known.get()) is not None:
        yield LocalItem(seller.name, seller.city, seller.state, event.auction)
    else:
        waiting.append(event.auction)


def query_3() -> sk.Job:
    job = sk.Job("nexmark-q3")
    sellers, offers = job.source("sellers", Seller), job.source("offers", Offer)
    sellers.union(offers).process(local_items).sink("out")
    return job


# --------------------------- 9: which bid wins an auction? 4: what do auctions of a category bring?


class Auction(NamedTuple):
    auction: int
    category: int
    seller: int
    at: dt.datetime
    expires: dt.datetime


class Won(NamedTuple):
    auction: int
    category: int
    seller: int
    bidder: int
    price: int
    at: dt.datetime


class Average(NamedTuple):
    category: int
    price: float


def better(bid: Bid, than: Bid | None) -> bool:
    """Whether a bid is higher, or as high and earlier."""
    return than is None or (-bid.price, bid.at) < (-than.price, than.at)


@sk.process(key="auction", event_time="at", lateness=LATENESS)
def winning(
    event: Auction | Bid,
    ctx: sk.Context,
    sold: sk.ValueState[Auction],
    best: sk.ValueState[Bid],
    early: sk.ListState[Bid],
) -> Iterator[Won]:
    """Keeps the best bid until nothing before the auction's end can follow."""
    if isinstance(event, Auction):
        sold.update(event)
        ctx.timers.set(event.expires)
        bids = list(early)  # they were made before the auction was heard of
        early.clear()
    else:
        bids = [event]
    auction = sold.get()
    if auction is None:
        early.extend(bids)
        return
    for bid in bids:
        if auction.at <= bid.at <= auction.expires and better(bid, best.get()):
            best.update(bid)
    yield from ()


@winning.on_timer
def expired(
    timer: sk.Timer, sold: sk.ValueState[Auction], best: sk.ValueState[Bid]
) -> Iterator[Won]:
    auction, bid = sold.get(), best.get()
    if auction is not None and bid is not None:
        yield Won(bid.auction, auction.category, auction.seller, bid.bidder, bid.price, bid.at)
    sold.clear()
    best.clear()


def _won(job: sk.Job) -> sk.Stream[Won]:
    auctions, bids = job.source("auctions", Auction), job.source("bids", Bid)
    return auctions.union(bids).process(winning)


def query_9() -> sk.Job:
    job = sk.Job("nexmark-q9")
    _won(job).sink("out")
    return job


def query_4() -> sk.Job:
    job = sk.Job("nexmark-q4")
    averages = _won(job).aggregate(key="category", price=sk.Mean("price"), into=Average)
    averages.sink("out")
    return job


AUCTIONS = Front(
    "auction",
    {
        "auction": "id",
        "category": "category",
        "seller": "seller",
        "at": "at",
        "expires": "expires",
    },
)


# ------------------------- 5: which auctions had the most bids in ten seconds, every two seconds?


class BidOn(NamedTuple):
    auction: int
    at: dt.datetime


@dataclass
class Counted:
    """The bids of an auction in a window; a NamedTuple has a method `count`."""

    auction: int
    end: dt.datetime
    count: int


class Hot(NamedTuple):
    auction: int
    end: dt.datetime
    bids: int


@sk.process(key="end", event_time="end")
def most_bids(
    counted: Counted, ctx: sk.Context, most: sk.ValueState[int], hot: sk.ListState[int]
) -> Iterator[Hot]:
    """Keeps the auctions with the most bids of a window until it has all of them."""
    held = most.get() or 0
    if counted.count > held:
        most.update(counted.count)
        hot.update([counted.auction])
    elif counted.count == held:
        hot.append(counted.auction)
    ctx.timers.set(counted.end)
    yield from ()


@most_bids.on_timer
def window_counted(
    timer: sk.Timer, most: sk.ValueState[int], hot: sk.ListState[int]
) -> Iterator[Hot]:
    for auction in hot:
        yield Hot(auction, timer.at, most.get() or 0)
    most.clear()
    hot.clear()


def query_5() -> sk.Job:
    job = sk.Job("nexmark-q5")
    windows = job.source("bids", BidOn).window(
        sk.sliding(WINDOW, every="2 seconds"), key="auction", event_time="at", lateness=LATENESS
    )
    windows.count(into=Counted).process(most_bids).sink("out")
    return job


# --------------------------------------------------- 7: which were the highest bids of ten seconds?


class Highest(NamedTuple):
    """The highest bids, of an auction or of all, in a window; they are of one price."""

    end: dt.datetime
    highest: list[Bid]


def _higher(held: list[Bid], bids: list[Bid]) -> list[Bid]:
    if not held or not bids or held[0].price == bids[0].price:
        return held + bids
    return max(held, bids, key=lambda found: found[0].price)


HIGHEST: sk.Aggregate[Bid, list[Bid], list[Bid]] = sk.Aggregate(
    create=list, add=lambda held, bid: _higher(held, [bid]), result=list, merge=_higher
)


@sk.process(key="end", event_time="end")
def highest_of_all(
    of_auction: Highest, ctx: sk.Context, highest: sk.ValueState[list[Bid]]
) -> Iterator[Bid]:
    highest.update(_higher(highest.get() or [], of_auction.highest))
    ctx.timers.set(of_auction.end)
    yield from ()


@highest_of_all.on_timer
def window_ended(timer: sk.Timer, highest: sk.ValueState[list[Bid]]) -> Iterator[Bid]:
    yield from highest.get() or []
    highest.clear()


def query_7() -> sk.Job:
    job = sk.Job("nexmark-q7")
    windows = job.source("bids", Bid).window(
        sk.tumbling(WINDOW), key="auction", event_time="at", lateness=LATENESS
    )
    of_auctions = windows.aggregate(
        HIGHEST, accumulator=list[Bid], result=list[Bid], name="highest", into=Highest
    )
    of_auctions.process(highest_of_all).sink("out")
    return job


# ------------------------------------- 8: who sells within the ten seconds in which they came?


class Came(NamedTuple):
    seller: int
    name: str
    at: dt.datetime


class Sells(NamedTuple):
    seller: int
    at: dt.datetime


class NewSeller(NamedTuple):
    seller: int
    name: str
    end: dt.datetime


def window_end(at: dt.datetime) -> dt.datetime:
    """The end of the window that an instant is in."""
    return at - (at - START) % WINDOW + WINDOW


@sk.process(key="seller", event_time="at", lateness=LATENESS)
def new_sellers(
    event: Came | Sells,
    ctx: sk.Context,
    names: sk.MapState[dt.datetime, str],
    sales: sk.MapState[dt.datetime, bool],
) -> Iterator[NewSeller]:
    """Keeps by window who came and who sold, until the window is over."""
    end = window_end(event.at)
    if isinstance(event, Came):
        names[end] = event.name
    else:
        sales[end] = True
    ctx.timers.set(end - dt.datetime.resolution)  # the last instant that is in the window
    yield from ()


@new_sellers.on_timer
def window_over(
    timer: sk.Timer,
    ctx: sk.Context,
    names: sk.MapState[dt.datetime, str],
    sales: sk.MapState[dt.datetime, bool],
) -> Iterator[NewSeller]:
    end = timer.at + dt.datetime.resolution
    name, has_sold = names.pop(end, None), sales.pop(end, False)
    if name is not None and has_sold:
        yield NewSeller(ctx.key, name, end)


def query_8() -> sk.Job:
    job = sk.Job("nexmark-q8")
    came, sells = job.source("persons", Came), job.source("auctions", Sells)
    came.union(sells).process(new_sellers).sink("out")
    return job


# ----------------------------------- 11: how many bids until a bidder pauses for ten seconds?


class BidBy(NamedTuple):
    bidder: int
    at: dt.datetime


@dataclass
class Session:
    bidder: int
    start: dt.datetime
    end: dt.datetime
    count: int


def query_11() -> sk.Job:
    job = sk.Job("nexmark-q11")
    sessions = job.source("bids", BidBy).window(
        sk.session(WINDOW), key="bidder", event_time="at", lateness=LATENESS
    )
    sessions.count(into=Session).sink("out")
    return job


# ------------------------------------------ 18: what is the last bid of a bidder on an auction?


@sk.process(key=("bidder", "auction"))
def last_bid(bid: Bid, last: sk.ValueState[dt.datetime]) -> Iterator[Bid]:
    """Puts out each bid that is newer than all before it."""
    held = last.get()
    if held is None or bid.at > held:
        last.update(bid.at)
        yield bid


def query_18() -> sk.Job:
    job = sk.Job("nexmark-q18")
    job.source("bids", Bid).process(last_bid).sink("out")
    return job


# ------------------------------------------------- 19: what are the ten highest bids of an auction?


class Placed(NamedTuple):
    auction: int
    place: int
    bidder: int
    price: int
    at: dt.datetime


TOP = 10


def _order(bid: Bid) -> tuple[int, dt.datetime]:
    return -bid.price, bid.at


@sk.process(key="auction")
def top_ten(bid: Bid, top: sk.ValueState[list[Bid]]) -> Iterator[Placed]:
    """Puts out the places that a bid changes."""
    held = top.get() or []
    place = bisect.bisect(held, _order(bid), key=_order)
    if place < TOP:
        held = [*held[:place], bid, *held[place : TOP - 1]]
        top.update(held)
        for number, found in enumerate(held[place:], place + 1):
            yield Placed(found.auction, number, found.bidder, found.price, found.at)


def query_19() -> sk.Job:
    job = sk.Job("nexmark-q19")
    job.source("bids", Bid).process(top_ten).sink("out")
    return job


# -------------------------------------------------------------------------------- all of them


@dataclass(frozen=True)
class Query:
    """A query of the benchmark.

    Parameters:
        asks: what it asks, in a few words.
        job: makes its job, with the sink `out`.
        fronts: what each source takes of the events.
        updates: the fields by which a result takes the place of one before; empty if none does.
    """

    asks: str
    job: Callable[[], sk.Job]
    fronts: Mapping[str, Front]
    updates: tuple[str, ...] = ()


_STATES, _CATEGORY = ("OR", "ID", "CA"), 10
_SELLERS = {"seller": "id", "name": "name", "city": "city", "state": "state"}
_AUCTIONS_AND_BIDS = {"auctions": AUCTIONS, "bids": BIDS}

QUERIES: dict[int, Query] = {
    3: Query(
        "local items: a join without an end",
        query_3,
        {
            "sellers": Front("person", _SELLERS, {"state": _STATES}),
            "offers": Front(
                "auction", {"seller": "seller", "auction": "id"}, {"category": (_CATEGORY,)}
            ),
        },
    ),
    4: Query("average price of a category", query_4, _AUCTIONS_AND_BIDS, ("category",)),
    5: Query(
        "hot items: sliding windows",
        query_5,
        {"bids": Front("bid", {"auction": "auction", "at": "at"})},
    ),
    7: Query("highest bids: tumbling windows", query_7, {"bids": BIDS}),
    8: Query(
        "new sellers: a join by windows",
        query_8,
        {
            "persons": Front("person", {"seller": "id", "name": "name", "at": "at"}),
            "auctions": Front("auction", {"seller": "seller", "at": "at"}),
        },
    ),
    9: Query("winning bids: a join until the auction ends", query_9, _AUCTIONS_AND_BIDS),
    11: Query(
        "sessions of bidders",
        query_11,
        {"bids": Front("bid", {"bidder": "bidder", "at": "at"})},
    ),
    18: Query("last bid of each bidder", query_18, {"bids": BIDS}, ("bidder", "auction")),
    19: Query("ten highest bids", query_19, {"bids": BIDS}, ("auction", "place")),
}
