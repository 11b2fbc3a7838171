"""Windows over combined records on Spark: the same as record by record, late records too."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.manifest import OperatorEpoch
from statekit.checkpoint.repository import Repository
from tests.support.instants import after, at
from tests.support.spark_runs import Runs, pieces

SCHEMA = "key string, at timestamp, value bigint, weight double"


class Event(NamedTuple):
    key: str | None
    at: dt.datetime
    value: int | None
    weight: float = 0.5


class Minute(NamedTuple):
    key: str | None
    start: dt.datetime
    end: dt.datetime
    value: int | None


def given(count: int) -> list[Event]:
    """Records before and after 1970, of which some come too late."""
    chance = random.Random(5)
    return [
        Event(
            chance.choice(["a", "b", "c", None]),
            at(n - count / 2 - chance.choice([0, 1.5, 20, 60.25])),
            None if chance.random() < 0.3 else chance.randrange(-9, 9),
            chance.randrange(9) / 2,
        )
        for n in range(count)
    ]


def added(held: int | None, value: int | None) -> int | None:
    return value if held is None else held + (value or 0)


SUM: sk.Aggregate[int | None, int | None, int | None] = sk.Aggregate(
    lambda: None, added, lambda held: held
)


def job() -> sk.Job:
    made = sk.Job("windows")
    source = made.source("events", Event)
    options: dict[str, Any] = {"key": "key", "event_time": "at", "lateness": after(30)}
    windows = source.window(sk.sliding("25 s", "10 s", "3 s"), allowed_lateness="5 s", **options)
    kept: Any = int | None
    windows.sum("value", name="rows").sink("rows")
    single = windows.aggregate(
        single=sk.OwnAggregate(SUM, accumulator=kept, result=kept, field="value"), name="single"
    )
    single.sink("single")
    for name in ("rows", "single"):
        sk.Stream(made.plan, name).late.sink(f"late-{name}")
    windows.max("weight", name="heaviest").sink("heaviest")
    counted: dict[str, Any] = {"seen": sk.Count(), "values": sk.Count("value")}
    counted |= {"total": sk.Sum("value"), "least": sk.Min("value")}
    windows.aggregate(**counted, name="counted").sink("counted")
    tumbling = source.window(sk.tumbling("10 s"), **options)
    last: dict[str, Any] = {"last": sk.Last("weight", by="at"), "each": sk.Collect("value")}
    tumbling.aggregate(**counted, mean=sk.Mean("value"), **last, name="several").sink("several")
    sums = source.window(sk.tumbling("10 s"), **options).sum("value", name="sums", into=Minute)
    of_sums = sums.window(sk.tumbling("1 min"), key="key", event_time="end")
    of_sums.count(name="behind").sink("behind")
    return made


def operators(runs: Runs) -> list[dict[str, OperatorEpoch]]:
    repository = Repository(runs.checkpoint)
    last = repository.latest_epoch()
    assert last is not None
    return [repository.manifest(epoch).operators for epoch in range(last + 1)]


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [1, 3])
def test_they_are_those_of_single_records_and_of_one_process(runs: Runs, partitions: int) -> None:
    """Of one partition few records are combined in their shards, of three before the shuffle."""
    made, records = job(), given(300)
    outputs = {sink.name: sk.sinks.parquet(runs.home / sink.name) for sink in made.plan.sinks}
    for piece in pieces(records, 100):
        runs.feed("events", [record._asdict() for record in piece])
    inputs = {"events": runs.stream("events", SCHEMA).repartition(partitions)}
    runs.finish(made, inputs, outputs=outputs, parallelism=2, drain=True)
    found = {name: _sorted(row.values() for row in runs.parquet(name)) for name in outputs}
    assert found["rows"] == found["single"] != []
    assert found["late-rows"] == found["late-single"] != []
    for epoch in operators(runs):
        assert _counts(epoch["rows"]) == _counts(epoch["single"])
    assert 0 < operators(runs)[-1]["rows"].late_so_far < len(records)

    here = job().run({"events": records}, epoch_size=100)
    assert found == {name: _sorted(here.outputs[name]) for name in outputs}


def _sorted(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Rows with their instants as seconds, which are the same in all classes of time zones."""

    def plain(value: Any) -> Any:
        return value.timestamp() if isinstance(value, dt.datetime) else value

    return sorted((tuple(map(plain, row)) for row in rows), key=str)


def _counts(operator: OperatorEpoch) -> tuple[Any, ...]:
    sizes = operator.rows, operator.bytes
    return operator.records_by_input, operator.late_so_far, operator.watermark_us, sizes


def test_missing_columns_of_a_frame_read_as_the_defaults_of_the_record(runs: Runs) -> None:
    made = sk.Job("windows")
    windows = made.source("events", Event).window(sk.tumbling("10 s"), key="key", event_time="at")
    windows.sum("weight").sink("out")
    rows = [("a", at(second), None) for second in (1, 2, 3)]
    frame = runs.spark.createDataFrame(rows, SCHEMA.rpartition(",")[0])
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.start(made, {"events": frame}, outputs=outputs, drain=True)
    assert [row["weight"] for row in runs.parquet("out")] == [1.5]


class Loose(NamedTuple):
    key: str
    at: dt.datetime | None
    value: int


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("b", None, 7), r"event time 'at' of .*7.* is no instant: .* leave such records out$"),
        (
            ("b", at(1), None),
            r"value.* does not fit Loose: Loose.value is null, but its type .* None$",
        ),
    ],
)
def test_a_row_that_is_not_as_declared_is_named_and_nothing_is_committed(
    runs: Runs, wrong: tuple[Any, ...], said: str
) -> None:
    made = sk.Job("windows")
    windows = made.source("events", Loose).window(sk.tumbling("10 s"), key="key", event_time="at")
    windows.sum("value").sink("out")
    frame = runs.spark.createDataFrame([("a", at(1), 1), wrong], SCHEMA.rpartition(",")[0])
    with pytest.raises(sk.ProcessError, match=said):
        runs.start(made, {"events": frame}, outputs={"out": sk.sinks.writer("noop")})
    assert Repository(runs.checkpoint).latest_epoch() is None
