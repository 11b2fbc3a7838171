"""Predict the effect of another parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from statekit.backend.interface import StateSize, total_size
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import OperatorEpoch, ShardState, overlapping
from statekit.checkpoint.shard_layout import rescaled
from statekit.keygroup import check_groups, check_parallelism, group_of_row, group_range
from statekit.maintenance.rewrite import stored_rows
from statekit.maintenance.row_keys import KeyedRows
from statekit.reader import CheckpointReader
from statekit.state.base import StateSpec
from statekit.state.options import Rule
from statekit.state.redistribution import rule_of

Groups = dict[int, StateSize]
"""Rows and bytes per key group, of all keyed states together."""


@dataclass(frozen=True)
class Load:
    """One shard: its key groups and its size; None if it was not counted."""

    groups: tuple[int, int]
    size: StateSize | None


@dataclass(frozen=True)
class Move:
    """Key groups, first and last, that move from one shard to another."""

    groups: tuple[int, int]
    source: int
    target: int
    size: StateSize | None


@dataclass(frozen=True)
class Shared:
    """One operator state: the total size in all shards, and its rule, if it has one."""

    name: str
    size: StateSize
    rule: Rule | None

    @property
    def is_refused(self) -> bool:
        """Whether a rescale is refused, because the state has no rule."""
        return self.rule is None and self.size.rows > 0


@dataclass(frozen=True)
class OperatorPlan:
    """One operator, before and after.

    Attributes:
        name: of the operator.
        before, after: its shards.
        moves: key groups that move from one shard to another, in order.
        hot: the fullest key groups, the fullest first; empty if they were not counted.
        shared: its operator state, which does not follow key groups and is counted separately.
        has_keys: whether it has keyed state.
    """

    name: str
    before: list[Load]
    after: list[Load]
    moves: list[Move]
    hot: list[tuple[int, StateSize]]
    shared: list[Shared] = field(default_factory=list)
    has_keys: bool = True


_HOT_GROUPS = 5


def plan_of_rescale(
    reader: CheckpointReader,
    parallelism: int,
    *,
    key_groups: int | None = None,
    fast: bool = False,
    specs: Mapping[str, Sequence[StateSpec]] = MappingProxyType({}),
) -> list[OperatorPlan]:
    """Return the effect of another parallelism per operator.

    Parameters:
        key_groups: the new number, for a rewrite of all state; None for no change.
        fast: use the manifest instead of counting all rows per key group. The sizes of divided
            shards are then unknown.
        specs: per operator, its states as the code declares them, if it is known.

    Raises:
        RescaleError: the parallelism or the number of key groups is not valid.
    """
    manifest = reader.manifest
    new_groups = manifest.key_groups if key_groups is None else check_groups(key_groups)
    check_parallelism(parallelism, new_groups)
    ranges = [group_range(shard, parallelism, new_groups) for shard in range(parallelism)]
    is_rewrite = new_groups != manifest.key_groups
    planned = manifest if is_rewrite else rescaled(manifest, parallelism)
    plans = []
    for name, before in manifest.operators.items():
        record = reader.operator(name)
        groups = new_sizes = None if fast else _counted(reader, record)
        size_of = partial(_size_of_shard, groups, record.holds_by_key)
        if is_rewrite:
            new_sizes = _rehashed(reader, record, new_groups)
            after = [Load(own, _size_within(new_sizes, *own)) for own in ranges]
        else:
            after = [Load(own.groups, size_of(own)) for own in planned.operators[name].shards]
        plans.append(
            OperatorPlan(
                name,
                [Load(shard.groups, size_of(shard)) for shard in before.shards],
                after,
                [] if is_rewrite else _moves(before, ranges, size_of, groups),
                _fullest(new_sizes),
                _shared(record, before, specs.get(name, ())),
                has_keys=bool(record.holds_by_key),
            )
        )
    return plans


def _rehashed(reader: CheckpointReader, record: OperatorRecord, key_groups: int) -> Groups:
    """Return rows and bytes per key group, for another number of key groups."""
    rows: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    keyed = KeyedRows(record, key_groups)
    for _, parts, row in stored_rows(reader.repository, record, reader.manifest):
        row_key = keyed.row_key(parts)
        group = group_of_row(row_key)
        rows[group] += 1
        sizes[group] += len(row_key) + len(row)
    return {group: StateSize(rows[group], sizes[group]) for group in rows}


def skew_of(loads: list[Load]) -> float | None:
    """Return the size of the fullest shard relative to the mean; None if it is unknown."""
    rows = [load.size.rows for load in loads if load.size is not None]
    if len(rows) < len(loads) or not sum(rows):
        return None
    return max(rows) * len(rows) / sum(rows)


def _shared(
    record: OperatorRecord, before: OperatorEpoch, specs: Sequence[StateSpec]
) -> list[Shared]:
    rows, size, by_name = before.rows, before.bytes, {spec.name: spec for spec in specs}
    return [
        Shared(
            state.name,
            StateSize(rows.get(state.name, 0), size.get(state.name, 0)),
            rule_of(state, by_name.get(state.name)),
        )
        for state in record.states
        if state.is_local
    ]


def _counted(reader: CheckpointReader, record: OperatorRecord) -> Groups:
    with scratch_directory("rescale") as directory:
        states = reader.sizes_of_groups(record.name, directory)
    by_group: dict[int, list[StateSize]] = {}
    for name in record.holds_by_key:
        for group, size in states[name].items():
            by_group.setdefault(group, []).append(size)
    return {group: total_size(sizes) for group, sizes in by_group.items()}


def _size_of_shard(
    groups: Groups | None, states: Sequence[str], shard: ShardState
) -> StateSize | None:
    """Return the size of a shard: counted, or from the manifest; None if it is unknown."""
    if groups is not None:
        return _size_within(groups, *shard.groups)
    if shard.is_part:
        return None
    return StateSize(
        sum(shard.rows.get(name, 0) for name in states),
        sum(shard.bytes.get(name, 0) for name in states),
    )


def _size_within(groups: Groups, first: int, last: int) -> StateSize:
    return total_size(groups[group] for group in range(first, last + 1) if group in groups)


def _moves(
    before: OperatorEpoch,
    ranges: list[tuple[int, int]],
    size_of: Callable[[ShardState], StateSize | None],
    groups: Groups | None,
) -> list[Move]:
    numbers = {shard.first_group: number for number, shard in enumerate(before.shards)}
    moves = []
    for target, (first, last) in enumerate(ranges):
        for shard in overlapping(before.shards, first, last):
            own = max(first, shard.first_group), min(last, shard.last_group)
            if groups is not None:
                size: StateSize | None = _size_within(groups, *own)
            else:
                size = size_of(shard) if own == shard.groups else None
            moves.append(Move(own, numbers[shard.first_group], target, size))
    return moves


def _fullest(groups: Groups | None) -> list[tuple[int, StateSize]]:
    fullest = sorted((groups or {}).items(), key=lambda entry: (-entry[1].rows, entry[0]))
    return fullest[:_HOT_GROUPS]
