"""Restore plan of a key-group range: base snapshots plus the change files to apply.

The rows of a shard start from a base snapshot, from slices of shards of another layout, or from
nothing. Change files are then applied in order.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from graphlib import TopologicalSorter

from statekit.backend.interface import Backend, MemoryBackend, prefix_end
from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.references import why_misplaced
from statekit.checkpoint.repository import LocalRows, Repository, group_bounds
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History, Slice
from statekit.checkpoint.store import in_parallel
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import pack_group


@dataclass(frozen=True)
class RestorePlan:
    """The files from which the key groups `first..last` are restored.

    Parameters:
        first, last: the key groups, both inclusive.
        base: the base snapshot to start from; None if there is none.
        named: the path of that base's file.
        below: restore plans of parts of the key groups, in order, in place of a base.
        files: change files to apply afterwards, in order.
    """

    first: int
    last: int
    base: BaseSnapshot | None = None
    named: str | None = None
    below: tuple[RestorePlan, ...] = ()
    files: tuple[FileRef, ...] = ()

    def within(self, first: int, last: int) -> RestorePlan:
        """Return the plan for fewer key groups."""
        first, last = max(first, self.first), min(last, self.last)
        below = (
            part.within(first, last)
            for part in self.below
            if part.first <= last and first <= part.last
        )
        return replace(self, first=first, last=last, below=tuple(below))

    def without_bases(self, *, only_local: bool = False) -> RestorePlan:
        """Return the plan for a backend that already contains the rows of the bases. The operator
        state of a base is in a separate change file.

        Parameters:
            only_local: plan operator state only, which needs no rows of bases.
        """
        of_base = () if self.base is None or self.base.local is None else (self.base.local,)
        files = tuple(ref for ref in (*of_base, *self.files) if ref.local or not only_local)
        below = tuple(part.without_bases(only_local=only_local) for part in self.below)
        return replace(self, base=None, below=below, files=files)

    def after(self, file: str) -> tuple[FileRef, ...] | None:
        """Return the change files after a given one; None if the plan does not contain it."""
        if self.base is not None and self.base.follows == file:
            return self.files
        if (later := _after(self.files, file)) is not None:
            return later
        # It may be one of a shard that was divided and merged again.
        missed = []
        for part in self.below:
            after = part.after(file)
            if after is None:
                return None
            missed.append(after)
        return (*_in_order(missed), *self.files) if self.below else None

    @property
    def change_files(self) -> list[FileRef]:
        """All change files, each once, in an order in which they can be applied."""
        return [*_in_order(part.change_files for part in self.below), *self.files]

    @property
    def bases(self) -> list[BaseSnapshot]:
        """All bases, each one once."""
        bases = [] if self.base is None else [self.base]
        for part in self.below:
            bases += [base for base in part.bases if base not in bases]
        return bases

    @property
    def bytes(self) -> int:
        """Bytes of all files, each one once."""
        of_bases = {
            ref for base in self.bases for own in base.databases for ref in own.files.values()
        }
        return sum(ref.size for ref in (*of_bases, *self.change_files))

    @property
    def beginnings(self) -> Iterator[RestorePlan]:
        """The parts that start from a base or from nothing, sorted by key groups."""
        if not self.below:
            yield self
        for part in self.below:
            yield from part.beginnings


def _after(files: tuple[FileRef, ...], file: str) -> tuple[FileRef, ...] | None:
    """Return the change files after a given one; None if the given file is not among them."""
    for number, ref in enumerate(files):
        if ref.path == file:
            return files[number + 1 :]
    return None


def _in_order(parts: Iterable[Sequence[FileRef]]) -> list[FileRef]:
    """Return the files of several parts, each once, in an order that agrees with every part.

    Parts may share files of shards that were divided later. A part's own files from before such a
    shard was merged must not come after shared files from after the merge.
    """
    order: TopologicalSorter[FileRef] = TopologicalSorter()
    for files in parts:
        for number, ref in enumerate(files):
            order.add(ref, *files[max(number - 1, 0) : number])
    return list(order.static_order())


def shard_restore_plan(
    repository: Repository, operator: str, shard: ShardState | Slice, epoch: int | None
) -> RestorePlan:
    """Return the restore plan of a shard, without operator state that is not redistributed yet.

    Parameters:
        shard: the shard after an epoch, or in a layout that follows it. A slice stands for the
            shard that it was cut out of.
        epoch: that epoch.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    planner = _Planner(repository, operator, epoch)
    if isinstance(shard, Slice):
        return planner.of_contents(shard.shard, shard.shard, shard)
    if shard.attempt is None:
        return RestorePlan(*shard.groups)
    if shard.slices:
        return planner.of_slices(shard.groups, shard.slices)
    return planner.of_contents(shard.groups, shard.groups, shard)


