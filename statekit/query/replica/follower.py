"""Follower: copies of operators that are at one epoch, and advance to the next one.

    <directory>/lock            held by the process that uses it
    <directory>/copies-<checkpoint id>/<operator>/<unique>/
                                a copy of an operator (`operator_copy`)

Every operator has one copy. For a new epoch, the change files of the epoch are applied to all
copies. If change files do not lead to the epoch, as after a rollback, or if the follower is too
far behind, new copies are restored beside the old ones.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.job_file import JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import follows_by_files
from statekit.checkpoint.retention import held
from statekit.clock import unique_id
from statekit.errors import QueryError, StatekitError, StorageError
from statekit.query.replica.operator_copy import EpochRows, OperatorCopy, Position
from statekit.query.replica.replica_directory import locked
from statekit.query.rows.epochs import EpochReader, have_other_shards, next_manifest
from statekit.query.rows.state_rows import record_of_operator
from statekit.working_copy.uploaded_tables import forget_stored_below

# Nothing else in the directory is ever removed: it may not be ours.
_COPIES_NAME = re.compile(r"copies-[0-9a-f]{32}")


class Follower:
    """Copies of operators that follow a checkpoint. One thread may use it at a time.

    Parameters:
        reader: of the checkpoint.
        directory: of the copies, for this process alone.
        operators: names of the operators; None for all.
        key_groups: the first and the last key group; None for all.
        options: limits of RocksDB.

    Attributes:
        manifest: of the epoch that the copies are at; None before the first.
        latest: the last committed epoch that is known.
        is_rebuilding: True while copies are being restored.
        lock: of the directory.
        times_begun_again: number of times that copies were restored at an epoch that may not
            continue the one before: the checkpoint was replaced by another version of it, or the
            epochs between them were collected.

    Raises:
        QueryError: the directory is used by another process.
        StorageError: the directory cannot be created or locked.
    """

    def __init__(
        self,
        reader: EpochReader,
        directory: Path,
        operators: Sequence[str] | None,
        key_groups: tuple[int, int] | None,
        options: RocksOptions,
    ) -> None:
        self.reader = reader
        self.directory = directory
        self._operators = None if operators is None else tuple(operators)
        self._key_groups = key_groups
        self._options = options
        self.manifest: EpochManifest | None = None
        self.latest: int | None = None
        self.is_rebuilding = False
        self.times_begun_again = 0
        self._copies: dict[str, OperatorCopy] = {}
        self._replaced: list[OperatorCopy] = []
        self.lock = locked(directory)

    @property
    def is_at_an_epoch(self) -> bool:
        """True if all copies are at the same epoch, and no part of a later one was applied."""
        return self.manifest is not None and all(
            copy.position.applying is None for copy in self._copies.values()
        )

    @property
    def epoch_id(self) -> EpochId | None:
        """The identity of the epoch that the copies are at; None before the first."""
        if self.manifest is None:
            return None
        for copy in self._copies.values():
            return EpochId(copy.position.epoch, copy.position.manifest)
        return self.manifest.id

    def rows(self) -> dict[str, EpochRows]:
        """Return the rows of each operator at the epoch of the copies."""
        return {name: copy.rows() for name, copy in self._copies.items()}

    def groups(self, job: JobFile) -> tuple[int, int]:
        """Return the first and the last key group of the copies.

        Raises:
            QueryError: the checkpoint does not have them.
        """
        if self._key_groups is None:
            return 0, job.key_groups - 1
        first, last = self._key_groups
        if not 0 <= first <= last < job.key_groups:
            raise QueryError(
                f"key_groups={self._key_groups}: the checkpoint has the key groups 0 to "
                f"{job.key_groups - 1}; give the first and the last one"
            )
        return first, last

    # ------------------------------------------------------------------------------- the start

    def start(self) -> bool:
        """Open the copies of an earlier process, or restore them at the last epoch.

        Returns:
            False if nothing is committed yet.

        Raises:
            QueryError: there is no such operator or key group.
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed.
        """
        latest = self.reader.latest()
        if latest is None:
            return False
        job = self.reader.job_file(latest)
        copies = self._reopened(job, self._records(job), self.groups(job))
        if copies is not None:
            self.manifest = self._position_of(copies)
            if self.manifest is not None:
                self._copies, self.latest = copies, self.manifest.epoch
                return True
            self._replaced += copies.values()  # their tables may be linked
        self.restore(latest)
        return True

    def _records(self, job: JobFile) -> list[OperatorRecord]:
        if self._operators is None:
            return [*job.operators]
        return [record_of_operator(job, name) for name in self._operators]

    def _copies_of(self, job: JobFile) -> Path:
        return self.directory / f"copies-{job.id}"

    def _home(self, job: JobFile, operator: str) -> Path:
        return self._copies_of(job) / operator

    def _reopened(
        self, job: JobFile, records: Sequence[OperatorRecord], groups: tuple[int, int]
    ) -> dict[str, OperatorCopy] | None:
        """Return the copies of an earlier process; None if one is missing. Remove all others."""
        self._remove_others(job, {record.name for record in records})
        copies: dict[str, OperatorCopy] = {}
        for record in records:
            for home in sorted(self._home(job, record.name).glob("*")):
                copy = None
                if record.name not in copies:
                    copy = OperatorCopy.reopen(record, groups, home, self._options)
                if copy is None:
                    shutil.rmtree(home, ignore_errors=True)
                else:
                    copies[record.name] = copy
        if len(copies) == len(records):
            return copies
        for copy in copies.values():
            copy.remove()
        return None

    def _remove_others(self, job: JobFile, operators: set[str]) -> None:
        """Remove copies of another checkpoint, and of operators that are not followed."""
        for path in self.directory.glob("*"):
            if _COPIES_NAME.fullmatch(path.name) and path != self._copies_of(job):
                shutil.rmtree(path, ignore_errors=True)
        for path in self._copies_of(job).glob("*"):
            if path.name not in operators:
                shutil.rmtree(path, ignore_errors=True)

    def _position_of(self, copies: Mapping[str, OperatorCopy]) -> EpochManifest | None:
        """Return the manifest of the earliest epoch of copies that are at most one epoch apart.

        A process that was killed may have advanced only some of the copies. Those apply the files
        of that epoch once more, which changes nothing.

        Returns:
            None if they are further apart, or the checkpoint does not have the epochs any more.
        """
        first = min((copy.position.epoch for copy in copies.values()), default=0)
        try:
            manifest = self.reader.manifest(first)
            before = Position.at(manifest)
            for copy in copies.values():
                if copy.position.epoch == first + 1:
                    after = Position.at(self.reader.manifest(first + 1))
                    if copy.position.manifest != after.manifest or copy.position.applying:
                        return None
                    copy.position = before.model_copy(update={"applying": after.manifest})
                elif copy.position.manifest != before.manifest:
                    return None
        except StatekitError:
            return None
        return manifest

    # --------------------------------------------------------------------------- the next epoch

    def advance(self, *, thorough: bool = True) -> bool:
        """Apply the next epoch. Return False if there is no next epoch.

        Parameters:
            thorough: if there is no next epoch, check that the checkpoint has no later one.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed. The next call tries again.
        """
        last, repository = self.manifest, self.reader.repository
        if last is None:
            return False
        try:
            after = next_manifest(repository, last, thorough=thorough)
        except QueryError:  # it was collected, or the checkpoint was replaced
            after = self.reader.latest()
            if after is None:
                raise
            self.restore(after)
            self.times_begun_again += 1
            return True
        if after is None:
            self.latest = last.epoch
            return False
        self.apply(after)
        return True

    def apply(self, after: EpochManifest) -> None:
        """Apply the change files of an epoch. If they do not lead to it, restore copies at it.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed. Another call tries again.
        """
        self.latest = after.epoch
        last = self.manifest
        if last is None or not self._leads_to(last, after):
            self.restore(after)
            return
        for copy in self._copies.values():
            copy.advance(self.reader.repository, last, after)
        self.manifest = after

    def _leads_to(self, last: EpochManifest, after: EpochManifest) -> bool:
        """Return whether change files lead from the copies to an epoch."""
        if not follows_by_files(last, after):
            return False
        applied = after.id.manifest  # by an earlier try, completely or in part
        for position in (copy.position for copy in self._copies.values()):
            is_there = position.epoch == last.epoch or position.manifest == applied
            if not is_there or position.applying not in (None, applied):
                return False
        for copy in self._copies.values():
            # A copy of a part of the key groups does not follow all shards of the epoch before.
            is_part = copy.groups != (0, after.key_groups - 1)
            if (
                is_part
                and copy.has_operator_state
                and have_other_shards(last, after, copy.operator)
            ):
                return False
        records = self._records(self.reader.job_file(after))
        states = {record.name: record.holds for record in records}
        return states == {name: copy.states for name, copy in self._copies.items()}

    def restore(
        self, manifest: EpochManifest, keep: Mapping[str, OperatorCopy] | None = None
    ) -> None:
        """Restore copies at an epoch beside the present ones, and replace those.

        Parameters:
            keep: copies that are at the epoch, by operator; None to restore all.

        Raises:
            QueryError: there is no such operator or key group.
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed.
        """
        self.latest = manifest.epoch
        self.is_rebuilding = True
        keep = keep or {}
        copies: dict[str, OperatorCopy] = {}
        try:
            with contextlib.ExitStack() as holding:
                with contextlib.suppress(StorageError):  # the checkpoint is not writable
                    holding.enter_context(held(self.reader.repository, manifest.epoch))
                job = self.reader.job_file(manifest)
                groups = self.groups(job)
                for record in self._records(job):
                    if record.name not in keep:
                        home = self._home(job, record.name) / unique_id()
                        copies[record.name] = OperatorCopy.restore(
                            self.reader.repository, manifest, record, groups, home, self._options
                        )
        except BaseException:
            for copy in copies.values():
                copy.remove()
            raise
        finally:
            self.is_rebuilding = False
        self._replaced += (copy for name, copy in self._copies.items() if name not in keep)
        self._copies, self.manifest = {**keep, **copies}, manifest

    @property
    def damaged(self) -> list[str]:
        """Names of the operators whose copies have damaged files."""
        return [name for name, copy in self._copies.items() if copy.is_damaged]

    def repair(self) -> None:
        """Restore the damaged copies; all copies if their epoch is not kept any more.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed. Another call tries again.
        """
        intact = {name: copy for name, copy in self._copies.items() if not copy.is_damaged}
        for name in self.damaged:
            forget_stored_below(self._copies[name].home.parent)
        last = self.manifest if self.is_at_an_epoch else None
        with contextlib.suppress(QueryError):  # it was collected
            if last is not None and (kept := self.reader.manifest(last.epoch)) == last:
                self.restore(kept, intact)
                return
        latest = self.reader.latest()
        if latest is not None:
            self.restore(latest)
            self.times_begun_again += 1

    # ------------------------------------------------------------------------------- the end

    def remove_unread(self) -> None:
        """Remove the replaced copies that no view reads any more."""
        replaced, self._replaced = self._replaced, []
        for copy in replaced:
            if copy.is_read:
                self._replaced.append(copy)
            else:
                copy.remove()

    def close(self) -> None:
        """Close all copies, and release the directory. Their rows must not be read any more."""
        for copy in self._replaced:
            copy.remove()
        for copy in self._copies.values():
            with contextlib.suppress(StatekitError):  # the files stay, and are opened again or not
                copy.close()
        self._replaced, self._copies = [], {}
        self.lock.release()
