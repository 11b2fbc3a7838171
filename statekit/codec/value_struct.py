"""Structs in MessagePack: dataclasses, NamedTuples, TypedDicts, msgspec and pydantic classes."""

from __future__ import annotations

import dataclasses
import functools
import keyword
import operator
import typing
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from statekit.codec.annotations import (
    Field,
    struct_fields,
    struct_flavour,
    union_members,
    unwrap,
    with_metadata,
)
from statekit.codec.schema import Schema, schema_of
from statekit.codec.value_check import Check, check_parts, deeper, unpacking
from statekit.codec.value_plan import Convert, ValuePlan, is_map, unchanged
from statekit.codec.value_union import tagged_members


def is_native(annotation: Any, inside: frozenset[Any]) -> bool:
    """Return whether msgspec alone writes and reads the type as docs/format.md wants it."""
    annotation = unwrap(annotation)
    if (members := union_members(annotation)) is not None:
        some = [member for member in members if member is not type(None)]
        return not tagged_members(schema_of(member) for member in some) and all(
            is_native(member, inside) for member in some
        )
    schema = schema_of(annotation)
    args = [arg for arg in typing.get_args(annotation) if arg is not Ellipsis]
    match schema.kind:
        case "literal":
            return not any(type(value) is bool for _, value in schema.values)
        case "set" | "frozenset":
            return False
        case "dict" if not is_map(schema):
            return False
        case "struct":
            return annotation in inside or (
                _is_plain(annotation)
                and all(
                    not _is_constrained(spec.annotation)
                    and is_native(spec.annotation, inside | {annotation})
                    for spec in struct_fields(annotation)
                )
            )
    return all(is_native(arg, inside) for arg in args) if schema.items else True


def _is_plain(cls: Any) -> bool:
    """Return whether msgspec writes the class as a map of all its fields under their own names."""
    flavour = struct_flavour(cls)
    if flavour != "msgspec":
        return flavour in ("dataclass", "typeddict")
    config = cls.__struct_config__
    special = (config.array_like, config.omit_defaults, config.forbid_unknown_fields, config.tag)
    return not any(special) and cls.__struct_fields__ == cls.__struct_encode_fields__


def _is_constrained(annotation: Any) -> bool:
    """Return whether msgspec would refuse values for more than their type (`msgspec.Meta`)."""
    inner, metadata = with_metadata(annotation)
    return any(isinstance(note, msgspec.Meta) for note in metadata) or any(
        _is_constrained(arg) for arg in typing.get_args(inner)
    )


def plan_inside(schema: Schema, cls: type, outer: ValuePlan, levels: int) -> ValuePlan:
    """Return the plan of a struct inside of itself: it looks up the outer plan when it is used.

    Parameters:
        outer: the plan of the struct, which is not complete yet.
        levels: how many levels deeper it is than the enclosing struct of its type.
    """
    plan = ValuePlan(
        schema,
        outer.wire,
        deeper(lambda: outer.accepts, levels),
        deeper(lambda: outer.exact, levels),
    )
    plan.parts = lambda value: outer.parts(value)
    if outer.to_wire:
        plan.to_wire = lambda value: (outer.to_wire or unchanged)(value)
        plan.from_wire = lambda wire: (outer.from_wire or unchanged)(wire)
    return plan


def plan_struct_checks(
    plan: ValuePlan, cls: type, specs: tuple[Field, ...], fields: list[ValuePlan]
) -> None:
    """Fill in the checks, `runs_code` and `parts` of a struct's plan."""
    named = {spec.name: field for spec, field in zip(specs, fields, strict=True)}
    plan.runs_code = _runs_code(cls) or any(field.runs_code for field in fields)
    flavour = struct_flavour(cls)
    if flavour == "typeddict":
        required = frozenset(spec.name for spec in specs if spec.required)
        plan.accepts = _check_typeddict({n: named[n].accepts.one for n in named}, required)
        exact = _check_typeddict({n: named[n].exact.one for n in named}, required)
        plan.exact = _in_order(exact, list(named))
        plan.parts = lambda value: (
            [(f"[{name!r}]", named[name], item) for name, item in value.items() if name in named]
            if type(value) is dict
            else ()
        )
        return
    reads = (f"part{index} = {_attribute(name)}" for index, name in enumerate(named))
    read, condition = "; ".join(reads) or "pass", "True"
    if flavour == "namedtuple":
        read, condition = unpacking(len(named))
    plan.accepts = check_parts(cls, [field.accepts for field in fields], read, condition)
    condition = f"{condition} and {_only_fields(cls, named)}"
    plan.exact = check_parts(cls, [field.exact for field in fields], read, condition)
    plan.parts = lambda value: (
        [(f".{name}", field, getattr(value, name, None)) for name, field in named.items()]
        if type(value) is cls
        else ()
    )


