"""Change feed: the changes of one state, epoch by epoch.

For most epochs, the feed reads only the change files of the epoch. After a rollback, a repair, an
import, or a change of the state's type or TTL, no change files lead to the epoch. The feed then
compares the state before with the state after. So a consumer that applies the feed to a table
always ends with the state of the epoch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from statekit.backend.rocksdb_options import RocksOptions
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.leases.reader_lease import (
    LEASE_TTL,
    ReaderLease,
    check_reader_name,
    lease_ttl_us,
)
from statekit.checkpoint.manifest import Cause, EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import check_epoch
from statekit.clock import sleep_s, stopwatch_s
from statekit.closing import Closing
from statekit.errors import FencedError, QueryError, StateTypeError
from statekit.functions.process import Process
from statekit.query.changes.change import Change, Kind
from statekit.query.changes.resolved_changes import Resolver
from statekit.query.changes.state_changes import StateChanges
from statekit.query.rows.epochs import next_manifest
from statekit.timestamp import instant
from statekit.watermark import BEGINNING

_CHECKED_EVERY_S = 1.0
"""Seconds between two checks of a waiting feed that the checkpoint was not replaced."""


@dataclass(frozen=True)
class EpochChanges:
    """The changes of a state in an epoch. Each iteration reads them again from the checkpoint.

    Created by a `Feed`, one for each epoch.

    Attributes:
        epoch: its number.
        kind: origin of the changes. Empty the table before a "snapshot".
        cause: cause of the epoch: "records" of a run, or the command that changed the checkpoint.
        watermark: of the operator, in event time; None before any record or without event time.
        processing_time: of the epoch.
    """

    epoch: int
    kind: Kind
    cause: Cause
    watermark: dt.datetime | None
    processing_time: dt.datetime
    _manifest: EpochManifest = field(repr=False)
    _changes: Callable[[], Iterator[Change]] = field(repr=False)
    _lease: ReaderLease | None = field(repr=False, default=None)

    @property
    def id(self) -> EpochId:
        """The identity of the epoch."""
        return self._manifest.id

    @property
    def position(self) -> str:
        """Position after this epoch: store it with the applied changes, and pass it as `after`.
        Unlike the number of the epoch, it shows whether the checkpoint was replaced since.
        """
        return str(self.id)

    def __iter__(self) -> Iterator[Change]:
        """Yield the net changes: each row at most once, and "clear" before the rows of its key.

        A row that has expired may stay in the table, with its time in `expires`, until a later
        epoch in which the job removes it and the feed deletes it.

        Raises:
            QueryError: the epoch was collected meanwhile.
            FencedError: another process has taken over the reader's name.
            CorruptCheckpointError: a file is missing or altered.
        """
        for change in self._changes():
            if self._lease is not None:
                self._lease.check()
            yield change


def feed(
    checkpoint: str | Path | Repository,
    operator: str,
    state: str,
    after: int | str | None = None,
    *,
    until: int | None = None,
    follow: bool = False,
    poll: Any = None,
    before: bool = False,
    reader: str | None = None,
    lease_ttl: dt.timedelta | str | None = None,
    token: str | None = None,
    function: Process[Any, Any, Any] | None = None,
    allow_pickle: bool = False,
    directory: Path | None = None,
    rocksdb: RocksOptions | None = None,
) -> Feed:
    """Return the changes of a state, epoch by epoch.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        after: the epoch that the consumer has applied, as its `position` or its number; None for a
            new consumer, which first gets all rows of the first epoch that is kept. If the
            checkpoint was replaced since, such as by a backup, the feed refuses a position. It
            cannot detect this from a number, and continues as if the checkpoint were the same.
        until: the last epoch to return; None for no end.
        follow: wait for new epochs, and do not end after the last one.
        poll: the time between two requests for a new epoch; a timedelta or text. None for 20
            milliseconds on a local disk, and a second on an object store.
        before: resolve the changes into rows, each with the value before it: a "delete" for each
            row that is cleared, and for each that expires, in the epoch in which it does. The feed
            then keeps a copy of the operator's rows below `TMPDIR`, and has to be closed.
        reader: a name under which the checkpoint keeps the epochs that the consumer has not
            committed, within the bound of `Retention.readers`. Call `Feed.commit` for each epoch
            that was applied. Each feed has a name of its own. Close the feed: then the next run of
            the reader can start at once.
        lease_ttl: time to keep the epochs after the feed was closed or its process was killed;
            a timedelta or text. None for ten minutes. It is renewed while the feed is open.
        token: a text that all runs of this reader give, and no others: a new run then takes over
            from an earlier one at once, also on another host. None: it waits, up to `lease_ttl`,
            for a run on another host that was killed.
        function: the process function, for typed keys and values, converted by its migrate hooks;
            None for JSON types. Then a key of several fields is a tuple.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.
        directory: of the copy for `before`; None for `TMPDIR`.
        rocksdb: memory limits of that copy.

    Raises:
        StateTypeError: an argument is not valid.
        FencedError: another process, or another open feed, reads under this name.
        QueryError: the epoch `after` was collected, or never committed, or the checkpoint was
            replaced since; or it has no such operator or state.
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
    if until is not None:
        check_epoch("until", until)
    if reader is not None:
        check_reader_name("reader", reader)
    elif not (lease_ttl is None and token is None):
        raise StateTypeError(
            "lease_ttl= and token= are of a named reader. No lease was taken: pass reader=NAME too"
        )
    lease_ttl = LEASE_TTL if lease_ttl is None else lease_ttl
    lease_ttl_us(lease_ttl, "lease_ttl")
    changes = StateChanges(checkpoint, operator, state, function, allow_pickle=allow_pickle)
    epochs, position = changes.epochs, _checked(after)
    poll_s = epochs.poll_s(poll) if follow else None
    if (latest := epochs.latest()) is not None:
        changes.rows(latest)  # raises if the checkpoint does not have the state
    last = None if position is None else epochs.applied(position)
    with contextlib.ExitStack() as opened:
        lease, resolver = None, None
        if reader is not None:
            lease = _taken(epochs.repository, reader, last, lease_ttl, token).keep()
            opened.callback(lease.release)
        if before:
            place = opened.enter_context(scratch_directory("feed", directory))
            resolver = Resolver(epochs, operator, place, rocksdb or RocksOptions())
            opened.callback(resolver.close)
            if last is not None and changes.has_state(last):
                resolver.advance(last, changes.rows(last), "snapshot")
        return Feed(changes, operator, last, until, poll_s, lease, resolver, opened.pop_all())


