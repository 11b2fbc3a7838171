"""Calendar windows: where they begin and end, against expectations by hand, plain zoneinfo and
DuckDB.
"""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.job.windows import calendar_grid, calendar_windows
from statekit.job.windows.calendar_windows import CalendarWindow
from statekit.testing import Harness
from statekit.testing.oracles.window_model import calendar_bounds
from statekit.timestamp import MAX_MICROS, MIN_MICROS, datetime_to_micros
from statekit.watermark import BEGINNING

FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
BERLIN = "Europe/Berlin"


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int = 1


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def windowed(window: Any, **options: Any) -> Any:
    return windows_of(sk.Job("calendar"), window, **options)


def windows_of(job: sk.Job, window: Any, **options: Any) -> Any:
    source = job.source("events", Event)
    return source.window(window, key="key", event_time="at", **options)


def calendar(size: str, zone: str, offset: str = "0 s") -> CalendarWindow:
    window = sk.tumbling(size, offset, zone=zone)
    assert isinstance(window, CalendarWindow)
    return window


@pytest.mark.parametrize(
    ("size", "zone", "at", "start", "end"),
    [
        # Days of 23 and 25 hours.
        ("1 day", BERLIN, "2026-03-29 12:00", "2026-03-28 23:00", "2026-03-29 22:00"),
        ("1 day", BERLIN, "2026-10-25 12:00", "2026-10-24 22:00", "2026-10-25 23:00"),
        ("1 day", BERLIN, "2026-10-24 22:00", "2026-10-24 22:00", "2026-10-25 23:00"),
        # There is no midnight: the day begins at 01:00.
        ("1 day", "America/Sao_Paulo", "2018-11-04 12:00", "2018-11-04 03:00", "2018-11-05 02:00"),
        # Midnight is shown twice, from 2006-10-29 02:30 UTC and an hour later.
        ("1 day", "America/St_Johns", "2006-10-29 03:00", "2006-10-29 02:30", "2006-10-30 03:30"),
        # 2011-12-30 did not exist in Samoa.
        ("1 day", "Pacific/Apia", "2011-12-30 09:59", "2011-12-29 10:00", "2011-12-30 10:00"),
        ("1 day", "Pacific/Apia", "2011-12-30 10:00", "2011-12-30 10:00", "2011-12-31 10:00"),
        # Alaska had 1867-10-18 twice.
        (
            "1 day",
            "America/Juneau",
            "1867-10-19 12:00",
            "1867-10-18 08:57:41",
            "1867-10-20 08:57:41",
        ),
        # The clock of Brussels was 17 minutes and 30 seconds ahead of UTC.
        (
            "1 day",
            "Europe/Brussels",
            "1880-01-01 12:00",
            "1879-12-31 23:42:30",
            "1880-01-01 23:42:30",
        ),
        # ISO weeks begin on Monday.
        ("1 week", BERLIN, "2026-04-01 12:00", "2026-03-29 22:00", "2026-04-05 22:00"),
        ("1 week", BERLIN, "2026-03-29 12:00", "2026-03-22 23:00", "2026-03-29 22:00"),
        ("7 days", "UTC", "1970-01-01 00:00", "1969-12-29 00:00", "1970-01-05 00:00"),
        ("1 month", BERLIN, "2026-03-10 00:00", "2026-02-28 23:00", "2026-03-31 22:00"),
        ("3 months", BERLIN, "2026-03-10 00:00", "2025-12-31 23:00", "2026-03-31 22:00"),
        ("1 year", "Asia/Kolkata", "2026-03-10 00:00", "2025-12-31 18:30", "2026-12-31 18:30"),
        # Hours and parts of days.
        ("1 hour", "Asia/Kolkata", "2026-03-10 00:00", "2026-03-09 23:30", "2026-03-10 00:30"),
        ("6 hours", BERLIN, "2026-03-29 00:00", "2026-03-28 23:00", "2026-03-29 04:00"),
        ("6 hours", BERLIN, "2026-10-25 01:00", "2026-10-24 22:00", "2026-10-25 05:00"),
        # The hour from two to three comes twice.
        ("1 hour", BERLIN, "2026-10-25 00:30", "2026-10-25 00:00", "2026-10-25 01:00"),
        ("1 hour", BERLIN, "2026-10-25 01:30", "2026-10-25 01:00", "2026-10-25 02:00"),
        # The clock of Lord Howe goes half an hour ahead, from 02:00 to 02:30.
        (
            "1 hour",
            "Australia/Lord_Howe",
            "2026-10-03 15:30",
            "2026-10-03 15:30",
            "2026-10-03 16:00",
        ),
    ],
)
def test_windows_begin_where_the_clock_of_the_zone_says(
    size: str, zone: str, at: str, start: str, end: str
) -> None:
    (found,) = counted(sk.tumbling(size, zone=zone), utc(at))
    assert found[1:3] == (utc(start), utc(end))


