"""From rows of CSV to records."""

from __future__ import annotations

import csv
import datetime as dt
import enum
import io
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statekit.codec.annotations import Field, peel
from statekit.errors import CALL_FAILURES, ProcessError, StateTypeError, is_users
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.sources.decoding.decoder import BadRecord, Decoded, misfit_text, offset_text
from statekit.sources.decoding.json_inputs import text_converter

HEADER = b"statekit.header"
"""Metadata of batches of CSV rows: the header of their file."""

_COLUMNS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", "UTC"),
    uuid.UUID: pa.string(),
}
"""The types that Arrow reads from CSV as they are in JSON."""


@dataclass
class CsvDecoder:
    """Decodes rows of CSV by the names in the header of their file.

    A field decides the type of its column: "007" stays text in a field of text. Nested values are
    JSON, bytes are hex, as `sinks.csv` writes them. An empty cell is None, the default of its
    field, or empty text. Columns that are no fields are ignored.

    Parameters:
        records: the type of the records.
        name: of the source in the job.

    Raises:
        StateTypeError: there are several record types, or one without fields.
    """

    records: Records
    name: str

    def __post_init__(self) -> None:
        if len(self.records.members) > 1 or self.records.members[0].fields is None:
            raise StateTypeError(
                f"{self.records.where}: rows of CSV have one type with fields, which "
                f"{self.records.name} is not: use a NamedTuple, a dataclass or another class"
            )

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        header = (batch.schema.metadata or {}).get(HEADER, b"")
        names = _names(header)
        try:
            return Decoded(self._read_quickly(names, batch), [])
        except (pa.ArrowInvalid, ProcessError, _NoColumnsError):
            if batch.num_rows == 1:
                return self._read_one(names, partition, batch)
        middle = batch.num_rows // 2
        parts = ((0, middle), (middle,))
        first, second = (self(partition, batch.slice(*part)) for part in parts)
        return Decoded(first.records + second.records, first.bad + second.bad)

    @property
    def _member(self) -> RecordType:
        return self.records.members[0]

    @property
    def _fields(self) -> dict[str, Field]:
        return self._member.fields or {}

    def _read_quickly(self, names: list[str], batch: pa.RecordBatch) -> list[Any]:
        """Return the records of rows by one parser of all rows.

        Raises:
            pa.ArrowInvalid, ProcessError: a row does not fit.
        """
        types = {}
        for name, field in self._fields.items():
            arrow = _arrow_type(field.annotation)
            if arrow is None:
                raise _NoColumnsError
            types[name] = arrow
        table = _parsed(names, batch, types)
        for name, field in self._fields.items():
            if name in table.column_names and peel(field.annotation) == ((str,), False, ()):
                at = table.column_names.index(name)
                table = table.set_column(at, name, table.column(name).fill_null(""))
        (columns,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([])]
        return self._member.reader(columns.schema).read(columns)

    def _read_one(self, names: list[str], partition: str, batch: pa.RecordBatch) -> Decoded:
        try:
            types = dict.fromkeys(self._fields, pa.string())
            (cells,) = _parsed(names, batch, types).to_pylist()
            return Decoded([self._member.coerce(self._input_of(cells))], [])
        except CALL_FAILURES as error:
            if not is_users(error) and not isinstance(error, ProcessError):
                raise
            row = batch.column("value")[0].as_py().rstrip(b"\r\n")
            at = offset_text(batch, 0)
            return Decoded([], [BadRecord(self.name, partition, at, row, misfit_text(error))])

    def _input_of(self, cells: dict[str, str | None]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in self._fields.items():
            members, nullable, _ = peel(field.annotation)
            cell = cells.get(name)
            if cell is not None:
                if float in members:
                    cell = _ARROW_FLOATS.get(cell, cell)
                values[name] = text_converter(field.annotation)(cell)
            elif name not in cells or (not nullable and not field.required):
                continue
            elif nullable:
                values[name] = None
            elif str in members:
                values[name] = ""
            else:
                raise ValueError(f"{name} is empty, but its type does not allow None")
        return values


_ARROW_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Floats that are no numbers, as Arrow writes them, in the form of JSON."""


class _NoColumnsError(Exception):
    """A field has a type that Arrow does not read from CSV."""


def _arrow_type(annotation: Any) -> pa.DataType | None:
    """Return the type of a column of CSV; None if its cells are read one by one."""
    members, _, _ = peel(annotation)
    if len(members) != 1:
        return None
    (member,) = members
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return pa.string() if {type(each.value) for each in member} == {str} else None
    return _COLUMNS.get(member) if isinstance(member, type) else None


def _names(header: bytes) -> list[str]:
    text = header.decode(errors="replace")
    return next(csv.reader(io.StringIO(text, newline="")), [])


def _parsed(names: list[str], batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.Table:
    """Parse rows.

    Parameters:
        types: of the columns that are kept. Those that the header does not name are left out.
    """
    import pyarrow.csv as pa_csv

    rows = b"".join(batch.column("value").to_pylist())
    table = pa_csv.read_csv(
        io.BytesIO(rows),
        pa_csv.ReadOptions(column_names=names, use_threads=False),
        pa_csv.ParseOptions(newlines_in_values=True),
        pa_csv.ConvertOptions(
            column_types=types,
            include_columns=[name for name in types if name in names],
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if table.num_rows != batch.num_rows:
        raise pa.ArrowInvalid(f"{batch.num_rows} rows are {table.num_rows} rows of CSV")
    return table
