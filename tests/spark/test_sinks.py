"""What a sink does with an epoch's output never spoils the state, nor the output of a replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import statekit as sk
from statekit.sinks import Attempt, FrameSink, Part, Receipt, Sink
from tests.support.spark_job import (
    EVENT_SCHEMA,
    Counted,
    Event,
    by_word,
    count,
    counted,
    counting_job,
    events,
)
from tests.support.spark_runs import Runs, pieces

SIZE = 20


def _feed(runs: Runs, given: list[Event]) -> DataFrame:
    for piece in pieces(given, SIZE):
        runs.feed("events", [event._asdict() for event in piece])
    return runs.stream("events", EVENT_SCHEMA)


def _check_state(runs: Runs, given: list[Event]) -> None:
    assert runs.state("count", "numbers") == counted(given)[1]["numbers"]


def _forget(runs: Runs, epoch: int) -> None:
    """As if the driver had been killed between the sink and the manifest of an epoch."""
    (runs.checkpoint / "epochs" / f"{epoch:020d}.json").unlink()
    for path in (runs.checkpoint / "spark" / "commits").glob(f"*{epoch}*"):
        path.unlink()


def test_a_replayed_epoch_leaves_no_duplicate_in_parquet(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.spark.epoch._FEW_RECORDS", 0)  # a task, and a file, per shard
    given = events(seed=1, size=3 * SIZE)
    stream = _feed(runs, given)
    outputs = {"counted": sk.sinks.parquet(runs.home / "out put")}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=3)
    before = {path.name for path in (runs.home / "out put").glob("*.parquet")}
    _forget(runs, 2)
    # Fewer files than before: what the first attempt left must go.
    query = runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=1)
    assert [progress.epoch for progress in query.progress] == [2]
    after = {path.name for path in (runs.home / "out put").glob("*.parquet")}
    assert after < before
    assert by_word(runs.parquet("out put")) == by_word(counted(given)[0])
    _check_state(runs, given)
    read = runs.spark.read.parquet(str(runs.home / "out put"))
    assert read.count() == len(given)
    assert list((runs.home / "out put" / "_statekit").iterdir()) == [], "staged files stayed"


def test_a_crash_after_the_manifest_does_not_run_the_epoch_again(runs: Runs) -> None:
    given = events(seed=2, size=2 * SIZE)
    stream = _feed(runs, given)
    outputs = {"counted": sk.sinks.writer("json", path=runs.home / "out")}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs)
    for path in (runs.checkpoint / "spark" / "commits").glob("*1*"):
        path.unlink()
    query = runs.finish(counting_job(), {"events": stream}, outputs=outputs)
    assert list(query.progress) == []
    rows = _json_rows(runs.home / "out")
    assert len(rows) == len(given)
    _check_state(runs, given)


def _json_rows(directory: Path) -> list[Any]:
    parts = sorted(directory.glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


@pytest.mark.parametrize(
    ("format", "mode"), [("noop", "append"), ("noop", "overwrite"), ("json", "append")]
)
def test_any_writer_format_takes_every_epoch(runs: Runs, format: str, mode: str) -> None:
    given = events(seed=3, size=2 * SIZE)
    stream = _feed(runs, given)
    options = {} if format == "noop" else {"path": runs.home / "out"}
    outputs = {"counted": sk.sinks.writer(format, mode=mode, **options)}
    runs.finish(counting_job(), {"events": stream}, outputs=outputs, parallelism=3)
    _check_state(runs, given)
    if format == "json":
        found = [Counted(**{"before": None, **row}) for row in _json_rows(runs.home / "out")]
        assert sorted(found, key=repr) == sorted(counted(given)[0], key=repr)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_writer_that_does_not_write_an_epoch_fails_it_without_hanging(
    runs: Runs, streaming: bool
) -> None:
    given = events(seed=4, size=SIZE)
    stream = _feed(runs, given)
    (runs.home / "out").mkdir()
    frame = (
        stream if streaming else runs.spark.createDataFrame(list(map(tuple, given)), EVENT_SCHEMA)
    )
    for kind in ("json", "parquet"):
        ignoring = {"counted": sk.sinks.writer(kind, mode="ignore", path=runs.home / "out")}
        with pytest.raises(sk.IncompleteEpochError, match="'counted' never read"):
            runs.finish(counting_job(), {"events": frame}, outputs=ignoring)
        assert runs.epochs() == []
    outputs = {"counted": sk.sinks.writer("noop")}
    runs.finish(counting_job(), {"events": frame}, outputs=outputs)
    _check_state(runs, given)


def test_a_writer_that_fails_fails_the_epoch_with_its_own_error(runs: Runs) -> None:
    given = events(seed=5, size=SIZE)
    stream = _feed(runs, given)
    (runs.home / "out").mkdir()
    failing = {"counted": sk.sinks.writer("json", mode="error", path=runs.home / "out")}
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        runs.finish(counting_job(), {"events": stream}, outputs=failing)
    assert runs.epochs() == []
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sk.sinks.writer("noop")})
    _check_state(runs, given)


def _reads_nothing(df: DataFrame, epoch: int) -> None:
    assert df.columns == list(Counted._fields)


def _reads_one(df: DataFrame, epoch: int) -> None:
    assert df.limit(1).count() == 1
    assert df.first() is not None


def _reads_twice(df: DataFrame, epoch: int) -> None:
    assert df.count() == SIZE
    assert sorted(map(repr, df.collect())) == sorted(map(repr, df.collect()))


def _coalesces(df: DataFrame, epoch: int) -> None:
    assert len(df.coalesce(1).collect()) == SIZE


def _unites(df: DataFrame, epoch: int) -> None:
    assert df.union(df).count() == 2 * SIZE
    assert df.join(df.select("word").distinct(), "word").count() == SIZE


@pytest.mark.parametrize(
    "read",
    [_reads_nothing, _reads_one, _reads_twice, _coalesces, _unites],
    ids=lambda f: f.__name__,
)
def test_a_callback_may_read_its_frame_as_it_likes(
    runs: Runs, read: Callable[[DataFrame, int], None]
) -> None:
    given = events(seed=6, size=2 * SIZE)
    stream = _feed(runs, given)
    told: list[int] = []

    def callback(df: DataFrame, epoch: int) -> None:
        told.append(epoch)
        read(df, epoch)

    query = runs.finish(counting_job(), {"events": stream}, outputs={"counted": callback})
    assert told == [0, 1]
    assert [progress.records_out for progress in query.progress] == [SIZE, SIZE]
    _check_state(runs, given)
    assert runs.spark._jsc.getPersistentRDDs().size() == 0, "frames stayed in memory"


class Refused(Exception):
    """An error of a user's sink."""


