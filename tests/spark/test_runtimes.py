"""Starting, watching and stopping jobs, as streams and as bounded runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame

import statekit as sk
from statekit.query.rows.reader import CheckpointReader
from tests.support.spark_job import (
    EVENT_SCHEMA,
    Event,
    Sum,
    by_word,
    chained_job,
    count,
    counted,
    counting_job,
    events,
    sums,
    to_digit,
)
from tests.support.spark_runs import ONCE, Runs, collector, pieces
from tests.support.timeouts import PATIENCE_S


def _frame(runs: Runs, given: list[Event]) -> DataFrame:
    return runs.spark.createDataFrame([tuple(event) for event in given], EVENT_SCHEMA)


def test_a_bounded_run_continues_the_state_of_the_run_before_it(runs: Runs) -> None:
    given = events(seed=1, size=60)
    sink = sk.sinks.parquet(runs.home / "out")
    for number, piece in enumerate(pieces(given, 30)):
        query = runs.start(
            counting_job(), {"events": _frame(runs, list(piece))}, outputs={"counted": sink}
        )
        assert (query.epoch, query.is_active, query.query) == (number, False, None)
        assert query.await_termination()
        query.stop()
    expected, states = counted(given)
    assert by_word(runs.parquet("out")) == by_word(expected)
    assert runs.state("count", "numbers") == states["numbers"]


def test_a_stream_continues_after_a_bounded_run_and_the_other_way_round(runs: Runs) -> None:
    given = events(seed=2, size=60)
    first, second, third = pieces(given, 20)
    sink = sk.sinks.parquet(runs.home / "out")
    runs.start(counting_job(), {"events": _frame(runs, list(first))}, outputs={"counted": sink})
    runs.feed("events", [event._asdict() for event in second])
    stream = runs.stream("events", EVENT_SCHEMA)
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    runs.start(counting_job(), {"events": _frame(runs, list(third))}, outputs={"counted": sink})
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    assert by_word(runs.parquet("out")) == by_word(counted(given)[0])


class Word(NamedTuple):
    word: str


@sk.process(key="word")
def count_words(word: Word, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    seen.update((seen.get() or 0) + 1)
    yield word.word, seen.get() or 0


@pytest.mark.parametrize("streaming", [False, True])
def test_two_sources_feed_two_operators_of_one_job(runs: Runs, streaming: bool) -> None:
    job = sk.Job("two")
    job.source("events", Event).process(count).sink("counted")
    job.source("words", Word).process(count_words).sink("words")
    given = events(seed=3, size=40)
    if streaming:
        for piece in pieces(given, 20):
            runs.feed("events", [event._asdict() for event in piece])
        runs.feed("words", [{"word": "a"}, {"word": "a"}])
        inputs = {
            "events": runs.stream("events", EVENT_SCHEMA),
            "words": runs.stream("words", "word string"),
        }
    else:
        inputs = {
            "events": _frame(runs, given),
            "words": runs.spark.createDataFrame([("a",), ("a",)], "word string"),
        }
    found, collect = collector()
    outputs = {"counted": sk.sinks.parquet(runs.home / "out"), "words": collect}
    query = runs.finish(job, inputs, outputs=outputs)
    assert by_word(runs.parquet("out")) == by_word(counted(given)[0])
    assert [tuple(row) for _, row in found] == [("a", 1), ("a", 2)]
    assert sum(progress.records_in for progress in query.progress) == len(given) + 2


def test_operators_with_different_keys_commit_in_one_manifest(runs: Runs) -> None:
    given = events(seed=4, size=60)
    for piece in pieces(given, 20):
        runs.feed("events", [event._asdict() for event in piece])
    stream = runs.stream("events", EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    query = runs.finish(chained_job(), {"events": stream}, outputs={"sums": sink}, parallelism=3)

    totals: dict[int, int] = {}
    for event in given:
        totals[event.number % 10] = totals.get(event.number % 10, 0) + event.number
    assert runs.state("sums", "total") == totals
    # Which of two words comes first at a digit is not promised; the last sum is.
    last = {row["digit"]: row["total"] for row in runs.parquet("out")}
    assert last == totals
    for epoch in (0, 1, 2):
        manifest = CheckpointReader(runs.checkpoint, epoch=epoch).manifest
        assert set(manifest.operators) == {"to_digit", "sums"}
        assert [op.records_in for op in manifest.operators.values()] == [20, 20]
    assert [progress.records_in for progress in query.progress] == [20, 20, 20]
    assert [progress.records_out for progress in query.progress] == [40, 40, 40]


def test_every_stream_of_a_chain_may_have_sinks_of_its_own(runs: Runs) -> None:
    job = sk.Job("both")
    digits = job.source("events", Event).sink("raw").process(to_digit).sink("digits")
    digits.process(sums).sink("sums").sink("again")
    given = events(seed=5, size=30)
    outputs = {name: sk.sinks.parquet(runs.home / name) for name in ("raw", "digits", "sums")}
    found, collect = collector()
    runs.start(job, {"events": _frame(runs, given)}, outputs={**outputs, "again": collect})
    assert len(runs.parquet("digits")) == len(runs.parquet("raw")) == len(given)
    written = sorted(Sum(**row) for row in runs.parquet("sums"))
    assert written == sorted(Sum(*row) for _, row in found)


def test_progress_has_the_metrics_of_each_epoch(runs: Runs) -> None:
    given = events(seed=6, size=50, words=5)
    for piece in pieces(given, 25):
        runs.feed("events", [event._asdict() for event in piece])
    stream = runs.stream("events", EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    query = runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    first, last = query.progress
    assert (first.epoch, first.batch, last.epoch, last.batch) == (0, 0, 1, 1)
    assert last is query.last_progress
    assert query.epoch == 1
    assert (last.records_in, last.records_out) == (25, 25)
    assert last.seconds > 0
    assert last.events_per_second == pytest.approx(25 / last.seconds)
    assert set(last.state_rows) == {f"count.{s}" for s in ("seen", "numbers", "digits", "most")}
    assert last.state_rows["count.numbers"] >= 50
    assert last.changed_bytes > 0
    assert not query.is_active


def _wait(condition: Any, timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.05)


@pytest.mark.parametrize("trigger", [None, "100 milliseconds", {"processingTime": "0 seconds"}])
def test_a_running_job_is_stopped_and_continued_with_any_trigger(runs: Runs, trigger: Any) -> None:
    given = events(seed=8, size=40)
    first, second = pieces(given, 20)
    stream = runs.stream("events", EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    for number, piece in enumerate((first, second)):
        runs.feed("events", [event._asdict() for event in piece])
        query = runs.start(
            counting_job(),
            {"events": stream},
            outputs={"counted": sink},
            trigger=trigger,
            query_name=f"counting-{number}",
        )
        assert query.query is not None
        assert query.query.name == f"counting-{number}"
        _wait(lambda query=query, number=number: query.epoch == number)
        assert not query.await_termination(timeout_s=0.1)
        job = counting_job().name
        assert repr(query) == f"<Query of job {job!r}: running, last epoch {number}>"
        in_notebook: Any = query
        assert f"Query of job &#x27;{job}&#x27;: running" in in_notebook._repr_html_()
        query.stop()
        assert (query.is_active, query.await_termination()) == (False, True)
        assert repr(query) == f"<Query of job {job!r}: ended, last epoch {number}>"
    assert by_word(runs.parquet("out")) == by_word(counted(given)[0])


@contextmanager
def printed_by_spark(runs: Runs) -> Iterator[Callable[[], str]]:
    """Give a function that returns what the JVM writes to its standard error within this block."""
    jvm: Any = runs.spark._jvm
    before, written = jvm.java.lang.System.err, jvm.java.io.ByteArrayOutputStream()
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(written, True))
    try:
        yield written.toString
    finally:
        jvm.java.lang.System.setErr(before)


def test_stop_in_the_middle_of_an_epoch_leaves_nothing_running_and_loses_nothing(
    runs: Runs,
) -> None:
    given = events(seed=9, size=20)
    runs.feed("events", [event._asdict() for event in given])
    stream = runs.stream("events", EVENT_SCHEMA)
    begun, ended = [], []

    def slow(df: DataFrame, epoch: int) -> None:
        begun.append(epoch)
        time.sleep(1.0)
        df.collect()
        ended.append(epoch)

    query = runs.start(counting_job(), {"events": stream}, outputs={"counted": slow})
    _wait(lambda: begun)
    with printed_by_spark(runs) as printed:
        query.stop()
    assert "Exception in thread" not in printed()
    # Whatever the epoch came to, it came to it before stop() returned.
    after = list(ended), query.epoch
    time.sleep(1.2)
    assert (list(ended), query.epoch) == after
    sink = sk.sinks.parquet(runs.home / "out")
    runs.finish(counting_job(), {"events": stream}, outputs={"counted": sink})
    assert runs.state("count", "numbers") == counted(given)[1]["numbers"]


# ------------------------------------------------------------------------------------- failures


class Failing(RuntimeError):
    """An error of a user's own."""


