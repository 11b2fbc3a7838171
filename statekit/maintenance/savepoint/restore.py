"""`from_savepoint=`: import a savepoint into a new checkpoint before a job starts.

The order of effects is: change files, Spark's part, job file, manifest. Until the manifest is
committed the checkpoint has no epoch. A start after a killed import repeats it.
"""

from __future__ import annotations

from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.checkpoint.repository import Repository
from statekit.errors import RestoreError
from statekit.job.compatibility import next_job_file
from statekit.job.options import RunOptions
from statekit.job.plan import Plan
from statekit.keygroup import check_groups, check_parallelism
from statekit.maintenance.first_epoch import check_without_epochs, commit_first
from statekit.maintenance.rewrite import rows_in_groups, write_operators
from statekit.maintenance.savepoint.format import POSITION, Savepoint
from statekit.state.redistribution import NO_SPECS, Specs


def prepare_from_savepoint(job: Plan, repository: Repository, options: RunOptions) -> None:
    """Import the savepoint of `from_savepoint=`, unless it was already imported.

    So a job that is started again with the same arguments continues.

    Raises:
        RestoreError: there is no such savepoint, it belongs to another job, the checkpoint has
            epochs of another origin, or `from_epoch=` is given too.
        StateSchemaError: stored and declared state do not match.
        RescaleError: the parallelism or the number of key groups is not valid.
        CorruptCheckpointError: a file of the savepoint is missing or altered.
    """
    url = options.from_savepoint
    if url is None:
        return
    if options.from_epoch is not None:
        raise RestoreError(
            f"from_savepoint={str(url)!r} and from_epoch={options.from_epoch}: a start begins at "
            "one of them. Leave from_epoch out for a new checkpoint, and from_savepoint to go back "
            "within one that has epochs"
        )
    savepoint = Savepoint.at(url)
    advice = (
        "a savepoint is restored into a new checkpoint. Pass another checkpoint, or leave "
        "from_savepoint= out to continue from this one"
    )
    if is_made_of(repository, savepoint.file.id, savepoint.url, advice):
        return
    stored = savepoint.file.job
    if stored.name != job.name:
        raise RestoreError(
            f"{savepoint.url} is a savepoint of job {stored.name!r}, not of {job.name!r}: pass "
            "another savepoint, or give the job its old name"
        )
    # Before anything is written; the start looks again.
    next_job_file(stored, job.operators, allow_dropped_state=options.allow_dropped_state)
    import_savepoint(
        savepoint,
        repository,
        parallelism=options.parallelism,
        key_groups=job.key_groups,
        specs={operator.name: operator.declared.states for operator in job.operators},
    )


def is_made_of(repository: Repository, origin: str, url: str, advice: str) -> bool:
    """Return whether a checkpoint was imported from this origin. It may have later epochs.

    Parameters:
        origin: the id of a savepoint or of a query of Spark.
        url: of the origin, for messages.
        advice: what to do with a checkpoint of another origin.

    Raises:
        RestoreError: it is a savepoint, or has epochs of another origin.
    """
    latest = repository.latest_epoch()
    if latest is None:
        repository.check_checkpoint()
        return False
    stored = repository.job_file(repository.manifest(latest).job_file.path)
    if origin in (stored.savepoint, stored.imported):
        return True
    raise RestoreError(
        f"{repository.url} has epochs up to {latest}, which do not come from {url}: {advice}"
    )


def import_savepoint(
    savepoint: Savepoint,
    repository: Repository,
    *,
    parallelism: int | None = None,
    key_groups: int | None = None,
    specs: Specs = NO_SPECS,
) -> EpochManifest:
    """Import a savepoint into a checkpoint without epochs.

    Its first epoch has the number of the savepoint's, so that sinks continue with the next one.

    Parameters:
        parallelism: shards per operator; None for the savepoint's.
        key_groups: None for the savepoint's.
        specs: per operator, its states as the code declares them, for functions that redistribute
            operator state.

    Raises:
        RestoreError: the checkpoint has epochs.
        RescaleError: the parallelism or the number of key groups is not valid, or operator state
            has no rule for it.
        CorruptCheckpointError: a file of the savepoint is missing or altered.
        FencedError: a job committed an epoch meanwhile.
    """
    check_without_epochs(
        repository, "a savepoint is restored into a new checkpoint: pass another one"
    )
    file = savepoint.file
    groups = check_groups(file.job.key_groups if key_groups is None else key_groups)
    shards = min(file.parallelism, groups) if parallelism is None else parallelism
    check_parallelism(shards, groups)
    job = file.job.model_copy(update={"key_groups": groups, "savepoint": file.id, "imported": None})
    new_shards = write_operators(
        repository,
        job,
        lambda operator, keyed: rows_in_groups(savepoint.rows(operator), keyed),
        savepoint.local_rows,
        stored_epoch=file.epoch,
        epoch=file.epoch,
        parallelism=shards,
        specs=specs,
    )
    return commit_first(
        repository,
        job,
        cause="savepoint",
        parallelism=shards,
        operators={
            name: OperatorEpoch(
                shards=own_shards, **file.operators[name].model_dump(exclude={"states"})
            )
            for name, own_shards in new_shards.items()
        },
        spark=savepoint.spark(),
        **file.model_dump(include=POSITION),
    )
