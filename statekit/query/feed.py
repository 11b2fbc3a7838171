"""Change feed: what each epoch changed in one state.

Most epochs have change files of their own, and the feed reads only those. After a rollback, a
repair, an import, or a change of the state's type or TTL, an epoch has none that lead to it. The
feed then compares the state before with the state after. So whoever applies the feed to a table
always ends with the state of the epoch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.leases import ReaderLease
from statekit.checkpoint.manifest import Cause, EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s, stopwatch_s
from statekit.errors import QueryError
from statekit.functions.process import Process
from statekit.query.change import Change, Kind
from statekit.query.change_sources import ChangeSource, change_source
from statekit.query.closing import Closing
from statekit.query.epochs import EpochReader, next_manifest
from statekit.query.resolved_changes import Resolver
from statekit.query.state_rows import StateRows
from statekit.timestamp import instant
from statekit.watermark import BEGINNING

_TTL = dt.timedelta(minutes=10)
"""How long the lease of a named reader is valid after its last call."""


@dataclass(frozen=True)
class EpochChanges:
    """What an epoch changed in a state. Iterating reads the changes; each time, they are read
    anew.

    Attributes:
        epoch: its number.
        kind: how the changes were found. Before a "snapshot", empty the table.
        cause: what made the epoch: "records" of a run, or the command that changed the checkpoint.
        watermark: of the operator, in event time; None before any record or without event time.
        processing_time: of the epoch.
    """

    epoch: int
    kind: Kind
    cause: Cause
    watermark: dt.datetime | None
    processing_time: dt.datetime
    _source: ChangeSource = field(repr=False)

    def __iter__(self) -> Iterator[Change]:
        """Yield the net changes: each row at most once, and "clear" before the rows of its key.

        A row that has expired may still be in the table, with its time in `expires`: it is deleted
        in a later epoch, when the job removes it.

        Raises:
            QueryError: the epoch was collected meanwhile.
            CorruptCheckpointError: a file is missing or altered.
        """
        return self._source.changes()


def feed(
    checkpoint: str | Path | Repository,
    operator: str,
    state: str,
    after: int | None = None,
    *,
    until: int | None = None,
    follow: bool = False,
    poll: Any = None,
    before: bool = False,
    reader: str | None = None,
    function: Process[Any, Any, Any] | None = None,
    allow_pickle: bool = False,
) -> Feed:
    """Return the changes of a state, epoch by epoch.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        after: the epoch that the consumer has applied; None for a consumer without anything, which
            first gets all rows of the first epoch that is kept.
        until: the last epoch to return; None for no end.
        follow: wait for new epochs, and do not end after the last one.
        poll: how often to ask for a new epoch; a timedelta or text. None for 20 milliseconds on a
            local disk, and a second on an object store.
        before: resolve the changes into rows, each with the value before it: a "delete" for each
            row that is cleared, and for each that expires, in the epoch in which it does. The feed
            then keeps a copy of the operator's rows below `TMPDIR`, and has to be closed.
        reader: a name under which the checkpoint keeps the epochs that the consumer has not
            committed, within the bound of `Retention.readers`. Call `Feed.commit` for each epoch
            that was applied. If the process ends, the epochs are kept for ten more minutes.
        function: the process function, for typed keys and values, converted by its migrate hooks;
            None for what JSON can hold.
        allow_pickle: unpickle values, which can run any code that whoever wrote the checkpoint
            chose.

    Raises:
        FencedError: another process reads under this name.
        QueryError: the epoch `after` was collected, or never committed; or it has no such operator
            or state.
        RestoreError: the checkpoint is a savepoint, or a local path that does not exist.
        StateSchemaError: the function declares a type that would misread stored rows.

    >>> import tempfile
    >>> import statekit as sk
    >>> @sk.process(key="user")
    ... def visits(record: dict, count: sk.ValueState[int]) -> None:
    ...     count.update((count.get() or 0) + 1)
    >>> job = sk.Job("site")
    >>> _ = job.source("pages", dict).process(visits)
    >>> home = tempfile.mkdtemp()
    >>> pages = [{"user": "ada"}, {"user": "bob"}, {"user": "ada"}]
    >>> _ = job.run({"pages": pages}, checkpoint=home, epoch_size=2)
    >>> for epoch in sk.feed(home, "visits", "count"):
    ...     print(epoch.epoch, epoch.kind, sorted((c.op, c.key, c.value) for c in epoch))
    0 snapshot [('upsert', 'ada', 1), ('upsert', 'bob', 1)]
    1 changes [('upsert', 'ada', 2)]
    """
    epochs = EpochReader(checkpoint)
    return Feed(
        epochs,
        operator,
        state,
        after,
        function,
        until=until,
        poll_s=epochs.poll_s(poll) if follow else None,
        before=before,
        reader=reader,
        allow_pickle=allow_pickle,
    )


class Feed(Closing):
    """The changes of one state, epoch by epoch. Created by `statekit.feed`.

    Attributes:
        epoch: the last epoch that was returned, or that the feed started after; None before any.
    """

    def __init__(
        self,
        epochs: EpochReader,
        operator: str,
        state: str,
        after: int | None,
        function: Process[Any, Any, Any] | None,
        *,
        until: int | None,
        poll_s: float | None,
        before: bool,
        reader: str | None,
        allow_pickle: bool,
    ) -> None:
        self._reader = epochs
        self._operator = operator
        self._state = state
        self._function = function
        self._allow_pickle = allow_pickle
        self._until = until
        self._poll_s = poll_s
        self._last: EpochManifest | None = None
        self._lease = None if reader is None else self._taken(reader, after)
        self._renewed_s = stopwatch_s()
        self._closing = contextlib.ExitStack()
        self._resolver: Resolver | None = None
        if (latest := epochs.latest()) is not None:
            self._rows(latest)  # raises if there is no such state
        if after is not None:
            self._last = epochs.manifest(after)
        if before:
            place = self._closing.enter_context(scratch_directory("feed"))
            self._resolver = Resolver(epochs, operator, place)
            self._closing.callback(self._resolver.close)
            if self._last is not None and self._has_state(self._last):
                self._resolver.advance(self._last, self._rows(self._last))
        self.epoch = after

    def _taken(self, reader: str, after: int | None) -> ReaderLease:
        """Take the lease of a named reader."""
        repository = self._reader.repository
        if after is None:
            first = next_manifest(repository, None)
            if first is None:
                raise QueryError(
                    f"{repository.url} has no committed epoch for reader {reader!r}: wait until "
                    "the job has committed one"
                )
            after = first.epoch
        return ReaderLease.take(repository, reader, after, ttl=_TTL)

    def commit(self, epoch: int | None = None) -> None:
        """Report that the consumer has applied the changes of an epoch, and of all before.

        The checkpoint need not keep earlier epochs for this reader any more.

        Parameters:
            epoch: None for the last one that was returned.

        Raises:
            QueryError: the feed has no `reader=`, or the epoch was not returned.
            FencedError: another process has taken the name over.
        """
        applied = self.epoch if epoch is None else epoch
        if self._lease is None or applied is None or self.epoch is None or applied > self.epoch:
            raise QueryError(
                f"epoch {applied} cannot be committed: pass reader=NAME to statekit.feed, and "
                "commit epochs that it has returned"
            )
        self._lease.commit(applied)
        self._renewed_s = stopwatch_s()

    def __iter__(self) -> Iterator[EpochChanges]:
        """Yield the changes of each epoch.

        Raises:
            QueryError: the next epoch was collected, or has no such operator or state.
            CorruptCheckpointError: a file is missing or altered.
        """
        while self._until is None or self.epoch is None or self.epoch < self._until:
            is_due = stopwatch_s() - self._renewed_s > _TTL.total_seconds() / 3
            if self._lease is not None and is_due:
                self._lease.renew()
                self._renewed_s = stopwatch_s()
            after = next_manifest(self._reader.repository, self._last)
            if after is not None:
                # An epoch before the first one that has the state changes nothing in it.
                is_before = not (self._has_state(after) or self._has_state(self._last))
                changes = None if is_before else self._changes(after)
                self._last, self.epoch = after, after.epoch
                if changes is not None:
                    yield changes
            elif self._poll_s is None:
                return
            else:
                sleep_s(self._poll_s)

    def _changes(self, after: EpochManifest) -> EpochChanges:
        rows = self._rows(after)
        source = self._source(after, rows)
        watermark = after.operators[self._operator].watermark_us
        return EpochChanges(
            epoch=after.epoch,
            kind=source.kind,
            cause=after.cause,
            watermark=None if watermark in (None, BEGINNING) else instant(watermark),
            processing_time=instant(after.processing_time_us),
            _source=source,
        )

    def _source(self, after: EpochManifest, rows: StateRows) -> ChangeSource:
        if self._resolver is not None:
            return self._resolver.advance(after, rows)
        before = self._last if self._has_state(self._last) else None
        return change_source(self._reader.repository, before, after, self._rows)

    def _has_state(self, manifest: EpochManifest | None) -> bool:
        return manifest is not None and self._reader.has_state(
            manifest, self._operator, self._state
        )

    def _rows(self, manifest: EpochManifest) -> StateRows:
        return StateRows(
            self._reader.job_file(manifest),
            self._operator,
            self._state,
            self._function,
            allow_pickle=self._allow_pickle,
        )

    def close(self) -> None:
        """Release what the feed keeps on the local disk. Its changes cannot be read any more."""
        self._closing.close()
