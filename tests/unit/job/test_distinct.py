"""The first record of each value of some fields, within an interval or for ever."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.per_key.distinct import KeptTimes
from statekit.records.preaggregate import Combiner
from statekit.state.single_row_states import ValueState
from statekit.testing import Harness, check
from tests.support.instants import at
from tests.unit.testing.test_oracles import only_here

TEN_SECONDS = 10
WITHIN = {"within": "1 minute", "event_time": "at", "lateness": "2 minutes"}


class Click(NamedTuple):
    user: str
    at: dt.datetime
    number: int = 0


CLICKS = st.lists(
    st.lists(st.builds(Click, st.sampled_from("ab"), st.integers(0, 60).map(at)), max_size=12),
    min_size=1,
    max_size=4,
)


def numbered(epochs: list[list[Click]]) -> list[list[Click]]:
    count = iter(range(10_000))
    return [[click._replace(number=next(count)) for click in epoch] for epoch in epochs]


def job_of(**options: Any) -> sk.Job:
    job = sk.Job("clicks")
    job.source("clicks", Click).distinct("user", **options).sink("once")
    return job


def within(interval: str = "10 s", lateness: str = "70 s") -> sk.Job:
    return job_of(within=interval, event_time="at", lateness=lateness)


def combiner_of(job: sk.Job) -> Combiner:
    declared: Process[Any, Any, Any] = job.plan.operators[0].declared
    assert declared.traits.combiner is not None
    return declared.traits.combiner


def run(job: sk.Job, epochs: list[list[Click]], shards: list[int]) -> list[Click]:
    """Return the results of several runs, which continue from each other."""
    checkpoint, found, given = Repository.in_memory(), list[Any](), list[Click]()
    for number, epoch in enumerate(epochs):
        given = [*given, *epoch]
        options: dict[str, Any] = {"parallelism": shards[number % len(shards)], "drain": False}
        found += job.run({"clicks": given}, checkpoint=checkpoint, **options)["once"]
    return found


def kept(clicks: list[Click], seconds: int | None) -> list[Click]:
    """The definition: a record is dropped if a kept one of its user is at most so far from it."""
    found: list[Click] = []
    for click in clicks:
        own = [other for other in found if other.user == click.user]
        if seconds is None:
            is_same = bool(own)
        else:
            is_same = any(abs((click.at - each.at).total_seconds()) <= seconds for each in own)
        found += [] if is_same else [click]
    return found


@settings(max_examples=60, deadline=None)
@given(CLICKS, st.sampled_from([[1], [3], [2, 1, 4]]))
@pytest.mark.parametrize("seconds", [None, TEN_SECONDS])
def test_results_are_those_of_the_definition(
    seconds: int | None, epochs: list[list[Click]], shards: list[int]
) -> None:
    epochs = numbered(epochs)
    job = within() if seconds else job_of()
    every = [click for epoch in epochs for click in epoch]
    assert sorted(run(job, epochs, shards)) == sorted(kept(every, seconds))


@settings(max_examples=60, deadline=None)
@given(CLICKS, st.integers(1, 8))
@pytest.mark.parametrize("job", [within(), job_of()], ids=["within", "for ever"])
def test_records_that_are_combined_before_the_shuffle_have_the_same_results(
    job: sk.Job, epochs: list[list[Click]], size: int
) -> None:
    """Batches of a partition are combined, and the rows of partitions are merged in their order."""
    combiner = combiner_of(job)
    every = [click for epoch in numbered(epochs) for click in epoch]
    columns = {name: [getattr(click, name) for click in every] for name in Click._fields}
    types = [pa.string(), pa.timestamp("us", "UTC"), pa.int64()]
    table = pa.table(columns, pa.schema(zip(Click._fields, types, strict=True)))
    table = table.select(list(combiner.read().field_names))
    batches = table.combine_chunks().to_batches(max_chunksize=size)
    rows = [row for rows in combiner.combined_batches(batches, -1) for row in rows.to_pylist()]
    survivors = [Click(**record) for row in rows for record in row["part_1"]]
    in_order = sorted(survivors, key=lambda click: click.number)
    seconds = TEN_SECONDS if job.plan.operators[0].declared.event_time else None
    assert kept(in_order, seconds) == kept(every, seconds)
    for user in "ab":
        numbers = [click.number for click in survivors if click.user == user]
        assert numbers == sorted(numbers), "the rows of a key are in order of arrival"


def test_a_duplicate_that_arrives_before_the_record_in_event_time_is_dropped() -> None:
    clicks = [Click("a", at(30), 1), Click("a", at(25), 2), Click("a", at(10), 3)]
    assert [click.number for click in run(within(), [clicks], [1])] == [1, 3]


def test_a_duplicate_of_a_dropped_record_alone_is_kept() -> None:
    clicks = [Click("a", at(0), 1), Click("a", at(8), 2), Click("a", at(15), 3)]
    assert [click.number for click in run(within(), [clicks], [1])] == [1, 3]
    assert [click.number for click in run(within(), [[each] for each in clicks], [1])] == [1, 3]


def test_the_end_of_the_interval_belongs_to_it() -> None:
    clicks = [Click("a", at(0), 1), Click("a", at(10), 2), Click("a", at(10.000001), 3)]
    assert [click.number for click in run(within(), [clicks], [1])] == [1, 3]


def test_rows_are_removed_when_no_record_can_need_them() -> None:
    job = within(lateness="0 s")
    harness = Harness(job.plan.operators[0].declared)
    harness.send(Click("a", at(0)))
    assert harness.state("kept", "a") == (at(0),)
    harness.send(Click("b", at(9)))
    harness.send(Click("b", at(40)))
    harness.send(Click("b", at(41)))
    assert harness.state("kept", "a") is None
    assert harness.state("kept", "b") == (at(9), at(40))
    harness.advance_watermark(at(100))
    assert harness.state("kept", "b") is None


def test_late_records_are_a_stream_and_no_duplicates() -> None:
    job = sk.Job("clicks")
    once = job.source("clicks", Click).distinct("user", within="10 s", event_time="at")
    once.sink("once")
    once.late.sink("late")
    clicks = [Click("a", at(50), 1), Click("a", at(20), 2)]
    found = job.run({"clicks": clicks}, epoch_size=1)
    assert (found["once"], found["late"]) == ([clicks[0]], [clicks[1]])


def test_a_value_is_known_for_its_ttl_and_duplicates_do_not_extend_it() -> None:
    harness = Harness(job_of(ttl=sk.TTL("10 s")).plan.operators[0].declared)
    start = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    harness.advance_processing_time(start)
    assert harness.send(Click("a", at(0), 1))
    harness.advance_processing_time(start + dt.timedelta(seconds=8))
    assert not harness.send(Click("a", at(0), 2))
    harness.advance_processing_time(start + dt.timedelta(seconds=16))
    assert harness.send(Click("a", at(0), 3))


@dataclasses.dataclass
class Mutable:
    user: str
    tags: list[str]


class Model(pydantic.BaseModel):
    user: str
    tags: list[str]


class Named(TypedDict):
    user: str
    tags: list[str]


@pytest.mark.parametrize("record", [Mutable, Model, Named])
def test_records_may_be_of_any_class(record: Any, tmp_path: Path) -> None:
    job = sk.Job("tags")
    job.source("tags", record).distinct("user").sink("once")
    first, second = record(user="a", tags=["x", "y"]), record(user="a", tags=[])
    found = job.run({"tags": [first, second]}, checkpoint=tmp_path / "checkpoint")
    assert found["once"] == [first]


def test_several_fields_are_one_value() -> None:
    job = sk.Job("clicks")
    job.source("clicks", Click).distinct(("user", "number")).sink("once")
    clicks = [Click("a", at(0), 1), Click("a", at(1), 2), Click("a", at(2), 1)]
    assert job.run({"clicks": clicks})["once"] == clicks[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"ttl": sk.TTL("15 minutes")}, {"ttl": sk.TTL("15 minutes", refresh="read")}, WITHIN],
    ids=["for ever", "ttl", "ttl of reads", "within"],
)
def test_results_are_those_of_plain_python(options: dict[str, Any]) -> None:
    check(job_of(**options), holds=["plain Python", "epochs", "parallelism"], depth="quick")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, WITHIN], ids=["for ever", "within"])
def test_all_properties_hold(options: dict[str, Any]) -> None:
    excused = {"growth": "a value is known for ever"} if not options else {}
    check(job_of(**options), excused=excused, depth="quick")


def test_a_fault_of_the_interval_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_before(self: KeptTimes, time_us: int, kept: list[int]) -> bool:
        return all(not 0 <= time_us - at <= self.within_us for at in kept)

    monkeypatch.setattr(KeptTimes, "is_new", only_before)
    assert only_here(job_of(**WITHIN), "plain Python")


@pytest.mark.slow
def test_a_value_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValueState, "_put_some", lambda *_: None)
    assert only_here(job_of(), "plain Python")


@pytest.mark.parametrize(
    ("on", "options", "message"),
    [
        ((), {}, "name at least one field"),
        ("nobody", {}, "'nobody' is not a field of Click"),
        ("user", {"within": "1 hour"}, "say which field has the event_time"),
        ("user", {"within": "0 s", "event_time": "at"}, "above zero"),
        ("user", {"event_time": "at"}, "belong to an interval"),
        ("user", {"within": "1 s", "event_time": "at", "ttl": sk.TTL("1 s")}, "no effect"),
        ("user", {"ttl": sk.TTL("1 s", clock="event")}, "no event time here"),
        ("user", {"within": "1 s", "event_time": "user"}, "it must be a datetime"),
    ],
)
def test_invalid_options_are_refused(on: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StateTypeError, match=message):
        sk.Job("clicks").source("clicks", Click).distinct(on, **options)
