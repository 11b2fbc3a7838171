"""Rows of timers from their columns in `statekit.read`, or from single timers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from statekit.checkpoint.job_file import CLOCK_TAGS, OperatorRecord
from statekit.errors import StateTypeError
from statekit.query.encoded.binary_columns import joined_rows
from statekit.query.tables.columns import TIMESTAMP
from statekit.query.tables.key_columns import KeyEncoder
from statekit.query.tables.packed_bytes import RowColumns
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import layout_of
from statekit.query.tables.table_rows import RowEncoder, check_columns
from statekit.shown import shown
from statekit.timestamp import datetime_to_micros, sortable_micros


class TimerRows(RowEncoder):
    """Encodes timers of a table.

    Parameters:
        family: the timers.
        key_groups: of the checkpoint.
        schema: of the table. The name and the clock of timers may be left out.

    Attributes:
        wrong: the faults of the columns.
    """

    def __init__(self, family: Family, key_groups: int, schema: pa.Schema) -> None:
        self._record, self._key_groups = family.operator, key_groups
        self._keys = KeyEncoder(family.operator)
        key = [column.field for column in layout_of(family).key]
        self._fields = key
        self.wrong = check_columns(schema, [*key, pa.field("at", TIMESTAMP)])

    def encoded(self, batch: pa.RecordBatch) -> RowColumns:
        keys = [batch.column(field.name).cast(field.type) for field in self._fields]
        given, count = batch.schema.names, batch.num_rows
        names = batch.column("timer").to_pylist() if "timer" in given else ["default"] * count
        clocks = batch.column("clock").to_pylist() if "clock" in given else ["event"] * count
        times = batch.column("at").cast(TIMESTAMP).to_pylist()
        suffixes = [
            timer_suffix(self._record, *timer) for timer in zip(clocks, times, names, strict=True)
        ]
        row_keys = self._keys.prefixes(keys, self._key_groups)
        row_keys = joined_rows([row_keys, pa.array(suffixes, pa.binary())])
        return RowColumns(row_keys, pa.array([b""] * count, pa.binary()))

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [field.name for field in self._fields] + ["timer", "clock", "at"]


def timer_suffix(record: OperatorRecord, clock: Any, at: Any, name: Any) -> bytes:
    """Return the row key of a timer behind its key.

    Parameters:
        record: the operator.
        clock: "event" or "processing".
        at: when it fires.
        name: its name.

    Raises:
        StateTypeError: the operator has no such timer.
    """
    handled = record.timer_names or ()
    if clock not in CLOCK_TAGS:
        raise StateTypeError('its clock is "event" or "processing"')
    if clock == "event" and record.event_time is None:
        raise StateTypeError("the operator has no event time: use clock='processing'")
    if not isinstance(name, str):
        raise StateTypeError(f"the name of a timer is text, and not {shown(name)}")
    if name not in handled and None not in handled:
        raise StateTypeError(f"no callback handles timers named {name!r}")
    tag: bytes = CLOCK_TAGS[clock]
    return tag + sortable_micros(datetime_to_micros(at)) + name.encode()
