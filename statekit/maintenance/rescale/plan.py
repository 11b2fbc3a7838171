"""Prediction of the effect of another parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from statekit.backend.interface import StateSize
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import OperatorEpoch
from statekit.checkpoint.shard_layout import rescaled
from statekit.keygroup import check_groups, group_of_row, group_ranges
from statekit.maintenance.rewrite import stored_rows
from statekit.maintenance.row_keys import KeyedRows
from statekit.maintenance.sizes import (
    Groups,
    OperatorSizes,
    counted_sizes,
    size_of_shard,
    size_within,
    stored_sizes,
)
from statekit.query.rows.reader import CheckpointReader
from statekit.state.options import Rule
from statekit.state.redistribution import NO_SPECS, Specs, rule_of


@dataclass(frozen=True)
class Load:
    """A shard: its key groups and its size. The size is None if it was not counted."""

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
    """An operator state: its total size in all shards, and its rule. Rows without a rule prevent a
    rescale.
    """

    name: str
    size: StateSize
    rule: Rule | None


@dataclass(frozen=True)
class OperatorPlan:
    """An operator before and after a rescale.

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
    specs: Specs = NO_SPECS,
) -> list[OperatorPlan]:
    """Return the effect of another parallelism on each operator.

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
    ranges = group_ranges(parallelism, new_groups)
    is_rewrite = new_groups != manifest.key_groups
    planned = manifest if is_rewrite else rescaled(manifest, parallelism)
    plans = []
    for name, before in manifest.operators.items():
        record = reader.operator(name)
        sizes = stored_sizes(reader, name) if fast else counted_sizes(reader, name)
        groups = _rehashed(reader, record, new_groups) if is_rewrite else sizes.groups
        if groups is None:
            shards = planned.operators[name].shards
            after = [Load(shard.groups, size_of_shard(record, shard)) for shard in shards]
        else:
            after = [Load(own, size_within(groups, *own)) for own in ranges]
        groups_before = [shard.groups for shard in before.shards]
        by_name = {spec.name: spec for spec in specs.get(name, ())}
        local = [state for state in record.states if state.is_local]
        plans.append(
            OperatorPlan(
                name,
                list(map(Load, groups_before, sizes.shards)),
                after,
                [] if is_rewrite else _moves(before, ranges, sizes),
                nsmallest(_HOT_GROUPS, (groups or {}).items(), key=lambda g: (-g[1].rows, g[0])),
                [
                    Shared(s.name, sizes.states[s.name], rule_of(s, by_name.get(s.name)))
                    for s in local
                ],
                has_keys=bool(record.holds_by_key),
            )
        )
    return plans


def _rehashed(reader: CheckpointReader, record: OperatorRecord, key_groups: int) -> Groups:
    """Return rows and bytes per key group after a change of the number of key groups."""
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


def _moves(
    before: OperatorEpoch, ranges: Sequence[tuple[int, int]], sizes: OperatorSizes
) -> list[Move]:
    numbers = {shard.first_group: number for number, shard in enumerate(before.shards)}
    moves = []
    for target, (first, last) in enumerate(ranges):
        for shard in before.shards_over(first, last):
            own = max(first, shard.first_group), min(last, shard.last_group)
            source = numbers[shard.first_group]
            size = sizes.shards[source] if own == shard.groups else None
            if sizes.groups is not None:
                size = size_within(sizes.groups, *own)
            moves.append(Move(own, source, target, size))
    return moves
