"""Restore plan of a key-group range: base snapshots plus the change files to apply.

A shard's rows start from a base, from shards of another layout, or from nothing; change files come
on top, in order. A lineage is that with all names followed but those of rows.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from io import BytesIO
from itertools import islice
from typing import Any

from statekit.backend.interface import Backend, MemoryBackend, prefix_end
from statekit.backend.mutation import BATCH_ROWS_MAX, Batch, Put
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.references import base_snapshot, history, misfit
from statekit.checkpoint.repository import TRANSFERS, LocalRows, Repository, group_bounds
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History, Slice
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import pack_group

FILES_MAX = 8
"""A manifest names so many change files of a shard; older ones go to a history."""

HISTORY_FILES_MAX = 256
"""A history names so many; a longer one is continued in another, so that its beginning stays."""


@dataclass(frozen=True)
class Lineage:
    """What leads to the rows of the key groups `first..last`.

    Parameters:
        first, last: the key groups, both inclusive.
        base: all rows at some point; None if there is none.
        named: the path of that base's file.
        below: lineages of parts of the key groups, in order, in the place of a base.
        files: change files on top of either, in order.
    """

    first: int
    last: int
    base: BaseSnapshot | None = None
    named: str | None = None
    below: tuple[Lineage, ...] = ()
    files: tuple[FileRef, ...] = ()

    def within(self, first: int, last: int) -> Lineage:
        """The same for fewer key groups."""
        first, last = max(first, self.first), min(last, self.last)
        below = (
            part.within(first, last)
            for part in self.below
            if part.first <= last and first <= part.last
        )
        return replace(self, first=first, last=last, below=tuple(below))

    def after(self, file: str) -> tuple[FileRef, ...] | None:
        """The change files behind one of them; None if it is none of them."""
        if self.base is not None and self.base.follows == file:
            return self.files
        for number, ref in enumerate(self.files):
            if ref.path == file:
                return self.files[number + 1 :]
        # It may be one of a shard that was divided and put together again.
        missed = []
        for part in self.below:
            found = part.after(file)
            if found is None:
                return None
            missed.append(found)
        return (*_in_order(missed), *self.files) if self.below else None

    @property
    def change_files(self) -> list[FileRef]:
        """All change files, each one once, in an order in which they can be applied."""
        return [*_in_order(part.change_files for part in self.below), *self.files]

    @property
    def bases(self) -> list[BaseSnapshot]:
        """All bases, each one once."""
        found = [] if self.base is None else [self.base]
        for part in self.below:
            found += [base for base in part.bases if base not in found]
        return found

    @property
    def beginnings(self) -> Iterator[Lineage]:
        """The parts that start from a base or from nothing, in the order of their key groups."""
        if not self.below:
            yield self
        for part in self.below:
            yield from part.beginnings


def _in_order(parts: Iterable[Sequence[FileRef]]) -> list[FileRef]:
    """The files of several parts, each one once, and behind all that it is behind in any part.

    Parts may have files in common, of shards that were divided later. What one part has from
    before such a shard was put together must not come behind what all have from after it.
    """
    order: TopologicalSorter[FileRef] = TopologicalSorter()
    for files in parts:
        for number, ref in enumerate(files):
            order.add(ref, *files[max(number - 1, 0) : number])
    return list(order.static_order())


# ------------------------------------------------------------------------------------- reading


def lineage_of(
    repository: Repository, operator: str, shard: ShardState, epoch: int | None
) -> Lineage:
    """What leads to a shard's rows; what waits to be redistributed comes on top, and is left out.

    Parameters:
        shard: as it is after an epoch, or in a layout that follows it.
        epoch: that epoch.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    if shard.attempt is None:
        return Lineage(*shard.groups)
    if shard.slices:
        return _of_slices(repository, operator, shard.groups, shard.slices, epoch)
    return _of_contents(repository, operator, shard.groups, shard, epoch)


