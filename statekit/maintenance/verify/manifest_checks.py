"""Check manifests against each other, and find the epochs that damaged files affect.

A shard whose state is not complete, as those of older formats, has the rest of it in manifests
before. So damage there is carried forward, from each epoch to those that follow it; only shards
that are damaged are kept in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, ShardState, epoch_path
from statekit.maintenance.verify.file_checks import NamedFiles


def leans_on(manifest: EpochManifest, shard: ShardState) -> int | None:
    """The epoch whose manifest has the rest of what a shard is made of; None if none has."""
    made_of = shard.slices or (shard,)
    if manifest.whole or shard.attempt is None or all(part.is_complete for part in made_of):
        return None
    return manifest.previous if shard.changed == manifest.epoch else shard.changed


def inconsistencies(
    manifest: EpochManifest, job: JobFile | None, previous: EpochManifest | None
) -> Iterator[str]:
    """What in a manifest cannot be, given its job file and the epoch before it, as far as known."""
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
    """What cannot be, given the epoch that it follows."""
    followed = previous.epoch
    if manifest.job != previous.job:
        yield f"it follows epoch {followed}, which is of job {previous.job!r}"
    if manifest.processing_time_us < previous.processing_time_us:
        yield f"it took place before epoch {followed}, which it follows"
    if (previous.batch or 0) > (manifest.batch or 0):
        yield f"its micro-batch is {manifest.batch}, that of epoch {followed} {previous.batch}"
    passed = ((followed + 1, manifest.epoch - 1),) if followed + 1 < manifest.epoch else ()
    if manifest.abandoned != (*previous.abandoned, *passed):
        yield f"it follows epoch {followed}, and says that {manifest.abandoned} were abandoned"


class _Damaged(NamedTuple):
    """A shard in an epoch that needs what is damaged.

    Parameters:
        groups: its first and last key group.
        history: paths of what is damaged and stays in the history of the shards that follow it.
        paths: the same with what was redistributed to it, and may be once more before it runs.
    """

    groups: tuple[int, int]
    history: frozenset[str]
    paths: frozenset[str]


class Damage:
    """Which epochs need what is damaged. Told of all epochs in order.

    Parameters:
        named: follows names to files.
        broken: paths of files that are missing or altered, manifests among them.
        lost: numbers of epochs whose manifests cannot be had.

    Attributes:
        epochs: by path, the epochs that need it, in order.
    """

    def __init__(self, named: NamedFiles, broken: Collection[str], lost: Collection[int]) -> None:
        self._named = named
        self._broken = frozenset(broken)
        self._lost = frozenset(lost)
        self._shards: dict[tuple[int, str], list[_Damaged]] = {}
        self.epochs: dict[str, list[int]] = {epoch_path(epoch): [epoch] for epoch in lost}

    def add(self, manifest: EpochManifest) -> None:
        """Follow one more epoch; those that it leans on came before."""
        found: set[str] = {manifest.job_file.path} & self._broken
        for name, operator in manifest.operators.items():
            for shard in operator.shards:
                history = self._of_history(manifest, name, shard)
                waiting = {ref.path for ref in shard.redistributed} & self._broken
                if history or waiting:
                    damaged = _Damaged(shard.groups, history, history | waiting)
                    self._shards.setdefault((manifest.epoch, name), []).append(damaged)
                    found |= damaged.paths
        for path in found:
            self.epochs.setdefault(path, []).append(manifest.epoch)

    def of_shard(self, epoch: int, operator: str, groups: tuple[int, int]) -> frozenset[str]:
        """What is damaged of that which a shard needs."""
        return frozenset().union(*(found.paths for found in self._over(epoch, operator, groups)))

    def _over(self, epoch: int, operator: str, groups: tuple[int, int]) -> Iterator[_Damaged]:
        for found in self._shards.get((epoch, operator), ()):
            if found.groups[0] <= groups[1] and groups[0] <= found.groups[1]:
                yield found

    def _of_history(
        self, manifest: EpochManifest, operator: str, shard: ShardState
    ) -> frozenset[str]:
        """What is damaged of a shard's files and of those before them."""
        standing = shard.model_copy(update={"redistributed": ()})
        files = self._named.of_shard(standing, manifest.key_groups)
        found = frozenset(file.ref.path for file in files if file.ref.path in self._broken)
        before = leans_on(manifest, shard)
        if before is None:
            return found
        if before in self._lost:
            return found | {epoch_path(before)}
        older = self._over(before, operator, shard.groups)
        return found.union(*(damaged.history for damaged in older))
