"""Structs in MessagePack: dataclasses, NamedTuples, TypedDicts, msgspec and pydantic classes."""

from __future__ import annotations

import functools
import itertools
import keyword
import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from statekit.codec.annotations import struct_fields, struct_flavour, with_metadata
from statekit.codec.kept_fields import (
    only_fields,
    only_stores,
    quick_condition,
    restorer,
    runs_code,
)
from statekit.codec.schema import Schema, StructField
from statekit.codec.value_check import Check, check_parts, deeper, unpacking
from statekit.codec.value_plan import PLANS, Convert, ValuePlan, identity
from statekit.codec.value_union import plan_union


class Planner:
    """Builds the plan of a type. Remembers the enclosing structs.

    Attributes:
        open: the plans of the enclosing structs, and the level at which each began.
        converted: the structs that msgspec alone does not write and read as
            docs/reference/format.md specifies.
        wire_structs: all wire structs. They refer to each other by the names in `wires`, so a
            struct can contain itself.
    """

    def __init__(self) -> None:
        self.open: dict[type, tuple[ValuePlan, int]] = {}
        self.converted: set[type] = set()
        self.wire_structs: list[Any] = []
        self.wires: dict[str, type] = {}

    def plan_root(self, schema: Schema) -> ValuePlan:
        plan = self.plan(schema, 0)
        for wire_struct_ in self.wire_structs:
            for name, wire in self.wires.items():
                setattr(wire_struct_, name, wire)
        return plan

    def plan(self, schema: Schema, level: int) -> ValuePlan:
        """Return the plan of a part, at this depth of containers and structs."""
        if schema.kind == "struct":
            return self.plan_struct(schema, level)
        if schema.kind == "ref":
            outer, outer_level = self.open[schema.annotation]
            return _plan_inside(schema, outer, level - outer_level)
        item_level = level if schema.kind == "optional" else level + 1
        items = [self.plan(item, item_level) for item in schema.items]
        if schema.kind == "union":
            return plan_union(schema, items, self.tagged_struct)
        return PLANS[schema.kind](schema, items)

    def tagged_struct(self, wire: Any) -> Any:
        """Return the plan of a struct in a tagged union: it is written as the array [name,
        value].
        """
        struct = msgspec.defstruct(
            "Member", [("name", str), ("value", wire)], array_like=True, gc=False
        )
        self.wire_structs.append(struct)
        return struct

    def plan_struct(self, schema: Schema, level: int) -> ValuePlan:
        cls, pending = schema.annotation, Check(bool)
        if cls not in self.converted and _is_plain(cls):
            plan = self.plan_fields(ValuePlan(schema, cls, pending, pending), level)
            if not any(field.to_wire for field in plan.items):
                return plan
        self.converted.add(cls)
        name = f"wire_{len(self.wire_structs)}_{len(self.open)}"
        wire: Any = typing.ForwardRef(name)
        plan = ValuePlan(schema, wire, pending, pending, identity, identity)
        self.plan_fields(plan, level)
        self.wires[name] = plan.wire = _wire_struct(plan)
        self.wire_structs.append(plan.wire)
        plan.to_wire, plan.from_wire = _struct_to_wire(plan), _struct_from_wire(plan)
        if _is_wire_tuple(plan):
            plan.all_to_wire = functools.partial(itertools.starmap, plan.wire)
            build = functools.partial(tuple.__new__, cls)
            plan.all_from_wire = lambda wires: map(build, map(msgspec.structs.astuple, wires))
        return plan

    def plan_fields(self, plan: ValuePlan, level: int) -> ValuePlan:
        cls = plan.schema.annotation
        self.open[cls] = plan, level
        plan.items = [self.plan(field.schema, level + 1) for field in plan.schema.fields]
        _complete_plan(plan)
        del self.open[cls]
        return plan


def _is_plain(cls: Any) -> bool:
    """Return whether msgspec can handle the class directly: it writes all fields under their own
    names, refuses no valid values, and reads them without code of the class.
    """
    if runs_code(cls) or any(_is_constrained(field.annotation) for field in struct_fields(cls)):
        return False
    flavour = struct_flavour(cls)
    if flavour != "msgspec":
        return flavour in ("dataclass", "typeddict")
    config = cls.__struct_config__
    special = (config.array_like, config.omit_defaults, config.forbid_unknown_fields, config.tag)
    return not any(special) and cls.__struct_fields__ == cls.__struct_encode_fields__


def _is_constrained(annotation: Any) -> bool:
    """Return whether msgspec has constraints on values in addition to their type
    (`msgspec.Meta`).
    """
    inner, metadata = with_metadata(annotation)
    return any(isinstance(note, msgspec.Meta) for note in metadata) or any(
        _is_constrained(arg) for arg in typing.get_args(inner)
    )


def _plan_inside(schema: Schema, outer: ValuePlan, levels: int) -> ValuePlan:
    """Return the plan of a struct nested in itself. It looks up the outer plan on use.

    Parameters:
        outer: the plan of the struct, which is not complete yet.
        levels: how many levels deeper it is than the enclosing struct of its type.
    """
    plan = ValuePlan(
        schema,
        outer.wire,
        deeper(lambda: outer.accepts, levels),
        deeper(lambda: outer.exact, levels),
        items=[outer],
    )
    if outer.to_wire:
        plan.to_wire = lambda value: (outer.to_wire or identity)(value)
        plan.from_wire = lambda wire: (outer.from_wire or identity)(wire)
    return plan


