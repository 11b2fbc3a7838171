"""What most of Nexmark's queries take: bids, windows of ten seconds, and a second for the late.

What lives here: the record of a bid, and what windows and watermarks go by. What does not: the
queries (`joins`, `windowed`, `ranked`).
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

__all__ = ["LATENESS", "WINDOW", "Bid"]

LATENESS = "1 second"
WINDOW = dt.timedelta(seconds=10)


class Bid(NamedTuple):
    auction: int
    bidder: int
    price: int
    at: dt.datetime
