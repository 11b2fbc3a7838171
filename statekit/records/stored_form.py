"""The form that records have behind an operator: the values that their declared types store."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
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
        rows: its parts; None for one column of values.
        columns: of the parts, or the one column.
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
        """Copies one record; None if records cannot change."""
        self._readers = tuple(self._compiled(annotation))
        self._builds: Callable[[Columns, int], list[Any]] | None = None
        self._places: list[int] = []
        self.rebuilds = False
        """Whether the class computes fields when a record is made from columns."""
        if record_type is not None and rows is not None:
            fields = record_type.fields or {}
            names = [name for name, field in fields.items() if field.init]
            self._places = [rows.names.index(name) for name in names]
            self._builds = record_builder(record_type, names)
            self.rebuilds = record_type.may_change_fields or len(names) < len(fields)

    def _compiled(self, annotation: Any) -> Iterator[Read | None]:
        """A reader per column; None where values have no Arrow type, and stay as they are."""
        record_type, rows = self._record_type, self._rows
        for place, column in enumerate(self._columns):
            read: Read | None = None
            if column.arrow is not None:
                try:
                    if record_type is not None and record_type.fields is not None:
                        field = record_type.fields[rows.names[place]] if rows is not None else None
                        assert field is not None
                        read = field_reader(record_type, field, column.arrow, column.path)
                    else:
                        of = annotation if rows is None else rows.annotations[place]
                        read = column_reader(of, column.arrow, column.path)
                except ColumnMismatch:
                    read = None
            yield read

    def stored(self, records: list[Any], values: Columns, arrays: Sequence[Any]) -> list[Any]:
        """Records whose fields have stored values. The class computes nothing anew.

        Returns `records` itself if all of them are as they should be.

        Parameters:
            records: checked.
            values: of each column.
            arrays: of each column; None for one without an Arrow type.
        """
        changed = False
        columns = []
        for column, read, part, array in zip(
            self._columns, self._readers, values, arrays, strict=True
        ):
            if read is not None and not column.is_stored(part):
                part, changed = read(array), True
            columns.append(part)
        if self._rows is None:
            return columns[0] if self._record_type is None else records
        if self.rebuilds:
            return self._with_values(records, columns) if changed else records
        if not changed and set(map(type, records)) <= {self._rows.cls}:
            return records
        return self._built(columns, len(records))

    def received(self, records: list[Any]) -> list[Any]:
        """Stored records as an operator behind a shuffle receives them: made from their columns."""
        if not self.rebuilds or not records:
            return records
        assert self._rows is not None
        return self._built(self._rows.split(records), len(records))

    def copies(self, records: list[Any]) -> list[Any]:
        """The same records, such that changes of them are not seen elsewhere."""
        return records if self.copy is None else list(map(self.copy, records))

    def _built(self, columns: Columns, count: int) -> list[Any]:
        if self._builds is None:
            return list(zip(*columns, strict=True))
        return self._builds([columns[place] for place in self._places], count)

    def _with_values(self, records: list[Any], columns: Columns) -> list[Any]:
        """Copies of records with other values of fields, made without their constructor."""
        assert self._rows is not None
        names = self._rows.names
        made = []
        for record, row in zip(records, zip(*columns, strict=True), strict=True):
            values = dict(zip(names, row, strict=True))
            made.append(_replaced(record, values))
        return made


def _replaced(record: Any, values: dict[str, Any]) -> Any:
    if hasattr(record, "model_copy"):
        return record.model_copy(update=values)
    made = copy.copy(record)
    is_struct = isinstance(made, msgspec.Struct)
    for name, value in values.items():
        if is_struct:
            msgspec.structs.force_setattr(made, name, value)
        else:
            object.__setattr__(made, name, value)
    return made
