"""State of Spark's own `transformWithState` becomes a checkpoint that the job goes on from."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from typer.testing import CliRunner

from statekit.checkpoint.repository import Repository
from statekit.cli.app import app
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StateSchemaError,
    StorageError,
)
from statekit.spark.session import use_this_python
from statekit.spark.tws.transform import Transformed, transform_with_state
from tests.support.spark_drivers import KillableProcess
from tests.support.spark_runs import ONCE, collector, state_of, stream_of, write_batch
from tests.support.timeouts import PATIENCE_S
from tests.support.tws_import_jobs import (
    HOUR_MS,
    OUTPUTS,
    PROVIDER,
    ROCKS,
    ROWS,
    STATES,
    Asks,
    Counts,
    Fades,
    Keeps,
)

pytestmark = pytest.mark.slow

START = dt.datetime(2021, 3, 28, 0, 59, tzinfo=dt.UTC)

COMPUTED = [
    "0.0D * n as zero",
    "cast(item as decimal(9,3)) as price",
    "named_struct('half', item / 2.0D) as inner",
]
PARTITIONS = "spark.sql.shuffle.partitions"

Told = dict[int, list[Any]]
"""Outputs per micro-batch."""


@dataclass(frozen=True)
class Place:
    """Where a query of Spark's read and kept its state."""

    spark: SparkSession
    home: Path
    keys: tuple[str, ...] = ("shop", "item")

    @property
    def input(self) -> Path:
        return self.home / "in"

    def feed(self, number: int, *rows: tuple[str | None, int | None, int, int]) -> None:
        """A file, which is a micro-batch: shop, item, number, and seconds behind the start."""
        names = [field.split()[0] for field in ROWS.split(", ")]
        values = [(shop, item, n, START + dt.timedelta(seconds=at)) for shop, item, n, at in rows]
        frame = self.spark.createDataFrame(values, ROWS).toArrow().select(names)
        write_batch(self.input, number, frame)

    def rows(self) -> DataFrame:
        read = stream_of(self.spark, self.input, ROWS).withWatermark("at", "3 seconds")
        return read.selectExpr("*", *COMPUTED)

    def run_spark(
        self, made: DataFrame, checkpoint: Path, trigger: Mapping[str, Any] = MappingProxyType(ONCE)
    ) -> Told:
        """Spark's own query to its end."""
        found, collect = collector()
        query = self.writer(made, checkpoint).foreachBatch(collect).trigger(**trigger).start()
        assert query.awaitTermination(int(PATIENCE_S))
        return by_batch(found)

    def writer(self, made: DataFrame, checkpoint: Path) -> DataStreamWriter:
        return made.writeStream.option("checkpointLocation", str(checkpoint))

    def transformed(self, processor: StatefulProcessor, mode: str = "eventTime") -> DataFrame:
        """What Spark's own `transformWithState` makes of the rows."""
        grouped = self.rows().groupBy(*self.keys)
        return grouped.transformWithState(processor, OUTPUTS, "Append", mode)

    def stream(
        self, processor: StatefulProcessor | None = None, mode: str = "eventTime", **options: Any
    ) -> Transformed:
        given = {"time_mode": mode, "keys": self.keys, **options}
        return transform_with_state(
            self.rows(), processor=processor or Keeps(), output_schema=OUTPUTS, **given
        )

    def go_on(self, stream: Transformed, checkpoint: Path, **options: Any) -> Told:
        """A job of ours until it has read everything."""
        found, collect = collector()
        query = stream.sink(collect).start(
            self.spark,
            checkpoint=checkpoint,
            trigger=ONCE,
            working_directory=self.home / "working",
            **options,
        )
        assert query.await_termination(PATIENCE_S)
        return by_batch(found)


def by_batch(found: list[tuple[int, Any]]) -> Told:
    told: Told = defaultdict(list)
    for batch, row in found:
        told[batch].append(tuple(row))
    return {batch: sorted(rows, key=repr) for batch, rows in told.items()}


@pytest.fixture(scope="module", autouse=True)
def states_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark's `transformWithState` needs that, and what this interpreter has."""
    use_this_python(spark)
    before = spark.conf.get(PROVIDER)
    assert before is not None, "Spark has a default"
    spark.conf.set(PROVIDER, ROCKS)
    yield
    spark.conf.set(PROVIDER, before)


