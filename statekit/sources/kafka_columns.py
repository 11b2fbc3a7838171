"""Columns of records of Kafka: their values and what Kafka knows about them, and their decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statekit.codec.annotations import peel
from statekit.errors import StateTypeError
from statekit.records.union import Records
from statekit.shown import shown
from statekit.sources.decoding.decoder import (
    OFFSET_PREFIX,
    BadRecord,
    Decoded,
    Decoder,
    offset_text,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

VALUE = "value"
"""The column of the values of records."""

HEADER = "header:"
"""With the name of a header behind it, the column of its values."""

_HEADERS = pa.map_(pa.string(), pa.binary())

_TEXT = {pa.binary(): pa.string(), _HEADERS: pa.map_(pa.string(), pa.string())}
"""The types of columns that may be text, and what they are then."""

Values = Callable[[Sequence["Message"]], Iterable[Any]]
"""A function that returns a column of messages."""


def message_columns(names: Iterable[str], messages: Sequence[Message]) -> pa.RecordBatch:
    """Return some columns of messages, and their offsets."""
    columns = {name: _column(name, messages) for name in names}
    columns[OFFSET_PREFIX] = pa.array([message.offset() for message in messages], pa.int64())
    return pa.record_batch(columns)


def check_column(name: str) -> None:
    """Check that messages have a column of this name.

    Raises:
        StateTypeError: they have not.
    """
    if name not in _COLUMNS and not (name.startswith(HEADER) and name != HEADER):
        raise StateTypeError(
            f"fields= names {shown(name)}: records of Kafka have {', '.join(_COLUMNS)}, and "
            f"'{HEADER}NAME' for one header"
        )


def _column(of: str, messages: Sequence[Message]) -> pa.Array:
    if of in _COLUMNS:
        arrow, values = _COLUMNS[of]
        return pa.array(values(messages), arrow)
    wanted = of.removeprefix(HEADER)
    return pa.array([_headers(message).get(wanted) for message in messages], pa.binary())


def _headers(message: Message) -> dict[str, bytes | None]:
    """Return the headers of a message. Of several with one name, the last one counts."""
    headers: Any = message.headers() or ()
    return dict(headers)


def _times(messages: Sequence[Message]) -> list[int | None]:
    """Return the timestamps of messages in milliseconds; None for those without."""
    found = (message.timestamp() for message in messages)
    return [at if kind else None for kind, at in found]


_COLUMNS: dict[str, tuple[pa.DataType, Values]] = {
    VALUE: (pa.binary(), lambda messages: [message.value() for message in messages]),
    "key": (pa.binary(), lambda messages: [message.key() for message in messages]),
    "headers": (_HEADERS, lambda messages: [list(_headers(each).items()) for each in messages]),
    "timestamp": (pa.timestamp("ms", "UTC"), _times),
    "topic": (pa.string(), lambda messages: [message.topic() for message in messages]),
    "partition": (pa.int64(), lambda messages: [message.partition() for message in messages]),
    "offset": (pa.int64(), lambda messages: [message.offset() for message in messages]),
}


@dataclass
class TextColumns:
    """Decodes batches after some of their columns of bytes have become text.

    Parameters:
        decode: decodes the batches.
        columns: the names of the columns.
        name: of the source in the job.
    """

    decode: Decoder
    columns: Sequence[str]
    name: str

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        texts = batch
        try:
            for name in self.columns:
                place, column = batch.schema.get_field_index(name), batch.column(name)
                texts = texts.set_column(place, name, column.cast(_TEXT[column.type]))
        except pa.ArrowInvalid as error:
            return self._apart(partition, batch, str(error))
        return self.decode(partition, texts)

    def _apart(self, partition: str, batch: pa.RecordBatch, error: str) -> Decoded:
        """Decode the halves of a batch in which something is no text."""
        if batch.num_rows == 1:
            value = batch.column(VALUE)[0].as_py() if VALUE in batch.schema.names else None
            at = offset_text(batch, 0)
            return Decoded([], [BadRecord(self.name, partition, at, value or b"", error)])
        middle = batch.num_rows // 2
        first, second = (self(partition, batch.slice(*part)) for part in ((0, middle), (middle,)))
        return Decoded(first.records + second.records, first.bad + second.bad)


@dataclass
class RenamedColumns:
    """Decodes batches after their columns have got the names of fields.

    Parameters:
        decode: decodes the batches.
        columns: the name of a column by the name of its field.
    """

    decode: Decoder
    columns: Mapping[str, str]

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        named = {field: batch.column(column) for field, column in self.columns.items()}
        named[OFFSET_PREFIX] = batch.column(OFFSET_PREFIX)
        return self.decode(partition, pa.record_batch(named))


def with_texts(decode: Decoder, records: Records, columns: Mapping[str, str], name: str) -> Decoder:
    """Return a decoder that takes text where the fields of records are text.

    Parameters:
        decode: decodes batches.
        records: the type of the records.
        columns: the name of a column by the name of its field.
        name: of the source in the job.
    """
    texts = {
        column
        for field, column in columns.items()
        if _may_be_text(column) and _is_text(records, field)
    }
    return TextColumns(decode, sorted(texts), name) if texts else decode


def _may_be_text(column: str) -> bool:
    return column.startswith(HEADER) or _COLUMNS[column][0] in _TEXT


def _is_text(records: Records, name: str) -> bool:
    for member in records.members:
        if name in (member.fields or {}):
            types = peel((member.fields or {})[name].annotation)[0]
            return types in ((str,), (dict[str, str],))
    return False
