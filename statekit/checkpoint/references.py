"""File references of a shard: which files a manifest keeps alive.

A manifest references a few change files per shard. Older ones move to a history.

A manifest references all files that the rows of a shard consist of. The files of the epoch itself
are those that the manifest before it does not reference. A path is never used twice, so comparing
paths is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
        bases: follow bases, too. If False, their files are left out.
    """

    repository: Repository
    opened: set[str] = field(default_factory=set)
    gaps: bool = False
    bases: bool = True

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
            if self.bases and (base := self.read(BaseSnapshot, contents.base)) is not None:
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


# --------------------------------------------------------------------- files of one epoch


_REPLACED = frozenset({"repair", "migrate", "savepoint", "import", "bootstrap", "transform"})
"""Causes of epochs whose rows may differ from the previous epoch without a change file for it."""


def follows_by_files(before: EpochManifest, after: EpochManifest) -> bool:
    """Return whether the state after `before` plus the own change files of `after` gives the state
    after `after`.

    They do not after a rollback, and not where all rows were written again.
    """
    return (
        after.previous == before.epoch
        and not after.whole
        and after.cause not in _REPLACED
        and after.key_groups == before.key_groups
    )


def own_files(
    repository: Repository, before: EpochManifest | None, after: EpochManifest, operator: str
) -> Iterator[tuple[ShardState, Sequence[FileRef]]]:
    """Yield the shards that an epoch changed, each with its change files of that epoch in order.

    Files with redistributed operator state are among them: they follow from the layout of the
    epoch. The cost follows the number of shards that changed. A history is read only if the
    shard has a new base.

    Parameters:
        before: the epoch that `follows_by_files` holds for; None for the first epoch.
        operator: its name; one without shards in `after` has no files.

    Raises:
        CorruptCheckpointError: a history is missing or altered.
    """
    operator_epoch = after.operators.get(operator)
    epoch_before = None if before is None else before.operators.get(operator)
    # Entries that two epochs have from the same page are the same objects.
    same = set(map(id, epoch_before.shards)) if epoch_before is not None else set[int]()
    for shard in () if operator_epoch is None else operator_epoch.shards:
        if id(shard) in same:
            continue
        earlier = () if before is None else before.shards_over(operator, *shard.groups)
        if len(earlier) == 1 and earlier[0] == shard:
            continue
        known = {ref.path for old in earlier for ref in direct_refs(old)}
        new = [ref for ref in (*shard.redistributed, *shard.files) if ref.path not in known]
        if new and shard.base is not None and shard.base.path not in known:
            # It is new. The files that are not in it may have been in a history.
            following = Following(repository, bases=False)
            known = {file.ref.path for old in earlier for file in following.of_shard(old)}
            new = [ref for ref in new if ref.path not in known]
        if new:
            yield shard, new


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
