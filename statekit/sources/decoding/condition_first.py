"""A condition over the columns of a source, before records are made of the rows that are left."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.errors import ProcessError
from statekit.expressions.compiled import CompiledExpression
from statekit.expressions.value_types import ValueType, holding_type
from statekit.records.record_type import RecordType
from statekit.sources.decoding.decoder import ColumnDecoder, Decoded
from statekit.timestamp import MAX_MICROS, MIN_MICROS

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The dates that Python has, in days since 1970."""


class ConditionFirst:
    """Decodes the rows for which a condition is true.

    A row that does not fit the type of the records is a bad record, whether the condition is true
    or not. So a batch that may have one is decoded as a whole. The same goes for a batch with a row
    for which the condition fails. The filter of the job then finds the row.

    Parameters:
        decode: the decoder of all rows.
        condition: over the fields of their records.

    >>> from typing import NamedTuple
    >>> from statekit.expressions.compiled import compiled
    >>> from statekit.records.union import records_of
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> decode = ColumnDecoder(records_of(Order, where="orders"), "orders")
    >>> decode = ConditionFirst(decode, compiled("cents > 5", Order))
    >>> decode("all", pa.record_batch({"customer": ["ada", "bob"], "cents": [5, 6]})).records
    [Order(customer='bob', cents=6)]
    """

    def __init__(self, decode: ColumnDecoder, condition: CompiledExpression) -> None:
        (self._member,) = decode.records.members
        self._decode, self._condition = decode, condition

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        """Return the records of a batch for which the condition is true, and its bad records."""
        if batch.num_rows == 0 or not _certainly_fit(self._member, batch):
            return self._decode(partition, batch)
        try:
            kept = batch.filter(self._condition.of_batch(batch))
        except ProcessError:
            return self._decode(partition, batch)
        return self._decode(partition, kept)


def _certainly_fit(member: RecordType, batch: pa.RecordBatch) -> bool:
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
        return _are_within(column.view(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return True


def _are_within(numbers: Any, least: int, most: int) -> bool:
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (least <= ends["min"] and ends["max"] <= most)
