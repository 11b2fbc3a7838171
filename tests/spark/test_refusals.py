"""What cannot go right is refused, with an error that says what it is about and what to do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, field_validator
from pyspark.sql import DataFrame

import statekit as sk
from tests.support.effort import SOAK
from tests.support.small_disk import small_disk
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_job import (
    EVENT_SCHEMA,
    Event,
    by_word,
    count,
    counted,
    counting_job,
    events,
)
from tests.support.spark_runs import ONCE, Runs, pieces

SIZE = 20


def _feed(runs: Runs, given: list[Event], size: int = SIZE) -> DataFrame:
    for piece in pieces(given, size):
        runs.feed("events", [event._asdict() for event in piece])
    return runs.stream("events", EVENT_SCHEMA)


def _outputs(runs: Runs) -> dict[str, Any]:
    return {"counted": sk.sinks.parquet(runs.home / "out")}


def _check(runs: Runs, given: list[Event]) -> None:
    expected, states = counted(given)
    assert by_word(runs.parquet("out")) == by_word(expected)
    assert runs.state("count", "numbers") == states["numbers"]


@pytest.fixture
def stopped(runs: Runs) -> list[Event]:
    """A job that was stopped after two epochs of three; returns all of its input."""
    given = events(seed=1, size=3 * SIZE)
    stream = _feed(runs, given[: 2 * SIZE])
    runs.finish(counting_job(), {"events": stream}, outputs=_outputs(runs), parallelism=2)
    _feed(runs, given[2 * SIZE :])
    return given


def _go_on(runs: Runs, job: sk.Job | None = None, **options: Any) -> None:
    stream = runs.stream("events", EVENT_SCHEMA)
    made = job or counting_job()
    runs.finish(made, {"events": stream}, outputs=_outputs(runs), **options)


# ------------------------------------------------------------------------------- second writers


def test_a_second_start_in_the_same_process_is_fenced(runs: Runs) -> None:
    given = events(seed=2, size=2 * SIZE)
    stream = _feed(runs, given[:SIZE])
    first = runs.start(counting_job(), {"events": stream}, outputs=_outputs(runs))
    with pytest.raises(sk.FencedError, match=r"stop\(\) it first"):
        runs.start(counting_job(), {"events": stream}, outputs=_outputs(runs))
    _feed(runs, given[SIZE:])
    end = time.monotonic() + 60
    while first.epoch != 1 and time.monotonic() < end:
        time.sleep(0.05)
    first.stop()
    _go_on(runs)
    _check(runs, given)


@pytest.mark.slow
def test_of_two_processes_on_one_checkpoint_one_is_fenced(runs: Runs) -> None:
    given = events(seed=3, size=16 * 4)
    stream = _feed(runs, given, size=4)
    fenced: list[BaseException] = []
    with KillableProcess("spark_driver.py", "local[2]", runs.home, log=runs.home / "log") as other:
        other.wait_for("ready")
        query = runs.start(counting_job(), {"events": stream}, outputs=_outputs(runs), trigger=ONCE)
        try:
            assert query.await_termination(120)
        except sk.FencedError as error:
            fenced.append(error)
        code = other.wait()
    assert fenced or (code != 0 and "FencedError" in other.log()), other.log()
    assert not (fenced and code != 0), "one of the two goes on"
    if fenced:
        assert "stop one of them" in str(fenced[0])
    _go_on(runs)
    _check(runs, given)


def test_an_epoch_that_another_run_commits_meanwhile_is_refused_before_the_sink(runs: Runs) -> None:
    given = events(seed=4, size=SIZE)
    df = runs.spark.createDataFrame([tuple(event) for event in given], EVENT_SCHEMA)
    written: list[int] = []

    def overtaken(out: DataFrame, epoch: int) -> None:
        written.append(epoch)
        if len(written) == 1:
            inner = runs.start(counting_job(), {"events": df}, outputs=_outputs(runs))
            assert inner.epoch == 0

    with pytest.raises(sk.FencedError, match="Stop one of them"):
        runs.start(counting_job(), {"events": df}, outputs={"counted": overtaken})
    _check(runs, given)
    assert runs.epochs() == [0]


# ---------------------------------------------------------------------------- foreign checkpoints


def test_a_checkpoint_of_another_job_is_refused(runs: Runs, stopped: list[Event]) -> None:
    job = sk.Job("another")
    job.source("events", Event).process(counting_job().plan.operators[0].declared).sink("counted")
    with pytest.raises(sk.RestoreError, match=r"checkpoint of job 'counting', not of 'another'"):
        _go_on(runs, job)
    _go_on(runs)
    _check(runs, stopped)


def test_a_checkpoint_without_sparks_part_is_refused(runs: Runs, stopped: list[Event]) -> None:
    spark, aside = runs.checkpoint / "spark", runs.home / "aside"
    spark.rename(aside)
    with pytest.raises(sk.RestoreError, match=r"spark is missing or empty.*restore both parts"):
        _go_on(runs)
    aside.rename(spark)
    _go_on(runs)
    _check(runs, stopped)


def test_a_checkpoint_whose_spark_part_does_not_match_the_state_is_refused(
    runs: Runs, stopped: list[Event]
) -> None:
    early = runs.home / "early"
    shutil.copytree(runs.checkpoint / "spark", early)
    _go_on(runs)
    _check(runs, stopped)
    epochs = sorted((runs.checkpoint / "epochs").glob("*.json"))
    lost = [(path, path.read_bytes()) for path in epochs[-2:]]
    for path, _ in lost:
        path.unlink()
    with pytest.raises(sk.RestoreError, match=r"has continued to micro-batch 2.*leave input out"):
        _go_on(runs)
    for path, content in lost:
        path.write_bytes(content)
    shutil.rmtree(runs.checkpoint / "spark")
    early.rename(runs.checkpoint / "spark")
    with pytest.raises(
        sk.RestoreError, match=r"has micro-batches up to 1, the state those up to 2"
    ):
        _go_on(runs)
    _check(runs, stopped)


DAMAGE = ["truncated", "flipped", "missing"]
DAMAGED = ["changes", "manifest", "job file"]


@pytest.mark.parametrize(
    ("kind", "damage"),
    list(product(DAMAGED, DAMAGE) if SOAK else zip(DAMAGED, DAMAGE, strict=True)),
)
def test_a_damaged_file_is_named(runs: Runs, stopped: list[Event], kind: str, damage: str) -> None:
    patterns = {"changes": "data/count/*", "manifest": "epochs/*1.json", "job file": "job.json"}
    found = sorted(runs.checkpoint.glob(patterns[kind]))
    if kind == "changes":
        found = [path for path in found if path.stat().st_size][:1]
    (path,) = found
    whole = path.read_bytes()
    shutil.rmtree(runs.working)  # so that the files have to be read
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    else:
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x40]) + whole[middle + 1 :])
    if (kind, damage) == ("manifest", "missing"):
        # That epoch was never committed, then; but Spark knows that it was.
        with pytest.raises(sk.RestoreError, match="has continued"):
            _go_on(runs)
    else:
        with pytest.raises(sk.CorruptCheckpointError) as caught:
            _go_on(runs)
        assert path.name in str(caught.value)
    path.write_bytes(whole)
    _go_on(runs)
    _check(runs, stopped)


# ------------------------------------------------------------------------------------- storage


@pytest.mark.parametrize("full", ["checkpoint", "working"])
def test_a_full_disk_is_a_storage_error_and_space_is_all_it_takes(runs: Runs, full: str) -> None:
    given = events(seed=5, size=3 * SIZE)
    stream = _feed(runs, given[:SIZE])
    with small_disk(runs.home / "disk") as disk:
        setattr(runs, full, disk.path / full)
        runs.finish(counting_job(), {"events": stream}, outputs=_outputs(runs), parallelism=2)
        disk.fill()
        _feed(runs, given[SIZE:])
        with pytest.raises(sk.StorageError, match=r"(?i)space"):
            _go_on(runs, parallelism=3)  # other shards: no working copy could be used again
        assert runs.epochs() == [0]
        disk.make_space()
        _go_on(runs)
        _check(runs, given)


def test_a_checkpoint_that_cannot_be_made_is_a_storage_error(runs: Runs) -> None:
    stream = _feed(runs, events(seed=6, size=SIZE))
    (runs.home / "file").touch()
    runs.checkpoint = runs.home / "file" / "checkpoint"
    with pytest.raises(sk.StorageError, match="file/checkpoint"):
        runs.finish(counting_job(), {"events": stream}, outputs=_outputs(runs))


def test_a_working_directory_that_cannot_be_made_is_a_storage_error(runs: Runs) -> None:
    given = events(seed=7, size=SIZE)
    _feed(runs, given)
    (runs.home / "file").touch()
    with pytest.raises(sk.StorageError, match="file/working"):
        _go_on(runs, working_directory=runs.home / "file" / "working")
    assert runs.epochs() == []
    _go_on(runs)
    _check(runs, given)


def test_an_output_directory_that_cannot_be_made_commits_nothing(runs: Runs) -> None:
    given = events(seed=8, size=SIZE)
    stream = _feed(runs, given)
    (runs.home / "file").touch()
    broken = {"counted": sk.sinks.parquet(runs.home / "file" / "out")}
    with pytest.raises(Exception, match="file"):
        runs.finish(counting_job(), {"events": stream}, outputs=broken)
    assert runs.epochs() == []
    _go_on(runs)
    _check(runs, given)


def test_paths_with_spaces_and_other_signs_are_taken_as_they_are(runs: Runs) -> None:
    given = events(seed=9, size=2 * SIZE)
    odd = runs.home / "a b%20c#d é"
    runs.checkpoint, runs.working = odd / "check point", odd / "working"
    outputs = {"counted": sk.sinks.parquet(odd / "out")}
    for piece in pieces(given, SIZE):
        stream = _feed(runs, list(piece))
        runs.finish(counting_job(), {"events": stream}, outputs=outputs)
    assert (runs.checkpoint / "spark" / "offsets").is_dir()
    _check_at(runs, odd / "out", given)


def _check_at(runs: Runs, out: Path, given: list[Event]) -> None:
    os.symlink(out, runs.home / "out")
    _check(runs, given)


# ------------------------------------------------------------------------------ inputs and keys


class Narrow(NamedTuple):
    word: str
    number: int


class Nullable(NamedTuple):
    word: str | None
    number: int | None = None


@sk.process(key="word")
def narrow(record: Narrow, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


@sk.process(key="word")
def nullable(record: Nullable, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


@sk.process(key="word")
def untyped(record: dict[str, Any], seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


def _job_of(declared: Any, record: Any) -> sk.Job:
    job = sk.Job("inputs")
    job.source("given", record).process(declared)
    return job


@pytest.mark.parametrize(
    ("declared", "record", "schema", "parts"),
    [
        (narrow, Narrow, "word string", ("'number'", "needs a column")),
        (narrow, Narrow, "number bigint", ("'word'", "needs a column")),
        (narrow, Narrow, "word string, number string", ("number", "int", "string")),
        (narrow, Narrow, "word bigint, number bigint", ("word", "str", "int64")),
        (narrow, Narrow, "word string, number double", ("number", "int", "double")),
        (untyped, dict, "number bigint", ("no key column 'word'", "number")),
        (untyped, dict, "word double", ("'word'", "double", "cast it")),
        (untyped, dict, "word decimal(10,2)", ("'word'", "decimal(10,2)", "cast it")),
        (untyped, dict, "word timestamp_ntz", ("'word'", "timestamp_ntz", "cast it")),
        (untyped, dict, "word array<string>", ("'word'", "array<string>", "cast it")),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_columns_that_do_not_fit_are_refused_before_anything_runs(
    runs: Runs, declared: Any, record: Any, schema: str, parts: tuple[str, ...], streaming: bool
) -> None:
    df = runs.stream("given", schema) if streaming else runs.spark.createDataFrame([], schema)
    with pytest.raises(sk.ProcessError) as caught:
        runs.start(_job_of(declared, record), {"given": df})
    text = str(caught.value) + " ".join(caught.value.__notes__)
    for part in (*parts, "input 'given'"):
        assert part in text, text
    assert not runs.checkpoint.exists()


@pytest.mark.parametrize(
    ("row", "field"), [((None, 1), "word"), (("a", None), "number")], ids=["key", "field"]
)
def test_a_null_where_none_is_declared_fails_the_epoch_with_field_and_row(
    runs: Runs, row: tuple[Any, ...], field: str
) -> None:
    rows = [("b", 2), row]
    df = runs.spark.createDataFrame(rows, EVENT_SCHEMA)
    with pytest.raises(sk.ProcessError) as caught:
        runs.start(_job_of(narrow, Narrow), {"given": df})
    for part in ("narrow", f"Narrow.{field} is null"):
        assert part in str(caught.value)
    assert runs.epochs() == []
    runs.start(_job_of(nullable, Nullable), {"given": df})
    assert sum(runs.state("nullable", "seen").values()) == 2


# ------------------------------------------------------------------------------- wrong wiring


class Trimmed(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def trim(cls, word: str) -> str:
        return word.strip()


@sk.process(key="word")
def shapeless(record: Event, seen: sk.ValueState[int]) -> Iterator[dict[str, Any]]:
    yield {"word": record.word}


@sk.process(key="word")
def trimmed(record: Trimmed, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


def test_two_parquet_sinks_in_one_directory_are_refused(runs: Runs) -> None:
    job = sk.Job("counting")
    job.source("events", Event).process(count).sink("counted").sink("again")
    outputs = {name: sk.sinks.parquet(runs.home / "out") for name in ("counted", "again")}
    with pytest.raises(sk.StateTypeError, match="two sinks in one directory"):
        runs.start(job, {"events": _feed(runs, events(1, SIZE))}, outputs=outputs)


def test_an_output_directory_of_another_checkpoint_is_refused(
    runs: Runs, stopped: list[Event]
) -> None:
    shutil.rmtree(runs.checkpoint)
    with pytest.raises(sk.RestoreError, match="another checkpoint"):
        _go_on(runs)
    assert runs.epochs() == []


def test_an_output_without_a_schema_is_refused_before_anything_runs(runs: Runs) -> None:
    job = sk.Job("shapeless")
    job.source("events", Event).process(shapeless).sink("counted")
    with pytest.raises(sk.StateTypeError, match="return annotation"):
        runs.start(job, {"events": _feed(runs, events(1, SIZE))}, outputs=_outputs(runs))
    assert not runs.checkpoint.exists()


def test_an_input_that_is_no_frame_or_has_a_column_twice_is_refused(runs: Runs) -> None:
    df = runs.spark.createDataFrame([("a", 1)], "word string, n int")
    with pytest.raises(sk.StateTypeError, match=r"inputs\['events'\] is list"):
        runs.start(counting_job(), {"events": [("a", 1)]}, outputs=_outputs(runs))  # type: ignore[dict-item]
    with pytest.raises(sk.ProcessError, match="columns of the same name"):
        runs.start(counting_job(), {"events": df.join(df.alias("b"))}, outputs=_outputs(runs))


def test_a_frame_of_spark_connect_is_refused_for_a_classic_session(runs: Runs) -> None:
    """It need not be installed here: a class of such a module stands in for its own."""
    module = {"__module__": "pyspark.sql.connect.dataframe"}
    given: Any = type("Remote", (type("Parent", (), module),), {"__module__": "elsewhere"})()
    with pytest.raises(sk.StatekitError, match=r"Remote of Spark Connect.*SparkSession.builder"):
        counting_job().start(
            runs.spark, {"events": given}, outputs=_outputs(runs), checkpoint=runs.checkpoint
        )
    assert not runs.checkpoint.exists()


def test_a_record_that_changes_its_key_is_refused(runs: Runs) -> None:
    job = _job_of(trimmed, Trimmed)
    df = runs.spark.createDataFrame([(f" w{number}",) for number in range(20)], "word string")
    with pytest.raises(sk.ProcessError, match="changes its key"):
        runs.start(job, {job.plan.sources[0].name: df})
