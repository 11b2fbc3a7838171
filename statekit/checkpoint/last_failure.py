"""The last failure of a job, as a file of its checkpoint: for whoever looks why a job has ended."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from statekit.checkpoint.paths import LAST_FAILURE
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Count, Sealed
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.names import StoredText
from statekit.printable import printable
from statekit.shown import shown_text, type_name

_TEXT_MAX = 2_000

_unwritten: dict[str, LastFailure] = {}
"""Failures of this process that a store did not take, by its URL: a full disk is such a failure."""


class LastFailure(Sealed):
    """The last failure of a job.

    Parameters:
        error: the class of the error.
        kind: of the error, if it is one of statekit; otherwise "other".
        message: of the error, on one line.
        epoch: the epoch that was not committed.
        at_us: when, in microseconds since 1970 UTC.
        writer: the run.
    """

    title: ClassVar[str] = "the last failure"

    error: StoredText
    kind: StoredText
    message: StoredText
    epoch: Count
    at_us: int
    writer: StoredText


def failure_of(error: BaseException, epoch: int, at_us: int, writer: str) -> LastFailure:
    """Return the record of an error.

    >>> failure_of(OSError("no space left"), 7, 0, "run-1").message
    'no space left'
    """
    return LastFailure(
        error=printable(type_name(error)),
        kind=error.kind if isinstance(error, StatekitError) else "other",
        message=printable(shown_text(error, _TEXT_MAX).replace("\n", " ")),
        epoch=epoch,
        at_us=at_us,
        writer=writer,
    )


def store_failure(repository: Repository, failure: LastFailure) -> None:
    """Write the last failure of a job. It replaces the one before.

    Raises:
        StorageError: the store cannot be reached, or is full. Later `store_unwritten_failure` can
            write it.
    """
    if not repository.is_in_memory:
        _unwritten[repository.url] = failure
    repository.replace(LAST_FAILURE, failure.to_bytes())
    _unwritten.pop(repository.url, None)


def store_unwritten_failure(repository: Repository) -> None:
    """Write the last failure that the store of a checkpoint did not take, if there is one. Called
    after a commit, which the store has taken.
    """
    if (failure := _unwritten.get(repository.url)) is not None:
        with contextlib.suppress(StorageError):
            store_failure(repository, failure)


def last_failure(repository: Repository) -> LastFailure | None:
    """Return the last failure of a job; None if it never failed, or if the file is damaged or of a
    newer version.

    Raises:
        StorageError: the store cannot be reached.
    """
    data = repository.read_if_there(LAST_FAILURE)
    if data is None:
        return None
    try:
        return LastFailure.from_bytes(data, repository.at(LAST_FAILURE))
    except (CorruptCheckpointError, RestoreError):
        return None
