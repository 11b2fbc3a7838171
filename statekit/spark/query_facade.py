"""Spark's `StreamingQuery`, extended by the idle epochs that follow its last batch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from statekit.spark.idle import IdleEpochs


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
