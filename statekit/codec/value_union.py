"""Unions in MessagePack: the encoding of the member that a value belongs to."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from statekit.codec.annotations import SCALARS
from statekit.codec.schema import Schema
from statekit.codec.value_check import any_of
from statekit.codec.value_plan import ENCODER, Convert, ValuePlan, identity, is_map, plan_of
from statekit.shown import shown

UNION_EXT = 1
"""MessagePack extension type of a tagged union member."""

_FAMILIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SCALARS, ("text",)),
    "bool": ("bool",),
    "int": ("int",),
    "float": ("float", "int"),
    **dict.fromkeys(("list", "tuple", "variadic", "set", "frozenset"), ("array",)),
    **dict.fromkeys(("struct", "ref", "dict"), ("map",)),
}
"""The families of MessagePack values in which a kind of type is written."""
_TYPE_FAMILIES: dict[type, str] = {
    **{cls: _FAMILIES[kind][0] for kind, cls in SCALARS.items()},
    **dict.fromkeys((list, tuple, set, frozenset), "array"),
}


def _families(schema: Schema) -> frozenset[str]:
    """Return the families of MessagePack values in which a union member is written."""
    if schema.kind in ("enum", "literal"):
        kinds = {type(value) for _, value in schema.values if value is not None}
        return frozenset(_TYPE_FAMILIES[kind] for kind in kinds)
    if schema.kind == "dict" and not is_map(schema):
        return frozenset({"array"})
    return frozenset(_FAMILIES[schema.kind])


def tagged_members(members: Iterable[Schema]) -> frozenset[str]:
    """Return the names of union members that need a tag: all except the first one of each
    family.
    """
    first_kinds: dict[str, str] = {}
    tagged = set()
    for member in members:
        numbers = ("int", "float") if member.kind in ("int", "float") else ()
        if any(
            first_kinds.get(family, "float" if numbers else None) not in (*numbers, None)
            for family in _families(member)
        ):
            tagged.add(member.brief)
        else:
            for family in _families(member):
                first_kinds.setdefault(family, member.kind)
    return frozenset(tagged)


def plan_union(
    schema: Schema, plans: Sequence[ValuePlan], tagged_struct: Callable[[Any], Any]
) -> ValuePlan:
    tagged = tagged_members(schema.items)
    plain = [plan for plan in plans if plan.schema.brief not in tagged]
    wires = [plan.wire for plan in plain] + ([msgspec.msgpack.Ext] if tagged else [])
    # A float member also accepts an int: try it after the members for ints.
    ordered = sorted(plans, key=lambda plan: plan.schema.kind == "float")
    wire: Any = typing.Union[tuple(wires)]  # noqa: UP007  built at run time
    plan = plan_of(schema, wire, ordered, any_of)
    if tagged or any(member.to_wire for member in plans):
        plan.to_wire = _union_to_wire(schema, ordered, tagged)
        names = {plan.schema.brief: plan.wire for plan in plans if plan.schema.brief in tagged}
        structs = {name: tagged_struct(wire) for name, wire in names.items()}
        plan.from_wire = _union_from_wire(schema, plans, structs)
    return plan


def tagged_value(name: str, wire: Any) -> msgspec.msgpack.Ext:
    """Return the wire form of a value of a tagged member, which contains the member's name."""
    return msgspec.msgpack.Ext(UNION_EXT, ENCODER.encode((name, wire)))


def _union_to_wire(schema: Schema, ordered: list[ValuePlan], tagged: frozenset[str]) -> Convert:
    def write(member: ValuePlan, value: Any) -> Any:
        wire = member.to_wire(value) if member.to_wire else value
        name = member.schema.brief
        if name not in tagged:
            return wire
        return tagged_value(name, wire)

    # Prefer a member that reads back the very same value to one that converts it.
    candidates = [(member.exact.one, member) for member in ordered]
    candidates += [(member.accepts.one, member) for member in ordered]

    def to_wire(value: Any) -> Any:
        for fits, member in candidates:
            if fits(value):
                return write(member, value)
        raise TypeError(f"{shown(value, 100)} is none of {schema.brief}")

    return to_wire


def _union_from_wire(
    schema: Schema, plans: Sequence[ValuePlan], structs: Mapping[str, Any]
) -> Convert:
    named = {plan.schema.brief: plan for plan in plans}
    decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
    peek = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
    restores = {
        family: plan.from_wire
        for plan in plans
        if plan.from_wire and plan.schema.brief not in structs
        for family in _families(plan.schema)
    }

    def from_wire(wire: Any) -> Any:
        if wire is None:  # of a Literal that contains None
            return None
        if type(wire) is not msgspec.msgpack.Ext:
            return restores.get(_family(wire), identity)(wire)
        if wire.code != UNION_EXT:
            raise ValueError(f"MessagePack extension {wire.code} is not a member of a union")
        name = peek.decode(wire.data)[0]
        if name not in structs:
            raise ValueError(f"{name!r} is not a tagged member of {schema.brief}")
        if name not in decoders:
            decoders[name] = msgspec.msgpack.Decoder(structs[name])
        restore = named[name].from_wire or identity
        return restore(decoders[name].decode(wire.data).value)

    return from_wire


def _family(wire: Any) -> str:
    """Return the family of a decoded value."""
    family = _TYPE_FAMILIES.get(type(wire))
    if family is None:
        family = _family(wire.value) if isinstance(wire, enum.Enum) else "map"
    return family


def split_member(schema: Schema, wire: Any) -> tuple[Schema, Any]:
    """Return the union member of a value, and the value without its tag."""
    if isinstance(wire, msgspec.msgpack.Ext):
        name, wire = msgspec.msgpack.decode(wire.data, type=tuple[str, Any])
        return next(item for item in schema.items if item.brief == name), wire
    if wire is None:
        return next(item for item in schema.items if ("None", None) in item.values), wire
    tagged = tagged_members(schema.items)
    family = _family(wire)
    plain = [i for i in schema.items if i.brief not in tagged and family in _families(i)]
    exact = [item for item in plain if item.kind == type(wire).__name__]
    return (exact or plain)[0], wire
