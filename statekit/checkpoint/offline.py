"""Access to a checkpoint while no job runs. Every command that changes a checkpoint starts here."""

from __future__ import annotations

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import finish
from statekit.errors import RestoreError


def last_epoch(repository: Repository) -> tuple[EpochManifest, JobFile]:
    """Return the last epoch and its job file.

    Raises:
        RestoreError: nothing is committed yet.
    """
    latest = repository.latest_epoch()
    if latest is None:
        repository.check_checkpoint()
        raise RestoreError(
            f"{repository.url} has no committed epoch, so there is nothing to change: check the "
            "path, or start the job as it is to be"
        )
    manifest = repository.manifest(latest)
    return manifest, repository.job_file(manifest.job_file.path)


def check_at_rest(repository: Repository, last: EpochManifest, *, otherwise: str = "") -> None:
    """Check that no epoch began whose outputs a sink may have. The command will use the number of
    that epoch.

    Complete Spark's part of a rollback that was killed.

    Parameters:
        otherwise: what else the user can do, as a sentence.

    Raises:
        RestoreError: an epoch was begun.
    """
    if last.sets_spark_back:
        finish(repository, last)
    note = repository.read_note(last.epoch + 1)
    ahead = repository.spark_batches("offsets")[-1:]
    what = None if note is None else note.what
    if ahead and ahead[0] > (-1 if last.batch is None else last.batch):
        what = f"batch {ahead[0]}"
    if what is not None:
        raise RestoreError(
            f"epoch {last.epoch + 1} of {repository.url} was begun as {what!r} and not committed, "
            "and a sink may have its outputs: start the job again, let it complete that epoch, "
            f"then stop it{otherwise and '. '}{otherwise}"
        )
