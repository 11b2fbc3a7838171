"""Working copies of Spark's workers: what they may take, and when they go."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark.sql import DataFrame

import statekit as sk
from statekit.working_copy.disk_space import CopySpace
from tests.support.spark_job import EVENT_SCHEMA, by_word, counted, counting_job, events
from tests.support.spark_runs import Runs, pieces

LEAST = sk.RocksOptions(
    block_cache_bytes=64 * 1024,
    write_buffer_bytes=64 * 1024,
    write_memory_bytes=1024 * 1024,
    open_files=16,
    bloom_bits=0,
    disk_limit_bytes=1024 * 1024,
)


def test_workers_keep_to_their_options_and_copies_go_when_they_are_not_to_be_kept(
    runs: Runs,
) -> None:
    given = events(seed=11, size=60)
    space = CopySpace(runs.working)
    ballast = 4 * LEAST.disk_limit_bytes if LEAST.disk_limit_bytes else 0
    found: list[int] = []
    for piece, keep in zip(pieces(given, 20), (None, True, False), strict=True):
        frame: DataFrame = runs.spark.createDataFrame([tuple(e) for e in piece], EVENT_SCHEMA)
        for copy in space.copies():  # far over the limit, and somebody looks again
            (copy.home / "db" / "ballast").write_bytes(bytes(ballast))
        for note in runs.working.rglob("tidied"):
            os.utime(note, (0, 0))
        query = runs.start(
            counting_job(),
            {"events": frame},
            outputs={"counted": sk.sinks.parquet(runs.home / "out")},
            parallelism=2,
            rocksdb=LEAST,
            keep_copies=keep,
        )
        assert query.await_termination()
        found.append(len(space.copies()))
        assert sum(copy.bytes for copy in space.copies()) < 2 * ballast
    assert found == [2, 2, 0]
    assert by_word(runs.parquet("out")) == by_word(counted(given)[0])


@pytest.mark.parametrize("options", [{"rocksdb": {"bloom_bits": 3}}, {"keep_copies": "auto"}])
def test_a_start_is_refused_other_things_in_place_of_options(
    runs: Runs, options: dict[str, Any]
) -> None:
    (name,) = options
    frame = runs.stream("events", EVENT_SCHEMA)
    with pytest.raises(sk.StateTypeError, match=f"^{name}="):
        runs.start(counting_job(), {"events": frame}, **options)
