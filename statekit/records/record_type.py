"""Record types: Arrow batches as lists of records."""

from __future__ import annotations

import dataclasses
import datetime as dt
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pydantic

from statekit.errors import CALL_FAILURES, ProcessError, StatekitError
from statekit.records.arrow_reader import (
    ColumnMismatch,
    record_assembler,
    record_builder,
    record_columns,
)
from statekit.records.declaration import RecordDeclaration, ValueMismatch
from statekit.shown import shown, shown_error, shown_text, type_name


@dataclasses.dataclass(frozen=True, slots=True)
class RecordType(RecordDeclaration):
    """A type whose instances are records. `fields` is None for a plain dict.

    >>> from typing import NamedTuple
    >>> class Flight(NamedTuple):
    ...     tail: str
    ...     delay: float | None = None
    >>> flight = RecordType.of(Flight, where="turnaround, parameter 'flight'")
    >>> flight.flavour, flight.field_names, flight.fields["delay"].required
    ('namedtuple', ('tail', 'delay'), False)
    """

    @property
    def members(self) -> tuple[RecordType, ...]:
        """The types of records: this one. A `RecordUnion` has several."""
        return (self,)

    @property
    def may_change_fields(self) -> bool:
        """Whether the class may change values when a record is made from columns."""
        return self.flavour == "pydantic" or hasattr(self.cls, "__post_init__")

    def reader(self, schema: Any, *, first_column: int = 0) -> RecordReader:
        """Return a reader of batches with this Arrow schema, which is checked here, once.

        Columns before `first_column` and columns that are no field are ignored.

        Raises:
            ProcessError: a column is missing, or its Arrow type cannot hold the field's type.

        >>> from typing import NamedTuple
        >>> import pyarrow as pa
        >>> class Flight(NamedTuple):
        ...     tail: str
        ...     delay: float | None = None
        >>> batch = pa.record_batch({"tail": ["N1", "N2"]})
        >>> RecordType.of(Flight, where="example").reader(batch.schema).read(batch)
        [Flight(tail='N1', delay=None), Flight(tail='N2', delay=None)]
        """
        return RecordReader(self, schema, first_column)

    def coerce(self, value: Any) -> Any:
        """Return a record as it is, or convert a mapping to the record type.

        Raises:
            ProcessError: it is something else, or the mapping does not fit the type.
        """
        if self.flavour not in ("dict", "typeddict") and isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise ProcessError(
                f"{self.where}: expected a {self.name} or a mapping of its fields, "
                f"got {type_name(value)}: {shown(value)}"
            )
        if self.flavour == "dict":
            return value if isinstance(value, dict) else dict(value)
        try:
            return self._validate(value)
        except CALL_FAILURES as error:
            if isinstance(error, StatekitError):
                raise
            is_misfit = isinstance(error, ValueError | TypeError)
            why = shown_text(error) if is_misfit else shown_error(error)
            raise ProcessError(
                f"{self.where}: a mapping does not validate as {self.name}: {why}. "
                f"The mapping: {shown(value)}"
            ) from error

    def _validate(self, value: Mapping[str, Any]) -> Any:
        if self.flavour == "pydantic":
            return self.cls.model_validate(dict(value))
        if self.flavour == "msgspec":
            return msgspec.convert(dict(value), self.cls, strict=True, dec_hook=_foreign)
        # Field by field: msgspec takes NamedTuples only from sequences, and it would cache on other
        # classes what cannot be pickled, so that the class could not be sent to a worker.
        fields = {name: field for name, field in (self.fields or {}).items() if field.init}
        absent = [name for name, field in fields.items() if field.required and name not in value]
        if absent:
            raise ValueError(f"it has no {', '.join(map(repr, absent))}")
        values = {
            name: msgspec.convert(
                value[name], _for_msgspec(field.annotation), strict=True, dec_hook=_foreign
            )
            for name, field in fields.items()
            if name in value
        }
        return self.cls(**values)

    def getter(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        """Return a C-speed getter of one field (a scalar) or of several (a tuple).

        A key missing from a dict surfaces as KeyError: hand it to `missing`.

        Raises:
            ProcessError: the record type has no such field, or no field is named.

        >>> from typing import NamedTuple
        >>> class Flight(NamedTuple):
        ...     tail: str
        ...     airport: str
        >>> RecordType.of(Flight, where="example").getter(("airport", "tail"))(Flight("N1", "JFK"))
        ('JFK', 'N1')
        """
        unknown = [f for f in fields if self.fields is not None and f not in self.fields]
        if unknown or not fields:
            raise ProcessError(
                f"{self.where}: {self.name} has no field {', '.join(map(repr, unknown)) or 'named'}"
                f". Choose from {', '.join(self.field_names) or 'the keys of the dict'}."
            )
        if self.flavour == "namedtuple":
            return operator.itemgetter(*map(self.field_names.index, fields))
        if self.flavour in ("dict", "typeddict"):
            return operator.itemgetter(*fields)
        return operator.attrgetter(*fields)

    def missing(self, error: KeyError, record: Any) -> ProcessError:
        """Return the ProcessError for a KeyError that a `getter` raised on this record.

        >>> plain = RecordType.of(dict, where="count, parameter 'row'")
        >>> try:
        ...     plain.getter(("tail",))({"airport": "JFK"})
        ... except KeyError as error:
        ...     print(plain.missing(error, {"airport": "JFK"}))
        count, parameter 'row': a record has no 'tail'. The record: {'airport': 'JFK'}
        """
        return ProcessError(
            f"{self.where}: a record has no {shown(error.args[0])}. The record: {shown(record)}"
        )


class RecordReader:
    """Reads record batches of one checked schema. Made by `RecordType.reader`."""

    def __init__(self, record_type: RecordType, schema: Any, first_column: int) -> None:
        self.record_type = record_type
        self._first = first_column
        columns = list(schema)[first_column:]
        try:
            names, self._values = record_columns(record_type, columns, record_type.name)
        except ColumnMismatch as error:
            raise ProcessError(f"{record_type.where}: {shown_text(error)}") from None
        self._build = record_builder(record_type, names)

    def read(self, batch: Any) -> list[Any]:
        """Return all rows of a batch as records.

        Raises:
            ProcessError: a row does not fit; names the field, the record type and the row.
        """
        try:
            return self._read(batch)
        except CALL_FAILURES as error:
            raise self._explained(batch, error) from error

    def columns(self, batch: Any) -> list[list[Any]]:
        """Return the values of each field, of all rows, without making records.

        Raises:
            ProcessError: a row does not fit, as for `read`.
        """
        try:
            return self._values(batch.columns[self._first :])
        except CALL_FAILURES as error:
            raise self._explained(batch, error) from error

    def _read(self, batch: Any) -> list[Any]:
        return self._build(self._values(batch.columns[self._first :]), batch.num_rows)

    def _explained(self, batch: Any, error: BaseException) -> ProcessError:
        """Return the error about the first row that does not fit, found by reading them one by
        one.
        """
        record_type = self.record_type
        subject, cause = "a batch", error
        for index in range(batch.num_rows):
            row = batch.slice(index, 1)
            try:
                self._read(row)
            except CALL_FAILURES as first:
                subject = f"row {index} of a batch, {_show_row(row, self._first)},"
                cause = first
                break
        return ProcessError(
            f"{record_type.where}: {subject} does not fit {record_type.name}: {shown_text(cause)}"
        )


def _for_msgspec(annotation: Any) -> Any:
    """Return an annotation with msgspec's aware datetime instead of pydantic's."""
    if annotation is pydantic.AwareDatetime:
        return typing.Annotated[dt.datetime, msgspec.Meta(tz=True)]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_for_msgspec, arguments))]  # noqa: UP007
    if isinstance(annotation, types.GenericAlias):
        return types.GenericAlias(origin, tuple(map(_for_msgspec, arguments)))
    return annotation


def _foreign(cls: Any, value: Any) -> Any:
    """msgspec's hook: pydantic validates the types that msgspec does not know."""
    return pydantic.TypeAdapter(cls).validate_python(value)


def _show_row(row: Any, first: int) -> str:
    columns = list(row.schema)[first:]
    try:
        return shown(record_assembler(_PLAIN, columns, "")(row.columns[first:], 1)[0])
    except (ValueMismatch, ValueError, OverflowError):  # a date that Python cannot hold
        return shown(str(row))


_PLAIN = RecordType(dict, "dict", "dict", None, "")
