"""`RestartingQuery`: a running job that is started again after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from statekit.errors import StatekitError
from statekit.job.notebook import progress_html
from statekit.job.options import StartOptions
from statekit.job.progress import MirrorProgress, Progress
from statekit.job.restarts import restarted
from statekit.spark.query import Query

_LOOK_S = 1.0
"""How often it looks whether it is to stop, in seconds."""


class RestartingQuery:
    """The handle of a job that is started again after failures, as `restart=` says.

    Parameters:
        start: starts the job once.
        options: of the first start.

    Raises:
        StatekitError: the first start failed, and the job is not started again.
    """

    def __init__(self, start: Callable[[StartOptions], Query], options: StartOptions) -> None:
        self._start = start
        self._current: Query | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(options,), name="statekit restarts", daemon=True
        )
        self._thread.start()
        self._has_begun.wait()
        self._check_has_started()

    def __repr__(self) -> str:
        return f"<RestartingQuery of {self._current!r}>"

    def _repr_html_(self) -> str:
        """Return the last epochs of the present start for a notebook."""
        progress = [] if self._current is None else list(self._current.progress)
        return progress_html(repr(self)[1:-1], progress)

    @property
    def current(self) -> Query:
        """The present start of the job, or the last one.

        Raises:
            StatekitError: it was stopped before the first start succeeded.
        """
        if self._current is None:
            raise StatekitError("the job was stopped before it had started: start it again")
        return self._current

    @property
    def query(self) -> Any:
        """Spark's `StreamingQuery` of the present start, if Spark reads the input."""
        return self.current.query

    @property
    def progress(self) -> Sequence[Progress]:
        """Metrics of the last epochs of the present start, oldest first."""
        return self.current.progress

    @property
    def last_progress(self) -> Progress | None:
        """Metrics of the last epoch of the present start; None before its first."""
        return self.current.last_progress

    @property
    def epoch(self) -> int | None:
        """The number of the last epoch that the present start committed."""
        return self.current.epoch

    @property
    def mirrors(self) -> Sequence[MirrorProgress]:
        """How far each mirror beside the job is."""
        return self.current.mirrors

    @property
    def is_active(self) -> bool:
        """True until the job has ended, also between a failure and the next start."""
        return self._thread.is_alive()

    @property
    def metrics_address(self) -> str | None:
        """The URL that Prometheus reads; None without `metrics=`, and between two starts."""
        return self.current.metrics_address

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job, for at most `timeout_s` seconds. Return whether it has
        ended.

        Raises:
            StatekitError: it failed, and is not started again. The error is that of the last start.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def savepoint(self, name: str) -> str:
        """Write all state after the last committed epoch to a savepoint. Return its URL."""
        return self.current.savepoint(name)

    def stop(self) -> None:
        """Stop the job, and start it no more. Committed epochs are kept."""
        self._stop.set()
        self._thread.join()

    def _check_has_started(self) -> None:
        if self._current is None and self._error is not None:
            raise self._error

    def _run(self, options: StartOptions) -> None:
        try:
            restarted(self._attempt, options, self._stop, None)
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for the job
            self._error = error
        finally:
            self._has_begun.set()

    def _attempt(self, options: StartOptions) -> None:
        self._current = query = self._start(options)
        self._has_begun.set()
        while not query.await_termination(_LOOK_S):
            if self._stop.is_set():
                query.stop()
                return
