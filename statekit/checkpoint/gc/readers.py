"""Epochs that a collector keeps for readers, and the size of their files."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from statekit.checkpoint import paths
from statekit.checkpoint.gc.kept_files import KeptFiles, Size, manifests_before_gaps
from statekit.checkpoint.leases.lease_files import StoredLease, UnreadableLease, stored_leases
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import EpochMark, Retention
from statekit.errors import CorruptCheckpointError, FencedError

LeaseStatus = Literal["valid", "expired", "too far behind", "collected"]
"""The status of a lease. "valid": it keeps its epoch and later ones. "expired": it keeps nothing.
"too far behind": its epoch was committed before the bound of the retention. "collected": its epoch
is gone, and the reader must resynchronise.
"""


@dataclass(frozen=True)
class LeaseHeadroom:
    """The distance of a lease from being given up, as of the last collection that read it.

    Attributes:
        reader: the name of the reader.
        epoch: the epoch that it has consumed up to.
        seconds: how much younger than the bound for readers that epoch is; 0 if it is older.
        epochs: how many epochs the job commits in that time, at the rate of the kept ones; None if
            they have no rate.
        expires_in_s: the time from the last commit until the lease expires, in seconds.
    """

    reader: str
    epoch: int
    seconds: float
    epochs: int | None
    expires_in_s: float


@dataclass
class ReaderBound:
    """The first epoch that a collection must keep for readers.

    Parameters:
        repository: the checkpoint.
        committed: the commit time of each kept epoch, by the store's clock.
        oldest: the oldest epoch that a reader can keep; None if readers keep none.

    Attributes:
        leases: those that were read last; none if readers could not keep an earlier epoch.
    """

    repository: Repository
    committed: Mapping[int, dt.datetime]
    oldest: int | None
    leases: Sequence[StoredLease] = ()
    _now: dt.datetime | None = None

    def first(self, wanted: int) -> int:
        """Return the first epoch to keep: `wanted`, or an earlier epoch that a reader keeps.

        Nothing is listed if readers could not keep an earlier epoch.
        """
        if self.oldest is None or self.oldest >= wanted:
            return wanted
        leases, others = stored_leases(self.repository)
        self.leases = leases
        first = wanted
        for lease in leases:
            number = self._first_of(lease.lease.epoch, self.oldest)
            if number < first and self._is_valid(lease):
                first = number
        is_unknown = any(map(self._is_valid, others))
        return self.oldest if is_unknown else first

    def headroom(self, bound: dt.timedelta) -> list[LeaseHeadroom]:
        """Return the headroom of each lease that was read and has not expired.

        Parameters:
            bound: how long before the last commit an epoch was committed that readers can keep.
        """
        first, last = min(self.committed.values()), max(self.committed.values())
        interval = (last - first) / max(1, len(self.committed) - 1)
        headroom = []
        for lease in self.leases:
            if not lease.is_valid(last):
                continue
            committed = self.committed.get(lease.lease.epoch, last - bound)  # or it was collected
            left = max(dt.timedelta(0), bound - (last - committed))
            headroom.append(
                LeaseHeadroom(
                    reader=lease.lease.name,
                    epoch=lease.lease.epoch,
                    seconds=left.total_seconds(),
                    epochs=left // interval if interval else None,
                    expires_in_s=(lease.until - last).total_seconds(),
                )
            )
        return headroom

    def _first_of(self, epoch: int, oldest: int) -> int:
        """Return the first epoch that a lease keeps: its own epoch, or the oldest one that readers
        can keep.

        A reader that is too far behind keeps what is left: it may be about to move its lease there.
        """
        if epoch < min(self.committed):
            return max(self.committed)  # it was collected: the lease keeps nothing
        later = (number for number in self.committed if number >= max(epoch, oldest))
        return min(later, default=epoch)

    def _is_valid(self, lease: StoredLease | UnreadableLease) -> bool:
        """Return whether a lease has not expired. The last commit may be long ago, so the clock of
        the store decides.
        """
        if not lease.is_valid(max(self.committed.values())):
            return False
        if self._now is None:
            self._now = self.repository.store_time()
        return lease.is_valid(self._now)

    def agree(self, wanted: int) -> int:
        """Close the epochs before `wanted` to new leases and mark them as collected. Return the
        first kept epoch: an earlier one if a reader has taken a lease meanwhile.
        """
        if self.oldest is None or self.oldest >= wanted:
            _mark(self.repository, wanted)
            return wanted
        closed = paths.closed_path(wanted)
        with contextlib.suppress(FencedError):  # another collector removed it: its mark is later
            self.repository.create(closed, EpochMark(epoch=wanted).to_bytes())
        first = self.first(wanted)
        if first > min(self.committed):
            _mark(self.repository, first)
        self.repository.discard(closed)
        return first


def _mark(repository: Repository, first: int) -> None:
    with contextlib.suppress(FencedError):  # another collector collects the same
        repository.create(paths.first_path(first), EpochMark(epoch=first).to_bytes())


# ------------------------------------------------------------------------------------ for people


@dataclass(frozen=True)
class Reader:
    """A reader of a checkpoint.

    Attributes:
        lease: its lease.
        last: the last epoch of the checkpoint.
        status: whether the lease keeps its epochs.
        extra: what is kept because of it: the files that only epochs need which would be collected
            otherwise, and their manifests. None if that was not measured.
    """

    lease: StoredLease
    last: int
    status: LeaseStatus
    extra: Size | None


@dataclass(frozen=True)
class Readers:
    """The readers of a checkpoint.

    Attributes:
        readers: by name.
        unreadable: files in `readers/` that are no intact leases.
    """

    readers: Sequence[Reader]
    unreadable: Sequence[UnreadableLease]


def readers_of(repository: Repository, retention: Retention, *, measured: bool = True) -> Readers:
    """Return the readers of a checkpoint.

    A lease counts as expired by the time of the last commit. Nothing is written.

    Parameters:
        retention: which epochs are kept without readers, and the bound for readers.
        measured: whether to measure what they keep, by reading the manifests that readers keep.

    Raises:
        CorruptCheckpointError: a manifest, base or history that was measured is damaged.
    """
    leases, unreadable = stored_leases(repository)
    epochs = repository.epoch_files()
    if not (leases and epochs.kept):
        return Readers([], unreadable)
    files = {number: epochs.committed[number] for number in epochs.kept}
    committed = {number: file.modified for number, file in files.items()}
    last = repository.manifest(max(files))
    oldest = retention.first_for_readers(committed, last)

    def status(lease: StoredLease) -> LeaseStatus:
        if lease.lease.epoch < min(files):
            return "collected"
        if not lease.is_valid(committed[last.epoch]):
            return "expired"
        return "too far behind" if oldest is None or lease.lease.epoch < oldest else "valid"

    statuses = [(lease, status(lease)) for lease in leases]
    valid = [lease.lease.epoch for lease, own in statuses if own == "valid"]
    sizes: dict[int, Size] = {}
    if measured and valid:
        sizes = _sizes(repository, files, min(valid), retention.first(committed, last), last)

    def extra(lease: StoredLease, own: LeaseStatus) -> Size | None:
        kept = sizes.get(lease.lease.epoch) if own == "valid" else None
        return kept or Size() if measured else None

    readers = [Reader(lease, last.epoch, own, extra(lease, own)) for lease, own in statuses]
    return Readers(readers, unreadable)


def _sizes(
    repository: Repository,
    files: Mapping[int, Stored],
    begin: int,
    wanted: int,
    last: EpochManifest,
) -> dict[int, Size]:
    """Return, for each epoch from `begin` on and before `wanted`, the size of the files that this
    epoch and later ones need, but the epochs from `wanted` on do not.

    Parameters:
        files: the manifest of each epoch.
    """
    kept = [number for number in sorted(files) if number >= wanted]
    others = KeptFiles(repository, manifests_before_gaps(repository, kept, last))
    seen: dict[str, int] = {}
    sizes: dict[int, Size] = {}
    for number in sorted((n for n in files if begin <= n < wanted), reverse=True):
        seen[files[number].path] = files[number].size
        with contextlib.suppress(CorruptCheckpointError):  # its files are unknown; verify finds it
            manifest = repository.manifest(number)
            seen |= {ref.path: ref.size for ref in others.not_among(manifest)}
        sizes[number] = Size(len(seen), sum(seen.values()))
    return sizes
