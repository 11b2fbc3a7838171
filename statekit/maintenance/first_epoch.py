"""The first epoch of a checkpoint that no run makes: Spark's part, its job file, its manifest.

The order of effects is: change files, Spark's part, job file, manifest. Spark's part comes before
the manifest: without the manifest it is ahead of the state, and no stream starts on it. So a kill
at any time leaves a checkpoint without epochs, which another attempt completes. Spark's part is
replaced only after a check that no other process has committed an epoch meanwhile.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable
from typing import Any

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import Cause, EpochManifest, OperatorEpoch
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.spark_log import METADATA, new_metadata
from statekit.clock import now_us, unique_id
from statekit.errors import FencedError, RestoreError


def check_without_epochs(repository: Repository, advice: str) -> None:
    """Check that a checkpoint has no epochs.

    Parameters:
        advice: what to do if it has.

    Raises:
        RestoreError: it has.
    """
    if (latest := repository.latest_epoch()) is not None:
        raise RestoreError(f"{repository.url} has epochs up to {latest}, and {advice}")


def commit_first(
    repository: Repository,
    job: JobFile,
    *,
    cause: Cause,
    parallelism: int,
    operators: dict[str, OperatorEpoch],
    spark: Iterable[tuple[str, bytes]] = (),
    **position: Any,
) -> EpochManifest:
    """Commit the first epoch of a checkpoint, whose change files are stored.

    Parameters:
        repository: a checkpoint without epochs.
        job: the job file, without an id of its own.
        cause: of the epoch.
        parallelism: shards per operator.
        operators: the shards and the progress of each operator.
        spark: files of Spark's checkpoint: path, content.
        position: the fields of the manifest that say how far the input was read.

    Raises:
        FencedError: another process has committed an epoch meanwhile. Its files are unchanged.
    """
    replace_spark_files(repository, spark)
    manifest = EpochManifest(
        job=job.name,
        job_file=_first_job_file(repository, job),
        previous=None,
        cause=cause,
        whole=True,
        parallelism=parallelism,
        key_groups=job.key_groups,
        writer=unique_id(),
        committed_at_us=now_us(),
        operators=operators,
        **position,
    )
    repository.commit(manifest)
    return manifest


def _first_job_file(repository: Repository, job: JobFile) -> FileRef:
    """Store the job file of the first epoch, with the id of a start that never committed, if there
    was one.
    """
    stored = repository.newest_job_file()
    checkpoint_id = unique_id() if stored is None else stored[0].id
    _, reference = repository.ensure_job_file(job.model_copy(update={"id": checkpoint_id}))
    return reference


def replace_spark_files(repository: Repository, files: Iterable[tuple[str, bytes]]) -> None:
    """Make Spark continue after the last micro-batch in the state, under a new query id.

    Files of an earlier start are not needed, because no epoch is committed.

    Parameters:
        repository: a checkpoint without epochs.
        files: of Spark's checkpoint: path, content.

    Raises:
        FencedError: another process has committed an epoch, to which Spark's files belong.
    """
    if (latest := repository.latest_epoch()) is not None:
        raise FencedError(
            f"another process has committed epoch {latest} of {repository.url} meanwhile: nothing "
            "of this attempt is in it. Run one at a time, or pass another checkpoint"
        )
    repository.remove(list(repository.tree(SPARK)))
    for path, content in files:
        if path == METADATA:  # of two queries with one id, Spark stops the older
            content = new_metadata(str(uuid.UUID(unique_id())))
        repository.put_file(f"{SPARK}/{path}", io.BytesIO(content))
