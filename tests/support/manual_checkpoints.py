"""Manifests and change files as tests make them by hand."""

from __future__ import annotations

import io

from statekit.checkpoint import shard_layout as rescale
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef, checksum_of
from tests.support.mutations import Mutation, batch_of, written

REF = FileRef(path="job.json", size=0, checksum=checksum_of(b""))


def standing(
    repository: Repository, operator: str, first: int, last: int, epoch: int | None
) -> ShardState:
    """Where key groups stand after an epoch, or before the first."""
    if epoch is None:
        return ShardState(first_group=first, last_group=last)
    return rescale.standing(repository.manifest(epoch), operator, first, last)


def manifest(epoch: int, *shards: ShardState, writer: str = "w", groups: int = 4) -> EpochManifest:
    blank = ShardState(first_group=0, last_group=groups - 1)
    return EpochManifest(
        job="tally",
        job_file=REF,
        epoch=epoch,
        previous=epoch - 1 if epoch else None,
        parallelism=len(shards) or 1,
        key_groups=groups,
        writer=writer,
        processing_time_us=0,
        committed_at_us=0,
        operators={"tally": OperatorEpoch(shards=shards or (blank,))},
    )


def change_file(*mutations: Mutation) -> io.BytesIO:
    return io.BytesIO(written(["s"], batch_of(mutations)))
