"""Manifest checks: compare manifests with each other and with their job files."""

from __future__ import annotations

from collections.abc import Iterator

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest


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