def _runs_code(cls: Any) -> bool:
    """Return whether reading an instance calls a method of its class."""
    if struct_flavour(cls) == "pydantic":
        return cls.__pydantic_post_init__ is not None
    return hasattr(cls, "__post_init__")


def _only_fields(cls: Any, names: Collection[str]) -> str:
    """Return a condition, as source text: an instance has its fields and nothing else."""
    if _runs_code(cls):
        return "False"
    flavour = struct_flavour(cls)
    if flavour == "pydantic":
        if cls.__private_attributes__:
            return "False"
        return f"len(value.__dict__) == len(value.__pydantic_fields_set__) == {len(names)}"
    if not cls.__dictoffset__:
        return "True"
    return f"len(value.__dict__) == {len(names) if flavour == 'dataclass' else 0}"


def _attribute(name: str) -> str:
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"value.{name}" if plain else f"getattr(value, {name!r})"


def _check_typeddict(checks: dict[str, Callable[[Any], bool]], required: frozenset[str]) -> Check:
    def one(value: Any) -> bool:
        return (
            type(value) is dict
            and required <= value.keys() <= checks.keys()
            and all(checks[name](item) for name, item in value.items())
        )

    return Check(one)


def _in_order(check: Check, names: list[str]) -> Check:
    """Return the same check of dicts whose keys are in the order of their declaration."""
    one = check.one
    return Check(lambda value: one(value) and list(value) == [n for n in names if n in value])


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        get_one = operator.attrgetter(names[0])
        return lambda value: (get_one(value),)
    return operator.attrgetter(*names) if names else lambda value: ()


def _columns(specs: tuple[Field, ...]) -> list[int]:
    """Return the order of fields in a wire struct: required ones first."""
    return sorted(range(len(specs)), key=lambda index: not specs[index].required)


def wire_struct(cls: type, specs: tuple[Field, ...], fields: list[ValuePlan]) -> type:
    """Return a msgspec Struct with the fields of `cls`, in the form in which they are written."""
    columns: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (f"f{index}", fields[index].wire)
        if specs[index].required
        else (f"f{index}", fields[index].wire, msgspec.UNSET)
        for index in _columns(specs)
    ]
    names = {f"f{index}": spec.name for index, spec in enumerate(specs)}
    return msgspec.defstruct(cls.__name__, columns, rename=names)


def struct_to_wire(
    cls: type, wire: Any, specs: tuple[Field, ...], fields: list[ValuePlan]
) -> Convert:
    order = _columns(specs)
    names = tuple(specs[index].name for index in order)
    converts = [fields[index].to_wire for index in order]
    get = _getter(names)
    if struct_flavour(cls) == "typeddict":
        get = lambda value: tuple([value.get(name, msgspec.UNSET) for name in names])  # noqa: E731
    if not any(converts):
        if struct_flavour(cls) == "namedtuple" and order == list(range(len(specs))):
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


def struct_from_wire(cls: Any, specs: tuple[Field, ...], fields: list[ValuePlan]) -> Convert:
    names = tuple(spec.name for spec in specs)
    get = _getter(tuple(f"f{index}" for index in range(len(specs))))
    restores = [field.from_wire for field in fields]
    build = _builder(cls)
    build_row: Callable[[Any], Any] = lambda row: build(dict(zip(names, row, strict=True)))  # noqa: E731
    if struct_flavour(cls) == "namedtuple":
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
    if all(spec.required for spec in specs):
        return lambda wire: build_row(get(wire))
    return from_plain_wire


def _builder(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """Makes an instance from its fields; those that are missing take their defaults."""
    match struct_flavour(cls):
        case "typeddict":
            return lambda values: values
        case "pydantic":
            return _model_builder(cls)
        case "dataclass":
            return lambda values: _build_dataclass(cls, values)
    return lambda values: cls(**values)


def _model_builder(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """Like `model_construct`, but without its search for aliases if no field is missing."""
    size = len(cls.model_fields)
    if cls.__pydantic_post_init__ is not None:
        return lambda values: cls.model_construct(**values)

    def build(values: dict[str, Any]) -> Any:
        if len(values) < size:
            return cls.model_construct(**values)
        model = cls.__new__(cls)
        _set(model, "__dict__", values)
        _set(model, "__pydantic_fields_set__", set(values))
        _set(model, "__pydantic_extra__", None)
        _set(model, "__pydantic_private__", None)
        return model

    return build


_set = object.__setattr__


def _build_dataclass(cls: Any, values: dict[str, Any]) -> Any:
    """Like msgspec: `__init__` is not called, `__post_init__` is."""
    instance = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in values:
            value = values[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        object.__setattr__(instance, field.name, value)
    if hasattr(instance, "__post_init__"):
        instance.__post_init__()
    return instance
