"""Bootstraps of everything that a checkpoint has: timers, operator state and the watermark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import BootstrapError, StateTypeError
from statekit.maintenance.verify.verify import verify
from statekit.timestamp import instant
from statekit.watermark import BEGINNING

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
Even = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
Largest = Annotated[
    sk.OperatorState[int], sk.Redistribute(split=lambda n, shards: [n] * shards, merge=max)
]


class Visit(NamedTuple):
    user: str
    at: dt.datetime
    minutes: int


@sk.process(key="user", event_time="at", lateness="1 hour")
def visits(
    visit: Visit, ctx: sk.Context, last: sk.ValueState[int], seen: Even, largest: Largest
) -> Iterator[str]:
    last.update(visit.minutes)
    seen.append(visit.minutes)
    largest.update(max(visit.minutes, largest.get() or 0))
    ctx.timers.set(visit.at + dt.timedelta(minutes=visit.minutes), name=f"m{visit.minutes % 3}")
    ctx.timers.set(AT + 10_000 * HOUR, name="later", clock="processing")
    if visit.at < ctx.watermark:
        yield f"late {visit.user}"


@visits.on_timer
def fires(timer: sk.Timer, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[str]:
    yield f"{ctx.key} {timer.name}"


def visits_job() -> sk.Job:
    job = sk.Job("visits", key_groups=16)
    job.source("log", Visit).process(visits).sink("fired")
    return job


STATES = ("last", "seen", "largest", "_timers")


def tables_of(checkpoint: Any) -> dict[str, pa.Table]:
    return {f"visits.{name}": sk.read(checkpoint, "visits", name).read_all() for name in STATES}


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.builds(
            Visit,
            st.text(max_size=3),
            st.integers(0, 60).map(lambda n: AT + n * HOUR),
            st.integers(1, 10_000),
        ),
        min_size=1,
    ),
    st.integers(1, 4),
)
def test_state_to_table_to_bootstrap_is_the_identity_for_timers_and_operator_state(
    records: list[Visit], shards: int
) -> None:
    first, second = Repository.in_memory(), Repository.in_memory()
    visits_job().run(
        {"log": records}, checkpoint=first, parallelism=shards, epoch_size=3, drain=False
    )
    tables = tables_of(first)
    old = first.manifest(first.epochs()[-1]).operators["visits"]
    watermark = None if old.watermark_us in (None, BEGINNING) else instant(old.watermark_us or 0)
    result = visits_job().bootstrap(
        tables, checkpoint=second, parallelism=shards, watermark=watermark
    )
    assert tables_of(second) == tables
    assert result.rows == {name: table.num_rows for name, table in tables.items()}
    assert verify(second).findings == []
    new = second.manifest(0).operators["visits"]
    if watermark is not None:
        assert new.watermark_us == old.watermark_us
    assert [shard.wake_us for shard in new.shards] == [shard.wake_us for shard in old.shards]
    # Both jobs continue in the same way.
    more = [Visit("more", AT + 90 * HOUR, 5), Visit("more", AT + 200 * HOUR, 5)]
    runs = [
        visits_job().run({"log": more if at is second else [*records, *more]}, checkpoint=at)
        for at in (first, second)
    ]
    assert sorted(map(str, runs[0]["fired"])) == sorted(map(str, runs[1]["fired"]))


def test_event_time_goes_on_from_the_watermark(tmp_path: Path) -> None:
    timers = pa.table({"user": ["ada", "bob"], "at": [AT - HOUR, AT + HOUR], "timer": ["m0", "m1"]})
    visits_job().bootstrap("visits._timers", timers, checkpoint=tmp_path, watermark=AT)
    records = [Visit("eve", AT - 2 * HOUR, 1)]
    run = visits_job().run({"log": records}, checkpoint=tmp_path, drain=False)
    assert run["fired"] == ["ada m0"]  # the record is late, and bob's timer is not due
    assert verify(Repository(tmp_path)).findings == []


def test_operator_state_of_other_shards_is_redistributed(tmp_path: Path) -> None:
    seen = pa.table({"shard": [0, 3, 3], "position": [0, 0, 1], "value": [1, 2, 3]})
    largest = pa.table({"shard": [1, 3], "value": [7, 9]})
    given_tables = {"visits.seen": seen, "visits.largest": largest}
    visits_job().bootstrap(given_tables, checkpoint=tmp_path, parallelism=2)
    assert sorted(sk.read(tmp_path, "visits", "seen").read_all()["value"].to_pylist()) == [1, 2, 3]
    assert sk.read(tmp_path, "visits", "largest").read_all()["value"].to_pylist() == [7, 9]


@pytest.mark.parametrize(
    ("state", "row", "reason"),
    [
        ("_timers", {"user": "a", "at": AT, "timer": "unknown", "clock": "none"}, "its clock is"),
        ("_timers", {"user": "a", "at": None, "timer": "m1", "clock": "event"}, "."),
        ("_timers", {"user": "a", "at": AT, "timer": None, "clock": "event"}, "name of a timer"),
        ("seen", {"shard": -1, "position": 0, "value": 1}, "its shard is not from 0"),
        ("seen", {"shard": None, "position": 0, "value": 1}, "its shard is null"),
    ],
)
def test_a_timer_or_a_shard_that_cannot_be_is_a_refused_row(
    state: str, row: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    types = {"shard": pa.int32(), "at": pa.timestamp("us", "UTC"), "timer": pa.string()}
    good = {**row, "at": AT, "shard": 0, "timer": "m1", "clock": "event"}
    columns = {name: pa.array([row[name], good[name]], types.get(name)) for name in row}
    with pytest.raises(BootstrapError, match=reason):
        visits_job().bootstrap(f"visits.{state}", pa.table(columns), checkpoint=tmp_path / "no")
    result = visits_job().bootstrap(
        f"visits.{state}", pa.table(columns), checkpoint=tmp_path / "new", refuse=1
    )
    assert result.rows == {f"visits.{state}": 1}


def test_a_watermark_needs_a_time_zone_and_event_time(tmp_path: Path) -> None:
    naive: Any = AT.replace(tzinfo=None)
    table = pa.table({"user": ["a"], "value": [1]})
    with pytest.raises(StateTypeError, match="give a datetime with a time zone"):
        visits_job().bootstrap("visits.last", table, checkpoint=tmp_path, watermark=naive)

    @sk.process(key="user")
    def plain(visit: Visit, last: sk.ValueState[int]) -> None: ...

    job = sk.Job("plain")
    job.source("log", Visit).process(plain)
    with pytest.raises(StateTypeError, match="no operator of job 'plain' has event time"):
        job.bootstrap("plain.last", table, checkpoint=tmp_path, watermark=AT)
    with pytest.raises(StateTypeError, match=r"has no state 'plain\._timers'"):
        job.bootstrap("plain._timers", table, checkpoint=tmp_path)
