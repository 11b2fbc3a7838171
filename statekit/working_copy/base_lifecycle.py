"""The lifecycle of a base snapshot: when a shard takes one, and when a manifest references it.

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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from statekit.backend.change_file import Changes
from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.references import base_snapshot
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import RestorePlan, last_file, shard_restore_plan
from statekit.checkpoint.retention import STAGED_FOR, may_adopt
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import now_us, unique_id
from statekit.errors import CorruptCheckpointError, StatekitError
from statekit.working_copy.base_options import (
    SLACK_MAX,
    SMALL_BYTES,
    BaseOptions,
    Choice,
    DatabaseSize,
)
from statekit.working_copy.base_snapshot import Finished, Staged, StagedSnapshot
from statekit.working_copy.clipping import Database
from statekit.working_copy.directory import Ranges
from statekit.working_copy.uploaded_tables import note_stored, pass_on_note, read_stored, tables_in
from statekit.working_copy.uploader import uploader

_logger = logging.getLogger("statekit.base_keeping")

_OF_USE_US = int(STAGED_FOR.total_seconds()) * 1_000_000
"""Work that began longer ago is abandoned, because its files could not be referenced any more."""


@dataclass(frozen=True)
class Copy:
    """A working copy at the end of an epoch.

    Parameters:
        backend: the rows.
        fragments: its databases.
        paths: the directories of these databases.
    """

    backend: Database
    fragments: Ranges
    paths: Sequence[Path]


@dataclass(frozen=True)
class BaseKeeping:
    """The base snapshots of one working copy.

    Parameters:
        home: the directory of the copy.
        plan: the plan of the shard in this epoch.
        repository: the checkpoint.
        options: when a base is taken.
        rocks: limits of RocksDB.
    """

    home: Path
    plan: ShardPlan
    repository: Repository
    options: BaseOptions
    rocks: RocksOptions

    @property
    def needs_counts(self) -> bool:
        """Whether the rows of the shard must be counted: once, when a base may be due.

        The size of a part is unknown, and its base must be within the upload budget. The answer
        depends on the plan alone, so that two attempts at the shard report the same.
        """
        base = self.plan.base
        return base.is_part and self.options.is_worth_it(base.chain, 0)

    # --------------------------------------------------------------------------- relying on one

    def newest_base(self, paths: Sequence[Path]) -> ShardState:
        """Return the shard before the epoch, on the newest base whose upload is finished.

        A base that was uploaded and cannot be used is dropped. The change files have the same rows.

        Parameters:
            paths: the directories of the copy's databases.

        Raises:
            CorruptCheckpointError: a file of the shard is missing or altered.
            StorageError: the store failed.
        """
        for snapshot in self._snapshots():
            try:
                based = self._with_base(snapshot, paths)
                if based is not None:  # a copy of a model is not validated when it is made
                    return ShardState.model_validate(based.model_dump())
            except StatekitError:
                raise
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                self._drop(snapshot, f"{type(error).__name__}: {error}")
        return self.plan.base

    def _with_base(self, snapshot: StagedSnapshot, paths: Sequence[Path]) -> ShardState | None:
        """Return the shard on an uploaded base, or None if the base is not uploaded, in use or
        dropped.
        """
        shard, finished = self.plan.base, snapshot.finished
        if finished is None:
            return None
        if shard.base is not None and shard.base.path == finished.base.path:
            self._settle(snapshot, finished, paths)
            return None
        based = self._based(finished)
        if based is None:
            self._drop(snapshot, "it does not lead to the rows that the shard has now")
        return based

    def _drop(self, snapshot: StagedSnapshot, why: str) -> None:
        _logger.warning(
            "%s, a base of operator %r, key groups %s, is dropped: %s. The job continues with the "
            "change files, and a later epoch takes another one",
            snapshot.place,
            self.plan.operator,
            self.plan.base.groups,
            why,
        )
        snapshot.remove()

    def _settle(self, snapshot: StagedSnapshot, finished: Finished, paths: Sequence[Path]) -> None:
        """Record the tables of a base that a manifest references, and remove the staged files."""
        if self._is_cut_smaller(snapshot, finished, paths):
            return  # the copy is assembled again from these tables
        staged = finished.staged
        for number, path in zip(range(len(staged.databases)), paths, strict=False):
            source = snapshot.database(number)
            try:
                pass_on_note(source, staged.relies_on, path, finished.base.path)
            except OSError:  # the disk is full, say: a later epoch tries again
                return
        snapshot.remove()

    def is_outgrown(self, paths: Sequence[Path]) -> bool:
        """Return whether the copy should be assembled again from the shard's base, which is on this
        host.

        A copy that was cut out of other shards keeps their tables, with invisible rows of other key
        groups. Its base was merged before the upload and has no such rows.

        Parameters:
            paths: the directories of the copy's databases.
        """
        named = self.plan.base.base
        try:
            return named is not None and any(
                finished.base.path == named.path and self._is_cut_smaller(snapshot, finished, paths)
                for snapshot in self._snapshots()
                if (finished := snapshot.finished) is not None
            )
        except OSError:
            return False  # its tables are not here

    def _is_cut_smaller(
        self, snapshot: StagedSnapshot, finished: Finished, paths: Sequence[Path]
    ) -> bool:
        """Return whether a base is much smaller than the copy, and the copy was not assembled from
        it.
        """
        if not finished.staged.is_cut or any(read_stored(p, finished.base.path) for p in paths):
            return False
        staged = map(snapshot.database, range(len(finished.staged.databases)))
        return _table_bytes(paths) > max(SLACK_MAX * _table_bytes(staged), SMALL_BYTES)

    def _based(self, finished: Finished) -> ShardState | None:
        """Return the shard on that base, or None if the base is not a predecessor of the shard's
        state.
        """
        shard, staged = self.plan.base, finished.staged
        standing = None if shard.base is None else shard.base.path
        if staged.relies_on not in (None, standing) or staged.shard != shard.groups:
            return None
        if not self._may_adopt(finished):
            return None
        names = [file.path for file in shard.files]
        if staged.follows in names:
            later = shard.files[names.index(staged.follows) + 1 :]
        else:
            found = self._restore_plan()
            if staged.follows not in [file.path for file in found.files]:
                return None
            later = found.after(staged.follows) or ()
        return shard.model_copy(
            update={
                "base": finished.base,
                "history": None,
                "slices": (),
                "is_complete": True,
                "files": tuple(later),
                "chain": shard.chain.based(later, finished.uploaded),
            }
        )

    def _may_adopt(self, finished: Finished) -> bool:
        """Return whether the files of a base exist and stay, whatever was collected meanwhile."""
        try:
            base = base_snapshot(self.repository, finished.base)
        except CorruptCheckpointError:
            return False
        return may_adopt(self.repository, finished.base.path, base, self.plan)

    # ------------------------------------------------------------------------------- taking one

    def take(self, shard: ShardState, copy: Copy, local_states: Collection[str]) -> None:
        """Take a base if one is due, and start its upload. No correctness depends on it.

        Parameters:
            shard: the shard after the epoch.
            copy: its copy after the epoch.
            local_states: names of the states that belong to the shard.

        Raises:
            StorageError: the copy cannot be flushed, which would fail the epoch anyway.
        """
        row_bytes = shard.row_bytes
        if row_bytes is None or not self.options.is_worth_it(shard.chain, row_bytes):
            return  # a part is counted first
        if waiting := self._snapshots():
            for work in waiting:
                self._go_on(work)
            return
        copy.backend.flush()
        try:
            choice, known = self._choice(shard, copy, row_bytes)
            if choice != "none" and not _has_expired_rows(self.plan, shard):
                self._stage(shard, copy, local_states, known, merged=choice == "merged")
        except (OSError, StatekitError) as error:  # the epoch does not need it
            _logger.warning(
                "no base of operator %r, key groups %s could be taken, which a later epoch tries "
                "again: %s",
                self.plan.operator,
                shard.groups,
                error,
            )

    def _choice(
        self, shard: ShardState, copy: Copy, row_bytes: int
    ) -> tuple[Choice, list[dict[str, FileRef]]]:
        """Return what to upload, and the tables of each database that the checkpoint has
        already.
        """
        base = None if shard.base is None else shard.base.path
        tables = [tables_in(path) for path in copy.paths]
        known = [{} if base is None else read_stored(path, base) for path in copy.paths]
        new = (
            size
            for there, stored in zip(tables, known, strict=True)
            for name, size in there.items()
            if name not in stored
        )
        size = DatabaseSize(
            bytes=sum(sum(there.values()) for there in tables),
            new_bytes=sum(new),
            row_bytes=row_bytes,
        )
        return self.options.choice(shard.chain, size), known

    def _stage(
        self,
        shard: ShardState,
        copy: Copy,
        local_states: Collection[str],
        known: Sequence[dict[str, FileRef]],
        *,
        merged: bool,
    ) -> None:
        """Link the files of the databases into a new directory, describe them, and submit the
        upload.
        """
        base = shard.base.path if shard.base is not None and any(known) else None
        snapshot = StagedSnapshot(self._room("snapshots"))
        try:
            places = [snapshot.database(number) for number in range(len(copy.paths))]
            copy.backend.snapshot(places)
            for place, stored in zip(places, known, strict=True):
                held = tables_in(place)
                note_stored(place, base, {name: stored[name] for name in stored if name in held})
            rows = _write_local(copy.backend, shard, local_states, snapshot.local_changes)
            snapshot.seal(
                Staged(
                    operator=self.plan.operator,
                    shard=shard.groups,
                    attempt=shard.attempt or "",
                    epoch=self.plan.epoch,
                    states=tuple(copy.backend.states),
                    follows=last_file(shard) or "",
                    databases=copy.fragments if len(copy.fragments) > 1 else (shard.groups,),
                    local_rows=rows,
                    relies_on=base,
                    relied=tuple(ref.path for stored in known for ref in stored.values()),
                    merged=merged,
                    is_cut=shard.base is None and bool(self._restore_plan().below),
                    begun_us=now_us(),
                )
            )
        except BaseException:
            shutil.rmtree(snapshot.place, ignore_errors=True)
            raise
        self._hand_in(snapshot)

    def _go_on(self, work: StagedSnapshot) -> None:
        """Resume work that a killed process left, if it is still of use."""
        if (staged := work.staged) is None:
            work.remove()  # the process that began it died, or had another version
        elif work.finished is None:
            if _is_young(staged.begun_us):
                self._hand_in(work)
            else:
                work.remove()

    def _hand_in(self, snapshot: StagedSnapshot) -> None:
        upload = partial(snapshot.upload, self.repository, self.rocks)
        uploader().hand_in(str(snapshot.place), upload)

    # ----------------------------------------------------------------------------------- helpers

    def _restore_plan(self) -> RestorePlan:
        plan = self.plan
        return shard_restore_plan(self.repository, plan.operator, plan.base, plan.base_epoch)

    def _room(self, kind: str) -> Path:
        """Return a new, empty directory."""
        place = self.home / kind / unique_id()
        place.mkdir(parents=True)
        return place

    def _snapshots(self) -> list[StagedSnapshot]:
        return [StagedSnapshot(place) for place in sorted((self.home / "snapshots").glob("*"))]


def _table_bytes(paths: Iterable[Path]) -> int:
    return sum(sum(tables_in(path).values()) for path in paths)


def _is_young(begun_us: int) -> bool:
    return 0 <= now_us() - begun_us < _OF_USE_US


def _has_expired_rows(plan: ShardPlan, shard: ShardState) -> bool:
    """Return whether expired rows are still to be removed. A base must not contain them."""
    now = plan.now_us
    return any(time <= now[clock] for clock, time in shard.wake_us.items())


def _write_local(backend: Backend, shard: ShardState, states: Collection[str], target: Path) -> int:
    """Write the state of the shard to a change file, and return the number of mutations."""
    bounds = group_bounds(*shard.groups)
    changes, batch = Changes(tuple(backend.states)), Batch()
    for state in backend.states:
        for key, row in backend.scan(state, *bounds) if state in states else ():
            batch.put(state, key, row)
            if batch.full:
                changes.append(batch)
                batch.clear()
    if len(batch):
        changes.append(batch)
    finished = changes.finish()
    if finished is None:
        return 0
    file, rows = finished
    with file, target.open("wb") as copy:
        file.seek(0)
        shutil.copyfileobj(file, copy)
    return rows
