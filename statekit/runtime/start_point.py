"""Start point of a run: the epoch that it follows, its job file and its shards."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.rollback import for_start
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_layout import rescaled
from statekit.clock import unique_id
from statekit.job.compatibility import check_job_name, continued_job_file
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.keygroup import DEFAULT_GROUPS, check_parallelism
from statekit.state.redistribution import redistributed


@dataclass(frozen=True)
class StartPoint:
    """Where a run starts.

    Parameters:
        last: the manifest of the epoch that the run follows; None for a new checkpoint.
        job_file: the job file in force.
        reference: of the job file.
        parallelism: shards per operator.
        layout: `last` with the shards of that parallelism.
    """

    last: EpochManifest | None
    job_file: JobFile
    reference: FileRef
    parallelism: int
    layout: EpochManifest | None


def open_checkpoint(job: Job, repository: Repository, options: RunOptions) -> StartPoint:
    """Check that a job can run on a checkpoint, and prepare the checkpoint for it.

    Writes the job file if the checkpoint has none or another one, redistributes operator state for
    another parallelism, and commits a rollback for `from_epoch`.

    Raises:
        RestoreError: the checkpoint belongs to another job, or cannot go back to that epoch.
        RescaleError: the parallelism or the number of key groups is not possible.
        StateSchemaError: stored and declared state do not match.
        CorruptCheckpointError: the last manifest or the job file cannot be read.
    """
    latest = repository.latest_epoch()
    if latest is None:
        repository.check_checkpoint()
    last = None if latest is None else repository.manifest(latest)
    rollback = (
        None if options.from_epoch is None else for_start(repository, job.name, options.from_epoch)
    )
    if rollback is not None:
        last = rollback.manifest
    job_file, reference = _job_file(job, repository, last, options.allow_dropped_state)
    parallelism = options.parallelism
    if parallelism is None:
        parallelism = last.parallelism if last else 1
    check_parallelism(parallelism, job_file.key_groups)
    layout = last
    if last is not None and last.parallelism != parallelism:
        # This becomes part of the next epoch and is none of its own. So an epoch that was begun,
        # and whose outputs may be published, keeps its number in a replay with any parallelism.
        # A rollback is not committed yet: operator state is read from the epoch it goes back to.
        stored = last if rollback is None else rollback.target
        specs = {operator.name: operator.declared.states for operator in job.operators}
        read = nullcontext() if rollback is None else still_kept(repository, stored.epoch)
        layout = rescaled(last, parallelism)
        with read:
            layout = redistributed(repository, stored, layout, job_file.operators, specs)
    if rollback is not None:
        rollback.carry_out()  # all checks of the code against that epoch have passed
    return StartPoint(last, job_file, reference, parallelism, layout)


def _job_file(
    job: Job, repository: Repository, last: EpochManifest | None, allow_dropped_state: bool
) -> tuple[JobFile, FileRef]:
    """Compare the job file with the code; write one if there is none or the code changed."""
    stored_job = repository.job_file(None if last is None else last.job_file.path)
    operators = tuple(operator.record() for operator in job.operators)
    if stored_job is None:
        groups = job.key_groups or DEFAULT_GROUPS
        first = JobFile(id=unique_id(), name=job.name, key_groups=groups, operators=operators)
        return repository.ensure_job_file(first)
    stored, reference = stored_job
    check_job_name(stored, job, repository.url)
    if last is None:
        # There is no state that must be kept.
        groups = job.key_groups or stored.key_groups
        wanted = stored.model_copy(
            update={"key_groups": groups, "operators": operators, "dropped": {}}
        )
    else:
        wanted = continued_job_file(
            stored, job, repository.url, allow_dropped_state=allow_dropped_state
        )
    return (stored, reference) if stored == wanted else repository.ensure_job_file(wanted)
