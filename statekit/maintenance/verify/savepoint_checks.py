"""Check that a savepoint is intact."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.paths import SAVEPOINT, SAVEPOINTS
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.verify.row_checks import RowChecks


@dataclass(frozen=True)
class SavepointCheck:
    """The check of one part of a savepoint.

    Parameters:
        what: the damage; None if there is none.
        path: the file, below the checkpoint.
        operator, state: the owner of the rows.
        files, bytes, rows: how much was checked.
        is_unread: whether the only fault is that the store did not return it.
    """

    what: str | None = None
    path: str | None = None
    operator: str | None = None
    state: str | None = None
    files: int = 0
    bytes: int = 0
    rows: int = 0
    is_unread: bool = False


def savepoint_folders(repository: Repository) -> list[str]:
    """Return the folders of savepoints in a checkpoint, without unfinished ones."""
    ending = f"/{SAVEPOINT}"
    files = (path for path in repository.tree(SAVEPOINTS) if path.endswith(ending))
    return sorted(path.removesuffix(ending) for path in files)


def check_savepoint(repository: Repository, folder: str, *, rows: bool) -> Iterator[SavepointCheck]:
    """Check a savepoint, part by part.

    Parameters:
        folder: its folder; empty if it is the whole repository.
        rows: whether to check rows, and not only the bytes of files.
    """
    at = f"{folder}/" if folder else ""
    try:
        savepoint = Savepoint(repository, folder)
    except (CorruptCheckpointError, RestoreError, StorageError) as error:
        is_unread = isinstance(error, StorageError)
        yield SavepointCheck(str(error), f"{at}{SAVEPOINT}", is_unread=is_unread)
        return
    for ref in savepoint.file.spark:
        yield _bytes_checked(repository, ref, at)
    for operator in savepoint.file.job.operators:
        checks = RowChecks(operator, savepoint.file.job.key_groups)
        for state, contents in savepoint.file.operators[operator.name].states.items():
            file_checks = [_bytes_checked(repository, ref, at) for ref in contents.files]
            yield from file_checks
            if rows and all(check.what is None for check in file_checks):
                yield _rows_checked(savepoint, operator, state, checks, f"{at}{SAVEPOINT}")


def _bytes_checked(repository: Repository, ref: FileRef, at: str) -> SavepointCheck:
    path, fault, is_unread = f"{at}{ref.path}", None, False
    try:
        repository.open_verified(ref.model_copy(update={"path": path})).close()
    except StatekitError as error:
        fault, is_unread = str(error), isinstance(error, StorageError)
    return SavepointCheck(fault, path, files=1, bytes=ref.size, is_unread=is_unread)


def _rows_checked(
    savepoint: Savepoint, operator: OperatorRecord, state: str, checks: RowChecks, path: str
) -> SavepointCheck:
    """Check the rows of one state, whose bytes are intact."""
    count, fault, is_unread = 0, None, False
    local = {operator_state.name for operator_state in operator.states if operator_state.is_local}
    try:
        for parts, row in savepoint.table(operator, state):
            count += 1
            if state not in local:
                checks.check_row(state, parts, row)
    except (StatekitError, ValueError, IndexError, struct.error) as error:
        fault, is_unread = str(error), isinstance(error, StorageError)
    return SavepointCheck(fault, path, operator.name, state, rows=count, is_unread=is_unread)
