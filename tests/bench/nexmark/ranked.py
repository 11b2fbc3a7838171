"""Nexmark's rankings: queries 18 and 19, whose results take the place of those before.

What lives here: records, functions and jobs as a user would write them. What does not: what they
are given (`queries`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import Bid

__all__ = ["places", "query_18", "query_19"]

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


def places(auction: int, highest: Sequence[Any]) -> Iterator[Placed]:
    """The rows of plain SQL of a result, which lists the highest bids of an auction."""
    for place, (_, bidder, price, at) in enumerate(highest, start=1):
        yield Placed(auction, place, bidder, price, at)


def query_19() -> sk.Job:
    job = sk.Job("nexmark-q19")
    bids = job.source("bids", Bid)
    bids.aggregate(key="auction", top=sk.Top(10, by=("-price", "at"))).sink("out")
    return job
