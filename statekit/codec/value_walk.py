"""Conversion of values part by part, along their type, without the user's classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statekit.codec.schema import Schema
from statekit.codec.value_plan import is_map
from statekit.shown import shown

Structs = Mapping[str, Schema]
"""The structs that enclose a part of a type, by name. A "ref" names one of them."""

_NONE: Structs = MappingProxyType({})


class ValueWalk:
    """Converts the parts of a value. Subclasses define the conversion of structs, maps, unions and
    scalars.
    """

    def value(self, schema: Schema, value: Any, outer: Structs = _NONE) -> Any:
        """Return the converted form of a value.

        Parameters:
            schema: its type.
            outer: the structs around it.

        Raises:
            ValueError: it is not a value of that type.
        """
        match schema.kind:
            case "ref":
                return self.value(outer[schema.name], value, outer)
            case "optional":
                return None if value is None else self.value(schema.items[0], value, outer)
            case "list" | "set" | "frozenset" | "variadic":
                (item,) = schema.items
                return [self.value(item, part, outer) for part in expect(value, list)]
            case "tuple":
                parts = zip(schema.items, expect(value, list), strict=True)
                return [self.value(item, part, outer) for item, part in parts]
            case "dict":
                key, item = schema.items
                if is_map(schema):
                    return self.entries(key, item, expect(value, dict), outer)
                return [
                    [self.value(key, k, outer), self.value(item, v, outer)]
                    for k, v in expect(value, list)
                ]
            case "struct":
                return self.struct(schema, value, {**outer, schema.name: schema})
            case "union":
                return self.union(schema, value, outer)
        return self.scalar(schema, value)

    def struct(self, schema: Schema, value: Any, outer: Structs) -> Any:
        """Return the converted form of a struct, which is one of `outer`."""
        raise NotImplementedError

    def entries(self, key: Schema, item: Schema, value: dict[Any, Any], outer: Structs) -> Any:
        """Return the converted form of a dict that is written as a map."""
        raise NotImplementedError

    def union(self, schema: Schema, value: Any, outer: Structs) -> Any:
        """Return the converted form of a value of a union."""
        raise NotImplementedError

    def scalar(self, schema: Schema, value: Any) -> Any:
        """Return the converted form of a value of any other type."""
        return value


def expect(value: Any, cls: type) -> Any:
    """Check that a value has this class, and return it. In keys, a tuple stands for a list.

    Raises:
        ValueError: it has another class.
    """
    if not isinstance(value, (cls, tuple) if cls is list else cls):
        raise ValueError(f"{shown(value, 60)} is not a {cls.__name__}")
    return value
