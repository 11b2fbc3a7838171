"""A job that writes records to a sink, started in a process of its own, which may be killed."""

from __future__ import annotations

import contextlib
import operator
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import GenericAlias
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from statekit.functions.process import process
from statekit.job.job import Job
from statekit.records.output_type import OutputType
from statekit.sinks.sink import Attempt, Sink
from statekit.testing.sinks.kill_points import Failure, JobStart, KillPoints, UsersCode

Make = Callable[[Path], tuple[Any, Callable[[], Any]]]

_LIMIT_S = 60
_LIMIT_ON_SPARK_S = 600


def job_with_sink(records: list[Any]) -> Job:
    """Return a job that writes its records unchanged.

    Raises:
        StateTypeError: they are no records, or cannot be in one source.
    """

    def unchanged(record: Any) -> Iterator[Any]:
        yield record

    classes: list[Any] = list(dict.fromkeys(map(type, records)))
    record_type = reduce(operator.or_, classes)
    unchanged.__annotations__ = {
        "record": record_type,
        "return": GenericAlias(Iterator, record_type),
    }
    job = Job("check_sink")
    source: Any = job.source
    source("records", *classes).process(process()(unchanged)).sink("out")
    return job


@dataclass(frozen=True)
class SinkJob:
    """A job whose epochs are written to a sink.

    Parameters:
        home: the directory of its checkpoint, and of its other files.
        records: the records that it reads and writes, at least one.
        epoch_size: the number of records in an epoch.
        is_on_spark: whether it runs on Spark.
    """

    home: Path
    records: list[Any]
    epoch_size: int
    is_on_spark: bool

    @property
    def place(self) -> Path:
        """The directory of the sink. Its name is that of no other job."""
        return self.home / self.home.name

    def run(self, sink: Any, points: KillPoints) -> None:
        """Start the job, and wait until it ends."""
        if self.is_on_spark:
            self._run_on_spark(sink, points)
            return

        def output(records: list[Any], epoch: int) -> None:
            with points.in_sink(epoch):
                sink(records, epoch)

        def given() -> Iterator[Any]:
            for place, record in enumerate(self.records):
                if place % self.epoch_size == 0:
                    points.next_epoch()
                yield record
            points.next_epoch()

        job_with_sink(self.records).run(
            {"records": given()},
            outputs={"out": output},
            checkpoint=self.home / "checkpoint",
            parallelism=1,
            epoch_size=self.epoch_size,
        )

    def _run_on_spark(self, sink: Sink, points: KillPoints) -> None:
        from statekit.testing.drivers.spark_session import quiet_session

        os.environ.pop("PYSPARK_GATEWAY_PORT", None)  # of a JVM that is not to be killed
        spark = quiet_session(self.home / "spark", is_short=True)
        files = self._files()
        schema = spark.read.parquet(str(files)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        query = job_with_sink(self.records).start(
            spark,
            {"records": reader.parquet(str(files))},
            {"out": _KilledSink(sink, points)},
            checkpoint=self.home / "checkpoint",
            working_directory=self.home / "working",
            parallelism=1,
            trigger={"availableNow": True},
        )
        query.await_termination()

    def _files(self) -> Path:
        """Return the directory with a file of records for each epoch, which the first start
        writes.
        """
        files = self.home / "records"
        if not files.exists():
            files.mkdir()
            output = OutputType(type(self.records[0]), "check_sink()", "record")
            for place in range(0, len(self.records), self.epoch_size):
                batch = output.to_batch(self.records[place : place + self.epoch_size])
                file = files / f"{place:09d}.parquet"
                pq.write_table(pa.Table.from_batches([batch]), file)
                os.utime(file, (1_700_000_000 + place,) * 2)  # Spark takes the oldest first
        return files


@dataclass(frozen=True)
class _KilledSink(Sink):
    """A sink whose lines are moments at which the process can be killed."""

    sink: Sink
    points: KillPoints

    @property
    def reads_once(self) -> bool:  # type: ignore[override]
        return self.sink.reads_once

    @property
    def may_duplicate(self) -> bool:
        return self.sink.may_duplicate

    @property
    def directory(self) -> str | None:
        return self.sink.directory

    def write(self, df: Any, attempt: Attempt) -> None:
        with self.points.in_sink(attempt.epoch):
            self.sink.write(df, attempt)


def start_in_fork(make: Make, job: SinkJob, kill_at: int | None) -> JobStart:
    """Start a job in a fork of this process, which is killed at a moment or runs to its end.

    This process may not have threads of its own.
    """
    pa.array([0])  # imports pandas, if it is installed: once, and not in each fork
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        _run_and_exit(make, job, kill_at, os.fdopen(sending, "wb"))
    os.close(sending)
    with os.fdopen(receiving, "rb") as answer:
        content = answer.read()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # a JVM that it has started
    _, status = os.waitpid(child, 0)
    if content:
        start: JobStart = pickle.loads(content)  # noqa: S301 - of our own process
        return start
    return JobStart([], error=Failure(_reason(os.waitstatus_to_exitcode(status))))


def _reason(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return f"it did not end within {_LIMIT_S} seconds, or {_LIMIT_ON_SPARK_S} on Spark"
    return f"its process ended with exit code {exit_code}"


def _run_and_exit(make: Make, job: SinkJob, kill_at: int | None, answer: IO[bytes]) -> None:
    """Run a job in a process group of its own, and write its result."""
    code, points = UsersCode(make), None
    try:
        os.setsid()
        signal.alarm(_LIMIT_ON_SPARK_S if job.is_on_spark else _LIMIT_S)
        sink, _ = make(job.place)
        code = UsersCode(sink)
        points = KillPoints(code, kill_at, answer)
        job.run(sink, points)
        points.end(JobStart(points.reached))
    except Exception as error:  # noqa: BLE001 - it is a result of the check
        reached = points.reached if points is not None else []
        pickle.dump(JobStart(reached, error=code.failure(error)), answer)
        answer.flush()
    finally:
        os._exit(1)
