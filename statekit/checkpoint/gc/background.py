"""Garbage collection in a background thread of a running job."""

from __future__ import annotations

import logging
import threading

from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.gc.readers import LeaseHeadroom
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import Retention
from statekit.errors import StatekitError

_log = logging.getLogger("statekit.collecting")
_PART = 4


class BackgroundCollection:
    """Collects the garbage of a checkpoint while a job adds to it.

    Epochs are collected in batches of a quarter of the kept ones.

    Parameters:
        repository: the checkpoint.
        retention: which epochs to keep.

    Attributes:
        leases: those that the last collection has read.
    """

    def __init__(self, repository: Repository, retention: Retention) -> None:
        self._repository = repository
        self._retention = retention
        self._every = max(1, retention.epochs // _PART)
        self._next = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self.leases: list[LeaseHeadroom] = []

    def committed(self, epoch: int) -> None:
        """Record the commit of an epoch. Return immediately."""
        if epoch < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = epoch + self._every
        self._thread = threading.Thread(
            target=self._collect, name="statekit garbage collection", daemon=True
        )
        self._thread.start()

    def _collect(self) -> None:
        collector = Collector(self._repository, self._retention, is_stopped=self._stopped.is_set)
        try:
            done = collector.collect(sweep=None)
        except StatekitError as error:
            # Nothing is lost, and the job continues; the next collection tries again.
            _log.warning("garbage of %s was not collected: %s", self._repository.url, error)
            return
        self.leases = collector.leases
        if done is not None and done.given_up:
            _log.info("%s: epochs before %d were collected", self._repository.url, done.first)

    def close(self, *, at_once: bool = False) -> None:
        """Wait until a running collection has ended.

        Parameters:
            at_once: end it after the current epoch. The next collection continues.
        """
        if at_once:
            self._stopped.set()
        if self._thread is not None:
            self._thread.join()
