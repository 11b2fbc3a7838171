"""Stored batches: the rows of an operator after an epoch, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.errors import CorruptCheckpointError
from statekit.query.tables.packed_bytes import RowBatch, row_batches
from statekit.working_copy.unpacked_shard import ShardRows


def keyed_batches(
    repository: Repository,
    operator: OperatorRecord,
    manifest: EpochManifest,
    families: Sequence[str],
) -> Generator[tuple[str, RowBatch]]:
    """Yield the rows of keyed states, timers and buffered records, with their names.

    Shards are unpacked on the local disk one after the other. Within a shard, families are yielded
    one after the other, each in the order of its row keys.

    Raises:
        CorruptCheckpointError: a file is missing or altered, or does not match its manifest.
        StorageError: the store or the local disk failed.
    """
    epoch = manifest.operators.get(operator.name)
    counts = dict.fromkeys(families, 0)
    unpacked = ShardRows(repository, operator.name, manifest)
    for shard in epoch.shards if epoch else ():
        for family, batch in shard_batches(unpacked, shard, families):
            counts[family] += len(batch.keys)
            yield family, batch
    counted = {} if epoch is None else epoch.rows
    for family, count in counts.items():
        if count != counted.get(family, 0):
            raise CorruptCheckpointError(
                f"{repository.url}, epoch {manifest.epoch}: the files have {count} rows of "
                f"{operator.name}.{family}, the manifest has {counted.get(family, 0)}. Restore the "
                "checkpoint from a backup, or start from an earlier epoch or a savepoint"
            )


def shard_batches(
    unpacked: ShardRows, shard: ShardState, families: Sequence[str]
) -> Generator[tuple[str, RowBatch]]:
    """Yield the rows of one shard, as `keyed_batches`, but without the check of their number."""
    if shard.attempt is None:
        return
    with unpacked.opened(shard, families) as backend:
        for family in families:
            for batch in row_batches(backend.scan(family, *group_bounds(*shard.groups))):
                yield family, batch


def local_batches(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest
) -> Iterator[tuple[str, RowBatch]]:
    """Yield the rows of operator states, with their names, shard by shard.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    for family, shards in local_rows(repository, operator, manifest).items():
        for shard, rows in enumerate(shards):
            for batch in row_batches(iter(rows)):
                yield family, batch._replace(shards=[shard] * len(batch.keys))
