"""Repair: commit a new epoch from the intact parts of a damaged checkpoint.

A repair is an epoch, committed with create-if-absent like any other. Nothing is ever removed. There
are two kinds:

1. If only indexes, counts or wake times of the last epoch are wrong, they are computed again from
  the rows, which are intact. The new epoch follows the last one. Unreadable rows are left out only
  on request, and kept in a file beside the state.
2. If a file is missing or altered, its contents are not guessed. The new epoch has the state of the
  last intact epoch, as after a rollback, and later input is read again. A shard never goes back
  alone: its state would no longer fit the others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from statekit.backend.change_file import Changes
from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.offline import check_at_rest
from statekit.checkpoint.paths import CHANGES, REPAIRS
from statekit.checkpoint.references import changed_contents
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import Rollback, check_can_go_back, finish, standing_at
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.maintenance.verify.findings import FindingKind, Verification
from statekit.maintenance.verify.row_checks import INDEXED, RowChecks, RowFault
from statekit.maintenance.verify.verify import verify
from statekit.working_copy.unpacked_shard import ShardRows

_FOLLOWS: frozenset[FindingKind] = frozenset({"timer index", "expiry index", "count", "wake"})
"""Families that are derived from other rows."""

_ROWS: frozenset[FindingKind] = frozenset({"row", "key group"})

_ROUNDS = 3  # a row that is left out may leave its index row, which the next round deletes


@dataclass(frozen=True)
class Repaired:
    """A completed repair.

    Parameters:
        manifest: the new epoch.
        target: the epoch whose state it has; for a mended one, the last epoch.
        is_mended: whether it is the last epoch, mended, and not an earlier one.
        mended: number of index rows that were written or deleted.
        left_out: number of unreadable rows that were left out.
        put_aside: files with those rows.
    """

    manifest: EpochManifest
    target: EpochManifest
    is_mended: bool
    mended: int = 0
    left_out: int = 0
    put_aside: tuple[str, ...] = ()


def repair(
    repository: Repository, verification: Verification, *, drop_rows: bool = False
) -> Repaired | None:
    """Commit an intact epoch. Return None if the last epoch is already intact.

    Spark's part of a repair or rollback that was killed is completed.

    Parameters:
        verification: a verification of the whole checkpoint.
        drop_rows: leave out rows that are unreadable or in a wrong key group, and keep them in a
            file beside the state.

    Raises:
        RestoreError: nothing intact is left, Spark's part cannot be set back, or an epoch was begun
            and must be completed first.
        FencedError: a run committed an epoch meanwhile. Nothing was changed.
    """
    if not verification.epochs:
        raise RestoreError(
            f"{repository.url} has no epoch left to go back to. Nothing was changed: restore the "
            "checkpoint from a backup, or start a new one from a savepoint"
        )
    last = verification.epochs[-1]
    wrong = {finding.kind for finding in verification.affecting(last)}
    if "unreadable" in {finding.kind for finding in verification.findings}:
        raise RestoreError(
            f"{repository.url}: some files could not be read, so the damage is unknown. Nothing "
            "was changed: verify again when the store answers"
        )
    if not wrong:
        if repository.latest_epoch() == last:  # else a job has gone on from there
            newest = repository.manifest(last)
            if newest.sets_spark_back:
                finish(repository, newest)
        return None
    if wrong == {"spark"}:
        raise RestoreError(
            f"{repository.url}: the state is intact, and Spark's part is damaged; it cannot be "
            "computed from the state. Nothing was changed: restore both from one backup, or write "
            "a savepoint of an epoch that Spark still has and start a new checkpoint from it"
        )
    if wrong <= (_FOLLOWS | _ROWS if drop_rows else _FOLLOWS):
        return _mend(repository, repository.manifest(last))
    return _go_back(repository, verification, drops=wrong & _ROWS != set() and not drop_rows)


# ------------------------------------------------------------------------------------ going back


def _go_back(repository: Repository, verification: Verification, *, drops: bool) -> Repaired:
    """Commit an epoch with the state of the last intact one."""
    newest, target = _newest(repository, verification), _last_intact(repository, verification)
    if newest is None or target is None:
        instead = " `--drop-rows` leaves out the rows that cannot be read." if drops else ""
        raise RestoreError(
            f"{repository.url} has no intact epoch to go back to. Nothing was changed: restore the "
            "files listed above from a backup, or start a new checkpoint from a "
            f"savepoint.{instead}"
        )
    if max(repository.spark_batches("offsets"), default=-1) < (newest.batch or 0) - 1:
        raise RestoreError(
            f"{repository.url}: Spark's part is before epoch {newest.epoch}, so an unreadable "
            "epoch was a rollback, and its target is unknown. Nothing was changed: restore the "
            "manifests listed above from a backup"
        )
    check_can_go_back(repository, target, newest)
    manifest = standing_at(
        target,
        cause="repair",
        epoch=verification.epochs[-1] + 1,
        processing_time_us=max(target.processing_time_us, newest.processing_time_us),
    )
    Rollback(repository, newest, target, manifest, is_committed=False).carry_out()
    return Repaired(manifest, target, is_mended=False)


def _newest(repository: Repository, verification: Verification) -> EpochManifest | None:
    """Return the last manifest that is readable."""
    for epoch in reversed(verification.epochs):
        try:
            return repository.manifest(epoch)
        except CorruptCheckpointError:
            continue
    return None


def _last_intact(repository: Repository, verification: Verification) -> EpochManifest | None:
    """Return the last epoch that was not rolled back and has an intact manifest, files and rows."""
    for epoch in reversed(verification.epochs[:-1]):
        if verification.affecting(epoch) or verification.is_abandoned(epoch):
            continue
        if verify(repository, epoch=epoch).is_intact:
            return repository.manifest(epoch)
    return None


# --------------------------------------------------------------------------------------- mending


def _mend(repository: Repository, last: EpochManifest) -> Repaired:
    """Compute indexes, counts and wake times again."""
    check_at_rest(repository, last)
    stored = repository.job_file(last.job_file.path)
    mending = _Mending(repository, last)
    operators = {}
    for name, epoch in last.operators.items():
        record = stored.operator(name)
        assert record is not None, "the manifest was checked against the job file"
        operators[name] = mending.operator(record, epoch)
    check_at_rest(repository, last)  # mending takes its time
    manifest = last.followed_by(cause="repair", operators=operators)
    repository.commit(manifest)
    repository.remove_note(manifest.epoch)
    finish(repository, manifest)
    return Repaired(
        manifest,
        last,
        is_mended=True,
        mended=mending.mended,
        left_out=mending.left_out,
        put_aside=tuple(mending.put_aside),
    )


@dataclass
class _Mending:
    """Repairs the shards of an epoch, one after the other.

    Attributes:
        mended, left_out: number of rows.
        put_aside: files with the rows that are left out.
    """

    repository: Repository
    last: EpochManifest
    mended: int = 0
    left_out: int = 0
    put_aside: list[str] = field(default_factory=list)

    def operator(self, record: OperatorRecord, epoch: OperatorEpoch) -> OperatorEpoch:
        """Return an operator after the repair, with all shards counted and without records."""
        rows = ShardRows(self.repository, record.name, self.last)
        checks = RowChecks(record, self.last.key_groups)
        shards = [self._shard(record, shard, rows, checks) for shard in epoch.shards]
        return epoch.at_rest(shards, undivided_rows={}, undivided_bytes={})

    def _shard(
        self, record: OperatorRecord, shard: ShardState, rows: ShardRows, checks: RowChecks
    ) -> ShardState:
        with contextlib.closing(_Changes(record, checks)) as changes:
            with rows.opened(shard, checks.families) as backend:
                self._settle(record.name, shard, backend, checks, changes)
            files = tuple(
                self.repository.put_changes(record.name, *finished, local=local)
                for change_file, local in ((changes.by_key, False), (changes.of_shard, True))
                if (finished := change_file.finish()) is not None
            )
            if (left_out := changes.aside.finish()) is not None:  # no command reads this file
                folder = f"{REPAIRS}/{self.last.epoch + 1:020d}"
                path = f"{folder}/{record.name}-{unique_id()}.{CHANGES}"
                self.repository.put_file(path, *left_out)
                self.put_aside.append(path)
        counted = _counted(shard, checks)
        if files:
            counted |= {"attempt": unique_id(), "changed": self.last.epoch + 1}
            changed = dict.fromkeys((*shard.redistributed, *files), 0)
            counted |= changed_contents(self.repository, record.name, shard, changed)
        return shard.model_copy(update=counted)

    def _settle(
        self, name: str, shard: ShardState, backend: Backend, checks: RowChecks, changes: _Changes
    ) -> None:
        """Repair faults until none is left.

        Raises:
            CorruptCheckpointError: a repaired fault appears again.
        """
        for _ in range(_ROUNDS):
            before = self.mended + self.left_out
            for fault in checks.check(backend, shard.groups):
                if fault.mend is not None:
                    self.mended += 1
                else:
                    self.left_out += 1
                changes.add(fault, backend)
            changes.apply(backend)
            if self.mended + self.left_out == before:
                return
        raise CorruptCheckpointError(
            f"shard {shard.groups} of operator {name!r} cannot be repaired: repaired rows "
            "are wrong again. Nothing was changed: restore the checkpoint from a backup"
        )


class _Changes:
    """The changes that repair one shard.

    Attributes:
        by_key, of_shard: changes of keyed state with its indexes, and of operator state.
        aside: the rows that are left out.
    """

    def __init__(self, operator: OperatorRecord, checks: RowChecks) -> None:
        stored = tuple(family for family in checks.families if family != INDEXED)
        self._local = {state.name for state in operator.states if state.is_local}
        self.by_key, self.of_shard, self.aside = Changes(stored), Changes(stored), Changes(stored)
        self._batches = {self.by_key: Batch(), self.of_shard: Batch(), self.aside: Batch()}

    def add(self, fault: RowFault, backend: Backend) -> None:
        """Add the change that repairs a fault. A row without a repair is stored aside and
        deleted.
        """
        batch = self._batches[self.of_shard if fault.family in self._local else self.by_key]
        if fault.mend is not None:
            batch.append(*fault.mend)
        else:
            row = backend.get(fault.family, fault.row_key) or b""
            self._batches[self.aside].put(fault.family, fault.row_key, row)
            batch.delete(fault.family, fault.row_key)
        if any(batch.full for batch in self._batches.values()):
            self.apply(backend)

    def apply(self, backend: Backend) -> None:
        """Make the added changes."""
        for changes, batch in self._batches.items():
            if len(batch):
                changes.append(batch)
                if changes is not self.aside:
                    backend.write(batch)
                batch.clear()

    def close(self) -> None:
        """Delete the local files of changes that were not stored."""
        for changes in self._batches:
            changes.drop()


def _counted(shard: ShardState, checks: RowChecks) -> dict[str, Any]:
    """Return the counted size of a shard and its wake times, as fields of its `ShardState`."""
    wake = dict(shard.wake_us)
    for clock, due in checks.soonest.items():
        wake[clock] = min(due, wake.get(clock, due))
    return {
        "rows": {name: size.rows for name, size in checks.sizes.items()},
        "bytes": {name: size.bytes for name, size in checks.sizes.items()},
        "wake_us": wake,
        "is_part": False,
    }
