"""Values of tables as JSON, for files and terminals that have no nested columns."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from statekit.query.columns import is_json_text


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as dicts for `msgspec.json`. JSON text becomes the JSON value itself.

    Times are ISO text, bytes are hex, and maps are arrays of pairs. NaN, infinities and decimals
    that are not integers are text.
    """
    names = batch.schema.names
    for values in json_values(batch):
        yield dict(zip(names, values, strict=True))


def json_values(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the values of rows as `json_rows`, without names: two columns may share a name."""
    if batch.num_columns:
        yield from zip(*map(_plain_column, batch.schema, batch.columns), strict=True)


def _plain_column(field: pa.Field, column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if is_json_text(field):
        return [None if value is None else msgspec.Raw(value.encode()) for value in values]
    if pa.types.is_string(field.type) or pa.types.is_integer(field.type):
        return values
    return list(map(plain, values))


def plain(value: Any) -> Any:
    """Return an Arrow value as JSON-able data.

    >>> plain({"at": dt.date(2013, 1, 1), "raw": bytes([255]), "n": [Decimal(2**63)]})
    {'at': '2013-01-01', 'raw': 'ff', 'n': [9223372036854775808]}
    >>> plain(Decimal("3398.64"))
    '3398.64'
    """
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return value.hex()
        case dt.date():
            return value.isoformat()
        case Decimal():
            return int(value) if value.is_finite() and value == value.to_integral() else str(value)
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return value


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose nested columns are JSON text and whose bytes are hex."""
    fields, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_nested(field.type):
            texts = (
                None if v is None else msgspec.json.encode(plain(v)).decode()
                for v in column.to_pylist()
            )
            column = pa.array(list(texts), pa.string())
        elif pa.types.is_binary(field.type):
            column = pa.array(
                [v if v is None else v.hex() for v in column.to_pylist()], pa.string()
            )
        fields.append(field.with_type(column.type))
        columns.append(column)
    return pa.record_batch(columns, schema=pa.schema(fields))
