"""Calls of a service on Spark: asked once, in order, bounded, and not again after a restart."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

import statekit as sk
from tests.support.http_service import service
from tests.support.service_job import Asked, Numbered, job, numbered
from tests.support.spark_runs import Runs

pytestmark = pytest.mark.slow

SCHEMA = "key string, name string"


def _rows(first: int, count: int) -> list[dict[str, str]]:
    return [Asked(f"k{n % 7}", f"n{n}")._asdict() for n in range(first, first + count)]


def _files(runs: Runs, *names: str) -> dict[str, sk.sinks.Sink]:
    return {name: sk.sinks.parquet(runs.home / name) for name in names}


def test_each_record_is_asked_for_once_whoever_reads_the_answers(runs: Runs) -> None:
    with service() as served:
        for number in range(3):
            runs.feed("asked", _rows(40 * number, 40))
        outputs = _files(runs, "answered", "counted")
        stream = {"asked": runs.stream("asked", SCHEMA)}
        runs.finish(job(served.url, concurrency=8), stream, outputs=outputs)
        assert set(served.asked.values()) == {1}
        assert served.most_open <= 8 * 2  # two tasks
        assert served.connections <= 8 * 4  # workers keep theirs from epoch to epoch
        runs.feed("asked", _rows(120, 40))
        runs.finish(job(served.url, concurrency=8), stream, outputs=outputs)
        assert len(served.asked) == 160
        assert set(served.asked.values()) == {1}
    answered = runs.parquet("answered")
    assert sorted((row["name"], row["answer"]) for row in answered) == sorted(
        (f"n{n}", f"N{n}") for n in range(160)
    )


def test_the_answers_of_a_partition_stay_in_order(runs: Runs) -> None:
    """A key's records are in one partition here, and are counted in their order."""
    frame = runs.spark.createDataFrame(
        [(row["key"], row["name"]) for row in _rows(0, 210)], SCHEMA
    ).repartition(3, "key")
    with service() as served:
        runs.finish(
            job(served.url, concurrency=8),
            {"asked": frame},
            outputs=_files(runs, "answered", "counted"),
        )
        assert set(served.asked.values()) == {1}
    in_order: dict[str, list[str]] = defaultdict(list)
    for asked in frame.collect():
        in_order[asked["key"]].append(asked["name"])
    for row in runs.parquet("counted"):
        assert in_order[row["key"]][row["number"] - 1] == row["name"]


def test_failed_records_are_collected_and_a_failed_epoch_asks_again(runs: Runs) -> None:
    runs.feed("asked", _rows(0, 40))
    outputs = _files(runs, "answered", "counted")
    stream = {"asked": runs.stream("asked", SCHEMA)}
    with service() as served:
        served.fails["n5"] = 4
        with pytest.raises(sk.ProcessError, match=r"503.*\(4 attempts\)"):
            runs.finish(job(served.url), stream, outputs=outputs)
        served.fails["n9"] = 99
        collecting = job(served.url, on_error="collect")
        runs.finish(collecting, stream, outputs=outputs | _files(runs, "failed"))
        assert served.asked["n5"] == 5
    (failed,) = runs.parquet("failed")
    assert (failed["record"], failed["error"]) == ('{"key":"k2","name":"n9"}', "HTTPStatusError")
    assert len(runs.parquet("answered")) == 39


@sk.process(key="key", concurrency=8)
async def numbered_again(given: Numbered, seen: sk.ValueState[int]) -> list[tuple[str, str, int]]:
    number = (seen.get() or 0) + 1
    await asyncio.sleep(given.number % 3 / 1_000)
    seen.update(number)
    assert number == given.number
    return [(given.key, given.name, number)]


def test_async_functions_handle_the_records_of_a_key_one_after_the_other(runs: Runs) -> None:
    """The second one runs in the tasks of the first one."""
    for number in range(2):
        runs.feed("asked", _rows(70 * number, 70))
    declared = sk.Job("numbers")
    asked = declared.source("asked", Asked)
    asked.process(numbered).process(numbered_again).sink("numbered")
    assert "in the same tasks as numbered" in declared.explain()
    runs.finish(declared, {"asked": runs.stream("asked", SCHEMA)}, outputs=_files(runs, "numbered"))
    found = [tuple(row.values()) for row in runs.parquet("numbered")]
    assert sorted(found) == sorted((f"k{n % 7}", f"n{n}", 1 + n // 7) for n in range(140))
