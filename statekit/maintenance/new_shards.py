"""New shards: rows that are written to change files outside of a run, and read back.

Rewrites, restores, bootstraps and transforms use it. Each row is counted and indexed when it is
written. The new files, read back, must contain the written rows: the number of rows of each state
in each key group, and a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.backend.change_file import mutation_columns, put_columns
from statekit.backend.divided_rows import groups_of_keys
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import Clock, OperatorRecord
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.repository import LocalRows, Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import GROUP_BYTES
from statekit.maintenance.row_keys import Entry, KeyedRows
from statekit.query.encoded.binary_columns import Hashes, Strings, hashes
from statekit.query.tables.packed_bytes import RowColumns
from statekit.state.redistribution import put_local
from statekit.watermark import BEGINNING

FILE_BYTES_MAX = 1 << 30
"""A change file ends at this size, before compression."""

Count = Callable[[int], None]
"""A callback with a number of rows that were written or read back."""

NewRows = tuple[str, RowColumns]
"""Some rows of one family: its name, and the rows."""

_ODD = np.uint64(0x9E3779B185EBCA87)


class WrittenRows:
    """The rows of one family: their checksum, and how many are in each key group. It does not
    depend on their order or their shards.

    Parameters:
        key_groups: the number of key groups.
    """

    def __init__(self, key_groups: int) -> None:
        self._total = 0
        self._in_groups = np.zeros(key_groups, np.int64)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._in_groups.sum())

    def add(self, rows: RowColumns) -> npt.NDArray[np.uint16]:
        """Add rows, and return their key groups."""
        groups = groups_of_keys(rows.keys)
        self._in_groups += np.bincount(groups, minlength=len(self._in_groups))
        self._total += int(_row_hashes(rows).sum(dtype=np.uint64))
        self._total %= 1 << 64
        return groups

    def difference(self, other: WrittenRows) -> str:
        """Return how the contents differ from others; empty if they do not."""
        if (self.rows, self._total) != (other.rows, other._total):
            return f"{self} in place of {other}"
        return "rows in other key groups" if (self._in_groups != other._in_groups).any() else ""

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self._total:016x}"


def _row_hashes(rows: RowColumns) -> Hashes:
    """Return a hash of each row. Key groups are not part of it."""
    return hashes(rows.keys, skip=GROUP_BYTES) * _ODD ^ hashes(rows.rows, second=True)


class NewShard:
    """A shard that is being written.

    Parameters:
        operator: its operator.
        keyed: the keyed rows of the operator.
        groups: the first and the last key group.

    Attributes:
        rows, bytes: the number and size of the rows of each family.
    """

    def __init__(self, operator: OperatorRecord, keyed: KeyedRows, groups: tuple[int, int]) -> None:
        self.groups = groups
        self.rows: dict[str, int] = dict.fromkeys(keyed.families, 0)
        self.bytes: dict[str, int] = dict.fromkeys(keyed.families, 0)
        self._keyed = keyed
        self._wake_us: dict[Clock, int] = dict.fromkeys(operator.fires_without_timers, BEGINNING)
        self._files: list[FileRef] = []
        self._operator = operator.name
        families = dict.fromkeys((*operator.holds, *keyed.indexes))
        self._codes = {name: code for code, name in enumerate(families)}
        self._names = pa.array(list(families), pa.string())

    def wakes(self, times: Mapping[Clock, int]) -> None:
        """Have the shard wake at these times at the latest."""
        for clock, due_us in times.items():
            self._wake_us[clock] = min(due_us, self._wake_us.get(clock, due_us))

    def columns(
        self, family: str, rows: RowColumns, *, is_indexed: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Count rows, and yield them and their index rows as columns of a change file.

        Parameters:
            is_indexed: False if index rows are written otherwise.
        """
        if not len(rows.keys):
            return
        self.rows[family] += len(rows.keys)
        self.bytes[family] += _size(rows)
        yield self.of_index(family, rows)
        if is_indexed and self._keyed.has_entries(family):
            batch = Batch()
            entries = self._keyed.entries(family, rows.keys.to_pylist(), rows.rows.to_pylist())
            for entry in filter(None, entries):
                self._put_entry(entry, batch)
            yield mutation_columns(batch, self._codes, self._names)

    def of_index(self, family: str, rows: RowColumns) -> pa.RecordBatch:
        """Return rows of an index as columns of a change file. They are not counted."""
        return put_columns(self._codes[family], self._names, *rows)

    def _put_entry(self, entry: Entry, batch: Batch) -> None:
        self.wakes({entry.clock: entry.due_us})
        if entry.family is not None:
            batch.put(entry.family, entry.row_key, b"")

    def store(
        self, repository: Repository, batches: Iterable[pa.RecordBatch], *, local: bool = False
    ) -> None:
        """Write rows to change files.

        Parameters:
            repository: the checkpoint.
            batches: columns of a change file.
            local: whether they are operator state.
        """
        for of_file in _files(iter(batches)):
            file = repository.store_changes(self._operator, self._codes, of_file, local=local)
            self._files += [] if file is None else [file]

    def store_local(self, repository: Repository, rows_of: Mapping[str, LocalRows]) -> None:
        """Write the rows of each operator state to a change file, and count them."""
        batch = Batch()
        for name, size in put_local(batch, self.groups[0], rows_of).items():
            self.rows[name], self.bytes[name] = size
        if len(batch):
            columns = mutation_columns(batch, self._codes, self._names)
            self.store(repository, [columns], local=True)

    def state(self, epoch: int) -> ShardState:
        """Return the entry of the shard in a manifest.

        Parameters:
            epoch: of the manifest.
        """
        first, last = self.groups
        blank = not self._files
        return ShardState(
            first_group=first,
            last_group=last,
            attempt=None if blank else unique_id(),
            changed=None if blank else epoch,
            files=tuple(self._files),
            is_complete=True,
            chain=reduce(lambda cost, file: cost.followed_by(file, 0), self._files, ReplayCost()),
            rows={} if blank else self.rows,
            bytes={} if blank else self.bytes,
            wake_us={} if blank else self._wake_us,
        )


