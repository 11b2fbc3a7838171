"""Rewrite the state of operators completely, for other key groups or from another source.

With other key groups, the rows of one old shard go to all new ones. They are divided by their new
shards on the local disk, up to a number of bytes. Then they are written in the order of new shards,
so that one change file is open at a time, for any number of shards. A larger state takes several
rounds, and a shard gets a file in each.

The epoch is committed only if the new files, read back, contain the written rows: the number of
rows of each state, in each key group, and the checksum. The old epochs do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import add, itemgetter

import pyarrow as pa
import xxhash

from statekit.backend.divided_rows import DividedRows
from statekit.checkpoint.job_file import JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.offline import check_at_rest, last_epoch
from statekit.checkpoint.repository import LocalRows, Repository
from statekit.checkpoint.restore_plan import local_rows
from statekit.keygroup import check_groups, check_parallelism, group_ranges
from statekit.maintenance.new_shards import Count, NewRows, NewShard, WrittenRows, check_stored
from statekit.maintenance.row_keys import KeyedRows, RowKeyParts
from statekit.query.tables.packed_bytes import RowColumns
from statekit.query.tables.stored_batches import keyed_batches
from statekit.state.redistribution import NO_SPECS, Specs, moved_by_operator

SCRATCH_BYTES = 32 << 30
"""The maximum bytes of rows that are gathered on the local disk before they are written."""

Progress = Callable[[int, int], None]
"""A callback with the number of processed rows, and of all rows."""

Verified = Callable[[str, str, WrittenRows], None]
"""A callback with the operator, the state, and its rows."""

_BATCH_ROWS = 4096
_REPORTED_ROWS = 10_000


@dataclass
class RowChecksum:
    """The number and checksum of a state's rows. Independent of order, key groups and shards.

    Attributes:
        rows: number of rows.
        total: the sum of the XXH3-64 of each, modulo 2^64.
    """

    rows: int = 0
    total: int = 0

    def add(self, key: bytes, row: bytes) -> None:
        """Add a row. `key` is the row key without its key group."""
        self.rows += 1
        # The seed distinguishes keys of different lengths.
        self.total += xxhash.xxh3_64_intdigest(key + row, seed=len(key))

    def add_all(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Add several rows."""
        self.rows += len(keys)
        # Without a line of Python for each row: `add` for many rows.
        self.total += sum(map(xxhash.xxh3_64_intdigest, map(add, keys, rows), map(len, keys)))

    @property
    def checksum(self) -> str:
        """The total as 16 hex digits."""
        return f"{self.total % (1 << 64):016x}"

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self.checksum}"


class RowCount:
    """Counts rows, and reports the count at intervals."""

    def __init__(self, total: int, report: Progress) -> None:
        self._total = total
        self._report = report
        self._rows = 0

    def add(self, rows: int) -> None:
        """Count several rows."""
        before, self._rows = self._rows, self._rows + rows
        if self._rows // _REPORTED_ROWS > before // _REPORTED_ROWS:
            self.end()

    def end(self) -> None:
        """Report the final count."""
        self._report(self._rows, self._total)


class _ShardsWriter:
    """Writes the rows of one operator, in any order, to change files of new shards. A context
    manager.

    Parameters:
        repository: the checkpoint.
        operator: the operator of the rows.
        parallelism: the number of shards.
        key_groups: the number of key groups.

    Attributes:
        rows: builds row keys.
        contents: the rows of each family so far.
    """

    def __init__(
        self, repository: Repository, operator: OperatorRecord, parallelism: int, key_groups: int
    ) -> None:
        self.rows = KeyedRows(operator, key_groups)
        self.contents = {family: WrittenRows(key_groups) for family in self.rows.families}
        self._repository = repository
        self._shards = [
            NewShard(operator, self.rows, groups)
            for groups in group_ranges(parallelism, key_groups)
        ]
        self._divided = self._empty()

    def __enter__(self) -> _ShardsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._divided.close()

    def _empty(self) -> DividedRows:
        return DividedRows(self.rows.families, [shard.groups[1] for shard in self._shards])

    def put(self, family: str, rows: RowColumns) -> None:
        """Add rows of a family. Each row key may be added once.

        Raises:
            CorruptCheckpointError: a row key has no key of this operator.
        """
        self.contents[family].add(rows)
        self._divided.add(family, *rows)
        if self._divided.size_bytes >= SCRATCH_BYTES:
            self._distribute()

    def finish(self, epoch: int, local: Mapping[str, list[LocalRows]]) -> tuple[ShardState, ...]:
        """Write the remaining rows, and return the new shards.

        Parameters:
            local: the rows of each operator state, for each shard.
        """
        self._distribute()
        for number, shard in enumerate(self._shards):
            own = {name: shards[number] for name, shards in local.items()}
            shard.store_local(self._repository, own)
        return tuple(shard.state(epoch) for shard in self._shards)

    def _distribute(self) -> None:
        """Write the gathered rows to files, shard by shard, and start with none."""
        for number, shard in enumerate(self._shards):
            shard.store(self._repository, self._columns(number, shard))
        self._divided.close()
        self._divided = self._empty()

    def _columns(self, number: int, shard: NewShard) -> Iterator[pa.RecordBatch]:
        for family in self.rows.families:
            for batch in self._divided.of(family, number):
                yield from shard.columns(family, RowColumns(*batch.columns))


