"""Output types: check the outputs of a function, and write them as Arrow record batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from statekit.codec.annotations import peel, show
from statekit.codec.kept_fields import as_restored, holds_models, is_restored
from statekit.errors import CALL_FAILURES, ProcessError, StateTypeError
from statekit.records.arrow_reader import ColumnMismatch, Read, field_reader, record_builder
from statekit.records.arrow_scalars import OutputColumn
from statekit.records.arrow_writer import is_fixed_tuple, record_rows, single_column, tuple_rows
from statekit.records.declaration import flavour_of
from statekit.records.output_copy import Copy, copier
from statekit.records.record_type import RecordType
from statekit.shown import shown, shown_text

Columns = Sequence[list[Any]]

HINT = (
    "Without Spark it can be collected; a sink, and Spark, need a schema. Yield a record whose "
    "fields have concrete types, a fixed tuple, or a scalar."
)


class OutputType:
    """The output type of a function, compiled from the T of its `Iterator[T]`.

    A type without an Arrow type is accepted; only `arrow_schema` and `to_batch` refuse it.

    Parameters:
        annotation: the declared type.
        where: the declaration, for messages.
        noun: what messages call one of the values.

    Attributes:
        record_type: the same as a record type; None for scalars and tuples.

    Raises:
        StateTypeError: the annotation names a type that cannot be resolved.

    >>> from typing import NamedTuple
    >>> class Count(NamedTuple):
    ...     tail: str
    ...     flights: int
    >>> counts = OutputType(Count, where="count, output")
    >>> counts.to_batch([Count("N1", 2)]).to_pylist()
    [{'tail': 'N1', 'flights': 2}]
    """

    def __init__(self, annotation: Any, where: str, noun: str = "output") -> None:
        self.annotation = annotation
        self.where = where
        self._noun = noun
        self.name = show(annotation)
        self.record_type: RecordType | None = None
        members, nullable, _ = peel(annotation)
        member = members[0] if len(members) == 1 and not nullable else None
        if member is not None and flavour_of(member) is not None:
            self.record_type = RecordType.of(member, where=where)
            self.name = self.record_type.name
        if self.record_type is not None and self.record_type.flavour != "dict":
            self._rows = record_rows(self.record_type, self.name, ())
        else:
            is_tuple = is_fixed_tuple(member)
            self._rows = tuple_rows(member, "", ()) if is_tuple else single_column(annotation)

    @functools.cached_property
    def arrow_schema(self) -> Any:
        """The schema of the batches: a column per field, `_1`, `_2`, ... or `value`.

        Raises:
            StateTypeError: a type has no Arrow type; names the field and says what to do.

        >>> OutputType(int, where="count, output").arrow_schema
        value: int64 not null
        """
        problem = self._rows.problem if self._rows.columns else f"{self.name} has no fields"
        if problem:
            raise StateTypeError(f"{self.where}: {problem}. {HINT}")
        return pa.schema(self._rows.fields())

    def to_batch(self, records: list[Any]) -> Any:
        """Return the outputs as one record batch, after checking each of them.

        Raises:
            StateTypeError: the declared type has no Arrow schema.
            ProcessError: an output does not fit; names the field, its type, the value, the output.

        >>> OutputType(int, where="count, output").to_batch([1.5])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        statekit.errors.ProcessError: count, output: output 0, 1.5, does not fit int: ...
        """
        schema = self.arrow_schema
        try:
            return pa.RecordBatch.from_arrays(
                self._arrays(self._rows.split(records)), schema=schema
            )
        except CALL_FAILURES as error:
            raise self._explained(records, error) from error

    def batch_of_columns(self, columns: Columns) -> Any:
        """Return a record batch of the values of each column, after checking them.

        Raises:
            StateTypeError: the declared type has no Arrow schema.
            Exception: a value does not fit. `to_batch` says which record.

        >>> OutputType(tuple[str, int], where="count").batch_of_columns([["a"], [1]]).to_pylist()
        [{'_1': 'a', '_2': 1}]
        """
        return pa.RecordBatch.from_arrays(self._arrays(columns), schema=self.arrow_schema)

    @functools.cached_property
    def copy(self) -> Copy | None:
        """A function that copies one output when it is emitted; None if outputs are immutable."""
        return copier(self.annotation)

    def stored(self, records: list[Any]) -> list[Any]:
        """Check outputs, and return them in the form in which a reader of their columns gets them.

        An int in a float field becomes a float, for example. Returns `records` itself if no value
        has to change.

        Raises:
            ProcessError: an output does not fit, as for `to_batch`.

        >>> OutputType(tuple[str, float], where="count, output").stored([("a", 1)])
        [('a', 1.0)]
        """
        try:
            values = self._rows.split(records)
            return self._with_stored_values(records, values, self._arrays(values))
        except CALL_FAILURES as error:
            raise self._explained(records, error) from error

    def copies(self, stored: list[Any]) -> list[Any]:
        """Return copies for another consumer, which may change them."""
        return stored if self.copy is None else list(map(self.copy, stored))

    def _with_stored_values(
        self, records: list[Any], values: Columns, arrays: Sequence[Any]
    ) -> list[Any]:
        """Return checked records with the values that are read back from their arrays.

        No code of the class changes them. Values without an Arrow type stay as they are, but all
        fields of their models count as set.
        """
        is_changed = False
        columns = []
        for column, read, part, array, has_models in zip(
            self._rows.columns, self._readers, values, arrays, self._hold_models, strict=True
        ):
            if read is not None and not column.is_stored(part):
                part, is_changed = read(array), True
            elif read is None and has_models:
                part, is_changed = list(map(as_restored, part)), True
            columns.append(part)
        if is_changed or not self._are_restored(records):
            return self._build(columns, len(records))
        return records

    def _are_restored(self, records: list[Any]) -> bool:
        """Return whether records differ only in values from records that are read from columns."""
        if not set(map(type, records)) <= {self._rows.cls}:
            return False
        is_restored = self._is_restored
        return is_restored is None or all(map(is_restored, records))

    @functools.cached_property
    def _is_restored(self) -> Callable[[Any], bool] | None:
        """The test whether a record equals its restored form; None if every record does."""
        return None if self.record_type is None else is_restored(self.record_type.cls)

    @functools.cached_property
    def _readers(self) -> tuple[Read | None, ...]:
        """The reader of each column; None for a column without an Arrow type."""
        return tuple(map(self._reader, self._rows.columns, self._rows.annotations))

    @functools.cached_property
    def _hold_models(self) -> tuple[bool, ...]:
        """True for each column whose values can be, or contain, pydantic models."""
        return tuple(map(holds_models, self._rows.annotations))

    def _reader(self, column: OutputColumn, annotation: Any) -> Read | None:
        if column.arrow is None:
            return None
        try:
            arrow, path = column.arrow, column.path
            return field_reader(self.record_type, annotation, arrow, path, restores=True)
        except ColumnMismatch:
            return None

    @functools.cached_property
    def _build(self) -> Callable[[Columns, int], list[Any]]:
        """A function from columns and the number of records to records."""
        record_type, names = self.record_type, self._rows.names
        if self._rows.cls is object:
            return lambda columns, count: columns[0]
        if record_type is None:
            return lambda columns, count: list(zip(*columns, strict=True))
        return record_builder(record_type, list(names), restores=True)

    def _arrays(self, values: Columns) -> list[Any]:
        """Check the values of each column, and return the arrays; None for a column without an
        Arrow type.
        """
        return list(map(_array, self._rows.columns, values))

    def _explained(self, records: list[Any], error: BaseException) -> ProcessError:
        """Return the error about the first output that does not fit. Outputs are checked one by one
        to find it.
        """
        subject, cause = "a batch of outputs", error
        for index, record in enumerate(records):
            try:
                self._arrays(self._rows.split([record]))
            except CALL_FAILURES as first:
                subject, cause = f"{self._noun} {index}, {shown(record)},", first
                break
        return ProcessError(
            f"{self.where}: {subject} does not fit {self.name}: {shown_text(cause)}"
        )


def _array(column: OutputColumn, values: list[Any]) -> Any:
    """Check values, and return their array; None if the column has no Arrow type."""
    column.check(values)
    return None if column.arrow is None else column.build(values)
