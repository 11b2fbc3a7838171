"""Rewrite the state of operators completely, for other key groups or from another source.

With other key groups, the rows of one old shard go to all new ones. They are divided by their new
shards on the local disk, up to a number of bytes. Then they are written in the order of new shards,
so that one change file is open at a time, for any number of shards. A larger state takes several
rounds, and a shard gets a file in each.

The epoch is committed only if the new files, read back, contain the written rows: the number of
rows of each state, in each key group, and the checksum. The old epochs do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress, groupby, islice
from operator import add, itemgetter
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from statekit.backend.divided_rows import DividedRows, groups_of_keys
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import Clock, JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.offline import check_at_rest, last_epoch
from statekit.checkpoint.repository import LocalRows, Repository
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import GROUP_BYTES, check_groups, check_parallelism, group_range
from statekit.maintenance.row_keys import Entry, KeyedRows, RowKeyParts
from statekit.query.tables.stored_batches import keyed_batches
from statekit.state.redistribution import NO_SPECS, Specs, moved_by_operator, put_local
from statekit.watermark import BEGINNING

SCRATCH_BYTES = 32 << 30
"""The maximum bytes of rows that are gathered on the local disk before they are written."""

Progress = Callable[[int, int], None]
"""A callback with the number of processed rows, and of all rows."""

Count = Callable[[int], None]
"""A callback with a number of rows that were written or read back."""

Verified = Callable[[str, str, "RowChecksum"], None]
"""A callback with the operator, the state or index family, and the checksum of its rows."""

NewRows = tuple[str, Sequence[bytes], Sequence[bytes]]
"""Some rows of one family: its name, their row keys with the new key groups, and the rows."""

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


@dataclass
class NewShard:
    """A shard that is being written."""

    groups: tuple[int, int]
    rows: dict[str, int]
    bytes: dict[str, int]
    wake_us: dict[Clock, int] = field(default_factory=dict)
    files: list[FileRef] = field(default_factory=list)

    @classmethod
    def blank(cls, operator: OperatorRecord, keyed: KeyedRows, groups: tuple[int, int]) -> NewShard:
        """Return a shard without rows.

        Parameters:
            operator: its operator.
            keyed: the keyed rows of the operator.
            groups: the first and the last key group.
        """
        nothing = dict.fromkeys(keyed.families, 0)
        wake_us = dict.fromkeys(operator.fires_without_timers, BEGINNING)
        return cls(groups, nothing, dict(nothing), wake_us)

    def wakes(self, times: Mapping[Clock, int]) -> None:
        """Have the shard wake at these times at the latest."""
        for clock, due_us in times.items():
            self.wake_us[clock] = min(due_us, self.wake_us.get(clock, due_us))

    def put_entry(self, entry: Entry | None, batch: Batch) -> None:
        """Have the shard wake for a row, and add the index row to a batch; None for no entry."""
        if entry is None:
            return
        self.wakes({entry.clock: entry.due_us})
        if entry.family is not None:
            batch.put(entry.family, entry.row_key, b"")

    def store(
        self,
        repository: Repository,
        operator: str,
        families: Iterable[str],
        batches: Iterable[Batch | pa.RecordBatch],
        *,
        local: bool = False,
    ) -> None:
        """Write rows to a change file. See `Repository.store_changes`."""
        file = repository.store_changes(operator, families, batches, local=local)
        self.files += [] if file is None else [file]

    def store_local(
        self, repository: Repository, operator: str, rows_of: Mapping[str, LocalRows]
    ) -> None:
        """Write the rows of each operator state to a change file, and count them."""
        batch = Batch()
        for name, size in put_local(batch, self.groups[0], rows_of).items():
            self.rows[name], self.bytes[name] = size
        if len(batch):
            self.store(repository, operator, rows_of, [batch], local=True)

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


class _Contents:
    """The rows of one family: their checksum, and how many are in each key group."""

    def __init__(self, key_groups: int) -> None:
        self.checksum = RowChecksum()
        self.in_groups = np.zeros(key_groups, np.int64)

    def add(
        self, groups: npt.NDArray[np.uint16], row_keys: Sequence[bytes], rows: Sequence[bytes]
    ) -> None:
        """Add rows. `groups` are the key groups of the row keys."""
        self.checksum.add_all([row_key[GROUP_BYTES:] for row_key in row_keys], rows)
        self.in_groups += np.bincount(groups, minlength=len(self.in_groups))


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
    """

    def __init__(
        self, repository: Repository, operator: OperatorRecord, parallelism: int, key_groups: int
    ) -> None:
        self.rows = KeyedRows(operator, key_groups)
        self._contents = {family: _Contents(key_groups) for family in self.rows.families}
        self._repository = repository
        self._operator = operator
        self._all = (*self.rows.families, *self.rows.indexes)
        self._shards = [
            NewShard.blank(operator, self.rows, group_range(shard, parallelism, key_groups))
            for shard in range(parallelism)
        ]
        self._batch = Batch()
        self._divided = self._empty()

    def __enter__(self) -> _ShardsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._divided.close()

    def _empty(self) -> DividedRows:
        return DividedRows(self._all, [shard.groups[1] for shard in self._shards])

    @property
    def checksums(self) -> dict[str, RowChecksum]:
        """The checksum of the rows of each family."""
        return {family: contents.checksum for family, contents in self._contents.items()}

    def put(self, family: str, row_keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        """Add rows of a family. Each row key may be added once.

        Raises:
            CorruptCheckpointError: a row key has no key of this operator.
        """
        groups = groups_of_keys(pa.array(row_keys, pa.binary()))
        self._contents[family].add(groups, row_keys, rows)
        sizes = list(map(add, map(len, row_keys), map(len, rows)))
        places = groups.astype(np.int64) * len(self._shards) // self.rows.key_groups
        counts = np.bincount(places, minlength=len(self._shards))
        totals = np.bincount(places, sizes, len(self._shards))
        for place in np.flatnonzero(counts).tolist():
            self._shards[place].rows[family] += int(counts[place])
            self._shards[place].bytes[family] += int(totals[place])
        if self.rows.has_entries(family):
            self._put_entries(family, places.tolist(), row_keys, rows)
        self._batch.put_all(family, row_keys, rows)
        if self._batch.full:
            self._gather()

    def _put_entries(
        self, family: str, places: Sequence[int], row_keys: Sequence[bytes], rows: Sequence[bytes]
    ) -> None:
        """Add the index rows of some rows, and note when their shards wake."""
        entries = self.rows.entries(family, row_keys, rows)
        for place, entry in zip(places, entries, strict=True):
            self._shards[place].put_entry(entry, self._batch)

    def finish(self, epoch: int, local: Mapping[str, list[LocalRows]]) -> tuple[ShardState, ...]:
        """Write the remaining rows, and return the new shards.

        Parameters:
            local: the rows of each operator state, for each shard.
        """
        self._gather()
        self._distribute()
        for number, shard in enumerate(self._shards):
            own = {name: shards[number] for name, shards in local.items()}
            shard.store_local(self._repository, self._operator.name, own)
        return tuple(shard.state(epoch) for shard in self._shards)

    def _gather(self) -> None:
        if len(self._batch):
            self._divided.add(self._batch)
            self._batch.clear()
        if self._divided.size_bytes >= SCRATCH_BYTES:
            self._distribute()

    def _distribute(self) -> None:
        """Write the gathered rows to files, shard by shard, and start with none."""
        for shard, rows in zip(self._shards, self._divided.ranges(), strict=True):
            shard.store(self._repository, self._operator.name, self._all, rows)
        self._divided.close()
        self._divided = self._empty()

    def check(self, shards: Sequence[ShardState], count: Count) -> None:
        """Read new shards back, and compare them with the written rows.

        Raises:
            CorruptCheckpointError: they differ.
        """
        actual = {family: _Contents(self.rows.key_groups) for family in self._contents}
        for shard, ref in [(owner, ref) for owner in shards for ref in owner.files]:
            for batch in self._repository.batches(ref):
                for family, row_keys, rows in _by_family(batch, actual.keys()):
                    groups = groups_of_keys(pa.array(row_keys, pa.binary()))
                    if groups.min() < shard.first_group or groups.max() > shard.last_group:
                        raise self._differs(family, f"rows outside of key groups {shard.groups}")
                    actual[family].add(groups, row_keys, rows)
                    count(len(rows))
        for family, expected in self._contents.items():
            found = actual[family]
            if str(found.checksum) != str(expected.checksum):
                raise self._differs(family, f"{found.checksum} in place of {expected.checksum}")
            if (found.in_groups != expected.in_groups).any():
                raise self._differs(family, "rows in other key groups")

    def _differs(self, family: str, difference: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"the written rows of {self._operator.name}.{family} differ from the read ones: "
            f"{difference}. Nothing is committed, and the old state is unchanged: check the disks "
            "and the memory of this machine, then try again"
        )


def _by_family(batch: Batch, families: Collection[str]) -> Iterator[NewRows]:
    """Yield the rows of a batch of these families, divided by family."""
    found = dict.fromkeys(batch.states)
    for family in filter(families.__contains__, found):
        row_keys, rows = batch.keys, cast("list[bytes]", batch.values)
        if len(found) > 1:
            own = [state == family for state in batch.states]
            row_keys, rows = list(compress(row_keys, own)), list(compress(rows, own))
        yield family, row_keys, rows


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
            yield family, list(map(keyed.row_key, parts)), values


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
            for family, row_keys, rows in rows_of(operator, writer.rows):
                writer.put(family, row_keys, rows)
                count(len(rows))
            shards = writer.finish(epoch, local[operator.name])
        writer.check(shards, count)
        new_shards[operator.name] = shards
        for family, checksum in writer.checksums.items():
            verified(operator.name, family, checksum)
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
