"""The lifecycle of a base snapshot: a shard takes it, uploads it, and a manifest references it.

A shard takes a base at the end of an epoch, which costs a hard link per file. The upload runs
beside the next epochs. When the shard runs on this host again and the upload is finished, the shard
references the base and drops the change files that the base contains. A kill, a full disk or a
shard that moves to another host loses the work on a base and nothing else: the change files stay
until a manifest references the base.

A base may reference tables that the base before it uploaded. These stay in the checkpoint as long
as a manifest references the older base. So the new base is used only if the shard still references
the older one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from statekit.backend.change_file import Changes
from statekit.backend.interface import Backend
from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import last_file, missed_files, shard_restore_plan
from statekit.checkpoint.retention import STAGED_FOR, may_adopt
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.clock import now_us, unique_id
from statekit.errors import CorruptCheckpointError, StatekitError
from statekit.working_copy.base_options import SLACK_MAX, SMALL_BYTES, BaseOptions
from statekit.working_copy.base_snapshot import Finished, Staged, StagedSnapshot
from statekit.working_copy.clipping import Database
from statekit.working_copy.directory import WHOLE, Ranges, database_paths
from statekit.working_copy.uploaded_tables import (
    note_stored,
    pass_on_note,
    read_stored,
    table_bytes,
)
from statekit.working_copy.uploader import uploader

_logger = logging.getLogger("statekit.base_keeping")

_OF_USE_US = int(STAGED_FOR.total_seconds()) * 1_000_000
"""Older work is abandoned, because a manifest could not reference its files any more."""


@dataclass(frozen=True)
class BaseLifecycle:
    """The base snapshots of one working copy.

    Parameters:
        home: the directory of the copy.
        plan: the plan of the shard in this epoch.
        repository: the checkpoint.
        options: when a base is taken.
        rocks: limits of RocksDB.
        fragments: the databases of the copy.
    """

    home: Path
    plan: ShardPlan
    repository: Repository
    options: BaseOptions
    rocks: RocksOptions
    fragments: Ranges = WHOLE

    @property
    def must_count_rows(self) -> bool:
        """True if the rows of the shard must be counted: once, when a base may be due.

        The size of a part is unknown, and its base must be within the upload budget. The answer
        depends on the plan alone, so that two attempts at the shard report the same.
        """
        base = self.plan.base
        return base.is_part and self.options.is_due(base.chain, 0)

    # ---------------------------------------------------------------------------- using a base

    def newest_base(self) -> ShardState:
        """Return the shard before the epoch, on the newest base with a finished upload.

        A base that was uploaded and cannot be used is dropped. The change files have the same rows.

        Raises:
            CorruptCheckpointError: a file of the shard is missing or altered.
            StorageError: the store failed.
        """
        shard = self.plan.base
        for snapshot, finished in self._finished():
            try:
                if shard.base is not None and shard.base.path == finished.base.path:
                    self._adopt_tables(snapshot, finished)
                elif (based := self._based(finished)) is None:
                    self._drop(snapshot, "it does not lead to the rows that the shard has now")
                else:  # a copy of a model is not validated when it is made
                    return ShardState.model_validate(based.model_dump())
            except StatekitError:
                raise
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                self._drop(snapshot, f"{type(error).__name__}: {error}")
        return shard

    def _drop(self, snapshot: StagedSnapshot, why: str) -> None:
        _logger.warning(
            "%s, a base of %s, is dropped: %s. The job continues with the "
            "change files, and a later epoch takes another one",
            snapshot.place,
            self._shard,
            why,
        )
        snapshot.remove()

    def _adopt_tables(self, snapshot: StagedSnapshot, finished: Finished) -> None:
        """Record the tables of a base that a manifest references, and remove the staged files."""
        if self._is_smaller(snapshot, finished):
            return  # the copy is assembled again from these tables
        staged = finished.staged
        try:
            for source, path in zip(snapshot.databases(staged), self._paths, strict=False):
                pass_on_note(source, staged.relies_on, path, finished.base.path)
        except OSError:  # the disk is full, say: a later epoch tries again
            return
        snapshot.remove()

    def replaces_copy(self) -> bool:
        """Return whether the copy should be assembled again from the shard's base, whose files are
        on this host.

        A copy that was cut out of other shards keeps their tables, with invisible rows of other key
        groups. Its base was merged before the upload and has no such rows.
        """
        base = self.plan.base.base
        try:
            return base is not None and any(
                finished.base.path == base.path and self._is_smaller(snapshot, finished)
                for snapshot, finished in self._finished()
            )
        except OSError:
            return False  # its tables are not here

    def _is_smaller(self, snapshot: StagedSnapshot, finished: Finished) -> bool:
        """Return whether a base is much smaller than the copy. False if the copy was assembled from
        that base.
        """
        staged = finished.staged
        if not staged.is_cut or any(read_stored(path, finished.base.path) for path in self._paths):
            return False
        size = sum(map(table_bytes, snapshot.databases(staged)))
        return sum(map(table_bytes, self._paths)) > max(SLACK_MAX * size, SMALL_BYTES)

    def _based(self, finished: Finished) -> ShardState | None:
        """Return the shard on this base; None if the base does not precede the shard's state."""
        shard, staged = self.plan.base, finished.staged
        current = None if shard.base is None else shard.base.path
        if staged.relies_on not in (None, current) or staged.shard != shard.groups:
            return None
        try:
            base = self.repository.sealed(BaseSnapshot, finished.base)
        except CorruptCheckpointError:
            return None
        if not may_adopt(self.repository, finished.base.path, base, self.plan):
            return None
        later = missed_files(
            self.repository, self.plan.operator, shard, self.plan.base_epoch, staged.follows
        )
        if later is None:
            return None
        chain = shard.chain.based(later, finished.uploaded)
        contents = {"base": finished.base, "history": None, "slices": (), "files": later}
        return shard.model_copy(update={**contents, "is_complete": True, "chain": chain})

    # --------------------------------------------------------------------------- taking a base

    def take(self, shard: ShardState, backend: Database, local_states: Collection[str]) -> None:
        """Take a base if one is due, and start its upload. Correctness does not depend on it.

        Parameters:
            shard: the shard after the epoch.
            backend: its rows after the epoch.
            local_states: names of the states that belong to the shard.

        Raises:
            StorageError: the copy cannot be flushed, which would fail the epoch anyway.
        """
        row_bytes = shard.row_bytes
        if (
            shard.attempt == self.plan.base.attempt
            or row_bytes is None  # a part is counted first
            or not self.options.is_due(shard.chain, row_bytes)
        ):
            return
        if snapshots := self._snapshots():
            for snapshot in snapshots:
                self._resume(snapshot)
            return
        backend.flush()
        try:
            base, paths = shard.base, self._paths
            stored = [{} if base is None else read_stored(path, base.path) for path in paths]
            choice = self.options.choice(
                shard.chain,
                size=sum(map(table_bytes, paths)),
                new_bytes=sum(map(table_bytes, paths, stored)),  # the checkpoint has the others
                row_bytes=row_bytes,
            )
            # A base must not contain expired rows that are still to be removed.
            if choice != "none" and not self.plan.clocks_due(shard):
                self._stage(shard, backend, local_states, stored, merged=choice == "merged")
        except (OSError, StatekitError) as error:  # the epoch does not need it
            _logger.warning(
                "no base of %s could be taken, which a later epoch tries again: %s",
                self._shard,
                error,
            )

    def _stage(
        self,
        shard: ShardState,
        backend: Database,
        local_states: Collection[str],
        stored: Sequence[dict[str, FileRef]],
        *,
        merged: bool,
    ) -> None:
        """Link the files of the databases into a new directory, write its description, and submit
        the upload.
        """
        plan = self.plan
        base = shard.base.path if shard.base is not None and any(stored) else None
        snapshot = StagedSnapshot(self.home / "snapshots" / unique_id())
        snapshot.place.mkdir(parents=True)
        try:
            paths = [snapshot.database(number) for number in range(len(stored))]
            backend.snapshot(paths)
            for path, refs in zip(paths, stored, strict=True):
                note_stored(path, base, refs)
            rows = _write_local(backend, shard, local_states, snapshot.local_changes)
            snapshot.seal(
                Staged(
                    operator=plan.operator,
                    shard=shard.groups,
                    attempt=shard.attempt or "",
                    epoch=plan.epoch,
                    states=tuple(backend.states),
                    follows=last_file(shard) or "",
                    databases=self.fragments if len(stored) > 1 else (shard.groups,),
                    local_rows=rows,
                    relies_on=base,
                    relied=tuple(ref.path for refs in stored for ref in refs.values()),
                    merged=merged,
                    is_cut=shard.base is None and self._was_cut(),
                    begun_us=now_us(),
                )
            )
        except BaseException:
            shutil.rmtree(snapshot.place, ignore_errors=True)
            raise
        self._submit(snapshot)

    def _was_cut(self) -> bool:
        """Return whether the shard, which has no base, consists of slices of other shards."""
        base, epoch = self.plan.base, self.plan.base_epoch
        return bool(shard_restore_plan(self.repository, self.plan.operator, base, epoch).below)

    def _resume(self, snapshot: StagedSnapshot) -> None:
        """Resume work of a killed process, or remove it if it is too old."""
        staged = snapshot.staged  # None if the process died before, or had another version
        if staged is not None and snapshot.finished is not None:
            return
        if staged is not None and 0 <= now_us() - staged.begun_us < _OF_USE_US:
            self._submit(snapshot)
        else:
            snapshot.remove()

    def _submit(self, snapshot: StagedSnapshot) -> None:
        upload = partial(snapshot.upload, self.repository, self.rocks)
        uploader().submit(str(snapshot.place), upload)

    # ----------------------------------------------------------------------------------- helpers

    @property
    def _shard(self) -> str:
        return f"operator {self.plan.operator!r}, key groups {self.plan.base.groups}"

    @property
    def _paths(self) -> list[Path]:
        return database_paths(self.home, self.fragments)

    def _snapshots(self) -> list[StagedSnapshot]:
        return [StagedSnapshot(place) for place in sorted((self.home / "snapshots").glob("*"))]

    def _finished(self) -> Iterator[tuple[StagedSnapshot, Finished]]:
        """Yield the snapshots whose upload is finished."""
        for snapshot in self._snapshots():
            if (finished := snapshot.finished) is not None:
                yield snapshot, finished


def _write_local(backend: Backend, shard: ShardState, states: Collection[str], target: Path) -> int:
    """Write the state of the shard to a change file, and return the number of mutations."""
    bounds = group_bounds(*shard.groups)
    changes = Changes(tuple(backend.states))
    local = [state for state in backend.states if state in states]
    for batch in in_batches((s, *row) for s in local for row in backend.scan(s, *bounds)):
        changes.append(batch)
    finished = changes.finish()
    if finished is None:
        return 0
    file, rows = finished
    with file, target.open("wb") as copy:
        file.seek(0)
        shutil.copyfileobj(file, copy)
    return rows
