"""Retention: the epochs to keep, and the files that a manifest may still reference.

**The rule.** A manifest references a file only if

1. the manifest before it references the file, directly or through a base or a history; or
2. an attempt of this epoch stored the file, after the commit of the epoch before; or
3. the file was *staged*: stored beside the epochs since the last rollback, for a shard to use,
  never referenced before, and stored at most `STAGED_FOR` before the commit of the epoch before.

`may_adopt` checks condition 3. From the rule follows which files may be deleted, using no clock but
the store's: a file that no kept manifest references will never be referenced again if

- a collected manifest has referenced it: condition 1 needs a manifest that references it now, 2 and
  3 need a file that was never referenced; or
- it was stored more than `STAGED_FOR` before the last commit: the next epoch, however long it
  takes, compares the file's time with that very commit.

**A rollback** references files again that the last manifest does not reference. A collector first
writes a mark and then looks for notes of rollbacks. A rollback first writes a note and then looks
for the mark. So at least one of them sees the other. A note counts until the epoch with its number
exists: then the rollback was committed, or is fenced. So a note needs no expiry.

**A reader** of an epoch that is collected meanwhile gets an error, never a wrong value. A reader
that needs long writes a note in the same order. This note expires: a reader that is too slow fails,
and affects no other process. A reader that follows the epochs has a lease (`leases`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from statekit.checkpoint.manifest import EpochManifest, ShardPlan
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.paths import HELD_NAME, ROLLBACK_NAME, epoch_path, held_path, rollback_path
from statekit.checkpoint.references import files_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import COUNT_MAX, Count, Sealed
from statekit.checkpoint.shard_contents import BaseSnapshot, History
from statekit.checkpoint.store import in_parallel
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StateTypeError,
)
from statekit.number_faults import int_fault
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

STAGED_FOR = dt.timedelta(hours=12)
"""The maximum age of an unreferenced staged file, by the clock of the store."""

HELD_FOR = dt.timedelta(days=1)
"""The validity of a reader's note, by the clock of the store."""


@dataclass(frozen=True)
class Retention:
    """The epochs of a checkpoint that are kept for reading and for rollbacks.

    The last epoch is always kept. Epochs that were rolled back are kept if they lie between kept
    ones.

    Parameters:
        epochs: the minimum number of last epochs to keep. Its default is the default retention of a
            job.
        age: also keep all epochs that were committed at most this long before the last one; a
            timedelta or a text such as "7 days".
        readers: named readers may keep earlier epochs that were committed at most this long before
            the last one, and no others. None or 0: readers keep nothing.

    Raises:
        StateTypeError: a value is not valid.

    >>> Retention(epochs=100, age="2 days").age_us
    172800000000
    """

    epochs: int = 10
    age: dt.timedelta | str | None = None
    readers: dt.timedelta | str | None = "1 day"

    def __post_init__(self) -> None:
        use = "give the number of epochs to keep, at least 1"
        if fault := int_fault(self.epochs, use, least=1):
            raise StateTypeError(f"epochs={shown(self.epochs)}{fault}")
        _ = self.age_us, self.readers_us

    @property
    def age_us(self) -> int:
        """The age in microseconds."""
        return 0 if self.age is None else duration_to_micros(self.age, "age")

    @property
    def readers_us(self) -> int:
        """The bound for readers in microseconds; 0 if they keep nothing."""
        return 0 if self.readers is None else duration_to_micros(self.readers, "readers")

    def first(self, committed: Mapping[int, dt.datetime], last: EpochManifest) -> int:
        """Return the first epoch to keep.

        Parameters:
            committed: the commit time of each epoch, by the store's clock.
            last: the last epoch.
        """
        history = [epoch for epoch in sorted(committed) if not last.has_abandoned(epoch)]
        by_count = history[-self.epochs :][0]
        if self.age is None:
            return by_count
        return min(by_count, _first_within(committed, last, self.age_us))

    def first_for_readers(
        self, committed: Mapping[int, dt.datetime], last: EpochManifest
    ) -> int | None:
        """Return the first epoch that a reader can keep; None if readers keep nothing.

        Parameters:
            committed, last: as for `first`.
        """
        return _first_within(committed, last, self.readers_us) if self.readers_us else None


def _first_within(
    committed: Mapping[int, dt.datetime], last: EpochManifest, duration_us: int
) -> int:
    """Return the first epoch that was committed within this time before the last one."""
    oldest = dt.timedelta(microseconds=duration_us)
    return min(epoch for epoch, at in committed.items() if committed[last.epoch] - at <= oldest)


DEFAULT_RETENTION = Retention()
"""Enough epochs for a rollback. Each further epoch keeps its change files, and keeps older bases
longer.
"""


def check_retention(given: object) -> Retention | None:
    """Check and return the argument `retention=`.

    Raises:
        StateTypeError: it is not a Retention or None.
    """
    if given is None or isinstance(given, Retention):
        return given
    raise StateTypeError(
        f"retention={given!r}: give statekit.Retention(epochs=…, age=…), or None to keep all epochs"
    )


class EpochMark(Sealed):
    """The content of a mark or note about an epoch. Its file name contains the number too.

    Parameters:
        epoch: the first kept epoch of a mark, or the epoch that a process reads.
    """

    title: ClassVar[str] = "a note about an epoch"

    epoch: Count


