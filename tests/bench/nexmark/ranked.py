"""Nexmark's rankings: queries 18 and 19, whose results take the place of those before.

What lives here: records, functions and jobs as a user would write them. What does not: what they
are given (`queries`).
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Iterator
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import Bid

__all__ = ["query_18", "query_19"]

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
def top_ten(bid: Bid, top: sk.ValueState[tuple[Bid, ...]]) -> Iterator[Placed]:
    """Puts out the places that a bid changes.

    State keeps a tuple, which it need not copy each time that it is read, as it would a list.
    """
    held = top.get() or ()
    place = bisect.bisect(held, _order(bid), key=_order)
    if place < TOP:
        held = (*held[:place], bid, *held[place : TOP - 1])
        top.update(held)
        for number, found in enumerate(held[place:], place + 1):
            yield Placed(found.auction, number, found.bidder, found.price, found.at)


def query_19() -> sk.Job:
    job = sk.Job("nexmark-q19")
    job.source("bids", Bid).process(top_ten).sink("out")
    return job
