"""Which epochs are kept, and which files kept manifests may still reference.

**The rule.** A manifest names a file only if

1. the manifest that it follows names it, itself or through a base or a history; or
2. it was stored for this epoch, by one of its attempts: behind the commit of the epoch before; or
3. it was *staged*: stored beside the epochs since the last rollback, for a shard to adopt, never
   named before, and no more than `STAGED_FOR` before the commit of the epoch before.

`may_adopt` is what holds files against 3. From the rule follows what may be deleted, without a look
at any clock but the store's own: a file that no kept manifest names is never named again if

- a manifest that was given up has named it: 1 asks for a manifest that names it now, 2 and 3 for a
  file that was never named; or
- it was stored more than `STAGED_FOR` before the last commit: whoever makes the next epoch, however
  long that takes, holds it against that very commit.

**Going back** names files again that the last manifest does not name. Whoever gives epochs up
leaves a mark first, and then looks for notes of rollbacks; a rollback leaves a note first, and
then looks for the mark. So one of both sees the other. A note counts until the epoch exists whose
number it has: then the rollback was committed, or is fenced. So it needs no time to run out.

**Reading** an epoch that is collected meanwhile ends with an error, never with a wrong value. Who
reads for long leaves a note in the same order, which does run out: that costs a reader its work,
and nobody else anything.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from statekit.checkpoint.manifest import EpochManifest, ShardPlan
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.paths import HELD_NAME, ROLLBACK_NAME, epoch_path, held_path, rollback_path
from statekit.checkpoint.references import base_snapshot, files_of, history
from statekit.checkpoint.repository import TRANSFERS, Repository
from statekit.checkpoint.sealed_json import Count, Sealed
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StateTypeError,
)
from statekit.timestamp import duration_to_micros

STAGED_FOR = dt.timedelta(hours=12)
"""How long a file may wait for a manifest that names it, by the store's clock."""

HELD_FOR = dt.timedelta(days=1)
"""How long a reader's note keeps an epoch, by the store's clock."""


@dataclass(frozen=True)
class Retention:
    """Which epochs of a checkpoint are kept: to be read, and to be gone back to.

    The last epoch always is. Of epochs that were rolled back, those that lie between kept ones.

    Parameters:
        epochs: at least so many of the last ones.
        age: and all that were committed no longer than this before the last one; a timedelta or a
            text such as "7 days".

    Raises:
        StateTypeError: one of them cannot be.

    >>> Retention(epochs=100, age="2 days").age_us
    172800000000
    """

    epochs: int = 10
    age: dt.timedelta | str | None = None

    def __post_init__(self) -> None:
        if type(self.epochs) is not int or self.epochs < 1:
            raise StateTypeError(
                f"epochs={self.epochs!r}: give the number of epochs to keep, at least 1"
            )
        _ = self.age_us

    @property
    def age_us(self) -> int:
        """The age in microseconds."""
        return 0 if self.age is None else duration_to_micros(self.age, "age")

    def first(self, committed: Mapping[int, dt.datetime], last: EpochManifest) -> int:
        """Return the first epoch to keep.

        Parameters:
            committed: when each epoch was, by the store's clock.
            last: the last one.
        """
        history = [epoch for epoch in sorted(committed) if not last.has_abandoned(epoch)]
        by_count = history[-self.epochs :][0]
        if self.age is None:
            return by_count
        begin = committed[last.epoch] - dt.timedelta(microseconds=self.age_us)
        return min(by_count, *(epoch for epoch, at in committed.items() if at >= begin))


DEFAULT_RETENTION = Retention()
"""Enough to go back to; each more epoch keeps its change files, and older bases longer."""


def check_retention(given: object) -> Retention | None:
    """What was given as `retention=`, if it is one.

    Raises:
        StateTypeError: it is not.
    """
    if given is None or isinstance(given, Retention):
        return given
    raise StateTypeError(
        f"retention={given!r}: give statekit.Retention(epochs=…, age=…), or None to keep all epochs"
    )


class FirstKept(Sealed):
    """The mark that all epochs before one were given up. Its name says it as well.

    Parameters:
        epoch: the first that is kept.
    """

    title: ClassVar[str] = "a mark that epochs were given up"

    epoch: Count


class GoingBack(Sealed):
    """The note that an epoch is to stand where an earlier one stood.

    Parameters:
        epoch: the one that is made.
        to: the one that it names the files of.
    """

    title: ClassVar[str] = "a note of a rollback"

    epoch: Count
    to: Count


class ReaderNote(Sealed):
    """The note that somebody reads an epoch.

    Parameters:
        epoch: which.
    """

    title: ClassVar[str] = "a note of a reader"

    epoch: Count


