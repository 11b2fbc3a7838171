"""The first epoch of a checkpoint that no run makes: its job file, and Spark's part."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.spark_log import METADATA, new_metadata
from statekit.clock import unique_id
from statekit.errors import RestoreError


def check_without_epochs(repository: Repository, advice: str) -> None:
    """Check that a checkpoint has no epochs.

    Parameters:
        advice: what to do if it has.

    Raises:
        RestoreError: it has.
    """
    if (latest := repository.latest_epoch()) is not None:
        raise RestoreError(f"{repository.url} has epochs up to {latest}, and {advice}")


def first_job_file(repository: Repository, job: JobFile) -> FileRef:
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
