"""From JSON documents to records: `JsonDecoder`.

A document is first read the fast way, by one decoder that is compiled for the record type
(`json_documents`). A document that it refuses, such as one with the text `NaN` in a float field, is
read the general way, which knows every JSON form (`json_inputs`). What that refuses is a bad
record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from statekit.errors import CALL_FAILURES, ProcessError, is_users
from statekit.records.arrow_reader import ColumnMismatch, Read, field_reader
from statekit.records.declaration import ValueMismatch
from statekit.records.union import Records
from statekit.shown import shown_text
from statekit.sources.decoding.decoder import BadRecord, Decoded, misfit_text, offset_text
from statekit.sources.decoding.json_documents import DocumentDecoder, document_decoder
from statekit.sources.decoding.json_inputs import JsonInputs

VALUE = "value"
"""The column of JSON documents."""


@dataclass
class JsonDecoder:
    """Decodes batches with a column `value` of JSON documents, one record each.

    Values have the JSON form of `sinks.json_lines` and `sinks.kafka`: bytes are hex, a timedelta is
    `"PT2H"`, NaN is text. A time needs a zone, and becomes an instant in UTC. Unknown members of an
    object are ignored, unless the class forbids them.

    Several record types, as in `Order | Payment`, are distinguished by the tags of msgspec Structs.
    Without tags, a document has one member, with the name of the class:
    `{"Payment": {"cents": 5}}`.

    Parameters:
        records: the type of the records.
        name: of the source in the job.
        columns: the fields that other columns of the batch contain: the name of the column for the
            name of the field.

    >>> from typing import NamedTuple
    >>> from statekit.records.union import records_of
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> decode = JsonDecoder(records_of(Order, where="orders"), "orders")
    >>> documents = [b'{"customer":"ada","cents":5}', b'{"customer":"bob"}']
    >>> decoded = decode("all", pa.record_batch({"value": documents, "__offset": [0, 1]}))
    >>> decoded.records
    [Order(customer='ada', cents=5)]
    >>> decoded.bad[0].offset, decoded.bad[0].error
    ('1', "it has no 'cents'")
    """

    records: Records
    name: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # What is compiled cannot be pickled.
        return {"records": self.records, "name": self.name, "columns": self.columns}

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        try:
            others = self._others(batch)
        except ValueMismatch as error:
            if batch.num_rows == 1:
                return Decoded([], [self._bad(partition, batch, 0, error)])
            middle = batch.num_rows // 2
            parts = ((0, middle), (middle,))
            first, second = (self(partition, batch.slice(*part)) for part in parts)
            return Decoded(first.records + second.records, first.bad + second.bad)
        documents = batch.column(VALUE).to_pylist()
        rows, refused = self._read_quickly(documents, others)
        bad: dict[int, BadRecord] = {}
        for row in sorted(refused):
            values = {name: column[row] for name, column in others.items()}
            try:
                rows[row] = self._general.record(documents[row], values)
            except CALL_FAILURES as error:
                if not is_users(error) and not isinstance(error, ProcessError):
                    raise
                bad[row] = self._bad(partition, batch, row, error)
        return Decoded(_without(rows, bad), list(bad.values()))

    def _read_quickly(
        self, documents: list[Any], others: Mapping[str, list[Any]]
    ) -> tuple[list[Any], set[int]]:
        """Return the records that the fast way reads, with None for each other document, and the
        rows of those.
        """
        fast, count = self._fast, len(documents)
        if fast is None:
            return [None] * count, set(range(count))
        decoded: list[Any] = []
        refused: set[int] = set()
        rest = iter(documents)
        while len(decoded) + len(refused) < count:
            try:
                decoded.extend(map(fast.decode, rest))  # keeps those before an error
            except CALL_FAILURES as error:
                if not is_users(error):
                    raise
                refused.add(len(decoded) + len(refused))
        if refused:
            others = {name: _without(column, refused) for name, column in others.items()}
        records = fast.build(decoded, others)
        if refused:
            fitting = iter(records)
            records = [None if row in refused else next(fitting) for row in range(count)]
        for row in fast.not_stored(records):
            records[row] = None
            refused.add(row)
        return records, refused

    def _others(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Return the values of the fields that other columns contain.

        Raises:
            ProcessError: a column is missing, or cannot hold the type of its field.
            ValueMismatch: a row does not fit.
        """
        return {
            name: self._reader(name, batch.schema, column)(batch.column(column))
            for name, column in self.columns.items()
        }

    def _reader(self, name: str, schema: pa.Schema, column: str) -> Read:
        member = next(each for each in self.records.members if name in (each.fields or {}))
        annotation = member.column_annotation((member.fields or {})[name])
        try:
            arrow = schema.field(column).type
            return field_reader(member, annotation, arrow, f"{member.name}.{name}")
        except (ColumnMismatch, KeyError) as error:
            raise ProcessError(f"{self.records.where}: {shown_text(error)}") from None

    def _bad(
        self, partition: str, batch: pa.RecordBatch, row: int, error: BaseException
    ) -> BadRecord:
        document = batch.column(VALUE)[row].as_py() or b""
        at = offset_text(batch, row)
        return BadRecord(self.name, partition, at, document, misfit_text(error))

    @cached_property
    def _fast(self) -> DocumentDecoder | None:
        return document_decoder(self.records, self.columns)

    @cached_property
    def _general(self) -> JsonInputs:
        return JsonInputs(self.records, self.columns)


def _without(column: list[Any], rows: Collection[int]) -> list[Any]:
    if not rows:
        return column
    return [value for row, value in enumerate(column) if row not in rows]
