"""Row parts: keys, map keys, positions, times and values of all rows of a batch.

With G the key group, rows of an operator have these row keys:

    a state      G + key + map key or position, if it has one
    _timers      G + key + clock, time, name
    _waiting     G + time + key + record, position

Rows of operator state have no key: their parts begin with the map key or the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import ne

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.checkpoint.era import PERMANENT, Era
from statekit.checkpoint.job_file import ROW_MARK, TIMERS, WAITING, OperatorRecord, StateRecord
from statekit.checkpoint.state_kinds import POSITION_BYTES
from statekit.codec.schema import Schema
from statekit.codec.vectorized import ints_of_sortable
from statekit.keygroup import GROUP_BYTES
from statekit.query.encoded.binary_columns import row_ends, sortable_bytes
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.key_columns import PartsOfKey, checked_ends
from statekit.query.tables.packed_bytes import Offsets, PackedBytes, RowBatch
from statekit.state.event_time_buffer import record_of_row
from statekit.state.row_versions import generation_of
from statekit.state.timers import CLOCKS
from statekit.state.ttl import unstamped
from statekit.timestamp import MAX_MICROS, MIN_MICROS, TIME_BYTES

Times = npt.NDArray[np.int64]
"""Microseconds since 1970 UTC."""

_STAMP_BYTES = 2 + TIME_BYTES


@dataclass(frozen=True)
class Family:
    """One state of an operator, its timers or its buffered records.

    Parameters:
        operator: its operator.
        name: of the state, or `TIMERS`, or `WAITING`.
    """

    operator: OperatorRecord
    name: str

    @cached_property
    def state(self) -> StateRecord | None:
        """The state; None for timers and buffered records."""
        return next((state for state in self.operator.states if state.name == self.name), None)

    @property
    def is_local(self) -> bool:
        """True for operator state."""
        return self.state is not None and self.state.is_local

    @property
    def ttl_era(self) -> Era | None:
        """Era of the stamps that count; None if no row has a stamp."""
        return None if self.state is None or not self.state.era else self.state.expiry_era

    @cached_property
    def key(self) -> PartsOfKey:
        """Decoder of the fields of the key."""
        return PartsOfKey([Schema.from_json(field.type) for field in self.operator.key])


class Positions:
    """Numbers the list elements of each key from 0, also if its rows are in several batches."""

    def __init__(self) -> None:
        self._key, self._next = b"", 0

    def of(self, keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Return the number of earlier rows with the same key, for each row.

        >>> positions = Positions()
        >>> positions.of([b"a", b"a", b"b"]).tolist(), positions.of([b"b", b"c"]).tolist()
        ([0, 1, 0], [1, 0])
        """
        if not keys:
            return np.empty(0, np.int64)
        numbers = np.arange(len(keys))
        changes = np.fromiter(map(ne, keys[1:], keys), np.bool_, len(keys) - 1)
        first = np.zeros(len(keys), np.int64)
        first[1:] = np.where(changes, numbers[1:], 0)
        first = np.maximum.accumulate(first)
        if keys[0] == self._key:
            first[: int((first == 0).sum())] -= self._next
        positions = numbers - first
        self._key, self._next = keys[-1], int(positions[-1]) + 1
        return positions


