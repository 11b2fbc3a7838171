"""`Query`: the handle of a job that runs on Spark."""

from __future__ import annotations

from collections import deque

from pyspark.sql.streaming.query import StreamingQuery

from statekit.job.progress import Progress
from statekit.maintenance.savepoint.write import savepoint_folder, write_savepoint
from statekit.spark.epoch_loop import EpochLoop


class Query:
    """A running job."""

    def __init__(self, loop: EpochLoop) -> None:
        self._loop = loop

    def __repr__(self) -> str:
        epoch = "no epoch yet" if self.epoch is None else f"last epoch {self.epoch}"
        return f"<Query of job {self._loop.coordinator.job.name!r}: {self._loop.state}, {epoch}>"

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's `StreamingQuery`; None for a bounded run, which has ended."""
        return self._loop.query

    @property
    def progress(self) -> deque[Progress]:
        """Metrics of the last epochs, oldest first."""
        return self._loop.progress

    @property
    def last_progress(self) -> Progress | None:
        """Metrics of the last epoch; None before the first."""
        return self.progress[-1] if self.progress else None

    @property
    def epoch(self) -> int | None:
        """The number of the last epoch that this run committed."""
        return self.progress[-1].epoch if self.progress else None

    @property
    def is_active(self) -> bool:
        """Whether there may be more epochs."""
        return self._loop.is_active

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job ends, for at most `timeout_s` whole seconds. Return whether it has
        ended.

        Raises:
            StatekitError: the job failed; the class says how. Errors of a user's sink are raised
                unchanged.
        """
        return self._loop.wait(timeout_s)

    def stop(self) -> None:
        """Stop the job. The running micro-batch is abandoned; committed epochs are kept."""
        self._loop.stop()

    def savepoint(self, name: str) -> str:
        """Write all state after the last committed epoch to `savepoints/<name>/` of the checkpoint.

        The stream continues meanwhile. The driver does the work, one shard after the other. Returns
        the URL of the savepoint, for `from_savepoint=`.

        Raises:
            RestoreError: the name is taken or not valid, or no epoch is committed yet.
            CorruptCheckpointError: a file of the checkpoint is missing or altered.
            StorageError: the store or the local disk failed; there is no savepoint.
        """
        repository = self._loop.coordinator.repository
        write_savepoint(repository, name)
        return f"{repository.url}/{savepoint_folder(name)}"
