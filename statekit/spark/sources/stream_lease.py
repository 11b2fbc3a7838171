"""Stream lease: the reader's lease of a streaming query, renewed while the query runs.

All runs of a query have the same token, which follows from the name of the reader. So a query that
was killed takes its lease over when it starts again.
"""

from __future__ import annotations

from collections.abc import Callable

from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError
from statekit.spark.sources.changes_request import Start

_PINS_MAX = 10


class StreamLease:
    """The lease of a query, renewed while Spark is busy with a micro-batch.

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

    @property
    def held_epoch(self) -> int | None:
        """The epoch that an earlier run of the query keeps; None without a valid lease."""
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
        """Keep the first epoch of a new query, and return its start.

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
        """Keep an epoch and all later ones, unless this process keeps them already.

        Raises:
            QueryError: the epoch was collected.
            FencedError: a reader that is no Spark query holds the lease.
        """
        if self._lease is not None:
            self._lease.check()
            return
        self._lease = ReaderLease.take(
            self._repository, self._name, epoch, ttl=self._ttl, token=self._token
        ).keep()

    def commit(self, epoch: int) -> None:
        """Keep an epoch and all later ones, and release the earlier ones.

        Raises:
            QueryError: the epoch was collected.
            FencedError: another reader, or another query of this name, has taken the lease over.
        """
        assert self._lease is not None, "`hold` comes first"
        self._lease.check()
        if epoch > self._lease.epoch:
            self._lease.commit(epoch)

    def stop(self) -> None:
        """End the renewal. The lease stays valid until it expires."""
        if self._lease is not None:
            self._lease.stop()