class RowParts:
    """The parts of the rows of a batch. Each part is computed at its first use.

    Parameters:
        family: the state of the rows.
        rows: the rows.
        positions: the numbering of list elements.

    Raises:
        CorruptCheckpointError, ValueError, IndexError: from every part, if a row is not of its
            type.
    """

    def __init__(self, family: Family, rows: RowBatch, positions: Positions) -> None:
        self.rows = rows
        self._family = family
        self._positions = positions
        self._key_at = GROUP_BYTES + (TIME_BYTES if family.name == WAITING else 0)

    # ------------------------------------------------------------------------------ row keys

    @cached_property
    def packed(self) -> PackedBytes:
        return PackedBytes(self.rows.keys)

    @cached_property
    def _key(self) -> tuple[list[pa.Array], Offsets]:
        if self._family.is_local:
            return [], self.packed.starts
        return self._family.key.decode(self.packed, self.packed.starts + self._key_at)

    @property
    def key_fields(self) -> list[pa.Array]:
        """The fields of the keys."""
        return self._key[0]

    @property
    def key_ends(self) -> Offsets:
        """Offset of the end of the key in each row key."""
        return self._key[1]

    @property
    def shards(self) -> pa.Array:
        """The shards of operator state."""
        return pa.array(self.rows.shards, pa.int32())

    @property
    def positions(self) -> pa.Array:
        """The positions of list elements."""
        keys = self.rows.keys
        if self._family.is_local:
            prefixes = [shard.to_bytes(4, "big") for shard in self.rows.shards or ()]
        else:
            prefixes = [key[GROUP_BYTES:-POSITION_BYTES] for key in keys]
        return pa.array(self._positions.of(prefixes))

    @property
    def key_bytes(self) -> pa.Array:
        """The encoded keys; for operator state, the number of the shard in 4 bytes."""
        if self._family.is_local:
            shards = [shard.to_bytes(4, "big") for shard in self.rows.shards or ()]
            return pa.array(shards, pa.binary())
        return self.packed.slices(self.packed.starts + self._key_at, self.key_ends)

    @property
    def subkey_bytes(self) -> pa.Array:
        """The row keys without key group and key."""
        if self._family.name != WAITING:
            return self.packed.slices(self.key_ends, self.packed.ends)
        ends = (self.key_ends - self.packed.starts).tolist()
        pairs = zip(self.rows.keys, ends, strict=True)
        subkeys = [key[GROUP_BYTES : self._key_at] + key[end:] for key, end in pairs]
        return pa.array(subkeys, pa.binary())

    # ---------------------------------------------------------------- timers, buffered records

    @property
    def timer_names(self) -> pa.Array:
        starts = self.key_ends + 1 + TIME_BYTES
        checked_ends(self.packed, starts)
        return self.packed.slices(starts, self.packed.ends).cast(pa.string())

    @property
    def timer_clocks(self) -> pa.Array:
        return pa.array(CLOCKS, pa.string()).take(
            pa.array(self.packed.numbers(self.key_ends, "u1"))
        )

    @property
    def times(self) -> pa.Array:
        """The times of timers, or of buffered records."""
        is_timer = self._family.name == TIMERS
        starts = self.key_ends + 1 if is_timer else self.packed.starts + GROUP_BYTES
        checked_ends(self.packed, starts + TIME_BYTES)
        micros = ints_of_sortable(self.packed.numbers(starts, ">u8"))
        if is_timer and (np.clip(micros, MIN_MICROS, MAX_MICROS) != micros).any():
            raise ValueError("a timer is not within the years 1 to 9999")
        return instants(micros)

    @property
    def records(self) -> list[bytes]:
        """The encoded buffered records."""
        ends = (self.key_ends - self.packed.starts).tolist()
        return [record_of_row(k[end:]) for k, end in zip(self.rows.keys, ends, strict=True)]

    # --------------------------------------------------------------------------------- values

    @cached_property
    def _unstamped(self) -> tuple[list[bytes], Times]:
        return unstamped_rows(self.rows.rows, self._family.ttl_era)

    @property
    def written(self) -> Times:
        """The write times by the clock of the TTL; `PERMANENT` for rows that do not expire."""
        return self._unstamped[1]

    @cached_property
    def by_generation(self) -> tuple[list[bytes], dict[int, tuple[int, bytes]]]:
        """The values, with nil in place of those of earlier generations; and those, with their
        generations, by their places in the batch.
        """
        state, values = self._family.state, self._unstamped[0]
        if state is None or not state.generation:
            return values, {}
        earlier: dict[int, tuple[int, bytes]] = {}
        present = []
        for place, row in enumerate(values):
            generation, value = generation_of(row)
            if generation != state.generation:
                earlier[place] = (generation, value)
                value = b"\xc0"
            present.append(value)
        return present, earlier


def unstamped_rows(rows: list[bytes], era: Era | None) -> tuple[list[bytes], Times]:
    """Return rows without their stamps, and their write times: as `ttl.unstamped`, for many rows.

    Parameters:
        era: None if no row has a stamp.

    >>> unstamped_rows([b"value"], Era(1))[1].tolist() == [PERMANENT]
    True
    """
    if era is None:
        return rows, np.full(len(rows), PERMANENT)
    if {row[:2] for row in rows} == {ROW_MARK + bytes([era.number])}:
        stamps = b"".join([row[2:_STAMP_BYTES] for row in rows])
        if len(stamps) == TIME_BYTES * len(rows):
            values = [row[_STAMP_BYTES:] for row in rows]
            times = ints_of_sortable(np.frombuffer(stamps, ">u8"))
            return values, np.where(times == PERMANENT, era.since_us, times)
    pairs = [unstamped(row, era) for row in rows]
    return [value for value, _ in pairs], np.array([time for _, time in pairs], np.int64)


def stamps(times: Times, era: Era) -> pa.Array:
    """Return the stamps of write times, which precede the values in rows. Rows that do not expire
    have none.

    Parameters:
        times: in microseconds; `PERMANENT` for rows that do not expire.
        era: the present one, without earlier ones.

    >>> stamps(np.array([PERMANENT]), Era(1)).to_pylist()
    [b'']
    """
    matrix = np.empty((len(times), _STAMP_BYTES), np.uint8)
    matrix[:, :2] = np.frombuffer(ROW_MARK + bytes([era.number]), np.uint8)
    matrix[:, 2:] = sortable_bytes(times)
    return row_ends(matrix, np.where(times == PERMANENT, 0, _STAMP_BYTES))


def instants(micros: Times) -> pa.Array:
    """Return times as a column, clipped to the years 1 to 9999. Write times of rows that do not
    expire, or that had expired in an earlier era, are null.

    >>> instants(np.array([0, PERMANENT])).is_null().to_pylist()
    [False, True]
    """
    clipped = np.clip(micros, MIN_MICROS, MAX_MICROS)
    return pa.array(clipped, pa.int64(), mask=np.abs(micros) == PERMANENT).cast(TIMESTAMP)