def counted(window: Any, *times: dt.datetime, **options: Any) -> list[Any]:
    job = sk.Job("calendar")
    windows_of(job, window, **options).count().sink("out")
    return job.run({"events": [Event("k", at) for at in times]})["out"]


def test_without_a_zone_months_and_years_are_in_utc_and_weeks_begin_on_thursday() -> None:
    at = utc("2026-03-10 00:00")
    (month,) = counted(sk.tumbling("1 month"), at)
    assert month[1:3] == (utc("2026-03-01"), utc("2026-04-01"))
    (year,) = counted(sk.tumbling("1 year"), at)
    assert year[1:3] == (utc("2026-01-01"), utc("2027-01-01"))
    (week,) = counted(sk.tumbling("1 week"), at)
    assert week[1:3] == (utc("2026-03-05"), utc("2026-03-12"))
    assert sk.tumbling("1 year 6 months") == sk.tumbling("18 months")


@pytest.mark.parametrize(
    ("size", "offset", "start", "end"),
    [
        ("1 day", "6 hours", "2026-03-29 04:00", "2026-03-30 04:00"),
        ("1 day", "30 hours", "2026-03-29 04:00", "2026-03-30 04:00"),
        ("1 week", "6 days", "2026-03-28 23:00", "2026-04-04 22:00"),  # from Sunday
        ("1 month", "14 days", "2026-03-14 23:00", "2026-04-14 22:00"),
        ("12 hours", "1 hour", "2026-03-29 11:00", "2026-03-29 23:00"),
    ],
)
def test_an_offset_is_a_time_on_the_clock(size: str, offset: str, start: str, end: str) -> None:
    (found,) = counted(sk.tumbling(size, offset, zone=BERLIN), utc("2026-03-29 12:00"))
    assert found[1:3] == (utc(start), utc(end))


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("size", ["1 hour", "1 day", "1 week", "1 month", "1 year", "100 years"])
@pytest.mark.parametrize("allowed", ["0 s", "2 days"])
def test_the_first_and_the_last_instant_are_in_windows_that_are_cut_off(
    size: str, zone: str, allowed: str
) -> None:
    found = counted(sk.tumbling(size, zone=zone), FIRST, LAST, allowed_lateness=allowed)
    assert [result.count for result in found] == [1, 1]
    assert found[0].start == FIRST < found[0].end
    assert found[1].start < found[1].end == LAST


def test_windows_of_ten_thousand_are_those_of_a_zone_that_is_there_already() -> None:
    (found,) = counted(sk.tumbling("1 year", zone=BERLIN), LAST)
    assert found[1:3] == (utc("9999-12-31 23:00"), LAST)


# ------------------------------------------------------------------------- against other systems

