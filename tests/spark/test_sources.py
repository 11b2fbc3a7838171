"""Frames of states and of changes, compared with `statekit.read` and the feed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.repository import Repository
from statekit.keygroup import key_group
from statekit.spark import register
from statekit.spark.sources.changes_request import FORMAT as CHANGES
from tests.support import full_checkpoint
from tests.support.change_rows import in_order, row_of, rows_of_feed
from tests.support.counting_job import entries, tally_job
from tests.support.timeouts import PATIENCE_S

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    register(spark)
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of every kind, rescales and a rollback."""
    root = tmp_path_factory.mktemp("whole") / "c"
    full_checkpoint.make(Repository(root))
    return root


def counted(root: Path, first: int, last: int, **options: Any) -> None:
    """Run epochs of the counting job. Records are read from the beginning of the stream."""
    records = [entry for epoch in range(last + 1) for entry in entries(epoch, 10)]
    given = {"checkpoint": root, "epoch_size": 10, "parallelism": 2, "retention": None, **options}
    tally_job(8).run({"records": records}, **given)


def state(spark: SparkSession, root: Path, name: str, **options: Any) -> DataFrame:
    operator, _, name = name.rpartition(".")
    reader = spark.read.format("statekit").options(operator=operator or "tally", state=name)
    return reader.options(**options).load(str(root))


def changes(spark: SparkSession, root: Path, name: str, **options: Any) -> DataFrame:
    operator, _, name = name.rpartition(".")
    reader = spark.read.format(CHANGES).options(operator=operator or "tally", state=name)
    return reader.options(**options).load(str(root))


def dicts(frame: DataFrame) -> list[dict[str, Any]]:
    rows = (row.asDict(recursive=True) for row in frame.collect())
    return [{name: in_utc(value) for name, value in row.items()} for row in rows]