def test_a_callback_that_raises_commits_nothing_and_a_restart_continues(runs: Runs) -> None:
    given = events(seed=7, size=2 * SIZE)
    stream = _feed(runs, given)
    seen: list[tuple[int, list[Any]]] = []

    def refuses(df: DataFrame, epoch: int) -> None:
        seen.append((epoch, df.collect()))
        if epoch == 1:
            raise Refused("not this one")

    with pytest.raises(sk.ProcessError, match=r"sink 'counted' failed .* Refused: not this one"):
        runs.finish(counting_job(), {"events": stream}, outputs={"counted": refuses})
    assert runs.epochs() == [0]
    _check_state(runs, given[:SIZE])
    again = sk.sinks.callback(lambda df, epoch: seen.append((epoch, df.collect())))
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": again})
    (first, _), (second, once), (third, twice) = seen
    assert (first, second, third) == (0, 1, 1), "a replayed epoch has the same number"
    assert once == twice, "and the same output"
    _check_state(runs, given)


@sk.process(key="word")
def misfit(event: Event, seen: sk.ValueState[int]) -> Iterator[Counted]:
    seen.update((seen.get() or 0) + 1)
    yield Counted(event.word, "twelve", 1, None)  # type: ignore[arg-type]


@sk.process(key="word")
def undeclared(event: Event, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)
    return [event.number]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("declared", "parts"),
    [(misfit, ("misfit", "Counted", "number", "'twelve'")), (undeclared, ("undeclared", "None"))],
)
def test_an_output_that_does_not_fit_its_declaration_fails_the_epoch(
    runs: Runs, declared: sk.Process[Any, Any, Any], parts: tuple[str, ...]
) -> None:
    job = sk.Job("misfits")
    stream = job.source("events", Event).process(declared)
    outputs = {}
    if declared.output_type is not None:
        stream.sink("out")
        outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    df = runs.spark.createDataFrame([("a", 1)], EVENT_SCHEMA)
    with pytest.raises(sk.ProcessError) as caught:
        runs.finish(job, {"events": df}, outputs=outputs)
    for part in parts:
        assert part in str(caught.value)
    assert runs.epochs() == []


