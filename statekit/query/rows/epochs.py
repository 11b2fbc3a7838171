"""Epochs of a checkpoint, for a reader outside of the job that follows them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.leases.reader_lease import resync_error
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import check_epoch, collected_error, still_kept
from statekit.checkpoint.sealed_json import FileRef, checksum_of
from statekit.errors import (
    CorruptCheckpointError,
    QueryError,
    StatekitError,
    StateTypeError,
    StorageError,
)
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

RESYNCHRONISE = (
    "Read the state of an epoch that is kept, with statekit.read or a new replica, and take the "
    "feed after that epoch"
)
"""Advice for a reader whose epochs were collected."""


_REMEMBERED_MAX = 1_000
"""Limit of the epochs of a history."""


class ReplacedError(QueryError):
    """The checkpoint does not continue the epoch that was read from it before."""


class OfEpoch(Protocol):
    """A manifest, or a part of the changes of its epoch."""

    @property
    def epoch(self) -> int: ...
    @property
    def job_file(self) -> FileRef: ...


class EpochReader:
    """Manifests and job files of a checkpoint.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.

    Raises:
        RestoreError: it is a savepoint, or a local path that does not exist.
    """

    def __init__(self, checkpoint: str | Path | Repository) -> None:
        self.repository = (
            checkpoint
            if isinstance(checkpoint, Repository)
            else Repository(checkpoint, create=False)
        )
        self._job_files: dict[str, JobFile] = {}  # by their checksum: a path may be used again

    def poll_s(self, poll: Any) -> float:
        """Return the seconds between two requests for a new epoch.

        Parameters:
            poll: a timedelta or text; None for the default, which depends on the store.

        Raises:
            StateTypeError: it is not a duration, or it is 0.
        """
        if poll is not None:
            poll_us = duration_to_micros(poll, "poll")
            if not poll_us:
                raise StateTypeError(f"poll={shown(poll)}: give a duration above 0")
            return poll_us / 1e6
        return 1.0 if self.repository.root is None else 0.02

    def latest(self) -> EpochManifest | None:
        """Return the manifest of the last committed epoch; None before the first.

        Raises:
            RestoreError: the path is a savepoint.
            CorruptCheckpointError: it is missing or altered.
        """
        while (epoch := self.repository.latest_epoch()) is not None:
            try:
                return self.repository.manifest(epoch)
            except CorruptCheckpointError:
                if self.repository.latest_epoch() == epoch:
                    raise  # it was not collected while it was read
        self.repository.check_nothing_lost()
        return None

    def at(self, epoch: int | EpochId | None) -> EpochManifest:
        """Return the manifest of an epoch that a user gives; None for the last one.

        Raises:
            StateTypeError: it is not the number of an epoch.
            QueryError: no epoch is committed yet; or as for `manifest`.
        """
        if epoch is not None:
            if not isinstance(epoch, EpochId):
                check_epoch("epoch", epoch)
            return self.manifest(epoch)
        latest = self.latest()
        if latest is None:
            raise QueryError(
                f"{self.repository.url} has no committed epoch: check the path, or wait until the "
                "job has committed one"
            )
        return latest

    def applied(self, epoch: int | EpochId) -> EpochManifest:
        """Return the manifest of the epoch after which a consumer of changes continues.

        Raises:
            QueryError: as for `manifest`; of a collected epoch with how to resynchronise.
        """
        try:
            return self.manifest(epoch)
        except QueryError as error:
            number = epoch.epoch if isinstance(epoch, EpochId) else epoch
            raise resync_error(self.repository, number) or error from error

    def manifest(self, epoch: int | EpochId) -> EpochManifest:
        """Return the manifest of an epoch that is still kept.

        Parameters:
            epoch: its number, or its identity.

        Raises:
            ReplacedError: the checkpoint has another epoch of that number, or none: it was
                replaced.
            QueryError: it was collected, or never committed.
            CorruptCheckpointError: it is missing or altered.
        """
        repository = self.repository
        if isinstance(epoch, EpochId):
            return self._identified(epoch)
        if not repository.is_committed(epoch) or epoch < repository.first_kept():
            kept = repository.epochs()
            if not kept:
                repository.check_nothing_lost()
            has = f"it has {kept[0]} to {kept[-1]}" if kept else "none is committed yet"
            raise collected_error(repository, epoch, QueryError) or QueryError(
                f"{repository.url} has no epoch {epoch}: {has}"
            )
        with still_kept(repository, epoch, QueryError):
            return repository.manifest(epoch)

    def _identified(self, wanted: EpochId) -> EpochManifest:
        latest = self.repository.latest_epoch()
        if latest is None:
            raise not_there(self.repository, wanted.epoch)
        if latest < wanted.epoch:
            raise replaced(self.repository, wanted.epoch)
        found = self.manifest(wanted.epoch)
        if found.id != wanted:
            raise replaced(self.repository, wanted.epoch)
        return found

    def kept_before(self, epoch: int) -> int:
        """Return the number of epochs directly before one that have manifests.

        The number of requests is twice the logarithm of the result: no directory is listed.
        """
        # Double the distance until an epoch is gone, then bisect.
        kept, gone = 0, 1
        while gone <= epoch and self.repository.is_committed(epoch - gone):
            kept, gone = gone, 2 * gone
        gone = min(gone, epoch + 1)
        while gone - kept > 1:
            middle = (kept + gone) // 2
            if self.repository.is_committed(epoch - middle):
                kept = middle
            else:
                gone = middle
        return kept

    def job_file(self, epoch: OfEpoch) -> JobFile:
        """Return the job file in force in an epoch.

        Raises:
            QueryError: the epoch was collected, and the file with it.
            CorruptCheckpointError: it is missing or altered.
        """
        ref = epoch.job_file
        job = self._job_files.get(ref.checksum)
        if job is None:
            with still_kept(self.repository, epoch.epoch, QueryError):
                data = self.repository.read(ref.path)
            job = JobFile.from_bytes(data, self.repository.at(ref.path))
            if checksum_of(data) != ref.checksum:
                raise replaced(self.repository, epoch.epoch)
            self._job_files[ref.checksum] = job
        return job


def next_manifest(
    repository: Repository, last: EpochManifest | None, *, thorough: bool = True
) -> EpochManifest | None:
    """Return the manifest of the first epoch that is kept after another one; None if there is none.

    Parameters:
        last: the other epoch; None for the first epoch that is kept.
        thorough: if there is no next epoch, list the epochs to check whether the checkpoint has
            later ones, or fewer. Otherwise this takes one request.

    Raises:
        QueryError: the next epoch was collected.
        ReplacedError: the checkpoint was replaced by another version of it.
        CorruptCheckpointError: it is missing or altered.
        StorageError: the store failed, or the checkpoint has no epochs at the moment.
    """
    if last is None:
        return _first_manifest(repository)
    number = last.epoch + 1
    if not repository.is_committed(number):
        if thorough:
            _check_is_last(repository, last)
        return None
    try:
        after = repository.manifest(number)
    except CorruptCheckpointError as missing:
        if number >= repository.first_kept():
            raise
        raise _collected(repository, last.epoch) from missing
    # One run commits all its epochs on top of each other: a request is needed only for another one.
    if after.writer != last.writer and not (is_same := is_still_there(repository, last)):
        # If the epoch was collected since, nothing shows whether it is the same.
        error = _collected if is_same is None else replaced
        raise error(repository, last.epoch)
    return after


def _check_is_last(repository: Repository, last: EpochManifest) -> None:
    """Check that an epoch without a next one is the last one."""
    latest = repository.latest_epoch()
    if latest is None:
        raise not_there(repository, last.epoch)
    if latest < last.epoch or is_still_there(repository, last) is False:
        raise replaced(repository, last.epoch)
    if latest > last.epoch and not repository.is_committed(last.epoch + 1):
        raise _collected(repository, last.epoch)


def is_still_there(repository: Repository, last: EpochManifest) -> bool | None:
    """Return whether an epoch that was read before is unchanged; None if it was collected since.

    It is another one of the same number if the checkpoint was replaced meanwhile, such as by a
    backup.

    Raises:
        CorruptCheckpointError: it is kept, and missing or altered.
    """
    try:
        return repository.manifest(last.epoch) == last
    except CorruptCheckpointError:
        if last.epoch >= repository.first_kept():
            raise
        return None


def _first_manifest(repository: Repository) -> EpochManifest | None:
    while epochs := repository.epochs():
        try:
            return repository.manifest(epochs[0])
        except CorruptCheckpointError:
            if repository.first_kept() <= epochs[0]:
                raise  # it was not collected while it was read
    repository.check_nothing_lost()
    return None


def _collected(repository: Repository, epoch: int) -> StatekitError:
    """Return the error for a reader that cannot continue after an epoch."""
    return resync_error(repository, epoch) or CorruptCheckpointError(
        f"{repository.at(epoch_path(epoch))}, or the epoch after it, is missing although later "
        "epochs exist: restore the files of this directory from a backup"
    )


def not_there(repository: Repository, epoch: int) -> StorageError:
    """Return the error for a checkpoint without epochs from which an epoch was read before."""
    return StorageError(
        f"{repository.url} has no epochs at the moment, and epoch {epoch} was read from it: it was "
        "moved away or removed, or is not mounted. Nothing that was read is lost: make it "
        "available again, and read on after that epoch"
    )


def replaced(repository: Repository, epoch: int) -> ReplacedError:
    """Return the error for a checkpoint that is not the version that was read before."""
    return ReplacedError(
        f"{repository.url} was replaced: it does not continue the epoch {epoch} that was read "
        f"from it, as after a restore from a backup. {RESYNCHRONISE}"
    )


def have_other_shards(before: EpochManifest, after: EpochManifest, operator: str) -> bool:
    """Return whether the shards of an operator differ between an epoch and the one before."""
    of_before, of_after = (
        [shard.groups for shard in manifest.operators[operator].shards]
        for manifest in (before, after)
    )
    return of_before != of_after


# ------------------------------------------------------------------------------------ history


def _without_shards(manifest: EpochManifest) -> EpochManifest:
    """Return a small copy of a manifest: its operators have the sizes of their states, but no
    shards.
    """
    operators = {}
    for name, own in manifest.operators.items():
        sizes = {"undivided_rows": own.rows, "undivided_bytes": own.bytes}
        operators[name] = own.model_copy(update={"shards": (), **sizes})
    return manifest.model_copy(update={"operators": operators})


class EpochHistory:
    """The last epochs of a checkpoint up to an epoch. Each manifest is read once. Threads may
    share it.

    Parameters:
        repository: the checkpoint.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[int, EpochManifest] = {}
        self._lock = threading.Lock()

    def until(self, last: EpochManifest, limit: int) -> list[EpochManifest]:
        """Return the last `limit` epochs up to `last`, in order, without shards: those that the
        checkpoint keeps, and those that were read before they were collected.

        Raises:
            StorageError: the store failed.
        """
        with self._lock:
            if not self._is_continued_by(last):
                self._known.clear()
            if last.epoch not in self._known:
                self._known[last.epoch] = _without_shards(last)
            found = list(islice(self._back_from(last), limit))
            for epoch in sorted(self._known)[:-_REMEMBERED_MAX]:
                del self._known[epoch]
        return found[::-1]

    def _is_continued_by(self, last: EpochManifest) -> bool:
        """Return whether an epoch is of the same version of the checkpoint as the known ones. One
        run commits all its epochs on top of each other, so a request is needed only for another
        writer.
        """
        known = self._known.get(last.epoch)
        if known is not None:
            return known.writer == last.writer
        newest = max(self._known, default=None)
        if newest is None or self._known[newest].writer == last.writer:
            return True
        try:
            return self._known[newest].writer == self._repository.manifest(newest).writer
        except CorruptCheckpointError:  # it was collected: nothing shows whether it is the same
            return False

    def _back_from(self, last: EpochManifest) -> Iterator[EpochManifest]:
        epoch: int | None = last.epoch
        while epoch is not None:
            own = self._known.get(epoch)
            if own is None:
                try:
                    own = _without_shards(self._repository.manifest(epoch))
                except CorruptCheckpointError:  # it was collected
                    known = (n for n in self._known if n < epoch and not last.has_abandoned(n))
                    epoch = max(known, default=None)
                    continue
                self._known[epoch] = own
            yield own
            epoch = own.previous
