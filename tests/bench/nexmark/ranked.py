"""Nexmark's rankings: queries 18 and 19, whose results take the place of those before.

What lives here: records, functions and jobs as a user would write them. What does not: what they
are given (`queries`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from operator import attrgetter
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import Bid

__all__ = ["query_18", "query_19"]

# ------------------------------------------ 18: what is the last bid of a bidder on an auction?


@sk.process(key=("bidder", "auction"))
def last_bid(bids: Iterator[Bid], last: sk.ValueState[dt.datetime]) -> Iterator[Bid]:
    """Puts out the newest bid of a batch if it is newer than all before it."""
    held, newest = last.get(), max(bids, key=lambda bid: bid.at)
    if held is None or newest.at > held:
        last.update(newest.at)
        yield newest


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
_PRICE, _AT = attrgetter("price"), attrgetter("at")


def _highest(bids: Iterable[Bid]) -> tuple[Bid, ...]:
    """The highest bids, of one price the earliest first: sorts are stable."""
    return tuple(sorted(sorted(bids, key=_AT), key=_PRICE, reverse=True)[:TOP])


@sk.process(key="auction")
def top_ten(bids: Iterator[Bid], top: sk.ValueState[tuple[Bid, ...]]) -> Iterator[Placed]:
    """Puts out the places that the bids of a batch change.

    State keeps a tuple, which it need not copy each time that it is read, as it would a list.
    """
    before = top.get() or ()
    highest = _highest(chain(before, bids))
    if highest != before:
        top.update(highest)
        for place, (found, was) in enumerate(zip_longest(highest, before), start=1):
            if found != was:
                yield Placed(found.auction, place, found.bidder, found.price, found.at)


def query_19() -> sk.Job:
    job = sk.Job("nexmark-q19")
    job.source("bids", Bid).process(top_ten).sink("out")
    return job
