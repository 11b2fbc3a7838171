"""The size of an operator's state, counted row by row or taken from the manifest."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import groupby

from statekit.backend.interface import Rows, StateSize, size_of, total_size
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import ShardState
from statekit.keygroup import group_of_row
from statekit.query.rows.reader import CheckpointReader

Groups = dict[int, StateSize]
"""Rows and bytes per key group, for all keyed states together."""


@dataclass(frozen=True)
class OperatorSizes:
    """The size of an operator's state.

    Parameters:
        states: per state, and of timers and buffered records.
        shards: of keyed state, per shard; None for a shard that was not counted.
        groups: of keyed state, per key group; None if no state was read.
    """

    states: dict[str, StateSize]
    shards: list[StateSize | None]
    groups: Groups | None = None


def counted_sizes(reader: CheckpointReader, operator: str) -> OperatorSizes:
    """Count all rows of an operator."""
    record = reader.operator(operator)
    with (
        scratch_directory("sizes") as directory,
        contextlib.closing(reader.unpack(operator, directory)) as backend,
    ):
        states = {name: _by_group(backend.scan(name, *reader.bounds)) for name in record.holds}
    by_group: dict[int, list[StateSize]] = {}
    for name in record.holds_by_key:
        for group, size in states[name].items():
            by_group.setdefault(group, []).append(size)
    groups = {group: total_size(sizes) for group, sizes in by_group.items()}
    shards = reader.manifest.operators[operator].shards
    return OperatorSizes(
        {name: total_size(sizes.values()) for name, sizes in states.items()},
        [size_within(groups, *shard.groups) for shard in shards],
        groups,
    )


def _by_group(rows: Rows) -> Groups:
    return {group: size_of(own) for group, own in groupby(rows, lambda row: group_of_row(row[0]))}


def stored_sizes(reader: CheckpointReader, operator: str) -> OperatorSizes:
    """Return the sizes in the manifest. Shards that a rescale divided have no size there."""
    record, epoch = reader.operator(operator), reader.manifest.operators[operator]
    rows, size = epoch.rows, epoch.bytes
    states = {name: StateSize(rows.get(name, 0), size.get(name, 0)) for name in record.holds}
    return OperatorSizes(states, [size_of_shard(record, shard) for shard in epoch.shards])


def size_of_shard(operator: OperatorRecord, shard: ShardState) -> StateSize | None:
    """Return the size of a shard's keyed state in the manifest; None if it was not counted."""
    if shard.is_part:
        return None
    names = operator.holds_by_key
    return StateSize(
        sum(shard.rows.get(name, 0) for name in names),
        sum(shard.bytes.get(name, 0) for name in names),
    )


def size_within(groups: Groups, first: int, last: int) -> StateSize:
    """Return the size of the key groups `first..last`."""
    return total_size(groups[group] for group in range(first, last + 1) if group in groups)
