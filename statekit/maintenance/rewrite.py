"""Rewrite the state of operators completely, for other key groups or from another source.

With other key groups, the rows of one old shard go to all new ones. They are gathered in a database
on the local disk, sorted by their new row keys, up to a number of bytes. Then they are written in
the order of new shards, so that one change file is open at a time, for any number of shards. A
larger state takes several rounds, and a shard gets a file in each.

The epoch is committed only if the new files, read back, contain the same rows as the old ones: the
number of rows of each state, and the checksum. The old epochs do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import xxhash

from statekit.backend.change_file import read_changes
from statekit.backend.mutation import Batch, in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import Clock, JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.offline import check_at_rest, last_epoch
from statekit.checkpoint.repository import LocalRows, Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import check_groups, check_parallelism, group_of_row, group_range
from statekit.maintenance.row_keys import KeyedRows, RowKeyParts
from statekit.query.tables.stored_batches import keyed_batches
from statekit.state.redistribution import NO_SPECS, Specs, moved_by_operator, put_local
from statekit.watermark import BEGINNING

SCRATCH_BYTES = 32 << 30
"""The maximum bytes of rows that are gathered on the local disk before they are written."""

Progress = Callable[[int, int], None]
"""A callback with the number of processed rows, and of all rows."""

Verified = Callable[[str, str, "RowChecksum"], None]
"""A callback with the operator, the state or index family, and the checksum of its rows."""

StoredRows = Iterable[tuple[str, RowKeyParts, bytes]]
"""Rows: family, parts of the row key, row."""

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
        digest = xxhash.xxh3_64_intdigest
        self.rows += len(keys)
        self.total += sum(digest(k + r, seed=len(k)) for k, r in zip(keys, rows, strict=True))

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

    def one(self) -> None:
        """Count a row."""
        self.add(1)

    def add(self, rows: int) -> None:
        """Count several rows."""
        before, self._rows = self._rows, self._rows + rows
        if self._rows // _REPORTED_ROWS > before // _REPORTED_ROWS:
            self.end()

    def end(self) -> None:
        """Report the final count."""
        self._report(self._rows, self._total)


@dataclass
class _NewShard:
    """A shard that is being written."""

    groups: tuple[int, int]
    rows: dict[str, int]
    bytes: dict[str, int]
    wake_us: dict[Clock, int] = field(default_factory=dict)
    files: list[FileRef] = field(default_factory=list)

    def state(self, epoch: int) -> ShardState:
        first, last = self.groups
        blank = not self.files
        return ShardState(
            first_group=first,
            last_group=last,
            attempt=None if blank else unique_id(),
            changed=None if blank else epoch,
            files=tuple(self.files),
            is_complete=True,
            chain=reduce(lambda cost, file: cost.followed_by(file, 0), self.files, ReplayCost()),
            rows={} if blank else self.rows,
            bytes={} if blank else self.bytes,
            wake_us={} if blank else self.wake_us,
        )


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
        contents: checksum of the rows per family.
    """

    def __init__(
        self, repository: Repository, operator: OperatorRecord, parallelism: int, key_groups: int
    ) -> None:
        self.rows = KeyedRows(operator, key_groups)
        self.contents = {family: RowChecksum() for family in self.rows.families}
        self._repository = repository
        self._operator = operator
        self._all = (*self.rows.families, *self.rows.indexes)
        self._shards = [
            _NewShard(
                group_range(shard, parallelism, key_groups),
                dict.fromkeys(self.rows.families, 0),
                dict.fromkeys(self.rows.families, 0),
                dict.fromkeys(operator.fires_without_timers, BEGINNING),
            )
            for shard in range(parallelism)
        ]
        self._gathered_bytes = 0
        self._batch = Batch()
        self._closing = contextlib.ExitStack()
        self._backend: RocksBackend | None = None

    def __enter__(self) -> _ShardsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def put(self, family: str, parts: RowKeyParts, row: bytes) -> None:
        """Add a row. Each row key may be added once.

        Raises:
            CorruptCheckpointError: its key is not one of this operator.
        """
        row_key = self.rows.row_key(parts)
        batch, groups = self._batch, self.rows.key_groups
        shard = self._shards[group_of_row(row_key) * len(self._shards) // groups]
        size = batch.put(family, row_key, row)
        shard.rows[family] += 1
        shard.bytes[family] += size
        self.contents[family].add(row_key[2:], row)
        entry = self.rows.entry(family, parts, row_key, row)
        if entry is not None:
            wake = shard.wake_us
            wake[entry.clock] = min(entry.due_us, wake.get(entry.clock, entry.due_us))
            if entry.family is not None:
                batch.put(entry.family, entry.row_key, b"")
        if batch.full:
            self._gather()

    def finish(self, epoch: int, local: Mapping[str, list[LocalRows]]) -> tuple[ShardState, ...]:
        """Write the remaining rows, and return the new shards.

        Parameters:
            local: the rows of each operator state, for each shard.
        """
        self._gather()
        self._distribute()
        for number, shard in enumerate(self._shards):
            batch = Batch()
            rows_of_shard = {name: shards[number] for name, shards in local.items()}
            for name, size in put_local(batch, shard.groups[0], rows_of_shard).items():
                shard.rows[name], shard.bytes[name] = size
            if len(batch):
                self._store(shard, tuple(local), [batch], local=True)
        return tuple(shard.state(epoch) for shard in self._shards)

    def _gather(self) -> None:
        if not len(self._batch):
            return
        if self._backend is None:
            directory = self._closing.enter_context(scratch_directory("rewrite"))
            self._backend = RocksBackend(directory, self._all)
            self._closing.callback(self._backend.close)
        self._backend.write(self._batch)
        self._gathered_bytes += self._batch.size_bytes
        self._batch.clear()
        if self._gathered_bytes >= SCRATCH_BYTES:
            self._distribute()

    def _distribute(self) -> None:
        """Write the gathered rows to files, shard by shard, and start with an empty database."""
        backend = self._backend
        if backend is None:
            return
        for shard in self._shards:
            bounds = group_bounds(*shard.groups)
            rows = ((family, *row) for family in self._all for row in backend.scan(family, *bounds))
            self._store(shard, self._all, in_batches(rows), local=False)
        self._closing.close()
        self._backend, self._gathered_bytes = None, 0

    def _store(
        self, shard: _NewShard, families: Sequence[str], rows: Iterable[Batch], *, local: bool
    ) -> None:
        name = self._operator.name
        file = self._repository.store_changes(name, families, rows, local=local)
        shard.files += [] if file is None else [file]

    def check(self, shards: Sequence[ShardState], count: Callable[[], None]) -> None:
        """Read new shards back, and compare them with the written rows.

        Raises:
            CorruptCheckpointError: they differ.
        """
        rows = self.rows
        actual = {family: RowChecksum() for family in rows.families}
        for shard, ref in [(owner, ref) for owner in shards for ref in owner.files]:
            with self._repository.open_verified(ref) as file:
                mutations = (row for batch in read_changes(file, ref.path) for row in batch.rows())
                for family, _, row_key, row in mutations:
                    if family not in actual:
                        continue
                    group = group_of_row(row_key)
                    expected_key = rows.row_key(rows.parts(family, row_key))
                    if expected_key != row_key or not shard.overlaps(group, group):
                        raise self._differs(family, f"a row in key group {group}")
                    actual[family].add(row_key[2:], row or b"")
                    count()
        for family, expected in self.contents.items():
            if str(actual[family]) != str(expected):
                raise self._differs(family, f"{actual[family]} in place of {expected}")

    def _differs(self, family: str, difference: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"the written rows of {self._operator.name}.{family} differ from the read ones: "
            f"{difference}. Nothing is committed, and the old state is unchanged: check the disks "
            "and the memory of this machine, then try again"
        )


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
    rows_of: Callable[[OperatorRecord], StoredRows],
    local_of: Callable[[OperatorRecord], Mapping[str, list[LocalRows]]],
    *,
    stored_epoch: int,
    epoch: int,
    parallelism: int,
    specs: Specs,
    count: Callable[[], None] = lambda: None,
    verified: Verified = lambda operator, family, checksum: None,
) -> dict[str, tuple[ShardState, ...]]:
    """Write all rows to files of new shards, and read them back. Commits nothing.

    Returns the new shards per operator.

    Parameters:
        repository: the checkpoint.
        job: its operators are written, with its number of key groups.
        rows_of: returns the keyed rows of an operator.
        local_of: returns the rows of each operator state of an operator, for each old shard.
        stored_epoch: of the rows. List elements that move to other shards are of this epoch.
        epoch: of the new shards.
        parallelism: shards per operator.
        specs: per operator, its states as the code declares them, for functions that redistribute
            operator state.
        count: called for each row when it is written, and when it is read back.
        verified: called with the checksum of each state after it was read back.

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
            for family, parts, row in rows_of(operator):
                writer.put(family, parts, row)
                count()
            shards = writer.finish(epoch, local[operator.name])
        writer.check(shards, count)
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
        verified: called with the checksum of each state after it was read back.
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
        lambda operator: stored_rows(repository, operator, last),
        lambda operator: local_rows(repository, operator, last),
        stored_epoch=last.epoch,
        epoch=last.epoch + 1,
        parallelism=shards,
        specs=specs,
        count=count.one,
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
