"""Nexmark's queries in the streaming SQL of Flink.

What lives here: the tables over the files of `streams`, the options of a session, and the queries.
What does not: running them (`tests.bench.peers.jobs.nexmark_flink_job`).

Times are integers in the files, milliseconds since 1970, and watermarks are a second behind, as in
the jobs of statekit.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPTIONS", "QUERIES", "TABLES", "FlinkQuery"]

OPTIONS = {
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
}
"""Records of a key are aggregated in bundles, before and after the shuffle, to touch state less."""

_EVENT_TIME = """
    event_time AS TO_TIMESTAMP_LTZ(`at`, 3),
    WATERMARK FOR event_time AS event_time - INTERVAL '1' SECOND
"""

TABLES = {
    "persons": f"""
        id BIGINT, name STRING, email STRING, credit_card STRING, city STRING, state STRING,
        `at` BIGINT, extra STRING, {_EVENT_TIME}
    """,
    "auctions": f"""
        id BIGINT, item STRING, description STRING, initial_bid BIGINT, reserve BIGINT,
        `at` BIGINT, expires BIGINT, seller BIGINT, category BIGINT, extra STRING, {_EVENT_TIME}
    """,
    "bids": f"""
        auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `at` BIGINT,
        extra STRING, {_EVENT_TIME}
    """,
}
"""The columns of each table."""


class FlinkQuery(NamedTuple):
    """A query.

    Parameters:
        columns: of its results, with their types.
        text: what is asked.
    """

    columns: str
    text: str


_TUMBLING = "TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(event_time), INTERVAL '10' SECOND))"

_WINNING = """
    SELECT id, category, seller, bidder, price, event_time FROM (
        SELECT auctions.id, category, seller, bidder, price, bids.event_time,
               ROW_NUMBER() OVER (
                   PARTITION BY auctions.id ORDER BY price DESC, bids.event_time
               ) AS place
        FROM auctions JOIN bids ON auctions.id = bids.auction
        WHERE bids.`at` BETWEEN auctions.`at` AND expires
    ) WHERE place = 1
"""

QUERIES: dict[int, FlinkQuery] = {
    3: FlinkQuery(
        "name STRING, city STRING, state STRING, auction BIGINT",
        """
        SELECT name, city, state, auctions.id
        FROM auctions JOIN persons ON seller = persons.id
        WHERE category = 10 AND state IN ('OR', 'ID', 'CA')
        """,
    ),
    4: FlinkQuery(
        "category BIGINT, price DOUBLE",
        """
        SELECT category, AVG(CAST(price AS DOUBLE)) FROM (
            SELECT auctions.id, category, MAX(price) AS price
            FROM auctions JOIN bids ON auctions.id = bids.auction
            WHERE bids.`at` BETWEEN auctions.`at` AND expires
            GROUP BY auctions.id, category
        ) GROUP BY category
        """,
    ),
    5: FlinkQuery(
        "auction BIGINT, ends TIMESTAMP(3), bids BIGINT",
        """
        WITH counted AS (
            SELECT auction, window_start, window_end, COUNT(*) AS bids
            FROM TABLE(HOP(
                TABLE bids, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND
            ))
            GROUP BY auction, window_start, window_end
        ), most AS (
            SELECT window_start, window_end, MAX(bids) AS bids
            FROM counted GROUP BY window_start, window_end
        )
        SELECT counted.auction, counted.window_end, counted.bids
        FROM counted JOIN most
        ON counted.window_start = most.window_start AND counted.window_end = most.window_end
            AND counted.bids = most.bids
        """,
    ),
    # Right for up to ten highest bids of one price. The benchmark's own join would keep all bids.
    7: FlinkQuery(
        "auction BIGINT, bidder BIGINT, price BIGINT, `at` TIMESTAMP_LTZ(3)",
        f"""
        WITH ranked AS (
            SELECT auction, bidder, price, event_time, window_start, window_end FROM (
                SELECT *, ROW_NUMBER() OVER (
                    PARTITION BY window_start, window_end ORDER BY price DESC
                ) AS place
                FROM {_TUMBLING.format(table="bids")}
            ) WHERE place <= 10
        ), highest AS (
            SELECT window_start, window_end, MAX(price) AS price
            FROM ranked GROUP BY window_start, window_end
        )
        SELECT auction, bidder, ranked.price, event_time
        FROM ranked JOIN highest
        ON ranked.window_start = highest.window_start AND ranked.window_end = highest.window_end
            AND ranked.price = highest.price
        """,
    ),
    8: FlinkQuery(
        "id BIGINT, name STRING, ends TIMESTAMP(3)",
        f"""
        SELECT came.id, name, came.window_end
        FROM (
            SELECT id, name, window_start, window_end
            FROM {_TUMBLING.format(table="persons")} GROUP BY id, name, window_start, window_end
        ) AS came JOIN (
            SELECT seller, window_start, window_end
            FROM {_TUMBLING.format(table="auctions")} GROUP BY seller, window_start, window_end
        ) AS sold
        ON came.id = sold.seller
            AND came.window_start = sold.window_start AND came.window_end = sold.window_end
        """,
    ),
    9: FlinkQuery(
        "auction BIGINT, category BIGINT, seller BIGINT, bidder BIGINT, price BIGINT, "
        "`at` TIMESTAMP_LTZ(3)",
        _WINNING,
    ),
    # Flink merges sessions that touch: in milliseconds, a pause of ten seconds is more than 9.999.
    11: FlinkQuery(
        "bidder BIGINT, starts TIMESTAMP(3), ends TIMESTAMP(3), bids BIGINT",
        """
        SELECT bidder, window_start, window_end + INTERVAL '0.001' SECOND, COUNT(*)
        FROM TABLE(SESSION(
            TABLE bids PARTITION BY bidder, DESCRIPTOR(event_time), INTERVAL '9.999' SECOND
        ))
        GROUP BY bidder, window_start, window_end
        """,
    ),
    18: FlinkQuery(
        "auction BIGINT, bidder BIGINT, price BIGINT, `at` TIMESTAMP_LTZ(3)",
        """
        SELECT auction, bidder, price, event_time FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction ORDER BY event_time DESC
            ) AS place
            FROM bids
        ) WHERE place = 1
        """,
    ),
    19: FlinkQuery(
        "auction BIGINT, place BIGINT, bidder BIGINT, price BIGINT, `at` TIMESTAMP_LTZ(3)",
        """
        SELECT auction, place, bidder, price, event_time FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC, event_time
            ) AS place
            FROM bids
        ) WHERE place <= 10
        """,
    ),
}
