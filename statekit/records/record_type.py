"""Record types: read Arrow batches as lists of records."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pydantic

from statekit.codec.annotations import peel, show, struct_fields
from statekit.codec.kept_fields import only_stores
from statekit.errors import CALL_FAILURES, ProcessError, is_users
from statekit.foreign import foreign_hint
from statekit.records.arrow_reader import (
    ColumnMismatch,
    record_assembler,
    record_builder,
    record_columns,
)
from statekit.records.declaration import ForeignValue, RecordDeclaration, ValueMismatch, flavour_of
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
        """The record types: only this one. A `RecordUnion` has several."""
        return (self,)

    @property
    def may_change_fields(self) -> bool:
        """True if the class may change values when a record is created from columns."""
        return self.flavour != "dict" and not only_stores(self.cls)

    def reader(self, schema: Any, *, first_column: int = 0, restores: bool = False) -> RecordReader:
        """Check an Arrow schema, and return a reader of batches with this schema.

        Parameters:
            first_column: the first column of the record. Columns that are no field are ignored.
            restores: whether the job wrote the rows. Then records are restored field by field; if
                not, the constructor of the class makes them.

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
        return RecordReader(self, schema, first_column, restores=restores)

    def coerce(self, value: Any) -> Any:
        """Return a record unchanged, or convert a mapping to the record type.

        Raises:
            ProcessError: it is something else, or the mapping does not fit the type.
        """
        if self.flavour not in ("dict", "typeddict") and isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise ProcessError(
                f"{self.where}: records are of type {self.name}, and this one is of type "
                f"{type_name(value)}: {shown(value)}. Give records of the former, or mappings of "
                "its fields"
            )
        if self.flavour == "dict":
            return value if isinstance(value, dict) else dict(value)
        try:
            _check_foreign(value, "")
            return self._validate(value)
        except CALL_FAILURES as error:
            if not is_users(error):
                raise
            is_misfit = issubclass(type(error), ValueError | TypeError | ValueMismatch)
            why = shown_text(error) if is_misfit else shown_error(error)
            raise ProcessError(
                f"{self.where}: a mapping does not validate as {self.name}: {why}. "
                f"The mapping: {shown(value)}"
            ) from error

    def _validate(self, value: Mapping[str, Any]) -> Any:
        if self.flavour == "pydantic":
            if issubclass(self.cls, pydantic.RootModel):
                return self.cls.model_validate(dict(value))
            return self.cls.model_validate(dict(value), by_alias=True, by_name=True)
        if self.flavour == "msgspec" and _has_plain_keys(self.cls):
            return msgspec.convert(dict(value), self.cls, strict=True, dec_hook=_foreign)
        # Field by field: msgspec takes NamedTuples only from sequences, and it would cache on other
        # classes what cannot be pickled, so that the class could not be sent to a worker.
        fields = self.fields or {}
        keys = {name: name for name in fields}
        if self.flavour == "msgspec":
            keys = _keys_of_struct(self.cls, value)
        needed = [name for name, field in fields.items() if field.required and field.init]
        if absent := [name for name in needed if keys[name] not in value]:
            raise ValueError(f"it has no {', '.join(map(repr, absent))}")
        values = {
            name: _converter(field.annotation)(value[keys[name]])
            for name, field in fields.items()
            if keys[name] in value
        }
        later = {name: values.pop(name) for name in list(values) if not fields[name].init}
        made = self.cls(**values)
        for name, part in later.items():
            object.__setattr__(made, name, part)
        return made

    def columns_of(
        self, fields: Sequence[str]
    ) -> Callable[[Sequence[Any]], Sequence[Sequence[Any]]]:
        """Return a function from records to a column of each field. An absent key has None.

        Raises:
            ProcessError: as for `getter`.

        >>> from typing import NamedTuple
        >>> class Flight(NamedTuple):
        ...     tail: str
        ...     airport: str
        >>> RecordType.of(Flight, where="example").columns_of(["airport"])([Flight("N1", "JFK")])
        [['JFK']]
        """
        if self.flavour == "typeddict":
            return lambda records: [[of.get(name) for of in records] for name in fields]
        if self.flavour == "namedtuple" and tuple(fields) == tuple(self.field_names):
            return lambda records: list(zip(*records, strict=True)) or [()] * len(fields)
        get = self.getter(tuple(fields))
        if len(fields) == 1:
            return lambda records: [list(map(get, records))]
        return lambda records: list(zip(*map(get, records), strict=True)) or [()] * len(fields)

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
        """Return the ProcessError for a KeyError that a `getter` raised for this record.

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
    """Reads record batches of a checked schema. Created by `RecordType.reader`."""

    def __init__(
        self, record_type: RecordType, schema: Any, first_column: int, *, restores: bool = False
    ) -> None:
        self.record_type = record_type
        self._first = first_column
        columns = list(schema)[first_column:]
        try:
            names, self._values = record_columns(
                record_type, columns, record_type.name, restores=restores
            )
        except ColumnMismatch as error:
            raise ProcessError(f"{record_type.where}: {shown_text(error)}") from None
        self._build = record_builder(record_type, names, restores=restores)

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
        """Return the values of each field of all rows, without creating records.

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
        """Return the error about the first row that does not fit. Rows are read one by one to find
        it.
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


def _converter(annotation: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value of a mapping to the type of a field."""
    try:
        return _cached_converter(annotation)
    except TypeError:  # some metadata has no hash
        return _new_converter(annotation)


