"""Served jobs: the replica of each checkpoint, and the epoch of each answer."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from starlette.concurrency import run_in_threadpool
from typing_extensions import TypedDict

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.last_failure import LastFailure, last_failure
from statekit.checkpoint.repository import Repository
from statekit.clock import now_us, stopwatch_s
from statekit.errors import QueryError, StatekitError
from statekit.mirrors.registered import RegisteredMirror, registered_mirrors
from statekit.query.replica.page_cursor import PageCursor
from statekit.query.replica.replica import Replica
from statekit.query.replica.view import View
from statekit.query.rows.epochs import EpochHistory
from statekit.server.answers.problems import Problem, bad_request
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.wanted import Wanted

_logger = logging.getLogger("statekit.server")

_POLL_S = 0.5
"""Seconds that a thread waits for an epoch before it checks whether the server ends."""


_NOTES_EVERY_S = 10.0
"""Seconds between two reads of the mirrors of a job and its last failure."""

_FACTS_MAX = 10_000

_REMEMBERED = 20
"""Number of epochs whose facts are read if the replica has skipped some epochs."""


Count = Annotated[int, Meta(ge=0)]
InstantText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""The text of a time, as ISO 8601."""


class Facts(TypedDict):
    """The epoch of an answer."""

    epoch: Annotated[Count, Meta(description="The epoch that the answer is of.")]
    manifest: Annotated[
        str,
        Meta(
            pattern="^[0-9a-f]{32}$",
            description="The checksum of its manifest, which identifies it: after a checkpoint was "
            "replaced, such as by a backup, another epoch may have the same number.",
        ),
    ]
    watermark: Annotated[InstantText | None, Meta(description="Of the operator, after that epoch.")]
    processing_time: Annotated[InstantText, Meta(description="The start of the epoch.")]
    lag_ms: Annotated[Count, Meta(description="The time since then, by the server's clock.")]
    oldest_epoch: Annotated[Count, Meta(description="The oldest epoch that can be read.")]


class JobSummary(TypedDict):
    """The status of a job."""

    job: str
    epoch: Count | None
    latest_epoch: Count | None
    is_rebuilding: bool
    has_error: bool


Wait = Callable[[asyncio.Future[Any], float], Awaitable[bool]]
"""Waits for an event up to a number of seconds, and returns whether it happened."""