def standing_lineage(
    repository: Repository, manifest: EpochManifest, operator: str, first: int, last: int
) -> Lineage:
    """What leads to the rows of some key groups after an epoch, redistributed ones included.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    parts = []
    for shard in manifest.shards_over(operator, first, last):
        found = lineage_of(repository, operator, shard, manifest.epoch)
        if shard.redistributed:
            found = Lineage(*shard.groups, below=(found,), files=shard.redistributed)
        parts.append(found.within(first, last))
    joined = tuple(_joined(parts))
    return joined[0] if len(joined) == 1 else Lineage(first, last, below=joined)


def _joined(parts: Iterable[Lineage]) -> Iterator[Lineage]:
    """Parts without levels that say nothing, and those of one origin in one: read only once."""
    waiting: Lineage | None = None
    for part in parts:
        if part.base is None and part.below and not part.files:
            found = list(_joined(part.below))
        else:
            found = [part]
        for piece in found:
            if waiting is None:
                waiting = piece
            elif _goes_on(waiting, piece):
                waiting = replace(waiting, last=piece.last)
            else:
                yield waiting
                waiting = piece
    if waiting is not None:
        yield waiting


def _goes_on(left: Lineage, right: Lineage) -> bool:
    same = (left.base, left.files) == (right.base, right.files)
    return same and not left.below and not right.below and left.last + 1 == right.first


def missed_files(
    repository: Repository, operator: str, shard: ShardState, epoch: int | None, file: str | None
) -> tuple[FileRef, ...] | None:
    """The change files of a shard behind one of them; None if it is none of them."""
    if file is None or shard.attempt is None:
        return None
    if not shard.slices:
        found = Lineage(*shard.groups, files=shard.files).after(file)  # without reading any file
        if found is not None:
            return found
    return lineage_of(repository, operator, shard, epoch).after(file)


def last_file(contents: Contents) -> str | None:
    """The change file that what is made of these contents stands at."""
    return contents.files[-1].path if contents.files else None


def _of_contents(
    repository: Repository,
    operator: str,
    groups: tuple[int, int],
    contents: Contents,
    epoch: int | None,
) -> Lineage:
    owner = contents.shard if isinstance(contents, Slice) else groups
    files, slices = list(contents.files), tuple[Slice, ...]()
    older = contents.history
    while older is not None:
        listed = history(repository, older)
        _check_owner(repository, older, misfit(listed, operator, owner, (), epoch))
        files, slices, older = [*listed.files, *files], listed.slices, listed.before
    found = _of_slices(repository, operator, groups, slices, epoch) if slices else Lineage(*groups)
    if contents.base is not None:
        base = base_snapshot(repository, contents.base)
        _check_owner(repository, contents.base, misfit(base, operator, owner, files, epoch))
        found = replace(found, base=base, named=contents.base.path)
    return replace(found, files=tuple(files))


def _check_owner(repository: Repository, ref: FileRef, what: str | None) -> None:
    """Make sure that nothing is said against reading a file as one of a shard.

    Raises:
        CorruptCheckpointError: something is.
    """
    if what is not None:
        raise CorruptCheckpointError(
            f"{repository.at(ref.path)} {what}: nothing is read from it. Start from an epoch "
            "before the one that names it, or restore the checkpoint from a backup"
        )


def _of_slices(
    repository: Repository,
    operator: str,
    groups: tuple[int, int],
    slices: Sequence[Slice],
    epoch: int | None,
) -> Lineage:
    # What the slices were cut out of may have been made of slices that reach further. Those are
    # left out before they are followed: else each change of parallelism would multiply the reads.
    parts = []
    for piece in slices:
        first, last = max(piece.first_group, groups[0]), min(piece.last_group, groups[1])
        if first <= last:
            parts.append(_of_contents(repository, operator, (first, last), piece, epoch))
    return Lineage(*groups, below=tuple(parts))


# ------------------------------------------------------------------------------------ changing


def changed_contents(
    repository: Repository,
    operator: str,
    shard: ShardState,
    files: Sequence[FileRef],
    epoch: int | None,
    changed: Mapping[FileRef, int] | None = None,
) -> dict[str, Any]:
    """What a shard is made of after a change, and what that costs, as fields of its state.

    Parameters:
        shard: before it.
        files: of the change.
        epoch: that `shard` is the state after.
        changed: bytes of the keys and values in files that are less than these.

    Raises:
        StorageError: a history has to be written and cannot be.
    """
    made: dict[str, Any] = {"slices": (), "redistributed": (), "is_complete": True}
    if shard.slices:
        begun = History(operator=operator, shard=shard.groups, slices=shard.slices)
        made |= {"history": _stored(repository, begun), "files": tuple(files)}
    elif len(shard.files) + len(files) <= FILES_MAX:
        made["files"] = (*shard.files, *files)
    else:
        listing = _continued(repository, operator, shard, shard.files)
        made |= {"history": listing, "files": tuple(files)}
    chain = shard.chain
    for file in files:
        chain = chain.followed_by(file, (changed or {}).get(file, 0))
    return made | {"chain": chain}


def _continued(
    repository: Repository, operator: str, shard: ShardState, files: Sequence[FileRef]
) -> FileRef | None:
    """A shard's history with more files."""
    before = shard.history
    listed = History(operator=operator, shard=shard.groups, before=before)
    if before is not None:
        held = history(repository, before)
        if len(held.files) < HISTORY_FILES_MAX:
            listed, before = held, held.before
    return _stored(repository, listed.model_copy(update={"files": (*listed.files, *files)}))


