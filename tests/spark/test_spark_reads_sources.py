"""On Spark, sources are read by the offsets of the checkpoint, which any runtime continues."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sources import BadRecord
from tests.support.log_source import LogSource
from tests.support.sinks import ORDERS, Order, Spent, rows_of, spending, sums
from tests.support.spark_runs import Runs


@pytest.fixture
def log(tmp_path: Path) -> LogSource:
    home = tmp_path / "log"
    home.mkdir()
    return LogSource(home)


def job_of(source: Any, out: Path, **options: Any) -> sk.Job:
    job = sk.Job("shop")
    orders = job.source("orders", Order, source, **options)
    orders.process(spending).sink("spent", sk.sinks.parquet(out))
    return job


def start(runs: Runs, job: sk.Job, **options: Any) -> Any:
    options = {"trigger": {"availableNow": True}} | options
    query = job.start(runs.spark, checkpoint=runs.checkpoint, **options)
    query.await_termination()
    return query


def test_a_checkpoint_moves_from_a_process_to_spark_and_back(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    job, out = job_of(log, tmp_path / "out"), tmp_path / "out"
    log.append("a", ORDERS[:3])
    job.run(checkpoint=runs.checkpoint)
    log.append("a", ORDERS[3:5])
    log.append("b", ORDERS[5:6])
    query = start(runs, job)
    assert [progress.records_in for progress in query.progress] == [3]
    log.append("b", ORDERS[6:9])
    job.run(checkpoint=runs.checkpoint)
    log.append("a", ORDERS[9:])
    start(runs, job, parallelism=2)
    assert rows_of(out) == sums(ORDERS)
    repository = Repository(runs.checkpoint)
    assert repository.manifest(3).offsets == {"orders": {"a": 8, "b": 4}}


def test_a_stream_of_a_source_runs_until_it_is_stopped(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    log.append("a", ORDERS[:6])
    job = job_of(log, out)
    query = job.start(runs.spark, checkpoint=runs.checkpoint, trigger="10 ms")
    try:
        wait_for(lambda: query.epoch == 0)
        assert not query.await_termination(0.01)
        log.append("b", ORDERS[6:])
        wait_for(lambda: query.epoch == 1)
        with pytest.raises(sk.FencedError, match="is being written by a query"):
            job.start(runs.spark, checkpoint=runs.checkpoint)
    finally:
        query.stop()
    assert not query.is_active
    assert query.await_termination()
    assert rows_of(out) == sums(ORDERS)


def test_a_job_of_tables_alone_ends_when_it_has_read_them(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    log.append("a", ORDERS)
    table = LogSource(log.home, is_bounded=True)
    query = job_of(table, tmp_path / "out").start(runs.spark, checkpoint=runs.checkpoint)
    assert not query.is_active
    assert rows_of(tmp_path / "out") == sums(ORDERS)


def wait_for(condition: Any) -> None:
    """Wait until something holds, for a minute."""
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to hold")


def test_bad_records_are_a_frame_of_their_own_and_counted(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    rows: list[Any] = [order._asdict() for order in ORDERS]
    log.append("a", [*rows[:3], {"customer": "eve", "cents": None}, *rows[3:]])
    job = sk.Job("shop")
    orders = job.source("orders", Order, log, on_error="collect")
    spent = orders.filter("cents > 3").process(spending)
    spent.sink("spent", sk.sinks.parquet(tmp_path / "out"))
    orders.errors.sink("errors", sk.sinks.json_lines(tmp_path / "errors"))
    query = start(runs, job)
    large = [order for order in ORDERS if order.cents > 3]
    assert rows_of(tmp_path / "out") == sums(large)
    assert len(large) < len(ORDERS)
    assert query.last_progress.records_in == len(ORDERS), "those before the filter"
    (file,) = (tmp_path / "errors").glob("*.jsonl")
    why = "Order.cents is null, but its type does not allow None"
    bad = BadRecord("orders", "a", "3", b'{"customer":"eve","cents":null}', why)
    assert file.read_text() == (
        f'{{"source":"orders","partition":"a","offset":"3","value":"{bad.value.hex()}",'
        f'"error":"{why}"}}\n'
    )
    assert Repository(runs.checkpoint).manifest(0).bad_records == {"orders": 1}


def test_a_bad_record_ends_the_job_on_spark(runs: Runs, log: LogSource, tmp_path: Path) -> None:
    log.append("a", [*ORDERS, {"customer": "eve", "cents": None}])
    with pytest.raises(sk.ProcessError, match=r"the record at 12 of partition 'a' does not fit"):
        start(runs, job_of(log, tmp_path / "out"))
    assert Repository(runs.checkpoint).latest_epoch() is None


def test_more_bad_records_than_the_limit_end_the_job_on_spark(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    log.append("a", [*ORDERS, {"customer": "eve", "cents": None}])
    with pytest.raises(sk.ProcessError, match=r"has 1 bad records so far, and max_errors=0"):
        start(runs, job_of(log, tmp_path / "out", on_error="drop", max_errors=0))
    assert Repository(runs.checkpoint).latest_epoch() is None


def test_a_static_frame_is_read_before_the_first_record_of_a_source(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    from tests.unit.sources.test_protocol import Rate, discounted

    job = sk.Job("shop")
    orders = job.source("orders", Order, log)
    rates = job.source("rates", Rate)
    orders.union(rates).process(discounted).sink("spent", sk.sinks.parquet(tmp_path / "out"))
    frame = runs.spark.createDataFrame([Rate(f"c{number}", 50) for number in range(3)])
    log.append("a", ORDERS[:6])
    query = start(runs, job, inputs={"rates": frame})
    assert [progress.records_in for progress in query.progress] == [3, 6]
    log.append("a", ORDERS[6:])
    start(runs, job, inputs={"rates": frame})
    assert rows_of(tmp_path / "out") == sorted(
        Spent(order.customer, order.cents // 2) for order in ORDERS
    )


def test_a_static_frame_is_read_before_the_first_record_of_a_streaming_one(
    runs: Runs, tmp_path: Path
) -> None:
    from tests.unit.sources.test_protocol import Rate, discounted

    job = sk.Job("shop")
    orders, rates = job.source("orders", Order), job.source("rates", Rate)
    more = job.source("more", Order)
    paid = orders.union(rates, more).process(discounted)
    paid.sink("spent", sk.sinks.parquet(tmp_path / "out"))
    frames = {
        "rates": runs.spark.createDataFrame([Rate(f"c{number}", 50) for number in range(3)]),
        "orders": runs.stream("orders", "customer string, cents long"),
        "more": runs.stream("more", "customer string, cents long"),
    }
    runs.feed("orders", [order._asdict() for order in ORDERS[:6]])
    query = start(runs, job, inputs=frames)
    assert [progress.records_in for progress in query.progress] == [3, 6]
    runs.feed("more", [order._asdict() for order in ORDERS[6:]])
    query = start(runs, job, inputs=frames)
    assert [progress.records_in for progress in query.progress] == [6]
    assert rows_of(tmp_path / "out") == sorted(
        Spent(order.customer, order.cents // 2) for order in ORDERS
    )


def test_a_source_and_a_streaming_frame_are_not_mixed(
    runs: Runs, log: LogSource, tmp_path: Path
) -> None:
    job = job_of(log, tmp_path / "out")
    job.source("more", Order).process(spending, name="other").sink(
        "other", sk.sinks.parquet(tmp_path / "other")
    )
    frame = runs.stream("more", "customer string, cents long")
    with pytest.raises(sk.StateTypeError, match="input 'more' is a streaming frame"):
        start(runs, job, inputs={"more": frame})


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"processing_time": "1 second"}])
def test_triggers_that_sources_do_not_have_are_refused(
    runs: Runs, log: LogSource, tmp_path: Path, trigger: dict[str, str]
) -> None:
    log.append("a", ORDERS)
    with pytest.raises(sk.StateTypeError, match=f"no trigger '{min(trigger)}'.*'1 second'"):
        start(runs, job_of(log, tmp_path / "out"), trigger=trigger)
    assert Repository(runs.checkpoint).latest_epoch() is None
    assert log.calls == []
