"""Nexmark's queries in plain SQL, over all events at once.

What lives here: what the jobs (`queries`) have to come to, asked of DuckDB over the tables
`persons`, `auctions` and `bids`. What does not: streaming SQL (`on_spark`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from tests.bench.nexmark.events import Tables

__all__ = ["SQL", "answers", "over"]

_SECONDS_10 = "interval 10 seconds"

_WON = """
    select auction, category, seller, bidder, price, "at" from (
        select bids.auction, category, seller, bidder, price, bids."at",
               row_number() over (partition by auctions.id order by price desc, bids."at") as place
        from auctions join bids on auctions.id = bids.auction
        where bids."at" between auctions."at" and expires
    ) where place = 1
"""

SQL: dict[int, str] = {
    3: """
        select name, city, state, auctions.id
        from auctions join persons on seller = persons.id
        where category = 10 and state in ('OR', 'ID', 'CA')
    """,
    4: f"select category, avg(price) from ({_WON}) group by category",
    5: """
        with counted as (
            select auction, count(*) as bids,
                   time_bucket(interval 2 seconds, "at") + step * interval 2 seconds as ends
            from bids, range(1, 6) as steps(step)
            group by auction, ends
        )
        select auction, ends, bids from counted
        qualify bids = max(bids) over (partition by ends)
    """,
    7: f"""
        select auction, bidder, price, "at" from bids
        qualify price = max(price) over (partition by time_bucket({_SECONDS_10}, "at"))
    """,
    8: f"""
        select distinct persons.id, name, time_bucket({_SECONDS_10}, persons."at") + {_SECONDS_10}
        from persons join auctions on persons.id = seller
        where time_bucket({_SECONDS_10}, persons."at") = time_bucket({_SECONDS_10}, auctions."at")
    """,
    9: _WON,
    11: f"""
        with parted as (
            select bidder, "at", lag("at") over of_bidder is null
                or "at" - lag("at") over of_bidder >= {_SECONDS_10} as is_new
            from bids window of_bidder as (partition by bidder order by "at")
        ), numbered as (
            select bidder, "at",
                   sum(is_new::int) over (partition by bidder order by "at") as session
            from parted
        )
        select bidder, min("at"), max("at") + {_SECONDS_10}, count(*) from numbered
        group by bidder, session
    """,
    18: """
        select auction, bidder, price, "at" from bids
        qualify row_number() over (partition by bidder, auction order by "at" desc) = 1
    """,
    19: """
        select auction, row_number() over (partition by auction order by price desc, "at") as place,
               bidder, price, "at"
        from bids qualify place <= 10
    """,
}


def answers(number: int, tables: Tables) -> list[tuple[Any, ...]]:
    """What a query comes to over these events, in any order."""
    with over(tables) as database:
        found = database.sql(SQL[number]).fetchall()
    return [tuple(_in_utc(value) for value in row) for row in found]


@contextlib.contextmanager
def over(tables: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that reads these events where they are, in memory."""
    with duckdb.connect() as database:
        for name in ("persons", "auctions", "bids"):
            database.register(name, _without_zones(getattr(tables, name)))
        yield database


def _without_zones(table: pa.Table) -> pa.Table:
    """Instants as the database calculates with them without its calendars: UTC, unsaid."""
    plain = [
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(plain))


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value
