"""Value encoding: values of a declared type as bytes.

The bytes are specified in docs/reference/format.md; every example there is executed.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import struct
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import repeat
from types import GenericAlias
from typing import Any, ClassVar, Generic, TypeVar

import cloudpickle
import msgspec

from statekit.codec.annotations import is_immutable, unwrap
from statekit.codec.kept_fields import why_beside
from statekit.codec.schema import Schema, schema_of
from statekit.codec.value_check import INT_MAX, INT_MIN, NESTING_MAX, exceeds_nesting, is_text
from statekit.codec.value_plan import ENCODER, Convert, ValuePlan, identity
from statekit.codec.value_struct import Planner
from statekit.declared_call import declarable
from statekit.errors import CALL_FAILURES, CorruptCheckpointError, StateTypeError
from statekit.foreign import foreign_hint
from statekit.shown import shown, shown_text, type_name

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class ValueCodec(Generic[T]):
    """The encoding of values of one type. Each attribute is a plain callable, to be bound to a
    local name.

    Parameters:
        name: how the bytes are written: "msgpack" or "pickle".
        schema: the type as data.
        immutable: values cannot change, so a decoded value may be returned several times.
        accepts: whether the declared type can hold a value and its bytes can be read back.
        exact: whether a value is accepted and reading its bytes gives the very same value. An int
            in a float, or a datetime in another zone than UTC, is accepted and not exact.
        encode: returns the bytes; raises StateTypeError if the value cannot be encoded.
        decode: returns the value; raises CorruptCheckpointError for invalid bytes.
        reason: why a value is not accepted, with the path into it.
        decode_all: returns several values in less time; None if that is not possible.
        exact_all: whether all of several values are exact; None if that takes as long.
    """

    name: str
    schema: Schema
    immutable: bool
    accepts: Callable[[Any], bool]
    exact: Callable[[Any], bool]
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    reason: Callable[[Any], str]
    decode_all: Callable[[Sequence[bytes]], list[T]] | None = None
    exact_all: Callable[[Collection[Any]], bool] | None = None


def value_codec(annotation: Any) -> ValueCodec[Any]:
    """Return the MessagePack codec for values of a type.

    Raises:
        StateTypeError: a part of the type is not supported; the message says what to use.

    >>> codec = value_codec(list[float])
    >>> codec.accepts([1.5, "x"])
    False
    >>> codec.reason([1.5, "x"])
    "[1]: expected float, got str 'x'"
    >>> codec.decode(codec.encode([1.5]))
    [1.5]
    """
    schema = schema_of(annotation)
    plan = Planner().plan_root(schema)
    try:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(plan.wire)
    except TypeError as error:
        raise StateTypeError(
            f"{schema.brief} cannot be stored ({shown_text(error)}): use a simpler type"
        ) from error
    encode = _checked_encode(schema.brief, plan.to_wire)
    decode = checked_decode(schema.brief, decoder.decode, plan.from_wire)
    return ValueCodec(
        "msgpack",
        schema,
        is_immutable(annotation),
        plan.accepts.one,
        plan.exact.one,
        _verified(schema.brief, encode, decode) if plan.runs_code else encode,
        decode,
        lambda value: _why_refused(plan, value),
        _decode_all(plan, decode),
        plan.exact.each,
    )


_ENCODE_ERRORS = (OverflowError, ValueError, TypeError, AttributeError, RecursionError)


def _checked_encode(name: str, to_wire: Convert | None) -> Callable[[Any], bytes]:
    write = ENCODER.encode

    def encode(value: Any) -> bytes:
        try:
            return write(value if to_wire is None else to_wire(value))
        except _ENCODE_ERRORS as error:
            raise StateTypeError(
                f"{shown(value, 100)} cannot be stored as {name} ({shown_text(error)}): ints must "
                "fit 64 bits,"
                " text must be valid UTF-8 and nesting must end"
            ) from error

    return encode


def _verified(
    name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> Callable[[Any], bytes]:
    """Return an `encode` function that refuses values which cannot be read back.

    Reading calls `__post_init__` or `model_post_init`, which may fail.
    """

    def encode_verified(value: Any) -> bytes:
        data = encode(value)
        try:
            decode(data)
        except CorruptCheckpointError as error:
            raise StateTypeError(
                f"{shown(value, 100)} cannot be stored as {name} (it cannot be read back: "
                f"{shown_text(error.__cause__ or error)}): `__post_init__` and `model_post_init` "
                "are called when a value is read, let them accept the values of all fields"
            ) from error
        return data

    return encode_verified


_LIST_32 = struct.Struct(">BI")
"""The first byte of a MessagePack list, 0xdd. The number of elements follows."""


def _decode_all(
    plan: ValuePlan, decode: Callable[[bytes], Any]
) -> Callable[[Sequence[bytes]], list[Any]]:
    """Return a function that decodes several values as a single list."""
    build_all = _build_all(plan)

    @cache  # few codecs decode lists, and every worker makes codecs
    def decoder() -> msgspec.msgpack.Decoder[list[Any]]:
        return msgspec.msgpack.Decoder(GenericAlias(list, (plan.wire,)))

    def decode_all(rows: Sequence[bytes]) -> list[Any]:
        try:
            return build_all(decoder().decode(_LIST_32.pack(0xDD, len(rows)) + b"".join(rows)))
        except CALL_FAILURES:  # one of them is wrong: this says which
            return list(map(decode, rows))

    return decode_all


def _build_all(plan: ValuePlan) -> Callable[[list[Any]], list[Any]]:
    """Return a function that builds several values from their wire forms."""
    from_wire, cls = plan.from_wire, plan.schema.annotation
    if from_wire is None:
        return identity
    if plan.all_from_wire is not None:
        many = GenericAlias(list, (cls,))
        # In half the time of one call for each.
        return lambda found: msgspec.convert(list(map(msgspec.structs.astuple, found)), many)
    return lambda found: list(map(from_wire, found))


def checked_decode(
    name: str, read: Callable[[bytes], Any], from_wire: Convert | None
) -> Callable[[bytes], Any]:
    """Return a decoder that calls `read`, then `from_wire` if given. It converts their errors to
    CorruptCheckpointError.
    """

    def decode(data: bytes) -> Any:
        try:
            return read(data) if from_wire is None else from_wire(read(data))
        except CALL_FAILURES as error:
            raise CorruptCheckpointError(
                f"{len(data)} bytes {bytes(data[:32]).hex()!r} are not a value of type {name} "
                f"({shown_text(error)}): check that the declared type can read the stored rows, "
                "else restore "
                "an earlier epoch"
            ) from error

    return decode


def _why_refused(plan: ValuePlan, value: Any) -> str:
    """Return the reason why a value is refused, with the path into the value."""
    if exceeds_nesting(plan.accepts, value):
        return f"it is nested more than {NESTING_MAX} levels deep: keep the parts as rows of a map"
    return _reason(plan, value, "") or f"{shown(value, 100)} is accepted"


def _reason(plan: ValuePlan, value: Any, path: str) -> str | None:
    if plan.accepts.one(value):
        return None
    for suffix, part, inner in _parts(plan, value):
        if reason := _reason(part, inner, path + suffix):
            return reason
    problem = f"expected {plan.schema.brief}, got {type_name(value)} {shown(value, 100)}"
    if type(value) is dt.datetime and _unoptional(plan.schema).kind == "datetime":
        problem = (
            f"expected a datetime with a timezone within the years 1 to 9999, got {shown(value)}"
        )
    elif type(value) is int and not INT_MIN <= value <= INT_MAX:
        problem += ": an int must fit 64 bits"
    elif type(value) is str and not is_text(value):
        problem += ": text must be valid UTF-8, without lone surrogates"
    elif wrong := _wrong_fields(_unoptional(plan.schema), value):
        problem += f": {wrong}"
    elif hint := foreign_hint(value):
        problem += hint
    elif _unoptional(plan.schema).name in [base.__name__ for base in type(value).__mro__[1:]]:
        problem += ": it must be exactly that class, a subclass would lose fields"
    elif beside := _why_beside(_unoptional(plan.schema), value):
        problem = f"{shown(value, 100)}: {beside}"
    return f"{path}: {problem}" if path else problem


def _why_beside(schema: Schema, value: Any) -> str:
    is_record = schema.kind in ("struct", "ref") and type(value) is schema.annotation
    return why_beside(schema.annotation, value) if is_record else ""


def _wrong_fields(schema: Schema, value: Any) -> str:
    """Return the fields of a TypedDict that are missing in a dict, and the keys of the dict that
    are no fields.
    """
    if schema.flavour != "typeddict" or type(value) is not dict:
        return ""
    names = {field.name for field in schema.fields}
    if undeclared := [shown(key, 60) for key in value if key not in names]:
        return f"it has no field {', '.join(undeclared)}"
    absent = [field.name for field in schema.fields if field.required and field.name not in value]
    return f"the value lacks {', '.join(map(repr, absent))}" if absent else ""


def _unoptional(schema: Schema) -> Schema:
    return schema.items[0] if schema.kind == "optional" else schema


_CLASSES = {
    "list": list,
    "tuple": tuple,
    "variadic": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
}


def _parts(plan: ValuePlan, value: Any) -> Iterator[tuple[str, ValuePlan, Any]]:
    """Yield the path, the plan and the value of each part of a value with the right class."""
    schema, items = plan.schema, plan.items
    if schema.kind in ("optional", "ref"):
        yield from _parts(items[0], value)
    elif schema.flavour == "typeddict" and type(value) is dict:
        for field, item in zip(schema.fields, items, strict=True):
            if field.name in value:
                yield f"[{field.name!r}]", item, value[field.name]
    elif type(value) is not _CLASSES.get(schema.kind, schema.annotation):
        return
    elif schema.kind == "struct":
        for field, item in zip(schema.fields, items, strict=True):
            yield f".{field.name}", item, getattr(value, field.name, None)
    elif schema.kind == "dict":
        for key, part in value.items():
            yield f".keys[{shown(key, 60)}]", items[0], key
            yield f"[{shown(key, 60)}]", items[1], part
    elif schema.kind in ("set", "frozenset"):
        for part in value:
            yield f"{{{part!r:.60}}}", items[0], part
    elif schema.kind != "tuple" or len(value) == len(items):
        plans = items if schema.kind == "tuple" else repeat(items[0])
        for index, (item, part) in enumerate(zip(plans, value, strict=False)):
            yield f"[{index}]", item, part


@declarable("PickleCodec")
@dataclasses.dataclass(frozen=True)
class PickleCodec:
    """Marker of a state whose values are pickled, because no other codec supports them.

    Pickled rows run code when they are read. The program that declares the state reads them. A
    reader that has only the checkpoint must opt in.

    >>> annotation = typing.Annotated[complex, PickleCodec()]
    >>> codec = PickleCodec().codec(complex)
    >>> codec.name, codec.decode(codec.encode(1j))
    ('pickle', 1j)
    """

    name: ClassVar[str] = "pickle"

    def codec(self, annotation: Any) -> ValueCodec[Any]:
        """Return the codec that pickles values of a type. It checks a class only, and stores only
        its name.

        Parameters:
            annotation: any type. Where it is not a class, every value is accepted.
        """
        inner = unwrap(annotation)
        cls = typing.get_origin(inner) or inner
        expected: type = cls if isinstance(cls, type) else object
        name = inner.__qualname__ if isinstance(inner, type) else str(inner)
        return ValueCodec(
            self.name,
            Schema("pickle", name=name),
            False,
            lambda value: isinstance(value, expected),
            lambda value: isinstance(value, expected),
            _pickle_encode,
            checked_decode(name, pickle.loads, None),
            lambda value: f"expected {name}, got {type_name(value)} {shown(value, 100)}",
        )


def _pickle_encode(value: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise StateTypeError(
            f"{shown(value, 100)} cannot be pickled ({shown_text(error)}): keep plain data in state"
        ) from error
