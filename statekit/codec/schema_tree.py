"""Checks of the JSON form of a type, before a `Schema` is created from it.

A job description may have been written by anybody. Readers recurse over types and use their parts
without looking again, so a tree is checked before it becomes a `Schema`. A declared type follows
the same rules, so a job cannot write a description that nobody reads.
"""

from __future__ import annotations

from typing import Any

from statekit.codec.annotations import SCALARS
from statekit.codec.value_check import is_text
from statekit.names import text_fault

LEVELS_MAX = 50
"""The maximum nesting of a type in levels. JSON parsers have limits; a struct takes three
levels.
"""

_ITEMS = {"list": 1, "set": 1, "frozenset": 1, "variadic": 1, "optional": 1, "dict": 2}
_ITEMS_MIN = {"tuple": 0, "union": 2}
"""The minimum number of items, for kinds with a variable number."""
_NO_MEMBERS = {"optional": ("null", "optional"), "union": ("null", "optional", "union")}
"""Kinds that are never directly nested in these, so that each type has a single form."""
_ALONE = frozenset({"pickle", "dynamic"})
_NAMED = frozenset({"struct", "enum", "ref", "pickle"})
_WITH_VALUES = frozenset({"enum", "literal"})

KINDS = SCALARS.keys() | {"dynamic"} | _ITEMS.keys() | _ITEMS_MIN.keys() | _NAMED | _WITH_VALUES

_MEMBERS = {"kind", "name", "flavour", "items", "fields", "values"}
_FLAVOURS = frozenset({"dataclass", "namedtuple", "typeddict", "msgspec", "pydantic"})
_FIELD = {"name": str, "required": bool, "default": bool}
_ENUMS = (frozenset({int}), frozenset({str}))
_LITERALS = frozenset({bool, int, str, type(None)})


def tree_fault(tree: object, *, is_part: bool = False) -> str | None:
    """Return the reason why a value is not the JSON form of a type; None if it is.

    Parameters:
        is_part: the tree may be a part of a type, with refs to structs that enclose the part.

    >>> tree_fault({"kind": "list", "items": ["int"]}) is None
    True
    >>> tree_fault({"kind": "list"})
    'a list has 1 items, and here 0'
    """
    return _fault(tree, None if is_part else frozenset(), 0)


def _fault(tree: object, outer: frozenset[str] | None, level: int) -> str | None:
    """Return the fault of a tree that is nested in these structs.

    Parameters:
        outer: the names of the structs; None if they are not known.
    """
    if level > LEVELS_MAX:
        return f"it is nested more than {LEVELS_MAX} levels deep"
    if isinstance(tree, str):
        tree = {"kind": tree}
    if not isinstance(tree, dict) or not tree.keys() <= _MEMBERS:
        return f"{tree!r:.80} is not a type"
    kind, name = tree.get("kind"), tree.get("name", "")
    if not isinstance(kind, str) or kind not in KINDS:
        return f"{kind!r:.80} is not a kind of type"
    if level and kind in _ALONE:
        return f"{kind} is a complete type and cannot be part of another"
    if not isinstance(name, str) or (kind in _NAMED) != bool(name):
        return f"a {kind} cannot have the name {name!r:.80}"
    if (fault := text_fault(name)) is not None:
        return f"the name {name!r:.80} of a {kind}: {fault}"
    if kind == "ref" and outer is not None and name not in outer:
        return f"it refers to {name!r:.80}, which does not enclose it"
    items = tree.get("items", [])
    return (
        _items_fault(kind, items)
        or _values_fault(kind, tree.get("values", []))
        or _struct_fault(kind, tree, outer, level)
        or next(filter(None, (_fault(item, outer, level + 1) for item in items)), None)
    )


def _items_fault(kind: str, items: object) -> str | None:
    if not isinstance(items, list | tuple):
        return f"the items of a {kind} are {items!r:.80}"
    least, more = _ITEMS_MIN.get(kind), " or more"
    if least is None:
        least, more = _ITEMS.get(kind, 0), ""
    if len(items) < least or (len(items) > least and not more):
        return f"a {kind} has {least} items{more}, and here {len(items)}"
    kinds = [item.get("kind") if isinstance(item, dict) else item for item in items]
    forbidden = next((each for each in _NO_MEMBERS.get(kind, ()) if each in kinds), None)
    return f"a {kind} cannot have the item {forbidden}" if forbidden else None


def _values_fault(kind: str, values: object) -> str | None:
    if not isinstance(values, list | tuple) or (kind in _WITH_VALUES) != bool(values):
        return f"a {kind} cannot have the values {values!r:.80}"
    if not values:
        return None
    for pair in values:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            return f"{pair!r:.80} is not a member of a {kind}"
        name, value = pair
        if (fault := text_fault(name)) is not None:
            return f"the name {name!r:.80} of a member of a {kind}: {fault}"
        if type(value) is int and not -(2**63) <= value < 2**63:
            return f"{value!r:.80} does not fit 64 bits"
        if type(value) is str and not is_text(value):
            return f"{value!r:.80} is not valid UTF-8"
    kinds = frozenset(type(value) for _, value in values)
    if not (kinds in _ENUMS if kind == "enum" else kinds <= _LITERALS):
        return f"a {kind} cannot have the values {values!r:.80}"
    return None


def _struct_fault(
    kind: str, tree: dict[str, Any], outer: frozenset[str] | None, level: int
) -> str | None:
    fields, flavour = tree.get("fields", []), tree.get("flavour", "")
    if kind != "struct":
        return f"a {kind} has no fields" if fields or flavour else None
    if not isinstance(flavour, str) or (flavour and flavour not in _FLAVOURS):
        return f"a struct cannot be a {flavour!r:.80}"
    if not isinstance(fields, list | tuple):
        return f"the fields of a struct are {fields!r:.80}"
    inner, names = None if outer is None else outer | {tree["name"]}, set[str]()
    for field in fields:
        if not isinstance(field, dict) or "type" not in field:
            return f"{field!r:.80} is not a field of a struct"
        if {name: type(field[name]) for name in field if name != "type"} != _FIELD:
            return f"{field!r:.80} is not a field of a struct"
        if (fault := text_fault(field["name"])) is not None:
            return f"the name {field['name']!r:.80} of a field: {fault}"
        if field["name"] in names:
            return f"a struct has two fields {field['name']!r:.80}"
        names.add(field["name"])
        if (fault := _fault(field["type"], inner, level + 1)) is not None:
            return fault
    return None
