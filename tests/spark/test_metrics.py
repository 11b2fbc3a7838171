"""Metrics of a job on Spark: the endpoint of the driver, and what a listener of Spark gets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import statekit as sk
from statekit.job.progress import Progress, RunningJob
from statekit.spark import progress_of
from tests.support.places import ROOT
from tests.support.scraped import scraped
from tests.support.spark_job import EVENT_SCHEMA, chained_job, counting_job, events
from tests.support.spark_runs import Runs, collector
from tests.support.timeouts import PATIENCE_S


class Listener(StreamingQueryListener):
    """Keeps the progress of statekit's queries, and the other events."""

    def __init__(self) -> None:
        self.progress: list[tuple[int, Progress | None]] = []
        self.observed: list[int] = []
        self.ended = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.progress.append((event.progress.batchId, progress_of(event)))
        self.observed += (row.n for row in event.progress.observedMetrics.values())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended += 1


@pytest.fixture
def listener(runs: Runs) -> Iterator[Listener]:
    listener = Listener()
    runs.spark.streams.addListener(listener)
    yield listener
    runs.spark.streams.removeListener(listener)


def wait(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


def is_served(address: str) -> bool:
    try:
        scraped(address)
    except (URLError, OSError):
        return False
    return True


def test_prometheus_and_a_listener_get_the_values_of_the_progress(
    runs: Runs, listener: Listener
) -> None:
    for seed in range(3):
        runs.feed("events", [event._asdict() for event in events(seed, size=30)])
    number = F.count(F.lit(1)).alias("n")
    stream = runs.stream("events", EVENT_SCHEMA).observe("input", number)
    sink = sk.sinks.parquet(runs.home / "out")
    query = runs.start(chained_job(), {"events": stream}, outputs={"sums": sink}, metrics=0)
    address = query.metrics_address
    assert address is not None
    assert address.startswith("http://127.0.0.1:")
    wait(lambda: query.epoch == 2)
    read = scraped(address)
    progress, last = list(query.progress), query.last_progress
    assert last is not None
    assert read["statekit_epoch{}"] == 2
    assert read["statekit_epochs_total{}"] == read["statekit_epoch_seconds_count{}"] == 3
    assert read["statekit_epoch_seconds_sum{}"] == pytest.approx(sum(p.seconds for p in progress))
    assert read["statekit_source_records_total{source=events}"] == 90
    assert read["statekit_source_records_total{source=events}"] == sum(
        each.records_in for each in progress
    )
    emitted = (f"statekit_records_out_total{{operator={name}}}" for name in ("to_digit", "sums"))
    assert sum(map(read.__getitem__, emitted)) == sum(each.records_out for each in progress)
    for name, rows in last.state_rows.items():
        operator, _, state = name.partition(".")
        of = f"{{operator={operator},state={state}}}"
        assert read[f"statekit_state_rows{of}"] == rows
        assert read[f"statekit_state_bytes{of}"] == last.state_bytes[name]
    # The names and values of the progress are those that Prometheus reads, but for the time.
    own = {name.replace('"', ""): value for name, value in last.metrics.items()}
    own = {name if "{" in name else f"{name}{{}}": value for name, value in own.items()}
    buckets = {name for name in read if "_bucket" in name}
    assert own.keys() == read.keys() - buckets
    assert {k: v for k, v in own.items() if "lag" not in k}.items() <= read.items()
    # A listener gets the event of each micro-batch, with the progress of its epoch.
    wait(lambda: len(listener.progress) == 3)
    query.stop()
    assert query.metrics_address is None
    assert not is_served(address)
    wait(lambda: listener.ended)
    assert listener.progress == [(epoch.batch, epoch) for epoch in progress]
    assert listener.observed == [30, 30, 30]  # what the user observes on an input
    metrics = [epoch.metrics for _, epoch in listener.progress if epoch is not None]
    assert [values["statekit_epochs_total"] for values in metrics] == [1, 2, 3]


def test_a_listener_gets_no_progress_of_a_query_that_is_not_of_statekit(
    runs: Runs, listener: Listener
) -> None:
    runs.feed("events", [event._asdict() for event in events(1, size=5)])
    plain = runs.stream("events", EVENT_SCHEMA).writeStream.format("noop")
    place = str(runs.home / "plain")
    plain.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()
    wait(lambda: listener.ended)
    assert listener.progress == [(0, None)]


def _has_no_address(query: RunningJob) -> bool:
    return query.metrics_address is None


def test_the_endpoint_ends_with_a_job_that_fails_or_has_read_everything(runs: Runs) -> None:
    runs.feed("events", [event._asdict() for event in events(1, size=5)])
    stream = runs.stream("events", EVENT_SCHEMA)
    addresses: list[str] = []

    def fail(df: DataFrame, epoch: int) -> None:
        raise RuntimeError("a sink that fails")

    found, collect = collector()
    for sink, ends_well in ((fail, False), (collect, True)):
        query = runs.start(
            counting_job(),
            {"events": stream},
            outputs={"counted": sink},
            trigger={"availableNow": True},
            metrics="localhost:0",
        )
        addresses.append(query._endpoint.url)  # type: ignore[attr-defined]
        wait(partial(_has_no_address, query))
        assert not query.is_active
        assert not is_served(addresses[-1])
        if ends_well:
            assert query.await_termination(PATIENCE_S)
        else:
            with pytest.raises(Exception, match="a sink that fails"):
                query.await_termination(PATIENCE_S)
    assert found


SESSION_STOPS = """
import sys, time
from pathlib import Path
import statekit as sk
from tests.spark.test_metrics import is_served, wait
from tests.support.spark_job import EVENT_SCHEMA, counting_job, events
from tests.support.spark_runs import Runs, new_session

home = Path(sys.argv[1])
runs = Runs(new_session(home / "tmp"), home)
runs.feed("events", [event._asdict() for event in events(1, size=5)])
query = runs.start(
    counting_job(),
    {"events": runs.stream("events", EVENT_SCHEMA)},
    outputs={"counted": sk.sinks.writer("noop")},
    metrics=0,
)
address = query.metrics_address
wait(lambda: query.epoch == 0)
assert is_served(address)
runs.spark.stop()
wait(lambda: query.metrics_address is None)
assert not is_served(address)
"""


@pytest.mark.slow
def test_the_endpoint_ends_with_the_session(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    code = [sys.executable, "-c", SESSION_STOPS, str(tmp_path)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_bounded_run_serves_metrics_until_it_has_ended(runs: Runs) -> None:
    rows = [tuple(event) for event in events(1, size=20)]
    frame = runs.spark.createDataFrame(rows, EVENT_SCHEMA)
    query = runs.start(
        counting_job(), {"events": frame}, outputs={"counted": sk.sinks.writer("noop")}, metrics=0
    )
    assert query.metrics_address is None
    assert query.last_progress is not None
    assert query.last_progress.metrics["statekit_epochs_total"] == 1


def test_a_port_in_use_is_an_error_before_anything_is_written(runs: Runs, tmp_path: Path) -> None:
    runs.feed("events", [event._asdict() for event in events(1, size=5)])
    inputs = {"events": runs.stream("events", EVENT_SCHEMA)}
    first = runs.start(
        counting_job(), inputs, outputs={"counted": sk.sinks.writer("noop")}, metrics=0
    )
    assert first.metrics_address is not None
    port = int(first.metrics_address.rpartition(":")[2].partition("/")[0])
    other = tmp_path / "other"
    with pytest.raises(sk.StorageError, match="Nothing was started"):
        runs.start(
            counting_job(),
            inputs,
            outputs={"counted": sk.sinks.writer("noop")},
            checkpoint=other,
            metrics=port,
        )
    assert not other.exists()
    first.stop()
    again = runs.start(
        counting_job(), inputs, outputs={"counted": sk.sinks.writer("noop")}, metrics=port
    )
    assert again.metrics_address is not None
    assert is_served(again.metrics_address)
    again.stop()