def in_utc(value: Any) -> Any:
    """Rows of Spark have times of the local time zone."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


# ----------------------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    "name",
    [
        "keep.last",
        "keep.seen",
        "keep.by_n",
        "keep._timers",
        "keep_in_order._waiting",
        "share.shared",
    ],
)
def test_a_frame_of_a_state_equals_its_table(spark: SparkSession, whole: Path, name: str) -> None:
    operator, _, state_name = name.partition(".")
    table = sk.read(whole, operator, state_name).read_all()
    frame = state(spark, whole, name)
    assert frame.columns == table.schema.names
    assert in_order(dicts(frame)) == in_order(table.to_pylist())
    assert table.num_rows, "there is something to compare"


def test_a_chosen_epoch_key_and_columns_are_read(spark: SparkSession, whole: Path) -> None:
    frame = state(spark, whole, "keep.by_n", epoch=2, key="a")
    expected = sk.read(whole, "keep", "by_n", epoch=2, key="a").read_all().to_pylist()
    assert in_order(dicts(frame)) == in_order(expected)
    reader = spark.read.format("statekit").options(operator="keep", state="by_n")
    chosen = reader.schema("VALUE string, map_key double").load(str(whole))
    expected = sk.read(whole, "keep", "by_n", columns=["value", "map_key"]).read_all().to_pylist()
    rows = [{"value": row["VALUE"], "map_key": int(row["map_key"])} for row in dicts(chosen)]
    assert in_order(rows) == in_order(expected)


def test_a_frame_reads_the_epoch_at_which_it_was_loaded(spark: SparkSession, root: Path) -> None:
    counted(root, 0, 0)
    frame = state(spark, root, "total")
    before = in_order(dicts(frame))
    counted(root, 1, 1)
    assert in_order(dicts(frame)) == before
    assert in_order(dicts(state(spark, root, "total"))) != before


def test_a_filter_for_one_key_reads_one_key_group(spark: SparkSession, root: Path) -> None:
    counted(root, 0, 2)
    expected = sk.read(root, "tally", "total", key="k3").read_all().to_pylist()
    spark.conf.set(PUSHDOWN, "true")
    try:
        register(spark)
        frame = state(spark, root, "total").filter(F.col("key") == "k3")
        assert frame.rdd.getNumPartitions() == 1
        assert dicts(frame) == expected
        for path in files_of_other_keys(root, "k3"):
            path.write_bytes(b"")
        assert dicts(frame) == expected, "it needs no file of the other shard"
        with pytest.raises(Exception, match="CorruptCheckpointError"):
            state(spark, root, "total").filter("key > 'k3'").collect()
    finally:
        spark.conf.unset(PUSHDOWN)
        register(spark)


def files_of_other_keys(root: Path, key: str) -> list[Path]:
    """The change files of the shards that a key does not belong to."""
    repository = Repository(root)
    manifest = repository.manifest(2)
    group = key_group(key, manifest.key_groups)
    shards = manifest.operators["tally"].shards
    others = [shard for shard in shards if not shard.overlaps(group, group)]
    return [root / ref.path for shard in others for ref in shard.files]


# ---------------------------------------------------------------------------------------- changes


@pytest.mark.parametrize("name", ["keep.by_n", "keep.seen", "share.shared"])
def test_changes_over_rescales_and_a_rollback_equal_the_feed(
    spark: SparkSession, whole: Path, name: str
) -> None:
    frame = changes(spark, whole, name)
    key = frame.columns[6]
    rows = in_order(row_of([key], row) for row in dicts(frame))
    operator, _, state_name = name.partition(".")
    assert rows == rows_of_feed(whole, operator, state_name)
    assert {row["cause"] for row in rows} > {"records"}


def test_changes_between_two_epochs_are_those_of_the_feed(spark: SparkSession, whole: Path) -> None:
    frame = changes(spark, whole, "keep.by_n", startingEpoch=2, endingEpoch=3)
    rows = in_order(row_of(["key"], row) for row in dicts(frame))
    assert rows == rows_of_feed(whole, "keep", "by_n", after=1, until=3)
    assert {row["epoch"] for row in rows} == {2, 3}
    latest = changes(spark, whole, "keep.by_n", startingEpoch="latest", endingEpoch=2)
    assert {(row["epoch"], row["kind"]) for row in dicts(latest)} == {(2, "snapshot")}


class Old(NamedTuple):
    key: str
    n: int


class New(NamedTuple):
    key: str
    n: int
    more: str = "new"


def keeping(of: Any) -> sk.Job:
    def keep(record: dict[str, Any], last: Any) -> None:
        last.update(of(record["key"], record["n"]))

    keep.__annotations__["last"] = sk.ValueState[of]
    job = sk.Job("keeping")
    job.source("records", dict).process(sk.process(key="key")(keep))
    return job


def test_epochs_before_a_field_was_added_have_nulls(spark: SparkSession, root: Path) -> None:
    records = [{"key": "a", "n": n} for n in range(4)]
    keeping(Old).run({"records": records[:2]}, checkpoint=root, epoch_size=1)
    keeping(New).run({"records": records}, checkpoint=root, epoch_size=1)
    rows = dicts(changes(spark, root, "keep.last").orderBy("epoch"))
    upserts = [(row["epoch"], row["n"], row["more"]) for row in rows]
    expected = [
        (row["epoch"], row["value"]["n"], row["value"].get("more"))
        for row in rows_of_feed(root, "keep", "last")
    ]
    assert upserts == sorted(expected)
    assert upserts[-1] == (3, 3, "new")


# ---------------------------------------------------------------------------------------- streams


def follow(spark: SparkSession, root: Path, home: Path, **options: Any) -> list[dict[str, Any]]:
    """Read the changes that are available into files, and return the progress of the batches."""
    reader = spark.readStream.format(CHANGES).options(operator="tally", state="parity")
    query = (
        reader.options(**options)
        .load(str(root))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(home / "spark"))
        .trigger(availableNow=True)
        .start(str(home / "out"))
    )
    assert query.awaitTermination(int(PATIENCE_S)), "it does not end"
    return [json.loads(batch.json) for batch in query.recentProgress]


def written(spark: SparkSession, home: Path) -> list[dict[str, Any]]:
    rows = dicts(spark.read.parquet(str(home / "out")))
    return in_order(row_of(["key"], row) for row in rows)


def test_a_stream_of_what_is_available_ends_and_continues(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    counted(root, 0, 4)
    options = {"startingEpoch": "earliest", "maxEpochsPerTrigger": 2}
    batches = follow(spark, root, tmp_path, **options)
    ends = [batch["sources"][0]["endOffset"]["epoch"] for batch in batches]
    assert ends[:3] == [1, 3, 4]
    counted(root, 5, 6)
    follow(spark, root, tmp_path, **options)
    assert written(spark, tmp_path) == rows_of_feed(root, "tally", "parity")


def test_a_stream_begins_with_a_snapshot_of_the_last_epoch(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    counted(root, 0, 2)
    follow(spark, root, tmp_path)
    counted(root, 3, 3)
    follow(spark, root, tmp_path)
    rows = written(spark, tmp_path)
    assert {(row["epoch"], row["kind"]) for row in rows} == {(2, "snapshot"), (3, "changes")}
    changed = [row for row in rows if row["epoch"] == 3]
    assert changed == rows_of_feed(root, "tally", "parity", after=2)


def test_a_reader_keeps_epochs_between_runs_of_a_query(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    counted(root, 0, 3)
    follow(spark, root, tmp_path, reader="mirror")
    repository = Repository(root)
    lease = lease_of(repository, "mirror")
    assert lease is not None
    assert lease.lease.epoch == 3
    counted(root, 4, 9)
    Collector(repository, sk.Retention(epochs=1)).collect(sweep=False)
    assert repository.epochs() == list(range(3, 10)), "the reader needs the epochs from 3 on"
    follow(spark, root, tmp_path, reader="mirror")
    assert {row["epoch"] for row in written(spark, tmp_path)} == set(range(3, 10))


def test_a_stream_whose_epochs_were_collected_fails_at_once_and_advises(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    counted(root, 0, 2)
    follow(spark, root, tmp_path)
    counted(root, 3, 6)
    Collector(Repository(root), sk.Retention(epochs=2)).collect(sweep=False)
    collected = r"QueryError: .* cannot continue after epoch 2 of .* To resynchronise, read the"
    with pytest.raises(Exception, match=collected):
        follow(spark, root, tmp_path)
    with pytest.raises(Exception, match=collected):
        follow(spark, root, tmp_path / "new", startingEpoch=3)


def test_a_running_stream_refuses_columns_that_it_was_not_loaded_with(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    records = [{"key": "a", "n": n} for n in range(4)]
    keeping(Old).run({"records": records[:2]}, checkpoint=root, epoch_size=1)
    reader = spark.readStream.format(CHANGES).options(operator="keep", state="last")
    frame = reader.load(str(root))
    keeping(New).run({"records": records}, checkpoint=root, epoch_size=1)
    home = {"checkpointLocation": str(tmp_path / "spark")}
    writer = frame.writeStream.format("parquet").options(**home).trigger(availableNow=True)
    with pytest.raises(Exception, match=r"epoch 3 has another type .* more .* load\s+the frame"):
        writer.start(str(tmp_path / "out")).awaitTermination(int(PATIENCE_S))
    again = reader.load(str(root)).writeStream.format("parquet").options(**home)
    again.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(int(PATIENCE_S))
    rows = dicts(spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")))
    assert max((row["epoch"], row["more"]) for row in rows) == (3, "new")


# ----------------------------------------------------------------------------------------- errors


def test_errors_of_options_are_reported_when_a_frame_is_loaded(
    spark: SparkSession, root: Path
) -> None:
    counted(root, 0, 0)
    with pytest.raises(Exception, match=r"StateTypeError: option epoh='1'.*did you mean epoch"):
        state(spark, root, "total", epoh=1)
    with pytest.raises(Exception, match="QueryError: operator 'tally' has no state 'lost'"):
        changes(spark, root, "lost")
    with pytest.raises(Exception, match=r"QueryError: .* has no column 'lost'.*choose among key"):
        spark.read.format("statekit").options(operator="tally", state="total").schema(
            "lost int"
        ).load(str(root)).collect()
    with pytest.raises(Exception, match=r"option reader='r'.*it is for streams"):
        changes(spark, root, "total", reader="r").collect()
