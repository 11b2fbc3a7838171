"""The endpoint of a run: what Prometheus reads there, and how long it is there."""

from __future__ import annotations

import datetime as dt
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.metrics.address import Address
from statekit.metrics.definitions import EVENT_TIME_LAG, WATERMARK
from statekit.metrics.epoch_metrics import EpochMetrics
from statekit.metrics.option import open_endpoint
from statekit.metrics.run_metrics import RunMetrics
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.coordinator import Coordinator
from statekit.timestamp import datetime_to_micros
from tests.support.scraped import METRICS, parsed, scraped

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


class Order(NamedTuple):
    shop: str
    cents: int
    at: dt.datetime


@sk.process(key="shop", event_time="at", lateness="5 seconds")
def total(order: Order, cents: sk.ValueState[int]) -> Iterator[Order]:
    cents.update((cents.get() or 0) + order.cents)
    yield order


@sk.process(key="cents")
def each(order: Order, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


def shop_job() -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order).process(total).sink("out").process(each)
    return job


def orders(count: int) -> list[Order]:
    """One a second; each tenth is a minute behind."""
    return [
        Order(f"s{n % 3}", n % 5, START + (n - 60 * (n % 10 == 9)) * SECOND) for n in range(count)
    ]


def address_in(caplog: pytest.LogCaptureFixture) -> str:
    """The address that was logged last."""
    logged = [record for record in caplog.records if record.name == "statekit.metrics"]
    return logged[-1].getMessage().rpartition(" ")[2]


def run(given: list[Order], caplog: pytest.LogCaptureFixture, **options: Any) -> list[Any]:
    """Run the job, and read its metrics while each epoch is being written to the sink."""
    scrapes = []

    def write(_: list[Any], epoch: int) -> None:
        scrapes.append(scraped(address_in(caplog)))

    with caplog.at_level(logging.INFO, "statekit.metrics"):
        shop_job().run({"orders": given}, outputs={"out": write}, metrics=0, **options)
    return scrapes


