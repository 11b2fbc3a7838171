"""The lease of a reader: a named reader protects epochs from collection while it follows them.

A lease is the file `readers/<name>.json`. It has the epoch that its reader has consumed up to, and
keeps this epoch and all later ones, within the bound of `Retention.readers`. The reader moves the
lease forward. If its process dies, the lease expires.

**Expiry** compares times of the store only: the time of the lease's file plus its TTL, against the
time of the last commit or a later one. A collector waits `SKEW` longer than a reader, because the
clocks of a store's servers differ a little, and some count whole seconds. Meanwhile the next run of
the reader can take the lease.

**Runs** of a reader follow each other. A run that ends releases its lease: the lease still keeps
its epochs until it expires, and the next run takes it at once. So does a run with the token of the
lease, and any run if the holder is a process of this machine that does not exist any more.

**Races.** A collector first writes a note, which closes the epochs that it is about to collect,
then lists the leases, then writes the mark that the epochs are collected. A reader first writes its
lease, and then looks for notes and marks. So at least one of them sees the other: either the
collector keeps the epochs, or the reader gets an error. A reader that moves a valid lease forward,
its own or that of the run before, need not look for notes: every collector sees the lease, before
or after the move. If the run before was killed between the halves of its first write, a collector
may have missed its lease: then the epochs may be collected, and reading them is an error.

A reader that sleeps through its TTL between the two halves of a write can overwrite the lease of
its successor. Then one of the two gets an error at its next write. Until then the epochs of the
successor may be collected: reading them is an error, never a wrong value.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import weakref
from collections.abc import Iterator
from typing import Self

from statekit.checkpoint import paths
from statekit.checkpoint.leases.lease_files import Holder, Lease, StoredLease, lease_of
from statekit.checkpoint.repository import EpochFiles, Repository
from statekit.checkpoint.retention import check_epoch
from statekit.checkpoint.sealed_json import COUNT_MAX
from statekit.clock import now_us, unique_id
from statekit.errors import FencedError, QueryError, StatekitError, StateTypeError
from statekit.names import name_fault, text_fault
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

_RENEWALS_PER_TTL = 3

LEASE_TTL = "10 minutes"
"""Default lifetime of the lease of a named reader."""

# -------------------------------------------------------------------------------- collected epochs


def resync_error(
    repository: Repository, epoch: int, *, reader: str | None = None
) -> QueryError | None:
    """Return the error that a reader's epoch was collected; None if the epoch is kept.

    The reader must not try again with this epoch: what was collected does not come back.

    Parameters:
        repository: the checkpoint.
        epoch: the epoch that the reader has consumed up to.
        reader: its name, for the message.

    >>> resync_error(Repository.in_memory(), 12) is None
    True
    """
    files = repository.epoch_files()
    if epoch >= files.first:
        return None
    return _resync_error(repository, files, files.first, epoch, reader)


def _resync_error(
    repository: Repository, files: EpochFiles, first: int, epoch: int, reader: str | None
) -> QueryError:
    """Return the error that the epochs before `first` were collected, or are about to be."""
    last = max(files.committed, default=first)
    who = "this reader" if reader is None else f"reader {reader!r}"
    return QueryError(
        f"{who} cannot continue after epoch {epoch} of {repository.url}, which was collected: the "
        f"epochs {first} to {last} are kept. The job is not affected. To resynchronise, read the "
        f"state at a kept epoch, such as {last}, then take the changes after that epoch. To keep "
        "epochs longer for readers, start the job with retention=Retention(readers=…)"
    )


# ------------------------------------------------------------------------------ the reader's own


class ReaderLease:
    """A lease of a named reader. It keeps an epoch and all later ones. Created by `take`.

    As a context manager it is released at the end. After `keep`, a thread renews it while the
    reader is busy.

    Attributes:
        name: the reader.
        epoch: the epoch that it has consumed up to.
        token: the token to give to `take` in order to continue with this lease.
        run: the unique id of this run of the reader.

    >>> from statekit.testing import Harness
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> None:
    ...     seen.update((seen.get() or 0) + 1)
    >>> repository = Repository.in_memory()
    >>> harness = Harness(count, checkpoint=repository)
    >>> harness.send({"word": "a"}), harness.send({"word": "b"})
    ([], [])
    >>> with ReaderLease.take(repository, "search-index", 0, ttl="5 minutes") as lease:
    ...     lease.commit(1)
    >>> lease.epoch
    1
    """

    def __init__(self, repository: Repository, lease: Lease, written: dt.datetime) -> None:
        self._repository = repository
        self._lease = lease
        self._written = written
        self._lock = threading.Lock()
        self._renewal: _Renewal | None = None

    @property
    def name(self) -> str:
        """The name of the reader."""
        return self._lease.name

    @property
    def epoch(self) -> int:
        """The epoch up to which the reader has consumed."""
        return self._lease.epoch

    @property
    def token(self) -> str:
        """The token with which `take` continues this lease."""
        return self._lease.token

    @property
    def run(self) -> str:
        """The unique id of this run of the reader."""
        return self._lease.run

    @classmethod
    def take(
        cls,
        repository: Repository,
        name: str,
        epoch: int,
        *,
        ttl: dt.timedelta | str = "10 minutes",
        token: str | None = None,
    ) -> Self:
        """Take the lease of a reader.

        A lease is taken over at once if it was released or has expired, if its process does not
        exist any more on this machine, or if it is a lease of this process. Then an earlier holder
        gets an error at its next `commit` or `renew`.

        Parameters:
            repository: the checkpoint.
            name: of the reader: letters, digits, `_`, `.` and `-`.
            epoch: the epoch that the reader has consumed up to.
            ttl: how long the lease is valid after each `commit` or `renew`: a timedelta or a text
                such as "10 minutes". Renew it after a third of that.
            token: a text that all runs of this reader give, and no others. A run with the token of
                the lease takes it over at once, also from a run that still exists. None: a new one.

        Raises:
            StateTypeError: a name, TTL or token is not valid.
            QueryError: the epoch was collected, or is about to be, or does not exist.
            FencedError: another process holds the lease.
            StorageError: the store failed or may not be written.
        """
        lease = _new_lease(name, epoch, ttl, token)
        _check_committed(repository, lease)
        # A killed collector may have left the epoch's files. An earlier lease of the reader stays.
        if (collected := resync_error(repository, epoch, reader=name)) is not None:
            raise collected
        before = _free_lease(repository, lease)
        if before is not None and before.lease.epoch > epoch:
            before = None  # it does not keep the epoch
        return cls(repository, lease, _write(repository, lease, before))

    def commit(self, epoch: int) -> None:
        """Move the lease forward, and renew it. Earlier epochs may then be collected.

        Parameters:
            epoch: the epoch that the reader has consumed up to, at least the present one.

        Raises:
            QueryError: the epoch is an earlier one, does not exist or was collected.
            FencedError: another process has taken the lease over.
        """
        self.check()
        check_epoch("epoch", epoch)
        if epoch < self.epoch:
            raise QueryError(
                f"reader {self.name!r} has consumed up to epoch {self.epoch} and cannot commit "
                f"epoch {epoch}, which is before that. Its lease is unchanged. To read from there "
                "again, take the lease anew"
            )
        self._move(epoch)

    def _move(self, epoch: int, *, released: bool = False) -> None:
        """Write the lease again with another epoch."""
        with self._lock:
            is_stored = self._check_own()
            lease = self._lease.model_copy(
                update={
                    "epoch": epoch,
                    "expires_at_us": now_us() + self._lease.ttl_us,
                    "released": released,
                }
            )
            _check_committed(self._repository, lease)
            before = StoredLease(self._lease, self._written) if is_stored else None
            self._written = _write(self._repository, lease, before)
            self._lease = lease

    def renew(self) -> None:
        """Keep the same epochs for another TTL.

        Raises:
            QueryError: the epoch was collected: the lease had expired, or was beyond the bound of
                the job's retention.
            FencedError: another process has taken the lease over.
        """
        self._move(self.epoch)

    def keep(self) -> Self:
        """Renew the lease in the background, until it is stopped, released or garbage collected.
        Return it.
        """
        self._renewal = _Renewal(self, self._lease.ttl_us / 1e6 / _RENEWALS_PER_TTL)
        return self

    def check(self) -> None:
        """Raise the error of the last renewal in the background, if it failed.

        Raises:
            FencedError: another run of the reader has taken the lease over.
        """
        if self._renewal is not None and self._renewal.error is not None:
            raise self._renewal.error

    def stop(self) -> None:
        """End the renewal in the background. The lease stays valid until it expires."""
        if self._renewal is not None:
            self._renewal.stop()

    def release(self) -> None:
        """End this run of the reader. The next run can take the lease immediately. Until then the
        lease keeps its epochs for another TTL.

        Nothing happens if another process has taken the lease over, its epochs were collected, or
        the store fails: then the next run may have to wait until the lease expires.
        """
        self.stop()
        with contextlib.suppress(StatekitError):
            self._move(self.epoch, released=True)

    def delete(self) -> None:
        """Delete the lease. It keeps nothing any more. Call this when the reader has ended for
        good.

        A lease that another process has taken over is left alone.
        """
        with contextlib.suppress(FencedError):
            self._check_own()
            self._repository.discard(paths.lease_path(self.name))

    def _check_own(self) -> bool:
        """Return whether this reader's lease is stored; False if it is missing or damaged.

        Raises:
            FencedError: another run of the reader has taken it over.
        """
        stored = lease_of(self._repository, self.name)
        if stored is not None and stored.lease.run != self.run:
            raise FencedError(
                f"the lease of reader {self.name!r} of {self._repository.url} was taken over by "
                f"{stored.lease.holder}, which is at epoch {stored.lease.epoch}. The state and "
                "that reader are not affected. Stop this reader, or give it a name of its own"
            )
        return stored is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class _Renewal:
    """The thread that renews a lease. It does not keep the lease alive.

    Attributes:
        error: why the lease can no longer be renewed.
    """

    def __init__(self, lease: ReaderLease, interval_s: float) -> None:
        self.error: StatekitError | None = None
        self._lease = weakref.ref(lease)
        self._interval_s = interval_s
        self._ended = threading.Event()
        weakref.finalize(lease, self._ended.set)
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            lease = self._lease()
            try:
                if lease is not None:
                    lease.renew()
            except (OSError, QueryError):
                # The next renewal is due before the lease expires; or its epoch was collected, and
                # the reader may be about to commit a later one.
                continue
            except StatekitError as error:
                self.error = error
                return
            finally:
                del lease

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()


def check_reader_name(what: str, reader: object) -> None:
    """Check that the name of a reader is valid.

    Parameters:
        what: names the option in errors.

    Raises:
        StateTypeError: it is not.
    """
    fault = name_fault(reader) if isinstance(reader, str) else "give a text"
    if fault is not None:
        raise StateTypeError(f"{what}={reader!r:.200}: {fault}. No lease was taken")


def lease_ttl_us(ttl: dt.timedelta | str, what: str) -> int:
    """Return the TTL of a lease in microseconds.

    Parameters:
        what: names the option in errors.

    Raises:
        StateTypeError: it is no duration, zero, or longer than 285 years.
    """
    ttl_us = duration_to_micros(ttl, what, most=COUNT_MAX)
    if ttl_us == 0:
        raise StateTypeError(
            f'{what}={shown(ttl)}: give more than nothing, such as "10 minutes". No lease was taken'
        )
    return ttl_us


def _new_lease(name: str, epoch: int, ttl: dt.timedelta | str, token: str | None) -> Lease:
    """Check the arguments of `take`, and return a lease of this process."""
    check_epoch("epoch", epoch)
    for what, given, fault in _faults(name, token):
        if fault is not None:
            raise StateTypeError(f"{what}={given!r:.200}: {fault}. No lease was taken")
    ttl_us = lease_ttl_us(ttl, "ttl")
    return Lease(
        name=name,
        epoch=epoch,
        ttl_us=ttl_us,
        expires_at_us=now_us() + ttl_us,
        token=unique_id() if token is None else token,
        run=unique_id(),
        holder=Holder.of_this_process(),
    )


def _faults(name: object, token: object) -> Iterator[tuple[str, object, str | None]]:
    """Yield the name and value of each argument with its fault; None if it is valid."""
    yield "name", name, name_fault(name) if isinstance(name, str) else "give a text"
    if token is not None:
        is_text = isinstance(token, str) and token != ""
        yield "token", token, text_fault(str(token)) if is_text else "give a text, or None"


def _free_lease(repository: Repository, lease: Lease) -> StoredLease | None:
    """Return the lease that a new one replaces; None if there is none.

    Raises:
        FencedError: another process holds it.
    """
    stored = lease_of(repository, lease.name)
    if (
        stored is None
        or stored.lease.released
        or stored.lease.token == lease.token
        or stored.lease.holder.session == lease.holder.session
        or stored.lease.holder.has_ended
        or not stored.is_valid(repository.store_time(), skew=dt.timedelta(0))
    ):
        return stored
    raise FencedError(
        f"reader {lease.name!r} of {repository.url} is {stored.lease.holder}, at epoch "
        f"{stored.lease.epoch}: its lease is valid until {stored.until:%Y-%m-%d %H:%M:%S} UTC, by "
        "the clock of the store. It is unchanged. Stop that process and wait until then, or choose "
        "another name. If all runs of the reader give the same token=, the next run does not wait"
    )


def _check_committed(repository: Repository, lease: Lease) -> None:
    """Check that the epoch of a lease exists. Called before the lease is written.

    Raises:
        QueryError: the epoch was collected, or does not exist.
    """
    if not repository.is_committed(lease.epoch):
        raise resync_error(repository, lease.epoch, reader=lease.name) or QueryError(
            f"{repository.url} has no epoch {lease.epoch}, after which reader {lease.name!r} wants "
            "to continue. State and lease are unchanged. Check the path of the checkpoint, and "
            "take an epoch that it has"
        )


def _write(repository: Repository, lease: Lease, before: StoredLease | None) -> dt.datetime:
    """Write a lease, and return the modification time of its file.

    Parameters:
        before: the reader's lease that it replaces; None for a new one.

    Raises:
        QueryError: the epoch was collected, or is about to be. Then the lease is removed.
        FencedError: another process has removed the lease.
    """
    path = paths.lease_path(lease.name)
    repository.replace(path, lease.to_bytes())
    file = repository.stored(path)
    if file is None:
        raise FencedError(
            f"{repository.at(path)} was removed as soon as it was written: another process has "
            "released this lease. State is not affected. Start one of the two readers again"
        )
    files = repository.epoch_files()
    first = files.first
    if not _is_protected(before, file.modified, first):
        # A collector that has written its note may have listed the leases already.
        first = max([first, *files.closed.values()])
    if lease.epoch < first:
        repository.discard(path)
        raise _resync_error(repository, files, first, lease.epoch, lease.name)
    return file.modified


def _is_protected(before: StoredLease | None, now: dt.datetime, first: int) -> bool:
    """Return whether no collector can have missed a reader's lease so far.

    Parameters:
        first: the first kept epoch. Collectors ignore leases on earlier ones.
    """
    return (
        before is not None
        and before.is_valid(now, skew=dt.timedelta(0))
        and before.lease.epoch >= first
    )