@dataclass(frozen=True)
class Kept(Place):
    """A query with `Keeps` that was stopped, and what it put out when it went on."""

    told: Told = field(default_factory=dict)

    @property
    def stopped(self) -> Path:
        return self.home / "stopped"

    @property
    def ended(self) -> Path:
        return self.home / "ended"


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = Place(spark, tmp_path_factory.mktemp("kept"))
    place.feed(0, ("a", 1, 1, 0), ("a", 1, 2, 1), ("b", 1, 3, 2), ("a", 2, 6, 0), ("ä", 9, 5, 3))
    place.feed(
        1, ("a", 1, 7, 8), ("b", 1, 4, 9), ("b", 2, 8, 10), ("c", 1, 11, 15), ("c", 1, 12, 11)
    )
    place.run_spark(place.transformed(Keeps()), place.home / "ended")
    shutil.copytree(place.home / "ended", place.home / "stopped")
    later = [("a", 1, 13, 16), ("b", 1, 14, 13), ("b", 1, 15, 4), ("d", 1, 16, 30)]
    place.feed(2, *later, ("a", 1, 17, 31), ("c", 1, 18, 40), ("ä", 9, 19, 33), ("a", 2, 20, 2))
    told = place.run_spark(place.transformed(Keeps()), place.home / "ended")
    return Kept(spark, place.home, told=told)


def forget(checkpoint: Path, log: str, batch: int) -> None:
    """Remove what Spark noted of a micro-batch."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / log / name).unlink()


# Micro-batches of `kept`: two of data and one without, then one of data and one without.
STOPPED, NEXT, LAST = 2, 3, 4


def test_a_job_continues_from_sparks_state_as_spark_does(kept: Kept, tmp_path: Path) -> None:
    """Its states, timers and watermark; what Spark had read is not read again."""
    assert kept.told.keys() == {NEXT, LAST}
    options = {"from_spark": kept.stopped, "parallelism": 3}
    assert kept.go_on(kept.stream(), tmp_path / "c", **options) == kept.told
    repository = Repository(tmp_path / "c")
    assert repository.epochs() == [STOPPED, NEXT, LAST]
    first = repository.manifest(STOPPED)
    assert (first.cause, first.whole, first.batch, first.parallelism) == (
        "import",
        True,
        STOPPED,
        3,
    )

    assert kept.go_on(kept.stream(), tmp_path / "c", **options) == {}
    shutil.copytree(kept.stopped, tmp_path / "another")
    (tmp_path / "another/metadata").write_text('{"id":"3cc8c161-6cff-444d-a3bf-f118d576f6e8"}')
    (tmp_path / "another/.metadata.crc").unlink()
    with pytest.raises(RestoreError, match="which do not come from"):
        kept.stream().importing(tmp_path / "another", tmp_path / "c")


def test_a_batch_that_was_planned_and_has_not_ended_is_run_again(
    kept: Kept, tmp_path: Path
) -> None:
    """Its state may have been committed: that does not count."""
    shutil.copytree(kept.ended, tmp_path / "old")
    forget(tmp_path / "old", "offsets", LAST)
    for batch in (NEXT, LAST):
        forget(tmp_path / "old", "commits", batch)
    told = kept.go_on(kept.stream(), tmp_path / "c", from_spark=tmp_path / "old")
    assert told == kept.told


# ------------------------------------------------------------------------------- processing time


@pytest.fixture(scope="module")
def fading(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A query whose state expires, stopped behind two micro-batches; its state is in one part.

    It groups by what statekit makes text of, and by a field within a column.
    """
    place = Place(spark, tmp_path_factory.mktemp("fading"), ("shop", "price", "inner.half"))
    partitions = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, 1)
    for number in (0, 1):
        place.feed(number, ("a", 1, 2 * number, 0), ("b", 1, 2 * number + 1, 0))
        made = place.transformed(Fades(), "processingTime")
        place.run_spark(made, place.home / "old", {"once": True})
    spark.conf.set(PARTITIONS, partitions or 2)
    return place


