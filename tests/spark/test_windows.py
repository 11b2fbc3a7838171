"""Windows on Spark hold what Spark's own SQL finds in them."""

from __future__ import annotations

import datetime as dt
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import statekit as sk
from tests.support.spark_runs import Runs, pieces

SCHEMA = "ad string, at timestamp, cents bigint"


class Impression(NamedTuple):
    ad: str
    at: dt.datetime
    cents: int | None


class Dearest(NamedTuple):
    ad: str
    cents: int | None
    start: dt.datetime


def given() -> list[Impression]:
    """A day around the hour that New York has twice, in an order that is 30 minutes off at most."""
    chance = random.Random(7)
    midnight = dt.datetime(2025, 11, 2, tzinfo=dt.UTC)
    seconds = sorted(chance.randrange(86_400) for _ in range(300))
    delayed = sorted((second + chance.randrange(1800), second) for second in seconds)
    return [
        Impression(
            chance.choice("abc"),
            midnight + dt.timedelta(seconds=second),
            None if chance.random() < 0.3 else chance.randrange(100),
        )
        for _, second in delayed
    ]


def job() -> sk.Job:
    made = sk.Job("ads")
    ads = made.source("ads", Impression)
    options: dict[str, Any] = {"key": "ad", "event_time": "at", "lateness": "30 minutes"}
    hours = ads.window(sk.tumbling("1 hour"), **options)
    hours.sum("cents").sink("sum")
    hours.collect("cents").sink("collect")
    sliding = ads.window(sk.sliding("3 hours", "1 hour", offset="15 min"), **options)
    sliding.max("cents", into=Dearest).sink("max")
    ads.window(sk.session("20 minutes"), **options).count().sink("count")
    return made


def test_windows_of_a_stream_are_those_of_sql(runs: Runs, spark: SparkSession) -> None:
    """In a session whose time zone has a day of 25 hours, which plays no part."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        records = given()
        for piece in pieces(records, 100):
            runs.feed("ads", [record._asdict() for record in piece])
        names = ("sum", "collect", "max", "count")
        outputs = {name: sk.sinks.parquet(runs.home / name) for name in names}
        inputs = {"ads": runs.stream("ads", SCHEMA)}
        query = runs.finish(job(), inputs, outputs=outputs, parallelism=2, drain=True)
        assert query.last_progress is not None
        assert not any(query.last_progress.state_rows.values())
        found = {name: [tuple(row.values()) for row in runs.parquet(name)] for name in names}
        frame = spark.read.schema(SCHEMA).parquet(str(runs.home / "ads"))

        def in_sql(window: Column, of: Column) -> list[tuple[Any, ...]]:
            grouped = frame.groupBy("ad", window.alias("w")).agg(of.alias("of"))
            micros = [F.unix_micros(f"w.{side}").alias(side) for side in ("start", "end")]
            return sorted(tuple(r) for r in grouped.select("ad", *micros, "of").collect())

        hour = F.window("at", "1 hour")
        assert as_micros(found["sum"]) == in_sql(hour, F.sum("cents"))
        everything = [(*row[:3], sorted(row[3])) for row in found["collect"]]
        assert as_micros(everything) == in_sql(hour, F.sort_array(F.collect_list("cents")))
        three = F.window("at", "3 hours", "1 hour", "15 minutes")
        dearest = [(ad, micros_of(start), cents) for ad, cents, start in found["max"]]
        wanted = [(ad, start, cents) for ad, start, _, cents in in_sql(three, F.max("cents"))]
        assert sorted(dearest, key=str) == sorted(wanted, key=str)
        sessions = F.session_window("at", "20 minutes")
        assert as_micros(found["count"]) == in_sql(sessions, F.count("*"))
        assert sum(row[3] for row in found["count"]) == len(records)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def micros_of(at: dt.datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def as_micros(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((ad, micros_of(start), micros_of(end), of) for ad, start, end, of in rows)


SENDER = """
from __future__ import annotations
import datetime as dt
from pathlib import Path
from typing import NamedTuple
import statekit as sk
from statekit.spark.worker.pickling import pickled

class Click(NamedTuple):
    ad: str
    at: dt.datetime
    cents: int | None

class Paid(NamedTuple):
    ad: str
    cents: int | None
    start: dt.datetime

class TwiceByAd(NamedTuple):
    ad: str
    twice: str

def double(held: int, added: Click) -> int:
    return held + 2 * (added.cents or 0)

clicks = sk.Job("main").source("clicks", Click)
windows = clicks.window(sk.session("1 h"), key="ad", event_time="at")
windows.sum("cents")
windows.sum("cents", into=Paid, name="paid")
windows.collect()
twice = sk.Aggregate(int, double, str, int.__add__)
own = sk.OwnAggregate(twice, accumulator=int, result=str)
windows.aggregate(twice=own, name="twice", into=TwiceByAd)
for number, operator in enumerate(clicks.plan.operators):
    Path("{home}", str(number)).write_bytes(pickled(operator.declared).data)
"""

RECEIVER = """
import datetime as dt
from pathlib import Path
import cloudpickle
from statekit.testing import Harness

for number in range(4):
    process = cloudpickle.loads(Path("{home}", str(number)).read_bytes())
    harness = Harness(process)
    cls = process.record_type.cls
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    harness.send(cls("a", noon, 3), cls("a", noon, None))
    (out,) = harness.advance_watermark(noon + dt.timedelta(days=1))
    process.output_type.to_batch([out])
    print(type(out).__name__, [len(v) if isinstance(v, list) else v for v in out][-1:][0])
"""


def test_windows_over_classes_of_a_script_go_to_workers(tmp_path: Path) -> None:
    """What is in `__main__`, or was made for the results, exists in no other process."""

    def python(code: str) -> str:
        program = code.replace("{home}", str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    python(SENDER)
    assert python(RECEIVER).splitlines() == [
        "SumCentsByAd 3",
        "Paid 2026-01-01 12:00:00+00:00",
        "CollectByAd 2",
        "TwiceByAd 6",
    ]
