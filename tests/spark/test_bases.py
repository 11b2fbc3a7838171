"""Workers of Spark take bases while a stream runs, and later ones start from them."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.references import named_by
from statekit.checkpoint.repository import Repository
from tests.support.spark_job import EVENT_SCHEMA, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

EAGER = sk.BaseOptions(replay_seconds=0, uploaded_per_changed=100)
GIVEN = events(seed=5, size=60)


def _run(runs: Runs, directory: str) -> None:
    runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sk.sinks.parquet(runs.home / "out")},
        parallelism=2,
        bases=EAGER,
        working_directory=runs.home / directory,
    )


def test_a_stream_continues_from_bases_of_its_workers(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = Runs(spark, tmp_path_factory.mktemp("bases"))
    given = pieces(GIVEN, 10)
    for piece in given[:3]:
        runs.feed("events", [event._asdict() for event in piece])
    _run(runs, "one")
    deadline = time.monotonic() + 60
    while not list((runs.home / "one").rglob("finished.json")):  # in the background of a worker
        assert time.monotonic() < deadline, "no base was uploaded"
        time.sleep(0.05)
    runs.feed("events", [event._asdict() for event in given[3]])
    _run(runs, "one")
    repository = Repository(runs.checkpoint, create=False)
    last = repository.manifest(runs.epochs()[-1])
    shards = last.operators["count"].shards
    assert any(shard.base is not None for shard in shards)
    named = {ref.path for ref in named_by(repository, last, set())}
    shutil.rmtree(runs.home / "one")
    for path in list(repository.tree("data")):
        if path not in named:
            (runs.checkpoint / path).unlink()
    for piece in given[4:]:
        runs.feed("events", [event._asdict() for event in piece])
    _run(runs, "other")
    expected, states = counted(GIVEN)
    assert by_word(runs.parquet("out")) == by_word(expected)
    for name, held in states.items():
        assert runs.state("count", name) == held, name
