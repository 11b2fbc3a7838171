"""The plan of a type: the checks of its values, and their MessagePack form."""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from statekit.codec.annotations import SCALARS
from statekit.codec.schema import Schema
from statekit.codec.value_check import (
    Check,
    accepting_none,
    check_each,
    check_parts,
    scalar_checks,
    unpacking,
)
from statekit.shown import shown

ENCODER = msgspec.msgpack.Encoder(uuid_format="canonical", decimal_format="string")
Convert = Callable[[Any], Any]
ConvertAll = Callable[[Iterable[Any]], Iterable[Any]]


@dataclasses.dataclass(slots=True)
class ValuePlan:
    """The checks of values of a type, and their conversion to values that msgspec can write.

    `wire` is the type that msgspec decodes. `accepts` and `exact` are the two checks of
    `value_check`. `to_wire` and `from_wire` are None where a value and its wire form are the same.
    `all_to_wire` and `all_from_wire` do the same for many values without a line of Python for each;
    they are None where there is no such function.
    `items` are the plans of the parts: of elements, of keys and values, of the fields of a struct.
    `runs_code` is set where reading a value runs code of its class, which may change the value.
    """

    schema: Schema
    wire: Any
    accepts: Check
    exact: Check
    to_wire: Convert | None = None
    from_wire: Convert | None = None
    all_to_wire: ConvertAll | None = None
    all_from_wire: ConvertAll | None = None
    items: Sequence[ValuePlan] = ()
    runs_code: bool = False


def identity(value: Any) -> Any:
    return value


_AWARE = typing.Annotated[dt.datetime, msgspec.Meta(tz=True)]


def _plan_scalar(schema: Schema, _items: Sequence[ValuePlan]) -> ValuePlan:
    cls = schema.annotation or SCALARS[schema.kind]
    wire = _AWARE if schema.kind == "datetime" else cls
    return ValuePlan(schema, wire, *scalar_checks(schema.kind, cls))


def is_map(schema: Schema) -> bool:
    """Return whether a dict is written as a map, because MessagePack readers support its keys.
    Otherwise it is written as pairs.
    """
    key = schema.items[0].kind
    return key in SCALARS.keys() - {"null"} or key == "enum"


# ------------------------------------------------------------------ containers


def _plan_literal(schema: Schema, _items: Sequence[ValuePlan]) -> ValuePlan:
    allowed = frozenset((type(value), value) for _, value in schema.values)
    types = frozenset(kind for kind, _ in allowed)

    def accepts(value: Any) -> bool:
        return type(value) in types and (type(value), value) in allowed

    check = Check(accepts)
    if bool not in types:
        return ValuePlan(schema, schema.annotation, check, check)

    def from_wire(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"{shown(value)} is not one of {schema}")
        return value

    wire: Any = typing.Union[tuple(types)]  # noqa: UP007  built at run time
    return ValuePlan(schema, wire, check, check, identity, from_wire)


def plan_of(
    schema: Schema, wire: Any, items: Sequence[ValuePlan], check: Callable[[list[Check]], Check]
) -> ValuePlan:
    """Return a plan whose checks are composed of the checks of its items."""
    return ValuePlan(
        schema,
        wire,
        check([item.accepts for item in items]),
        check([item.exact for item in items]),
        items=items,
        runs_code=any(item.runs_code for item in items),
    )


def _plan_tuple(schema: Schema, items: Sequence[ValuePlan]) -> ValuePlan:
    read, has_size = unpacking(len(items))
    plan = plan_of(
        schema,
        tuple[tuple(item.wire for item in items)],  # type: ignore[misc]
        items,
        lambda checks: check_parts(tuple, checks, read, has_size),
    )
    if any(item.to_wire for item in items):
        to_wire = [item.to_wire or identity for item in items]
        from_wire = [item.from_wire or identity for item in items]
        plan.to_wire = lambda value: tuple([f(v) for f, v in zip(to_wire, value, strict=True)])
        plan.from_wire = lambda wire: tuple([f(v) for f, v in zip(from_wire, wire, strict=True)])
    return plan


