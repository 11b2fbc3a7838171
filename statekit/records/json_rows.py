"""JSON form of Arrow columns, for files and terminals that have no nested columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import starmap
from typing import Any

import msgspec
import pyarrow as pa

from statekit.codec.json_form import duration_text, json_form
from statekit.records.nested_types import JSON_MARK

Shows = Callable[[Any], Any]
"""Returns a value of a column, other than None, as JSON-able data."""


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    r"""Yield rows as dicts for `msgspec.json`, in the JSON form of their types.

    >>> by_number = pa.array([[(5, b"\xff")]], pa.map_(pa.int8(), pa.binary()))
    >>> list(json_rows(pa.record_batch({"n": [1], "by_number": by_number})))
    [{'n': 1, 'by_number': {'5': 'ff'}}]
    """
    names = batch.schema.names
    for values in json_values(batch):
        yield dict(zip(names, values, strict=True))


def json_documents(batch: pa.RecordBatch) -> list[bytes]:
    r"""Return each row as the document of a JSON object, in the JSON form of the types.

    Parameters:
        batch: its columns have different names.

    >>> json_documents(pa.record_batch({"customer": ["ada", None], "cents": [5, 7]}))
    [b'{"customer":"ada","cents":5}', b'{"customer":null,"cents":7}']
    >>> json_documents(pa.record_batch({'5" nails': [3]}))
    [b'{"5\\" nails":3}']
    """
    row = _row_of(tuple(batch.schema.names))
    return list(map(msgspec.json.Encoder().encode, starmap(row, json_values(batch))))


@lru_cache(maxsize=64)
def _row_of(names: tuple[str, ...]) -> Callable[..., object]:
    """Return the constructor of rows for `msgspec.json`: a class, whose objects are made and
    encoded in a third of the time of dicts.
    """
    fields = [f"column_{number}" for number in range(len(names))]
    renamed = dict(zip(fields, names, strict=True))
    try:
        return msgspec.defstruct("Row", fields, rename=renamed, gc=False)
    except ValueError:  # a name has a character that JSON escapes
        return lambda *values: dict(zip(names, values, strict=True))


def json_values(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the values of rows as `json_rows`, without names: two columns may share a name."""
    if batch.num_columns:
        yield from zip(*map(_json_column, batch.schema, batch.columns), strict=True)


def _json_column(field: pa.Field, column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(field.type) and all(map(math.isfinite, filter(None, values))):
        return values  # as JSON has them
    show = _shows(field)
    return values if show is None else [None if of is None else show(of) for of in values]


def _shows(field: pa.Field) -> Shows | None:
    """Return the conversion of a field's values to JSON; None if they are JSON already."""
    type_, mark = field.type, (field.metadata or {}).get(JSON_MARK)
    types = pa.types
    if mark == b"all":
        return lambda text: msgspec.Raw(text.encode())
    if types.is_string(type_) or types.is_integer(type_) or types.is_boolean(type_):
        return None
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        item = _part(type_.value_field)
        return lambda values: list(map(item, values))
    if types.is_struct(type_):
        return _of_struct(type_, is_array=mark == b"array")
    if types.is_map(type_):
        return _of_map(type_)
    if types.is_interval(type_):
        return lambda own: duration_text(
            own.days * 86_400_000_000 + own.nanoseconds // 1000, own.months
        )
    if types.is_decimal(type_) and type_.scale == 0:
        return int
    return json_form


def _part(field: pa.Field) -> Shows:
    show = _shows(field)
    if show is None:
        return lambda value: value
    return lambda value: None if value is None else show(value)


def _of_struct(type_: pa.StructType, *, is_array: bool) -> Shows:
    parts = [(field.name, _part(field)) for field in type_.fields]
    if is_array:
        return lambda value: [show(value[name]) for name, show in parts]
    return lambda value: {name: show(value[name]) for name, show in parts}


def _of_map(type_: pa.MapType) -> Shows:
    """Return the conversion of maps: to objects, or to pairs if keys are no scalars."""
    key, item = _part(type_.key_field), _part(type_.item_field)
    if pa.types.is_nested(type_.key_type):
        return lambda entries: [[key(own), item(value)] for own, value in entries]
    return lambda entries: {_name(key(own)): item(value) for own, value in entries}


def _name(key: Any) -> str:
    """Return a key as the name of a member of an object."""
    if isinstance(key, msgspec.Raw):
        key = msgspec.json.decode(key)
    return key if isinstance(key, str) else msgspec.json.encode(key).decode()


_WITHOUT_TEXT = (pa.types.is_binary, pa.types.is_duration, pa.types.is_interval)
"""Types without text of their own in CSV."""


def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch for CSV: bytes and durations are their JSON text, nested columns JSON."""
    fields, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_nested = pa.types.is_nested(field.type)
        if is_nested or any(is_type(field.type) for is_type in _WITHOUT_TEXT):
            values = _json_column(field, column)
            if is_nested:
                values = [None if v is None else msgspec.json.encode(v).decode() for v in values]
            column = pa.array(values, pa.string())
        fields.append(field.with_type(column.type))
        columns.append(column)
    return pa.record_batch(columns, schema=pa.schema(fields))
