"""File checks: every file that manifests reference exists and is intact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Literal, NamedTuple

from statekit.backend.change_file_sums import MutationSums
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.references import base_snapshot, history_file, why_misplaced
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History
from statekit.errors import CorruptCheckpointError, RestoreError, StorageError


class NamedFile(NamedTuple):
    """A referenced file with its size and checksum.

    Parameters:
        ref: the reference.
        kind: whether it contains mutations, other references, or neither.
        owner: of mutations, the key groups of their shard; None if several shards may have written
            it, one after the other.
        key_groups: the number of key groups.
    """

    ref: FileRef
    kind: Literal["changes", "names", "bytes"]
    owner: tuple[int, int] | None = None
    key_groups: int = 0


@dataclass
class NamedFiles:
    """The files that shards reference. Each base and history is read once.

    Parameters:
        repository: the checkpoint.
    """

    _repository: Repository
    _inside: dict[FileRef, tuple[NamedFile, ...]] = field(default_factory=dict)
    _listed: dict[FileRef, BaseSnapshot | History] = field(default_factory=dict)

    def of_manifest(self, manifest: EpochManifest) -> Iterator[NamedFile]:
        """Yield every file that an epoch references, directly or indirectly."""
        yield NamedFile(manifest.job_file, "bytes")
        for operator in manifest.operators.values():
            for shard in operator.shards:
                yield from self.of_shard(shard, manifest.key_groups)

    def of_shard(self, shard: ShardState, key_groups: int) -> Iterator[NamedFile]:
        """Yield every file that a shard references, directly or indirectly."""
        for ref in shard.redistributed:
            yield NamedFile(ref, "changes", shard.groups, key_groups)
        yield from self._of_contents(shard, shard.groups, key_groups)
        for piece in shard.slices:
            yield from self._of_contents(piece, None, key_groups)

    def strangers(self, manifest: EpochManifest) -> Iterator[tuple[FileRef, str]]:
        """Yield bases and histories that belong to other shards than the ones that reference them,
        with the reason.

        Parameters:
            manifest: which was followed before.
        """
        for name, operator in manifest.operators.items():
            for shard in operator.shards:
                yield from self._strangers(shard, name, shard.groups, manifest.epoch)
                for piece in shard.slices:
                    yield from self._strangers(piece, name, piece.shard, manifest.epoch)

    def _strangers(
        self, contents: Contents, operator: str, owner: tuple[int, int], epoch: int
    ) -> Iterator[tuple[FileRef, str]]:
        files, older = [*contents.files], contents.history
        while older is not None and isinstance(listed := self._listed.get(older), History):
            if (fault := why_misplaced(listed, operator, owner, (), epoch)) is not None:
                yield older, fault
                return  # the files that it references may be intact for their own shard
            for piece in listed.slices:
                yield from self._strangers(piece, operator, piece.shard, epoch)
            files, older = [*listed.files, *files], listed.before
        if contents.base is not None and (base := self._listed.get(contents.base)) is not None:
            fault = why_misplaced(base, operator, owner, files, epoch)
            if fault is not None:
                yield contents.base, fault

    def _of_contents(
        self, contents: Contents, owner: tuple[int, int] | None, key_groups: int
    ) -> Iterator[NamedFile]:
        for ref in contents.files:
            yield NamedFile(ref, "changes", owner, key_groups)
        if contents.base is not None:
            yield from self._followed(contents.base, base_snapshot, key_groups)
        if contents.history is not None:
            yield from self._followed(contents.history, history_file, key_groups)

    def _followed(
        self,
        ref: FileRef,
        read: Callable[[Repository, FileRef], BaseSnapshot | History],
        key_groups: int,
    ) -> Iterator[NamedFile]:
        """Yield a base or history, and the files that it references."""
        yield NamedFile(ref, "names")
        if ref not in self._inside:
            try:
                listed = self._listed[ref] = read(self._repository, ref)
                self._inside[ref] = tuple(self._of_listed(listed, key_groups))
            except (CorruptCheckpointError, RestoreError, StorageError):
                self._inside[ref] = ()  # `check_file` reports the fault
        yield from self._inside[ref]

    def _of_listed(self, listed: BaseSnapshot | History, key_groups: int) -> Iterator[NamedFile]:
        if isinstance(listed, BaseSnapshot):
            if listed.local is not None:
                yield NamedFile(listed.local, "changes", None, key_groups)
            for database in listed.databases:
                yield from (NamedFile(file, "bytes") for file in database.files.values())
            return
        for file in listed.files:
            yield NamedFile(file, "changes", None, key_groups)
        for piece in listed.slices:
            yield from self._of_contents(piece, None, key_groups)
        if listed.before is not None:
            yield from self._followed(listed.before, history_file, key_groups)


def check_file(repository: Repository, file: NamedFile) -> None:
    """Read a file once, and compare it with its reference.

    Raises:
        CorruptCheckpointError: it is missing, altered, or of another kind.
    """
    with repository.open_verified(file.ref) as opened:
        if file.kind == "changes":
            _check_mutations(opened, file, repository.at(file.ref.path))


def brief_fault(repository: Repository, file: NamedFile) -> str | None:
    """Return a short description of a fault in a file's bytes; None if there is none."""
    try:
        stored = repository.stored(file.ref.path)
        if stored is None:
            return "missing"
        if stored.size != file.ref.size:
            how = "truncated" if stored.size < file.ref.size else "too long"
            return f"{how}: {stored.size:,} of {file.ref.size:,} bytes"
        repository.open_verified(file.ref).close()
    except CorruptCheckpointError:
        return "altered"
    except StorageError:
        return None
    return None


def _check_mutations(opened: IO[bytes], file: NamedFile, where: str) -> None:
    """Check that a change file has the referenced number of mutations, and that all of them belong
    to its shard.
    """
    sums = MutationSums.of_file(opened, where, file.key_groups)
    actual = sum(sums.of(name, 0, file.key_groups - 1).mutations for name in sums.states)
    if actual != file.ref.rows:
        raise CorruptCheckpointError(
            f"{where} has {actual} mutations instead of {file.ref.rows}: restore the manifest and "
            "the file from one backup"
        )
    if file.owner is None:
        return
    first, last = file.owner
    own = sum(sums.of(name, first, last).mutations for name in sums.states)
    if own != actual:
        raise CorruptCheckpointError(
            f"{where} has {actual - own} mutations of other key groups than those of its shard, "
            f"{first} to {last}: restore the manifest and the file from one backup"
        )
