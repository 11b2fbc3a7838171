"""A history, then a stream: nothing is lost or doubled at the seam, whatever is killed."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit import sources
from statekit.checkpoint.object_store import StoreOptions
from statekit.checkpoint.repository import Repository
from statekit.errors import (
    ConnectorError,
    ProcessError,
    RestoreError,
    StatekitError,
    StateTypeError,
    StorageError,
)
from statekit.sources.source import Offset, Offsets, Source
from statekit.testing.faults import Fault, Faults, faulty

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOT_BEGUN = dt.datetime.min.replace(tzinfo=dt.UTC)


class Order(NamedTuple):
    number: int
    at: dt.datetime


def order(number: int) -> Order:
    return Order(number, START + dt.timedelta(minutes=number))


def rows(numbers: list[int]) -> pa.RecordBatch:
    orders = [order(number) for number in numbers]
    at = pa.array([each.at for each in orders], pa.timestamp("us", "UTC"))
    return pa.record_batch({"number": pa.array(numbers, pa.int64()), "at": at})


class Log(Source):
    """A log with partitions, whose records are appended while it is read. It begins at its end."""

    def __init__(self, partitions: dict[str, list[int]], *, bounded: bool, at_end: bool) -> None:
        self.partitions = partitions
        self.bounded, self.at_end = bounded, at_end
        self.on_latest: Callable[[], None] = lambda: None
        self.is_gone = False

    @property
    def is_bounded(self) -> bool:
        return self.bounded

    def open(self, *, reads_here: bool) -> None:
        if self.is_gone:
            raise ConnectorError("the log is gone")

    def earliest(self) -> Offsets:
        return {name: len(log) if self.at_end else 0 for name, log in self.partitions.items()}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        self.on_latest()
        return {
            name: min(len(log), start.get(name, 0) + limit) for name, log in self.partitions.items()
        }

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        yield rows(self.partitions[partition][start or 0 : end])


class Seen(NamedTuple):
    number: int
    watermark: dt.datetime


@sk.process(key="number", event_time="at")
def count(order: Order, ctx: sk.Context, n: sk.ValueState[int]) -> Iterator[Seen]:
    n.update((n.get() or 0) + 1)
    yield Seen(order.number, ctx.watermark)


class Measure(NamedTuple):
    name: str
    at: float


@sk.process(key="name")
def measured(measure: Measure, n: sk.ValueState[int]) -> None:
    n.update((n.get() or 0) + 1)


def job_of(history: Source, then: Source, **options: Any) -> sk.Job:
    job = sk.Job("orders")
    stream = job.source("orders", Order, history=history, then=then, **options)
    stream.process(count).sink("seen")
    return job


def emitted(run: Any) -> list[Seen]:
    found: list[Seen] = run["seen"]
    return found


def counts(checkpoint: Any) -> dict[int, int]:
    table = sk.read(checkpoint, "count", "n").read_all()
    return {row["number"]: row["value"] for row in table.to_pylist()}


def test_the_stream_begins_where_it_was_when_the_history_began() -> None:
    history = Log({"a": [5, 1, 3], "b": [4, 2]}, bounded=True, at_end=False)
    then = Log({"0": [100, 101]}, bounded=False, at_end=True)  # these are not read
    history.on_latest = lambda: then.partitions["0"].append(6 + len(then.partitions["0"]) - 2)
    run = job_of(history, then).run(epoch_size=1)
    numbers = [seen.number for seen in emitted(run)]
    assert sorted(numbers[:5]) == [1, 2, 3, 4, 5]
    assert numbers[5:] == [6, 7, 8, 9]


def test_no_record_of_the_history_is_late_and_event_time_goes_on_after_it() -> None:
    history = Log({"a": [50, 40], "b": [3, 2, 1]}, bounded=True, at_end=False)
    then = Log({"0": [], "1": []}, bounded=False, at_end=True)
    checkpoint = Repository.in_memory()
    run = job_of(history, then).run(checkpoint=checkpoint, epoch_size=1)
    assert sorted(seen.number for seen in emitted(run)) == [1, 2, 3, 40, 50]
    assert {seen.watermark for seen in emitted(run)} == {NOT_BEGUN}
    then.partitions["0"] += [51, 52]
    then.partitions["1"] += [10]  # late: event time is that of the history
    run = job_of(history, then).run(checkpoint=checkpoint, epoch_size=1)
    assert [seen.number for seen in emitted(run)] == [51, 52]
    assert {seen.watermark for seen in emitted(run)} <= {order(50).at, order(51).at, order(52).at}


def test_the_history_may_be_deleted_after_it_was_read() -> None:
    history = Log({"a": [1]}, bounded=True, at_end=False)
    then = Log({"0": []}, bounded=False, at_end=True)
    checkpoint = Repository.in_memory()
    job_of(history, then).run(checkpoint=checkpoint)
    history.is_gone = True
    history.partitions["a"].append(7)
    then.partitions["0"].append(2)
    job_of(history, then).run(checkpoint=checkpoint)
    assert counts(checkpoint) == {1: 1, 2: 1}


def test_new_partitions_of_the_stream_are_read_from_their_first_record() -> None:
    history = Log({"a": [1]}, bounded=True, at_end=False)
    then = Log({}, bounded=False, at_end=True)
    checkpoint = Repository.in_memory()
    job_of(history, then).run(checkpoint=checkpoint)
    then.partitions["new"] = [2, 3]
    job_of(history, then).run(checkpoint=checkpoint)
    assert counts(checkpoint) == {1: 1, 2: 1, 3: 1}


def test_records_in_both_are_taken_from_one_of_them_by_a_boundary() -> None:
    history = Log({"a": list(range(30))}, bounded=True, at_end=False)
    then = Log({"0": list(range(10, 40))}, bounded=False, at_end=False)
    for boundary in ({"at": order(20).at}, {"number": 20}):
        checkpoint = Repository.in_memory()
        job_of(history, then, boundary=boundary).run(checkpoint=checkpoint, epoch_size=7)
        assert counts(checkpoint) == dict.fromkeys(range(40), 1)


def test_a_record_whose_boundary_field_is_not_a_number_belongs_to_the_stream(
    tmp_path: Path,
) -> None:
    for name, number in (("past", 1.0), ("now", 7.0)):
        (tmp_path / name).mkdir()
        table = pa.table({"name": [name, f"{name} nan"], "at": [number, float("nan")]})
        pq.write_table(table, tmp_path / name / "a.parquet")
    job = sk.Job("measures")
    job.source(
        "measures",
        Measure,
        history=sources.parquet(tmp_path / "past", static=True),
        then=sources.parquet(tmp_path / "now", static=True),
        boundary={"at": 5.0},
    ).process(measured)
    job.run(checkpoint=tmp_path / "checkpoint")
    table = sk.read(tmp_path / "checkpoint", "measured", "n").read_all()
    assert sorted(table["name"].to_pylist()) == ["now", "now nan", "past"]


def plain_job_of(source: Source) -> sk.Job:
    job = sk.Job("orders")
    job.source("orders", Order, source).process(count).sink("seen")
    return job


def test_history_may_be_removed_after_it_has_ended(tmp_path: Path) -> None:
    history = Log({"a": [1]}, bounded=True, at_end=False)
    then = Log({"0": [], "1": [2]}, bounded=False, at_end=False)
    checkpoint = Repository.in_memory()
    job_of(history, then).run(checkpoint=checkpoint)
    then.partitions["0"].append(3)  # of a partition without a record so far
    then.partitions["1"].append(4)
    plain_job_of(then).run(checkpoint=checkpoint)
    assert counts(checkpoint) == dict.fromkeys([1, 2, 3, 4], 1)


def test_history_may_be_removed_after_a_crash_within_the_stream() -> None:
    history = Log({"a": [1]}, bounded=True, at_end=False)
    then = Log({"0": []}, bounded=False, at_end=False)
    checkpoint = Repository.in_memory()
    job_of(history, then).run(checkpoint=checkpoint)
    then.partitions["0"] += [2, 3]

    def fail(records: list[Any], epoch: int) -> None:
        raise OSError("the output is full")

    with pytest.raises(StatekitError, match="the output is full"):
        job_of(history, then).run(checkpoint=checkpoint, outputs={"seen": fail})
    then.partitions["0"].append(4)
    seen = emitted(plain_job_of(then).run(checkpoint=checkpoint))
    assert {each.number for each in seen} >= {4}
    assert counts(checkpoint) == dict.fromkeys([1, 2, 3, 4], 1)


def test_history_is_neither_removed_before_its_end_nor_added_later() -> None:
    history = Log({"a": [1, 2]}, bounded=True, at_end=False)
    then = Log({"0": [3]}, bounded=False, at_end=False)
    checkpoint = Repository.in_memory()
    faults = iter([None, StorageError("the log is away")])

    def fail_later() -> None:
        if (fault := next(faults, None)) is not None:
            raise fault

    history.on_latest = fail_later
    with pytest.raises(ProcessError, match="the log is away"):
        job_of(history, then).run(checkpoint=checkpoint, epoch_size=1)
    with pytest.raises(RestoreError, match="a history that has not ended: give history= and then="):
        plain_job_of(then).run(checkpoint=checkpoint)
    checkpoint = Repository.in_memory()
    plain_job_of(then).run(checkpoint=checkpoint)
    with pytest.raises(RestoreError, match=r"was read without history=.* leave history= out"):
        job_of(history, then).run(checkpoint=checkpoint)
    assert counts(checkpoint) == {3: 1}


def test_history_of_files_may_be_removed_after_it_has_ended(tmp_path: Path) -> None:
    for name, number in (("past", 1), ("now", 2)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_batches([rows([number])]), tmp_path / name / "a.parquet")
    then = sources.parquet(tmp_path / "now")
    checkpoint = Repository.in_memory()
    job_of(sources.parquet(tmp_path / "past", static=True), then).run(checkpoint=checkpoint)
    pq.write_table(pa.Table.from_batches([rows([3])]), tmp_path / "now/b.parquet")
    plain_job_of(then).run(checkpoint=checkpoint)
    assert counts(checkpoint) == dict.fromkeys([1, 2, 3], 1)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    epoch_size=st.integers(1, 4),
    parallelism=st.integers(1, 3),
    crashes=st.lists(st.tuples(st.sampled_from(["fail before", "fail after"]), st.integers(0, 60))),
)
def test_killed_anywhere_it_goes_on_with_each_record_once(
    sizes: list[int], epoch_size: int, parallelism: int, crashes: list[Any]
) -> None:
    numbers = iter(range(1000))
    history = Log(
        {str(n): [next(numbers) for _ in range(size)] for n, size in enumerate(sizes)},
        bounded=True,
        at_end=False,
    )
    then = Log({"0": [next(numbers)], "1": []}, bounded=False, at_end=True)
    expected = set(range(sum(sizes)))

    def arrives() -> None:
        partition = then.partitions[str(len(expected) % 2)]
        number = next(numbers)
        partition.append(number)
        expected.add(number)

    checkpoint, out = Repository.in_memory(), dict[int, list[Seen]]()

    def run(on: Repository) -> None:
        job_of(history, then).run(
            checkpoint=on,
            outputs={"seen": lambda records, epoch: out.update({epoch: records})},
            epoch_size=epoch_size,
            parallelism=parallelism,
        )

    for what, at in crashes:
        with contextlib.suppress(StorageError):
            faults = Faults(Fault(what, at=at), lasting=True)
            run(faulty(checkpoint, faults, StoreOptions(retry_seconds=0.0)))
        if checkpoint.latest_epoch() is not None:
            arrives()
    run(checkpoint)
    assert counts(checkpoint) == dict.fromkeys(expected, 1)
    assert sorted(seen.number for of in out.values() for seen in of) == sorted(expected)


def test_files_then_growing_files(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "then").mkdir()
    for part in range(3):
        batch = rows(list(range(10 * part, 10 * part + 10)))
        pq.write_table(pa.Table.from_batches([batch]), tmp_path / f"history/{part}.parquet")

    def write(name: str, numbers: range) -> None:
        lines = [{"number": n, "at": order(n).at.isoformat()} for n in numbers]
        (tmp_path / "then" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run() -> None:
        history = sources.parquet(tmp_path / "history", static=True)
        then = sources.json_lines(tmp_path / "then")
        job_of(history, then).run(checkpoint=tmp_path / "checkpoint", epoch_size=4)

    write("a.jsonl", range(30, 35))
    run()
    write("b.jsonl", range(35, 50))
    run()
    assert counts(tmp_path / "checkpoint") == dict.fromkeys(range(50), 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"history": Log({}, bounded=True, at_end=False)}, "given together"),
        ({"then": Log({}, bounded=True, at_end=False)}, "given together"),
        ({"boundary": {"at": START}}, "given together"),
        (
            {
                "history": Log({}, bounded=False, at_end=False),
                "then": Log({}, bounded=False, at_end=False),
            },
            "without an end",
        ),
        (
            {
                "history": Log({}, bounded=True, at_end=False),
                "then": Log({}, bounded=False, at_end=False),
                "boundary": {"when": START},
            },
            "which Order does not have",
        ),
        (
            {
                "history": Log({}, bounded=True, at_end=False),
                "then": Log({}, bounded=False, at_end=False),
                "boundary": START,
            },
            "give a dict of one field",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(StateTypeError, match=problem):
        sk.Job("orders").source("orders", Order, **options)
    log = Log({}, bounded=True, at_end=False)
    with pytest.raises(StateTypeError, match="and not both"):
        sk.Job("orders").source("orders", Order, log, history=log, then=log)


@pytest.mark.parametrize(
    ("boundary", "problem"),
    [
        ({"at": "2026-01-01"}, "field 'at' of Order: give a value of its type, datetime"),
        ({"at": dt.date(2026, 1, 1)}, "give a value of its type, datetime"),
        ({"at": dt.datetime(2026, 1, 1)}, "give a datetime with a time zone"),
        ({"at": None}, "boundary= is None for the field 'at' of Order: give a value that has"),
        ({"number": float("nan")}, "NaN is no boundary"),
    ],
)
def test_a_boundary_that_is_not_of_the_type_of_its_field_is_refused(
    boundary: dict[str, Any], problem: str
) -> None:
    log = Log({}, bounded=True, at_end=False)
    with pytest.raises(StateTypeError, match=problem):
        sk.Job("orders").source("orders", Order, history=log, then=log, boundary=boundary)


@sk.process(key="name")
def counted(record: dict[str, Any], n: sk.ValueState[int]) -> None:
    n.update((n.get() or 0) + 1)


def test_dicts_without_the_boundary_field_belong_to_the_stream_and_other_types_are_named(
    tmp_path: Path,
) -> None:
    for part in ("past", "now"):
        (tmp_path / part).mkdir()
        lines = [{"name": part, "at": {"past": 1, "now": 7}[part]}, {"name": f"{part} without"}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / part / "a.jsonl").write_text(text)

    def run(first: Any) -> None:
        job = sk.Job("measures")
        job.source(
            "measures",
            dict[str, Any],
            history=sources.json_lines(tmp_path / "past", static=True),
            then=sources.json_lines(tmp_path / "now", static=True),
            boundary={"at": first},
        ).process(counted)
        job.run(checkpoint=tmp_path / "checkpoint")

    with pytest.raises(ProcessError, match="the field 'at' with '5', and a record has 1 in it"):
        run("5")
    run(5)
    table = sk.read(tmp_path / "checkpoint", "counted", "n").read_all()
    assert sorted(table["name"].to_pylist()) == ['"now without"', '"now"', '"past"']
