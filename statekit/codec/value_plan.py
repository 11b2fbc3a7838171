"""The plan of one type: how its values are checked and carried in MessagePack."""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from statekit.codec.annotations import SCALARS
from statekit.codec.schema import Schema
from statekit.codec.value_check import (
    Check,
    check_each,
    check_parts,
    optional,
    scalar_checks,
    unpacking,
)

ENCODER = msgspec.msgpack.Encoder(uuid_format="canonical", decimal_format="string")
Convert = Callable[[Any], Any]
_Parts = Callable[[Any], Iterable[tuple[str, "Plan", Any]]]


def _no_parts(_value: Any) -> tuple[tuple[str, Plan, Any], ...]:
    return ()


@dataclasses.dataclass(slots=True)
class Plan:
    """How values of one type are checked, and turned into what msgspec can write.

    `wire` is the type that msgspec decodes. `accepts` and `exact` are the two checks of
    `value_check`. `to_wire` and `from_wire` are None where a value and its wire form are the same.
    `runs_code` is set where reading a value runs code of its class, which may change the value.
    """

    schema: Schema
    wire: Any
    accepts: Check
    exact: Check
    to_wire: Convert | None = None
    from_wire: Convert | None = None
    parts: _Parts = _no_parts
    runs_code: bool = False


def unchanged(value: Any) -> Any:
    return value


_AWARE = typing.Annotated[dt.datetime, msgspec.Meta(tz=True)]


def plan_scalar(schema: Schema, annotation: Any) -> Plan:
    wire = _AWARE if schema.kind == "datetime" else annotation
    return Plan(schema, wire, *scalar_checks(schema.kind, annotation))


def is_map(schema: Schema) -> bool:
    """Whether a dict is written as a map, not as pairs: MessagePack readers know its keys."""
    key = schema.items[0].kind
    return key in SCALARS.keys() - {"null"} or key == "enum"


# ------------------------------------------------------------------ containers


def plan_literal(schema: Schema, annotation: Any) -> Plan:
    allowed = frozenset((type(value), value) for _, value in schema.values)
    types = frozenset(kind for kind, _ in allowed)

    def accepts(value: Any) -> bool:
        return type(value) in types and (type(value), value) in allowed

    check = Check(accepts)
    if bool not in types:
        return Plan(schema, annotation, check, check)

    def from_wire(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"{value!r} is not one of {schema}")
        return value

    wire: Any = typing.Union[tuple(types)]  # noqa: UP007  built at run time
    return Plan(schema, wire, check, check, unchanged, from_wire)


def plan_tuple(schema: Schema, items: list[Plan]) -> Plan:
    size = len(items)
    read, has_size = unpacking(size)
    plan = Plan(
        schema,
        tuple[tuple(item.wire for item in items)],  # type: ignore[misc]
        check_parts(tuple, [item.accepts for item in items], read, has_size),
        check_parts(tuple, [item.exact for item in items], read, has_size),
        runs_code=any(item.runs_code for item in items),
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


def _check_items(cls: type, item: Check) -> Check:
    each = check_each(item)
    return Check(lambda value: type(value) is cls and each(value))


def plan_sequence(schema: Schema, item: Plan) -> Plan:
    """A list, or a tuple of any length."""
    cls: Any = list if schema.kind == "list" else tuple
    plan = Plan(
        schema,
        list[item.wire] if cls is list else tuple[item.wire, ...],  # type: ignore[name-defined]
        _check_items(cls, item.accepts),
        _check_items(cls, item.exact),
        runs_code=item.runs_code,
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
        _check_items(cls, item.accepts),
        _check_items(cls, item.exact),
        to_wire=to_wire,
        from_wire=lambda wire: cls([restore(part) for part in wire]),
        parts=parts,
        runs_code=item.runs_code,
    )


def _check_pairs(key: Check, item: Check) -> Check:
    keys, items = check_each(key), check_each(item)

    def one(value: Any) -> bool:
        return type(value) is dict and keys(value) and items(value.values())

    return Check(one)


def plan_dict(schema: Schema, key: Plan, item: Plan) -> Plan:
    """A dict: a map, or an array of pairs where MessagePack readers may not know such keys."""
    plan = Plan(
        schema,
        dict[key.wire, item.wire],  # type: ignore[name-defined]
        _check_pairs(key.accepts, item.accepts),
        _check_pairs(key.exact, item.exact),
        runs_code=key.runs_code or item.runs_code,
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
    convert, restore = inner.to_wire, inner.from_wire
    plan = Plan(
        schema,
        typing.Optional[inner.wire],  # noqa: UP045  a forward reference has no `|`
        optional(inner.accepts),
        optional(inner.exact),
        runs_code=inner.runs_code,
    )
    if convert and restore:
        plan.to_wire = lambda value: None if value is None else convert(value)
        plan.from_wire = lambda wire: None if wire is None else restore(wire)
    plan.parts = lambda value: inner.parts(value)
    return plan