def _stored(repository: Repository, listed: History) -> FileRef:
    path = f"data/{listed.operator}/{unique_id()}.history.json"
    return repository.put_file(path, BytesIO(listed.to_bytes()))


# ------------------------------------------------------------------------------------- applying


def replay(
    repository: Repository,
    backend: Backend,
    found: Lineage,
    *,
    only_local: bool = False,
    has_bases: bool = False,
) -> None:
    """Apply a lineage to a backend that has none of its rows.

    States that the backend was not opened with are states that were given up: left out.

    Parameters:
        only_local: leave out what holds state of keys, and with it all databases.
        has_bases: whether the backend has what is in the bases.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    groups, base = (found.first, found.last), None if has_bases else found.base
    if base is not None and not only_local:
        _load_base(repository, backend, base, *groups)
    elif base is not None and base.local is not None:
        repository.replay(backend, [base.local], *groups)
    for part in found.below:
        replay(repository, backend, part, only_local=only_local, has_bases=has_bases)
    files = [ref for ref in found.files if ref.local or not only_local]
    repository.replay(backend, files, *groups)


def _load_base(
    repository: Repository, backend: Backend, base: BaseSnapshot, first: int, last: int
) -> None:
    """Copy the rows of a base to a backend."""
    states = [state for state in base.states if state in backend.states]
    for database in base.databases:
        with contextlib.ExitStack() as closing:
            place = closing.enter_context(scratch_directory("base"))
            for name, ref in database.files.items():
                with repository.open_verified(ref) as stored, open(place / name, "wb") as file:
                    shutil.copyfileobj(stored, file)
            held = RocksBackend(place, base.states, create=False)
            closing.callback(held.close)
            for state in states:
                waiting = held.scan(state, *group_bounds(first, last))
                while rows := list(islice(waiting, BATCH_ROWS_MAX)):
                    backend.write(Batch([Put(state, key, row) for key, row in rows]))


def load(
    repository: Repository,
    backend: Backend,
    operator: str,
    first: int,
    last: int,
    epoch: int | None,
) -> None:
    """Bring rows of some key groups, as they are after an epoch, to a backend that has none.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    if epoch is not None:
        manifest = repository.manifest(epoch)
        replay(repository, backend, standing_lineage(repository, manifest, operator, first, last))


def local_rows(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest
) -> dict[str, list[LocalRows]]:
    """What each operator state holds after an epoch, for each shard in order.

    Only change files of such state are read, those of several shards at a time.
    """
    names = [state.name for state in operator.states if state.is_local]
    found = manifest.operators.get(operator.name)
    shards = found.shards if names and found else ()

    def replayed(shard: ShardState) -> list[LocalRows]:
        made = standing_lineage(repository, manifest, operator.name, *shard.groups)
        backend, prefix = MemoryBackend(names), pack_group(shard.first_group)
        replay(repository, backend, made, only_local=True)
        scans = (backend.scan(name, prefix, prefix_end(prefix)) for name in names)
        return [[(key[len(prefix) :], row) for key, row in rows] for rows in scans]

    with ThreadPoolExecutor(TRANSFERS) as threads:
        held = list(threads.map(replayed, shards))
    return {name: [rows[place] for rows in held] for place, name in enumerate(names)}
