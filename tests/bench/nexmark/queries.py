"""Nexmark's queries: which job each is, and what the job takes of the events.

What lives here: `QUERIES`. What does not: the jobs (`joins`, `windowed`, `ranked`), and the same
queries in SQL (`sql`), which say what the results have to be.

Queries 4, 18 and 19 never come to an end: their outputs replace earlier ones
for the same key before, and the last one counts. The others put out each result once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import statekit as sk
from tests.bench.nexmark.bids import Bid
from tests.bench.nexmark.fronts import Front
from tests.bench.nexmark.joins import query_3, query_4, query_8, query_9
from tests.bench.nexmark.ranked import query_18, query_19
from tests.bench.nexmark.windowed import query_5, query_7, query_11

__all__ = ["QUERIES", "Query"]


@dataclass(frozen=True)
class Query:
    """A query of the benchmark.

    Parameters:
        asks: what it asks, in a few words.
        calls: what its job calls a Python function for.
        job: makes its job, with the sink `out`.
        fronts: what each source takes of the events.
        updates: the fields by which a result takes the place of one before; empty if none does.
    """

    asks: str
    calls: str
    job: Callable[[], sk.Job]
    fronts: Mapping[str, Front]
    updates: tuple[str, ...] = ()


BIDS = Front("bid", {name: name for name in Bid._fields})
AUCTIONS = Front(
    "auction",
    {"auction": "id", "category": "category", "seller": "seller", "at": "at", "expires": "expires"},
)

_STATES, _CATEGORY = ("OR", "ID", "CA"), 10
_SELLERS = {"seller": "id", "name": "name", "city": "city", "state": "state"}
_AUCTIONS_AND_BIDS = {"auctions": AUCTIONS, "bids": BIDS}

QUERIES: dict[int, Query] = {
    3: Query(
        "local items: a join without an end",
        "no person and no auction",
        query_3,
        {
            "sellers": Front("person", _SELLERS, {"state": _STATES}),
            "offers": Front(
                "auction", {"seller": "seller", "auction": "id"}, {"category": (_CATEGORY,)}
            ),
        },
    ),
    4: Query(
        "average price of a category",
        "each auction that was sold",
        query_4,
        _AUCTIONS_AND_BIDS,
        ("category",),
    ),
    5: Query(
        "hot items: sliding windows",
        "each window of an auction, when it ends",
        query_5,
        {"bids": Front("bid", {"auction": "auction", "at": "at"})},
    ),
    7: Query(
        "highest bids: tumbling windows", "each window, when it ends", query_7, {"bids": BIDS}
    ),
    8: Query(
        "new sellers: a join by windows",
        "no person and no auction",
        query_8,
        {
            "persons": Front("person", {"seller": "id", "name": "name", "at": "at"}),
            "auctions": Front("auction", {"seller": "seller", "at": "at"}),
        },
    ),
    9: Query(
        "winning bids: a join until the auction ends",
        "each auction that was sold",
        query_9,
        _AUCTIONS_AND_BIDS,
    ),
    11: Query(
        "sessions of bidders",
        "all bids of a session in a batch",
        query_11,
        {"bids": Front("bid", {"bidder": "bidder", "at": "at"})},
    ),
    18: Query("last bid of each bidder", "no bid", query_18, {"bids": BIDS}, ("bidder", "auction")),
    19: Query("ten highest bids", "no bid", query_19, {"bids": BIDS}, ("auction", "rank")),
}
