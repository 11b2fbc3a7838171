"""explain() and `statekit inspect` say how far sources were read, and what sinks guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import statekit as sk
from tests.support.invoked import invoked
from tests.support.log_source import LogSource
from tests.support.sinks import ORDERS, Order, spending


def read_job(home: Path) -> sk.Job:
    (home / "log").mkdir()
    log = LogSource(home / "log")
    rows: list[Any] = [*ORDERS, {"customer": "eve", "cents": None}]
    log.append("a", rows)
    job = sk.Job("shop")
    orders = job.source("orders", Order, log, on_error="drop")
    orders.process(spending).sink("spent", sk.sinks.parquet(home / "out"))
    return job


def test_a_plan_says_where_records_come_from_and_how_often_they_arrive(tmp_path: Path) -> None:
    text = read_job(tmp_path).explain()
    assert "source orders: LogSource, a stream; bad records: drop" in text
    assert f"sink spent: Files(path='{tmp_path / 'out'}', format='parquet')" in text
    assert "each record exactly once" in text


def test_a_checkpoint_says_how_far_sources_were_read_and_what_sinks_guarantee(
    tmp_path: Path,
) -> None:
    read_job(tmp_path).run(checkpoint=tmp_path / "checkpoint")
    text = invoked("inspect", tmp_path / "checkpoint").stdout
    assert "source orders: 1 partition; 1 bad record so far" in text
    assert "sink spent: each record exactly once" in text
    data = json.loads(invoked("inspect", tmp_path / "checkpoint", "--json").stdout)
    assert data["sources"] == {"orders": {"offsets": {"a": 13}, "bad_records": 1}}
    assert data["sinks"] == {"spent": "exactly once"}
