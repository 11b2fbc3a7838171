"""Epochs without input, between the micro-batches of a stream and after the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

_LONGEST_WAIT_S = 0.5


class IdleEpochs(threading.Thread):
    """Watches a stream, and runs epochs without input.

    Parameters:
        query: the stream.
        beat: runs an epoch if one is due, and returns the seconds until the next one; None without
            heartbeats.
        end: runs the last epochs, when the stream has read all of its input; None for none.
        failed: called with the error that ended the epochs.
    """

    def __init__(
        self,
        query: StreamingQuery,
        *,
        beat: Callable[[], float] | None,
        end: Callable[[], None] | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="statekit idle epochs", daemon=True)
        self._query = query
        self._beat = beat
        self._end = end
        self._failed = failed
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            if self._beat is not None:
                self._beat_while_active(self._beat)
            if self._end is not None and self._has_read_all_input():
                self._end()
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for the stream
            self._failed(error)

    def _beat_while_active(self, beat: Callable[[], float]) -> None:
        while not self._stopped.is_set() and self._query.isActive:
            self._stopped.wait(min(beat(), _LONGEST_WAIT_S))

    def _has_read_all_input(self) -> bool:
        """Return whether a stream with the trigger availableNow has ended by itself.

        Anyone can stop it, through `spark.streams` or with the session, and Spark has no public way
        to distinguish that. But it ends by itself only after it found no further micro-batch.
        """
        try:
            self._query.awaitTermination()
        except PySparkException:
            return False  # raised in `awaitTermination` of the query
        failed = self._stopped.is_set() or self._query.exception() is not None
        execution: Any = self._query._jsq
        return not failed and bool(execution.streamingQuery().noNewData())

    def stop(self) -> None:
        """Run no more epochs. The current epoch is completed."""
        self._stopped.set()
        if self is not threading.current_thread():
            self.join()


class WholeQuery(StreamingQuery):
    """A query of Spark that includes the epochs without rows that follow its last batch.

    Spark runs such batches within the query, so waiting for the query includes them.

    Parameters:
        query: Spark's own.
        idle: runs the epochs.
        settle: runs the epochs that are due now.
        failure: returns the error that ended the epochs, if there is one.
    """

    def __init__(
        self,
        query: StreamingQuery,
        idle: IdleEpochs,
        settle: Callable[[], None],
        failure: Callable[[], BaseException | None],
    ) -> None:
        super().__init__(query._jsq)
        self._idle = idle
        self._settle = settle
        self._failure = failure

    @property
    def isActive(self) -> bool:
        return super().isActive or self._idle.is_alive()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        ended = super().awaitTermination(timeout)
        if ended is not False:
            self._idle.join(timeout)
        if self._idle.is_alive():
            return False
        if ended is not False and (error := self._failure()) is not None:
            raise error
        return ended

    def processAllAvailable(self) -> None:
        super().processAllAvailable()
        self._settle()