ZONES = st.sampled_from(
    [
        *["UTC", BERLIN, "America/New_York", "America/St_Johns", "Australia/Lord_Howe"],
        *["Pacific/Apia", "Pacific/Kwajalein", "Asia/Kathmandu", "Africa/Casablanca"],
        *["America/Sao_Paulo", "Asia/Manila", "Africa/Monrovia", "America/Juneau", "Asia/Gaza"],
        *["Antarctica/Troll", "Europe/Dublin", "Asia/Tehran", "America/Havana"],
    ]
)
SIZES = st.sampled_from(
    [
        *["15 minutes", "1 hour", "6 hours", "12 hours", "1 day", "2 days", "1 week", "30 days"],
        *["1 month", "3 months", "1 year", "7 years"],
    ]
)
OFFSETS = st.sampled_from(["0 s", "0 s", "6 hours", "90 minutes", "36 hours"])
HOUR = 3_600_000_000


def changes(zone: str) -> list[int]:
    """Times within two days of the changes of a zone's clock from 1850 to 2050."""
    info = zoneinfo.ZoneInfo(zone)
    days = [utc("1850-01-01") + dt.timedelta(days=2 * n) for n in range(100 * 365)]
    offsets = [day.astimezone(info).utcoffset() for day in days]
    found = [n for n in range(1, len(days)) if offsets[n] != offsets[n - 1]]
    return [datetime_to_micros(days[n]) for n in found] or [0]


CHANGES: dict[str, list[int]] = {}


@st.composite
def times_in(draw: st.DrawFn, zone: str) -> int:
    if zone not in CHANGES:
        CHANGES[zone] = changes(zone)
    return draw(
        st.integers(0, 2**52)
        | st.integers(-(2**51), 2**51)
        | st.sampled_from([MIN_MICROS, MAX_MICROS])
        | st.integers(MIN_MICROS, MAX_MICROS)
        | st.builds(
            lambda change, hours, more: change + hours * HOUR // 4 + more,
            st.sampled_from(CHANGES[zone]),
            st.integers(-200, 200),
            st.sampled_from([0, -1, 1]),
        )
    )


@settings(max_examples=30, deadline=None)
@given(st.data(), ZONES, SIZES, OFFSETS)
def test_windows_are_those_of_a_look_at_each_record(
    data: st.DataObject, zone: str, size: str, offset: str
) -> None:
    window = calendar(size, zone, offset)
    times = data.draw(st.lists(times_in(zone), min_size=1, max_size=8))
    expected = [calendar_bounds(window, time) for time in times]
    assert [window.grid.bounds(time) for time in times] == expected
    starts, ends = window.grid.bounds_of(np.array(times, np.int64))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
    panes = window.panes("at").of([], pa.chunked_array([times], pa.int64()), BEGINNING)
    of_panes: dict[int, tuple[int, int]] = {}
    for pane, bounds in zip(panes.to_pylist(), expected, strict=True):
        assert pane >= 0
        assert of_panes.setdefault(pane, bounds) == bounds


def test_late_instants_have_a_pane_of_their_own() -> None:
    times = pa.chunked_array([[MIN_MICROS, 3, 4, 5, MAX_MICROS]], pa.int64())
    found = calendar("1 day", BERLIN).panes("at").of([], times, late_us=4).to_pylist()
    assert found[:3] == [-1, -1, -1]
    assert min(found[3:]) >= 0


@pytest.mark.parametrize(
    ("size", "part"),
    [("1 day", "day"), ("1 week", "week"), ("1 month", "month"), ("1 year", "year")],
)
def test_windows_begin_where_duckdb_truncates(size: str, part: str) -> None:
    """Of days whose midnight exists once: DuckDB has another rule for the others."""
    connection = duckdb.connect()
    for zone in ("UTC", BERLIN, "America/New_York", "Asia/Kathmandu", "Africa/Casablanca"):
        connection.execute(f"SET TimeZone = '{zone}'")
        times = [utc("1990-01-01") + dt.timedelta(hours=7 * n) for n in range(43_000)]
        micros = np.array([datetime_to_micros(time) for time in times], np.int64)
        times_us = pa.table({"us": micros})
        truncated = connection.execute(
            f"SELECT epoch_us(date_trunc('{part}', make_timestamptz(us))) FROM times_us"
        ).fetchnumpy()
        starts, _ = calendar(size, zone).grid.bounds_of(micros)
        assert times_us.num_rows == len(starts)
        assert next(iter(truncated.values())).tolist() == starts.tolist()