# ------------------------------------------------------------------------------- given up or not


def collected_error(
    repository: Repository, epoch: int, error: type[StatekitError]
) -> StatekitError | None:
    """That an epoch was given up, if it was."""
    epochs = repository.epochs()
    if not epochs or epoch >= epochs[0]:
        return None
    return error(
        f"epoch {epoch} of {repository.url} was collected: its epochs are {epochs[0]} to "
        f"{epochs[-1]}. Take one of them; to keep more, start the job with "
        "retention=Retention(epochs=…, age=…)"
    )


@contextlib.contextmanager
def still_kept(
    repository: Repository, epoch: int, error: type[StatekitError] = RestoreError
) -> Iterator[None]:
    """Reading an epoch, which may be collected meanwhile.

    Raises:
        StatekitError: of the class `error`, if a file was missing for that reason.
        CorruptCheckpointError: it was missing for another.
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
    """Reading an epoch for long: a note keeps it from being collected, for `HELD_FOR` at most.

    Raises:
        RestoreError: it was collected.
    """
    path = held_path(epoch)
    repository.create(path, ReaderNote(epoch=epoch).to_bytes())
    try:
        collected = collected_error(repository, epoch, RestoreError)
        if collected is not None:
            raise collected
        with still_kept(repository, epoch):
            yield
    finally:
        repository.discard(path)


def held_epochs(files: Iterable[Stored], last: dt.datetime) -> Iterator[int]:
    """Yield the epochs that somebody reads, as far as notes of it say.

    Parameters:
        last: when the last epoch was committed. Notes from long before are of readers that died.
    """
    for file in files:
        match = HELD_NAME.fullmatch(file.path)
        if match is not None and file.modified + HELD_FOR >= last:
            yield int(match[1])


def note_going_back(repository: Repository, epoch: int, to: int) -> str:
    """Leave a note that an epoch is to be made of the files of another one. Returns its path.

    Raises:
        RestoreError: that one was given up.
    """
    path = rollback_path(epoch, to)
    with contextlib.suppress(FencedError):  # an earlier try has left it
        repository.create(path, GoingBack(epoch=epoch, to=to).to_bytes())
    collected = collected_error(repository, to, RestoreError)
    if collected is not None:
        raise collected
    return path


def going_back(paths: Iterable[str]) -> dict[int, int]:
    """Return which epochs are being gone back to, as far as paths say, and the last number for it."""
    found: dict[int, int] = {}
    for match in filter(None, map(ROLLBACK_NAME.fullmatch, paths)):
        epoch, to = int(match[1]), int(match[2])
        found[to] = max(epoch, found.get(to, 0))
    return found


# ----------------------------------------------------------------------------------- what is staged


def may_adopt(repository: Repository, path: str, new: BaseSnapshot, plan: ShardPlan) -> bool:
    """Return whether a shard may name a base that was staged for it, in the epoch that is planned.

    The last change file in it must be one that the shard still lists: then it was taken behind the
    shard's base and in its layout, and was not named before. Each file of it must be one that the
    shard's base has now, or be young enough. A base that shares files with one that the shard no
    longer stands on is not adopted: those may be gone.

    Parameters:
        path: of the base's own file.
        new: what is in it.
        plan: of the epoch that is to name it.

    Raises:
        CorruptCheckpointError: the base or the history that the shard has now is missing or
            altered.
        StorageError: the store failed.
    """
    now = None if plan.base.base is None else base_snapshot(repository, plan.base.base)
    listed = [] if plan.base.history is None else history(repository, plan.base.history).files
    follows = {ref.path for ref in (*listed, *plan.base.files)}
    if new.shard != plan.base.groups or new.follows not in follows:
        return False
    held = set() if now is None else {ref.path for ref in files_of(now)}
    staged = {path, *(ref.path for ref in files_of(new))} - held
    return may_be_named(repository, staged, plan, taken=new.epoch)


def may_be_named(
    repository: Repository, paths: Iterable[str], plan: ShardPlan, *, taken: int
) -> bool:
    """Return whether files that were stored beside the epochs, and never named, may be named by
    now.

    Parameters:
        paths: of all of them.
        plan: of the epoch that is to name them.
        taken: the epoch whose state they hold.
    """
    if plan.base_epoch is None or taken < plan.since:
        return False  # what was stored before a rollback may have been named before it
    last = repository.stored(epoch_path(plan.base_epoch))
    if last is None:
        return False
    with ThreadPoolExecutor(TRANSFERS) as threads:
        found = list(threads.map(repository.stored, paths))
    return all(file is not None and file.modified + STAGED_FOR >= last.modified for file in found)
