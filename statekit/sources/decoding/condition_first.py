"""A condition over the columns of a source, before records are made of the rows that are left."""

from __future__ import annotations

import pyarrow as pa

from statekit.errors import ProcessError
from statekit.expressions.compiled import CompiledExpression
from statekit.sources.decoding.certain_fit import certainly_fit
from statekit.sources.decoding.decoder import ColumnDecoder, Decoded


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
        if batch.num_rows == 0 or not certainly_fit(self._member, batch):
            return self._decode(partition, batch)
        try:
            kept = batch.filter(self._condition.of_batch(batch))
        except ProcessError:
            return self._decode(partition, batch)
        return self._decode(partition, kept)._replace(dropped=batch.num_rows - kept.num_rows)
