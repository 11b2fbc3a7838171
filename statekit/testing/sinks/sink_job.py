"""A job that writes records to a sink, in a process of its own, which can be killed at each line of
Python that the sink runs, and around the commit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, GenericAlias
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from statekit.errors import ProcessError
from statekit.functions.process import process
from statekit.job.job import Job
from statekit.records.output_type import OutputType
from statekit.sinks.protocol.frame_sinks import Callback, FrameSink
from statekit.sinks.protocol.sink import Attempt, EpochRanges, Outputs, Part, Receipt, Sink
from statekit.testing.drivers.processes import forked

Make = Callable[[Path], tuple[Any, Callable[[], Any]]]

_LIMIT_S = 60
_LIMIT_ON_SPARK_S = 600


# ------------------------------------------------------------------------------------ kill points

Moment = Literal["line", "written", "committed"]
"""Before a line is run; after the sink has returned and before the commit; after the commit."""


class KillPoint(NamedTuple):
    """A moment at which a process can be killed.

    Parameters:
        epoch: the epoch that is written.
        file, line: the line that runs next.
    """

    epoch: int
    moment: Moment
    file: str = ""
    line: int = 0


class Failure(NamedTuple):
    """An error, with its place in the user's code.

    Parameters:
        text: its class and message.
        file, line: the line of the user's code that raised it; empty if none did.
    """

    text: str
    file: str = ""
    line: int = 0


class JobStart(NamedTuple):
    """Result of one start of a job.

    Parameters:
        reached: the moments that the start reached, in order.
        killed: whether it was killed at the last of them.
        error: the error with which it failed; None if it did not fail.
    """

    reached: list[KillPoint]
    killed: bool = False
    error: Failure | None = None


_INSTALLED = {
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[2]),
}
"""Directories of the standard library, of installed packages and of statekit."""


class UsersCode:
    """The files of code that are a user's: not generated, of the standard library or installed.

    Parameters:
        given: a sink or another function; its file is the user's, wherever it is.
    """

    def __init__(self, given: object) -> None:
        function: Any = function_of(given)
        self._file = function.__code__.co_filename if hasattr(function, "__code__") else None
        self.has = functools.cache(self._has)

    def _has(self, file: str) -> bool:
        if file == self._file:
            return True
        return not file.startswith("<") and not any(map(Path(file).is_relative_to, _INSTALLED))

    def failure(self, error: BaseException) -> Failure:
        """Return an error with the innermost line of the user's code in its traceback. An error
        that names the epoch in which the user's code failed is replaced by the error of that code.
        """
        while isinstance(error, ProcessError) and error.__cause__ is not None:
            error = error.__cause__
        text = "".join(traceback.format_exception_only(error)).strip()
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if self.has(frame[0])]
        return Failure(text, own[-1].filename, own[-1].lineno or 0) if own else Failure(text)


class KillPoints:
    """Counter of the moments that a start reaches. It kills its process group at one of them.

    Parameters:
        code: the code whose lines are moments.
        kill_at: the number of the moment, from 1; None for none.
        answer: gets the `JobStart`, right before the kill.
    """

    def __init__(self, code: UsersCode, kill_at: int | None, answer: Connection) -> None:
        self.reached: list[KillPoint] = []
        self._kill_at = kill_at
        self._answer = answer
        self._is_traced = code.has

    def reach(self, point: KillPoint) -> None:
        """Count a moment, and kill the process if the moment is `kill_at`."""
        self.reached.append(point)
        if len(self.reached) == self._kill_at:
            self._answer.send(JobStart(self.reached, killed=True))
            os.killpg(0, signal.SIGKILL)

    @contextlib.contextmanager
    def in_sink(self, epoch: int) -> Iterator[None]:
        """Count each line that this thread runs, and the moment after the last one."""
        with self.in_lines(epoch):
            yield
        self.reach(KillPoint(epoch, "written"))

    @contextlib.contextmanager
    def in_lines(self, epoch: int) -> Iterator[None]:
        """Count each line that this thread runs."""

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
            file = frame.f_code.co_filename
            if event == "line":
                self.reach(KillPoint(epoch, "line", file, frame.f_lineno))
            return trace if self._is_traced(file) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def next_epoch(self) -> None:
        """Count the moment after the commit, if an epoch was committed."""
        if self.reached and self.reached[-1].moment == "written":
            self.reach(KillPoint(self.reached[-1].epoch, "committed"))


def function_of(sink: Any) -> Any:
    """Return the function of a sink, or its method that writes."""
    if isinstance(sink, Callback):
        return function_of(sink.fn)
    if isinstance(sink, Sink | FrameSink):
        return type(sink).write
    if isinstance(sink, functools.partial):
        return function_of(sink.func)
    if inspect.isroutine(sink):
        return inspect.unwrap(getattr(sink, "__func__", sink))
    return type(sink).__call__


# ---------------------------------------------------------------------------------------- the job


def job_with_sink(records: list[Any]) -> Job:
    """Return a job that writes its records unchanged.

    Raises:
        StateTypeError: they are no records, or cannot be in one source.
    """

    def unchanged(record: Any) -> Iterator[Any]:
        yield record

    classes: list[Any] = list(dict.fromkeys(map(type, records)))
    record_type = functools.reduce(operator.or_, classes)
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

        def call(records: list[Any], epoch: int) -> None:
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
            outputs={"out": _KilledSink(sink, points) if isinstance(sink, Sink) else call},
            checkpoint=self.home / "checkpoint",
            parallelism=1,
            epoch_size=self.epoch_size,
        )

    def _run_on_spark(self, sink: FrameSink, points: KillPoints) -> None:
        from statekit.testing.drivers.spark_session import quiet_session

        os.environ.pop("PYSPARK_GATEWAY_PORT", None)  # of a JVM that is not to be killed
        spark = quiet_session(self.home / "spark", is_short=True)
        files = self._files()
        schema = spark.read.parquet(str(files)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        query = job_with_sink(self.records).start(
            spark,
            {"records": reader.parquet(str(files))},
            {"out": _KilledFrameSink(sink, points)},
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
    def directory(self) -> str | None:
        return self.sink.directory

    def begin(self, outputs: Outputs) -> None:
        self.sink.begin(outputs)

    def open(self, attempt: Attempt) -> None:
        with self.points.in_lines(attempt.epoch):
            self.sink.open(attempt)

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt | None:
        with self.points.in_lines(part.epoch):
            return self.sink.write(part, batches)

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        with self.points.in_sink(attempt.epoch):
            self.sink.publish(attempt, receipts)

    def abandon(self, epochs: EpochRanges) -> None:
        self.sink.abandon(epochs)

    def close(self) -> None:
        self.sink.close()


@dataclass(frozen=True)
class _KilledFrameSink(FrameSink):
    """A sink of frames whose lines are moments at which the process can be killed."""

    sink: FrameSink
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
    child, connection = forked(partial(_run, make, job, kill_at))
    start: JobStart | None = None
    with connection, contextlib.suppress(EOFError, ConnectionResetError):
        start = connection.recv()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # a JVM that it has started
    _, status = os.waitpid(child, 0)
    return start or JobStart([], error=Failure(_reason(os.waitstatus_to_exitcode(status))))


def _reason(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return f"it did not end within {_LIMIT_S} seconds, or {_LIMIT_ON_SPARK_S} on Spark"
    return f"its process ended with exit code {exit_code}"


def _run(make: Make, job: SinkJob, kill_at: int | None, answer: Connection) -> None:
    """Run a job in a process group of its own, and send its result."""
    code, points = UsersCode(make), None
    try:
        os.setsid()
        signal.alarm(_LIMIT_ON_SPARK_S if job.is_on_spark else _LIMIT_S)
        sink, _ = make(job.place)
        code = UsersCode(sink)
        points = KillPoints(code, kill_at, answer)
        job.run(sink, points)
        answer.send(JobStart(points.reached))
    except Exception as error:  # noqa: BLE001 - it is a result of the check
        reached = points.reached if points is not None else []
        answer.send(JobStart(reached, error=code.failure(error)))
