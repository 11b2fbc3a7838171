"""Short ways to run a job on Spark, for tests and for the drivers that tests kill.

Every path is below a directory that the caller owns; nothing is left in the machine's own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import RunningJob
from statekit.query.rows.reader import CheckpointReader
from tests.support.effort import SOAK
from tests.support.spark_job import EVENT_SCHEMA
from tests.support.timeouts import PATIENCE_S

ONCE = {"availableNow": True}

CLASS_ARCHIVE = "STATEKIT_TEST_CLASS_ARCHIVE"
"""The environment's name for a file: classes of a JVM, to be written if absent, else to be used."""

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""Options of JVMs that live for seconds on two cores: they are done before a second compiler pays
off, and trust the bytecode of Spark.
"""

# To compile a query takes longer than to interpret it for a few rows.
_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "true" if SOAK else "false",
    "spark.sql.codegen.factoryMode": "FALLBACK" if SOAK else "NO_CODEGEN",
}


def new_session(
    directory: Path, master: str = "local[2]", options: Mapping[str, str] | None = None
) -> SparkSession:
    """Spark that keeps to itself: no UI, loopback only, temporary files in `directory`."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    jvm_options = f"-Djava.io.tmpdir={directory} {' '.join(SHORT_LIVED)} {_class_archive()}"
    session = (
        SparkSession.builder.config(map={**_FEW_ROWS, **(options or {})})
        .master(master)
        .appName("statekit tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", jvm_options)
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _class_archive() -> str:
    archive = os.environ.get(CLASS_ARCHIVE)
    if archive is None:
        return ""
    way = "SharedArchiveFile" if Path(archive).exists() else "ArchiveClassesAtExit"
    # Without -Xlog:disable it fills its standard output with the classes it leaves out.
    return f"-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable -XX:{way}={archive}"


EVENTS = {"events": EVENT_SCHEMA}


def drive(
    homes: Sequence[Path],
    master: str,
    job: sk.Job,
    sink: str,
    parallelism: int = 2,
    schemas: Mapping[str, str] = EVENTS,
    *,
    options: Mapping[str, str] | None = None,
    output: Callable[[Path], Any] = lambda home: sk.sinks.parquet(home / "out"),
) -> None:
    """Stream `HOME/<source>` of each home through a job to its end, and stop Spark.

    On a cluster, working copies are where executors keep them by default.

    Parameters:
        output: returns the target of the sink for a home.
    """
    (homes[0] / "tmp").mkdir(exist_ok=True)
    spark = new_session(homes[0] / "tmp", master, options)
    queries = [
        job.start(
            spark,
            {source: stream_of(spark, home / source, schema) for source, schema in schemas.items()},
            outputs={sink: output(home)},
            checkpoint=home / "checkpoint",
            working_directory=home / "working" if master.startswith("local") else None,
            parallelism=parallelism,
            trigger=ONCE,
            retention=None,  # all epochs are looked at afterwards
        )
        for home in homes
    ]
    for query in queries:
        assert query.await_termination(PATIENCE_S)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # then the JVM ends, and writes its class archive if it should
    gateway.proc.wait()


class Runs:
    """Runs of jobs that share a checkpoint and its outputs, below one directory."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.checkpoint = home / "checkpoint"
        self.working = home / "working"
        self._files = 0

    # ------------------------------------------------------------------------------- inputs

    def feed(self, source: str, table: pa.Table | list[dict[str, Any]]) -> None:
        """One more file of a streaming source: one more micro-batch."""
        write_batch(self.home / source, self._files, table)
        self._files += 1

    def stream(self, source: str, schema: str) -> DataFrame:
        """The files that `feed` wrote, one per micro-batch."""
        directory = self.home / source
        directory.mkdir(exist_ok=True)
        return stream_of(self.spark, directory, schema)

    # ----------------------------------------------------------------------------- running

    def frame(self, records: Sequence[Any], schema: pa.Schema) -> DataFrame:
        """A frame of NamedTuples that are there at once."""
        rows = [record._asdict() for record in records]
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, schema))

    def start(self, job: sk.Job, inputs: dict[str, DataFrame], **options: Any) -> RunningJob:
        places = {"checkpoint": self.checkpoint, "working_directory": self.working}
        # What is looked at afterwards are all epochs.
        given = {"retention": None, **places, **options}
        return job.start(self.spark, inputs, **given)

    def finish(self, job: sk.Job, inputs: dict[str, DataFrame], **options: Any) -> RunningJob:
        """Start, and wait until the input has been read."""
        streaming = any(df.isStreaming for df in inputs.values())
        query = self.start(job, inputs, **({"trigger": ONCE} if streaming else {}), **options)
        assert query.await_termination(PATIENCE_S), "the job did not end in time"
        return query

    # ----------------------------------------------------------------------------- results

    def state(self, operator: str, name: str) -> dict[Any, Any]:
        """Everything that a state holds, read from the checkpoint's files."""
        return state_of(self.checkpoint, operator, name, self.home / "unpacked")

    def parquet(self, name: str) -> list[dict[str, Any]]:
        return parquet_rows(self.home / name)

    def epochs(self) -> list[int]:
        """The numbers of all committed epochs."""
        if not self.checkpoint.exists():
            return []
        return Repository(self.checkpoint, create=False).epochs()


def write_batch(directory: Path, number: int, table: pa.Table | list[dict[str, Any]]) -> None:
    """File `number` of a streaming source; Spark takes the oldest first."""
    directory.mkdir(exist_ok=True)
    made = table if isinstance(table, pa.Table) else pa.Table.from_pylist(table)
    draft = directory / f".{number:05d}"  # so that a running stream never sees half a file
    pq.write_table(made, draft)
    os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
    draft.rename(directory / f"{number:05d}.parquet")


def stream_of(spark: SparkSession, directory: Path, schema: str) -> DataFrame:
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory))


def state_of(checkpoint: Path, operator: str, name: str, scratch: Path) -> dict[Any, Any]:
    scratch.mkdir(exist_ok=True)
    place = scratch / f"{operator}-{name}-{len(list(scratch.iterdir()))}"
    return {
        _hashable(key): held
        for key, held in CheckpointReader(checkpoint).rows(operator, name, place)
    }


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def parquet_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet sink in the order of epochs, without asking Spark."""
    rows: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


def collector() -> tuple[list[tuple[int, Any]], Callable[[DataFrame, int], None]]:
    """A callback sink and the list of `(epoch, row)` that it fills."""
    found: list[tuple[int, Any]] = []

    def collect(df: DataFrame, epoch: int) -> None:
        found.extend((epoch, row) for row in df.collect())

    return found, collect


def pieces(records: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [records[start : start + size] for start in range(0, len(records), size)]
