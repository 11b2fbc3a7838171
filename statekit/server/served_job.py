"""Served jobs: a replica of each checkpoint, and the epoch that a request is answered from."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import Repository
from statekit.clock import now_us, stopwatch_s
from statekit.errors import QueryError, StatekitError
from statekit.query.epoch_facts import EpochHistory
from statekit.query.replica import Replica
from statekit.query.state_view import epoch_of_cursor
from statekit.query.view import View
from statekit.server.disk import Disk
from statekit.server.problems import Problem, bad_request

_logger = logging.getLogger("statekit.server")

_POLL_S = 0.5
"""How long a thread waits for an epoch before it looks whether the server ends."""


@dataclass(frozen=True)
class Wanted:
    """The epoch that a request asks for; by default the last one.

    Parameters:
        epoch: this one.
        as_of: the last one whose processing time is not after this.
        min_epoch: this one or a later one.
        min_watermark: one in which the operator's watermark is at least this.
        wait_s: how long to wait for `min_epoch` and `min_watermark`.
    """

    epoch: int | None = None
    as_of: dt.datetime | None = None
    min_epoch: int | None = None
    min_watermark: dt.datetime | None = None
    wait_s: float = 0.0


LAST = Wanted()

_FACTS_MAX = 10_000

_REMEMBERED = 20
"""How many epochs are read if the replica has skipped some."""


class _EpochFacts(NamedTuple):
    """What every answer of an epoch says of it."""

    watermark: str | None
    processing_time: str


class ServedJob:
    """A checkpoint whose state is served.

    Parameters:
        alias: its name in addresses.
        checkpoint: a directory or URL.
        directory: where the replica keeps its copies; None for a temporary one.
        epochs: how many of the last epochs can be read.
        rocksdb: limits of memory.
        disk: of the server.

    Attributes:
        rocksdb: limits of memory.
        scratch: where copies of watched states are kept.
    """

    def __init__(
        self,
        alias: str,
        checkpoint: str,
        directory: Path | None = None,
        *,
        epochs: int = 16,
        rocksdb: RocksOptions | None = None,
        disk: Disk,
    ) -> None:
        self.alias = alias
        self.checkpoint = checkpoint
        self.rocksdb, self.scratch = rocksdb, disk.directory
        self.replica = Replica(
            checkpoint, directory=directory, views=epochs, rocksdb=rocksdb, check_space=disk.check
        )
        disk.add(self.replica.directory)
        self.history = EpochHistory(Repository(checkpoint, create=False))
        """What its epochs did."""
        self._facts: dict[tuple[int, int, str | None], _EpochFacts] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._next: asyncio.Future[None] | None = None
        self._waits_end = False

    @property
    def identity(self) -> str:
        """What no other checkpoint has."""
        return self.replica.checkpoint_id

    # ---------------------------------------------------------------------------- new epochs

    def start(self) -> None:
        """Announce new epochs to the running loop from now on."""
        loop = asyncio.get_running_loop()
        self._next = loop.create_future()

        def announce() -> None:
            assert self._next is not None
            if not self._next.done():
                self._next.set_result(None)
            self._next = loop.create_future()

        def watch() -> None:
            epoch = self.replica.epoch
            while not self._ends.is_set():
                found = self.replica.wait_for_other(epoch, _POLL_S)
                if found != epoch and not self._ends.is_set():
                    epoch = found
                    loop.call_soon_threadsafe(announce)
                    self._remember_epochs()

        self._thread = threading.Thread(target=watch, name=f"epochs of {self.alias}", daemon=True)
        self._thread.start()

    def _remember_epochs(self) -> None:
        """Read what the last epochs did, before the checkpoint removes their manifests."""
        try:
            self.history.until(self.replica.at().manifest, _REMEMBERED)
        except StatekitError as error:
            _logger.warning("the last epochs of %s cannot be read: %s", self.alias, error)

    async def other_than(self, epoch: int | None, wait_s: float) -> View:
        """Return a view of the last epoch, as soon as that is another one, or of the same one after
        a while.

        Raises:
            Problem: nothing can be read yet.
        """
        until_s = stopwatch_s() + wait_s
        while True:
            view = self.last()
            if view.epoch != epoch or not await self.next_epoch(until_s - stopwatch_s()):
                return view

    async def next_epoch(self, timeout_s: float) -> bool:
        """Wait for a new epoch, and return whether there is one."""
        assert self._next is not None, "the job was started"
        if self._waits_end:
            return False
        try:
            await asyncio.wait_for(asyncio.shield(self._next), timeout_s)
        except TimeoutError:
            return False
        return True

    def end_waits(self) -> None:
        """Answer all requests that wait for an epoch, and let none wait any more."""
        self._waits_end = True
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def close(self) -> None:
        """Stop following."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self.replica.close()

    # --------------------------------------------------------------------- the epoch of an answer

    async def view(self, wanted: Wanted, operator: str | None = None) -> View:
        """Return a view of the epoch that a request asks for.

        Parameters:
            operator: whose watermark counts; None for all operators.

        Raises:
            Problem: there is no such epoch, or not yet.
        """
        if wanted.epoch is not None or wanted.as_of is not None:
            return self._view_of_past(wanted)
        until_s = stopwatch_s() + wanted.wait_s
        while True:
            view = self.last()
            if _satisfies(view, wanted, operator):
                return view
            if not await self.next_epoch(until_s - stopwatch_s()):
                raise self._behind(view, wanted)

    def last(self) -> View:
        """Return a view of the last epoch.

        Raises:
            Problem: nothing can be read yet.
        """
        if self.replica.epoch is None:
            raise Problem(
                503,
                "not_ready",
                f"job {self.alias!r} has no epoch that can be read yet: try again",
                {"Retry-After": "1"},
            )
        return self.replica.at()

    def _view_of_past(self, wanted: Wanted) -> View:
        self.last()
        for epoch in reversed(self.replica.status().views):
            if wanted.epoch is not None and epoch != wanted.epoch:
                continue
            try:
                view = self.replica.at(epoch)
            except QueryError:  # given up in this moment
                continue
            if wanted.as_of is None or view.processing_time <= wanted.as_of:
                return view
        views = self.replica.status().views
        if wanted.epoch is not None and wanted.epoch > views[-1]:
            raise Problem(
                409,
                "behind",
                f"epoch {wanted.epoch} cannot be read yet: give min_epoch= to wait for it",
                epoch=views[-1],
            )
        raise self._gone(f"epoch {wanted.epoch}" if wanted.as_of is None else f"{wanted.as_of}")

    def view_of_cursor(self, cursor: str) -> View:
        """Return a view of the epoch that a page was of.

        Raises:
            Problem: it can no longer be read, or it is no cursor.
        """
        try:
            epoch = epoch_of_cursor(cursor)
        except QueryError as error:
            raise bad_request(str(error)) from error
        return self._view_of_past(Wanted(epoch=epoch))

    def summary(self) -> dict[str, Any]:
        """Return what the job is doing, as JSON."""
        status = self.replica.status()
        return {
            "job": self.alias,
            "epoch": status.epoch,
            "latest_epoch": status.latest,
            "is_rebuilding": status.is_rebuilding,
            "has_error": status.error is not None,
        }

    def facts(self, view: View, operator: str | None = None) -> dict[str, Any]:
        """Return what every answer says: which epoch it is of, and how old that is.

        `lag_ms` is the time since the epoch began, by the clock of this machine. It grows while the
        job does not commit.
        """
        epoch, began_us = view.epoch, view.processing_time_us
        # With the time: another version of the checkpoint has the same numbers.
        own = self._facts.get((epoch, began_us, operator))
        if own is None:
            watermark = None if operator is None else view.watermark(operator)
            own = _EpochFacts(
                None if watermark is None else watermark.isoformat(),
                view.processing_time.isoformat(),
            )
            if len(self._facts) >= _FACTS_MAX:
                self._facts.clear()
            self._facts[epoch, began_us, operator] = own
        oldest = self.replica.oldest_epoch
        return {
            "epoch": epoch,
            "watermark": own.watermark,
            "processing_time": own.processing_time,
            "lag_ms": max(0, (now_us() - began_us) // 1000),
            "oldest_epoch": epoch if oldest is None else min(oldest, epoch),
        }

    def _gone(self, what: str) -> Problem:
        """Return the problem of an epoch that is no longer kept."""
        oldest = min(self.replica.status().views, default=None)
        return Problem(
            410,
            "gone",
            f"{what} can no longer be read: the oldest epoch that can is {oldest}. Begin again "
            "with the last one, or read older epochs from the checkpoint",
            oldest_epoch=oldest,
        )

    def _behind(self, view: View, wanted: Wanted) -> Problem:
        asked = (
            f"epoch {wanted.min_epoch}"
            if wanted.min_epoch is not None
            else f"watermark {wanted.min_watermark}"
        )
        return Problem(
            409,
            "behind",
            f"{asked} was not reached in {wanted.wait_s:g} s: wait longer with wait=, or read "
            "what there is",
            {"Retry-After": "1"},
            **self.facts(view),
        )


def _satisfies(view: View, wanted: Wanted, operator: str | None) -> bool:
    if wanted.min_epoch is not None and view.epoch < wanted.min_epoch:
        return False
    if wanted.min_watermark is None:
        return True
    names = view.operators if operator is None else (operator,)
    reached = [view.watermark(name) for name in names]
    timed = [mark for mark in reached if mark is not None]
    return bool(timed) and min(timed) >= wanted.min_watermark