def _size(rows: RowColumns) -> int:
    """Return the size of row keys and rows in bytes."""
    return sum(len(Strings.of(column).own_data) for column in rows)


def _files(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the batches of one change file after the other. A file has to be read before the next
    one is requested.
    """

    def of_file(first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        size = 0
        for batch in chain([first], batches):
            yield batch
            size += batch.nbytes
            if size >= FILE_BYTES_MAX:
                return

    while (ahead := next(batches, None)) is not None:
        yield of_file(ahead)


def check_stored(
    repository: Repository,
    operator: OperatorRecord,
    shards: Sequence[ShardState],
    expected: Mapping[str, WrittenRows],
    key_groups: int,
    count: Count = lambda rows: None,
) -> None:
    """Read new shards back, and compare them with the written rows.

    Parameters:
        repository: the checkpoint.
        operator: the operator of the shards.
        shards: the new shards.
        expected: the rows of each family that were written.
        key_groups: the number of key groups.
        count: called with the number of rows that were read back.

    Raises:
        CorruptCheckpointError: they differ.
    """
    actual = {family: WrittenRows(key_groups) for family in expected}
    for shard, ref in [(owner, ref) for owner in shards for ref in owner.files if not ref.local]:
        for family, rows in _read_back(repository, ref):
            if family in actual:
                groups = actual[family].add(rows)
                if groups.min() < shard.first_group or groups.max() > shard.last_group:
                    where = f"rows outside of key groups {shard.groups}"
                    raise _differs(f"{operator.name}.{family}", where)
                count(len(rows.keys))
    for family, contents in expected.items():
        check_same(operator.name, family, actual[family], contents)


def _read_back(repository: Repository, ref: FileRef) -> Iterator[NewRows]:
    try:
        for batch in repository.columns(ref):
            yield from by_family(batch)
    except CorruptCheckpointError as error:
        raise _differs(ref.path, str(error)) from error


def check_same(operator: str, family: str, actual: WrittenRows, expected: WrittenRows) -> None:
    """Compare the rows of a family that were read with those that were written.

    Raises:
        CorruptCheckpointError: they differ.
    """
    if difference := actual.difference(expected):
        raise _differs(f"{operator}.{family}", difference)


def _differs(what: str, difference: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"the written rows of {what} differ from the read ones: {difference}. Nothing is "
        "committed, and the old state is unchanged: check the disks and the memory of this "
        "machine, then try again"
    )


def by_family(batch: pa.RecordBatch) -> Iterator[NewRows]:
    """Yield the rows of columns of a change file, divided by family."""
    states, _, row_keys, rows = batch.columns
    codes = states.indices.to_numpy()
    for code in np.unique(codes).tolist():
        own = codes == code
        found = RowColumns(row_keys, rows)
        yield states.dictionary[code].as_py(), found if own.all() else found.where(own)
