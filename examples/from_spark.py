"""From Spark: a processor of `transformWithState`, and the function that replaces it.

    python examples/from_spark.py                                     the function, in this process
    python examples/from_spark.py 'local[2]'                          the processor, on Spark
    pytest examples/from_spark.py                                     check the function

The processor is as it was written for Spark. With `transform_with_state` of statekit it runs
unchanged, with statekit's checkpoint. It gets all rows of a batch before its timers: of one batch,
each user has one long visit. The function gets records and timers in order of time, so its visits
are the same for all batches. It can be checked, and needs no Spark.
"""

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/from_spark")
PAUSE = dt.timedelta(minutes=30)


class Click(NamedTuple):
    user: str
    page: str
    at: dt.datetime


class Ended(NamedTuple):
    user: str
    pages: int


@sk.process(key="user", event_time="at", lateness="1 minute", ordered=True)
def visits(click: Click, ctx: sk.Context[str], pages: sk.MapState[str, int]) -> Iterator[Ended]:
    pages[click.page] = pages.get(click.page, 0) + 1
    ctx.timers.replace(click.at + PAUSE)
    yield from ()


@visits.on_timer
def visit_ended(
    timer: sk.Timer, ctx: sk.Context[str], pages: sk.MapState[str, int]
) -> Iterator[Ended]:
    yield Ended(ctx.key, sum(pages.values()))
    pages.clear()


job = sk.Job("from_spark")
clicks = job.source("clicks", Click, sk.sources.files(DATA / "visits.jsonl"))
clicks.process(visits).sink("visits", sk.sinks.json_lines(RESULTS / "visits"))


def on_spark(spark: Any) -> list[tuple[str, int]]:
    """Run the processor, as it was written for Spark."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from statekit.spark import transform_with_state

    class Visits(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.pages = handle.getMapState("pages", "page string", "count int")
            self.last = handle.getValueState("last", "at bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for row in rows:
                seen = self.pages.getValue((row.page,))
                self.pages.updateValue((row.page,), ((seen["count"] if seen else 0) + 1,))
                at = int(row.at.timestamp() * 1000)
                if (last := self.last.get()) is not None:
                    self.handle.deleteTimer(last[0] + 1_800_000)
                self.last.update((at,))
                self.handle.registerTimer(at + 1_800_000)
            yield from ()

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            yield Row(user=key[0], pages=sum(count for (count,) in self.pages.values()))
            self.pages.clear()
            self.last.clear()

    rows = spark.readStream.schema("user string, page string, at timestamp").json(
        str(DATA / "visits*")
    )
    found: list[Any] = []
    transform_with_state(
        rows.withWatermark("at", "1 minute"),
        "user",
        Visits(),
        "user string, pages int",
        time_mode="eventTime",
    ).sink(lambda df, epoch: found.extend(df.collect())).start(
        spark, checkpoint=str(RESULTS / "spark-checkpoint"), trigger={"availableNow": True}
    ).await_termination()
    return sorted((row.user, row.pages) for row in found)


def test_the_visits_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(visits, depth="quick")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from pyspark.sql import SparkSession

        print(*on_spark(SparkSession.builder.master(sys.argv[1]).getOrCreate()), sep="\n")
    else:
        job.run(checkpoint=RESULTS / "checkpoint", drain=True)
        for file in sorted((RESULTS / "visits").rglob("*.jsonl")):
            print(file.read_text(), end="")
