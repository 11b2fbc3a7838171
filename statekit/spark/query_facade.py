"""Spark's `StreamingQuery`, extended by the idle epochs that follow its last batch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from statekit.spark.idle import IdleEpochs


class WholeQuery(StreamingQuery):
    """A query of Spark's behind whose last rows statekit makes epochs without rows.

    Spark makes such batches within the query, so whoever waits for it waits for them.

    Parameters:
        query: Spark's own.
        idle: makes the epochs.
        settle: makes those that are due now.
        cause: why there are no more, if one failed.
    """

    def __init__(
        self,
        query: StreamingQuery,
        idle: IdleEpochs,
        settle: Callable[[], None],
        cause: Callable[[], BaseException | None],
    ) -> None:
        super().__init__(query._jsq)
        self._idle = idle
        self._settle = settle
        self._cause = cause

    @property
    def isActive(self) -> bool:
        return super().isActive or self._idle.is_alive()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        ended = super().awaitTermination(timeout)
        if ended is not False:
            self._idle.join(timeout)
        if self._idle.is_alive():
            return False
        if ended is not False and (cause := self._cause()) is not None:
            raise cause
        return ended

    def processAllAvailable(self) -> None:
        super().processAllAvailable()
        self._settle()