def test_rows_expire_when_they_would_have_in_spark(fading: Place, tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    stream = fading.stream(Fades(), "processingTime")
    made = stream.importing(fading.home / "old", checkpoint).carry_out(
        working_directory=fading.home / "working"
    )
    stood_us = made.processing_time_us

    def go_on(number: int, later_ms: int) -> list[Any]:
        fading.feed(number, ("a", 1, 2 * number, 0), ("b", 1, 2 * number + 1, 0))
        told = fading.go_on(stream, checkpoint, clock=lambda: stood_us + later_ms * 1000)
        return [row[2] for row in told[number] if row[0] == "a"]

    assert go_on(2, HOUR_MS // 2 - 1000) == [
        "(4, (2,), [(0,), (2,)], [(('of 0',), (0,)), (('of 2',), (2,))])",
        "rang",  # what was set in the first micro-batch, some seconds before the second
    ]
    assert go_on(3, HOUR_MS // 2) == [
        "(6, (4,), [(0,), (2,), (4,)], [(('of 0',), (0,)), (('of 1',), (4,)), (('of 2',), (2,))])",
        "rang",
    ]
    # By now all that Spark wrote has expired, and what was written since has not.
    assert go_on(4, HOUR_MS) == [
        "(8, (6,), [(4,), (6,)], [(('of 0',), (6,)), (('of 1',), (4,))])",
        "rang",
        "rang",
    ]


def test_a_processor_of_frames_without_a_clock_continues(kept: Kept, tmp_path: Path) -> None:
    place = Place(kept.spark, tmp_path)
    place.feed(0, ("a", 1, 1, 0), ("a", 1, 2, 0), ("b", 1, 3, 0))
    grouped = place.rows().groupBy(*place.keys)
    made = grouped.transformWithStateInPandas(Counts(), OUTPUTS, "Append", "None")
    place.run_spark(made, tmp_path / "old", {"once": True})
    place.feed(1, ("a", 1, 4, 0), ("c", 1, 5, 0))
    stream = place.stream(Counts(), "none", pandas=True)
    told = place.go_on(stream, tmp_path / "c", from_spark=tmp_path / "old")
    assert told == {1: [("a", 1, "3"), ("c", 1, "1")]}


# ------------------------------------------------------------------------------- whole or not


def test_a_killed_import_starts_again_and_stores_the_same_rows_as_the_job(
    kept: Kept, tmp_path: Path
) -> None:
    """Killed with everything written but the manifest; what is there is not taken for whole."""
    checkpoint = tmp_path / "checkpoint"
    for name in ("stopped", "in"):
        (tmp_path / name).symlink_to(kept.home / name)
    with KillableProcess("tws_import_process.py", tmp_path, log=tmp_path / "log") as victim:
        victim.wait_for("written")
        victim.kill()
    assert list(checkpoint.glob("data/Keeps/*"))
    assert Repository(checkpoint).epochs() == []
    with pytest.raises(RestoreError, match="has continued to micro-batch 2, the state is at -1"):
        kept.go_on(kept.stream(), checkpoint)

    found = kept.stream().importing(kept.stopped, checkpoint, parallelism=2)
    found.carry_out(working_directory=tmp_path / "working")
    ours = Place(kept.spark, tmp_path / "ours")
    ours.input.mkdir(parents=True)
    for path in sorted(kept.input.iterdir())[:2]:
        shutil.copy2(path, ours.input)
    ours.go_on(ours.stream(), ours.home / "checkpoint")
    for state in STATES:
        stored, expected = (
            state_of(at, "Keeps", state, tmp_path / "s")
            for at in (checkpoint, ours.home / "checkpoint")
        )
        assert stored == expected
        assert stored


def test_a_query_that_continues_meanwhile_is_detected(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(kept.stopped, tmp_path / "old")
    found = kept.stream().importing(tmp_path / "old", tmp_path / "c").found
    assert found.position.batch == STOPPED
    found.check_has_not_moved()
    for log in ("offsets", "commits"):
        shutil.copy(kept.ended / log / f"{NEXT}", tmp_path / "old" / log)
        with pytest.raises(RestoreError, match=r"the query still runs\. Stop it"):
            found.check_has_not_moved()


def test_a_query_that_this_session_runs_is_refused(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(kept.ended, tmp_path / "old")
    query = kept.writer(kept.rows(), tmp_path / "old").format("noop").start()
    try:
        with pytest.raises(FencedError, match="this session runs: stop"):
            kept.stream().importing(tmp_path / "old", tmp_path / "c")
    finally:
        query.stop()


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": ("getValueState", "n long")}, "state 'last' is struct<flag:boolean"),
        ({"seen": ("getListState", "n int, at timestamp")}, "state 'seen' is struct<n:bigint"),
        ({"seen": ("getValueState", "n long, at timestamp")}, "is a list state without a TTL in"),
        ({"best": ("getMapState", "name string", STATES["best"][2])}, "map keys of state 'best'"),
        ({"other": None}, "has 'other', which the processor does not declare"),
    ],
)
def test_another_processor_is_refused(
    kept: Kept, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    states = {name: asked for name, asked in {**STATES, **change}.items() if asked is not None}
    with pytest.raises(StateSchemaError, match=message):
        kept.stream(Asks(states)).importing(kept.stopped, tmp_path / "c")


def test_other_keys_clocks_and_expiry_are_refused(
    kept: Kept, fading: Place, tmp_path: Path
) -> None:
    with pytest.raises(StateSchemaError, match="the key is struct<shop:string,item:int>"):
        kept.stream(keys=["item", "shop"]).importing(kept.stopped, tmp_path / "c")
    with pytest.raises(StateSchemaError, match="time mode eventtime, and the job has none"):
        kept.stream(mode="none").importing(kept.stopped, tmp_path / "c")
    states = dict(Fades().states)
    states["seen"] = states["seen"][:-1]
    stream = fading.stream(Asks(states), "processingTime")
    with pytest.raises(StateSchemaError, match="is a list state with a TTL in"):
        stream.importing(fading.home / "old", tmp_path / "c")


class CountsEntries(Asks):
    """Counts rows, by an entry that rows name too."""

    def __init__(self) -> None:
        super().__init__({"last": ("getMapState", "x double", "n long")})

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.last.updateValue((row.n * -0.0 if row.n < 2 else 1.0,), (row.n,))
        yield from ()


@pytest.mark.parametrize(
    ("keys", "numbers", "what"),
    [
        (("zero",), (7, -7), r"state of the keys \(0\.0,\) and \(-0\.0,\)"),
        (("shop",), (1, -1), r"state 'last' with the map keys .*-0\.0.* and .*0\.0"),
    ],
)
def test_two_keys_of_spark_that_are_one_in_statekit_are_refused(
    spark: SparkSession, tmp_path: Path, keys: Any, numbers: tuple[int, ...], what: str
) -> None:
    place = Place(spark, tmp_path, keys)
    for number, n in enumerate(numbers):
        place.feed(number, ("a", 1, n, number))
    processor = CountsEntries()
    place.run_spark(place.transformed(processor, "none"), tmp_path / "old")
    options = {"from_spark": tmp_path / "old"}
    with pytest.raises(StatekitError, match=f"(?s){what}.* one key in statekit"):
        place.go_on(place.stream(processor, "none"), tmp_path / "c", **options)


def test_a_path_without_a_checkpoint_with_state_is_refused(kept: Kept, tmp_path: Path) -> None:
    def refused(old: Path | str, error: type[StatekitError], message: str) -> None:
        with pytest.raises(error, match=message):
            kept.stream().importing(old, tmp_path / "c")

    refused(tmp_path / "nowhere", RestoreError, "is not a checkpoint of a Spark streaming query")
    refused("nosuch://bucket/old", StorageError, "Spark cannot open nosuch://bucket/old")
    with pytest.raises(RestoreError, match="a start begins at one of them"):
        kept.go_on(kept.stream(), tmp_path / "c", from_spark=kept.stopped, from_epoch=1)
    (tmp_path / "to it").symlink_to(kept.stopped)
    refused(tmp_path / "to it", RestoreError, "pass a link to it whose path has only letters")
    shutil.copytree(kept.stopped, tmp_path / "begun")
    for batch in range(STOPPED + 1):
        forget(tmp_path / "begun", "commits", batch)
    refused(tmp_path / "begun", RestoreError, "has no micro-batch that has ended")
    shutil.copytree(kept.stopped, tmp_path / "newer")
    forget(tmp_path / "newer", "commits", STOPPED)
    (tmp_path / f"newer/commits/{STOPPED}").write_text("v9\n{}")
    refused(tmp_path / "newer", RestoreError, "has version v9")
    shutil.copytree(kept.stopped, tmp_path / "torn")
    for path in (tmp_path / "torn/state/0/1").glob("*.*"):
        path.unlink()
    found = kept.stream().importing(tmp_path / "torn", tmp_path / "c")
    with pytest.raises(CorruptCheckpointError, match=r"cannot read the state in .*torn"):
        found.carry_out(working_directory=tmp_path / "working")


def test_a_query_with_other_stateful_operators_is_refused(kept: Kept, tmp_path: Path) -> None:
    grouped = kept.rows().dropDuplicates(["n"]).groupBy(*kept.keys)
    made = grouped.transformWithState(Asks(STATES), OUTPUTS, "Append", "eventTime")
    kept.run_spark(made, tmp_path / "old", {"once": True})
    with pytest.raises(RestoreError, match=r"several stateful operators: transform.*, dedupe"):
        kept.stream().importing(tmp_path / "old", tmp_path / "c")
    shutil.rmtree(tmp_path / "old/state/0")  # the one that is nearest to the output
    with pytest.raises(RestoreError, match=r"without transformWithState: .* dedupe"):
        kept.stream().importing(tmp_path / "old", tmp_path / "c")


# ------------------------------------------------------------------------------- command line

_offered: list[Transformed] = []


def offered() -> Transformed:
    """What the command line is told to take."""
    return _offered[-1]


def test_the_command_imports_and_prints_the_contents(kept: Kept, tmp_path: Path) -> None:
    _offered.append(kept.stream())
    names = ["--to", str(tmp_path / "c"), "--app", f"{__name__}:offered"]
    runner = CliRunner()

    def ran(*more: str) -> str:
        done = runner.invoke(app, ["import-spark", str(kept.stopped), *names, *more])
        assert done.exit_code == 0, done.output
        return done.output

    assert "Nothing was changed." in ran("--dry-run")
    assert Repository(tmp_path / "c").epochs() == []
    told = ran("--parallelism", "2")
    assert "ended with micro-batch 2, watermark 2021-03-28 00:59:12 UTC" in told
    assert "last (value)" in told
    assert f"Committed as epoch {STOPPED}" in told
    assert "there is nothing to do" in ran()
