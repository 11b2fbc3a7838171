"""Nexmark's windows: queries 5, 7 and 11.

What lives here: records, functions and jobs as a user would write them. What does not: what they
are given (`queries`).

The auctions with the most bids in a window are found in two steps, so that no shard is given all
bids: a window for each auction, and then, keyed by its end, a function that all windows of one end
come to. Windows of all bids have no key: the highest bids are found where bids are read, so the
shard of all windows is given a few of each partition.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import LATENESS, WINDOW, Bid

__all__ = ["query_5", "query_7", "query_11"]

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
    auctions: Iterator[Counted],
    ctx: sk.Context[dt.datetime],
    most: sk.ValueState[int],
    hot: sk.ListState[int],
) -> Iterator[Hot]:
    """Keeps the auctions with the most bids of a window until it has all of them."""
    held, found = most.get() or 0, list(hot)
    for counted in auctions:
        if counted.count > held:
            held, found = counted.count, []
        if counted.count == held:
            found.append(counted.auction)
    most.update(held)
    hot.update(found)
    ctx.timers.set(ctx.key)
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
    """The highest bids in a window; they are of one price."""

    records: list[Bid]


def each_bid(highest: Highest) -> Iterator[Bid]:
    yield from highest.records


def query_7() -> sk.Job:
    job = sk.Job("nexmark-q7")
    bids = job.source("bids", Bid)
    windows = bids.window(sk.tumbling(WINDOW), key=(), event_time="at", lateness=LATENESS)
    windows.top(1, by="-price", ties=True, into=Highest).flat_map(each_bid).sink("out")
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
