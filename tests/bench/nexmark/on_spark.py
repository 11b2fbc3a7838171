"""Nexmark on Spark: a job beside the same query in Spark's own streaming SQL, where it can say it.

What lives here: the streaming SQL, the two engines and the benchmarks. What does not: how engines
take turns (`tests.bench.on_spark`).

Both read the same files, which have events of all kinds, keep their state in RocksDB and put
results nowhere. Spark's further batch without data, which would emit windows sooner, is
turned off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from tests.bench.nexmark.bids import LATENESS
from tests.bench.nexmark.events import Events
from tests.bench.nexmark.queries import QUERIES, Query
from tests.bench.on_spark import Engine, in_turn
from tests.bench.report import IN_THE_JVM, SPARK_DURABLE, STATEKIT_DURABLE, Row, faster

EVENTS = int(os.environ.get("STATEKIT_BENCH_NEXMARK_EVENTS", "500_000"))
"""Per batch; at 10,000 of them a second that is 50 seconds of event time."""

WARM, ROUNDS = 2, 5

CANNOT: dict[int, str] = {
    4: "an average without a window has no end, so it needs update mode, in which Spark refuses an "
    "aggregation of what a join and another aggregation emit"
}
"""Why Spark cannot: there is no streaming SQL for a query."""

_WINDOW = "'10 seconds'"

STREAMING_SQL: dict[int, tuple[str, str]] = {
    3: (
        "append",
        """
        select name, city, state, auctions.id as auction
        from auctions join persons on seller = persons.id
        where category = 10 and state in ('OR', 'ID', 'CA')
        """,
    ),
    # What has the most bids is picked out of a list of all, since row_number() is refused.
    5: (
        "append",
        f"""
        select explode(filter(counted, one -> one.bids = most).auction) as auction, ends, most
        from (
            select window.end as ends, max(bids) as most,
                   collect_list(struct(auction, bids)) as counted
            from (
                select window(at, {_WINDOW}, '2 seconds') as window, auction, count(*) as bids
                from timed_bids group by 1, auction
            ) group by window
        )
        """,
    ),
    # Right for up to ten highest bids of one price. The benchmark's own join would keep all bids.
    7: (
        "append",
        f"""
        select inline(filter(highest, one -> one.price = highest[0].price)) from (
            select max_by(struct(auction, bidder, price, at), price, 10) as highest
            from timed_bids group by window(at, {_WINDOW})
        )
        """,
    ),
    8: (
        "append",
        f"""
        select came.id, came.name, came.window.end
        from (
            select id, name, window(at, {_WINDOW}) as window from timed_persons group by 1, 2, 3
        ) came join (
            select seller, window(at, {_WINDOW}) as window from timed_auctions group by 1, 2
        ) sold on came.id = sold.seller and came.window = sold.window
        """,
    ),
    # The auctions' event time is when they expire: so Spark knows when to forget them.
    9: (
        "append",
        """
        select id, category, seller, best.bidder, best.price, best.at from (
            select id, category, seller, expires,
                   max_by(
                       struct(bidder, price, timed_bids.at),
                       struct(price, -unix_micros(timed_bids.at))
                   ) as best
            from expiring_auctions join timed_bids
            on id = auction and timed_bids.at >= expiring_auctions.at and timed_bids.at <= expires
            group by id, category, seller, expires
        )
        """,
    ),
    11: (
        "append",
        f"""
        select bidder, window.start, window.end, bids from (
            select bidder, session_window(at, {_WINDOW}) as window, count(*) as bids
            from timed_bids group by 1, 2
        )
        """,
    ),
    18: (
        "update",
        """
        select auction, bidder, last.price, last.at from (
            select auction, bidder, max_by(struct(price, at), at) as last
            from bids group by auction, bidder
        )
        """,
    ),
    # row_number() is refused; a list of ten for each auction is not.
    19: (
        "update",
        """
        select auction, place + 1 as place, bid.* from (
            select auction, posexplode(top) as (place, bid) from (
                select auction, max_by(
                    struct(bidder, price, at), struct(price, -unix_micros(at)), 10
                ) as top
                from bids group by auction
            )
        )
        """,
    ),
}
"""The output mode and the text of each query that Spark can run."""


def name_views(spark: SparkSession, events: DataFrame) -> None:
    """Let SQL find events of all kinds, as `Events.table` has them, by the names used here."""
    for kind in ("person", "auction", "bid"):
        of_kind = events.where(f"{kind} is not null").select(f"{kind}.*")
        of_kind.createOrReplaceTempView(f"{kind}s")
        of_kind.withWatermark("at", LATENESS).createOrReplaceTempView(f"timed_{kind}s")
    expiring = spark.table("auctions").withWatermark("expires", LATENESS)
    expiring.createOrReplaceTempView("expiring_auctions")


class NexmarkEngine(Engine):
    number: ClassVar[int]
    schema = from_arrow_schema(Events(0).table(0, 50).schema)


class StatekitNexmark(NexmarkEngine):
    name = "statekit"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        query: Query = QUERIES[self.number]
        frames = {name: front.of_frame(df) for name, front in query.fronts.items()}
        return self.started_job(query.job(), spark, frames)


class SparkNexmark(NexmarkEngine):
    name = "Spark SQL"

    def start(self, spark: SparkSession, df: DataFrame) -> StreamingQuery:
        name_views(spark, df)
        mode, text = STREAMING_SQL[self.number]
        return self.started(spark.sql(text), mode)


def engines(number: int) -> list[type[NexmarkEngine]]:
    """What runs a query: statekit, and Spark if it can."""
    able = (StatekitNexmark, SparkNexmark) if number in STREAMING_SQL else (StatekitNexmark,)
    return [type(f"{made.__name__}{number}", (made,), {"number": number}) for made in able]


def measured(number: int, events: int = EVENTS, rounds: int = ROUNDS) -> list[Row]:
    """A query over batches of events."""
    arms = engines(number)
    mine, *others = in_turn(arms, _batches(events, WARM + rounds), WARM)
    ours = mine.arm("statekit", STATEKIT_DURABLE, events)
    title = f"Nexmark query {number}, {QUERIES[number].asks}, {events:,} events per batch"
    if number in CANNOT:
        why = f"Spark cannot: {CANNOT[number]}"
        told = f"{events / ours.seconds:,.0f} events/s ({ours.seconds:.2f} s); {why}"
        return [Row(title, told, "", (ours,), why)]
    theirs = others[0].arm("Spark SQL", SPARK_DURABLE, events)
    note = f"{IN_THE_JVM}; statekit calls it for {QUERIES[number].calls}."
    title = f"{title}: against Spark SQL"
    return [Row(title, faster(ours, theirs), "", (ours, theirs), note=note)]


def _batches(events: int, count: int) -> Iterator[pa.Table]:
    made = Events(seed=1, group=min(1000, events))
    for number in range(count):
        yield made.table(number * events, events)


def benchmark(number: int) -> Callable[[], list[Row]]:
    return lambda: measured(number)


BENCHMARKS = {f"nexmark-q{number}": benchmark(number) for number in QUERIES}