def restore_plan(
    repository: Repository, manifest: EpochManifest, operator: str, first: int, last: int
) -> RestorePlan:
    """Return the restore plan of some key groups after an epoch, redistributed operator state
    included.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    parts = []
    for shard in manifest.shards_over(operator, first, last):
        plan = shard_restore_plan(repository, operator, shard, manifest.epoch)
        if shard.redistributed:
            plan = RestorePlan(*shard.groups, below=(plan,), files=shard.redistributed)
        parts.append(plan.within(first, last))
    joined = tuple(_joined(parts))
    return joined[0] if len(joined) == 1 else RestorePlan(first, last, below=joined)


def _joined(parts: Iterable[RestorePlan]) -> list[RestorePlan]:
    """Return the parts without empty levels. Adjacent parts with the same origin are joined and
    read once.
    """
    joined: list[RestorePlan] = []
    for part in parts:
        is_level = part.base is None and part.below and not part.files
        for piece in _joined(part.below) if is_level else (part,):
            if joined and _goes_on(joined[-1], piece):
                joined[-1] = replace(joined[-1], last=piece.last)
            else:
                joined.append(piece)
    return joined


def _goes_on(left: RestorePlan, right: RestorePlan) -> bool:
    same = (left.base, left.files) == (right.base, right.files)
    return same and not left.below and not right.below and left.last + 1 == right.first


def missed_files(
    repository: Repository,
    operator: str,
    shard: ShardState | Slice,
    epoch: int | None,
    file: str | None,
) -> tuple[FileRef, ...] | None:
    """Return the change files of a shard after a given one; None if the shard does not reference
    the given file.
    """
    if file is None or shard.attempt is None:
        return None
    if (later := _after(shard.files, file)) is not None:  # without reading any file
        return later
    return shard_restore_plan(repository, operator, shard, epoch).after(file)


def last_file(contents: Contents) -> str | None:
    """Return the last change file of these contents."""
    return contents.files[-1].path if contents.files else None


@dataclass(frozen=True)
class _Planner:
    """Reads the bases and histories of an operator that an epoch references."""

    repository: Repository
    operator: str
    epoch: int | None

    def of_contents(
        self, groups: tuple[int, int], owner: tuple[int, int], contents: Contents
    ) -> RestorePlan:
        """Return the restore plan of some key groups of a shard.

        Parameters:
            owner: the key groups of the shard.
            contents: its files.
        """
        files, slices = list(contents.files), tuple[Slice, ...]()
        older = contents.history
        while older is not None:
            listed = self.repository.sealed(History, older)
            self._check(older, why_misplaced(listed, self.operator, owner, (), self.epoch))
            files, slices, older = [*listed.files, *files], listed.slices, listed.before
        plan = self.of_slices(groups, slices) if slices else RestorePlan(*groups)
        if contents.base is not None:
            base = self.repository.sealed(BaseSnapshot, contents.base)
            self._check(contents.base, why_misplaced(base, self.operator, owner, files, self.epoch))
            plan = replace(plan, base=base, named=contents.base.path)
        return replace(plan, files=tuple(files))

    def of_slices(self, groups: tuple[int, int], slices: Sequence[Slice]) -> RestorePlan:
        """Return the restore plan of key groups that consist of slices."""
        # The shards of the slices may themselves consist of slices of more key groups. Those are
        # left out before they are followed: else each change of parallelism would multiply the
        # reads.
        parts = []
        for piece in slices:
            first, last = max(piece.first_group, groups[0]), min(piece.last_group, groups[1])
            if first <= last:
                parts.append(self.of_contents((first, last), piece.shard, piece))
        return RestorePlan(*groups, below=tuple(parts))

    def _check(self, ref: FileRef, fault: str | None) -> None:
        """Check that a base or history belongs to the shard that references it.

        Raises:
            CorruptCheckpointError: it belongs to another shard.
        """
        if fault is not None:
            raise CorruptCheckpointError(
                f"{self.repository.at(ref.path)} {fault}: nothing is read from it. Start from an "
                "epoch before the one that references it, or restore the checkpoint from a backup"
            )


# ---------------------------------------------------------------------------- applying a plan


def apply_plan(repository: Repository, backend: Backend, plan: RestorePlan) -> None:
    """Apply a restore plan to an empty backend.

    Mutations of states that the backend was not opened with are skipped: these states were dropped.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    if plan.base is not None:
        _load_base(repository, backend, plan.base, plan.first, plan.last)
    for part in plan.below:
        apply_plan(repository, backend, part)
    repository.replay(backend, plan.files, plan.first, plan.last)


def _load_base(
    repository: Repository, backend: Backend, base: BaseSnapshot, first: int, last: int
) -> None:
    states = [state for state in base.states if state in backend.states]
    for database in base.databases:
        with contextlib.ExitStack() as closing:
            place = closing.enter_context(scratch_directory("base"))
            for name, ref in database.files.items():
                with repository.open_verified(ref) as stored, open(place / name, "wb") as file:
                    shutil.copyfileobj(stored, file)
            source = RocksBackend(place, base.states, create=False)
            closing.callback(source.close)
            bounds = group_bounds(first, last)
            for batch in in_batches((s, *row) for s in states for row in source.scan(s, *bounds)):
                backend.write(batch)


def local_rows(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest
) -> dict[str, list[LocalRows]]:
    """Return each operator state after an epoch, for each shard in order.

    Only change files with operator state are read, those of several shards at a time.
    """
    names = [state.name for state in operator.states if state.is_local]
    operator_epoch = manifest.operators.get(operator.name)
    shards = operator_epoch.shards if names and operator_epoch else ()
    replayed = partial(local_rows_of_shard, repository, operator, manifest)
    rows_of_shards = in_parallel(replayed, shards)
    return {name: [rows[name] for rows in rows_of_shards] for name in names}


def local_rows_of_shard(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest, shard: ShardState
) -> dict[str, LocalRows]:
    """Return each operator state of one shard after an epoch."""
    names = [state.name for state in operator.states if state.is_local]
    plan = restore_plan(repository, manifest, operator.name, *shard.groups)
    backend, prefix = MemoryBackend(names), pack_group(shard.first_group)
    apply_plan(repository, backend, plan.without_bases(only_local=True))
    return {
        name: [(k[len(prefix) :], row) for k, row in backend.scan(name, prefix, prefix_end(prefix))]
        for name in names
    }
