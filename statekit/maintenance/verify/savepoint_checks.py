"""Checks of savepoints: every file and row is intact."""

from __future__ import annotations

from dataclasses import replace

from statekit.checkpoint.paths import SAVEPOINT, SAVEPOINTS
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.verify.findings import Finding, Verification, finding_kind
from statekit.maintenance.verify.row_checks import UNREADABLE, RowChecks


def savepoint_folders(repository: Repository) -> list[str]:
    """Return the folders of savepoints in a checkpoint, without unfinished ones."""
    ending = f"/{SAVEPOINT}"
    files = (path for path in repository.tree(SAVEPOINTS) if path.endswith(ending))
    return sorted(path.removesuffix(ending) for path in files)


def check_savepoint(
    repository: Repository, folder: str, verification: Verification, *, rows: bool
) -> None:
    """Check a savepoint, and record findings.

    Parameters:
        folder: its folder; empty if it is the whole repository.
        verification: gets the findings.
        rows: whether to check rows, and not only the bytes of files.
    """
    verification.savepoints.append(folder or repository.url)
    at = f"{folder}/" if folder else ""
    try:
        savepoint = Savepoint(repository, folder)
    except (CorruptCheckpointError, RestoreError, StorageError) as error:
        verification.findings.append(_finding(error, f"{at}{SAVEPOINT}"))
        return
    for ref in savepoint.file.spark:
        _check_bytes(repository, ref, at, verification)
    for operator in savepoint.file.job.operators:
        checks = RowChecks(operator, savepoint.file.job.key_groups)
        for state, contents in savepoint.file.operators[operator.name].states.items():
            intact = [_check_bytes(repository, ref, at, verification) for ref in contents.files]
            if rows and all(intact):
                _check_rows(savepoint, state, checks, verification, f"{at}{SAVEPOINT}")


def _check_bytes(repository: Repository, ref: FileRef, at: str, verification: Verification) -> bool:
    """Check a file. Return whether it is intact."""
    path = f"{at}{ref.path}"
    verification.files += 1
    verification.bytes += ref.size
    try:
        repository.open_verified(ref.model_copy(update={"path": path})).close()
    except StatekitError as error:
        verification.findings.append(_finding(error, path))
        return False
    return True


def _check_rows(
    savepoint: Savepoint, state: str, checks: RowChecks, verification: Verification, path: str
) -> None:
    """Check the rows of one state. Their bytes are known to be intact."""
    operator, has_keys = checks.operator, state in checks.operator.holds_by_key
    try:
        for parts, row in savepoint.table(operator.name, state):
            verification.rows += 1
            if has_keys:
                checks.check_row(state, parts, row)
    except UNREADABLE as error:
        finding = _finding(error, path)
        verification.findings.append(replace(finding, operator=operator.name, state=state))


def _finding(error: Exception, path: str) -> Finding:
    return Finding(finding_kind(error, "savepoint"), str(error), path)
