"""The form that records have behind an operator: the values that their declared types store."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from statekit.records.arrow_reader import (
    ColumnMismatch,
    column_reader,
    field_reader,
    record_builder,
)
from statekit.records.arrow_scalars import OutputColumn
from statekit.records.arrow_writer import OutputRows
from statekit.records.copies import copier
from statekit.records.record_type import RecordType

Read = Callable[[Any], list[Any]]
Columns = Sequence[list[Any]]


class StoredForm:
    """Makes records of one declared type from their columns.

    Parameters:
        annotation: the declared type.
        record_type: the same as a record type; None for scalars and tuples.
        rows: its parts; None for a single column of values.
        columns: of the parts, or the single column.

    Attributes:
        copy: copies one record; None if records cannot change.
        recomputes: whether the class computes fields when a record is made.
    """

    def __init__(
        self,
        annotation: Any,
        record_type: RecordType | None,
        rows: OutputRows | None,
        columns: Sequence[OutputColumn],
    ) -> None:
        self._rows = rows
        self._columns = tuple(columns)
        self._record_type = record_type
        self.copy = copier(annotation)
        annotations = (annotation,) if rows is None else rows.annotations
        self._readers = tuple(map(self._reader, columns, annotations))
        self._build: Callable[[Columns, int], list[Any]] | None = None
        self._places: list[int] = []
        self.recomputes = False
        if record_type is not None and rows is not None:
            fields = record_type.fields or {}
            names = [name for name, field in fields.items() if field.init]
            self._places = [rows.names.index(name) for name in names]
            self._build = record_builder(record_type, names)
            self.recomputes = record_type.may_change_fields or len(names) < len(fields)

    def _reader(self, column: OutputColumn, annotation: Any) -> Read | None:
        """A reader of a column; None if it has no Arrow type, so its values stay as they are."""
        if column.arrow is None:
            return None
        try:
            if self._record_type is None:
                return column_reader(annotation, column.arrow, column.path)
            return field_reader(self._record_type, annotation, column.arrow, column.path)
        except ColumnMismatch:
            return None

    def stored(self, records: list[Any], values: Columns, arrays: Sequence[Any]) -> list[Any]:
        """Records whose fields have stored values. The class computes no field again.

        Returns `records` itself if no value has to change.

        Parameters:
            records: checked.
            values: of each column.
            arrays: of each column; None for a column without an Arrow type.
        """
        is_changed = False
        columns = []
        for column, read, part, array in zip(
            self._columns, self._readers, values, arrays, strict=True
        ):
            if read is not None and not column.is_stored(part):
                part, is_changed = read(array), True
            columns.append(part)
        if self._rows is None:
            return columns[0] if self._record_type is None else records
        if self.recomputes:
            return self._with_values(records, columns) if is_changed else records
        if not is_changed and set(map(type, records)) <= {self._rows.cls}:
            return records
        return self._built(columns, len(records))

    def received(self, records: list[Any]) -> list[Any]:
        """Stored records as an operator behind a shuffle receives them: made from their columns."""
        if not self.recomputes or not records:
            return records
        assert self._rows is not None
        return self._built(self._rows.split(records), len(records))

    def copies(self, records: list[Any]) -> list[Any]:
        """Copies of the records, or the records themselves if they cannot change."""
        return records if self.copy is None else list(map(self.copy, records))

    def _built(self, columns: Columns, count: int) -> list[Any]:
        if self._build is None:
            return list(zip(*columns, strict=True))
        return self._build([columns[place] for place in self._places], count)

    def _with_values(self, records: list[Any], columns: Columns) -> list[Any]:
        """Copies of records with other values of fields, made without their constructor."""
        assert self._rows is not None
        names = self._rows.names
        return [
            _replaced(record, dict(zip(names, row, strict=True)))
            for record, row in zip(records, zip(*columns, strict=True), strict=True)
        ]


def _replaced(record: Any, values: dict[str, Any]) -> Any:
    if hasattr(record, "model_copy"):
        return record.model_copy(update=values)
    replaced = copy.copy(record)
    is_struct = isinstance(replaced, msgspec.Struct)
    assign = msgspec.structs.force_setattr if is_struct else object.__setattr__
    for name, value in values.items():
        assign(replaced, name, value)
    return replaced
