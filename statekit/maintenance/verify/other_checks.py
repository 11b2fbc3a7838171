"""Checks of the files beside the state: savepoints, and Spark's log.

Spark's files contain no checksums. On a local disk each one has a `.crc` file, which reveals every
changed byte. An object store is responsible for its bytes, and only unreadable files are found.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import SAVEPOINT, SAVEPOINTS, SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import checked_file, spark_fault
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.spark_log import files_at
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.verify.findings import Finding, Verification, finding_kind
from statekit.maintenance.verify.row_checks import UNREADABLE, RowChecks

_CRC_HEAD = b"crc\x00"


def spark_faults(repository: Repository, last: EpochManifest) -> Iterator[tuple[str | None, str]]:
    """Yield the faults of Spark's part, with the file if the fault concerns one.

    Parameters:
        last: the last epoch.
    """
    paths = repository.spark_files()
    for path in paths:
        fault = _checksum_fault(repository, path, paths) if path.endswith(".crc") else None
        if fault is not None:
            yield f"{SPARK}/{checked_file(path)}", fault
    done = -1 if last.batch is None else last.batch
    if not paths and done < 0:
        return
    if (fault := spark_fault(repository, last)) is not None:  # a start would refuse it
        if max(repository.spark_batches("offsets"), default=-1) < done:
            yield f"{SPARK}/offsets/{done}", fault
        elif not last.sets_spark_back:
            yield None, fault
    try:
        if paths:
            files_at(paths, repository.read_spark, done)
    except (CorruptCheckpointError, RestoreError) as error:
        yield None, str(error)


def _checksum_fault(repository: Repository, path: str, paths: list[str]) -> str | None:
    """Return the fault of a file, for which Hadoop stores a checksum per block."""
    subject = checked_file(path)
    if subject not in paths:
        return None  # Spark removes the file first
    data = repository.read_if_there(f"{SPARK}/{subject}")
    sums = repository.read_if_there(f"{SPARK}/{path}")
    if data is None or sums is None:
        return None  # meanwhile
    at, beside = repository.at(f"{SPARK}/{subject}"), repository.at(f"{SPARK}/{path}")
    if len(sums) < 8 or not sums.startswith(_CRC_HEAD):
        return f"{beside} contains no checksums: restore it and its file from a backup"
    (size,) = struct.unpack_from(">i", sums, 4)
    pieces = [data[start : start + size] for start in range(0, len(data), size)] if size > 0 else []
    expected = b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)
    if size <= 0 or expected != sums[8:]:
        return f"{at} does not match {beside}: restore both from a backup"
    return None


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
