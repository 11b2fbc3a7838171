"""`SourceQuery`: a job on Spark that reads sources, in a loop of the driver."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekit.checkpoint.manifest import EpochOffsets, InputOffset
from statekit.errors import RestoreError
from statekit.job.options import Pace, StartOptions
from statekit.runtime.epoch_loop import EpochLoop
from statekit.runtime.inputs import BadRecords, RunInput, RunInputs, SourceInput
from statekit.shown import shown
from statekit.sources.source import Source
from statekit.spark.failures import translated
from statekit.spark.frames.source_frames import SourceFrames
from statekit.spark.query import RUNNING, Query
from statekit.spark.session import is_remote
from statekit.spark.worker.commit_records import Reports
from statekit.spark.worker.reading import ReadCount

_RECORDS = 1_000_000
"""Records per input and epoch, at most, if the user chose no number."""


@dataclass
class FrameInput(RunInput):
    """A static frame. It is read once; its offset is then 1."""

    name: str

    @property
    def is_stream(self) -> bool:
        return False

    def start(self, offset: InputOffset | None) -> InputOffset:
        if isinstance(offset, dict):
            raise RestoreError(
                f"input {self.name!r} was read from a source, at {shown(offset)}, and now it is a "
                "frame: read it from that source again, or start with a new checkpoint"
            )
        return offset or 0

    def end(self, start: InputOffset, limit: int, wait_s: float) -> InputOffset:
        return 1


class SourceQuery(Query):
    """The handle of a running job whose inputs are sources, and perhaps static frames.

    The driver decides how far an epoch reads, and commits that with the state, as a run in one
    process does. Spark keeps no log.
    """

    _loop_thread: threading.Thread | None = None

    @cached_property
    def _pace(self) -> Pace:
        return pace_of(self._options)

    @property
    def is_active(self) -> bool:
        return self._loop_thread is not None and self._loop_thread.is_alive()

    @property
    def _state(self) -> str:
        if self.is_active:
            return "running"
        return "ended" if self._first_error is None else "failed"

    def await_termination(self, timeout_s: float | None = None) -> bool:
        if self._loop_thread is not None:
            self._loop_thread.join(timeout_s)
        if self.is_active:
            return False
        if (failure := self._failure()) is not None:
            raise failure
        return True

    def stop(self) -> None:
        """Stop the job after its current epoch."""
        self._pace.stop.set()
        if self._loop_thread is not None and self._loop_thread is not threading.current_thread():
            self._loop_thread.join()

    def start_loop(
        self, spark: SparkSession, sources: Mapping[str, Source], frames: Mapping[str, DataFrame]
    ) -> None:
        """Run the epochs: in a thread if an input is a stream, or else until they end."""
        coordinator = self._coordinator
        coordinator.notes_beginnings = True  # until the commit, outputs may be published
        found: list[RunInput] = [SourceInput(name, source) for name, source in sources.items()]
        self._inputs = RunInputs([*found, *map(FrameInput, frames)])
        self._bad = BadRecords(coordinator.job, coordinator.last)
        with ExitStack() as if_failed:
            if_failed.callback(self._inputs.close)
            self._inputs.open(coordinator.last, coordinator.epoch, reads_here=False)
            reports: Reports[ReadCount] = self._runner.new_reports(ReadCount)
            self._frames = SourceFrames(spark, coordinator.job, self._inputs, frames, reports)
            loop = EpochLoop(coordinator, self._inputs, self._run_epoch, self._pace)
            if_failed.pop_all()  # the loop closes them
        if not self._inputs.has_streams:
            self._run_loop(loop)
            self.await_termination()
            return
        RUNNING[coordinator.repository.url] = self
        self._loop_thread = threading.Thread(
            target=self._run_loop, args=(loop,), name="statekit epochs", daemon=True
        )
        self._loop_thread.start()

    def _run_loop(self, loop: EpochLoop) -> None:
        try:
            with self._coordinator, closing(self._inputs):
                loop.run()
                if not self._pace.stop.is_set():
                    self._runner.remove_copies(self._options.keep_copies)
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for the job
            self._first_error = error
        finally:
            self._close()

    def _run_epoch(self, what: str, ends: EpochOffsets | None) -> None:
        frames = self._frames
        try:
            inputs = frames.empty if ends is None else frames.of(ends, self._coordinator.epoch)
            offsets = None if ends is None else self._inputs.committed(ends)
            self._epoch(inputs, what, offsets=offsets, counted=self._counted)
        except (PySparkException, Py4JJavaError) as error:
            raise translated(error) from error
        finally:
            frames.release()

    def _counted(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of records of an epoch and of bad records so far, after its frames
        were read.
        """
        read, bad = self._frames.counts()
        for name, count in bad.items():
            self._bad.add(name, count, self._coordinator.epoch)
        return dict(read), self._bad.so_far


def pace_of(options: StartOptions) -> Pace:
    """Return the pace of a run on Spark.

    Raises:
        StateTypeError: an option is not valid.
    """
    trigger = options.spark_trigger
    follow = not options.ends_with_input
    return Pace.of(
        options.epoch_size or _RECORDS,
        trigger.get("processingTime"),
        options.heartbeat if follow else None,
        drain=options.drain,
        follow=follow and not options.drain,
    )


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session for the frames of sources, with the settings of another one; over Spark
    Connect, that one.
    """
    if is_remote(spark):
        return spark  # a clone has a connection of its own, which hangs when Python ends
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.adaptive.enabled", "false")  # as for micro-batches
    return session
