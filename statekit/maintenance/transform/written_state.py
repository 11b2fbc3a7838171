"""Written states: the conversion of typed rows and of Arrow batches to stored rows.

The columns of a batch are those of `statekit.read`, of the state as the new job declares it, and
`table_rows` encodes them. Every row is checked against the declared type: a value that the process
function could not read is refused, with its row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from statekit.checkpoint.era import PERMANENT, Era
from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.value_codec import PickleCodec
from statekit.errors import CALL_FAILURES, ProcessError, StateSchemaError, StateTypeError, is_users
from statekit.job.plan import Operator
from statekit.keygroup import GROUP_BYTES, key_group, pack_group
from statekit.maintenance.transform.state_row import StateRow
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.packed_bytes import RowBatch, RowColumns
from statekit.query.tables.row_parts import Family, stamps
from statekit.query.tables.table import layout_of, names_of
from statekit.query.tables.table_rows import (
    MISFITS,
    POSITIONS,
    RowEncoder,
    encoder_of,
    local_rows_of,
    row_text,
)
from statekit.query.tables.timer_rows import TimerRows, timer_suffix
from statekit.shown import shown, shown_error, shown_text
from statekit.state.base import StateSpec
from statekit.state.timers import Timer
from statekit.state.ttl import unstamped
from statekit.timestamp import datetime_to_micros

_ERA = Era(1)
"""The era of all rows of a state that no job has run with."""


class WrittenState:
    """Converts the rows of one state, or of the timers, of a new operator.

    Parameters:
        operator: the operator, as the new job declares it.
        name: the state, or `TIMERS`.
        key_groups: the number of key groups.
        shards: the number of shards.
        now_us: the write time of rows without one, by the clock of the TTL.

    Raises:
        StateSchemaError: the operator has no such state.
    """

    def __init__(
        self, operator: Operator, name: str, key_groups: int, shards: int, now_us: int
    ) -> None:
        self._operator, self._record = operator, operator.record()
        self.name, self._key_groups, self._shards, self._now_us = name, key_groups, shards, now_us
        self.where = f"write({operator.name!r}, {name!r})"
        states = {spec.name: spec for spec in operator.declared.states}
        if name not in states and not (name == TIMERS and self._record.timers):
            offered = [*states, *([TIMERS] * self._record.timers)]
            raise StateSchemaError(
                f"{self.where}: the job has no such state: operator {operator.name!r} has "
                f"{', '.join(offered) or 'none'}. Nothing was written: correct the name"
            )
        self._spec: StateSpec | None = states.get(name)
        self._family = Family(self._record, name)
        self._rows = 0

    @property
    def is_local(self) -> bool:
        """True for operator state."""
        return self._family.is_local

    # --------------------------------------------------------------------------- typed rows

    def of_rows(self, rows: Sequence[StateRow]) -> RowColumns | RowBatch:
        """Return the stored rows of typed rows: those of operator state with their shards.

        Raises:
            StateTypeError: a row is not of the declared type.
        """
        found = RowBatch([], [], [] if self.is_local else None)
        for row in rows:
            with self._refused(self._rows, row):
                prefix = self._prefix_of(row.key, found)
                found.keys.append(prefix + self._place_of(row))
                found.rows.append(self._value_of(row))
            self._rows += 1
        return found if self.is_local else RowColumns.of(found.keys, found.rows)

    def _prefix_of(self, key: Any, found: RowBatch) -> bytes:
        if found.shards is not None:
            found.shards.append(self._checked_shard(key))
            return b""
        encoded = self._operator.declared.key_codec.encode(key)
        return pack_group(key_group(key, self._key_groups)) + encoded

    def _checked_shard(self, shard: object) -> int:
        if type(shard) is not int or not 0 <= shard < self._shards:
            raise StateTypeError(f"the shard is an int from 0 to {self._shards - 1}")
        return shard

    def _place_of(self, row: StateRow) -> bytes:
        spec, place = self._spec, row.place
        if spec is None:
            return self._timer(row.value)
        if spec.kind.shape is RowShape.ELEMENTS:
            return self._position(self._rows if place is None else place)
        if spec.key_codec is not None:
            return spec.key_codec.encode(place)
        if place is not None:
            raise StateTypeError("only maps and lists have a place")
        return b""

    def _position(self, number: object) -> bytes:
        if type(number) is not int or not 0 <= number < POSITIONS:
            raise StateTypeError("the position is an int from 0 to 2^48-1")
        return bytes(6) + number.to_bytes(6, "big")

    def _timer(self, timer: object) -> bytes:
        if not isinstance(timer, Timer):
            raise StateTypeError("the value is a statekit.Timer")
        return timer_suffix(self._record, timer.clock, timer.at, timer.name)

    def _value_of(self, row: StateRow) -> bytes:
        spec, value = self._spec, row.value
        if (spec is None or spec.ttl is None) and isinstance(row.written, dt.datetime):
            raise StateTypeError("the state has no TTL: leave `written` out")
        if spec is None:
            return b""
        if not spec.codec.accepts(value):
            raise StateTypeError(spec.codec.reason(value))
        encoded = spec.codec.encode(value)
        if spec.ttl is None:
            return encoded
        return _stamped(encoded, self._written_us(row))

    def _written_us(self, row: StateRow) -> int:
        if row.written is None:
            return PERMANENT
        if row.written == "epoch":
            return self._now_us
        return datetime_to_micros(row.written)

    # ---------------------------------------------------------------------------- columns

    def of_batch(self, batch: pa.RecordBatch) -> RowColumns | RowBatch:
        """Return the stored rows of a record batch: those of operator state with their shards.

        Raises:
            StateTypeError: a column is missing, unknown or of another type, or a row is not of the
                declared type.
        """
        first, self._rows = self._rows, self._rows + batch.num_rows
        if self._spec is None:
            return self._timers(batch, first)
        batch = self._complete(batch, self._spec, first)
        groups = self._key_groups
        encoder, wrong = encoder_of(self._family, self._spec.codec, groups, batch.schema)
        if wrong:
            raise self._wrong_columns("; ".join(wrong))
        rows = self._checked(encoder, batch, first)
        return self._of_shards(rows, batch, first) if self.is_local else rows

    def _of_shards(self, rows: RowColumns, batch: pa.RecordBatch, first: int) -> RowBatch:
        found = local_rows_of(rows)
        for place, shard in enumerate(found.shards or ()):
            if shard >= self._shards:
                with self._refused(first + place, row_text(batch.slice(place, 1))):
                    self._checked_shard(shard)
        return found

    def _complete(self, batch: pa.RecordBatch, spec: StateSpec, first: int) -> pa.RecordBatch:
        """Return a batch with the columns that may be left out, and without deadlines."""
        if spec.codec.name == PickleCodec.name:
            raise StateTypeError(
                f"{self.where}: its values are pickled, which has no columns to write. Nothing was "
                "written: give an iterable of statekit.StateRow"
            )
        layout, count = layout_of(self._family), batch.num_rows
        names = names_of(layout.columns)
        if unknown := [name for name in batch.schema.names if name not in names]:
            raise self._wrong_columns(f"there is no column {unknown[0]} in {', '.join(names)}")
        if spec.kind.shape is RowShape.ELEMENTS and "position" not in batch.schema.names:
            positions = pa.array(range(first, first + count), pa.int64())
            batch = batch.append_column("position", positions)
        if layout.times and "written" not in batch.schema.names:
            now = None if self._now_us == PERMANENT else self._now_us
            written = pa.array([now] * count, pa.int64()).cast(TIMESTAMP)
            batch = batch.append_column("written", written)
        return batch

    def _wrong_columns(self, what: str) -> StateTypeError:
        return StateTypeError(
            f"{self.where}: {what}. Nothing was written: the columns are those of statekit.read; "
            "rename, add, cast or remove columns"
        )

    def _timers(self, batch: pa.RecordBatch, first: int) -> RowColumns:
        """Return timers of the columns of `read`."""
        encoder = TimerRows(self._family, self._key_groups, batch.schema)
        if encoder.wrong or set(batch.schema.names) - set(encoder.names):
            raise self._wrong_columns(
                f"the columns are {', '.join(batch.schema.names)}, and timers have "
                f"{', '.join(encoder.names)}"
            )
        return self._checked(encoder, batch, first)

    def _checked(self, encoder: RowEncoder, batch: pa.RecordBatch, first: int) -> RowColumns:
        rows, _, refused = encoder.rows(batch)
        for place, reason in refused:
            with self._refused(first + place, row_text(batch.slice(place, 1))):
                raise StateTypeError(reason)
        return rows

    # ------------------------------------------------------------------------------- errors

    @contextmanager
    def _refused(self, number: int, row: object) -> Iterator[None]:
        """Add the row to the error of a row that is not of the declared type."""
        try:
            yield
        except MISFITS as error:
            raise StateTypeError(
                f"{self.where}: row {number}, {shown(row, 200)}, is refused: {shown_text(error)}. "
                "Nothing was written: correct the row, or the declared type"
            ) from error

    # ------------------------------------------------------------------ rows of the same key

    def repeated_in(self, shard: int) -> StateTypeError:
        """Return the error for several rows of operator state of a shard with the same place."""
        return StateTypeError(
            f"{self.where}: several rows of shard {shard} have the same place, and the state holds "
            "one. Nothing was written: combine them before"
        )

    def repeated(self, row_key: bytes, rows: list[bytes]) -> bytes:
        """Return the row of a row key that was written several times: values of a reducing or
        aggregating state are combined, a timer is set once.

        Raises:
            StateTypeError: the state holds one value, or the combined value does not fit its type.
            ProcessError: the function that combines values failed.
        """
        spec = self._spec
        if spec is None:
            return rows[0]
        key = self._operator.declared.key_codec.decode(row_key, GROUP_BYTES)[0]
        combine = self._combine(spec)
        if combine is None:
            raise StateTypeError(
                f"{self.where}: {len(rows)} rows have the key {shown(key, 200)} and the same "
                "place, and the state holds one. Nothing was written: combine them before, or "
                "write to a state that combines values, such as ReducingState"
            )
        pairs = [unstamped(row, _ERA) for row in rows]
        encoded = self._combined(spec, combine, key, [row for row, _ in pairs])
        if spec.ttl is None:
            return encoded
        return _stamped(encoded, max(written for _, written in pairs))

    def _combined(
        self, spec: StateSpec, combine: Callable[[Any, Any], Any], key: Any, rows: list[bytes]
    ) -> bytes:
        """Return the stored value of several stored values of a key."""
        what = f"{self.where}: {len(rows)} rows of the key {shown(key, 200)}"
        try:
            value = reduce(combine, map(spec.codec.decode, rows))
        except CALL_FAILURES as error:
            if not is_users(error):
                raise
            raise ProcessError(
                f"{what} cannot be combined: {shown_error(error)}. Nothing was written: correct "
                "the function that combines values, or combine the rows before"
            ) from error
        try:
            return spec.codec.encode(value)
        except (StateTypeError, ValueError, TypeError, OverflowError) as error:
            raise StateTypeError(
                f"{what} are combined to a value that the state cannot hold: {shown_text(error)}. "
                "Nothing was written: correct the rows, or declare a type that holds their "
                "combination"
            ) from error

    def _combine(self, spec: StateSpec) -> Callable[[Any, Any], Any] | None:
        """Return the function that combines two stored values; None if there is none."""
        if spec.aggregate is not None:
            return spec.aggregate.merge
        if spec.reduce is None:
            return None
        if spec.reduce.known == "count":  # a stored value is a count
            return lambda first, second: first + second
        return spec.reduce.combine


def _stamped(value: bytes, written_us: int) -> bytes:
    stamp: bytes = stamps(np.array([written_us]), _ERA)[0].as_py()
    return stamp + value
