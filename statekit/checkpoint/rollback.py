"""Rollback: commit a new epoch that has the state of an earlier one.

A rollback commits an epoch like any other, with the next free number. It references the shards of
the target epoch, follows that epoch, and is committed with create-if-absent. So nothing is removed,
a running writer is fenced, and the abandoned epochs are not in the history of the last epoch. They
stay readable, and a later rollback may have them as its target.

Processing time does not go back. Everything that became due meanwhile is due now.

Spark's part is set back file by file after the commit. The order ensures that Spark could continue
after every step without leaving out or repeating a record:

1. Commits and offsets, the latest first. Spark runs the latest batch that it has offsets of.
  statekit refuses that batch unless it is the next one.
2. The logs of file sources, the latest entries first. Spark reads entries without an offset with
  the next batch, like those of a batch that was planned and never recorded.

A start after a rollback that was killed completes the remaining steps first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from statekit.checkpoint.manifest import Cause, EpochManifest
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import collected_error, note_going_back, still_kept
from statekit.checkpoint.spark_log import SparkFiles, files_at
from statekit.errors import FencedError, RestoreError
from statekit.foreign import foreign_hint
from statekit.shown import shown

_FOLDERS = ("commits", "offsets", "sources")
"""The folders of Spark's part that are set back, in order."""

_CHECKSUM = re.compile(r"\.([^.].*)\.crc")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Rollback:
    """A planned rollback.

    Attributes:
        repository: the checkpoint.
        last: its last epoch.
        target: the epoch to go back to.
        manifest: the new epoch with the target's state.
        is_committed: whether it was committed before; then only Spark's part is left.
    """

    repository: Repository
    last: EpochManifest
    target: EpochManifest
    manifest: EpochManifest
    is_committed: bool

    def carry_out(self) -> None:
        """Commit the epoch, then set Spark's part back.

        Raises:
            FencedError: a run committed an epoch meanwhile. Nothing was changed.
            RestoreError: the target was collected meanwhile. Nothing was changed.
            StorageError: the store failed; a second call completes the rollback.
        """
        if not self.is_committed:
            note = note_going_back(self.repository, self.manifest.epoch, self.target.epoch)
            try:
                self.repository.commit(self.manifest)
            except FencedError:
                self.repository.discard(note)  # the number is taken, so the note is not needed
                raise
            self.repository.remove_note(self.manifest.epoch)
            self.repository.discard(note)
        finish(self.repository, self.manifest)


def plan(repository: Repository, to: int) -> Rollback:
    """Plan a rollback without changing anything.

    Parameters:
        to: the target epoch, which may itself have been rolled back.

    Raises:
        RestoreError: there is no such epoch, it is the last one, or Spark no longer has its
            micro-batch.
        CorruptCheckpointError: a manifest cannot be read.
    """
    last = _last(repository, to)
    if last.epoch == to:
        raise RestoreError(
            f"epoch {to} is the last one of {repository.url}: there is nothing to roll back"
        )
    is_committed = last.cause == "rollback" and last.previous == to
    target = _target(repository, last, to)
    manifest = last
    if not is_committed:
        time_us = max(target.processing_time_us, last.processing_time_us)
        manifest = standing_at(target, "rollback", last.epoch + 1, time_us)
        check_can_go_back(repository, target, last)
    return Rollback(repository, last, target, manifest, is_committed)


def for_start(repository: Repository, job: str, epoch: int) -> Rollback | None:
    """Return the rollback for a start with `from_epoch=`; None if the checkpoint is at that epoch
    already.

    A supervisor may start a program again with the same epoch. If no epoch followed the rollback,
    there is nothing to do. If epochs followed, the program cannot know whether they are to be kept,
    so the start is refused.

    Parameters:
        job: the name of the job that starts.

    Raises:
        RestoreError: as for `plan`; or the checkpoint is another job's, or `epoch` was abandoned,
            or a rollback to it was followed by other epochs.
    """
    last = _last(repository, epoch)
    if last.job != job:
        raise RestoreError(
            f"{repository.url} is a checkpoint of job {last.job!r}, not of {job!r}: pass another "
            "checkpoint, or give the job its old name"
        )
    by_hand = f"`statekit rollback {repository.url} --to {epoch}`"
    if last.has_abandoned(epoch):
        raise RestoreError(
            f"from_epoch={epoch}: this epoch of {repository.url} was rolled back itself. Leave "
            f"from_epoch out to continue from epoch {last.epoch}, or get it back with {by_hand}"
        )
    done = next((end + 1 for first, end in last.abandoned if first == epoch + 1), None)
    if done is not None and done != last.epoch:
        raise RestoreError(
            f"from_epoch={epoch}: {repository.url} was rolled back to it by epoch {done}, and has "
            f"continued to epoch {last.epoch}. Leave from_epoch out to continue from there; to "
            f"discard later epochs, use {by_hand}"
        )
    return None if last.epoch == epoch else plan(repository, epoch)


