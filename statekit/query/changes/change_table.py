"""Change table: the changes of a state as columns.

    epoch, cause, kind, watermark, processing_time    of the epoch
    op                                                "upsert", "delete" or "clear"
    the fields of the key, or shard                   null if all rows of a state are cleared
    map_key, or position                              null for "clear"
    the fields of the value, or value; earlier        null unless op is "upsert"
    expires                                           when the row expires

Names give way as in tables of states: to the columns above, then to those of the value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from statekit.checkpoint.job_file import StateRecord
from statekit.checkpoint.manifest import Cause
from statekit.checkpoint.state_kinds import POSITION_BYTES, RowShape
from statekit.query.changes.change import Kind
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.packed_bytes import RowBatch
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import (
    Table,
    TableColumn,
    distinct_columns,
    expires_column,
    names_of,
    place_columns,
    plain_column,
    value_columns,
)


class ChangeFacts(NamedTuple):
    """Facts that all changes of an epoch share: a value for each column of an epoch.

    Parameters:
        epoch: its number.
        cause: the cause of the epoch.
        kind: the origin of the changes.
        watermark: of the operator, in microseconds; None before any record or without event time.
        processing_time: of the epoch, in microseconds.
    """

    epoch: int
    cause: Cause
    kind: Kind
    watermark: int | None
    processing_time: int


_OF_EPOCH = dict(
    zip(
        ChangeFacts._fields,
        (pa.int64(), pa.string(), pa.string(), TIMESTAMP, TIMESTAMP),
        strict=True,
    )
)
_OP = pa.field("op", pa.string())


class ChangeTable:
    """Changes of one state as record batches.

    Parameters:
        family: the state, in one epoch.
        wanted: lower-case names of columns; None for all. Others are not decoded.
        wide: give ints 20 digits.
        allow_pickle: unpickle values.

    Raises:
        QueryError: the values are pickled and `allow_pickle` is False.
    """

    def __init__(
        self,
        family: Family,
        *,
        wanted: Collection[str] | None = None,
        wide: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        assert family.state is not None, "timers and buffered records have no changes"
        places, expires = list(_places(family.state, wide)), expires_column(family)
        stored = value_columns(family, wide=wide, allow_pickle=allow_pickle)
        used_names = [*_OF_EPOCH, _OP.name, *names_of([*places, expires])]
        keys, values = distinct_columns(family, stored, used_names)

        def chosen(columns: Iterable[TableColumn]) -> list[TableColumn]:
            return [
                column
                for column in columns
                if wanted is None or column.field.name.lower() in wanted
            ]

        of_keys, of_places = chosen(keys), chosen(places)
        self._tables = {
            "upsert": Table(family, [*of_keys, *of_places, *chosen([*values, expires])]),
            "delete": Table(family, [*of_keys, *of_places]),
            "clear": Table(family, of_keys),
        }
        about = [pa.field(name, type_) for name, type_ in _OF_EPOCH.items()]
        self.schema = pa.schema([*about, _OP, *self._tables["upsert"].schema])
        self.key_names = tuple(names_of(keys))

    def batch(self, epoch: ChangeFacts, op: str, rows: RowBatch) -> pa.RecordBatch:
        """Return changes of one kind.

        Parameters:
            epoch: the epoch that made them.
            op: "upsert", "delete" or "clear".
            rows: their row keys; and their rows, if op is "upsert".

        Raises:
            TooWide: an int needs a wide table.
            CorruptCheckpointError: a key or a value is not of its type.
        """
        stored, count = self._tables[op].batch(rows), len(rows.keys)
        return self._filled(epoch, op, count, stored)

    def clear_all(self, epoch: ChangeFacts) -> pa.RecordBatch:
        """Return the change that removes all rows of the state."""
        return self._filled(epoch, "clear", 1, None)

    def _filled(
        self, epoch: ChangeFacts, op: str, count: int, stored: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """Return a batch with all columns: columns that are not stored are null."""
        names = set() if stored is None else set(stored.schema.names)
        arrays = []
        for field in self.schema:
            if stored is not None and field.name in names:
                arrays.append(stored.column(field.name))
            elif field.name in _OF_EPOCH:
                arrays.append(pa.repeat(pa.scalar(getattr(epoch, field.name), field.type), count))
            elif field.name == _OP.name:
                arrays.append(pa.repeat(pa.scalar(op), count))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.record_batch(arrays, schema=self.schema)


def _places(state: StateRecord, wide: bool) -> Iterator[TableColumn]:
    """Yield the column of map keys, or of positions in the form of the feed: hex text."""
    if state.shape is not RowShape.ELEMENTS:
        yield from place_columns(state, wide=wide)
        return
    yield plain_column(
        "position",
        pa.string(),
        lambda parts: pa.array([key[-POSITION_BYTES:].hex() for key in parts.rows.keys]),
    )
