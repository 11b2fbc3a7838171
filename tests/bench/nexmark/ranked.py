"""Nexmark's rankings: queries 18 and 19, whose results take the place of those before.

What lives here: records and jobs as a user would write them. What does not: what they are given
(`queries`).
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

import statekit as sk
from tests.bench.nexmark.bids import Bid

__all__ = ["query_18", "query_19"]

# ------------------------------------------ 18: what is the last bid of a bidder on an auction?


def query_18() -> sk.Job:
    job = sk.Job("nexmark-q18")
    job.source("bids", Bid).last(on=("bidder", "auction"), by="at").sink("out")
    return job


# ------------------------------------------------- 19: what are the ten highest bids of an auction?


class Placed(NamedTuple):
    auction: int
    rank: int
    bidder: int
    price: int
    at: dt.datetime


def query_19() -> sk.Job:
    job = sk.Job("nexmark-q19")
    bids = job.source("bids", Bid)
    bids.top(10, by=("-price", "at"), on="auction", into=Placed).sink("out")
    return job
