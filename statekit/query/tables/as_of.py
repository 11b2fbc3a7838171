"""Point-in-time reads: the values that a store with a history had, for a table of keys and times.

A store keeps the present value of each key with the time at which it was set, and each replaced
value under the time at which it was replaced (`kv/layouts`). So the value at a time is the first
one that was replaced later, or the present one.

The requests are sorted by key and time, as the rows are. So each shard with requested keys is
unpacked once and read forward once: the rows between requests are skipped, and only found values
are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekit.backend.divided_rows import groups_of_keys
from statekit.backend.interface import Backend
from statekit.checkpoint.era import PERMANENT
from statekit.errors import QueryError
from statekit.query.encoded.binary_columns import fixed, joined_rows, sortable_bytes
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.key_columns import KeyEncoder
from statekit.query.tables.packed_bytes import RowBatch
from statekit.query.tables.row_parts import Family, Positions, RowParts, Times
from statekit.query.tables.table import column_names, columns_of_key, whole_values
from statekit.query.tables.table_rows import MISFITS, check_columns, reason_of
from statekit.state.ttl import unstamped
from statekit.timestamp import TIME_BYTES

AT = "at"
"""The column with the time that is asked for."""

STATES_OF_HISTORY = ("value", "since", "former")
"""The states of a store with a history."""

_NO_ROW = b"\xc0"
"""A row that is decoded to null."""

_AFTER_ALL_TIMES = b"\xff" * TIME_BYTES

_BLOCK_REQUESTS = 65_536
"""How many requests are answered at a time. The rows of their values are in memory."""

_FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 63) - 1

Opened = Callable[[tuple[int, int]], AbstractContextManager[Backend]]
"""Opens the rows of the store in some key groups: the first and the last one."""


class StoreAsOf:
    """The values of a store with a history, after one epoch.

    Parameters:
        families: the states of `STATES_OF_HISTORY`.
        shards: the first and the last key group of each shard.
        key_groups: how many key groups there are.
        opened: opens the rows of a shard, or of a part of it.
        expired_until: last write time of replaced values that had expired.
        now_us: the watermark of the store in the epoch.
    """

    def __init__(
        self,
        families: Sequence[Family],
        shards: Sequence[tuple[int, int]],
        key_groups: int,
        opened: Opened,
        expired_until: int | None,
        now_us: int,
    ) -> None:
        self._value, self._since, self._former = families
        self._shards, self._key_groups, self._opened = shards, key_groups, opened
        self._expired_until, self._now_us = expired_until, now_us

    def joined(self, wanted: pa.Table) -> pa.Table:
        """Return a table with the value that each key had at each time, and its status.

        Parameters:
            wanted: has the columns of the key, and `at`. Other columns are kept.

        Raises:
            QueryError: a column is missing or has another type, or a key or a time is null or out
                of range.
        """
        prefixes, times = self._requests(wanted)
        statuses = np.where(times > self._now_us, "not yet", "too old").astype(object)
        kept = np.flatnonzero((times <= self._now_us) & (times >= self._oldest_us))
        # After all values that were replaced until then.
        after = fixed(sortable_bytes(np.minimum(times[kept], _LAST_TIME - 1) + 1))
        starts = joined_rows([prefixes.take(pa.array(kept)), after])
        order = pc.array_sort_indices(starts)
        kept = kept[order.to_numpy()]
        found = self._found(starts.take(order))
        statuses[kept] = self._statuses(times[kept], found)
        places = np.zeros(len(times), np.int64)
        places[kept] = np.arange(len(kept))
        places = pa.array(places, mask=statuses != "found")
        return _with_values(wanted, found.values.take(places), statuses.tolist())

    @property
    def _oldest_us(self) -> int:
        """The earliest time that is within the history."""
        state = self._former.state
        assert state is not None
        assert state.ttl is not None, "the former values have a TTL"
        return max(self._now_us - state.ttl.duration_us, _FIRST_TIME)

    def _requests(self, wanted: pa.Table) -> tuple[pa.Array, Times]:
        """Return the start of the row keys of each request, and its time in microseconds."""
        family = self._value
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
                keys = KeyEncoder(family.operator)
                prefixes = keys.prefixes(arrays[:-1], self._key_groups)
                return prefixes, arrays[-1].cast(pa.int64()).to_numpy()
        except MISFITS as error:
            wrong = [f"a value is not of its type: {reason_of(error)}"]
        raise QueryError(
            f"as_of= needs the columns of the key and {AT!r}, the time: {'; '.join(wrong)}. "
            "Nothing was read: correct the table. Times have microseconds"
        )

    # --------------------------------------------------------------------------------- rows

    def _found(self, starts: pa.Array) -> _Versions:
        """Return the version of each request.

        Parameters:
            starts: where the rows of values begin that were replaced later, in order.
        """
        groups = groups_of_keys(starts)
        blocks = [self._decoded([], [], [], [])]
        for first, last in self._shards:
            begin, end = np.searchsorted(groups, (first, last + 1)).tolist()
            if begin == end:
                continue
            with self._opened((int(groups[begin]), int(groups[end - 1]))) as backend:
                for at in range(begin, end, _BLOCK_REQUESTS):
                    block = starts[at : min(at + _BLOCK_REQUESTS, end)].to_pylist()
                    blocks.append(self._block(backend, block))
        return _Versions(
            pa.concat_arrays([block.values for block in blocks]),
            pa.concat_arrays([block.since for block in blocks]),
            np.concatenate([block.is_present for block in blocks]),
        )

    def _block(self, backend: Backend, starts: Sequence[bytes]) -> _Versions:
        """Return the versions of some requests of a shard."""
        former: dict[bytes, bytes] = {}
        chosen = list[bytes | None]()
        for found in self._replaced(backend, starts):
            chosen.append(None if found is None else found[0])
            if found is not None:
                former[found[0]] = found[1]
        keys = dict.fromkeys(
            start[:-TIME_BYTES]
            for start, row_key in zip(starts, chosen, strict=True)
            if row_key is None
        )
        # The chosen replaced values, and behind them the present one of each key.
        number_of = {key: number for number, key in enumerate([*former, *keys])}
        places = [
            number_of[start[:-TIME_BYTES] if row_key is None else row_key]
            for start, row_key in zip(starts, chosen, strict=True)
        ]
        value, since = (
            [_NO_ROW if row is None else row for row in rows]
            for rows in (
                backend.reader(family.name).get_all(list(keys))
                for family in (self._value, self._since)
            )
        )
        return self._decoded(list(former.values()), value, since, places)

    def _replaced(
        self, backend: Backend, starts: Sequence[bytes]
    ) -> Iterator[tuple[bytes, bytes] | None]:
        """Yield for each request the first unexpired value that was replaced later; None if there
        is none.
        """
        name, until = self._former.name, self._expired_until
        state = self._former.state
        assert state is not None
        era = state.expiry_era
        ranges = [(start, start[:-TIME_BYTES] + _AFTER_ALL_TIMES) for start in starts]
        found_rows = backend.reader(name).scan_each(ranges, 1)
        for bounds, rows in zip(ranges, found_rows, strict=True):
            found = rows[0] if rows else None
            if found is not None and until is not None and unstamped(found[1], era)[1] <= until:
                left = backend.scan(name, *bounds)
                found = next((row for row in left if unstamped(row[1], era)[1] > until), None)
            yield found

    def _decoded(
        self, former: list[bytes], value: list[bytes], since: list[bytes], places: Sequence[int]
    ) -> _Versions:
        """Return versions of stored rows.

        Parameters:
            former: replaced values.
            value, since: present ones, and the times at which they were set.
            places: of each request: among the replaced values, and the present ones behind them.
        """
        structs = _column(self._former, former)
        at = pa.array(places, pa.int64())
        values = pa.concat_arrays([structs.field("value"), _column(self._value, value)])
        times = pa.concat_arrays([structs.field("since"), _column(self._since, since)])
        return _Versions(values.take(at), times.take(at), np.array(places) >= len(former))

    def _statuses(self, times: Times, found: _Versions) -> npt.NDArray[np.object_]:
        """Return the status of each version, as `get(as_of=)` returns it at the watermark."""
        state = self._former.state
        assert state is not None
        era = state.expiry_era
        begun = [time for time in (era.since_us, era.floor_us) if abs(time) != PERMANENT]
        has_value = found.values.is_valid().to_numpy(zero_copy_only=False)
        has_since = found.since.is_valid().to_numpy(zero_copy_only=False)
        since = found.since.cast(pa.int64()).fill_null(0).to_numpy()
        is_known = np.where(has_since, since <= times, times >= max(begun) if begun else ~has_value)
        is_known |= found.is_present & (times == self._now_us)
        return np.where(is_known, np.where(has_value, "found", "absent"), "too old").astype(object)


class _Versions(NamedTuple):
    """The values that were there at some times.

    Parameters:
        values: null for an absent one.
        since: when each was set; null if that is not known.
        is_present: whether no value was set since.
    """

    values: pa.Array
    since: pa.Array
    is_present: npt.NDArray[np.bool_]


def _column(family: Family, rows: list[bytes]) -> pa.Array:
    """Return the values of stored rows as a column."""
    parts = RowParts(family, RowBatch([b""] * len(rows), rows), Positions())
    return whole_values(family, wide=False).array(parts)


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
