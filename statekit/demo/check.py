"""The demo's independent check: the same questions in plain SQL over the raw file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statekit.demo.flights import LATENESS
from statekit.query.rows.reader import CheckpointReader

# The columns of the raw file: Spark would read all of it once more to infer them.
_COLUMNS = """
year int, month int, day int, dep_time double, sched_dep_time int, dep_delay double,
arr_time double, sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string,
origin string, dest string, air_time double, distance double, hour double, minute double,
time_hour timestamp
"""

# All departures in the order of arrival, with the latest departure so far.
_RAW = """
select *, max(departed) over (order by time_hour, minute, carrier, flight, origin
  rows between unbounded preceding and current row) as latest
from (
  select *, to_timestamp(time_hour) +
    make_interval(0, 0, 0, 0, 0, minute + cast(dep_delay as int), 0) as departed
  from csv_flights where dep_delay is not null
)
"""
_IN_TIME = """
select tailnum, origin, dest, departed, arr_delay from raw
except all select tailnum, origin, dest, departed, arr_delay from late
"""
_TURNAROUNDS = """
select tailnum, origin as airport,
  (unix_micros(departed) - unix_micros(before)) div 60000000 as minutes_since, visits,
  cast(late_total as bigint) as late_total
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
_GROUNDED = """
select tailnum, origin, departed from (
  select *, lead(departed) over (partition by tailnum order by departed, origin, dest) as next
  from in_time
) where next is null or next >= departed + interval 24 hours
"""
_LATE = """
select count(*) from late join (
  select distinct tailnum, origin, dest, departed from raw
  where latest - departed >= interval {hours} hours
) using (tailnum, origin, dest, departed)
"""
_STATES = "select count(*), count(distinct tailnum), sum(greatest(arr_delay, 0)) from in_time"

# What the job has written, and the same rows from the raw file. No column is a float.
_OUTPUTS = {
    "turnarounds": (
        "select tailnum, airport, cast(round(hours_since * 60) as bigint), visits, "
        "cast(late_total as bigint) from turnarounds",
        "select * from expected_turnarounds",
    ),
    "aircraft on the ground for a day": ("select * from grounded", _GROUNDED),
    "hours with departures, per airport": (
        "select * from hours",
        "select origin, date_trunc('hour', departed), count(*) from in_time group by all",
    ),
    "airports with turnarounds": (
        "select airport, max(turnarounds) from airports group by airport",
        "select airport, count(*) from expected_turnarounds group by airport",
    ),
}


class ComparedAnswers(NamedTuple):
    """One question, with both answers."""

    question: str
    job: float
    batch: float

    @property
    def agrees(self) -> bool:
        return self.job == self.batch


def compare_with_file(spark: SparkSession, csv: Path, home: Path) -> list[ComparedAnswers]:
    """Ask the raw file the job's questions, and compare the answers."""
    raw = spark.read.csv(str(csv), schema=_COLUMNS, header=True, nullValue="NA")
    raw.createOrReplaceTempView("csv_flights")
    for sink in ("late", "turnarounds", "airports", "grounded", "hours"):
        spark.read.parquet(str(home / sink)).createOrReplaceTempView(sink)
    views = {"raw": _RAW, "in_time": _IN_TIME, "expected_turnarounds": _TURNAROUNDS}
    for name, query in views.items():
        # Each is in several questions: computed once, and the file is parsed once.
        spark.sql(query).persist().createOrReplaceTempView(name)
    return [*_late(spark, home), *_outputs(spark), *_states(spark, home)]


def _outputs(spark: SparkSession) -> Iterator[ComparedAnswers]:
    """Compare the number of rows of each output, and a checksum of all its columns."""
    totals = "select count(*), sum(xxhash64(*) % 1000003) from ({})"
    for question, queries in _OUTPUTS.items():
        job, batch = (spark.sql(totals.format(query)).collect()[0] for query in queries)
        yield ComparedAnswers(question, job[0], batch[0])
        yield ComparedAnswers(f"{question}: checksum", job[1], batch[1])


def _late(spark: SparkSession, home: Path) -> Iterator[ComparedAnswers]:
    """Compare the number of late flights. Which flights are late depends on how Spark cuts its
    input.
    """
    epoch = CheckpointReader(home / "checkpoint").manifest.operators["turnaround"]
    hours = LATENESS // timedelta(hours=1)
    confirmed = spark.sql(_LATE.format(hours=hours)).collect()[0][0]
    yield ComparedAnswers(f"flights too late, by {hours} hours", epoch.late_so_far, confirmed)


def _states(spark: SparkSession, home: Path) -> Iterator[ComparedAnswers]:
    """Compare states, read from the checkpoint's files, with the raw file."""
    reader = CheckpointReader(home / "checkpoint")
    with tempfile.TemporaryDirectory() as directory:
        visits = list(reader.rows("turnaround", "visits", Path(directory) / "visits"))
        late = dict(reader.rows("turnaround", "late", Path(directory) / "late"))
    flights, aircraft, minutes = spark.sql(_STATES).collect()[0]
    yield ComparedAnswers(
        "flights, in state visits", sum(sum(m.values()) for _, m in visits), flights
    )
    yield ComparedAnswers("aircraft, in state visits", len(visits), aircraft)
    yield ComparedAnswers("minutes late, in state late", sum(late.values()), minutes)


def airports(spark: SparkSession, home: Path) -> list[tuple[str, int, float, float]]:
    """Return the last summary of each airport that the job wrote."""
    summaries = spark.read.parquet(str(home / "airports"))
    last = F.max(F.struct("turnarounds", "mean_hours", "longest_hours")).alias("last")
    rows = summaries.groupBy("airport").agg(last).collect()
    return sorted((row.airport, *row.last) for row in rows)