def _complete_plan(plan: ValuePlan) -> None:
    """Complete the checks and `runs_code` of a struct's plan, given its complete `items`."""
    schema, fields, cls = plan.schema, plan.items, plan.schema.annotation
    names = [field.name for field in schema.fields]
    plan.runs_code = runs_code(cls) or any(field.runs_code for field in fields)
    accepts, exact = [field.accepts for field in fields], [field.exact for field in fields]
    if schema.flavour == "typeddict":
        plan.accepts = _check_typeddict(schema, accepts)
        plan.exact = _in_order(_check_typeddict(schema, exact), names)
        return
    reads = (f"part{index} = {_attribute(name)}" for index, name in enumerate(names))
    read, condition = "; ".join(reads) or "pass", "True"
    if schema.flavour == "namedtuple":
        read, condition = unpacking(len(names))
    is_kept, quickly = only_fields(cls), quick_condition(cls)
    kept = "True" if is_kept is None else f"({quickly} or is_kept(value))"
    plan.accepts = check_parts(cls, accepts, read, f"{condition} and {kept}", is_kept)
    read_alike = "True" if is_kept is None else quickly
    if runs_code(cls):
        read_alike = "False"
    elif schema.flavour == "pydantic":
        read_alike += f" and len(value.__pydantic_fields_set__) == {len(names)}"
    plan.exact = check_parts(cls, exact, read, f"{condition} and {read_alike}")


def _attribute(name: str) -> str:
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"value.{name}" if plain else f"getattr(value, {name!r})"


def _check_typeddict(schema: Schema, parts: Sequence[Check]) -> Check:
    required = frozenset(field.name for field in schema.fields if field.required)
    checks = {field.name: part.one for field, part in zip(schema.fields, parts, strict=True)}

    def one(value: Any) -> bool:
        return (
            type(value) is dict
            and required <= value.keys() <= checks.keys()
            and all(checks[name](item) for name, item in value.items())
        )

    return Check(one)


def _in_order(check: Check, names: list[str]) -> Check:
    """Return the same check, limited to dicts with keys in declared order."""
    one = check.one
    return Check(lambda value: one(value) and list(value) == [n for n in names if n in value])


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        get_one = operator.attrgetter(names[0])
        return lambda value: (get_one(value),)
    return operator.attrgetter(*names) if names else lambda value: ()


def _columns(fields: Sequence[StructField]) -> list[int]:
    """Return the order of fields in a wire struct: required fields first."""
    return sorted(range(len(fields)), key=lambda index: not fields[index].required)


def _wire_struct(plan: ValuePlan) -> type:
    """Return a msgspec Struct with the fields of a struct in their wire form."""
    fields = plan.schema.fields
    columns: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (f"f{index}", plan.items[index].wire)
        if fields[index].required
        else (f"f{index}", plan.items[index].wire, msgspec.UNSET)
        for index in _columns(fields)
    ]
    names = {f"f{index}": field.name for index, field in enumerate(fields)}
    # They are trees, and short-lived: the collector of cycles need not look at them.
    return msgspec.defstruct(plan.schema.name, columns, rename=names, gc=False)


def _is_wire_tuple(plan: ValuePlan) -> bool:
    """Return whether values are NamedTuples with exactly the fields of their wire struct, in
    order.
    """
    return (
        plan.schema.flavour == "namedtuple"
        and all(field.required for field in plan.schema.fields)
        and not any(item.to_wire for item in plan.items)
        and only_stores(plan.schema.annotation)
    )


def _struct_to_wire(plan: ValuePlan) -> Convert:
    wire, fields, flavour = plan.wire, plan.schema.fields, plan.schema.flavour
    order = _columns(fields)
    names = tuple(fields[index].name for index in order)
    converts = [plan.items[index].to_wire for index in order]
    get = _getter(names)
    if flavour == "typeddict":
        get = lambda value: tuple([value.get(name, msgspec.UNSET) for name in names])  # noqa: E731
    if not any(converts):
        if flavour == "namedtuple" and order == list(range(len(fields))):
            return lambda value: wire(*value)
        return lambda value: wire(*get(value))

    def to_wire(value: Any) -> Any:
        return wire(
            *[
                convert(part) if convert and part is not msgspec.UNSET else part
                for convert, part in zip(converts, get(value), strict=True)
            ]
        )

    return to_wire


def _struct_from_wire(plan: ValuePlan) -> Convert:
    fields, cls = plan.schema.fields, plan.schema.annotation
    names = tuple(field.name for field in fields)
    get = _getter(tuple(f"f{index}" for index in range(len(fields))))
    restores = [item.from_wire for item in plan.items]
    build = restorer(cls)
    build_row: Callable[[Any], Any] = lambda row: build(dict(zip(names, row, strict=True)))  # noqa: E731
    if plan.schema.flavour == "namedtuple":
        build_row = functools.partial(tuple.__new__, cls)  # `_make` takes three times as long

    def from_wire(wire: Any) -> Any:
        return build(
            {
                name: restore(part) if restore else part
                for name, restore, part in zip(names, restores, get(wire), strict=True)
                if part is not msgspec.UNSET
            }
        )

    def from_plain_wire(wire: Any) -> Any:
        values = get(wire)
        return from_wire(wire) if msgspec.UNSET in values else build_row(values)

    if any(restores):
        return from_wire
    if all(field.required for field in fields):
        return lambda wire: build_row(get(wire))
    return from_plain_wire
