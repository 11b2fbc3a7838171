"""Files of a checkpoint that nothing references."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Literal, NamedTuple

from statekit.checkpoint.paths import (
    BEGUN,
    CHANGES,
    CLOSED_NAME,
    DATA,
    EPOCH_NAME,
    HELD,
    LEASE_NAME,
    REPAIRS,
    SAVEPOINTS,
    SPARK,
    TMP,
    note_path,
)
from statekit.checkpoint.repository import Repository
from statekit.timestamp import datetime_to_micros

OrphanKind = Literal["lost attempt", "pending base", "draft", "job file", "note", "unknown"]
"""Change files of an attempt that lost, or of an epoch that is running; files of a pending base; a
file that was being written; a job file of a start that committed nothing; the note of a committed
epoch; and files that statekit did not write.
"""

_JOB = re.compile(r"job(-[0-9]+)?\.json")


class Orphan(NamedTuple):
    """An unreferenced file.

    Parameters:
        path: below the checkpoint.
        kind: what it seems to be.
        size: in bytes.
        changed_us: when it was written, by the store's clock.
    """

    path: str
    kind: OrphanKind
    size: int
    changed_us: int


def orphans(repository: Repository, named: Container[str], last: int) -> Iterator[Orphan]:
    """Yield the unreferenced files.

    Spark's files, savepoints, and rows that a repair left out are not state, and no orphans.

    Parameters:
        named: the paths of referenced files.
        last: the number of the last epoch.
    """
    for file in repository.listed(""):
        path = file.path
        folder = path.split("/", 1)[0]
        if path in named or folder in (SPARK, SAVEPOINTS, REPAIRS):
            continue
        if any(name.fullmatch(path) for name in (EPOCH_NAME, CLOSED_NAME, LEASE_NAME)):
            continue
        if path == note_path(last + 1) or folder == HELD:
            continue  # the epoch that was begun, and those of readers
        yield Orphan(path, _kind(path, folder), file.size, datetime_to_micros(file.modified))


def _kind(path: str, folder: str) -> OrphanKind:
    if folder == DATA:
        return "lost attempt" if path.endswith(f".{CHANGES}") else "pending base"
    if folder == TMP or "#" in path:
        return "draft"
    if folder == BEGUN:
        return "note"
    return "job file" if _JOB.fullmatch(path) else "unknown"
