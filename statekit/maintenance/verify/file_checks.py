"""File checks: manifests agree with each other, and every file that they reference is intact."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

from statekit.backend.change_file_sums import MutationSums
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import Following, NamedFile, why_misplaced
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, Contents, History
from statekit.errors import CorruptCheckpointError, RestoreError, StorageError


def inconsistencies(
    manifest: EpochManifest, job: JobFile | None, previous: EpochManifest | None
) -> Iterator[str]:
    """Yield the faults of a manifest, given its job file and the previous epoch, if they are
    known.
    """
    if job is not None:
        if job.name != manifest.job:
            yield f"it is of job {manifest.job!r}, and its job file of {job.name!r}"
        if job.key_groups != manifest.key_groups:
            yield f"it has {manifest.key_groups} key groups, and its job file {job.key_groups}"
        strange = set(manifest.operators) - {operator.name for operator in job.operators}
        if strange:
            yield f"its job file knows no operator {', '.join(sorted(strange))}"
    for name, operator in manifest.operators.items():
        if len(operator.shards) != manifest.parallelism:
            yield f"{name} has {len(operator.shards)} shards of {manifest.parallelism}"
        ahead = [shard.groups for shard in operator.shards if (shard.changed or 0) > manifest.epoch]
        if ahead:
            yield f"{name} has shards that a later epoch changed: {ahead[0]}"
    if previous is not None:
        yield from _against(manifest, previous)


def _against(manifest: EpochManifest, previous: EpochManifest) -> Iterator[str]:
    """Yield the contradictions to the previous epoch."""
    followed = previous.epoch
    if manifest.job != previous.job:
        yield f"it follows epoch {followed}, which is of job {previous.job!r}"
    if manifest.processing_time_us < previous.processing_time_us:
        yield f"it took place before epoch {followed}, which it follows"
    if (previous.batch or 0) > (manifest.batch or 0):
        yield f"its micro-batch is {manifest.batch}, that of epoch {followed} {previous.batch}"
    passed = ((followed + 1, manifest.epoch - 1),) if followed + 1 < manifest.epoch else ()
    if manifest.abandoned != (*previous.abandoned, *passed):
        yield f"it follows epoch {followed}, and lists {manifest.abandoned} as abandoned"


class NamedFiles(Following):
    """Follows file references. Each base and history is read once, and damaged ones are passed
    over: `check_file` reports the fault.
    """

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository)
        self._listed: dict[tuple[type[Any], FileRef], Any] = {}

    def read(self, kind: type[Any], ref: FileRef) -> Any:
        """Return a base or history; None if it cannot be read."""
        if (kind, ref) not in self._listed:
            self._listed[kind, ref] = None
            with contextlib.suppress(CorruptCheckpointError, RestoreError, StorageError):
                self._listed[kind, ref] = self.repository.sealed(kind, ref)
        return self._listed[kind, ref]

    def strangers(self, manifest: EpochManifest) -> Iterator[tuple[FileRef, str]]:
        """Yield bases and histories that belong to other shards than the ones that reference them,
        with the reason.
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
        while older is not None and (history := self.read(History, older)) is not None:
            if (fault := why_misplaced(history, operator, owner, (), epoch)) is not None:
                yield older, fault
                return  # the files that it references may be intact for their own shard
            for piece in history.slices:
                yield from self._strangers(piece, operator, piece.shard, epoch)
            files, older = [*history.files, *files], history.before
        if contents.base is not None and (base := self.read(BaseSnapshot, contents.base)):
            fault = why_misplaced(base, operator, owner, files, epoch)
            if fault is not None:
                yield contents.base, fault


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
