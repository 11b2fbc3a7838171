"""File references of a shard: which files a manifest keeps alive.

A manifest references a few change files per shard. Older ones move to a history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeVar

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.paths import HISTORY, data_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History
from statekit.errors import CorruptCheckpointError

FILES_MAX = 8
"""The maximum number of change files per shard in a manifest; older ones move to a history."""

HISTORY_FILES_MAX = 256
"""The maximum number of files in a history; a longer one is continued in another file."""

T = TypeVar("T", BaseSnapshot, History)


def why_misplaced(
    listed: BaseSnapshot | History,
    operator: str,
    shard: tuple[int, int],
    files: Collection[FileRef],
    epoch: int | None,
) -> str | None:
    """Return the reason why a base or history does not belong to the shard that references it; None
    if it does.

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


class NamedFile(NamedTuple):
    """A referenced file.

    Parameters:
        ref: the reference.
        kind: whether it contains mutations, other references, or neither.
        owner: of mutations, the key groups of their shard; None if several shards may have written
            it, one after the other.
        key_groups: their number; 0 if unknown.
    """

    ref: FileRef
    kind: Literal["changes", "names", "bytes"]
    owner: tuple[int, int] | None = None
    key_groups: int = 0


def named_by(
    repository: Repository, manifest: EpochManifest, opened: set[str]
) -> Iterator[FileRef]:
    """Yield the files that an epoch references. A file may be yielded more than once.

    Parameters:
        opened: as for `Following`.

    Raises:
        CorruptCheckpointError: a base or history is missing or altered.
    """
    yield from repository.pages(manifest.epoch)
    for file in Following(repository, opened).of_manifest(manifest):
        yield file.ref


@dataclass
class Following:
    """Follows file references through bases and histories.

    Parameters:
        repository: the checkpoint.
        opened: paths of bases and histories that were followed before. They are not read again, and
            new ones are added.
        gaps: continue if a base or history is missing or altered, for an epoch that was collected:
            such a file is deleted last, after all that it references.
    """

    repository: Repository
    opened: set[str] = field(default_factory=set)
    gaps: bool = False

    def of_manifest(self, manifest: EpochManifest) -> Iterator[NamedFile]:
        """Yield the files that an epoch references, as `of_shard` does, without pages."""
        yield NamedFile(manifest.job_file, "bytes")
        for operator in manifest.operators.values():
            for shard in operator.shards:
                for file in self.of_shard(shard):
                    yield file._replace(key_groups=manifest.key_groups)

    def of_shard(self, shard: ShardState) -> Iterator[NamedFile]:
        """Yield the files that a shard references. A file may be yielded more than once.

        Raises:
            CorruptCheckpointError: a base or history is missing or altered.
        """
        yield from (NamedFile(ref, "changes", shard.groups) for ref in shard.redistributed)
        yield from self._of_contents(shard, shard.groups)
        for piece in shard.slices:
            yield from self._of_contents(piece, None)

    def _of_contents(
        self, contents: Contents, owner: tuple[int, int] | None
    ) -> Iterator[NamedFile]:
        yield from (NamedFile(ref, "changes", owner) for ref in contents.files)
        if contents.base is not None:
            yield NamedFile(contents.base, "names")
            if (base := self.read(BaseSnapshot, contents.base)) is not None:
                for ref in files_of(base):
                    yield NamedFile(ref, "changes" if ref == base.local else "bytes")
        older = contents.history
        while older is not None:
            yield NamedFile(older, "names")
            if (history := self.read(History, older)) is None:
                return
            yield from (NamedFile(ref, "changes") for ref in history.files)
            for piece in history.slices:
                yield from self._of_contents(piece, None)
            older = history.before

    def read(self, kind: type[T], ref: FileRef) -> T | None:
        """Return a base or history; None if it was already followed."""
        if ref.path in self.opened:
            return None
        self.opened.add(ref.path)
        try:
            return self.repository.sealed(kind, ref)
        except CorruptCheckpointError:
            if not self.gaps:
                raise
            return None


def direct_refs(shard: ShardState) -> Iterator[FileRef]:
    """Yield the files that a manifest references directly for a shard."""
    yield from shard.redistributed
    for contents in (shard, *shard.slices):
        yield from (ref for ref in (contents.base, contents.history) if ref is not None)
        yield from contents.files


def files_of(base: BaseSnapshot) -> Iterator[FileRef]:
    """Yield the files that a base snapshot references."""
    if base.local is not None:
        yield base.local
    for database in base.databases:
        yield from database.files.values()


# ---------------------------------------------------------------------------- adding files


def changed_contents(
    repository: Repository, operator: str, shard: ShardState, files: Mapping[FileRef, int]
) -> dict[str, Any]:
    """Return the files and replay cost of a shard after a change, as fields of its `ShardState`.

    Parameters:
        shard: before the change.
        files: of the change, with the bytes of the keys and values in each, if these are more than
            the file has; else 0.

    Raises:
        StorageError: a history has to be written and cannot be.
    """
    listed, older = (*shard.files, *files), shard.history
    if shard.slices or len(listed) > FILES_MAX:
        longer = _longer_history(repository, operator, shard)
        older = repository.put_file(data_path(operator, HISTORY), BytesIO(longer.to_bytes()))
        listed = tuple(files)
    chain = shard.chain
    for file, changed in files.items():
        chain = chain.followed_by(file, changed)
    blank = {"slices": (), "redistributed": (), "is_complete": True}
    return {**blank, "history": older, "files": listed, "chain": chain}


def _longer_history(repository: Repository, operator: str, shard: ShardState) -> History:
    """Return the history of a shard, extended by the slices and files of its manifest entry."""
    if shard.history is not None:
        newest = repository.sealed(History, shard.history)
        if len(newest.files) < HISTORY_FILES_MAX:
            return newest.model_copy(update={"files": (*newest.files, *shard.files)})
    return History(
        operator=operator,
        shard=shard.groups,
        slices=shard.slices,
        before=shard.history,
        files=shard.files,
    )
