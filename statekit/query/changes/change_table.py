"""Change table: the changes of a state as columns.

    epoch, cause, kind, watermark, processing_time    of the epoch
    op                                                "upsert", "delete" or "clear"
    the fields of the key, or shard                   null if all rows of a state are cleared
    map_key, or position                              null for "clear"
    the fields of the value, or value; earlier        null unless op is "upsert"
    expires                                           when the row expires

This is the form "changes". The form "table" is for sinks that replace rows by their key. It has
`expires` only if the state has a TTL, no columns of the epoch, and `_deleted` at its end: whether
`op` is not "upsert". The form "history" has a version of a row in its place, which began in the
epoch: `valid_from`, `valid_until`, `from_epoch` and `until_epoch` come before `_deleted`.

Names give way as in tables of states: to the columns above, then to those of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple

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


def _fact(name: str, epoch: ChangeFacts, op: str) -> object:
    return getattr(epoch, name)


_TYPES = (pa.int64(), pa.string(), pa.string(), TIMESTAMP, TIMESTAMP)
_OF_EPOCH = [pa.field(*field) for field in zip(ChangeFacts._fields, _TYPES, strict=True)]
_OP = pa.field("op", pa.string())

DELETED = "_deleted"
_DELETED = pa.field(DELETED, pa.bool_())

VERSION = (
    pa.field("valid_from", TIMESTAMP),
    pa.field("valid_until", TIMESTAMP),
    pa.field("from_epoch", pa.int64()),
    pa.field("until_epoch", pa.int64()),
)
"""The columns of a version: the times and the epochs of its begin and its end."""

_FROM, _UNTIL, _FROM_EPOCH, _UNTIL_EPOCH = VERSION

Form = Literal["changes", "table", "history"]
"""The form of a change table."""

_MARKS: dict[Form, dict[pa.Field, Callable[[ChangeFacts, str], object]]] = {
    "changes": {
        **{field: partial(_fact, field.name) for field in _OF_EPOCH},
        _OP: lambda epoch, op: op,
    },
    "table": {_DELETED: lambda epoch, op: op != "upsert"},
    "history": {
        _FROM: lambda epoch, op: epoch.processing_time,
        _UNTIL: lambda epoch, op: None,
        _FROM_EPOCH: lambda epoch, op: epoch.epoch,
        _UNTIL_EPOCH: lambda epoch, op: None,
        _DELETED: lambda epoch, op: op != "upsert",
    },
}
"""The columns beside those of the state, by form, with their values in all rows of a batch."""


class ChangeTable:
    """Changes of one state as record batches.

    Parameters:
        family: the state, in one epoch.
        wanted: lower-case names of columns; None for all. Others are not decoded.
        wide: give ints 20 digits.
        allow_pickle: unpickle values.
        form: which columns there are beside those of the state.

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
        form: Form = "changes",
    ) -> None:
        assert family.state is not None, "timers and buffered records have no changes"
        places = list(_places(family.state, wide))
        has_expires = family.state.ttl is not None or form == "changes"
        expires = [expires_column(family)] if has_expires else []
        self._marks = {field.name: value for field, value in _MARKS[form].items()}
        stored = value_columns(family, wide=wide, allow_pickle=allow_pickle)
        used_names = [*self._marks, *names_of([*places, *expires])]
        keys, values = distinct_columns(family, stored, used_names)

        def chosen(columns: Iterable[TableColumn]) -> list[TableColumn]:
            return [
                column
                for column in columns
                if wanted is None or column.field.name.lower() in wanted
            ]

        of_keys, of_places = chosen(keys), chosen(places)
        self._tables = {
            "upsert": Table(family, [*of_keys, *of_places, *chosen([*values, *expires])]),
            "delete": Table(family, [*of_keys, *of_places]),
            "clear": Table(family, of_keys),
        }
        stored_fields, marks = list(self._tables["upsert"].schema), list(_MARKS[form])
        is_log = form == "changes"
        self.schema = pa.schema([*marks, *stored_fields] if is_log else [*stored_fields, *marks])
        self.key_names, self.place_names = tuple(names_of(keys)), tuple(names_of(places))

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
            elif (value := self._marks.get(field.name)) is not None:
                arrays.append(pa.repeat(pa.scalar(value(epoch, op), field.type), count))
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
