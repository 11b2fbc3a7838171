"""JSON Schemas of types. They describe values and keys as shown without the user's classes.

`schema_codec` makes JSON of stored bytes, and this module says which JSON that is, in the dialect
2020-12, which OpenAPI 3.1 uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from statekit.codec.json_form import NOT_FINITE
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import is_shown_as_scalar
from statekit.codec.value_plan import is_map

JsonSchema = dict[str, Any]
"""A JSON Schema as data."""

_DIGITS = {"type": "string", "pattern": "^-?[0-9]+$"}
_INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def _durations(days: str) -> JsonSchema:
    """Return the JSON Schema of durations. The standard format "duration" has no negative values.

    Parameters:
        days: the pattern of their number.
    """
    hours, minutes = "(?:1?[0-9]|2[0-3])H", "[1-5]?[0-9]M"
    seconds = r"[1-5]?[0-9](?:\.[0-9]{1,6})?S"
    time = f"T(?:{hours}(?:{minutes})?(?:{seconds})?|{minutes}(?:{seconds})?|{seconds})"
    return {"type": "string", "pattern": f"^-?P(?:(?:{days})D(?:{time})?|{time})$"}


# The microseconds of a key fit 64 bits: those of 106,751,991 days.
_DAYS_OF_KEYS = "[0-9]{1,8}|10[0-5][0-9]{6}|106[0-6][0-9]{5}|1067[0-4][0-9]{4}|10675[01][0-9]{3}"

_SCALARS: dict[str, JsonSchema] = {
    "null": {"type": "null"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"anyOf": [{"type": "number"}, {"enum": sorted(NOT_FINITE)}]},
    "str": {"type": "string"},
    "bytes": {"type": "string", "pattern": "^(?:[0-9a-f]{2})*$"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
    "timedelta": _durations("[0-9]{1,9}"),
    "decimal": {"type": "string"},
    "uuid": {"type": "string", "format": "uuid"},
}
_KEY_SCALARS: dict[str, JsonSchema] = {
    **_SCALARS,
    "int": _INT64,
    "float": {"anyOf": [{"type": "number"}, {"enum": ["-Infinity", "Infinity"]}]},
    "timedelta": _durations(_DAYS_OF_KEYS),
}


class JsonSchemas:
    """Builds JSON Schemas of types. Structs become named definitions.

    Parameters:
        definitions: where definitions are added, by name; None for a new dict.
        prefix: what their names begin with.
        reference: the reference to a definition, by its name.

    Attributes:
        definitions: those of the structs, and what else was in the dict.

    >>> from statekit.codec.schema import schema_of
    >>> JsonSchemas().of_value(schema_of(list[int | None]))
    {'type': 'array', 'items': {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}}
    """

    def __init__(
        self,
        definitions: dict[str, JsonSchema] | None = None,
        prefix: str = "",
        reference: Callable[[str], str] = "#/$defs/{}".format,
    ) -> None:
        self.definitions = {} if definitions is None else definitions
        self._prefix = prefix
        self._reference = reference
        self._names: dict[tuple[Schema, tuple[tuple[str, str], ...]], str] = {}

    def of_value(self, schema: Schema) -> JsonSchema:
        """Return the JSON Schema of values in the form of `json_value_decoder`."""
        return self._shown(schema, MappingProxyType({}))

    def of_key(self, schema: Schema) -> JsonSchema:
        """Return the JSON Schema of keys in the form that a replica without functions shows and
        accepts. A NamedTuple is an array of its fields.
        """
        match schema.kind:
            case "optional":
                return or_null(self.of_key(schema.items[0]))
            case "tuple" | "struct":
                return array_of(list(map(self.of_key, schema.parts)))
            case "variadic":
                return {"type": "array", "items": self.of_key(schema.items[0])}
            case "dynamic":
                return self._dynamic()
        return _choice(schema) or _KEY_SCALARS[schema.kind]

    def of_map(self, key: Schema, entry: JsonSchema) -> JsonSchema:
        """Return the JSON Schema of all entries of a map state.

        Parameters:
            entry: the JSON Schema of the values of entries.
        """
        if is_shown_as_scalar(key):
            return _map_of(self.of_key(key), entry)
        return {"type": "array", "items": array_of([self.of_key(key), entry])}

    def _shown(self, schema: Schema, outer: Mapping[str, str]) -> JsonSchema:
        """Return the JSON Schema of values inside of structs.

        Parameters:
            outer: the definitions of the structs, by the name of the struct.
        """
        match schema.kind:
            case "ref":
                return {"$ref": self._reference(outer[schema.name])}
            case "struct":
                return self._struct(schema, outer)
            case "optional":
                return or_null(self._shown(schema.items[0], outer))
            case "union":
                return {"anyOf": [self._shown(member, outer) for member in schema.items]}
            case "tuple":
                return array_of([self._shown(item, outer) for item in schema.items])
            case "list" | "set" | "frozenset" | "variadic":
                return {"type": "array", "items": self._shown(schema.items[0], outer)}
            case "dict":
                key, item = (self._shown(part, outer) for part in schema.items)
                if is_map(schema):
                    return _map_of(key, item)
                return {"type": "array", "items": array_of([key, item])}
        return _choice(schema) or _SCALARS[schema.kind]

    def _struct(self, schema: Schema, outer: Mapping[str, str]) -> JsonSchema:
        """Return a reference to the definition of a struct. The first call creates the
        definition.
        """
        enclosing = {name: outer[name] for name in sorted(_refs(schema))}
        identity = (schema, tuple(enclosing.items()))
        name = self._names.get(identity)
        if name is None:
            name = self._names[identity] = self._taken(schema.name)
            inner = {**enclosing, schema.name: name}
            properties = {}
            for field in schema.fields:
                shown = self._shown(field.schema, inner)
                # A row that has no such field is shown with null.
                properties[field.name] = shown if field.required else or_null(shown)
            self.definitions[name] = object_of(properties)
        return {"$ref": self._reference(name)}

    def _taken(self, name: str) -> str:
        """Reserve and return a free name for a definition. Parts of the definition may already
        refer to it.
        """
        plain = self._prefix + re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        found = free_name(self.definitions, plain)
        self.definitions[found] = {}
        return found

    def _dynamic(self) -> JsonSchema:
        """Return the JSON Schema of a key of plain dicts, whose type is not declared."""
        identity = (Schema("dynamic"), ())
        if identity not in self._names:
            name = self._names[identity] = self._taken("AnyKey")
            parts = {"type": "array", "items": {"$ref": self._reference(name)}}
            self.definitions[name] = {
                "anyOf": [{"type": ["null", "boolean", "string"]}, _INT64, parts]
            }
        return {"$ref": self._reference(self._names[identity])}


def free_name(taken: Container[str], plain: str) -> str:
    """Return a name that is not taken, with a number if necessary.

    >>> free_name({"Row", "Row_2"}, "Row")
    'Row_3'
    """
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    return found


def object_of(properties: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return the JSON Schema of an object with exactly these members."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def array_of(parts: Sequence[JsonSchema]) -> JsonSchema:
    """Return the JSON Schema of an array with fixed parts."""
    if not parts:
        return {"type": "array", "maxItems": 0}
    return {
        "type": "array",
        "prefixItems": list(parts),
        "items": False,
        "minItems": len(parts),
        "maxItems": len(parts),
    }


def _refs(schema: Schema) -> set[str]:
    """Return the names of the enclosing structs that a type refers to."""
    if schema.kind == "ref":
        return {schema.name}
    return set[str]().union(*map(_refs, schema.parts)) - {schema.name}


def _choice(schema: Schema) -> JsonSchema | None:
    """Return the JSON Schema of an Enum or a Literal; None for another type."""
    if not schema.values:
        return None
    return {"enum": list({(type(value), value): value for _, value in schema.values}.values())}


def or_null(shown: JsonSchema) -> JsonSchema:
    """Return the JSON Schema for the same values or null."""
    return {"anyOf": [shown, {"type": "null"}]}


def _map_of(key: JsonSchema, item: JsonSchema) -> JsonSchema:
    """Return the JSON Schema of an object, whose keys are always text."""
    shown: JsonSchema = {"type": "object", "additionalProperties": item}
    if key.get("type") == "integer":
        shown["propertyNames"] = _DIGITS
    elif key.get("type") == "boolean":
        shown["propertyNames"] = {"enum": ["true", "false"]}
    elif "enum" in key:
        shown["propertyNames"] = {"enum": [str(value) for value in key["enum"]]}
    elif "pattern" in key or "format" in key:
        shown["propertyNames"] = key
    return shown
