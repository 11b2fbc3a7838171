"""Findings of `statekit verify`, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from statekit.errors import StorageError
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
    "lease",
]
"""The kind of damage. `unreadable`: the store did not return a file, which says nothing about the
file. `lease`: of a reader, which does not count, because no state depends on it.
"""


@dataclass(frozen=True)
class Finding:
    """One finding.

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
        """Whether there are no findings."""
        return not self.findings

    @property
    def unread(self) -> list[Finding]:
        """Findings about files that the store did not return."""
        return [finding for finding in self.findings if finding.kind == "unreadable"]

    @property
    def is_damaged(self) -> bool:
        """Whether there are findings that count: about more than leases of readers and epochs that
        were rolled back.
        """
        return any(
            finding.kind not in ("unreadable", "lease")
            and not (finding.epochs and all(map(self.is_abandoned, finding.epochs)))
            for finding in self.findings
        )

    def is_abandoned(self, epoch: int) -> bool:
        """Return whether an epoch was rolled back, and is not in the history."""
        return any(first <= epoch <= last for first, last in self.abandoned)

    def affecting(self, epoch: int) -> list[Finding]:
        """Return the findings about an epoch."""
        return [finding for finding in self.findings if epoch in finding.epochs]


def kind_of(error: Exception, otherwise: FindingKind) -> FindingKind:
    """Return the kind of finding for an error: `otherwise`, unless the store failed."""
    return "unreadable" if isinstance(error, StorageError) else otherwise
