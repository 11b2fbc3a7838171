"""Metrics for Prometheus, and the access log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from statekit.server.access import digest_of
from tests.support.served import Sale, sell, server


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
    assert found["statekit_request_seconds_count", ("single_read",)] == 3
    assert found["statekit_epoch", ("shop",)] == 1
    assert found["statekit_lag_seconds", ("shop",)] > 0
    assert found["statekit_epochs_behind", ("shop",)] == 0
    assert found["statekit_follow_failing", ("shop",)] == 0
    assert found["statekit_watchers", ()] == 0


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