def finish(repository: Repository, last: EpochManifest) -> None:
    """Complete Spark's part of a rollback.

    Parameters:
        last: the last epoch, made by a rollback.

    Raises:
        RestoreError: Spark's part cannot be set back.
    """
    names = repository.spark_files()
    batch = _batch(last)
    offsets, commits = repository.spark_batches("offsets"), repository.spark_batches("commits")
    if max(offsets, default=-1) == batch + 1 and max(commits, default=-1) <= batch:
        batch += 1  # Spark runs it next: in either history, it is what follows
    wanted = files_at(names, repository.read_spark, batch)
    for folder in _FOLDERS:
        _set_back(repository, [path for path in names if path.startswith(f"{folder}/")], wanted)


def spark_fault(repository: Repository, last: EpochManifest | None) -> str | None:
    """Return the reason why Spark cannot continue from the state; None if it can.

    Spark writes the offsets of a batch before it runs and its commit afterwards. So it may be one
    batch ahead of the state (killed before the manifest), or lack one commit (killed after it).

    Parameters:
        last: the last epoch.
    """
    done = -1 if last is None else _batch(last)
    offsets = max(repository.spark_batches("offsets"), default=-1)
    commits = max(repository.spark_batches("commits"), default=-1)
    where = f"{repository.url}/spark"
    way_out = "restore both parts from the same backup, or start with a new checkpoint"
    if done >= 0 and offsets < 0:
        return (
            f"{where} is missing or empty, but the state contains micro-batches up to {done}. "
            f"Continuing would read the input from its start and count it twice: {way_out}"
        )
    if offsets < done:
        return (
            f"{where} has micro-batches up to {offsets}, the state those up to {done}. Continuing "
            f"would count input twice: {way_out}"
        )
    if offsets > done + 1 or commits > done:
        return (
            f"{where} has continued to micro-batch {max(offsets, commits)}, the state is at "
            f"{done}. Continuing would leave input out: {way_out}"
        )
    return None


def _last(repository: Repository, to: int) -> EpochManifest:
    """Return the manifest of the last epoch, if there is an earlier one."""
    latest = repository.latest_epoch()
    if latest is None:
        repository.check_checkpoint()
    if latest is None or type(to) is not int:
        raise _no_epoch(repository, to)
    with still_kept(repository, latest):
        return repository.manifest(latest)


def _target(repository: Repository, last: EpochManifest, to: int) -> EpochManifest:
    if to in repository.epochs():
        with still_kept(repository, to):
            return repository.manifest(to)
    if last.cause == "rollback" and last.previous == to:  # done, and collected since
        return last.model_copy(update={"epoch": to, "previous": None})
    raise collected_error(repository, to, RestoreError) or _no_epoch(repository, to)


def _no_epoch(repository: Repository, to: object) -> RestoreError:
    epochs = repository.epochs()
    listing = f"its epochs are {epochs[0]} to {epochs[-1]}" if epochs else "nothing is committed"
    return RestoreError(
        f"{repository.url} has no epoch {shown(to)} to go back to{foreign_hint(to)}: {listing}. "
        "Look at them with `statekit inspect`"
    )


def standing_at(
    target: EpochManifest, cause: Cause, epoch: int, processing_time_us: int
) -> EpochManifest:
    """Return a new epoch with the state of an earlier one. The epochs in between are abandoned.

    Parameters:
        target: the earlier one.
        epoch: the new number.
        processing_time_us: the new processing time.
    """
    return target.followed_by(
        epoch=epoch,
        cause=cause,
        abandoned=(*target.abandoned, (target.epoch + 1, epoch - 1)),
        processing_time_us=processing_time_us,
        operators={
            name: operator.at_rest(operator.shards) for name, operator in target.operators.items()
        },
    )


# -------------------------------------------------------------------------------- Spark's part