def _new_converter(annotation: Any) -> Callable[[Any], Any]:
    members, nullable, _ = peel(annotation)
    by_records = _record_converter(members[0]) if len(members) == 1 else None
    if by_records is None:
        plain_type = _for_msgspec(annotation)
        return functools.partial(msgspec.convert, type=plain_type, strict=True, dec_hook=_foreign)
    return lambda value: None if value is None and nullable else by_records(value)


_cached_converter = functools.cache(_new_converter)


def _record_converter(member: Any) -> Callable[[Any], Any] | None:
    """Return the converter of a class with fields, or of a container of such a class; None for
    other types.
    """
    if flavour_of(member) not in (None, "dict"):
        of_class = RecordType.of(member, where=show(member))
        return lambda value: (
            of_class.coerce(value) if isinstance(value, Mapping) else _plain(value, member)
        )
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if origin not in (list, tuple, dict) or not any(map(_has_records, arguments)):
        return None
    parts = [_converter(argument) for argument in arguments if argument is not Ellipsis]
    if origin is dict:
        of_key, of_item = parts
        return lambda value: {of_key(k): of_item(v) for k, v in _plain(value, dict).items()}
    if origin is list or Ellipsis in arguments:
        return lambda value: origin(map(parts[0], _plain(value, list)))
    return lambda value: tuple(
        convert(part) for convert, part in zip(parts, _plain(value, list), strict=True)
    )


def _has_records(annotation: Any) -> bool:
    """Return whether a type is a class with fields, or contains one."""
    members = peel(annotation)[0]
    return any(
        flavour_of(member) not in (None, "dict") or any(map(_has_records, typing.get_args(member)))
        for member in members
    )


def _plain(value: Any, annotation: Any) -> Any:
    return msgspec.convert(value, _for_msgspec(annotation), strict=True, dec_hook=_foreign)


@functools.cache
def _has_plain_keys(cls: Any) -> bool:
    """Return whether mappings for a Struct, including nested ones, use only names of fields as
    keys.
    """
    names = cls.__struct_fields__ == cls.__struct_encode_fields__
    return names and not any(_has_records(field.annotation) for field in struct_fields(cls))


def _keys_of_struct(cls: Any, value: Mapping[str, Any]) -> dict[str, str]:
    """Return the mapping key of each field of a Struct: its name, or the result of `rename`.

    Raises:
        ValueError: the tag of the mapping is another one, or the class forbids one of the keys.
    """
    config, names = cls.__struct_config__, cls.__struct_fields__
    pairs = zip(names, cls.__struct_encode_fields__, strict=True)
    keys = {name: name if name in value else renamed for name, renamed in pairs}
    if config.tag_field is not None and value.get(config.tag_field, config.tag) != config.tag:
        raise ValueError(f"its {config.tag_field!r} is not {config.tag!r}")
    unknown = value.keys() - {*keys.values(), config.tag_field}
    if config.forbid_unknown_fields and unknown:
        raise ValueError(f"it has the unknown keys {', '.join(sorted(map(repr, unknown)))}")
    return keys


def _check_foreign(value: Any, path: str) -> None:
    """Refuse values of NumPy and pandas in the input of a record.

    Raises:
        ForeignValue: there is one.
    """
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        parts = value.items()
        for name in value:
            _check_foreign(name, f"the key {shown(name)}")
    elif isinstance(value, list | tuple | set | frozenset):
        parts = enumerate(value)
    elif hint := foreign_hint(value):
        raise ForeignValue(f"{path} is {shown(value)} of type {type_name(value)}{hint}")
    else:
        return
    for name, part in parts:
        _check_foreign(part, f"{path}.{name}" if path else str(name))


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
    """Convert a type that msgspec does not know, with pydantic. Called by msgspec."""
    return pydantic.TypeAdapter(cls).validate_python(value, by_alias=True, by_name=True)


def _show_row(row: Any, first: int) -> str:
    columns = list(row.schema)[first:]
    try:
        return shown(record_assembler(_DICTS, columns, "")(row.columns[first:], 1)[0])
    except (ValueMismatch, ValueError, OverflowError):  # a date that Python cannot hold
        return shown(str(row))


_DICTS = RecordType(dict, "dict", "dict", None, "")
