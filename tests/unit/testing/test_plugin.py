"""The pytest plugin, in a run of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

TESTS = """
from typing import NamedTuple
from collections.abc import Iterator

import pytest
import statekit as sk
from statekit.testing import check


class Order(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer")
def spent(order: Order, total: sk.ValueState[int]) -> Iterator[Order]:
    total.update((total.get() or 0) + order.cents)
    yield Order(order.customer, total.get() or 0)


def test_harness(harness, checkpoint):
    driven = harness(spent, parallelism=2, checkpoint=checkpoint)
    assert driven.send(Order("ada", 5)) == [Order("ada", 5)]
    assert checkpoint.is_dir()
    job = sk.Job("shop")
    job.source("orders", Order).process(spent).sink("totals")
    assert harness(job).send(orders=[Order("ada", 5)])["totals"] == [Order("ada", 5)]


def test_records_that_differ(harness):
    found = harness(spent).send(Order("ada", 5), Order("ada", 2), Order("ada", 1))
    assert found == [Order("ada", 5), Order("ada", 8)]


def test_states_that_differ():
    assert {"ada": Order("ada", 5)} == {"ada": Order("ada", 6), "bob": Order("bob", 1)}


@pytest.mark.statekit_slow
def test_that_is_slow():
    check(spent, depth="quick", holds=["repeats"])


def test_that_no_jvm_was_started():
    import sys
    assert "pyspark" not in sys.modules
"""


@pytest.fixture
def run(tmp_path: Path) -> object:
    (tmp_path / "test_shop.py").write_text(TESTS)

    def made(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", *options]
        done = subprocess.run(
            [*command, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
        )
        return re.sub(r"  +", "  ", done.stdout + done.stderr)

    return made


def test_fixtures_marks_and_tables(run: object) -> None:
    assert callable(run)
    text = run()
    assert "2 failed, 2 passed, 1 skipped" in text
    assert "statekit_slow: runs with --statekit-depth=deep" in text
    assert "records differ (left of | is the first list)" in text
    assert "1  ada  7 | 8" in text
    assert "2  ada | -  8 | -" in text
    assert "states differ (left of | is the first one)" in text
    assert "'ada'  ada  5 | 6" in text
    assert "'bob'  - | bob  - | 1" in text


def test_what_was_checked_is_shown_with_v(run: object) -> None:
    assert callable(run)
    options = ("-m", "statekit_slow", "--statekit-seed", "5", "--statekit-examples", "4")
    assert "repeats" not in run(*options)
    text = run(*options, "-vv")
    assert "statekit: checks with --statekit-seed=5" in text
    assert "statekit checked in " in text
    assert "spent (seed 5)" in text
    assert re.search(r"repeats +\d+ histories", text)
    assert re.search(r"errors +not checked: not in holds=", text)
    assert "--statekit-seed=-1: give an int" in run("--statekit-seed", "-1")


def test_slow_tests_run_if_they_are_asked_for(run: object) -> None:
    assert callable(run)
    assert "1 passed, 4 deselected" in run("-m", "statekit_slow")
    assert "2 failed, 3 passed" in run("--statekit-depth", "deep")
    assert "invalid choice: 'deepest'" in run("--statekit-depth", "deepest")