def rows_in_groups(
    rows: Iterable[tuple[str, RowKeyParts, bytes]], keyed: KeyedRows
) -> Iterator[NewRows]:
    """Yield rows with the row keys for other key groups.

    Parameters:
        rows: family, parts of the row key, row.
        keyed: builds the new row keys.

    Raises:
        CorruptCheckpointError: a row key has no key of the operator.
    """
    for family, own in groupby(rows, itemgetter(0)):
        while piece := list(islice(own, _BATCH_ROWS)):
            _, parts, values = zip(*piece, strict=True)
            yield family, RowColumns.of(list(map(keyed.row_key, parts)), values)


def stored_rows(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest
) -> Iterator[tuple[str, RowKeyParts, bytes]]:
    """Yield all rows of an operator after an epoch: family, parts of the row key, row.

    One shard after the other is unpacked on the local disk. Within a shard, families are yielded
    one after the other, each in the order of its row keys.

    Raises:
        CorruptCheckpointError: a file is missing or altered, or does not match its manifest.
        StorageError: the store or the local disk failed.
    """
    rows = KeyedRows(operator, manifest.key_groups)
    for family, batch in keyed_batches(repository, operator, manifest, rows.families):
        for row_key, row in zip(batch.keys, batch.rows, strict=True):
            yield family, rows.parts(family, row_key), row


def write_operators(
    repository: Repository,
    job: JobFile,
    rows_of: Callable[[OperatorRecord, KeyedRows], Iterable[NewRows]],
    local_of: Callable[[OperatorRecord], Mapping[str, list[LocalRows]]],
    *,
    stored_epoch: int,
    epoch: int,
    parallelism: int,
    specs: Specs,
    count: Count = lambda rows: None,
    verified: Verified = lambda operator, family, checksum: None,
) -> dict[str, tuple[ShardState, ...]]:
    """Write all rows to files of new shards, and read them back. Commits nothing.

    Returns the new shards per operator.

    Parameters:
        repository: the checkpoint.
        job: its operators are written, with its number of key groups.
        rows_of: returns the keyed rows of an operator. Its other argument builds their row keys.
        local_of: returns the rows of each operator state of an operator, for each old shard.
        stored_epoch: of the rows. List elements that move to other shards are of this epoch.
        epoch: of the new shards.
        parallelism: shards per operator.
        specs: per operator, its states as the code declares them, for functions that redistribute
            operator state.
        count: called with the number of rows that were written or read back.
        verified: called with the contents of each state after it was read back.

    Raises:
        CorruptCheckpointError: a file is missing or altered, or the new rows differ from the old
            ones.
    """
    # Redistribute before any row is read: a rule may be missing, and a function may fail.
    stored = {operator.name: local_of(operator) for operator in job.operators}
    local = moved_by_operator(job.operators, specs, stored, parallelism, stored_epoch)
    new_shards = {}
    for operator in job.operators:
        with _ShardsWriter(repository, operator, parallelism, job.key_groups) as writer:
            for family, rows in rows_of(operator, writer.rows):
                writer.put(family, rows)
                count(len(rows.keys))
            shards = writer.finish(epoch, local[operator.name])
        check_stored(repository, operator, shards, writer.contents, job.key_groups, count)
        new_shards[operator.name] = shards
        for family, contents in writer.contents.items():
            verified(operator.name, family, contents)
    return new_shards


def rewrite_checkpoint(
    repository: Repository,
    *,
    parallelism: int | None = None,
    key_groups: int | None = None,
    progress: Progress = lambda done, total: None,
    verified: Verified = lambda operator, family, checksum: None,
    specs: Specs = NO_SPECS,
) -> EpochManifest:
    """Rewrite the complete state of a checkpoint in a single epoch. No job may run on it meanwhile.

    Parameters:
        parallelism: shards per operator; None for no change.
        key_groups: None for no change.
        progress: called with the progress.
        verified: called with the contents of each state after it was read back.
        specs: per operator, its states as the code declares them, for functions that redistribute
            operator state.

    Raises:
        RestoreError: nothing is committed yet, or an epoch was begun and must be completed first.
        RescaleError: the number of shards or key groups is not valid.
        CorruptCheckpointError: a file is missing or altered, or the new state differs from the old
            one.
        FencedError: a job committed an epoch meanwhile.
    """
    last, stored = last_epoch(repository)
    groups = check_groups(last.key_groups if key_groups is None else key_groups)
    shards = check_parallelism(last.parallelism if parallelism is None else parallelism, groups)
    check_at_rest(repository, last)
    # The rows of dropped states are not copied.
    job = stored.model_copy(update={"key_groups": groups, "dropped": {}})
    count = RowCount(2 * rows_to_read(job, last), progress)
    new_shards = write_operators(
        repository,
        job,
        lambda operator, keyed: rows_in_groups(stored_rows(repository, operator, last), keyed),
        lambda operator: local_rows(repository, operator, last),
        stored_epoch=last.epoch,
        epoch=last.epoch + 1,
        parallelism=shards,
        specs=specs,
        count=count.add,
        verified=verified,
    )
    blank = OperatorEpoch(shards=())
    operators = {
        name: last.operators.get(name, blank).at_rest(own, undivided_rows={}, undivided_bytes={})
        for name, own in new_shards.items()
    }
    _, reference = repository.ensure_job_file(job)
    manifest = last.followed_by(
        job_file=reference,
        cause="rescale",
        whole=True,
        parallelism=shards,
        key_groups=groups,
        operators=operators,
    )
    repository.commit(manifest)
    count.end()
    return manifest


def rows_to_read(job: JobFile, manifest: EpochManifest) -> int:
    """Return the number of rows of a job after an epoch."""
    total = 0
    for operator in job.operators:
        epoch = manifest.operators.get(operator.name)
        rows = {} if epoch is None else epoch.rows
        total += sum(rows.get(family, 0) for family in operator.holds)
    return total
