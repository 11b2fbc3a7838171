"""Findings of `statekit verify` as data, and the unreferenced files of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from statekit.checkpoint import paths
from statekit.checkpoint.repository import Repository
from statekit.errors import StorageError
from statekit.timestamp import datetime_to_micros

FindingKind = Literal[
    "manifest",
    "job file",
    "note",
    "file",
    "unreadable",
    "row",
    "key group",
    "timer index",
    "expiry index",
    "count",
    "wake",
    "spark",
    "savepoint",
    "lease",
]
"""The kind of damage. `unreadable`: the store did not return a file, which proves nothing about the
file. `lease`: a damaged lease of a reader. It does not count, because no state depends on it.
"""


OrphanKind = Literal["lost attempt", "pending base", "draft", "job file", "note", "unknown"]
"""The kind of an unreferenced file: change files of an attempt that lost, or of a running epoch;
files of a pending base; a file that was being written; a job file of a start that committed
nothing; the note of a committed epoch; files that statekit did not write.
"""

_JOB = re.compile(r"job(-[0-9]+)?\.json")
_NO_STATE = (
    *(paths.SPARK, paths.SAVEPOINTS, paths.REPAIRS),
    *(paths.RECORDED, paths.MIRRORS, paths.FAILURES),
)


@dataclass(frozen=True)
class Finding:
    """A finding.

    Parameters:
        kind: its kind.
        what: the damage, and what to do.
        brief: a short form for a file whose bytes are damaged.
        path: the file; None if it is not about a file.
        epochs: the affected epochs.
        operator, shard, state: the owner of the rows; the shard by its first and last key group.
        rows: number of rows with the same fault.
        row_keys: the first of them, as hex.
    """

    kind: FindingKind
    what: str
    path: str | None = None
    epochs: tuple[int, ...] = ()
    operator: str | None = None
    shard: tuple[int, int] | None = None
    state: str | None = None
    rows: int = 0
    row_keys: tuple[str, ...] = ()
    brief: str | None = None


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


@dataclass
class Verification:
    """The result of a verification.

    Attributes:
        url: of the checkpoint.
        epochs: all kept epochs, also those whose manifests are missing.
        given_up: number of epochs that were collected meanwhile.
        abandoned: those that were rolled back, as ranges, first and last.
        looked_at: those whose files were checked.
        rows_of: those whose rows were checked.
        findings: the damage.
        orphans: unreferenced files. They are no damage.
        has_all_names: whether all bases and histories could be read; if not, an orphan may be a
            referenced file.
        files, bytes, rows: how much was checked.
        pickled: `operator.state` of values that were not decoded.
        savepoints: their names.
    """

    url: str
    epochs: Sequence[int] = ()
    given_up: int = 0
    abandoned: Sequence[tuple[int, int]] = ()
    looked_at: Sequence[int] = ()
    rows_of: Sequence[int] = ()
    findings: list[Finding] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    has_all_names: bool = True
    files: int = 0
    bytes: int = 0
    rows: int = 0
    pickled: set[str] = field(default_factory=set)
    savepoints: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def unread(self) -> list[Finding]:
        """Findings about files that the store did not return."""
        return [finding for finding in self.findings if finding.kind == "unreadable"]

    @property
    def is_damaged(self) -> bool:
        """True if there are findings that count. Findings about leases of readers, unreadable files
        and abandoned epochs do not.
        """
        return any(
            finding.kind not in ("unreadable", "lease")
            and not (finding.epochs and all(map(self.is_abandoned, finding.epochs)))
            for finding in self.findings
        )

    def is_abandoned(self, epoch: int) -> bool:
        """Return whether an epoch was rolled back, so that it is not part of the history."""
        return any(first <= epoch <= last for first, last in self.abandoned)

    def affecting(self, epoch: int) -> list[Finding]:
        """Return the findings about an epoch."""
        return [finding for finding in self.findings if epoch in finding.epochs]


def finding_kind(error: Exception, otherwise: FindingKind) -> FindingKind:
    """Return the kind of finding for an error: "unreadable" if the store failed, else
    `otherwise`.
    """
    return "unreadable" if isinstance(error, StorageError) else otherwise


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
        if path in named or folder in _NO_STATE:
            continue
        names = (paths.EPOCH_NAME, paths.CLOSED_NAME, paths.LEASE_NAME)
        if any(name.fullmatch(path) for name in names):
            continue
        if path == paths.note_path(last + 1) or folder == paths.HELD:
            continue  # the epoch that was begun, and those of readers
        yield Orphan(path, _kind(path, folder), file.size, datetime_to_micros(file.modified))


def _kind(path: str, folder: str) -> OrphanKind:
    if folder == paths.DATA:
        of_attempt = (f".{paths.CHANGES}", f".{paths.PAGE}")
        return "lost attempt" if path.endswith(of_attempt) else "pending base"
    if folder == paths.TMP or "#" in path:
        return "draft"
    if folder == paths.BEGUN:
        return "note"
    return "job file" if _JOB.fullmatch(path) else "unknown"