def test_a_running_job_reports_what_it_has_committed(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scrapes = run(orders(40), caplog, checkpoint=root, epoch_size=10, parallelism=4, drain=False)
    assert [scrape["statekit_epochs_total{}"] for scrape in scrapes] == [0, 1, 2, 3]
    assert "statekit_epoch{}" not in scrapes[0]
    read = scrapes[3]
    assert read["statekit_epoch{}"] == 2
    assert read["statekit_epoch_seconds_count{}"] == 3
    assert read["statekit_epoch_seconds_bucket{le=+Inf}"] == 3
    assert 0 < read["statekit_epoch_seconds_sum{}"] < 60
    assert 0 <= read["statekit_lag_seconds{}"] < 60
    assert read["statekit_source_records_total{source=orders}"] == 30
    manifests = [Repository(root).manifest(epoch) for epoch in (0, 1, 2)]
    for name in ("total", "each"):
        operators, of = [manifest.operators[name] for manifest in manifests], f"{{operator={name}}}"
        assert read[f"statekit_records_in_total{of}"] == sum(op.records_in for op in operators)
        assert read[f"statekit_records_out_total{of}"] == sum(op.records_out for op in operators)
        assert read[f"statekit_late_records_total{of}"] == sum(op.late for op in operators)
        written = sum(op.bytes_written for op in operators)
        assert read[f"statekit_change_file_bytes_total{of}"] == written > 0
        assert read[f"statekit_uploaded_bytes_total{of}"] == written  # in memory, without bases
    assert read["statekit_late_records_total{operator=total}"] == 2
    assert read["statekit_state_rows{operator=total,state=cents}"] == 3
    size = CheckpointReader(root, epoch=2).manifest.operators["total"].bytes["cents"]
    assert read["statekit_state_bytes{operator=total,state=cents}"] == size


def test_watermarks_are_reported_once_there_are_any(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = START + dt.timedelta(hours=1)
    now_us = datetime_to_micros(now)
    options = {"epoch_size": 10, "drain": False, "clock": lambda: now_us}
    scrapes = run(orders(40), caplog, checkpoint=root, **options)
    name, lag = "statekit_watermark_timestamp_seconds", "statekit_event_time_lag_seconds"
    assert f"{name}{{operator=total}}" not in scrapes[1]  # the first epoch begins without one
    reached = START + (18 - 5) * SECOND  # in the epoch after the second
    assert scrapes[3][f"{name}{{operator=total}}"] == reached.timestamp()
    assert scrapes[3][f"{lag}{{operator=total}}"] == (now - reached).total_seconds()
    assert f"{name}{{operator=each}}" not in scrapes[3]
    shop_job().run({"orders": orders(40)}, checkpoint=root)
    drained = EpochMetrics("shop", CheckpointReader(root).manifest).samples(now_us)
    assert not {sample.metric for sample in drained} & {WATERMARK, EVENT_TIME_LAG}


def test_counters_are_of_the_run_and_sizes_of_the_checkpoint(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(orders(20), caplog, checkpoint=root, epoch_size=10, parallelism=2, drain=False)
    options = {"epoch_size": 10, "parallelism": 3, "drain": False}
    first, second = run(orders(40), caplog, checkpoint=root, **options)
    assert (first["statekit_epoch{}"], first["statekit_epochs_total{}"]) == (1, 0)
    assert first["statekit_state_rows{operator=total,state=cents}"] == 3
    assert (second["statekit_epoch{}"], second["statekit_epochs_total{}"]) == (2, 1)
    assert second["statekit_source_records_total{source=orders}"] == 10
    written = Repository(root).manifest(2).operators["total"].bytes_written
    assert second["statekit_uploaded_bytes_total{operator=total}"] == written


def test_bases_count_as_uploaded(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    bases = sk.BaseOptions(replay_seconds=0, uploaded_per_changed=100)
    options = {"backend": "rocksdb", "bases": bases, "epoch_size": 10, "drain": False}
    *_, last = run(orders(200), caplog, checkpoint=root, **options)
    of = "{operator=total}"
    shards = Repository(root).manifest(int(last["statekit_epoch{}"])).operators["total"].shards
    assert any(shard.base is not None for shard in shards)
    uploaded = sum(shard.chain.uploaded for shard in shards)
    assert last[f"statekit_uploaded_bytes_total{of}"] == uploaded
    assert uploaded > last[f"statekit_change_file_bytes_total{of}"]


def test_the_number_of_series_does_not_depend_on_keys_shards_and_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = run(orders(20), caplog, checkpoint=tmp_path / "a", epoch_size=10, drain=False)
    given = [order._replace(shop=f"s{n}") for n, order in enumerate(orders(400))]
    many = run(given, caplog, checkpoint=tmp_path / "b", epoch_size=99, parallelism=16, drain=False)
    assert set(few[-1]) <= set(many[-1])
    assert len(many[-1]) <= len(few[-1]) + 2  # the watermark came later


def test_every_metric_of_a_job_and_of_the_server_has_one_definition() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("statekit_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert set(metric.labels).isdisjoint({"key", "shard", "epoch"})


# ------------------------------------------------------------------------------------ its life


def is_free(address: str) -> bool:
    """Whether something else can listen at the address of an endpoint."""
    url = httpx.URL(address)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((url.host, url.port))
        except OSError:
            return False
        return True


class Failing(RuntimeError):
    """An error of a user's own."""


@pytest.mark.parametrize("fails", [False, True])
def test_the_port_is_free_after_the_run_has_ended_or_failed(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = []

    def write(_: list[Any], epoch: int) -> None:
        found.append(address_in(caplog))
        assert not is_free(found[-1])
        if fails:
            raise Failing

    with caplog.at_level(logging.INFO, "statekit.metrics"):
        if fails:
            with pytest.raises(sk.ProcessError, match="with Failing"):
                shop_job().run({"orders": orders(5)}, outputs={"out": write}, metrics=0)
        else:
            shop_job().run({"orders": orders(5)}, outputs={"out": write}, metrics=0)
    assert is_free(found[0])
    with pytest.raises(httpx.TransportError):
        httpx.get(found[0])
    assert not [t for t in threading.enumerate() if t.name == "statekit metrics"]


def test_a_probe_fails_while_an_epoch_takes_too_long_and_not_between_epochs(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = []

    def write(_: list[Any], epoch: int) -> None:
        at = address_in(caplog).replace("/metrics", "/healthz")
        asked = ("", "?longest=60", "?longest=0", "?longest=0&longest=60", "?longest=soon")
        answers.append([httpx.get(at + question) for question in asked])

    with caplog.at_level(logging.INFO, "statekit.metrics"):
        shop_job().run({"orders": orders(5)}, outputs={"out": write}, checkpoint=root, metrics=0)
    given, *_ = answers
    assert [answer.status_code for answer in given] == [200, 200, 503, 503, 400]
    assert given[0].json()["status"] == "ok"
    assert given[0].json()["epoch_seconds"] > 0
    assert given[2].json()["status"] == "the epoch takes too long"
    metrics = RunMetrics("shop", None, lambda: 0, list)
    assert metrics.epoch_seconds == 0
    metrics.begun()
    assert metrics.epoch_seconds > 0
    metrics.committed(CheckpointReader(root).manifest, 1.0)
    assert metrics.epoch_seconds == 0


def test_the_port_is_free_after_a_run_that_could_not_start(root: Path) -> None:
    shop_job().run({"orders": orders(5)}, checkpoint=root, drain=False)
    other = sk.Job("other")
    other.source("orders", Order).process(total)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(sk.RestoreError):
        other.run({"orders": orders(5)}, checkpoint=root, metrics=port)
    assert is_free(f"http://127.0.0.1:{port}/metrics")


def test_several_clients_at_once_and_one_that_says_nothing() -> None:
    endpoint = open_endpoint("localhost:0")
    assert endpoint is not None
    url = httpx.URL(endpoint.url)
    job = shop_job()
    coordinator = Coordinator.open(job.plan, Repository.in_memory())
    endpoint.serve(job.name, coordinator.metrics)
    with socket.create_connection((url.host, url.port or 0)):
        for _ in range(3):
            answer = httpx.get(endpoint.url, timeout=5)
            assert answer.status_code == 200
            assert "text/plain" in answer.headers["content-type"]
            assert parsed(answer.text)["statekit_epochs_total{}"] == 0
    endpoint.close()
    endpoint.close()
    assert endpoint.is_closed


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "given",
    ["9464", "", ":9464", "host", "http://host:9464", "::1:9464", "a b:1", 9464.0, True, b"x:1"],
)
def test_what_is_no_address_is_refused_before_anything_starts(given: Any, root: Path) -> None:
    with pytest.raises(sk.StateTypeError, match=r"give a port such as 9464.*Nothing was started"):
        shop_job().run({"orders": orders(1)}, checkpoint=root, metrics=given)
    assert not root.exists()


@pytest.mark.parametrize("given", [-1, 65536, "0.0.0.0:65536", "host:99999999999"])
def test_what_is_no_port_is_refused(given: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="is no port: give a number from 1 to 65535"):
        open_endpoint(given)


def test_a_port_that_is_in_use_is_an_error_before_anything_starts(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sk.StorageError, match=rf"127\.0\.0\.1:{port} .*Nothing was started"):
            shop_job().run({"orders": orders(1)}, checkpoint=root, metrics=port)
    assert not root.exists()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.77"])
def test_a_host_that_is_not_this_machine_is_an_error(host: str) -> None:
    with pytest.raises(sk.StorageError, match=f"cannot be served at {host}:0"):
        open_endpoint(f"{host}:0")


def test_a_name_that_no_host_can_have_is_an_error() -> None:
    with pytest.raises(sk.StateTypeError, match="is not the name of a host"):
        open_endpoint(f"{'x' * 70}.com:0")


def test_addresses_of_both_versions_and_all_interfaces() -> None:
    assert Address.of("[::1]:9464") == Address("::1", 9464)
    for given in ("[::1]:0", "0.0.0.0:0"):
        endpoint = open_endpoint(given)
        assert endpoint is not None
        assert endpoint.url.startswith(f"http://{given.removesuffix(':0')}:")
        endpoint.close()


def test_a_missing_package_is_named() -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
import statekit as sk
@sk.process(key="word")
def count(record: dict, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)
job = sk.Job("words")
job.source("lines", dict).process(count)
job.run({"lines": [{"word": "a"}]})
try:
    job.run({"lines": [{"word": "a"}]}, metrics=0)
except sk.StatekitError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("StatekitError metrics=0 needs the package prometheus-client")
    assert "statekit[metrics]" in done.stdout
