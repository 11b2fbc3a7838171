"""Checks of Spark's log within a checkpoint, and of its agreement with the state.

Spark's files contain no checksums. On a local disk each one has a `.crc` file, which reveals every
changed byte. An object store is responsible for its bytes, and only unreadable files are found.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import checked_file, spark_fault
from statekit.checkpoint.spark_log import files_at
from statekit.errors import CorruptCheckpointError, RestoreError

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