class ServedJob:
    """A job whose checkpoint is served.

    Parameters:
        alias: its name in addresses.
        checkpoint: a directory or URL.
        directory: of the replica's copies; None for a temporary one.
        epochs: number of the last epochs that can be read.
        rocksdb: memory limits.
        disk: of the server.

    Attributes:
        rocksdb: memory limits.
        scratch: the directory for copies of watched states.
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
        checkpoint = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
        self.checkpoint = checkpoint
        self.rocksdb, self.scratch = rocksdb, disk.directory
        self.replica = Replica(
            checkpoint, directory=directory, views=epochs, rocksdb=rocksdb, check_space=disk.check
        )
        disk.add(self.replica.directory)
        self._repository = Repository(checkpoint, create=False)
        self.history = EpochHistory(self._repository)
        """Facts of its epochs."""
        self.mirrors: Sequence[RegisteredMirror] = ()
        """Its mirrors, as they were some seconds ago."""
        self.last_failure: LastFailure | None = None
        """Its last failure, as it was known some seconds ago."""
        self._facts: dict[tuple[EpochId, str | None], dict[str, Any]] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._next: asyncio.Future[None] | None = None
        self._waits_end = False

    @property
    def identity(self) -> str:
        """Unique id of the checkpoint."""
        return self.replica.checkpoint_id

    # ---------------------------------------------------------------------------- new epochs

    def start(self) -> None:
        """Start a thread that announces new epochs to the running event loop."""
        loop = asyncio.get_running_loop()
        self._next = loop.create_future()

        def announce() -> None:
            assert self._next is not None
            if not self._next.done():
                self._next.set_result(None)
            self._next = loop.create_future()

        def watch() -> None:
            last = self.replica.epoch_id
            read_s = -_NOTES_EVERY_S
            while not self._ends.is_set():
                if stopwatch_s() - read_s >= _NOTES_EVERY_S:
                    self._read_notes()
                    read_s = stopwatch_s()
                found = self.replica.wait_for_other(last, _POLL_S)
                if found != last and not self._ends.is_set():
                    last = found
                    loop.call_soon_threadsafe(announce)
                    self._remember_epochs()

        self._thread = threading.Thread(target=watch, name=f"epochs of {self.alias}", daemon=True)
        self._thread.start()

    def _read_notes(self) -> None:
        """Read the mirrors and the last failure."""
        try:
            self.mirrors = registered_mirrors(self._repository)
            self.last_failure = last_failure(self._repository)
        except StatekitError as error:
            _logger.warning(
                "the mirrors and the last failure of %s cannot be read: %s", self.alias, error
            )

    def _remember_epochs(self) -> None:
        """Read the facts of the last epochs, before the checkpoint removes their manifests."""
        try:
            self.history.until(self.replica.at().manifest, _REMEMBERED)
        except StatekitError as error:
            _logger.warning("the last epochs of %s cannot be read: %s", self.alias, error)

    async def other_than(self, known: Wanted, wait_s: float, wait: Wait) -> View:
        """Wait until the last epoch is another one than `known`, and return a view of it. After
        `wait_s` seconds, return a view of the known one.

        Parameters:
            known: the epoch that the client has.
            wait: waits for the request.

        Raises:
            Problem: no epoch can be read yet, too many requests wait, or the client has left.
        """
        until_s = stopwatch_s() + wait_s
        while True:
            view = self.last()
            if not known.is_of(view) or not await self.next_epoch(until_s - stopwatch_s(), wait):
                return view

    async def next_epoch(self, timeout_s: float, wait: Wait) -> bool:
        """Wait for a new epoch, and return whether there was one in time."""
        assert self._next is not None, "the job was started"
        if self._waits_end or timeout_s <= 0:
            return False
        return await wait(self._next, timeout_s)

    def end_waits(self) -> None:
        """End the waits of all requests, and let no request wait any more."""
        self._waits_end = True
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def close(self) -> None:
        """Stop the thread, and close the replica."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self.replica.close()

    # --------------------------------------------------------------------- the epoch of an answer

    async def view(
        self, wanted: Wanted, operator: str | None = None, wait: Wait | None = None
    ) -> View:
        """Return a view of the epoch that a request asks for.

        Parameters:
            wait: waits for the request; None for a request that does not wait.
            operator: the operator whose watermark counts; None for all operators.

        Raises:
            Problem: there is no such epoch, or not yet; too many requests wait; or the client left.
        """
        if wanted.is_last:
            return self.last()
        if wanted.epoch is not None or wanted.as_of is not None:
            return await self._view_of_past(wanted)
        until_s = stopwatch_s() + wanted.wait
        while True:
            view = self.last()
            if wanted.is_reached(view, operator):
                return view
            left_s = until_s - stopwatch_s()
            if wait is None or not await self.next_epoch(left_s, wait):
                raise self._behind(view, wanted)

    def last(self) -> View:
        """Return a view of the last epoch.

        Raises:
            Problem: no epoch can be read yet.
        """
        if self.replica.epoch is None:
            raise Problem(
                503,
                "not_ready",
                f"job {self.alias!r} has no epoch that can be read yet: try again",
                {"Retry-After": "1"},
            )
        return self.replica.at()

    def views(self) -> list[View]:
        """Return views of all epochs that can be read, in order. All are of the same version of the
        checkpoint.

        Raises:
            Problem: no epoch can be read yet.
        """
        self.last()
        return self.replica.all_views()

    def view_of(self, epoch_id: EpochId) -> View | None:
        """Return a view of the epoch with an identity; None if it cannot be read."""
        return next((view for view in self.replica.all_views() if view.id == epoch_id), None)

    async def _view_of_past(self, wanted: Wanted) -> View:
        views = self.views()
        for view in reversed(views):
            is_time = wanted.as_of is None or view.processing_time <= wanted.as_of
            if is_time and wanted.is_of(view):
                return view
        last, epoch_id = views[-1].epoch, wanted.epoch_id
        is_later = wanted.epoch is not None and wanted.epoch > last
        if epoch_id is not None:
            is_other = any(view.epoch == epoch_id.epoch for view in views)
            # Of several servers, one may be ahead of the others.
            if is_other or (is_later and not await run_in_threadpool(self._has, epoch_id)):
                raise self.replaced(wanted.epoch)
        if is_later:
            raise Problem(
                409,
                "behind",
                f"epoch {wanted.epoch} cannot be read yet: give min_epoch= to wait for it",
                epoch=last,
            )
        raise self._gone(f"epoch {wanted.epoch}" if wanted.as_of is None else f"{wanted.as_of}")

    async def view_of_cursor(self, cursor: str) -> View:
        """Return a view of the epoch of a page.

        Raises:
            Problem: the epoch can no longer be read, or the text is not a cursor.
        """
        try:
            epoch_id = PageCursor.of_text(cursor).epoch_id
        except QueryError as error:
            raise bad_request(str(error)) from error
        return await self._view_of_past(Wanted.exactly(epoch_id))

    @property
    def readable_epochs(self) -> list[int]:
        """The epochs that can be read and were not rolled back, in order."""
        return [view.epoch for view in self.history_views()]

    def history_views(self) -> list[View]:
        """Return views of the `readable_epochs`.

        Raises:
            Problem: no epoch can be read yet.
        """
        views = self.views()
        last = views[-1].manifest
        return [view for view in views if not last.has_abandoned(view.epoch)]

    @asynccontextmanager
    async def reads_checkpoint(self, view: View) -> AsyncIterator[None]:
        """Convert errors of reads from the checkpoint, which may keep an epoch for less time than
        the server does.

        Raises:
            Problem: a read failed because the checkpoint no longer has the epoch.
        """
        try:
            yield
        except StatekitError as error:
            kept = await run_in_threadpool(self._repository.epochs)
            if view.epoch in kept and not await run_in_threadpool(self._has, view.id):
                raise self.replaced(view.epoch) from error
            if not kept or view.epoch >= kept[0]:
                raise
            raise Problem(
                410,
                "gone",
                f"epoch {view.epoch} can only be read by key: the checkpoint keeps the files of "
                f"the epochs from {kept[0]} on. Ask for one of these",
                oldest_epoch=kept[0],
            ) from error

    def _has(self, epoch_id: EpochId) -> bool:
        if not self._repository.is_committed(epoch_id.epoch):
            return False
        return self._repository.manifest(epoch_id.epoch).id == epoch_id

    def summary(self) -> JobSummary:
        """Return the status of the job."""
        status = self.replica.status()
        return {
            "job": self.alias,
            "epoch": status.epoch,
            "latest_epoch": status.latest,
            "is_rebuilding": status.is_rebuilding,
            "has_error": status.error is not None,
        }

    def facts(self, view: View, operator: str | None = None) -> Facts:
        """Return the facts in every answer of an epoch: its identity, its times and its age.

        `lag_ms` is the time since the epoch began, by the clock of this machine. It grows while the
        job does not commit.
        """
        own = self._facts.get((view.id, operator))
        if own is None:
            watermark = None if operator is None else view.watermark(operator)
            own = {
                "epoch": view.epoch,
                "manifest": view.id.manifest,
                "watermark": None if watermark is None else watermark.isoformat(),
                "processing_time": view.processing_time.isoformat(),
            }
            if len(self._facts) >= _FACTS_MAX:
                self._facts.clear()
            self._facts[view.id, operator] = own
        epoch, oldest = view.epoch, self.replica.oldest_epoch
        return {
            **own,  # type: ignore[typeddict-item]
            "lag_ms": max(0, (now_us() - view.processing_time_us) // 1000),
            "oldest_epoch": epoch if oldest is None else min(oldest, epoch),
        }

    def replaced(self, epoch: int | None) -> Problem:
        """Return the problem for an epoch whose checkpoint was replaced."""
        return Problem(
            410,
            "gone",
            f"this epoch {epoch} can no longer be read: the checkpoint was replaced since, such as "
            f"by a backup. Begin again with the last one",
            oldest_epoch=self.replica.oldest_epoch,
        )

    def _gone(self, what: str) -> Problem:
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
            f"{asked} was not reached in {wanted.wait:g} s: wait longer with wait=, or read "
            "what there is",
            {"Retry-After": "1"},
            **self.facts(view),
        )