# ----------------------------------------------------------------------------------- in operators

OWN: sk.Aggregate[int, int, int] = sk.Aggregate(
    lambda: 0, lambda held, value: held + value, lambda held: held
)
RECORDS = [
    Event("ab"[n % 2], utc("2026-03-27 00:00") + dt.timedelta(hours=5 * n - 30 * (n % 3 == 0)), n)
    for n in range(40)
]


@pytest.mark.parametrize("size", ["1 day", "1 week", "1 month", "6 hours"])
@pytest.mark.parametrize(
    "options", [{}, {"allowed_lateness": "1 day"}, {"emit": "change"}, {"ordered": True}]
)
def test_combined_records_have_the_results_of_single_ones(
    size: str, options: dict[str, Any]
) -> None:
    job = sk.Job("calendar")
    windows = windows_of(job, sk.tumbling(size, zone=BERLIN), lateness="1 day", **options)
    windows.sum("value", name="combined").sink("combined")
    own = sk.OwnAggregate(OWN, accumulator=int, result=int, field="value")
    windows.aggregate(value=own, name="single").sink("single")
    windows.collect("value", name="listed").sink("listed")
    run: Any = job.run({"events": RECORDS}, epoch_size=6)
    found = sorted(map(tuple, run["combined"]))
    assert found == sorted(map(tuple, run["single"])) != []
    assert found == sorted((*result[:3], sum(result.value)) for result in run["listed"])


def test_rows_have_the_start_and_the_end_of_their_window() -> None:
    harness = Harness(windowed(sk.tumbling("1 day", zone=BERLIN)).count())
    harness.send(Event("a", utc("2026-03-29 12:00")))
    start, end = utc("2026-03-28 23:00"), utc("2026-03-29 22:00")
    assert dict(harness.state("windows", "a")) == {(start, end): 1}


@pytest.mark.parametrize("emit", ["close", "change"])
@pytest.mark.parametrize("allowed", ["0 s", "1 day"])
def test_an_open_window_keeps_its_bounds_if_the_database_changes(
    emit: str, allowed: str, own_zone: Path, tmp_path: Path
) -> None:
    def declared() -> Any:
        window = sk.tumbling("1 day", zone="Own/Zone")
        return windowed(window, allowed_lateness=allowed, emit=emit).count()

    harness = Harness(declared())
    harness.send(Event("a", utc("2026-01-01 12:00")))
    harness.checkpoint(tmp_path / "checkpoint")
    changed(own_zone, "America/New_York")
    after = Harness.restore(declared(), tmp_path / "checkpoint")
    after.send(Event("a", utc("2026-01-01 13:00")))
    found = after.advance_watermark(utc("2026-01-04 00:00")) if emit == "close" else []
    expected = [("2025-12-31 23:00", "2026-01-01 23:00"), ("2026-01-01 05:00", "2026-01-02 05:00")]
    if emit == "close":
        assert [result[1:3] for result in found] == [tuple(map(utc, each)) for each in expected]
        assert [result.count for result in found] == [1, 1]
    after.advance_watermark(utc("2026-01-09 00:00"))
    assert dict(after.state("windows", "a")) == {}


@pytest.fixture
def own_zone(tmp_path: Path) -> Iterator[Path]:
    """The file of a zone in a database of its own; it is a copy of the one of Berlin."""
    before = zoneinfo.TZPATH
    folder = tmp_path / "zoneinfo"
    path = folder / "Own" / "Zone"
    path.parent.mkdir(parents=True)
    shutil.copy(Path(before[0]) / BERLIN, path)
    zoneinfo.reset_tzpath([*before, str(folder)])
    yield path
    zoneinfo.reset_tzpath(before)
    forget_zones()


