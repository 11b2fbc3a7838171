"""Key filters: the key that the filters of a query select."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, IsNull

from statekit.checkpoint.job_file import OperatorRecord
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.errors import StatekitError
from statekit.stored_types import key_schema

_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "str": str,
    "bytes": bytes,
    "date": dt.date,
    "datetime": dt.datetime,
}
"""Types whose values are equal in a column and in a key."""


def encoded_key(
    operator: OperatorRecord, columns: Sequence[str], filters: Iterable[Filter]
) -> bytes | None:
    """Return the key that filters select; None if they select no key, or several.

    Parameters:
        operator: the operator.
        columns: the names of the columns of its key.
        filters: of the query. All of them hold.
    """
    values = _equal_values(filters)
    schemas = [Schema.from_json(field.type) for field in operator.key]
    fields = []
    for name, schema in zip(columns, schemas, strict=True):
        if name.lower() not in values or not _is_key(schema, values[name.lower()]):
            return None
        fields.append(values[name.lower()])
    if not fields:
        return None
    try:
        codec = schema_key_codec(key_schema(operator))
        return codec.encode(fields[0] if len(fields) == 1 else tuple(fields))
    except StatekitError:
        return None  # no key is equal: Spark applies the filter itself


def _equal_values(filters: Iterable[Filter]) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for given in filters:
        match given:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                values[name.lower()] = value
            case IsNull((name,)):
                values[name.lower()] = None
    return values


def _is_key(schema: Schema, value: Any) -> bool:
    if schema.kind == "optional":
        return value is None or _is_key(schema.items[0], value)
    if schema.kind == "datetime" and getattr(value, "tzinfo", None) is None:
        return False
    return type(value) is _TYPES.get(schema.kind)