@pytest.mark.parametrize("calls_back", [False, True])
def test_micro_batches_are_planned_once_unless_a_function_takes_them(
    runs: Runs, calls_back: bool
) -> None:
    seen: list[str | None] = []

    def look(df: DataFrame, epoch: int) -> None:
        seen.append(df.sparkSession.conf.get("spark.sql.adaptive.enabled"))
        df.collect()

    before = max(_plans_since(runs, -1, at_most=1), default=-1)
    stream = _feed(runs, events(seed=6, size=2 * SIZE))
    sink = sk.sinks.callback(look) if calls_back else sk.sinks.writer("noop")
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    plans = list(_plans_since(runs, before).values())
    assert any("MapInArrow" in plan for plan in plans)
    assert any("AdaptiveSparkPlan" in plan and "MapInArrow" in plan for plan in plans) is calls_back
    assert seen == (["true", "true"] if calls_back else [])
    assert runs.spark.conf.get("spark.sql.adaptive.enabled") == "true"  # that of the user


def _plans_since(runs: Runs, last: int, at_most: int = 1_000) -> dict[int, str]:
    """What Spark has run since the execution of a number, the newest first."""
    session: Any = runs.spark._jsparkSession
    found = session.sharedState().statusStore().executionsList()
    plans: dict[int, str] = {}
    for place in reversed(range(found.size())):
        execution = found.apply(place)
        if execution.executionId() <= last or len(plans) == at_most:
            break
        plans[execution.executionId()] = execution.physicalPlanDescription()
    return plans


class _Rows(FrameSink):
    """A sink of this module alone: the core knows nothing of it."""

    def __init__(self, *, reads_once: bool) -> None:
        self.reads_once = reads_once  # type: ignore[misc]
        self.rows: list[tuple[int, int]] = []

    def write(self, df: DataFrame, attempt: Attempt) -> None:
        self.rows.append((attempt.epoch, len(df.collect())))


@pytest.mark.parametrize("reads_once", [True, False])
def test_a_sink_of_another_class_is_written_every_epoch(runs: Runs, reads_once: bool) -> None:
    sink, records = _Rows(reads_once=reads_once), events(seed=6, size=2 * SIZE)
    stream = _feed(runs, records)
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    assert sink.rows == [(0, SIZE), (1, SIZE)]
    _check_state(runs, records)


class _Typed(Sink):
    """Publishes the rows of each epoch, and the types of their columns."""

    def __init__(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.types: set[tuple[str, ...]] = set()
        self.closed = 0

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        taken = list(batches)
        rows = [row for batch in taken for row in batch.to_pylist()]
        return {"rows": rows, "types": list(map(str, taken[0].schema.types))}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        self.rows[attempt.epoch] = [row for receipt in receipts for row in receipt["rows"]]
        self.types |= {tuple(receipt["types"]) for receipt in receipts}

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("sinks", [1, 2])
def test_a_sink_gets_on_spark_what_it_gets_in_one_process(runs: Runs, sinks: int) -> None:
    job, given = sk.Job("counting"), events(seed=7, size=2 * SIZE)
    counts = job.source("events", Event).process(count)
    targets = {name: _Typed() for name in ("counted", "copy")[:sinks]}
    for name in targets:  # of two, frames are persisted, and they are written beside each other
        counts.sink(name)
    alone = _Typed()
    counting_job().run({"events": given}, outputs={"counted": alone}, epoch_size=SIZE)
    runs.finish(job, {"events": _feed(runs, given)}, outputs=targets, parallelism=3)
    for target in targets.values():
        assert target.types == alone.types
        assert target.closed == alone.closed == 1
        assert target.rows.keys() == alone.rows.keys()
        for epoch, rows in target.rows.items():
            assert sorted(map(repr, rows)) == sorted(map(repr, alone.rows[epoch]))


class _Unreachable(_Typed):
    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        raise ConnectionRefusedError("127.0.0.1:5432")


class _Wordy(_Typed):
    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return {"batches": list(batches)}


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (_Unreachable(), "sink 'counted' failed in epoch 0 with ConnectionRefusedError"),
        (_Wordy(), "which is no JSON .*: return a dict of texts and numbers"),
    ],
)
def test_an_error_of_a_sink_in_a_worker_names_it_and_commits_nothing(
    runs: Runs, sink: Sink, message: str
) -> None:
    stream = _feed(runs, events(seed=8, size=SIZE))
    with pytest.raises(Exception, match=message):
        runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    assert runs.epochs() == []
    assert isinstance(sink, _Typed)
    assert sink.closed == 1


def test_a_bounded_run_closes_its_sinks(runs: Runs) -> None:
    given, sink = events(seed=9, size=SIZE), _Typed()
    frame = runs.spark.createDataFrame(list(map(tuple, given)), EVENT_SCHEMA)
    runs.finish(counting_job(), {"events": frame}, outputs={"counted": sink})
    assert sink.closed == 1
