"""Compile an annotation to the plan of its values."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from statekit.codec.annotations import SCALARS, struct_fields, union_members, unwrap
from statekit.codec.schema import Schema, schema_of
from statekit.codec.value_check import Check
from statekit.codec.value_plan import (
    Plan,
    plan_dict,
    plan_literal,
    plan_optional,
    plan_scalar,
    plan_sequence,
    plan_set,
    plan_tuple,
    unchanged,
)
from statekit.codec.value_struct import (
    is_native,
    plan_inside,
    plan_struct_checks,
    struct_from_wire,
    struct_to_wire,
    wire_struct,
)
from statekit.codec.value_union import plan_union


def plan_values(annotation: Any) -> Plan:
    """The plan of the values of a type.

    Raises:
        StateTypeError: a part of the type is not supported.

    >>> plan = plan_values(set[int])
    >>> plan.accepts.one({1}), plan.wire
    (True, list[int])
    """
    return _Planner().whole(annotation)


class _Planner:
    """Makes the plan of one annotation; remembers which structs it is inside of.

    Args:
        open: the plans of those structs, and the level at which each began.
        level: how many containers and structs the type that is being planned is inside of.
        made: the wire structs made so far. They see each other by the names in `wires`, which is
            how a struct that contains itself is written down.
    """

    def __init__(self) -> None:
        self.open: dict[type, tuple[Plan, int]] = {}
        self.level = 0
        self.made: list[Any] = []
        self.wires: dict[str, type] = {}

    def whole(self, annotation: Any) -> Plan:
        plan = self.plan(annotation)
        for struct_ in self.made:
            for name, wire in self.wires.items():
                setattr(struct_, name, wire)
        return plan

    def plan(self, annotation: Any) -> Plan:
        self.level += 1
        try:
            return self.plan_at_level(annotation)
        finally:
            self.level -= 1

    def plan_at_level(self, annotation: Any) -> Plan:
        annotation = unwrap(annotation)
        schema = schema_of(annotation)
        args = typing.get_args(annotation)
        match schema.kind:
            case kind if kind in SCALARS or kind == "enum":
                return plan_scalar(schema, annotation)
            case "literal":
                return plan_literal(schema, annotation)
            case "tuple":
                return plan_tuple(schema, [self.plan(arg) for arg in args])
            case "list" | "variadic":
                return plan_sequence(schema, self.plan(args[0]))
            case "set" | "frozenset":
                return plan_set(schema, self.plan(args[0]))
            case "dict":
                return plan_dict(schema, self.plan(args[0]), self.plan(args[1]))
            case "optional" | "union":
                return self.plan_union(schema, union_members(annotation) or ())
        return self.plan_struct(schema, annotation)

    def plan_union(self, schema: Schema, members: tuple[Any, ...]) -> Plan:
        some = [member for member in members if member is not type(None)]
        optional = schema.kind == "optional"
        if len(some) == 1:
            inner = self.plan_at_level(some[0])  # None beside a type is no level
        else:
            plans = [self.plan(member) for member in some]
            inner = plan_union(schema.items[0] if optional else schema, plans, self.hold)
        return plan_optional(schema, inner) if optional else inner

    def hold(self, wire: Any) -> Any:
        """A struct that is written as the array [name, value], with values of the wire type."""
        held = msgspec.defstruct("Member", [("name", str), ("value", wire)], array_like=True)
        self.made.append(held)
        return held

    def plan_struct(self, schema: Schema, cls: type) -> Plan:
        if cls in self.open:
            outer, level = self.open[cls]
            return plan_inside(schema, cls, outer, self.level - level)
        native = is_native(cls, frozenset())
        name = f"wire_{len(self.made)}_{len(self.open)}"
        pending = Check(bool)
        plan = Plan(schema, cls if native else typing.ForwardRef(name), pending, pending)
        if not native:
            plan.to_wire = plan.from_wire = unchanged
        self.open[cls] = plan, self.level
        specs = struct_fields(cls)
        fields = [self.plan(spec.annotation) for spec in specs]
        plan_struct_checks(plan, cls, specs, fields)
        if not native:
            self.wires[name] = plan.wire = wire_struct(cls, specs, fields)
            self.made.append(plan.wire)
            plan.to_wire = struct_to_wire(cls, plan.wire, specs, fields)
            plan.from_wire = struct_from_wire(cls, specs, fields)
        del self.open[cls]
        return plan
