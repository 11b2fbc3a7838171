"""Reading the rows of two states in parallel, in key order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from statekit.backend.interface import Backend
from statekit.backend.mutation import in_batches
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import TIMERS, WAITING, OperatorRecord, StateRecord
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.state_kinds import POSITION_BYTES, RowShape
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import json_key_decoder, json_value_decoder
from statekit.codec.schema_evolution import keeps_keys
from statekit.codec.value_codec import PickleCodec
from statekit.keygroup import GROUP_BYTES, group_of_row, pack_group
from statekit.state.row_versions import row_decoder
from statekit.state.timers import timer_of_row
from statekit.state.ttl import without_stamp
from statekit.stored_types import key_schema, state_text
from statekit.timestamp import TIME_BYTES, instant, micros_of_sortable

Groups = tuple[int, int]
"""The first and the last of some key groups."""

Row = tuple[bytes, bytes]
"""The identity of a row in its family, and its content."""

_INDEX_BYTES = 8
_SORTED = "sorted"


class FamilyRows:
    """Reader of the rows of one family of an operator: a state, timers, or buffered records.

    Parameters:
        operator: the operator of the rows.
        name: of the state, `TIMERS` or `WAITING`.
        allow_pickle: unpickle values; otherwise they are shown as hex.
    """

    def __init__(self, operator: OperatorRecord, name: str, *, allow_pickle: bool) -> None:
        self.name = name
        self.state = next((state for state in operator.states if state.name == name), None)
        self._shape = None if self.state is None else self.state.shape
        self.is_local = self.state is not None and self.state.is_local
        if not self.is_local:
            self._decode_key = json_key_decoder(key_schema(operator))
        self._identified_by = _identified_by(operator, name, self.state)
        if self.state is not None:
            self._decode = _value_decoder(self.state, allow_pickle)
            if self._shape is RowShape.ENTRIES:
                self._decode_subkey = json_key_decoder(Schema.from_json(self.state.types["key"]))
        elif name == WAITING:
            self._decode = json_value_decoder(Schema.from_json(operator.ordered))

    @property
    def type(self) -> str:
        """The declared type as text."""
        if self.state is not None:
            return state_text(self.state)
        return "timers" if self.name == TIMERS else "buffered records"

    def means_the_same_as(self, other: FamilyRows) -> bool:
        """Return whether equal bytes mean equal values in both families."""
        if self.state is None or other.state is None:
            return self.type == other.type
        return _meaning(self.state) == _meaning(other.state)

    def identifies_like(self, other: FamilyRows) -> bool:
        """Return whether equal bytes after the key group identify the same row in both families."""
        shape, keys = self._identified_by
        other_shape, other_keys = other._identified_by
        return (
            shape == other_shape
            and len(keys) == len(other_keys)
            and (all(map(keeps_keys, keys, other_keys)) or all(map(keeps_keys, other_keys, keys)))
        )

    def rows(self, backend: Backend, groups: Groups) -> Iterator[Row]:
        """Return all rows of some key groups, sorted by identity.

        Positions of list elements and buffered records are replaced by an index. Write times are
        left out.
        """
        stored = backend.scan(self.name, *group_bounds(*groups))
        if self._shape is not RowShape.ELEMENTS and self.name != WAITING:
            return ((row_key, without_stamp(row)) for row_key, row in stored)
        return (
            (before + index.to_bytes(_INDEX_BYTES, "big"), without_stamp(row))
            for before, same in groupby(stored, key=lambda pair: pair[0][:-POSITION_BYTES])
            for index, (_, row) in enumerate(same)
        )

    def identity(self, row_key: bytes) -> tuple[Any, Any]:
        """Return the key, and the position among the rows of the key, as JSON."""
        if self.name == WAITING:
            return self._identity_of_waiting(row_key)
        if self.is_local:
            key, end = f"shard from key group {group_of_row(row_key)}", GROUP_BYTES
        else:
            key, end = self._decode_key(row_key, GROUP_BYTES)
        if self._shape is RowShape.ELEMENTS:
            return key, int.from_bytes(row_key[end:], "big")
        if self._shape is RowShape.ENTRIES:
            return key, self._decode_subkey(row_key, end)[0]
        if self.name == TIMERS:
            timer = timer_of_row(row_key[end:])
            return key, [timer.clock, timer.at.isoformat(), timer.name]
        return key, None

    def _identity_of_waiting(self, row_key: bytes) -> tuple[Any, Any]:
        time = instant(micros_of_sortable(row_key, GROUP_BYTES)).isoformat()
        key, end = self._decode_key(row_key, GROUP_BYTES + TIME_BYTES)
        record = self._decode(row_key[end:-_INDEX_BYTES])
        return key, [time, record, int.from_bytes(row_key[-_INDEX_BYTES:], "big")]

    def value(self, content: bytes) -> Any:
        """Return the content of a row as JSON; None for rows without content."""
        return None if self.state is None else self._decode(content)


def _identified_by(
    operator: OperatorRecord, name: str, state: StateRecord | None
) -> tuple[Any, list[Schema]]:
    """Return the basis of a row's identity: the kind of rows, and the types of the parts of their
    keys.
    """
    keys = [Schema.from_json(part.type) for part in operator.key]
    if state is None:
        return (name, operator.ordered if name == WAITING else None), keys
    map_key = [Schema.from_json(state.types["key"])] if "key" in state.types else []
    return state.shape, [*([] if state.is_local else keys), *map_key]


def _meaning(state: StateRecord) -> tuple[Any, ...]:
    """Return the types that determine the meaning of a row's bytes."""
    return state.kind, state.codec, state.types, state.generation, state.past


