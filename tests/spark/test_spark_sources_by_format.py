"""A job names a source of any format of Spark, and Spark reads it as a frame in `inputs=`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.spark.test_spark_reads_sources import job_of, start, wait_for
from tests.support.log_source import LogSource
from tests.support.sinks import ORDERS, Order, Spent, rows_of, spending, sums
from tests.support.spark_runs import Runs
from tests.unit.sources.test_protocol import Rate, discounted

PASSWORD = "quite-hidden"


def write_json(home: Path, name: str, orders: Sequence[Order]) -> None:
    home.mkdir(exist_ok=True)
    lines = (json.dumps(order._asdict()) for order in orders)
    (home / f".{name}").write_text("\n".join(lines))
    (home / f".{name}").rename(home / name)


def test_a_stream_of_json_files_continues_where_the_last_run_ended(
    runs: Runs, tmp_path: Path
) -> None:
    home, out = tmp_path / "orders", tmp_path / "out"
    source = sk.sources.spark("json", options={"path": home, "maxFilesPerTrigger": 1})
    write_json(home, "a.json", ORDERS[:4])
    write_json(home, "b.json", ORDERS[4:8])
    assert len(start(runs, job_of(source, out)).progress) == 2
    write_json(home, "c.json", ORDERS[8:])
    query = start(runs, job_of(source, out), parallelism=1)
    assert [progress.records_in for progress in query.progress] == [4]
    assert rows_of(out) == sums(ORDERS)


@pytest.mark.slow
def test_columns_of_a_header_that_are_not_those_of_the_records_are_refused(
    runs: Runs, tmp_path: Path
) -> None:
    home = tmp_path / "orders"
    home.mkdir()
    (home / "a.csv").write_text("cents,customer\n5,7\n")
    source = sk.sources.spark("csv", options={"path": home, "header": True}, streaming=False)
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        start(runs, job_of(source, tmp_path / "out"))
    assert Repository(runs.checkpoint).latest_epoch() is None
    (home / "a.csv").write_text("customer,cents\nann,7\n")
    start(runs, job_of(source, tmp_path / "out"))
    assert rows_of(tmp_path / "out") == [Spent("ann", 7)]


@pytest.mark.slow
@pytest.mark.parametrize("reads_log", [False, True])
def test_a_static_table_is_read_before_a_stream(
    runs: Runs, tmp_path: Path, reads_log: bool
) -> None:
    rates, home = tmp_path / "rates.parquet", tmp_path / "orders"
    pq.write_table(pa.table({"customer": ["c0", "c1", "c2"], "percent": [50, 50, 50]}), rates)
    home.mkdir()
    log = LogSource(home)
    if reads_log:
        log.append("a", ORDERS)
    else:
        write_json(home, "a.json", ORDERS)
    job = sk.Job("shop")
    given: Any = log if reads_log else sk.sources.spark("json", options={"path": home})
    orders = job.source("orders", Order, given)
    table = sk.sources.spark("parquet", options={"path": rates}, streaming=False)
    paid = orders.union(job.source("rates", Rate, table)).process(discounted)
    paid.sink("spent", sk.sinks.parquet(tmp_path / "out"))
    query = start(runs, job)
    assert [progress.records_in for progress in query.progress] == [3, 12]
    assert rows_of(tmp_path / "out") == sorted(
        Spent(order.customer, order.cents // 2) for order in ORDERS
    )


class Tick(NamedTuple):
    value: int


@sk.process(key="value")
def ticking(tick: Tick, seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update(tick.value)
    yield tick.value


@pytest.mark.slow
def test_a_format_that_is_no_file_has_its_own_columns(runs: Runs, tmp_path: Path) -> None:
    job = sk.Job("ticks")
    ticks = job.source("ticks", Tick, sk.sources.spark("rate", options={"rowsPerSecond": 1000}))
    ticks.process(ticking).sink("seen", sk.sinks.parquet(tmp_path / "out"))
    query = job.start(runs.spark, checkpoint=runs.checkpoint)
    try:
        wait_for(lambda: any(progress.records_in for progress in query.progress))
    finally:
        query.stop()
    assert 0 in {row["value"] for row in runs.parquet("out")}


@pytest.mark.slow
def test_a_frame_or_another_source_of_the_run_goes_before_that_of_the_job(
    runs: Runs, tmp_path: Path
) -> None:
    absent = sk.sources.spark("no-such-format")
    job = job_of(absent, tmp_path / "out")
    assert job.run({"orders": ORDERS}).last_epoch is not None
    runs.feed("orders", [order._asdict() for order in ORDERS])
    start(runs, job, inputs={"orders": runs.stream("orders", "customer string, cents long")})
    assert rows_of(tmp_path / "out") == sums(ORDERS)


def test_a_run_in_one_process_refuses_a_source_of_spark(tmp_path: Path) -> None:
    source = sk.sources.spark("delta", options={"path": tmp_path, "fs.key": PASSWORD})
    job = job_of(source, tmp_path / "out")
    with pytest.raises(sk.StateTypeError) as refused:
        job.run()
    assert str(refused.value) == (
        f"source 'orders' is spark('delta', path='{tmp_path}', options of fs.key), which Spark "
        "reads, and this run has no Spark: run the job with job.start(spark, …), or give "
        "inputs={'orders': …} an iterable or another source, such as sources.parquet(path)"
    )


@pytest.mark.parametrize("name", ["kafka", pytest.param("no-such-format", marks=pytest.mark.slow)])
def test_a_format_that_spark_does_not_have_is_refused(
    runs: Runs, tmp_path: Path, name: str
) -> None:
    job = job_of(sk.sources.spark(name), tmp_path / "out")
    with pytest.raises(sk.StateTypeError, match=f"does not find the format '{name}', .*jars"):
        start(runs, job)
    assert not os.path.exists(runs.checkpoint)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (sk.sources.spark("json", options={"path": "/no/such"}), "Path does not exist: /no/such"),
        (sk.sources.spark("json"), "'path' is not specified"),
        (sk.sources.spark("rate", options={"rowsPerSecond": "x"}), 'For input string: "x"'),
        (sk.sources.spark("rate", streaming=False), "rate is not a valid Spark SQL Data Source"),
        (sk.sources.spark("json", schema="cents lon g"), "Syntax error"),
    ],
)
def test_options_that_spark_refuses_are_an_error_before_the_first_record(
    runs: Runs, tmp_path: Path, source: Any, reason: str
) -> None:
    with pytest.raises(sk.ConnectorError, match="source 'orders': Spark cannot open") as refused:
        start(runs, job_of(source, tmp_path / "out"))
    assert reason in str(refused.value)
    assert not os.path.exists(runs.checkpoint)


def test_an_option_that_spark_checks_when_it_reads_is_an_error_that_names_the_source(
    runs: Runs, tmp_path: Path
) -> None:
    write_json(tmp_path / "orders", "a.json", ORDERS)
    options: Any = {"path": tmp_path / "orders", "maxFilesPerTrigger": "few"}
    source = sk.sources.spark("json", options=options)
    with pytest.raises(sk.ConnectorError, match="Spark cannot read source 'orders', ") as refused:
        start(runs, job_of(source, tmp_path / "out"))
    assert "Invalid value 'few' for option 'maxFilesPerTrigger'" in str(refused.value)
    assert Repository(runs.checkpoint).latest_epoch() is None


def test_no_text_has_the_value_of_a_secret_option(runs: Runs, tmp_path: Path) -> None:
    options: dict[str, Any] = {"host": "127.0.0.1", "port": PASSWORD, "dbPassword": PASSWORD}
    source = sk.sources.spark("socket", options=options)
    job = job_of(source, tmp_path / "out")
    with pytest.raises(sk.ConnectorError, match=r'For input string: "\*\*\*"') as refused:
        start(runs, job)
    texts = [str(refused.value), repr(source), job.explain(), str(job), repr(job)]
    assert refused.value.__cause__ is None
    assert not any(PASSWORD in text for text in texts)
    assert "options of host, port, dbPassword" in job.explain()


def test_a_job_with_a_source_of_spark_is_pickled(tmp_path: Path) -> None:
    source = sk.sources.spark("delta", options={"path": "/data"}, schema="customer string")
    job = cloudpickle.loads(cloudpickle.dumps(job_of(source, tmp_path)))
    assert job.plan.sources[0].source == source
    assert "source orders: spark('delta', path='/data'), a stream" in job.explain()


def test_a_source_of_statekit_and_a_stream_of_spark_are_not_mixed(
    runs: Runs, tmp_path: Path
) -> None:
    job = job_of(LogSource(tmp_path), tmp_path / "out")
    more = job.source("more", Order, sk.sources.spark("json", options={"path": tmp_path}))
    more.process(spending, name="other").sink("other", sk.sinks.parquet(tmp_path / "other"))
    with pytest.raises(sk.StateTypeError, match="input 'more' is a streaming frame"):
        start(runs, job)


def test_records_of_several_types_are_refused(runs: Runs, tmp_path: Path) -> None:
    job = sk.Job("shop")
    both: Any = job.source("both", Order, Rate)
    both.process(discounted).sink("spent", sk.sinks.parquet(tmp_path / "out"))
    source = sk.sources.spark("json", options={"path": tmp_path})
    with pytest.raises(sk.StateTypeError, match="the rows of a frame are of one type"):
        start(runs, job, inputs={"both": source})


@pytest.mark.parametrize("on_error", ["drop", "collect"])
def test_spark_decides_about_rows_that_it_cannot_read(tmp_path: Path, on_error: str) -> None:
    source = sk.sources.spark("json", options={"path": tmp_path})
    with pytest.raises(sk.StateTypeError, match="Spark decides about rows that it cannot read"):
        job_of(source, tmp_path / "out", on_error=on_error)


@pytest.mark.parametrize("on_error", ["drop", "collect"])
def test_a_frame_is_refused_where_bad_records_are_handled(
    runs: Runs, tmp_path: Path, on_error: str
) -> None:
    job = job_of(None, tmp_path / "out", on_error=on_error)
    frame = runs.stream("orders", "customer string, cents long")
    with pytest.raises(sk.StateTypeError, match=f"'orders' is a frame, and on_error='{on_error}'"):
        start(runs, job, inputs={"orders": frame})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": ""}, "give the name of a format of Spark"),
        ({"format": "json", "schema": 5}, "schema=5: give columns with their types"),
        ({"format": "json", "options": {"path": ["a"]}}, "options= has a list for 'path'"),
    ],
)
def test_arguments_that_cannot_be_are_refused_where_they_are_given(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sources.spark(**arguments)
