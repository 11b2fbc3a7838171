"""The demo's independent check: the same questions in plain SQL over the raw file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from statekit.demo.flights import LATENESS
from statekit.reader import CheckpointReader

# All departures in the order of arrival, with their delay against event time.
_FLIGHTS = """
create or replace temp view raw as
select *, max(departed) over (order by time_hour, minute, carrier, flight, origin
  rows between unbounded preceding and current row) as latest
from (
  select *, to_timestamp(time_hour) +
    make_interval(0, 0, 0, 0, 0, minute + cast(dep_delay as int), 0) as departed
  from csv_flights where dep_delay is not null
)
"""
_IN_TIME = """
create or replace temp view in_time as
select tailnum, origin, dest, departed, arr_delay from raw
except all select tailnum, origin, dest, departed, arr_delay from late
"""
_TURNAROUNDS = """
select tailnum, origin as airport,
  (unix_micros(departed) - unix_micros(before)) / 3600000000 as hours_since, visits, late_total
from (
  select *,
    lag(departed) over (partition by tailnum order by departed, origin, dest) as before,
    count(*) over (partition by tailnum, origin order by departed, dest
      rows between unbounded preceding and current row) as visits,
    coalesce(sum(greatest(arr_delay, 0)) over (partition by tailnum order by departed, origin, dest
      rows between unbounded preceding and current row), 0) as late_total
  from in_time
) where before is not null
"""
_TOTALS = """
select count(*), round(sum(hours_since), 3), sum(visits), round(sum(late_total), 3),
  sum(xxhash64(tailnum, airport, visits) % 1000003) from {source}
"""
_AIRPORTS = """
select airport, max(struct(turnarounds, mean_hours, longest_hours)) as last from {source}
group by airport
"""
_LATE = """
select count(*) from late join (
  select distinct tailnum, origin, dest, departed from raw
  where latest - departed >= interval {hours} hours
) using (tailnum, origin, dest, departed)
"""
_GROUNDED = """
select tailnum, origin as airport, departed as since from (
  select *, lead(departed) over (partition by tailnum order by departed, origin, dest) as next
  from in_time
) where next is null or next >= departed + interval 24 hours
"""
_GROUNDED_TOTALS = """
select count(*), sum(xxhash64(tailnum, airport, unix_micros(since)) % 1000003) from {source}
"""
_HOURS = """
select origin, date_trunc('hour', departed) as start, count(*) as count from in_time
group by all
"""
_HOURS_TOTALS = """
select count(*), max(count), sum(xxhash64(origin, unix_micros(start), count) % 1000003)
from {source}
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
    """Ask the raw file the job's questions, and compare the answers."""
    raw = spark.read.csv(str(csv), header=True, inferSchema=True, nullValue="NA")
    raw.createOrReplaceTempView("csv_flights")
    for sink in ("late", "turnarounds", "grounded", "hours"):
        spark.read.parquet(str(home / sink)).createOrReplaceTempView(sink)
    spark.sql(_FLIGHTS)
    spark.sql(_IN_TIME)
    late_flights = _late(spark, home)
    late_flights += _totals(
        spark,
        (_TURNAROUNDS, "turnarounds", _TOTALS),
        "turnarounds",
        "hours between departures",
        "visits, summed over turnarounds",
        "minutes late, summed over turnarounds",
        "checksum over aircraft, airports, visits",
    )
    late_flights += _totals(
        spark,
        (_GROUNDED, "grounded", _GROUNDED_TOTALS),
        "aircraft on the ground for a day",
        "checksum over aircraft, airports, times",
    )
    late_flights += _totals(
        spark,
        (_HOURS, "hours", _HOURS_TOTALS),
        "hours with departures, per airport",
        "most departures in an hour",
        "checksum over airports, hours, departures",
    )
    return late_flights + _states(spark, home) + _summaries(spark, home)


def _totals(
    spark: SparkSession, columns: tuple[str, str, str], *questions: str
) -> list[Comparison]:
    """Compare totals of the job's output with those of SQL."""
    query, sink, totals = columns
    spark.sql(query).createOrReplaceTempView(f"expected_{sink}")
    written = spark.sql(totals.format(source=sink)).collect()[0]
    expected = spark.sql(totals.format(source=f"expected_{sink}")).collect()[0]
    return [
        Comparison(question, job, batch)
        for question, job, batch in zip(questions, written, expected, strict=True)
    ]


def _late(spark: SparkSession, home: Path) -> list[Comparison]:
    """Compare the number of late flights. Which flights are late depends on how Spark cuts its
    input.
    """
    epoch = CheckpointReader(home / "checkpoint").manifest.operators["turnaround"]
    hours = LATENESS // timedelta(hours=1)
    confirmed = spark.sql(_LATE.format(hours=hours)).collect()[0][0]
    return [Comparison(f"flights too late, by {hours} hours", epoch.late_so_far, confirmed)]


def _states(spark: SparkSession, home: Path) -> list[Comparison]:
    """Compare states, read from the checkpoint's files, with the raw file."""
    reader = CheckpointReader(home / "checkpoint")
    with tempfile.TemporaryDirectory() as directory:
        visits = list(reader.rows("turnaround", "visits", Path(directory) / "visits"))
        late = dict(reader.rows("turnaround", "late", Path(directory) / "late"))
    flights, aircraft, minutes = spark.sql(
        "select count(*), count(distinct tailnum), round(sum(greatest(arr_delay, 0)), 3) "
        "from in_time"
    ).collect()[0]
    return [
        Comparison("flights, in state visits", sum(sum(m.values()) for _, m in visits), flights),
        Comparison("aircraft, in state visits", len(visits), aircraft),
        Comparison("minutes late, in state late", round(sum(late.values()), 3), minutes),
    ]


def _summaries(spark: SparkSession, home: Path) -> list[Comparison]:
    counted = "select airport, count(*) from expected_turnarounds group by airport"
    expected = spark.sql(counted).collect()
    written = {airport: turnarounds for airport, turnarounds, *_ in airports(spark, home)}
    return [
        Comparison("turnarounds per airport", sorted(written.items()), sorted(map(tuple, expected)))
    ]


def airports(spark: SparkSession, home: Path) -> list[tuple[str, int, float, float]]:
    """Return the last summary of each airport that the job wrote."""
    spark.read.parquet(str(home / "airports")).createOrReplaceTempView("summaries")
    rows = spark.sql(_AIRPORTS.format(source="summaries")).collect()
    return sorted((row.airport, *row.last) for row in rows)