def _value_decoder(state: StateRecord, allow_pickle: bool) -> Callable[[bytes], Any]:
    if state.codec == PickleCodec.name and not allow_pickle:
        return lambda content: {"pickled": content.hex()}
    return row_decoder(state, allow_pickle)


@contextlib.contextmanager
def unpacked(
    families: Sequence[str], rows: Iterable[tuple[str, bytes, bytes]]
) -> Iterator[Backend]:
    """Store rows with their families in a temporary database on the local disk."""
    with (
        scratch_directory("diff") as directory,
        contextlib.closing(RocksBackend(directory, families)) as backend,
    ):
        for batch in in_batches(rows):
            backend.write(batch)
        yield backend


class InAnyKeyGroups:
    """Sorted access to rows whose key groups or key types differ between the sides.

    Parameters:
        a, b: a family of both sides.
    """

    def __init__(self, a: FamilyRows, b: FamilyRows) -> None:
        self._family = a
        self._are_bytes = a.identifies_like(b)

    def sorted_rows(
        self, family: FamilyRows, rows: Iterable[Row], shards: Sequence[Groups]
    ) -> Generator[Row]:
        """Yield the rows of one side in order. They are sorted on the local disk.

        Parameters:
            shards: of that side, the key groups of each shard.
        """
        if family.is_local:
            numbers = {first: number for number, (first, _) in enumerate(shards)}
            rows = ((_of_shard(row_key, numbers), row) for row_key, row in rows)
        keyed = ((_SORTED, self._key(family, row_key), row) for row_key, row in rows)
        with unpacked([_SORTED], keyed) as backend:
            yield from backend.scan(_SORTED, b"", b"\xff" * 16)

    def _key(self, family: FamilyRows, row_key: bytes) -> bytes:
        if self._are_bytes:
            return row_key if family.is_local else row_key[GROUP_BYTES:]
        return json.dumps(_identity(family, row_key), sort_keys=True).encode()

    def identity(self, key: bytes) -> Sequence[Any]:
        """Return the identity of a sorted row, like `FamilyRows.identity`."""
        if not self._are_bytes:
            return json.loads(key)  # type: ignore[no-any-return]
        return _identity(self._family, key if self._family.is_local else pack_group(0) + key)


def _identity(family: FamilyRows, row_key: bytes) -> Sequence[Any]:
    """Return the identity of a row. For operator state, the shard replaces the key group."""
    key, place = family.identity(row_key)
    return f"shard {group_of_row(row_key)}" if family.is_local else key, place


def _of_shard(row_key: bytes, first_groups: Mapping[int, int]) -> bytes:
    """Return the row key of operator state, with the number of the shard in place of the key group.

    >>> _of_shard(pack_group(8) + b"element", {0: 0, 8: 1})
    b'\\x00\\x01element'
    """
    return pack_group(first_groups[group_of_row(row_key)]) + row_key[GROUP_BYTES:]
