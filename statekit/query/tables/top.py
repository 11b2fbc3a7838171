"""Top keys: the largest and the most written keys of a state, and the largest key groups."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from statekit.backend.change_file import read_keys
from statekit.backend.mutation import DELETE_RANGE
from statekit.checkpoint.job_file import WAITING, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import follows_by_files, own_files
from statekit.checkpoint.retention import still_kept
from statekit.codec.schema_codec import json_key_decoder
from statekit.errors import QueryError, StateTypeError
from statekit.keygroup import group_of_row
from statekit.number_faults import int_fault
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import RowBatch
from statekit.query.tables.row_parts import Family, Positions, RowParts
from statekit.query.tables.stored_batches import keyed_batches
from statekit.shown import shown
from statekit.stored_types import key_schema

Measure = Literal["size", "rows", "writes"]


class TopKey(NamedTuple):
    """A key of a state in a ranking.

    Parameters:
        state: its name.
        key: as JSON-able data.
        rows: number of its rows, including expired ones; None in a ranking by writes.
        bytes: size of its row keys and rows; None in a ranking by writes.
        writes: number of its writes in the kept epochs; None in other rankings.
    """

    state: str
    key: Any
    rows: int | None = None
    bytes: int | None = None
    writes: int | None = None


class TopKeys(NamedTuple):
    """The first keys of a ranking.

    Parameters:
        keys: in the order of the ranking.
        groups: key groups with their numbers of rows, the largest first; empty in a ranking by
            writes.
        epochs: the first and the last epoch whose writes were counted; None in other rankings. The
            writes of the first kept epoch are unknown, unless it is the first epoch of all.
    """

    keys: list[TopKey]
    groups: list[tuple[int, int]]
    epochs: tuple[int, int] | None = None


class _Size(NamedTuple):
    """The size of a key. `order` is the measure of the ranking, so that sizes compare by it."""

    order: int
    rows: int
    row_bytes: int
    state: str
    key: bytes


def first_keys(
    checkpoint: CheckpointReader,
    operator: str,
    state: str | Collection[str] | None = None,
    *,
    by: Measure = "size",
    limit: int = 10,
) -> TopKeys:
    """Return the first keys of an operator in a ranking.

    Keys are ranked per state. By size or rows, all rows of the epoch are read once, and memory does
    not depend on their number. By writes, the keys in the change files of all kept epochs are
    counted, and memory grows with the number of different keys. Writes of a row that were combined
    within an epoch count once.

    Parameters:
        checkpoint: the checkpoint at an epoch.
        operator: its name.
        state: the name of one state, or "_timers", "_waiting"; or several of them; None for all.
        by: the measure.
        limit: the number of keys.

    Raises:
        QueryError: there is no such operator, or no such keyed state; or the writes of no epoch are
            known, or an epoch was collected while it was counted.
        CorruptCheckpointError: a file is missing or altered.
        StateTypeError: the limit is not a number above 0.
    """
    if fault := int_fault(limit, "give the number of keys, at least 1", least=1):
        raise StateTypeError(f"limit={shown(limit)}{fault}")
    record = checkpoint.operator(operator)
    families = _families(record, state, checkpoint.manifest.epoch)
    with still_kept(checkpoint.repository, checkpoint.manifest.epoch, QueryError):
        if by == "writes":
            return _most_written(checkpoint, record, families, limit)
        groups: Counter[int] = Counter()
        batches = keyed_batches(checkpoint.repository, record, checkpoint.manifest, families)
        largest = heapq.nlargest(limit, _sizes(batches, record, groups, by))
    decode = json_key_decoder(key_schema(record)) if record.key else None
    keys = [
        TopKey(size.state, decode(size.key)[0] if decode else None, size.rows, size.row_bytes)
        for size in largest
    ]
    return TopKeys(keys, groups.most_common())


def _families(
    record: OperatorRecord, state: str | Collection[str] | None, epoch: int
) -> tuple[str, ...]:
    """Return the states to rank, in the order of the operator.

    Raises:
        QueryError: there is no keyed state of a name.
    """
    if state is None:
        return record.holds_by_key
    names = {state} if isinstance(state, str) else set(state)
    for name in sorted(names.difference(record.holds_by_key)):
        raise QueryError(
            f"operator {record.name!r} has no keyed state {name!r} in epoch {epoch}: it has "
            f"{', '.join(record.holds_by_key) or 'none'}"
        )
    return tuple(name for name in record.holds_by_key if name in names)


def _keys_of(family: Family, rows: RowBatch) -> list[bytes]:
    keys: list[bytes] = RowParts(family, rows, Positions()).key_bytes.to_pylist()
    return keys


def _sizes(
    batches: Iterator[tuple[str, RowBatch]],
    record: OperatorRecord,
    groups: Counter[int],
    by: Measure,
) -> Iterator[_Size]:
    """Yield the size of each key, and count rows per key group. The rows of a key are adjacent.
    Buffered records are not: the sizes of their keys are yielded at the end.
    """
    scattered: dict[bytes, list[int]] = {}
    current, rows, size = ("", b""), 0, 0

    def measured(state: str, key: bytes, rows: int, size: int) -> _Size:
        return _Size(size if by == "size" else rows, rows, size, state, key)

    for state, batch in batches:
        groups.update(map(group_of_row, batch.keys))
        keys = _keys_of(Family(record, state), batch)
        sizes = map(sum, zip(map(len, batch.keys), map(len, batch.rows), strict=True))
        for key, row_bytes in zip(keys, sizes, strict=True):
            if state == WAITING:
                counted = scattered.setdefault(key, [0, 0])
                counted[0] += 1
                counted[1] += row_bytes
                continue
            if (state, key) != current:
                if rows:
                    yield measured(*current, rows, size)
                current, rows, size = (state, key), 0, 0
            rows += 1
            size += row_bytes
    if rows:
        yield measured(*current, rows, size)
    for key, (rows, size) in scattered.items():
        yield measured(WAITING, key, rows, size)


# ------------------------------------------------------------------------------------ writes


def _most_written(
    checkpoint: CheckpointReader, record: OperatorRecord, families: tuple[str, ...], limit: int
) -> TopKeys:
    repository, first = checkpoint.repository, None
    writes: Counter[tuple[str, bytes]] = Counter()
    kept = {family: Family(record, family) for family in families}
    for before, after in _epochs_with_writes(checkpoint):
        first = after.epoch if first is None else first
        if before is not None and not follows_by_files(before, after):
            continue  # as after a rollback: it counts as an epoch without writes
        for _, refs in own_files(repository, before, after, record.name):
            for ref in (ref for ref in refs if not ref.local):
                with repository.open_verified(ref) as file:
                    for batch in read_keys(file, ref.path):
                        for name, family in kept.items():
                            writes.update((name, key) for key in _written_keys(family, batch))
    if first is None:
        raise QueryError(
            f"the writes of epoch {checkpoint.manifest.epoch} of {repository.url} cannot be "
            "counted: it is the first kept one, and the epoch before it was collected. Count up to "
            "a later epoch, or keep more epochs with retention="
        )
    decode = json_key_decoder(key_schema(record)) if record.key else None
    keys = [
        TopKey(state, decode(key)[0] if decode else None, writes=count)
        for (state, key), count in writes.most_common(limit)
    ]
    return TopKeys(keys, [], (first, checkpoint.manifest.epoch))


def _written_keys(family: Family, batch: pa.RecordBatch) -> list[bytes]:
    states, ops, keys = (column.to_pylist() for column in batch.columns)
    ranges_have_keys = family.name != WAITING  # those of buffered records end at a time
    row_keys = [
        key
        for state, op, key in zip(states, ops, keys, strict=True)
        if state == family.name and (op != DELETE_RANGE or ranges_have_keys)
    ]
    return _keys_of(family, RowBatch(row_keys, [])) if row_keys else []


def _epochs_with_writes(
    checkpoint: CheckpointReader,
) -> Iterator[tuple[EpochManifest | None, EpochManifest]]:
    """Yield the kept epochs that were not rolled back, up to the epoch of the reader, each with the
    one before; None if it is the first of all. If earlier epochs were collected, the writes of the
    first kept one are unknown, and it is left out.

    Raises:
        CorruptCheckpointError: a manifest between them is missing.
        QueryError: an epoch was collected meanwhile.
    """
    repository, last, before = checkpoint.repository, checkpoint.manifest, None
    for number in checkpoint.epochs:
        if number > last.epoch or last.has_abandoned(number):
            continue
        with still_kept(repository, number, QueryError):
            after = repository.manifest(number)
            if before is not None and after.previous not in (None, before.epoch):
                repository.manifest(after.previous)  # raises that it is missing
        if before is not None or after.previous is None:
            yield before, after
        before = after
