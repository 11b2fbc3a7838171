"""Findings of `statekit verify`, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from statekit.errors import StatekitError, StorageError
from statekit.maintenance.verify.orphans import Orphan

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
]
"""What is wrong; `unreadable` is what the store would not give, which says nothing of the file."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Parameters:
        kind: what it is.
        what: is wrong, for people, and what to do.
        brief: the same in a few words, of a file whose bytes are not as they should be.
        path: the file; None where it is no file.
        epochs: those that it affects.
        operator, shard, state: whose rows they are; the shard by its first and last key group.
        rows: how many rows are wrong in the same way.
        row_keys: those of the first of them, as hex.
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


@dataclass
class Verification:
    """What was looked at, and what was found.

    Attributes:
        url: where.
        epochs: all epochs that are kept, also those whose manifests are missing.
        given_up: how many epochs a collector gave up while they were looked at.
        abandoned: those that were rolled back, as ranges, first and last.
        looked_at: those whose files were checked.
        rows_of: those whose rows were checked.
        findings: what is wrong.
        orphans: files that nothing names. They are no damage.
        has_all_names: whether all files that name others could be read; if not, what looks like an
            orphan may be none.
        files, bytes, rows: how much was checked.
        pickled: `operator.state` of values that were not looked into.
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
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def unread(self) -> list[Finding]:
        """What the store would not give."""
        return [finding for finding in self.findings if finding.kind == "unreadable"]

    @property
    def is_damaged(self) -> bool:
        """Whether anything is wrong that counts: with more than epochs that were rolled back."""
        return any(
            finding.kind != "unreadable"
            and not (finding.epochs and all(map(self.is_abandoned, finding.epochs)))
            for finding in self.findings
        )

    def is_abandoned(self, epoch: int) -> bool:
        """Return whether an epoch was rolled back, and is no part of the history."""
        return any(first <= epoch <= last for first, last in self.abandoned)

    def affecting(self, epoch: int) -> list[Finding]:
        """What is wrong with an epoch."""
        return [finding for finding in self.findings if epoch in finding.epochs]


def kind_of(error: StatekitError, otherwise: FindingKind) -> FindingKind:
    """What kind of finding an error is: that of what was read, unless the store failed."""
    return "unreadable" if isinstance(error, StorageError) else otherwise
