"""Lease files of readers: their content, the process that holds a lease, and their validity."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from statekit.checkpoint import paths
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import COUNT_MAX, Count, Record, Sealed
from statekit.checkpoint.store import in_parallel
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.names import StoredId, StoredName, StoredText, name_fault
from statekit.timestamp import datetime_to_micros, instant

SKEW = dt.timedelta(minutes=1)
"""The delay after which a collector treats a lease as expired, compared with readers. Meanwhile
another process can take the lease, and no epoch is lost.
"""

UNREADABLE_FOR = dt.timedelta(days=1)
"""The validity of a lease with an unreadable TTL, by the clock of the store."""

LEASE_BYTES_MAX = 1 << 16

_LATEST = dt.datetime.max.replace(tzinfo=dt.UTC)

_PROC = Path("/proc")


class Holder(Record):
    """The process that wrote a lease.

    Parameters:
        host: its machine.
        process: its process id there.
        session: a unique id of the process: process ids are used again.
        place: where the process id is valid: the boot of the machine and the namespace of process
            ids. Empty if the system does not report it.
        started: when the process started, in ticks of the machine's clock.
    """

    host: StoredText
    process: Count
    session: StoredId
    place: StoredText = ""
    started: Count = 0

    @classmethod
    def of_this_process(cls) -> Holder:
        """Return this process as a holder."""
        process = os.getpid()
        return cls(
            host=socket.gethostname() or "unknown",
            process=process,
            session=_session(process),
            place=_place(process),
            started=_started(process) or 0,
        )

    @property
    def has_ended(self) -> bool:
        """True if the process has certainly ended. This is known only on Linux, and only for
        processes of the same machine or container.
        """
        if not self.place or self.place != _place(os.getpid()):
            return False
        try:
            os.kill(self.process, 0)  # sends nothing
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # a process of another user
        started = _started(self.process)
        return started is not None and 0 < self.started != started

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


class Lease(Sealed):
    """The content of a lease.

    Parameters:
        name: the reader.
        epoch: the epoch that the reader has consumed up to.
        ttl_us: how long the lease is valid after it was written, in microseconds.
        expires_at_us: until when, by the clock of the reader; for display only.
        token: a text that other runs of the reader may give to take the lease over at once.
        run: a unique id of the run that holds it.
        holder: the process that wrote it.
        released: whether the run has ended. The lease keeps its epochs until it expires, and the
            next run takes it at once.
    """

    title: ClassVar[str] = "a reader's lease"

    name: StoredName
    epoch: Count
    ttl_us: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    expires_at_us: Count
    token: StoredText
    run: StoredId
    holder: Holder
    released: bool = False


@dataclass(frozen=True)
class StoredLease:
    """A lease and the modification time of its file, by the clock of the store."""

    lease: Lease
    written: dt.datetime

    @property
    def until(self) -> dt.datetime:
        """The expiry time of the lease, by the clock of the store."""
        return instant(datetime_to_micros(self.written) + self.lease.ttl_us)

    def is_valid(self, now: dt.datetime, skew: dt.timedelta = SKEW) -> bool:
        """Return whether the lease has not expired.

        Parameters:
            now: a time of the store.
            skew: for how long it counts beyond its TTL: zero for readers, `SKEW` for collectors.
        """
        return now - self.written <= dt.timedelta(microseconds=self.lease.ttl_us) + skew


@dataclass(frozen=True)
class UnreadableLease:
    """A file in `readers/` that is not an intact lease.

    Parameters:
        path: below the checkpoint.
        written: the time of the file, by the store's clock.
        error: the reason; None if no reader has a file of such a name.
    """

    path: str
    written: dt.datetime
    error: StatekitError | None

    def is_valid(self, now: dt.datetime) -> bool:
        """Return whether the file may be the lease of a running reader.

        This statekit may be older than that of the reader, or the store does not return the file.
        """
        is_unknown = isinstance(self.error, RestoreError | StorageError)
        return is_unknown and now - self.written <= UNREADABLE_FOR


def stored_leases(repository: Repository) -> tuple[list[StoredLease], list[UnreadableLease]]:
    """Return the leases of a checkpoint by name, and the other files in the same folder.

    If the folder cannot be listed, it counts as an unreadable lease.
    """
    try:
        files = sorted(_files(repository))
    except StorageError as error:
        return [], [UnreadableLease(paths.READERS, _LATEST, error)]
    results = in_parallel(partial(_read, repository), files)
    leases = [result for result in results if isinstance(result, StoredLease)]
    return leases, [result for result in results if isinstance(result, UnreadableLease)]


def _files(repository: Repository) -> Iterator[Stored]:
    """Yield the files in `readers/`.

    On a local disk also those whose names no store takes, which `Repository.listed` leaves out.
    """
    if repository.root is None:
        yield from repository.listed(paths.READERS)
        return
    try:
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(repository.root / paths.READERS) as entries,
        ):
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    name = os.fsencode(entry.name).decode(errors="backslashreplace")
                    modified = instant(status.st_mtime_ns // 1000)
                    if not entry.is_dir(follow_symlinks=False):
                        yield Stored(f"{paths.READERS}/{name}", status.st_size, modified)
    except OSError as error:
        raise StorageError(
            f"cannot list {repository.at(paths.READERS)}: {error}. State is not affected: make "
            "the directory readable"
        ) from error


def _read(repository: Repository, file: Stored) -> StoredLease | UnreadableLease | None:
    """Return a lease; None if it was released meanwhile."""
    match = paths.LEASE_NAME.fullmatch(file.path)
    if match is None or name_fault(match[1]) is not None:
        return UnreadableLease(file.path, file.modified, None)
    try:
        lease = _content(repository, match[1], file.size)
    except StatekitError as error:
        return UnreadableLease(file.path, file.modified, error)
    return None if lease is None else StoredLease(lease, file.modified)


def _content(repository: Repository, name: str, size: int) -> Lease | None:
    """Return the lease of a reader; None if there is none.

    Raises:
        CorruptCheckpointError: it is altered, too large or of another reader.
        RestoreError: it was written by a newer version of statekit.
    """
    path = paths.lease_path(name)
    damage = CorruptCheckpointError(
        f"{repository.at(path)} is no intact lease of reader {name!r}: it keeps no epoch, and "
        "state is not affected. Delete the file, and start the reader again"
    )
    if size > LEASE_BYTES_MAX:
        raise damage
    data = repository.read_if_there(path)
    try:
        lease = None if data is None else Lease.from_bytes(data, repository.at(path))
    except CorruptCheckpointError as error:
        raise damage from error
    if lease is not None and lease.name != name:
        raise damage
    return lease


def lease_of(repository: Repository, name: str) -> StoredLease | None:
    """Return the lease of a reader; None if there is none. A damaged lease keeps nothing and counts
    as none.

    Raises:
        RestoreError: it was written by a newer version of statekit.
    """
    file = repository.stored(paths.lease_path(name))
    if file is None:
        return None
    try:
        lease = _content(repository, name, file.size)
    except CorruptCheckpointError:
        return None
    return None if lease is None else StoredLease(lease, file.modified)


@functools.cache
def _session(process: int) -> str:
    """Return the unique id of this process. A forked process has another one."""
    return unique_id()


@functools.cache
def _place(process: int) -> str:
    """Return the namespace in which the ids of visible processes are valid; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> int | None:
    """Return the start time of a process; 0 if it was killed; None if the system does not report
    it.
    """
    try:
        status = (_PROC / str(process) / "stat").read_text(errors="replace")
        # The name of the program comes before the last bracket, and may have any character.
        state, *rest = status.rpartition(")")[2].split()
        return 0 if state in "ZX" else int(rest[18])
    except (OSError, ValueError, IndexError):
        return None