@sk.process(key="word")
def fails_at_13(event: Event, seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update((seen.get() or 0) + 1)
    if event.number == 13:
        raise Failing("thirteen is\nunlucky")
    yield seen.get() or 0


@sk.process(key="word")
def stores_text(event: Event, seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update("three")  # type: ignore[arg-type]
    yield 1


def _job_of(declared: Any) -> sk.Job:
    job = sk.Job("failing")
    job.source("events", Event).process(declared, name="op").sink("out")
    return job


@pytest.mark.parametrize("streaming", [False, True])
def test_an_error_of_the_users_function_comes_with_operator_key_and_record(
    runs: Runs, streaming: bool
) -> None:
    good, bad = [Event("a", 1), Event("b", 1)], [Event("a", 2), Event("b", 13)]
    sink = {"out": sk.sinks.parquet(runs.home / "out")}
    job = _job_of(fails_at_13)
    stream = runs.stream("events", EVENT_SCHEMA)
    for batch in (good, bad):
        runs.feed("events", [event._asdict() for event in batch])
    if not streaming:
        runs.start(job, {"events": _frame(runs, good)}, outputs=sink)
    frame = stream if streaming else _frame(runs, bad)
    with pytest.raises(sk.ProcessError) as caught:
        runs.finish(job, {"events": frame}, outputs=sink)
    message = str(caught.value)
    for part in ("'op'", "'b'", "Failing", "thirteen is\nunlucky", "number=13", "Nothing of this"):
        assert part in message, message
    assert "Traceback" not in message
    assert caught.value.kind == "process"
    assert runs.epochs() == [0]
    assert runs.state("op", "seen") == {"a": 1, "b": 1}


def test_a_value_that_does_not_fit_its_state_is_a_state_type_error(runs: Runs) -> None:
    query = None
    runs.feed("events", [{"word": "a", "number": 1}])
    stream = runs.stream("events", EVENT_SCHEMA)
    outputs = {"out": sk.sinks.writer("noop")}
    query = runs.start(_job_of(stores_text), {"events": stream}, outputs=outputs, trigger=ONCE)
    with pytest.raises(sk.StateTypeError) as caught:
        query.await_termination(60)
    message = str(caught.value)
    for part in ("'op'", "seen", "'a'", "three"):
        assert part in message, message
    with pytest.raises(sk.StateTypeError):  # asked again, it says the same
        query.await_termination()
    assert not query.is_active
    assert query.epoch is None


def test_a_failed_job_continues_once_the_function_is_corrected(runs: Runs) -> None:
    for batch in ([Event("b", 1)], [Event("b", 13)], [Event("b", 2)]):
        runs.feed("events", [event._asdict() for event in batch])
    stream = runs.stream("events", EVENT_SCHEMA)
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    with pytest.raises(sk.ProcessError):
        runs.finish(_job_of(fails_at_13), {"events": stream}, outputs=outputs)

    @sk.process(key="word")
    def corrected(event: Event, seen: sk.ValueState[int]) -> Iterator[int]:
        seen.update((seen.get() or 0) + 1)
        yield seen.get() or 0

    runs.finish(_job_of(corrected), {"events": stream}, outputs=outputs)
    assert [row["value"] for row in runs.parquet("out")] == [1, 2, 3]


def test_inputs_and_outputs_that_are_not_the_jobs_are_refused_at_start(runs: Runs) -> None:
    df = _frame(runs, events(seed=1, size=3))
    with pytest.raises(sk.StateTypeError, match="source"):
        runs.start(counting_job(), {}, outputs={"counted": sk.sinks.writer("noop")})
    with pytest.raises(sk.StateTypeError, match="sink"):
        runs.start(counting_job(), {"events": df})
    with pytest.raises(sk.StateTypeError, match="outputs"):
        runs.start(counting_job(), {"events": df}, outputs={"counted": 3})
    assert not runs.checkpoint.exists()


# ------------------------------------------------------------------------------------- workers


@sk.process(key="word")
def interpreter(event: Event) -> Iterator[str]:
    yield sys.executable


def test_workers_run_the_drivers_interpreter_by_default(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    job = sk.Job("interpreter")
    job.source("events", Event).process(interpreter).sink("out")
    outputs = {"out": sk.sinks.parquet(runs.home / "out")}
    runs.start(job, {"events": _frame(runs, [Event("a", 1)])}, outputs=outputs)
    assert runs.parquet("out") == [{"value": sys.executable}]
