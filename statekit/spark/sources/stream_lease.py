"""Stream lease: the reader's lease of a streaming query, renewed while the query runs.

Each query has a token, which Spark stores with its offsets. So a query that was killed takes its
lease over when it starts again, and another query of the same name does not. A query that is killed
before its first offset is stored has no token yet: until then the lease has `STARTING`, which any
new query of that name takes over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from statekit.checkpoint.leases import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.clock import unique_id
from statekit.errors import FencedError, QueryError, StatekitError, StorageError
from statekit.spark.sources.changes_request import Start
from statekit.timestamp import duration_to_micros

STARTING = "spark-query-that-starts"
_PINS_MAX = 10
_RENEWALS_PER_TTL = 3


class StreamLease:
    """The lease of a query. Its methods are called by one thread, and another one renews it.

    Parameters:
        repository: the checkpoint.
        name: of the reader.
        ttl: how long the lease is valid after each commit and renewal, as text.
    """

    def __init__(self, repository: Repository, name: str, ttl: str) -> None:
        self._repository = repository
        self._name = name
        self._ttl = ttl
        self._lease: ReaderLease | None = None
        self._token: str | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: StatekitError | None = None
        self._renewal: threading.Thread | None = None

    def pinned(self, start: Callable[[], Start]) -> tuple[Start, str]:
        """Keep the epoch of a new query, and return it with the token of the query.

        Parameters:
            start: returns where to begin. It is called again if that epoch was just collected.

        Raises:
            QueryError: it was collected.
            FencedError: another query holds the lease.
        """
        for attempt in range(1, _PINS_MAX + 1):
            begin = start()
            try:
                self._take(begin.epoch, STARTING)
            except QueryError:
                if attempt == _PINS_MAX:
                    raise
            else:
                break
        return begin, unique_id()

    def hold(self, epoch: int, token: str | None) -> None:
        """Keep an epoch and all later ones, unless this query does so already.

        Parameters:
            epoch: the epoch.
            token: of the query; None for a query that was started without a lease.

        Raises:
            QueryError: the epoch was collected.
            FencedError: another query holds the lease.
        """
        self._check()
        if self._token is not None:
            return
        if token is None:
            token = unique_id()
        try:
            self._take(epoch, token)
        except FencedError:
            # It was killed after its first offset was stored, and before it used its token.
            self._take(epoch, STARTING)
            self._take(epoch, token)
        self._token = token
        self._renewal = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewal.start()

    def _take(self, epoch: int, token: str) -> None:
        with self._lock:
            self._lease = ReaderLease.take(
                self._repository, self._name, epoch, ttl=self._ttl, token=token
            )

    def commit(self, epoch: int) -> None:
        """Keep an epoch and all later ones; earlier ones no longer.

        Raises:
            QueryError: the epoch was collected.
            FencedError: another query has taken the lease over.
        """
        self._check()
        assert self._lease is not None, "`hold` comes first"
        with self._lock:
            if epoch > self._lease.epoch:
                self._lease.commit(epoch)

    def _renew(self) -> None:
        """Renew the lease until the end. Spark may be busy with a micro-batch for hours."""
        interval_s = duration_to_micros(self._ttl, "leaseTtl") / 1e6 / _RENEWALS_PER_TTL
        assert self._lease is not None, "it was taken"
        while not self._ended.wait(interval_s):
            try:
                with self._lock:
                    self._lease.renew()
            except StorageError:
                continue  # the next renewal is due before the lease expires
            except StatekitError as error:
                self._error = error
                return

    def _check(self) -> None:
        """Raise the error of the last renewal, if it failed."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the renewal. The lease stays valid until it expires."""
        self._ended.set()
        if self._renewal is not None:
            self._renewal.join()