def changed(path: Path, zone: str) -> None:
    shutil.copy(Path(zoneinfo.TZPATH[0]) / zone, path)
    forget_zones()


def forget_zones() -> None:
    """What another process would not know."""
    zoneinfo.ZoneInfo.clear_cache()
    calendar_grid._interval.cache_clear()
    calendar_windows._panes.cache_clear()


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("size", "options", "problem"),
    [
        ("1 day", {"zone": "Europe/Berln"}, "no such zone: give .* such as 'Europe/Berlin'"),
        ("1 day", {"zone": "../etc/passwd"}, "the time zone database of this machine has no such"),
        ("1 day", {"zone": "Europe"}, "the time zone database of this machine has no such"),
        ("1 day", {"zone": ""}, "the time zone database of this machine has no such"),
        ("1 day", {"zone": dt.UTC}, 'give the name of a time zone, such as "Europe/Berlin"'),
        ("7 hours", {"zone": BERLIN}, "windows in the local time of a zone are whole days"),
        ("1 second", {"zone": BERLIN}, "windows in the local time of a zone are whole days"),
        ("36 hours", {"zone": BERLIN}, "windows in the local time of a zone are whole days"),
        ("0 days", {"zone": BERLIN}, "give more than nothing"),
        ("0 months", {}, "give 1 month to 100 years"),
        ("101 years", {}, "give 1 month to 100 years"),
        ("1 month 2 days", {}, "in months and years only"),
        ("1 month", {"offset": "-1 day"}, "offset='-1 day'"),
    ],
)
def test_windows_that_cannot_be_are_refused(
    size: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=problem):
        sk.tumbling(size, **options)


def test_sliding_windows_have_no_calendar() -> None:
    for size, every, options in (
        ("1 month", "1 day", {}),
        ("30 days", "1 month", {}),
        ("7 days", "1 day", {"zone": BERLIN}),
    ):
        with pytest.raises(sk.StateTypeError, match=r"neither months, years nor zones: give days"):
            sk.sliding(size, every, **options)


@pytest.mark.slow
def test_without_a_database_utc_is_there_and_others_say_what_to_install() -> None:
    code = """
import sys, zoneinfo
sys.modules["tzdata"] = None
zoneinfo.reset_tzpath([])
import statekit as sk
print(sk.tumbling("1 month").grid.bounds(0))
try:
    sk.tumbling("1 day", zone="Europe/Berlin")
except sk.StateTypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"(0, {31 * 24 * HOUR})"
    assert 'no time zone database: install it with "pip install tzdata"' in done.stdout


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (lambda: sk.tumbling("1 day"), r"window: tumbling 1 day, 0:00:00 in Europe/Berlin in the"),
        (lambda: sk.tumbling("1 day", zone="Europe/Paris"), "in Europe/Paris"),
        (lambda: sk.tumbling("1 week", zone=BERLIN), "tumbling 7 days, 0:00:00 in Europe/Berlin"),
        (lambda: sk.tumbling("1 month", zone=BERLIN), "tumbling 1 month in Europe/Berlin"),
        (lambda: sk.tumbling("1 day", "1 hour", zone=BERLIN), "offset 1:00:00"),
    ],
)
def test_a_checkpoint_of_other_windows_is_refused(window: Any, said: str, tmp_path: Path) -> None:
    def sales(of: Any) -> Any:
        return windowed(of).sum("value", name="sales")

    harness = Harness(sales(sk.tumbling("1 day", zone=BERLIN)))
    harness.send(Event("k", utc("2026-01-01")))
    harness.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(sk.StateSchemaError, match=said):
        Harness.restore(sales(window()), tmp_path / "checkpoint")
    same = Harness.restore(sales(sk.tumbling("1 day", zone=BERLIN)), tmp_path / "checkpoint")
    assert [out.value for out in same.advance_watermark(utc("2026-01-02"))] == [1]
