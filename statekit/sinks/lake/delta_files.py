"""Data files of a Delta table: their names, and their statistics by which readers skip files."""

from __future__ import annotations

import datetime as dt
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.records.nested_types import parts_of
from statekit.sinks.protocol.parquet_writing import SPOOL_BYTES_MAX, write_parquet
from statekit.sinks.protocol.sink import Outputs, Part, Receipt

_BOUNDS_COLUMNS_MAX = 32
"""Bounds are noted of so many columns, as Delta's own writers do."""

_TEXT_MAX = 64
"""The most characters of a text that is a bound."""

_LAST_CHARACTER = "\U0010ffff"

_JSON = msgspec.json.Encoder(decimal_format="number")


def new_file_name(part: Part) -> str:
    """Return a new name for the file of a part of an epoch."""
    begin = f"{_prefix(part.outputs)}{part.epoch:020d}"
    return f"{begin}-{part.number:05d}-{unique_id()[:16]}.parquet"


def epoch_of_delta_file(outputs: Outputs, name: str) -> int | None:
    """Return the epoch of a file that this sink has named; None for any other file.

    >>> outputs = Outputs("5f", "orders", pa.schema([]))
    >>> epoch_of_delta_file(outputs, new_file_name(Part(outputs, 7, "run", 0)))
    7
    """
    match = re.match(re.escape(_prefix(outputs)) + r"(\d{20})-", name)
    return None if match is None else int(match[1])


def added_files(commit: bytes) -> Iterator[str]:
    """Yield the paths of the files that a commit of the log adds.

    >>> list(added_files(b'{"txn":{}}\\n{"add":{"path":"a%20b.parquet"}}'))
    ['a b.parquet']
    """
    for line in commit.splitlines():
        if "add" in (action := msgspec.json.decode(line)):
            yield unquote(action["add"]["path"])


def _prefix(outputs: Outputs) -> str:
    return f"{outputs.sink}-{outputs.checkpoint}-epoch-"


def write_delta_file(
    store: Store, name: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Receipt:
    """Write a data file, and return a receipt with its statistics.

    Parameters:
        store: the directory of the table.
        name: of the file.
        batches: its rows, at least one batch.
        schema: of the batches.
    """
    nan = NanColumns()
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as file:
        metadata = write_parquet(file, nan.noted(batches))
        size = store.put_file(name, file).size
    stats = statistics(schema, metadata, nan)
    return {"file": name, "size": size, "rows": metadata.num_rows, "statistics": stats}


class NanColumns:
    """The columns of floats that have a NaN.

    The bounds of such a column say nothing about NaN, which is the largest value for some engines.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches unchanged, and note their columns with a NaN."""
        for batch in batches:
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                    self.names.add(field.name)
            yield batch


def statistics(schema: pa.Schema, metadata: Any, nan: NanColumns) -> str:
    """Return the statistics of a file as the JSON of an action that adds it.

    Parameters:
        schema: of the file.
        metadata: its Parquet metadata.
        nan: its columns with a NaN.
    """
    nulls: dict[str, Any] = {}
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    for place, (path, type_) in enumerate(_leaves(schema)):
        if path is None:
            continue
        columns = [
            metadata.row_group(group).column(place).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not all(columns):
            continue
        _put(nulls, path, sum(column.null_count for column in columns))
        form = _bound_form(path, type_, nan) if place < _BOUNDS_COLUMNS_MAX else None
        with_values = [column for column in columns if column.num_values]
        if form is None or not with_values or not all(c.has_min_max for c in with_values):
            continue
        low, high = form(min(c.min for c in with_values)), form(max(c.max for c in with_values))
        if low is not None:
            _put(smallest, path, low[:_TEXT_MAX] if isinstance(low, str) else low)
        if high is not None:
            _put(largest, path, _upper(high) if isinstance(high, str) else high)
    found = {
        "numRecords": metadata.num_rows,
        "minValues": smallest,
        "maxValues": largest,
        "nullCount": nulls,
    }
    return _JSON.encode(found).decode()


def _leaves(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...] | None, pa.DataType]]:
    """Yield the columns of a file in the order of Parquet. A column of a list or map has no
    path.
    """
    for field in schema:
        yield from _leaves_of(field, (field.name,))


def _leaves_of(
    field: pa.Field, path: tuple[str, ...] | None
) -> Iterator[tuple[tuple[str, ...] | None, pa.DataType]]:
    parts = parts_of(field.type)
    if not parts:
        yield path, field.type
    for part in parts:
        is_struct = path is not None and pa.types.is_struct(field.type)
        yield from _leaves_of(part, (*path, part.name) if path and is_struct else None)


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _bound_form(
    path: tuple[str, ...], type_: pa.DataType, nan: NanColumns
) -> Callable[[Any], Any] | None:
    """Return the function for the form of bounds of a column; None if it has no bounds."""
    if pa.types.is_floating(type_):
        is_known = len(path) == 1 and path[0] not in nan.names
        return _finite if is_known else None
    return next((form for fits, form in _FORMS if fits(type_)), None)


def _finite(value: float) -> float | None:
    """Return a bound that JSON has: none beside infinity."""
    return value if math.isfinite(value) else None


def _upper(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + _LAST_CHARACTER


def _instant(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    utc = value.astimezone(dt.UTC).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='microseconds')}Z"


_FORMS: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
    (pa.types.is_integer, int),
    (pa.types.is_string, str),
    (pa.types.is_date, dt.date.isoformat),
    (pa.types.is_timestamp, _instant),
    (pa.types.is_decimal, lambda value: value),
]
