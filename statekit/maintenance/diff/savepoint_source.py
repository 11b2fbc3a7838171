"""Savepoints as a side of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from statekit.backend.interface import Backend
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.repository import group_bounds
from statekit.keygroup import group_range, pack_group
from statekit.maintenance.diff.compare import ShardVersion
from statekit.maintenance.diff.rows import Groups, unpacked
from statekit.maintenance.row_keys import KeyedRows
from statekit.maintenance.savepoint.format import Savepoint


class SavepointSource:
    """The state of a savepoint.

    Parameters:
        url: its directory, or its URL in an object store.

    Raises:
        RestoreError: there is none.
    """

    def __init__(self, url: str | Path) -> None:
        self._savepoint = Savepoint.at(url)
        self.job = self._savepoint.file.job
        self.title = str(url)

    def pieces(self, operator: str) -> Sequence[Groups]:
        return [(0, self.job.key_groups - 1)]  # its files are not cut by key group

    def shards(self, operator: str) -> Sequence[Groups]:
        shards, groups = self._savepoint.file.parallelism, self.job.key_groups
        return [group_range(shard, shards, groups) for shard in range(shards)]

    def held(self, operator: str, groups: Groups) -> ShardVersion | None:
        return None

    def unpack(self, operator: str, groups: Groups, directory: Path) -> Backend:
        record = self.job.operator(operator)
        assert record is not None, "asked for operators of its job only"
        return unpacked(directory, record.holds, self._rows(record, groups))

    def _rows(self, record: OperatorRecord, groups: Groups) -> Iterator[tuple[str, bytes, bytes]]:
        keyed, (start, end) = KeyedRows(record, self.job.key_groups), group_bounds(*groups)
        for family, parts, row in self._savepoint.rows(record):
            row_key = keyed.row_key(parts)
            if start <= row_key < end:
                yield family, row_key, row
        for family, shards in self._savepoint.local_rows(record).items():
            for (first, _), rows in zip(self.shards(record.name), shards, strict=True):
                if groups[0] <= first <= groups[1]:
                    yield from ((family, pack_group(first) + subkey, row) for subkey, row in rows)
