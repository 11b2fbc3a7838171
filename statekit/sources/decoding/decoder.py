"""From batches of a source to records, and to bad records: those that do not fit their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from statekit.errors import ProcessError
from statekit.records.json_rows import json_rows
from statekit.records.record_type import RecordReader
from statekit.records.union import Records
from statekit.shown import shown_text
from statekit.sources.decoding.certain_fit import certainly_fit

OFFSET_PREFIX = "__offset"
"""The prefix of columns that say where a row is in its partition."""


class BadRecord(NamedTuple):
    """A record of a source that does not fit its type.

    Parameters:
        source: the name of the source in the job.
        partition: the partition.
        offset: where it is in the partition, as JSON.
        value: the record as it was read. A row of columns is JSON.
        error: why it does not fit.
    """

    source: str
    partition: str
    offset: str
    value: bytes
    error: str


class Decoded(NamedTuple):
    """The records of a batch.

    Parameters:
        records: those that fit, in order.
        bad: the others, in order.
        dropped: how many fit, and are not in `records` because a condition dropped them.
    """

    records: list[Any]
    bad: list[BadRecord]
    dropped: int = 0


Decoder = Callable[[str, pa.RecordBatch], Decoded]
"""A function from a partition and a batch of it to records."""


@dataclass
class ColumnDecoder:
    """Decodes batches whose columns are the fields of records.

    Parameters:
        records: the type of the records, which has one member.
        name: of the source in the job.

    >>> from statekit.records.union import records_of
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> decode = ColumnDecoder(records_of(Order, where="orders"), "orders")
    >>> batch = pa.record_batch({"customer": ["ada", "bob"], "cents": [5, None]})
    >>> decoded = decode("all", batch)
    >>> decoded.records
    [Order(customer='ada', cents=5)]
    >>> decoded.bad[0].value, decoded.bad[0].error
    (b'{"customer":"bob","cents":null}', 'Order.cents is null, but its type does not allow None')
    """

    records: Records
    name: str
    _readers: dict[pa.Schema, RecordReader] = field(default_factory=dict)

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        if batch.num_rows == 0:
            return Decoded([], [])  # it may have no columns
        fields = [name for name in batch.schema.names if not name.startswith(OFFSET_PREFIX)]
        columns = batch.select(fields)
        reader = self._reader(columns.schema)
        try:
            return Decoded(reader.read(columns), [])
        except ProcessError as error:
            if batch.num_rows == 1:
                (row,) = json_rows(columns)
                value = msgspec.json.encode(row)
                bad = BadRecord(
                    self.name, partition, offset_text(batch, 0), value, misfit_text(error)
                )
                return Decoded([], [bad])
        middle = batch.num_rows // 2
        first, second = (self(partition, batch.slice(*part)) for part in ((0, middle), (middle,)))
        return Decoded(first.records + second.records, first.bad + second.bad)

    def certainly_fit(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Return whether each row of batches certainly is a record. They have the same columns."""
        (member,) = self.records.members
        schemas = [batch.schema for batch in batches]
        if any(schema != schemas[0] for schema in schemas):
            return False
        return all(certainly_fit(member, batch) for batch in batches)

    def _reader(self, schema: pa.Schema) -> RecordReader:
        if schema not in self._readers:
            (member,) = self.records.members
            self._readers[schema] = member.reader(schema)
        return self._readers[schema]


def check_first_rows(decode: Decoder, partition: str, batch: pa.RecordBatch | None) -> str:
    """Check that the first rows of a source are records of its type, and return how many they are,
    for people.

    Raises:
        ProcessError: one is not.
    """
    if batch is None or batch.num_rows == 0:
        return "no record is there yet"
    decoded = decode(partition, batch)
    if decoded.bad:
        bad = decoded.bad[0]
        raise ProcessError(
            f"{len(decoded.bad)} of the first {batch.num_rows} records do not fit the type, the "
            f"first at {bad.offset} of {partition}: {bad.error}. Nothing was read: correct the "
            'type or the records, or pass on_error="drop" or "collect"'
        )
    count = batch.num_rows
    return "the first record fits" if count == 1 else f"the first {count} records fit"


def offset_text(batch: pa.RecordBatch, row: int) -> str:
    """Return the position of a row as JSON: that of its only column of positions, or a dict.

    >>> offset_text(pa.record_batch({"__offset": [7, 8], "cents": [5, 6]}), 1)
    '8'
    >>> offset_text(pa.record_batch({"__offset_file": ["a"], "__offset_line": [3]}), 0)
    '{"file":"a","line":3}'
    """
    places = {
        name.removeprefix(OFFSET_PREFIX).removeprefix("_"): batch.column(name)[row].as_py()
        for name in batch.schema.names
        if name.startswith(OFFSET_PREFIX)
    }
    return msgspec.json.encode(places.get("", places)).decode()


def misfit_text(error: BaseException) -> str:
    """Return why a record does not fit its type, without the record itself."""
    return shown_text(error.__cause__ or error)