def _checked(after: object) -> int | EpochId | None:
    """Return the checked start of a feed: an epoch number, the identity of an epoch, or None.

    Raises:
        StateTypeError: it is neither the number of an epoch nor a position.
    """
    if after is None or isinstance(after, EpochId):
        return after
    if not isinstance(after, str):
        check_epoch("after", after)
        assert isinstance(after, int), "it was checked"
        return after
    position = EpochId.of_text(after)
    if position is None:
        raise StateTypeError(
            f"after={after!r:.100}: give the position of the last epoch that was applied "
            "(EpochChanges.position), or its number. Nothing was read"
        )
    return position


def _taken(
    repository: Repository,
    reader: str,
    last: EpochManifest | None,
    ttl: dt.timedelta | str,
    token: str | None,
) -> ReaderLease:
    """Take the lease of a named reader.

    Parameters:
        last: the epoch that it has applied; None for a new reader.

    Raises:
        FencedError: another process, or another open feed, has the name.
    """
    last = last or next_manifest(repository, None)
    if last is None:
        raise QueryError(
            f"{repository.url} has no committed epoch for reader {reader!r}: wait until the job "
            "has committed one"
        )
    stored = lease_of(repository, reader)
    if stored is not None and stored.lease.run in _open_feeds:
        raise FencedError(
            f"reader {reader!r} of {repository.url} is another feed of this process, which is "
            f"open and has committed epoch {stored.lease.epoch}. That feed continues. Close it "
            "first, or choose another name: each feed has a name of its own"
        )
    return ReaderLease.take(repository, reader, last.epoch, ttl=ttl, token=token)


