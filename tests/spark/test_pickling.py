"""Process functions and their classes reach the workers, wherever they are defined."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from statekit.spark.worker.pickling import pickled
from tests.support.main_classes import DECLARED
from tests.support.places import ROOT, SUPPORT
from tests.support.spark_runs import Runs
from tests.support.timeouts import PATIENCE_S


@pytest.mark.soak
def test_classes_of_a_script_are_sent_whatever_they_are_made_with(tmp_path: Path) -> None:
    # Run elsewhere, and as `__main__`: nothing of it can be imported by a worker.
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYSPARK_PYTHON", None)
    ended = subprocess.run(
        [sys.executable, str(SUPPORT / "main_classes.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    *lines, held = ended.stdout.splitlines()
    assert lines == [f"{declared.name} same" for _, declared in DECLARED]
    assert held.startswith("{'a': {'factor': 3, 'line': {'word': 'A', 'line_number': 2,"), held


class Asked(NamedTuple):
    key: int


def test_modules_of_a_worker_are_excluded_from_the_search_for_garbage(
    runs: Runs, spark: SparkSession
) -> None:
    @sk.process(key="key")
    def frozen(asked: Asked) -> Iterator[tuple[int, int]]:
        yield gc.get_freeze_count(), gc.get_threshold()[0]

    job = sk.Job("asked")
    job.source("asked", Asked).process(frozen).sink("out")
    sink = sk.sinks.parquet(runs.home / "out")
    runs.finish(job, {"asked": spark.range(1).selectExpr("id as key")}, outputs={"out": sink})
    (row,) = runs.parquet("out")
    assert row["_1"] > 10_000
    assert row["_2"] == 50_000


MODULE = """
import msgspec
import statekit as sk

class Event(msgspec.Struct):
    word: str
    n: int = 3

@sk.process(key="word")
def count(event: Event, seen: sk.ValueState[int]) -> None:
    seen.update(event.n)
"""

UNPACK = """
import pickle, sys
from statekit.spark.worker.pickling import unpickled
declared = unpickled(pickle.load(sys.stdin.buffer))
print(declared.record_type.field_names, declared.record_type.cls("a"))
"""


def test_a_module_that_users_send_by_value_need_not_be_where_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "sent_by_value.py"
    source.write_text(MODULE)
    module = importlib.import_module("sent_by_value")
    cloudpickle.register_pickle_by_value(module)
    try:
        function = pickled(module.count)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["sent_by_value"]
    source.unlink()
    ended = subprocess.run(
        [sys.executable, "-c", UNPACK],
        input=pickle.dumps(function),
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert ended.stdout.decode().split(maxsplit=2)[:2] == ["('word',", "'n')"]
    assert ended.stdout.decode().endswith("Event(word='a', n=3)\n")
