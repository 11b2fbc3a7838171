"""Starts from a history or from tables, killed with SIGKILL at any change of the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.history_job import HISTORY, append, check_once, history_job, write_history
from tests.support.killable_processes import die_before, kills

pytestmark = pytest.mark.slow

CHANGES = tuple((Repository, name) for name in ("put_file", "create", "remove"))
TOTALS = pa.table({"key": range(1000), "value": range(1000)})


def runs(home: Path, change: int) -> None:
    die_before(change, *CHANGES)
    history_job(home).run(checkpoint=home / "checkpoint", epoch_size=25, parallelism=2)


def test_a_history_and_the_stream_after_it_are_read_once(tmp_path: Path) -> None:
    write_history(tmp_path)
    total = HISTORY
    append(tmp_path, total, 5)  # a new stream of files begins with its first file
    total += 5
    for _ in kills(runs, tmp_path):
        append(tmp_path, total, 7)
        total += 7
    history_job(tmp_path).run(checkpoint=tmp_path / "checkpoint")
    check_once(tmp_path, total)


def bootstraps(home: Path, change: int) -> None:
    die_before(change, *CHANGES)
    history_job(home).bootstrap("counted.count", TOTALS, checkpoint=home / "new", parallelism=2)


def test_a_bootstrap_is_complete_or_absent(tmp_path: Path) -> None:
    for _ in kills(bootstraps, tmp_path):
        checkpoint = Repository(tmp_path / "new")
        if checkpoint.latest_epoch() is not None:
            table = sk.read(checkpoint, "counted", "count").read_all()
            assert sorted(table["value"].to_pylist()) == list(range(1000))
            return
    raise AssertionError("it was never committed")