class Feed(Closing):
    """The changes of one state, epoch by epoch. Created by `statekit.feed`.

    Attributes:
        epoch: the last epoch that was returned, or that the feed started after; None before any.
    """

    def __init__(
        self,
        changes: StateChanges,
        operator: str,
        last: EpochManifest | None,
        until: int | None,
        poll_s: float | None,
        lease: ReaderLease | None,
        resolver: Resolver | None,
        closing: contextlib.ExitStack,
    ) -> None:
        self._state, self._operator = changes, operator
        self._repository = changes.epochs.repository
        self._last, self._until, self._poll_s = last, until, poll_s
        self.epoch = None if last is None else last.epoch
        self._lease, self._resolver, self._closing = lease, resolver, closing
        self._is_closed = False
        if lease is not None:
            _open_feeds[lease.run] = self

    @property
    def position(self) -> str | None:
        """Position of the last epoch that was returned, for another feed; None before any."""
        return None if self._last is None else str(self._last.id)

    def commit(self, epoch: int | None = None) -> None:
        """Report that the consumer has applied the changes of an epoch, and of all before.

        The checkpoint need not keep earlier epochs for this reader any more.

        Parameters:
            epoch: None for the last one that was returned.

        Raises:
            QueryError: the feed has no `reader=` or was closed, or the epoch was not returned.
            FencedError: another process has taken the name over.
        """
        self._check_open()
        if epoch is not None:
            check_epoch("epoch", epoch)
        if self._lease is None:
            raise QueryError(
                "the feed has no name under which the checkpoint keeps epochs for it, so it has "
                "nothing to commit: pass reader=NAME to statekit.feed, or leave out commit"
            )
        if self.epoch is None:
            raise QueryError(
                "the feed has returned no epoch yet, so there is none to commit: the checkpoint "
                "keeps all epochs that follow. Commit after the changes of an epoch are applied"
            )
        applied = self.epoch if epoch is None else epoch
        if applied > self.epoch:
            raise QueryError(
                f"epoch {applied} cannot be committed: the feed has returned epochs up to "
                f"{self.epoch}. Commit an epoch after its changes are applied"
            )
        self._lease.commit(applied)

    def __iter__(self) -> Iterator[EpochChanges]:
        """Yield the changes of each epoch.

        Raises:
            QueryError: the next epoch was collected, or has no such operator or state; the
                checkpoint was replaced by another version of it; or the feed was closed.
            FencedError: another process has taken over the reader's name.
            CorruptCheckpointError: a file is missing or altered.
        """
        checked_s = stopwatch_s() - _CHECKED_EVERY_S
        while self._until is None or self.epoch is None or self.epoch < self._until:
            self._check_open()
            now_s = stopwatch_s()
            is_due = self._poll_s is None or now_s - checked_s >= _CHECKED_EVERY_S
            after = next_manifest(self._repository, self._last, thorough=is_due)
            if is_due:
                checked_s = now_s
            if after is not None:
                # An epoch before the first one that has the state changes nothing in it.
                has_state = self._state.has_state
                is_before = not (has_state(after) or has_state(self._last))
                changes = None if is_before else self._changes(after)
                self._last, self.epoch = after, after.epoch
                if changes is not None:
                    yield changes
            elif self._poll_s is None:
                return
            else:
                sleep_s(self._poll_s)

    def _changes(self, after: EpochManifest) -> EpochChanges:
        kind = self._state.kind(self._last, after)
        changes: Callable[[], Iterator[Change]] = partial(self._state.changes, self._last, after)
        if self._resolver is not None:
            resolved = self._resolver.advance(after, self._state.rows(after), kind)
            kind, changes = resolved.kind, resolved.changes
        watermark = after.operators[self._operator].watermark_us
        return EpochChanges(
            epoch=after.epoch,
            kind=kind,
            cause=after.cause,
            watermark=None if watermark in (None, BEGINNING) else instant(watermark),
            processing_time=instant(after.processing_time_us),
            _manifest=after,
            _changes=changes,
            _lease=self._lease,
        )

    def _check_open(self) -> None:
        """Check that the feed can continue.

        Raises:
            QueryError: it was closed.
            FencedError: another process has taken over the reader's name.
        """
        if self._is_closed:
            raise QueryError(
                "the feed was closed: open another one, after the epoch that was applied last"
            )
        if self._lease is not None:
            self._lease.check()

    def close(self) -> None:
        """Remove the feed's files on the local disk, and release the lease of its reader. Its
        changes cannot be read any more.
        """
        self._is_closed = True
        if self._lease is not None:
            _open_feeds.pop(self._lease.run, None)
        self._closing.close()


_open_feeds: weakref.WeakValueDictionary[str, Feed] = weakref.WeakValueDictionary()
"""The feeds of this process that have a lease, by the unique id of its run."""
