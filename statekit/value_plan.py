"""How values are checked, and carried in MessagePack: the plan of one type.

What lives here: `Plan`, and the plans of scalars, literals and containers, made from the plans of
their parts. What does not: unions (`value_union`), structs (`value_struct`), the walk through an
annotation that puts plans together (`value_planner`), and bytes (`codec`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from statekit.errors import StateTypeError
from statekit.schema import Schema
from statekit.timestamp import datetime_to_micros

__all__ = [
    "ENCODER",
    "SCALARS",
    "Convert",
    "Plan",
    "accepts_parts",
    "accepts_types",
    "is_map",
    "plan_dict",
    "plan_literal",
    "plan_optional",
    "plan_scalar",
    "plan_sequence",
    "plan_set",
    "plan_tuple",
    "unchanged",
]

ENCODER = msgspec.msgpack.Encoder(uuid_format="canonical", decimal_format="string")
Convert = Callable[[Any], Any]
_Parts = Callable[[Any], Iterable[tuple[str, "Plan", Any]]]


def _no_parts(_value: Any) -> tuple[tuple[str, Plan, Any], ...]:
    return ()


@dataclasses.dataclass(slots=True)
class Plan:
    """How values of one type are checked, and turned into what msgspec can write.

    `wire` is the type that msgspec decodes. `to_wire` and `from_wire` are None where a value and
    its wire form are the same. `types` is set where a value's exact class alone decides.
    """

    schema: Schema
    wire: Any
    accepts: Callable[[Any], bool]
    immutable: bool
    types: frozenset[type] | None = None
    to_wire: Convert | None = None
    from_wire: Convert | None = None
    parts: _Parts = _no_parts


def unchanged(value: Any) -> Any:
    return value


def accepts_types(types: frozenset[type]) -> Callable[[Any], bool]:
    if len(types) == 1:
        (only,) = types
        return lambda value: type(value) is only
    return lambda value: type(value) in types


def _accepts_datetime(value: Any) -> bool:
    if type(value) is not dt.datetime:
        return False
    if value.tzinfo is not dt.UTC and value.utcoffset() is None:  # UTC need not be asked
        return False
    if 1 < value.year < 9999:
        return True
    try:
        datetime_to_micros(value)
    except StateTypeError:
        return False
    return True


_SCALAR_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bytes": (bytes,),
    "date": (dt.date,),
    "timedelta": (dt.timedelta,),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
}
_AWARE = typing.Annotated[dt.datetime, msgspec.Meta(tz=True)]
SCALARS = frozenset([*_SCALAR_TYPES, "datetime", "enum"])
"""The kinds of types that `plan_scalar` plans."""


def plan_scalar(schema: Schema, annotation: Any) -> Plan:
    if schema.kind == "datetime":
        return Plan(schema, _AWARE, _accepts_datetime, True)
    types = frozenset(_SCALAR_TYPES.get(schema.kind, (annotation,)))
    return Plan(schema, annotation, accepts_types(types), True, types)


def is_map(schema: Schema) -> bool:
    """Whether a dict is written as a map, not as pairs: MessagePack readers know its keys."""
    key = schema.items[0].kind
    return key in SCALARS and key != "null"


def accepts_parts(cls: type, parts: list[tuple[str, Plan]]) -> Callable[[Any], bool]:
    """A check of a class and of parts of its instances, compiled as `dataclasses` does it.

    Args:
        cls: the exact class of a value.
        parts: how each part is reached from `value`, as source text, and its plan.
    """
    names: dict[str, Any] = {"cls": cls}
    terms = ["type(value) is cls"]
    if cls is tuple:
        terms.append(f"len(value) == {len(parts)}")
    for at, (part, plan) in enumerate(parts):
        if plan.types is None:
            names[f"check{at}"] = plan.accepts
            terms.append(f"check{at}({part})")
        elif len(plan.types) == 1:
            (names[f"type{at}"],) = plan.types
            terms.append(f"type({part}) is type{at}")
        else:
            names[f"types{at}"] = plan.types
            terms.append(f"type({part}) in types{at}")
    body = f"try:\n  return {' and '.join(terms)}\n except AttributeError:\n  return False"
    exec(f"def accepts(value):\n {body}", names)
    accepts: Callable[[Any], bool] = names["accepts"]
    return accepts


def _accepts_each(item: Plan) -> Callable[[Iterable[Any]], bool]:
    """A check of any number of values that have one plan."""
    if item.types is not None:
        types = item.types
        return lambda values: types.issuperset(map(type, values))
    check = item.accepts
    return lambda values: all(map(check, values))


# ------------------------------------------------------------------ containers


def plan_literal(schema: Schema, annotation: Any) -> Plan:
    allowed = frozenset((type(value), value) for _, value in schema.values)
    types = frozenset(kind for kind, _ in allowed)

    def accepts(value: Any) -> bool:
        return type(value) in types and (type(value), value) in allowed

    if bool not in types:
        return Plan(schema, annotation, accepts, True)

    def from_wire(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"{value!r} is not one of {schema}")
        return value

    wire: Any = typing.Union[tuple(types)]  # noqa: UP007  built at run time
    return Plan(schema, wire, accepts, True, None, unchanged, from_wire)


def plan_tuple(schema: Schema, items: list[Plan]) -> Plan:
    size = len(items)
    plan = Plan(
        schema,
        tuple[tuple(item.wire for item in items)],  # type: ignore[misc]
        accepts_parts(tuple, [(f"value[{at}]", item) for at, item in enumerate(items)]),
        all(item.immutable for item in items),
    )
    if any(item.to_wire for item in items):
        to, back = ([_converter(item, name) for item in items] for name in ("to_wire", "from_wire"))
        plan.to_wire = lambda value: tuple([f(v) for f, v in zip(to, value, strict=True)])
        plan.from_wire = lambda wire: tuple([f(v) for f, v in zip(back, wire, strict=True)])

    def parts(value: Any) -> Iterator[tuple[str, Plan, Any]]:
        if type(value) is tuple and len(value) == size:
            for at, (item, part) in enumerate(zip(items, value, strict=True)):
                yield f"[{at}]", item, part

    plan.parts = parts
    return plan


def _converter(plan: Plan, name: str) -> Convert:
    convert: Convert | None = getattr(plan, name)
    return convert or unchanged


def plan_sequence(schema: Schema, item: Plan) -> Plan:
    """A list, or a tuple of any length."""
    cls: Any = list if schema.kind == "list" else tuple
    each = _accepts_each(item)
    plan = Plan(
        schema,
        list[item.wire] if cls is list else tuple[item.wire, ...],  # type: ignore[name-defined]
        lambda value: type(value) is cls and each(value),
        cls is tuple and item.immutable,
    )
    if item.to_wire and item.from_wire:
        to_wire, from_wire = item.to_wire, item.from_wire
        plan.to_wire = lambda value: [to_wire(part) for part in value]
        plan.from_wire = lambda wire: cls([from_wire(part) for part in wire])

    def parts(value: Any) -> Iterator[tuple[str, Plan, Any]]:
        if type(value) is cls:
            for at, part in enumerate(value):
                yield f"[{at}]", item, part

    plan.parts = parts
    return plan


def plan_set(schema: Schema, item: Plan) -> Plan:
    """A set or frozenset: an array sorted by encoded element, whatever the order of hashing."""
    cls: Any = set if schema.kind == "set" else frozenset
    each = _accepts_each(item)
    convert = _converter(item, "to_wire")
    restore = _converter(item, "from_wire")

    def to_wire(value: Any) -> list[msgspec.Raw]:
        encoded = sorted([ENCODER.encode(convert(part)) for part in value])
        return [msgspec.Raw(part) for part in encoded]

    def parts(value: Any) -> Iterator[tuple[str, Plan, Any]]:
        if type(value) is cls:
            for part in value:
                yield f"{{{part!r:.60}}}", item, part

    return Plan(
        schema,
        list[item.wire],  # type: ignore[name-defined]
        lambda value: type(value) is cls and each(value),
        cls is frozenset and item.immutable,
        to_wire=to_wire,
        from_wire=lambda wire: cls([restore(part) for part in wire]),
        parts=parts,
    )


def plan_dict(schema: Schema, key: Plan, item: Plan) -> Plan:
    """A dict: a map, or an array of pairs where MessagePack readers may not know such keys."""
    each_key, each_item = _accepts_each(key), _accepts_each(item)
    plan = Plan(
        schema,
        dict[key.wire, item.wire],  # type: ignore[name-defined]
        lambda value: type(value) is dict and each_key(value) and each_item(value.values()),
        False,
    )
    key_to, key_from = _converter(key, "to_wire"), _converter(key, "from_wire")
    to, back = _converter(item, "to_wire"), _converter(item, "from_wire")
    if not is_map(schema):
        plan.wire = list[tuple[key.wire, item.wire]]  # type: ignore[name-defined]
        plan.to_wire = lambda value: [(key_to(k), to(v)) for k, v in value.items()]
        plan.from_wire = lambda wire: {key_from(k): back(v) for k, v in wire}
    elif item.to_wire:
        plan.to_wire = lambda value: {k: to(v) for k, v in value.items()}
        plan.from_wire = lambda wire: {k: back(v) for k, v in wire.items()}

    def parts(value: Any) -> Iterator[tuple[str, Plan, Any]]:
        if type(value) is dict:
            for k, v in value.items():
                yield f".keys[{k!r:.60}]", key, k
                yield f"[{k!r:.60}]", item, v

    plan.parts = parts
    return plan


def plan_optional(schema: Schema, inner: Plan) -> Plan:
    check, convert, restore = inner.accepts, inner.to_wire, inner.from_wire
    plan = Plan(
        schema,
        typing.Optional[inner.wire],  # noqa: UP045  a forward reference has no `|`
        lambda value: value is None or check(value),
        inner.immutable,
    )
    if inner.types is not None:
        plan.types = inner.types | {type(None)}
        plan.accepts = accepts_types(plan.types)
    if convert and restore:
        plan.to_wire = lambda value: None if value is None else convert(value)
        plan.from_wire = lambda wire: None if wire is None else restore(wire)
    plan.parts = lambda value: inner.parts(value)
    return plan
