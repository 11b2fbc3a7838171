"""Metrics for Prometheus, and the access log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from statekit.metrics.definitions import (
    EPOCH,
    EVENT_TIME_LAG,
    INPUT_WAIT,
    LAG,
    STATE_BYTES,
    STATE_ROWS,
    WATERMARK,
)
from statekit.server.admission.access import digest_of
from tests.support.scraped import METRICS
from tests.support.served import Sale, sales_job, sell, server


def metrics(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_and_jobs_report_how_far_they_are(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale("rome", "tea", 400), Sale("oslo", "cup", 900)])
    with server({"shop": home}) as address:
        for path in ("/shop/sales/total/rome", "/shop/sales/total/nice", "/shop/sales/total"):
            httpx.get(address + path)
        httpx.get(f"{address}/shop/sales/total/rome")
        httpx.get(f"{address}/none")
        found = metrics(httpx.get(f"{address}/metrics").text)
    assert found["statekit_requests_total", ("single_read", "200")] == 2
    assert found["statekit_requests_total", ("single_read", "404")] == 1
    assert found["statekit_requests_total", ("read_state", "200")] == 1
    assert found["statekit_requests_total", ("describe", "404")] == 1
    assert found["statekit_open_requests", ()] == 1  # the one that asks
    assert found["statekit_request_seconds_count", ("single_read",)] == 3
    assert found["statekit_epoch", ("shop",)] == 1
    assert found["statekit_lag_seconds", ("shop",)] > 0
    assert found["statekit_epochs_behind", ("shop",)] == 0
    assert found["statekit_follow_failing", ("shop",)] == 0
    assert found["statekit_replica_headroom_epochs", ("shop",)] == 2
    assert found["statekit_state_rows", ("shop", "sales", "total")] == 2
    assert found["statekit_watchers", ()] == 0


def test_a_job_and_the_server_have_the_same_metrics_of_an_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "sales"

    def families(address: str) -> dict[str, Any]:
        found = text_string_to_metric_families(httpx.get(address).text)
        return {family.name: family for family in found}

    def records() -> Iterator[Sale]:
        yield Sale("rome", "tea", 400)
        yield Sale("oslo", "cup", 900)
        of_job.update(families(caplog.records[-1].getMessage().rpartition(" ")[2]))

    of_job: dict[str, Any] = {}
    with caplog.at_level(logging.INFO, "statekit.metrics"):
        given = {"records": records()}
        sales_job().run(given, checkpoint=home, epoch_size=1, drain=False, metrics=0)
    with server({"sales": home}) as address:
        of_server = families(f"{address}/metrics")
    shared = of_job.keys() & of_server.keys()
    # This job has no event time.
    assert not shared & {metric.name for metric in (WATERMARK, EVENT_TIME_LAG, INPUT_WAIT)}
    assert shared == {metric.name for metric in (EPOCH, LAG, STATE_ROWS, STATE_BYTES)}
    for name in shared:
        one, other = of_job[name], of_server[name]
        assert (one.type, one.documentation) == (other.type, other.documentation)
        if name != LAG.name:
            assert one.samples == other.samples
    known = {metric.name.removesuffix("_total") for metric in METRICS}
    assert {name.removesuffix("_created") for name in of_job.keys() | of_server.keys()} <= known


def test_a_token_of_one_job_has_no_metrics(tmp_path: Path) -> None:
    home, tokens = tmp_path / "sales", tmp_path / "tokens.json"
    sell(home, [Sale("rome", "tea", 400)])
    listed = [
        {"name": name, "sha256": digest_of(name), "read": read}
        for name, read in (("all", ["*"]), ("some", ["shop"]))
    ]
    tokens.write_text(json.dumps({"tokens": listed}))
    with server({"shop": home}, tokens=tokens) as address:
        for name, status in (("all", 200), ("some", 403), ("none", 401)):
            headers = {"Authorization": f"Bearer {name}"}
            assert httpx.get(f"{address}/metrics", headers=headers).status_code == status


def test_the_access_log_has_no_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    with caplog.at_level(logging.INFO, "statekit.access"), server({"shop": home}) as address:
        httpx.get(f"{address}/shop/sales/total/rome")
        httpx.get(f"{address}/shop/sales/total", params={"key": '"rome"'})
        httpx.post(f"{address}/shop/sales/total/query", json={"keys": ["rome"]})
    lines = [record.getMessage() for record in caplog.records if "sales" in record.getMessage()]
    assert len(lines) == 3
    assert all(line.split()[1:3] == ["/shop/sales/total", "200"] for line in lines)
    assert "rome" not in caplog.text
