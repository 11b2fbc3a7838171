"""File references of a shard: which files a manifest keeps alive."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History
from statekit.errors import CorruptCheckpointError

T = TypeVar("T", BaseSnapshot, History)


def base_snapshot(repository: Repository, ref: FileRef) -> BaseSnapshot:
    """Return the base snapshot of a reference.

    Raises:
        CorruptCheckpointError: its file is missing or altered.
    """
    return _read(BaseSnapshot, repository, ref)


def history(repository: Repository, ref: FileRef) -> History:
    """Return the history of a reference.

    Raises:
        CorruptCheckpointError: its file is missing or altered.
    """
    return _read(History, repository, ref)


def _read(kind: type[T], repository: Repository, ref: FileRef) -> T:
    with repository.open_verified(ref) as file:
        return kind.from_bytes(file.read(), repository.at(ref.path))


def misfit(
    listed: BaseSnapshot | History,
    operator: str,
    shard: tuple[int, int],
    files: Collection[FileRef],
    epoch: int | None,
) -> str | None:
    """Return why a base or history does not belong to the shard that references it; None if it
    does.

    Parameters:
        listed: the base or history.
        operator, shard: the referencing shard.
        files: change files that are applied after it.
        epoch: the epoch of the reference, or a later one; None if unknown.
    """
    if (listed.operator, listed.shard) != (operator, shard):
        return (
            f"is of operator {listed.operator!r}, key groups {listed.shard[0]} to "
            f"{listed.shard[1]}, and is referenced by operator {operator!r}, key groups {shard[0]} "
            f"to {shard[1]}"
        )
    if isinstance(listed, BaseSnapshot):
        if any(ref.path == listed.follows for ref in files):
            return f"contains {listed.follows}, which is referenced as a later change"
        if epoch is not None and listed.epoch > epoch:
            return f"is of epoch {listed.epoch}, and epoch {epoch} references it"
    return None


def named_by(
    repository: Repository, manifest: EpochManifest, opened: set[str]
) -> Iterator[FileRef]:
    """Yield the files that an epoch references. Some are yielded more than once.

    Parameters:
        opened: as for `Following`.

    Raises:
        CorruptCheckpointError: a base or history is missing or altered.
    """
    yield manifest.job_file
    following = Following(repository, opened)
    for operator in manifest.operators.values():
        for shard in operator.shards:
            yield from following.of_shard(shard)


class Following:
    """Follows file references through bases and histories.

    Parameters:
        repository: the checkpoint.
        opened: paths of bases and histories that were followed before. They are not read again, and
            new ones are added.
        gaps: continue if a base or history is missing or altered, for an epoch that was collected:
            such a file is deleted last, after all that it references.
    """

    def __init__(self, repository: Repository, opened: set[str], *, gaps: bool = False) -> None:
        self._repository = repository
        self._opened = opened
        self._gaps = gaps

    def of_shard(self, shard: ShardState) -> Iterator[FileRef]:
        """Yield the files that a shard references. Some are yielded more than once.

        Raises:
            CorruptCheckpointError: a base or history is missing or altered.
        """
        yield from direct_refs(shard)
        for contents in (shard, *shard.slices):
            yield from self._behind(contents)

    def _behind(self, contents: Contents) -> Iterator[FileRef]:
        """Yield the files that the base and the history of an entry reference."""
        if contents.base is not None and (base := self._read(BaseSnapshot, contents.base)):
            yield from files_of(base)
        older = contents.history
        while older is not None and (listed := self._read(History, older)) is not None:
            yield from listed.files
            for piece in listed.slices:
                yield from _refs_in(piece)
                yield from self._behind(piece)
            older = listed.before
            if older is not None:
                yield older

    def _read(self, kind: type[T], ref: FileRef) -> T | None:
        """Return a base or history; None if it was followed before."""
        if ref.path in self._opened:
            return None
        self._opened.add(ref.path)
        try:
            return _read(kind, self._repository, ref)
        except CorruptCheckpointError:
            if not self._gaps:
                raise
            return None


def direct_refs(shard: ShardState) -> Iterator[FileRef]:
    """Yield the files that a manifest references for a shard."""
    yield from shard.redistributed
    for contents in (shard, *shard.slices):
        yield from _refs_in(contents)


def _refs_in(contents: Contents) -> Iterator[FileRef]:
    yield from (ref for ref in (contents.base, contents.history) if ref is not None)
    yield from contents.files


def files_of(base: BaseSnapshot) -> Iterator[FileRef]:
    """Yield the files that a base snapshot references."""
    if base.local is not None:
        yield base.local
    for database in base.databases:
        yield from database.files.values()
