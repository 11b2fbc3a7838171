"""Alerts on absence: a sensor that has sent nothing for ten minutes, and one that is back.

    python examples/absence.py                                        in this process
    statekit run examples.absence:job --checkpoint results/absence/checkpoint --spark 'local[2]'
    pytest examples/absence.py                                        check the function

Each reading moves the sensor's only timer. Event time goes on with the readings of all sensors, so
a silent one is noticed as soon as the others are ten minutes ahead.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/absence")
SILENCE = dt.timedelta(minutes=10)


class Reading(NamedTuple):
    sensor: str
    celsius: float
    at: dt.datetime


class Alert(NamedTuple):
    sensor: str
    status: str
    at: dt.datetime


@sk.process(key="sensor", event_time="at", lateness="1 minute", ordered=True)
def watched(reading: Reading, ctx: sk.Context[str], status: sk.ValueState[str]) -> Iterator[Alert]:
    if status.get() == "silent":
        yield Alert(reading.sensor, "back", reading.at)
    status.update("heard")
    ctx.timers.replace(reading.at + SILENCE)


@watched.on_timer
def silent(timer: sk.Timer, ctx: sk.Context[str], status: sk.ValueState[str]) -> Iterator[Alert]:
    status.update("silent")
    yield Alert(ctx.key, "silent", timer.at)


job = sk.Job("absence")
readings = job.source("readings", Reading, sk.sources.files(DATA / "readings.jsonl"))
readings.process(watched).sink("alerts", sk.sinks.json_lines(RESULTS / "alerts"))


def test_the_alerts_depend_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(watched, depth="quick")


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint", drain=True)
    for file in sorted((RESULTS / "alerts").rglob("*.jsonl")):
        print(file.read_text(), end="")
