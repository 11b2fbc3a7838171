"""`from_savepoint=`: import a savepoint into a new checkpoint before a job starts.

The order of effects is: change files, job file, Spark's part, manifest. Until the manifest is
committed the checkpoint has no epoch. A start after a killed import repeats it.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.spark_log import METADATA, new_metadata
from statekit.clock import now_us, unique_id
from statekit.errors import RestoreError
from statekit.job.compatibility import next_job_file
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.keygroup import check_groups, check_parallelism
from statekit.maintenance.rewrite import rows_in_groups, write_operators
from statekit.maintenance.savepoint.format import POSITION, Savepoint
from statekit.state.redistribution import NO_SPECS, Specs


def prepare_from_savepoint(job: Job, repository: Repository, options: RunOptions) -> None:
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
    _check_without_epochs(repository)
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
    replace_spark_files(repository, savepoint.spark())
    manifest = EpochManifest(
        job=job.name,
        job_file=_stored_job_file(repository, job),
        previous=None,
        cause="savepoint",
        whole=True,
        parallelism=shards,
        key_groups=groups,
        writer=unique_id(),
        committed_at_us=now_us(),
        operators={
            name: OperatorEpoch(
                shards=own_shards, **file.operators[name].model_dump(exclude={"states"})
            )
            for name, own_shards in new_shards.items()
        },
        **file.model_dump(include=POSITION),
    )
    repository.commit(manifest)
    return manifest


def _check_without_epochs(repository: Repository) -> None:
    """Check that a checkpoint has no epochs.

    Raises:
        RestoreError: it has.
    """
    if (latest := repository.latest_epoch()) is not None:
        raise RestoreError(
            f"{repository.url} has epochs up to {latest}, and a savepoint is restored into a new "
            "checkpoint: pass another one"
        )


def _stored_job_file(repository: Repository, job: JobFile) -> FileRef:
    """Store the job file of the first epoch, with the id of a start that never committed, if there
    was one.
    """
    stored = repository.newest_job_file()
    checkpoint_id = unique_id() if stored is None else stored[0].id
    _, reference = repository.ensure_job_file(job.model_copy(update={"id": checkpoint_id}))
    return reference


def replace_spark_files(repository: Repository, files: Iterable[tuple[str, bytes]]) -> None:
    """Make Spark continue after the last micro-batch in the state, under a new query id.

    No epoch is committed yet, so files of an earlier start are not needed.

    Parameters:
        repository: a checkpoint without epochs.
        files: of Spark's checkpoint: path, content.
    """
    repository.remove(list(repository.tree(SPARK)))
    for path, content in files:
        if path == METADATA:  # of two queries with one id, Spark stops the older
            content = new_metadata(str(uuid.UUID(unique_id())))
        repository.put_file(f"{SPARK}/{path}", io.BytesIO(content))