def _batch(manifest: EpochManifest) -> int:
    """Return the last micro-batch in an epoch's state; -1 before the first."""
    return -1 if manifest.batch is None else manifest.batch


def check_batch(repository: Repository, last: EpochManifest, epoch: EpochManifest) -> None:
    """Check that Spark's log of an epoch's micro-batch describes the input of that epoch.

    After a rollback Spark continues from the target's micro-batch, so it uses the numbers of
    abandoned micro-batches again.

    Parameters:
        last: the last epoch; Spark's part belongs to its history.

    Raises:
        RestoreError: the micro-batch is one that was abandoned.
    """
    common, first = epoch, repository.first_kept()
    while last.has_abandoned(common.epoch) and common.previous is not None:
        if common.previous < first:
            break  # collected: its last micro-batch is unknown
        common = repository.manifest(common.previous)
    is_known = not last.has_abandoned(common.epoch) or common.previous is None
    if epoch.batch is not None and not (is_known and _batch(common) == _batch(epoch)):
        raise RestoreError(
            f"epoch {epoch.epoch} of {repository.url} was rolled back, and with it Spark's "
            f"micro-batch {epoch.batch}: Spark uses that number for other input and cannot "
            "continue after this epoch. `--epoch` of `statekit get`, `inspect` and `diff` still "
            "read it"
        )


def check_can_go_back(repository: Repository, target: EpochManifest, last: EpochManifest) -> None:
    """Check that Spark's part can be set back. Called before anything is committed.

    Raises:
        RestoreError: Spark no longer has the micro-batch, or keeps state that cannot be set back.
    """
    batch, offsets = _batch(target), repository.spark_batches("offsets")
    if not _knows(offsets, batch):
        raise RestoreError(
            f"epoch {target.epoch} of {repository.url} ends with Spark's micro-batch {batch}, and "
            "Spark no longer has the offsets to continue from there: it keeps those of the last "
            "spark.sql.streaming.minBatchesToRetain micro-batches, and a rollback removes later "
            f"ones. {_still_possible(repository, last, offsets)}"
        )
    check_batch(repository, last, target)
    files_at(repository.spark_files(), repository.read_spark, batch)


def _knows(offsets: Sequence[int], batch: int) -> bool:
    """Return whether Spark can continue after a micro-batch: its offsets exist, or those of the
    first one.
    """
    return all(needed in offsets for needed in (batch - 1, batch) if needed >= 0)


def _still_possible(repository: Repository, last: EpochManifest, offsets: Sequence[int]) -> str:
    """Return the earlier epochs whose offsets Spark still has."""
    known: list[int] = []
    manifest, first = last, repository.first_kept()
    while _knows(offsets, _batch(manifest)):
        known.append(manifest.epoch)
        if manifest.previous is None or manifest.previous < first:
            break
        manifest = repository.manifest(manifest.previous)
    if not known[1:]:
        return "There is no epoch left to go back to: start with a new checkpoint"
    return f"Go back to one from {known[-1]} to {known[1]}"


def _set_back(repository: Repository, names: Sequence[str], wanted: SparkFiles) -> None:
    """Create missing files from later ones, then remove the files of later micro-batches.

    Hadoop's local file system keeps a checksum beside each file. A checksum that outlives its file
    would damage the next file of that name, so it is removed first. Drafts, which are hidden files
    too, stay: a running query would fail without them before it is fenced.
    """
    folders = {name.split("/", 1)[0] for name in names}
    for path, data in wanted.items():
        if data is not None and path.split("/", 1)[0] in folders:
            above, _, name = path.rpartition("/")
            repository.remove([f"{SPARK}/{above}/.{name}.crc"])
            repository.create(f"{SPARK}/{path}", data)
    surplus = [path for path in names if checked_file(path) not in (None, *wanted)]
    repository.remove(f"{SPARK}/{path}" for path in sorted(surplus, key=_latest_first))


def checked_file(path: str) -> str | None:
    """Return the file that a path describes: the file itself, or the file of a checksum.

    None for drafts and their checksums.
    """
    above, _, name = path.rpartition("/")
    if not name.startswith("."):
        return path
    match = _CHECKSUM.fullmatch(name)
    return None if match is None else f"{above}/{match[1]}".lstrip("/")


def _latest_first(path: str) -> tuple[int, bool]:
    number = _NUMBER.search(path.rpartition("/")[2])
    return -int(number[0]) if number else 0, checked_file(path) == path
