"""The fast way from JSON to records: decoders that are compiled for a record type.

msgspec reads a class of the user only if it makes the same records as `RecordType.coerce`.
NamedTuples, which msgspec reads from arrays only, are read by a Struct with the same fields, and so
are classes with fields that other columns contain. pydantic reads its models.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import itertools
import operator
import typing
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import GenericAlias, NoneType
from typing import Any

import msgspec
import pydantic

from statekit.codec.annotations import (
    Field,
    members_within,
    peel,
    plain_defaults,
    struct_fields,
    struct_flavour,
)
from statekit.codec.kept_fields import as_restored, holds_models, only_stores
from statekit.records.arrow_reader import record_builder
from statekit.records.declaration import MAPPINGS, SEQUENCES
from statekit.records.record_type import RecordType
from statekit.records.union import Records

Convert = Callable[[Any], Any]
Build = Callable[[list[Any], Mapping[str, list[Any]]], list[Any]]
"""A function from what was decoded, and the values of fields of other columns, to records."""


@dataclass(frozen=True)
class DocumentDecoder:
    """A fast decoder of documents.

    Parameters:
        decode: reads one document. It raises an error for one that it cannot read.
        build: makes the records.
        instants: getters of the times of a record. They may have any zone, or none.
    """

    decode: Callable[[bytes], Any]
    build: Build
    instants: tuple[Callable[[Any], Any], ...] = ()

    def not_stored(self, records: list[Any]) -> list[int]:
        """Return the places of the records with a time that is no instant in UTC.

        Parameters:
            records: those that `build` has made, and None.
        """
        if not self.instants or self._are_in_utc([of for of in records if of is not None]):
            return []
        places = enumerate(records)
        return [place for place, of in places if of is not None and not self._are_in_utc([of])]

    def _are_in_utc(self, records: list[Any]) -> bool:
        return all(
            {at.tzinfo for at in map(get, records) if at is not None} <= _IN_UTC
            for get in self.instants
        )


_IN_UTC = {dt.UTC}


def document_decoder(records: Records, without: Collection[str] = ()) -> DocumentDecoder | None:
    """Return the fast decoder of a record type; None if only the general way reads it.

    Parameters:
        without: fields that do not come from documents.

    >>> from typing import NamedTuple
    >>> from statekit.records.union import records_of
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int = 0
    >>> fast = document_decoder(records_of(Order, where="orders"))
    >>> fast.build([fast.decode(b'{"customer":"ada"}')], {})
    [Order(customer='ada', cents=0)]
    """
    try:
        if len(records.members) > 1:
            return _of_tagged(records, without)
        (member,) = records.members
        if member.flavour == "pydantic":
            return _of_pydantic(member, without)
        if member.fields is None:
            return None if without else DocumentDecoder(_decoder(dict[str, Any]), _as_decoded)
        if not without and _is_native(member.cls, allows_instants=True):
            return DocumentDecoder(_decoder(member.cls), _as_decoded, _instants(member))
        return _of_mirror(member, without)
    except (TypeError, ValueError, NameError, _General):
        return None  # msgspec refuses a part of it


class _General(Exception):  # noqa: N818 - never leaves this module
    """A type that only the general way reads."""


def _as_decoded(decoded: list[Any], _: Mapping[str, list[Any]]) -> list[Any]:
    return decoded


def _decoder(annotation: Any) -> Callable[[bytes], Any]:
    """Return a decoder of msgspec.

    msgspec notes on classes what it knows about them, which cannot be pickled: the class could not
    be sent to a worker. The notes are removed again.
    """
    classes = [cls for cls in members_within(annotation) if isinstance(cls, type)]
    unmarked = [cls for cls in classes if _MARK not in vars(cls)]
    try:
        return msgspec.json.Decoder(annotation).decode
    finally:
        for cls in unmarked:
            if _MARK in vars(cls):
                type.__delattr__(cls, _MARK)


_MARK = "__msgspec_cache__"


def _of_tagged(records: Records, without: Collection[str]) -> DocumentDecoder | None:
    """Return the decoder of several Structs with tags."""
    classes = [member.cls for member in records.members]
    is_tagged = all(struct_flavour(cls) == "msgspec" and _tag(cls) is not None for cls in classes)
    if without or not is_tagged or not all(map(_is_native, classes)):
        return None
    return DocumentDecoder(_decoder(typing.Union[tuple(classes)]), _as_decoded)  # noqa: UP007


def _tag(cls: Any) -> Any:
    return cls.__struct_config__.tag


def _of_pydantic(member: RecordType, without: Collection[str]) -> DocumentDecoder | None:
    """Return the decoder of a model, whose own validator reads JSON.

    It would read bytes as text, and a number as a time. All fields count as set, as in models that
    columns give.
    """
    within = set(filter(_is_hashable, members_within(member.cls)))
    if without or not within.isdisjoint((bytes, dt.datetime)):
        return None
    validate = pydantic.TypeAdapter(member.cls).validator.validate_json
    if not issubclass(member.cls, pydantic.RootModel):
        validate = functools.partial(validate, by_alias=True, by_name=True)
    holds_others = any(holds_models(field.annotation) for field in struct_fields(member.cls))
    names = frozenset(member.field_names)

    def build(decoded: list[Any], _: Mapping[str, list[Any]]) -> list[Any]:
        if holds_others:
            return list(map(as_restored, decoded))
        for model in decoded:
            if len(model.__pydantic_fields_set__) < len(names):
                object.__setattr__(model, "__pydantic_fields_set__", set(names))
        return decoded

    return DocumentDecoder(validate, build)


def _is_hashable(member: Any) -> bool:
    return getattr(type(member), "__hash__", None) is not None


# ------------------------------------------------------------------ classes that msgspec reads


def _is_native(annotation: Any, *, allows_instants: bool = False, around: Any = ()) -> bool:
    """Return whether msgspec reads the JSON form of a type as the general way does.

    Parameters:
        allows_instants: whether times of any zone, or of none, are allowed as fields of the class.
        around: the classes that the type is inside of.
    """
    return all(_is_native_member(each, allows_instants, around) for each in peel(annotation)[0])


def _is_native_member(member: Any, allows_instants: bool, around: Any) -> bool:
    origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
    if origin is typing.Literal:
        return {type(value) for value in arguments} <= {str, int, NoneType}
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return {type(each.value) for each in member} in ({str}, {int})
    if struct_flavour(member) is not None:
        is_inside = any(member is cls for cls in around)
        return is_inside or _is_native_class(member, allows_instants, (*around, member))
    if origin in SEQUENCES:
        return all(_is_native(part, around=around) for part in arguments if part is not Ellipsis)
    if origin in MAPPINGS:
        return not arguments or (_is_name(arguments[0]) and _is_native(arguments[1], around=around))
    return member is Any or (_is_hashable(member) and member in _NATIVE)


def _is_name(key: Any) -> bool:
    """Return whether msgspec reads the keys of an object as this type."""
    members, nullable, _ = peel(key)
    return not nullable and len(members) == 1 and members[0] in _NATIVE - {bool, float}


_NATIVE = {NoneType, bool, int, float, str, dt.date, dt.timedelta, decimal.Decimal, uuid.UUID}


def _is_native_class(cls: Any, allows_instants: bool, around: Any) -> bool:
    fields = struct_fields(cls)
    match struct_flavour(cls):
        case "msgspec":
            if cls.__struct_config__.array_like or _is_renamed(cls):
                return False
        case "dataclass":
            if not only_stores(cls) or not all(field.init for field in fields):
                return False
        case "typeddict":
            required = {field.name for field in fields if field.required}
            if required != cls.__required_keys__:  # msgspec reads them wrong, too
                return False
        case _:
            return False
    return all(
        (allows_instants and peel(field.annotation)[0] == (dt.datetime,))
        or _is_native(field.annotation, around=around)
        for field in fields
    )


def _is_renamed(cls: Any) -> bool:
    return bool(cls.__struct_fields__ != cls.__struct_encode_fields__)


def _instants(member: RecordType) -> tuple[Callable[[Any], Any], ...]:
    """Return getters of the fields of a record that are times."""
    fields = (member.fields or {}).values()
    return tuple(
        operator.methodcaller("get", field.name)
        if member.flavour == "typeddict"
        else member.getter((field.name,))
        for field in fields
        if peel(field.annotation)[0] == (dt.datetime,)
    )


# ------------------------------------------------------------------ mirrors of classes


def _of_mirror(member: RecordType, without: Collection[str]) -> DocumentDecoder:
    """Return the decoder of a class by a Struct with the same fields.

    Raises:
        _General: there is no such Struct.
    """
    mirror = _Mirror.of(member.cls, without)
    names = list(member.fields or ())
    build_rows = record_builder(member, names)
    own = [name for name in names if name not in without]
    is_plain = not without and not any(mirror.converts)
    as_tuple, cls = msgspec.structs.astuple, member.cls

    def build(decoded: list[Any], others: Mapping[str, list[Any]]) -> list[Any]:
        if is_plain and member.flavour == "namedtuple":
            return list(map(tuple.__new__, itertools.repeat(cls), map(as_tuple, decoded)))
        columns: list[Any] = list(zip(*map(as_tuple, decoded), strict=True))
        columns = columns or [[] for _ in own]
        read = {
            name: column if convert is None else list(map(convert, column))
            for name, column, convert in zip(own, columns, mirror.converts, strict=True)
        }
        read.update(others)
        return build_rows([read[name] for name in names], len(decoded))

    return DocumentDecoder(_decoder(mirror.struct), build, _instants(member))


@dataclass(frozen=True)
class _Mirror:
    """A Struct with the fields of a class.

    Parameters:
        struct: the Struct.
        converts: of each field, from its form in the Struct; None if that is the value.
    """

    struct: Any
    converts: list[Convert | None]

    @classmethod
    def of(cls, mirrored: Any, without: Collection[str] = (), around: Any = ()) -> _Mirror:
        """Return the mirror of a NamedTuple, a dataclass or a Struct.

        Raises:
            _General: its constructor does more than to store the fields.
        """
        flavour = struct_flavour(mirrored)
        is_struct = flavour == "msgspec" and not (
            mirrored.__struct_config__.array_like
            or mirrored.__struct_config__.forbid_unknown_fields
            or _tag(mirrored) is not None
            or _is_renamed(mirrored)
        )
        is_mirrored = flavour in ("namedtuple", "dataclass") or is_struct
        if not is_mirrored or not only_stores(mirrored) or mirrored in around:
            raise _General
        declared: list[Any] = []
        converts = []
        for number, field in enumerate(struct_fields(mirrored)):
            if not field.init:
                raise _General
            if field.name in without:
                continue
            type_, convert = _wire(
                field.annotation, is_field=not around, around=(*around, mirrored)
            )
            declared.append((f"f{number}", type_, _default(mirrored, field)))
            converts.append(convert)
        fields = enumerate(struct_fields(mirrored))
        names = {f"f{number}": field.name for number, field in fields}
        # They are trees, and short-lived: the collector of cycles need not look at them.
        struct = msgspec.defstruct("Mirror", declared, rename=names, kw_only=True, gc=False)
        return cls(struct, converts)

    def maker(self, mirrored: Any) -> Convert:
        """Return the function from one Struct to an instance of the class."""
        as_tuple, converts = msgspec.structs.astuple, self.converts
        make: Convert = functools.partial(tuple.__new__, mirrored)
        if struct_flavour(mirrored) != "namedtuple":
            names = [field.name for field in struct_fields(mirrored)]
            make = lambda row: mirrored(**dict(zip(names, row, strict=True)))  # noqa: E731
        if not any(converts):
            return lambda wire: make(as_tuple(wire))
        return lambda wire: make(
            [
                part if convert is None else convert(part)
                for convert, part in zip(converts, as_tuple(wire), strict=True)
            ]
        )


def _default(cls: Any, field: Field) -> Any:
    """Return the default of a field for `defstruct`."""
    if field.required:
        return msgspec.NODEFAULT
    if field.name in (defaults := plain_defaults(cls)):
        default = defaults[field.name]
        return msgspec.field(default_factory=lambda: default)
    of_struct = struct_flavour(cls) == "msgspec"
    declared = msgspec.structs.fields(cls) if of_struct else dataclasses.fields(cls)
    found: Any = next(each for each in declared if each.name == field.name)
    return msgspec.field(default_factory=found.default_factory)


def _wire(annotation: Any, *, is_field: bool, around: Any) -> tuple[Any, Convert | None]:
    """Return the type that msgspec reads for a type, and the conversion of its values.

    Parameters:
        is_field: whether it is a field of the record, whose zone is checked later.
        around: the classes around it.

    Raises:
        _General: there is none.
    """
    members, nullable, _ = peel(annotation)
    if members == (dt.datetime,) and is_field:
        return (dt.datetime | None if nullable else dt.datetime), None
    if _is_native(annotation):
        return annotation, None
    if len(members) != 1:
        raise _General
    type_, convert = _wire_member(members[0], around)
    if not nullable:
        return type_, convert
    return _optional(type_), lambda value: None if value is None else convert(value)


def _optional(annotation: Any) -> Any:
    return typing.Optional[annotation]  # noqa: UP045  built at run time


def _wire_member(member: Any, around: Any) -> tuple[Any, Convert]:
    origin, arguments = typing.get_origin(member) or member, typing.get_args(member)
    if struct_flavour(member) is not None:
        mirror = _Mirror.of(member, around=around)
        return mirror.struct, mirror.maker(member)
    if origin in SEQUENCES and arguments and (origin is not tuple or Ellipsis in arguments):
        type_, convert = _wire(arguments[0], is_field=False, around=around)
        make = SEQUENCES[origin]
        if convert is not None:
            each = convert
            return GenericAlias(list, (type_,)), lambda values: make(map(each, values))
    if origin in MAPPINGS and arguments and _is_name(arguments[0]):
        type_, convert = _wire(arguments[1], is_field=False, around=around)
        if convert is not None:
            each = convert
            names = GenericAlias(dict, (arguments[0], type_))
            return names, lambda values: {name: each(part) for name, part in values.items()}
    raise _General
