"""Whether the rows of a batch certainly fit the type of records, from types and null counts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.expressions.value_types import ValueType, holding_type
from statekit.records.record_type import RecordType
from statekit.timestamp import FIRST_DAY, LAST_DAY, MAX_MICROS, MIN_MICROS


def certainly_fit(member: RecordType, batch: pa.RecordBatch) -> bool:
    """Return whether each row of a batch certainly is a record of a type."""
    fields, names = member.fields or {}, set(batch.schema.names)
    if member.may_change_fields or not names.issuperset(fields):
        return False
    for name, field in fields.items():
        found = holding_type(member.column_annotation(field))
        if found is None or not _fits(found, batch.column(name)):
            return False
    return True


def _fits(found: ValueType, column: Any) -> bool:
    """Return whether each value of a column certainly is one of a type."""
    if column.type != found.arrow or (column.null_count and not found.nullable):
        return False
    if found.kind == "timestamp":
        return _are_within(column.view(pa.int64()), MIN_MICROS, MAX_MICROS)
    if found.kind == "date":
        return _are_within(column.view(pa.int32()), FIRST_DAY, LAST_DAY)
    return True


def _are_within(numbers: Any, least: int, most: int) -> bool:
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (least <= ends["min"] and ends["max"] <= most)
