"""Stream lease: the reader's lease of a streaming query, renewed while the query runs.

All runs of a query have the same token, which follows from the name of the reader. So a query that
was killed takes its lease over when it starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from statekit.checkpoint.lease_files import lease_of
from statekit.checkpoint.leases import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError, StatekitError, StorageError
from statekit.spark.sources.changes_request import Start
from statekit.timestamp import duration_to_micros

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
        self._token = f"spark-query-{name}"
        self._lease: ReaderLease | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: StatekitError | None = None
        self._renewal: threading.Thread | None = None

    @property
    def held_epoch(self) -> int | None:
        """The epoch that an earlier run of the query keeps; None if there is no valid lease."""
        stored = lease_of(self._repository, self._name)
        if (
            stored is None
            or stored.lease.token != self._token
            or not stored.is_valid(self._repository.store_time())
            or stored.lease.epoch < self._repository.first_kept()
        ):
            return None
        return stored.lease.epoch

    def pin(self, begin: Callable[[], Start]) -> Start:
        """Keep the epoch that a new query begins with, and return where it begins.

        Parameters:
            begin: returns where to begin. It is called again if that epoch was just collected.

        Raises:
            QueryError: it was collected.
            FencedError: a reader that is no Spark query holds the lease.
        """
        for tries_left in reversed(range(_PINS_MAX)):
            start = begin()
            try:
                self.hold(start.epoch)
                break
            except QueryError:
                if not tries_left:
                    raise
        return start

    def hold(self, epoch: int) -> None:
        """Keep an epoch and all later ones, unless this process does so already.

        Raises:
            QueryError: the epoch was collected.
            FencedError: a reader that is no Spark query holds the lease.
        """
        self._check()
        if self._lease is not None:
            return
        lease = ReaderLease.take(
            self._repository, self._name, epoch, ttl=self._ttl, token=self._token
        )
        self._lease = lease
        self._renewal = threading.Thread(
            target=self._renew, args=(lease,), name="lease", daemon=True
        )
        self._renewal.start()

    def commit(self, epoch: int) -> None:
        """Keep an epoch and all later ones; earlier ones no longer.

        Raises:
            QueryError: the epoch was collected, or another query of this name is further.
            FencedError: another reader has taken the lease over.
        """
        self._check()
        assert self._lease is not None, "`hold` comes first"
        with self._lock:
            if epoch > self._lease.epoch:
                self._lease.commit(epoch)

    def _renew(self, lease: ReaderLease) -> None:
        """Renew the lease until the end. Spark may be busy with a micro-batch for hours."""
        interval_s = duration_to_micros(self._ttl, "leaseTtl") / 1e6 / _RENEWALS_PER_TTL
        while not self._ended.wait(interval_s):
            try:
                with self._lock:
                    lease.renew()
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
