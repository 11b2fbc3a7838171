"""Check manifests against each other, and find the epochs that damaged files affect."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import epoch_path
from statekit.maintenance.verify.file_checks import NamedFiles


def inconsistencies(
    manifest: EpochManifest, job: JobFile | None, previous: EpochManifest | None
) -> Iterator[str]:
    """Yield the faults of a manifest, given its job file and the epoch before it, as far as
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
    """Yield the contradictions to the epoch before it."""
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


class Damage:
    """The epochs and shards that need damaged files.

    Parameters:
        named: follows references to files.
        broken: paths of files that are missing or altered, manifests included.
        lost: numbers of epochs whose manifests cannot be read.

    Attributes:
        epochs: by path, the epochs that need it, in order.
    """

    def __init__(self, named: NamedFiles, broken: Collection[str], lost: Collection[int]) -> None:
        self._named = named
        self._broken = frozenset(broken)
        self._shards: dict[tuple[int, str], list[tuple[tuple[int, int], frozenset[str]]]] = {}
        self.epochs: dict[str, list[int]] = {epoch_path(epoch): [epoch] for epoch in lost}

    def add(self, manifest: EpochManifest) -> None:
        """Add an epoch; epochs are added in order."""
        paths: set[str] = {manifest.job_file.path} & self._broken
        for name, operator in manifest.operators.items():
            for shard in operator.shards:
                files = self._named.of_shard(shard, manifest.key_groups)
                damaged = frozenset(file.ref.path for file in files) & self._broken
                if damaged:
                    shards = self._shards.setdefault((manifest.epoch, name), [])
                    shards.append((shard.groups, damaged))
                    paths |= damaged
        for path in paths:
            self.epochs.setdefault(path, []).append(manifest.epoch)

    def of_shard(self, epoch: int, operator: str, groups: tuple[int, int]) -> frozenset[str]:
        """Return the damaged files that some key groups need."""
        first, last = groups
        return frozenset().union(
            *(
                damaged
                for (begin, end), damaged in self._shards.get((epoch, operator), ())
                if begin <= last and first <= end
            )
        )