def _check_items(cls: type) -> Callable[[list[Check]], Check]:
    def check(items: list[Check]) -> Check:
        each, only = check_each(items[0]), frozenset({cls})
        return Check(
            lambda value: type(value) is cls and each(value),
            lambda values: (
                only.issuperset(map(type, values)) and each(list(chain.from_iterable(values)))
            ),
        )

    return check


def _plan_sequence(schema: Schema, items: Sequence[ValuePlan]) -> ValuePlan:
    """Return the plan of a list, or of a tuple of any length."""
    (item,) = items
    cls: Any = list if schema.kind == "list" else tuple
    wire = list[item.wire] if cls is list else tuple[item.wire, ...]  # type: ignore[name-defined]
    plan = plan_of(schema, wire, items, _check_items(cls))
    if item.to_wire and item.from_wire:
        all_to_wire = item.all_to_wire or partial(map, item.to_wire)
        all_from_wire = item.all_from_wire or partial(map, item.from_wire)
        plan.to_wire = lambda value: list(all_to_wire(value))
        plan.from_wire = lambda wire: cls(all_from_wire(wire))
    return plan


def _plan_set(schema: Schema, items: Sequence[ValuePlan]) -> ValuePlan:
    """Return the plan of a set or frozenset: an array sorted by encoded element, independent of
    hash order.
    """
    (item,) = items
    cls: Any = set if schema.kind == "set" else frozenset
    item_to_wire, item_from_wire = item.to_wire or identity, item.from_wire or identity

    def to_wire(value: Any) -> list[msgspec.Raw]:
        encoded = sorted([ENCODER.encode(item_to_wire(part)) for part in value])
        return [msgspec.Raw(part) for part in encoded]

    plan = plan_of(schema, list[item.wire], items, _check_items(cls))  # type: ignore[name-defined]
    plan.to_wire = to_wire
    plan.from_wire = lambda wire: cls([item_from_wire(part) for part in wire])
    return plan


def _check_pairs(checks: list[Check]) -> Check:
    keys, items = map(check_each, checks)
    return Check(lambda value: type(value) is dict and keys(value) and items(value.values()))


def _plan_dict(schema: Schema, items: Sequence[ValuePlan]) -> ValuePlan:
    """Return the plan of a dict: a map, or an array of pairs if MessagePack readers may not support
    the keys.
    """
    key, item = items
    wire: Any = dict[key.wire, item.wire]  # type: ignore[name-defined]
    if not is_map(schema):
        wire = list[tuple[key.wire, item.wire]]  # type: ignore[name-defined]
    plan = plan_of(schema, wire, items, _check_pairs)
    key_to_wire, key_from_wire = key.to_wire or identity, key.from_wire or identity
    to_wire, from_wire = item.to_wire or identity, item.from_wire or identity
    if not is_map(schema):
        plan.to_wire = lambda value: [(key_to_wire(k), to_wire(v)) for k, v in value.items()]
        plan.from_wire = lambda wire: {key_from_wire(k): from_wire(v) for k, v in wire}
    elif item.to_wire:
        plan.to_wire = lambda value: {k: to_wire(v) for k, v in value.items()}
        plan.from_wire = lambda wire: {k: from_wire(v) for k, v in wire.items()}
    return plan


def _plan_optional(schema: Schema, items: Sequence[ValuePlan]) -> ValuePlan:
    (inner,) = items
    to_wire, from_wire = inner.to_wire, inner.from_wire
    wire: Any = typing.Optional[inner.wire]  # noqa: UP045  a forward reference has no `|`
    plan = plan_of(schema, wire, items, lambda checks: accepting_none(checks[0]))
    if to_wire and from_wire:
        plan.to_wire = lambda value: None if value is None else to_wire(value)
        plan.from_wire = lambda wire: None if wire is None else from_wire(wire)
    return plan


PLANS: dict[str, Callable[[Schema, Sequence[ValuePlan]], ValuePlan]] = {
    **dict.fromkeys((*SCALARS, "enum"), _plan_scalar),
    **dict.fromkeys(("list", "variadic"), _plan_sequence),
    **dict.fromkeys(("set", "frozenset"), _plan_set),
    "literal": _plan_literal,
    "tuple": _plan_tuple,
    "dict": _plan_dict,
    "optional": _plan_optional,
}
"""The function that builds the plan of a kind of type from the plans of its items."""