class GoingBack(EpochMark):
    """The note that a rollback to an epoch began, as a new epoch."""

    to: Count


# ------------------------------------------------------------------------------ collected or not


def check_epoch(what: str, epoch: object) -> None:
    """Check that an argument is the number of an epoch.

    Parameters:
        what: its name.

    Raises:
        StateTypeError: it is not.

    >>> check_epoch("after", 0)
    """
    use = "give the number of an epoch, an int from 0"
    if fault := int_fault(epoch, use, most=COUNT_MAX):
        raise StateTypeError(f"{what}={shown(epoch, 200)}{fault}. Nothing was read")


def collected_error(
    repository: Repository, epoch: int, error: type[StatekitError]
) -> StatekitError | None:
    """Return the error that an epoch was collected; None if it was not."""
    epochs = repository.epochs()
    if not epochs or epoch >= epochs[0]:
        return None
    return error(
        f"epoch {epoch} of {repository.url} was collected: its epochs are {epochs[0]} to "
        f"{epochs[-1]}. Take one of them; to keep more, start the job with "
        "retention=Retention(epochs=…, age=…)"
    )


def check_kept(repository: Repository, epoch: int) -> None:
    """Check that an epoch was not collected.

    Raises:
        RestoreError: it was.
    """
    if (collected := collected_error(repository, epoch, RestoreError)) is not None:
        raise collected


@contextlib.contextmanager
def still_kept(
    repository: Repository, epoch: int, error: type[StatekitError] = RestoreError
) -> Iterator[None]:
    """Read an epoch that may be collected meanwhile.

    Raises:
        StatekitError: of the class `error`, if a file is missing because the epoch was collected.
        CorruptCheckpointError: a file is missing for another reason.
    """
    try:
        yield
    except CorruptCheckpointError as missing:
        collected = collected_error(repository, epoch, error)
        if collected is None:
            raise
        raise error(f"{collected} (while it was read)") from missing


@contextlib.contextmanager
def held(repository: Repository, epoch: int) -> Iterator[None]:
    """Read an epoch for a long time: a note keeps it from being collected, for at most `HELD_FOR`.

    Raises:
        RestoreError: it was collected.
    """
    path = held_path(epoch)
    repository.create(path, EpochMark(epoch=epoch).to_bytes())
    try:
        check_kept(repository, epoch)
        with still_kept(repository, epoch):
            yield
    finally:
        repository.discard(path)


def held_epochs(files: Iterable[Stored], last: dt.datetime) -> Iterator[int]:
    """Yield the epochs that notes of readers keep.

    Parameters:
        last: the time of the last commit. Much older notes are of readers that were killed.
    """
    for file in files:
        match = HELD_NAME.fullmatch(file.path)
        if match is not None and file.modified + HELD_FOR >= last:
            yield int(match[1])


def note_going_back(repository: Repository, epoch: int, to: int) -> str:
    """Write the note that a rollback begins, and return its path.

    Raises:
        RestoreError: the epoch to go back to was collected.
    """
    path = rollback_path(epoch, to)
    with contextlib.suppress(FencedError):  # an earlier try has left it
        repository.create(path, GoingBack(epoch=epoch, to=to).to_bytes())
    check_kept(repository, to)
    return path


def going_back(paths: Iterable[str]) -> dict[int, int]:
    """Return the new epoch and the target of each rollback that began, parsed from the paths of
    notes.
    """
    targets: dict[int, int] = {}
    for match in filter(None, map(ROLLBACK_NAME.fullmatch, paths)):
        epoch, to = int(match[1]), int(match[2])
        targets[to] = max(epoch, targets.get(to, 0))
    return targets


# ------------------------------------------------------------------------------------- staged files


def may_adopt(repository: Repository, path: str, new: BaseSnapshot, plan: ShardPlan) -> bool:
    """Return whether the planned epoch may reference a base that was staged for its shard.

    The shard must still list the last change file in the base. This shows that the base was taken
    after the shard's current base and in its layout, and was not referenced before. Each file of
    the base must be one of the current base, or be young enough. A base that shares files with one
    that the shard no longer references is not used, because those files may be gone.

    Parameters:
        path: of the base's own file.
        new: the staged base.
        plan: the plan of the epoch that would reference it.

    Raises:
        CorruptCheckpointError: the current base or history of the shard is missing or altered.
        StorageError: the store failed.
    """
    before = plan.base
    now = None if before.base is None else repository.sealed(BaseSnapshot, before.base)
    listed = () if before.history is None else repository.sealed(History, before.history).files
    follows = {ref.path for ref in (*listed, *before.files)}
    if new.shard != before.groups or new.follows not in follows:
        return False
    current_files = set() if now is None else {ref.path for ref in files_of(now)}
    staged = {path, *(ref.path for ref in files_of(new))} - current_files
    if plan.base_epoch is None or new.epoch < plan.since:
        return False  # a base from before a rollback may have been referenced before it
    last = repository.stored(epoch_path(plan.base_epoch))
    if last is None:
        return False
    files = in_parallel(repository.stored, staged)
    return all(file is not None and file.modified + STAGED_FOR >= last.modified for file in files)
