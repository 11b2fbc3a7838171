"""File references of a shard: which files a manifest keeps alive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History
from statekit.errors import CorruptCheckpointError

T = TypeVar("T", BaseSnapshot, History)


def base_snapshot(repository: Repository, ref: FileRef) -> BaseSnapshot:
    """Return the base snapshot that a manifest names.

    Raises:
        CorruptCheckpointError: its file is missing, or not what the manifest says.
    """
    with repository.open_verified(ref) as file:
        return BaseSnapshot.from_bytes(file.read(), repository.at(ref.path))


def history(repository: Repository, ref: FileRef) -> History:
    """Return the history that a manifest names.

    Raises:
        CorruptCheckpointError: its file is missing, or not what the manifest says.
    """
    with repository.open_verified(ref) as file:
        return History.from_bytes(file.read(), repository.at(ref.path))


def misfit(
    listed: BaseSnapshot | History,
    operator: str,
    shard: tuple[int, int],
    files: Collection[FileRef],
    epoch: int | None,
) -> str | None:
    """Return why a file that names others is not of the shard that names it; None if it may be.

    Parameters:
        listed: what it says.
        operator, shard: who names it.
        files: change files that come on top of what it says.
        epoch: that it is named in or before; None if that is not known.
    """
    if (listed.operator, listed.shard) != (operator, shard):
        return (
            f"is of operator {listed.operator!r}, key groups {listed.shard[0]} to "
            f"{listed.shard[1]}, and is named as one of operator {operator!r}, key groups "
            f"{shard[0]} to {shard[1]}"
        )
    if isinstance(listed, BaseSnapshot):
        if any(ref.path == listed.follows for ref in files):
            return f"holds {listed.follows}, which is named as a change on top of it"
        if epoch is not None and listed.epoch > epoch:
            return f"is of epoch {listed.epoch}, and epoch {epoch} names it"
    return None


def named_by(
    repository: Repository, manifest: EpochManifest, opened: set[str]
) -> Iterator[FileRef]:
    """Yield the files that an epoch needs, its own manifest left out. Some come more than once.

    Parameters:
        opened: as for `Following`.

    Raises:
        CorruptCheckpointError: a file that names others is missing or altered.
    """
    yield manifest.job_file
    following = Following(repository, opened)
    for operator in manifest.operators.values():
        for shard in operator.shards:
            yield from following.of_shard(shard)


class Following:
    """From names to names.

    Parameters:
        repository: the checkpoint.
        opened: paths of files that name others and were followed before: they are not read again,
            and those that are read are added.
        gaps: go on where a file that names others is gone or altered, for an epoch that was given
            up: such a file goes last, behind all that it names.
    """

    def __init__(self, repository: Repository, opened: set[str], *, gaps: bool = False) -> None:
        self._repository = repository
        self._opened = opened
        self._gaps = gaps

    def of_shard(self, shard: ShardState) -> Iterator[FileRef]:
        """Yield the files that a shard needs. Some come more than once.

        Raises:
            CorruptCheckpointError: a file that names others is missing or altered.
        """
        yield from shard.redistributed
        for contents in (shard, *shard.slices):
            yield from self._of_contents(contents)

    def _of_contents(self, contents: Contents) -> Iterator[FileRef]:
        yield from refs_in(contents)
        if contents.base is not None:
            base = self._read(base_snapshot, contents.base)
            if base is not None:
                yield from files_of(base)
        older = contents.history
        while older is not None and (listed := self._read(history, older)) is not None:
            yield from listed.files
            for piece in listed.slices:
                yield from self._of_contents(piece)
            older = listed.before
            if older is not None:
                yield older

    def _read(self, reading: Callable[[Repository, FileRef], T], ref: FileRef) -> T | None:
        """What a file says; None if it was followed before."""
        if ref.path in self._opened:
            return None
        self._opened.add(ref.path)
        try:
            return reading(self._repository, ref)
        except CorruptCheckpointError:
            if not self._gaps:
                raise
            return None


def refs_in(contents: Contents) -> Iterator[FileRef]:
    """Yield the files that are named right there."""
    if contents.base is not None:
        yield contents.base
    if contents.history is not None:
        yield contents.history
    yield from contents.files


def files_of(base: BaseSnapshot) -> Iterator[FileRef]:
    """Yield the files that a base snapshot names."""
    if base.local is not None:
        yield base.local
    for database in base.databases:
        yield from database.files.values()
