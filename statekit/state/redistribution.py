"""Redistribution of operator state when the parallelism changes.

Old shards are taken in order, 0 to p-1, and each contributes exactly once:

    even       all elements, one list after the other, cut into n pieces of equal length; the
               first `total % n` pieces get one more
    union      all elements, for every new shard
    broadcast  the state of the old shard i % p, for the new shard i
    hooks      more shards: the state of the old shard j is split for the new shards i with
               i * p // n == j. Fewer: the states of the old shards j with j * n // p == i are
               merged for the new shard i. A shard that is neither split nor merged keeps its state

The rules move rows as they are, and need no code of the user. Hooks get plain Python values, and
their results are checked. All of it happens before anything is written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from statekit.backend.interface import StateSize
from statekit.backend.mutation import DELETE_RANGE, Batch
from statekit.checkpoint.job_file import OperatorRecord, StateRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.repository import LocalRows as Rows
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import local_rows
from statekit.checkpoint.state_kinds import RowShape
from statekit.checkpoint.store import TRANSFERS
from statekit.codec.schema_evolution import is_same_type
from statekit.codec.value_codec import ValueCodec
from statekit.errors import CALL_FAILURES, RescaleError, is_users
from statekit.keygroup import group_of_row, pack_group
from statekit.shown import shown, shown_error
from statekit.state.base import StateSpec
from statekit.state.key_scope import KeyScope
from statekit.state.options import Rule
from statekit.state.row_versions import generation_codec, value_schema

Specs = Mapping[str, Sequence[StateSpec]]
"""The states of each operator, as declared in the code."""

NO_SPECS: Specs = MappingProxyType({})
"""No declared states. Without code there are no functions that redistribute operator state."""


def redistributed(
    repository: Repository,
    before: EpochManifest,
    layout: EpochManifest,
    operators: Sequence[OperatorRecord],
    specs: Mapping[str, Sequence[StateSpec]],
) -> EpochManifest:
    """Return the layout with the redistributed operator state of its shards.

    The operator state is stored in change files that only the returned layout references.

    Parameters:
        before: the manifest with the old shards.
        layout: the manifest with the new shards.
        operators: of the job file.
        specs: per operator, its states as the code declares them; without code there are no hooks.

    Raises:
        RescaleError: a state has no rule, or a hook failed. Nothing is written then.
    """
    rows_by_operator: dict[str, dict[str, list[Rows]]] = {}
    emptied: dict[str, dict[str, list[int]]] = {}
    for operator in operators:
        if operator.name not in layout.operators:
            continue
        old, new = (manifest.operators[operator.name].shards for manifest in (before, layout))
        if [shard.groups for shard in old] == [shard.groups for shard in new]:
            continue
        rows_of = local_rows(repository, operator, before)
        has_rows = any(rows for shards in rows_of.values() for rows in shards)
        if has_rows or any(shard.redistributed for shard in old):
            rows_by_operator[operator.name] = rows_of
            emptied[operator.name] = _emptied(repository, old, rows_of)
    to_move = [operator for operator in operators if operator.name in rows_by_operator]
    moved = moved_by_operator(to_move, specs, rows_by_operator, layout.parallelism, before.epoch)
    changed = {
        name: _Moved(name, emptied[name], states).stored(repository, layout.operators[name])
        for name, states in moved.items()
    }
    return layout.model_copy(update={"operators": {**layout.operators, **changed}})


@dataclass(frozen=True)
class _Moved:
    """The operator state of one operator during a redistribution.

    Parameters:
        name: of the operator.
        emptied: per state, the key groups that may have rows of it, which are all deleted.
        states: the rows of each state for each new shard.
    """

    name: str
    emptied: Mapping[str, Sequence[int]]
    states: Mapping[str, list[Rows]]

    def stored(self, repository: Repository, epoch: OperatorEpoch) -> OperatorEpoch:
        """Return the operator with a change file for each new shard that receives state."""
        with ThreadPoolExecutor(TRANSFERS) as threads:
            numbers = range(len(epoch.shards))
            shards = tuple(threads.map(partial(self._begun, repository), numbers, epoch.shards))
        counted = {
            field: {name: n for name, n in getattr(epoch, field).items() if name not in self.states}
            for field in ("undivided_rows", "undivided_bytes")
        }
        return epoch.model_copy(update={"shards": shards, **counted})

    def _begun(self, repository: Repository, number: int, shard: ShardState) -> ShardState:
        first, last = shard.groups
        batch, rows, sizes = Batch(), dict(shard.rows), dict(shard.bytes)
        for name, groups in self.emptied.items():
            for group in groups[bisect_left(groups, first) : bisect_right(groups, last)]:
                batch.delete_range(name, pack_group(group), pack_group(group + 1))
        put = put_local(
            batch, first, {name: shards[number] for name, shards in self.states.items()}
        )
        for name, size in put.items():
            rows[name], sizes[name] = size
        # In the place of what waited: that may have rows of groups that are another shard's now.
        batches = [batch] if len(batch) else []
        file = repository.store_changes(self.name, self.states, batches, local=True)
        files = () if file is None else (file,)
        return shard.model_copy(update={"redistributed": files, "rows": rows, "bytes": sizes})


def _emptied(
    repository: Repository, old: Sequence[ShardState], rows_of: Mapping[str, list[Rows]]
) -> dict[str, list[int]]:
    """Return the key groups that may have rows, per state, in order.

    These are the first group of each old shard with rows, and those that an earlier redistribution
    was to delete, if the shard has not run since.
    """
    groups_by_state = {
        name: {shard.first_group for shard, rows in zip(old, shards, strict=True) if rows}
        for name, shards in rows_of.items()
    }
    for shard in old:
        for ref in shard.redistributed:
            for batch in repository.batches(ref):
                for state, op, key, _ in batch.rows():
                    if op == DELETE_RANGE and state in groups_by_state:
                        groups_by_state[state].add(group_of_row(key))
    return {name: sorted(groups) for name, groups in groups_by_state.items()}


def put_local(batch: Batch, first_group: int, rows_of: Mapping[str, Rows]) -> dict[str, StateSize]:
    """Add the operator state of a shard to a batch. Return the size of each state.

    Parameters:
        first_group: the first key group of the shard.
        rows_of: the rows of each state.
    """
    prefix, put = pack_group(first_group), dict[str, StateSize]()
    for name, rows in rows_of.items():
        sizes = [batch.put(name, prefix + subkey, row) for subkey, row in rows]
        put[name] = StateSize(len(sizes), sum(sizes))
    return put


def moved_by_operator(
    operators: Sequence[OperatorRecord],
    specs: Mapping[str, Sequence[StateSpec]],
    rows_by_operator: Mapping[str, Mapping[str, list[Rows]]],
    shards: int,
    epoch: int,
) -> dict[str, dict[str, list[Rows]]]:
    """Return the rows of each operator's states for each of `shards` new shards, as `moved_rows`
    does.
    """
    moved: dict[str, dict[str, list[Rows]]] = {}
    for operator in operators:
        by_name = {spec.name: spec for spec in specs.get(operator.name, ())}
        rows_of = rows_by_operator[operator.name]
        moved[operator.name] = {
            name: moved_rows(operator.name, state, by_name.get(name), rows_of[name], shards, epoch)
            for name, state in ((state.name, state) for state in operator.states)
            if state.is_local
        }
    return moved


def moved_rows(
    operator: str,
    state: StateRecord,
    spec: StateSpec | None,
    old_rows: list[Rows],
    shards: int,
    epoch: int,
) -> list[Rows]:
    """Return the rows of a state for each of `shards` new shards.

    Parameters:
        state: as in the checkpoint.
        spec: as in the code, with the rule for redistribution; None without code.
        old_rows: the rows of each old shard.
        epoch: list elements get positions of this epoch, before those of the next one.

    Raises:
        RescaleError: it has no rule, or its hooks are missing or failed.
    """
    if not any(old_rows) or len(old_rows) == shards:
        return [[] for _ in range(shards)] if not any(old_rows) else old_rows
    is_list = state.shape is RowShape.ELEMENTS
    rule = rule_of(state, spec)
    match rule:
        case "broadcast":
            return [old_rows[shard % len(old_rows)] for shard in range(shards)]
        case "even" | "union":
            elements = [row for rows in old_rows for _, row in rows]
            pieces = [elements] * shards
            if rule == "even":
                pieces = _even(elements, shards)
            return [_positioned(piece, epoch) for piece in pieces]
        case "hooks":
            moved = _by_hooks(_hooks(operator, state, spec, epoch), old_rows, shards)
            if is_list:
                return [_positioned(rows, epoch) for rows in moved]
            return [[(b"", row) for row in rows] for rows in moved]
    example = 'Redistribute("even")' if is_list else "Redistribute(split=..., merge=...)"
    declare = f"declare Annotated[..., {example}]"
    if state.kind == "object":
        declare = "give its class split_state and merge_states"
    raise RescaleError(
        f"{_where(operator, state)} has values in {sum(map(bool, old_rows))} of {len(old_rows)} "
        f"shards, and no rule redistributes them to {shards}: {declare}, or start with "
        f"parallelism={len(old_rows)}; nothing was changed"
    )


def _where(operator: str, state: StateRecord) -> str:
    return f"operator state {state.name!r} of operator {operator!r}"


def _hooks(operator: str, state: StateRecord, spec: StateSpec | None, epoch: int) -> _Hooks:
    """Return the functions of a state that is redistributed by hooks.

    Raises:
        RescaleError: the functions are not known, or the code declares another type.
    """
    where, hooks = _where(operator, state), None if spec is None else spec.redistribute
    if hooks is None or hooks.split is None or hooks.merge is None or spec is None:
        raise RescaleError(
            f"{where} is redistributed by functions of the job: give --app module:job, so "
            "that they are known; nothing was changed"
        )
    check_type(operator, state, spec)
    codec = spec.codec
    if state.generation:
        scope = KeyScope(operator, epoch, Batch(), lambda: None)
        codec = generation_codec(codec, state, spec.hooks, scope)
    is_list = state.shape is RowShape.ELEMENTS
    return _Hooks(where, hooks.split, hooks.merge, codec, is_list)


def check_type(operator: str, state: StateRecord, spec: StateSpec) -> None:
    """Check that results of hooks have the stored type of the rows.

    Raises:
        RescaleError: the code declares another type, which the state does not have yet.
    """
    stored, declared = value_schema(state), spec.codec.schema
    if state.codec != spec.codec.name or not is_same_type(stored, declared):
        raise RescaleError(
            f"{_where(operator, state)} has the stored type "
            f"{stored.brief}, and the job declares {declared.brief}, which its functions "
            "redistribute: start the job with parallelism=..., which changes both; from a "
            "savepoint, start with its parallelism first. Nothing was changed"
        )


def rule_of(state: StateRecord, spec: StateSpec | None) -> Rule | None:
    """Return the redistribution rule of a state: from the code, or from the last run if there is no
    code.
    """
    if spec is None:
        return state.redistribute
    return None if spec.redistribute is None else spec.redistribute.known


def _even(elements: list[bytes], shards: int) -> list[list[bytes]]:
    """Cut a list into pieces of equal length. The first pieces may have one more element.

    >>> _even([b"1", b"2", b"3", b"4", b"5"], 3)
    [[b'1', b'2'], [b'3', b'4'], [b'5']]
    """
    size, more = divmod(len(elements), shards)
    ends = [(shard + 1) * size + min(shard + 1, more) for shard in range(shards)]
    return [elements[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _positioned(elements: list[bytes], epoch: int) -> Rows:
    """Return list elements with positions like those of elements that are appended in an epoch."""
    start = epoch.to_bytes(6, "big")
    return [(start + number.to_bytes(6, "big"), row) for number, row in enumerate(elements)]


def _by_hooks(hooks: _Hooks, old_rows: list[Rows], shards: int) -> list[list[bytes]]:
    """Return the rows for each new shard, without their keys, from the user's functions."""
    rows = [[row for _, row in shard] for shard in old_rows]
    moved: list[list[bytes]] = []
    before, after = len(old_rows), shards
    if after > before:
        for old, state in enumerate(rows):
            new_shards = sum(new * before // after == old for new in range(after))
            moved += (
                [state] if new_shards == 1 or not state else hooks.split(old, state, new_shards)
            )
            moved += [[] for _ in range(new_shards - 1)] if not state else []
    else:
        for new in range(after):
            parts = [rows[old] for old in range(before) if old * after // before == new]
            present = [part for part in parts if part]
            alone = len(parts) == 1 or not present
            moved.append(parts[0] if alone else hooks.merge(new, present))
    return moved


@dataclass(frozen=True)
class _Hooks:
    """The user's functions for one state, applied to rows.

    Parameters:
        where: the state, for messages.
        split_state, merge_states: the functions.
        codec: of its value, or of its elements.
        is_list: whether a function gets a list of elements.
    """

    where: str
    split_state: Callable[[Any, int], Any]
    merge_states: Callable[[Any], Any]
    codec: ValueCodec[Any]
    is_list: bool

    def split(self, shard: int, rows: list[bytes], parts: int) -> list[list[bytes]]:
        """Split the rows of one old shard into parts."""
        about = f"split of shard {shard} for {parts} shards"
        returned = self._called(about, self.split_state, self._plain(rows), parts)
        if not isinstance(returned, list | tuple) or len(returned) != parts:
            actual = len(returned) if isinstance(returned, list | tuple) else shown(returned)
            raise self._refused(f"{about} returned {actual}, and not a list of {parts} states")
        return [self._rows(state, about) for state in returned]

    def merge(self, shard: int, parts: list[list[bytes]]) -> list[bytes]:
        """Merge the rows of several old shards."""
        about = f"merge of {len(parts)} shards for shard {shard}"
        states = [self._plain(rows) for rows in parts]
        return self._rows(self._called(about, self.merge_states, states), about)

    def _called(self, about: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except CALL_FAILURES as error:
            if not is_users(error):
                raise
            message = f"{about} failed with {shown_error(error)}"
            raise self._refused(message) from error

    def _plain(self, rows: list[bytes]) -> Any:
        """Decode the argument of a function. It is not shared, so the function may change it."""
        values = [self.codec.decode(row) for row in rows]
        return values if self.is_list else values[0]

    def _rows(self, state: Any, about: str) -> list[bytes]:
        """Encode the result of a function as rows."""
        if self.is_list:
            if not isinstance(state, list | tuple):
                raise self._refused(f"{about} returned {shown(state)}, and not a list")
            values = list(state)
        else:
            blank = state is None and not self.codec.accepts(None)
            values = [] if blank else [state]
        for value in values:
            if not self.codec.accepts(value):
                raise self._refused(
                    f"{about} returned {shown(value)}, which {self.codec.schema} cannot "
                    f"hold: {self.codec.reason(value)}"
                )
        return [self.codec.encode(value) for value in values]

    def _refused(self, message: str) -> RescaleError:
        return RescaleError(
            f"{self.where}: {message}. Nothing was changed: correct the function, or start with "
            "the parallelism of the checkpoint"
        )
