"""Point-in-time reads: the values that a store with a history had, for a table of keys and times.

A store keeps the present value of each key with the time at which it was set, and each replaced
value under the time at which it was replaced (`kv/layouts`). So the value at a time is the first
one that was replaced later, or the present one. The rows of the wanted keys are selected in one
pass over the stored bytes, and only the values that were found are decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from statekit.checkpoint.era import PERMANENT
from statekit.codec.vectorized import ints_of_sortable
from statekit.errors import QueryError
from statekit.keygroup import GROUP_BYTES
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.key_columns import KeyEncoder
from statekit.query.tables.packed_bytes import PackedBytes, RowBatch
from statekit.query.tables.row_parts import Family, Positions, RowParts
from statekit.query.tables.table import column_names, columns_of_key, whole_values
from statekit.query.tables.table_rows import MISFITS, check_columns, reason_of
from statekit.timestamp import TIME_BYTES

AT = "at"
"""The column with the time that is asked for."""

STATES_OF_HISTORY = ("value", "since", "former")
"""The states of a store with a history."""

_NO_ROW = b"\xc0"
"""A row that is decoded to null."""


class RowsOfState(Protocol):
    """The stored rows of a state after an epoch."""

    family: Family

    @property
    def expired_until(self) -> int | None:
        """Last write time of rows that had expired; None if no rows expire."""

    def batches(self) -> Iterable[RowBatch]:
        """Return all rows."""


class StoreAsOf:
    """The values of a store with a history, after one epoch.

    Parameters:
        value: the state of present values.
        since: the state of the times at which these were set.
        former: the state of replaced values.
        now_us: the watermark of the store in the epoch.
    """

    def __init__(
        self, value: RowsOfState, since: RowsOfState, former: RowsOfState, now_us: int
    ) -> None:
        self._value, self._since, self._former = value, since, former
        self._now_us = now_us

    def joined(self, wanted: pa.Table) -> pa.Table:
        """Return a table with the value that each key had at each time, and its status.

        Parameters:
            wanted: has the columns of the key, and `at`. Other columns are kept.

        Raises:
            QueryError: a column is missing or has another type, or a key or a time is null or out
                of range.
        """
        keys, times = self._requests(wanted)
        former, places = self._places(keys, times)
        number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        # The chosen replaced values, and behind them the present one of each key.
        structs = _decoded(self._former.family, former)
        found = {
            name: pa.concat_arrays([structs.field(name), self._present(state, number_of)])
            for name, state in (("value", self._value), ("since", self._since))
        }
        at = pa.array(
            [
                len(former) + number_of[key] if place is None else place
                for key, place in zip(keys, places, strict=True)
            ],
            pa.int64(),
        )
        since = found["since"].take(at).cast(pa.int64()).to_pylist()
        has_value = found["value"].take(at).is_valid().to_pylist()
        statuses = [
            self._status(time, set_us, place is None, is_there)
            for time, set_us, place, is_there in zip(times, since, places, has_value, strict=True)
        ]
        is_found = pa.array([status == "found" for status in statuses], pa.bool_())
        at = pc.if_else(is_found, at, None)
        return _with_values(wanted, found["value"].take(at), statuses)

    def _requests(self, wanted: pa.Table) -> tuple[list[bytes], list[int]]:
        """Return the encoded key and the time of each row, in microseconds."""
        family = self._value.family
        fields = [column.field for column in columns_of_key(family)]
        asked = [*fields, pa.field(AT, TIMESTAMP)]
        wrong = check_columns(wanted.schema, asked)
        try:
            arrays = [
                wanted.column(field.name).combine_chunks().cast(field.type)
                for field in (asked if not wrong else ())
            ]
            named = zip(asked, arrays, strict=False)
            wrong += [f"column {field.name} has nulls" for field, of in named if of.null_count]
            if not wrong:
                keys = KeyEncoder(family.operator).encoded(arrays[:-1])
                return keys, arrays[-1].cast(pa.int64()).to_pylist()
        except MISFITS as error:
            wrong = [f"a value is not of its type: {reason_of(error)}"]
        raise QueryError(
            f"as_of= needs the columns of the key and {AT!r}, the time: {'; '.join(wrong)}. "
            "Nothing was read: correct the table. Times have microseconds"
        )

    def _places(
        self, keys: Sequence[bytes], times: Sequence[int]
    ) -> tuple[list[bytes], list[int | None]]:
        """Return the chosen rows of replaced values, and for each request its place among them;
        None if no value was replaced later.
        """
        replaced = self._replaced(set(keys))
        rows, places = list[bytes](), list[int | None]()
        for key, time in zip(keys, times, strict=True):
            of_key = replaced.get(key, _NOTHING)
            after = bisect_right(of_key.until_us, time)
            if after == len(of_key.rows):
                places.append(None)
            else:
                places.append(len(rows))
                rows.append(of_key.rows[after])
        return rows, places

    def _replaced(self, keys: Collection[bytes]) -> dict[bytes, _Replaced]:
        """Return the unexpired replaced values of some keys, which are stored in order of time."""
        found: dict[bytes, _Replaced] = {}
        until = self._former.expired_until
        for batch in self._former.batches():
            own = [
                (row_key, row)
                for row_key, row in zip(batch.keys, batch.rows, strict=True)
                if row_key[GROUP_BYTES:-TIME_BYTES] in keys
            ]
            if not own:
                continue
            rows = RowBatch(*map(list, zip(*own, strict=True)))
            if until is not None:
                rows = rows.where(_parts(self._former.family, rows).written > until)
            packed = PackedBytes(rows.keys)
            times = ints_of_sortable(packed.numbers(packed.ends - TIME_BYTES, ">u8")).tolist()
            for row_key, row, time in zip(rows.keys, rows.rows, times, strict=True):
                of_key = found.setdefault(row_key[GROUP_BYTES:-TIME_BYTES], _Replaced([], []))
                of_key.until_us.append(time)
                of_key.rows.append(row)
        return found

    def _present(self, state: RowsOfState, number_of: dict[bytes, int]) -> pa.Array:
        """Return the present value of each key, in the order of their numbers."""
        rows = [_NO_ROW] * len(number_of)
        for batch in state.batches():
            for row_key, row in zip(batch.keys, batch.rows, strict=True):
                if (number := number_of.get(row_key[GROUP_BYTES:])) is not None:
                    rows[number] = row
        return _decoded(state.family, rows)

    def _status(self, at_us: int, since_us: int | None, is_present: bool, has_value: bool) -> str:
        """Return the status of a value, as `get(as_of=)` returns it at the watermark."""
        state = self._former.family.state
        assert state is not None
        assert state.ttl is not None, "the former values have a TTL"
        if at_us > self._now_us:
            return "not yet"
        if self._now_us - at_us > state.ttl.duration_us:
            return "too old"
        era = state.expiry_era
        begun = [time for time in (era.since_us, era.floor_us) if abs(time) != PERMANENT]
        if is_present and at_us == self._now_us:
            is_known = True
        elif since_us is not None:
            is_known = since_us <= at_us
        else:
            is_known = at_us >= max(begun) if begun else not has_value
        if not is_known:
            return "too old"
        return "found" if has_value else "absent"


class _Replaced(NamedTuple):
    """The replaced values of a key, in order of time.

    Parameters:
        until_us: when each was replaced.
        rows: as stored.
    """

    until_us: list[int]
    rows: list[bytes]


_NOTHING = _Replaced([], [])


def _parts(family: Family, rows: RowBatch) -> RowParts:
    return RowParts(family, rows, Positions())


def _decoded(family: Family, rows: list[bytes]) -> pa.Array:
    """Return the values of stored rows as a column."""
    return whole_values(family, wide=False).array(_parts(family, RowBatch([b""] * len(rows), rows)))


def _with_values(wanted: pa.Table, values: pa.Array, statuses: Sequence[str]) -> pa.Table:
    """Return a table with the columns of values, of structs their fields, and of the status."""
    columns = [values]
    names = ["value"]
    if pa.types.is_struct(values.type):
        columns, names = values.flatten(), [field.name for field in values.type.fields]
    names = column_names([*names, "status"], wanted.column_names, "value_")
    for name, column in zip(names, [*columns, pa.array(statuses, pa.string())], strict=True):
        wanted = wanted.append_column(name, column)
    return wanted
