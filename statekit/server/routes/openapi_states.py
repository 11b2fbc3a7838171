"""JSON Schemas of states in the OpenAPI document. They depend only on the job file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statekit.checkpoint.job_file import OperatorRecord, StateRecord
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.json_schema import (
    JsonSchema,
    JsonSchemas,
    array_of,
    free_name,
    object_of,
    or_null,
)
from statekit.codec.schema import Schema
from statekit.codec.value_codec import PickleCodec
from statekit.server.routes.reads import KEYS_MAX
from statekit.server.routes.responses import JSON, Part, reference, with_facts
from statekit.stored_types import key_schema

_JSON_IN_PATHS = frozenset({"optional", "tuple", "dynamic"})
"""Kinds of keys that are JSON in an address."""

_INDEX: JsonSchema = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_COUNT: JsonSchema = {"type": "integer", "minimum": 0}
_PREFIX: JsonSchema = {"anyOf": [{"type": "string"}, {"type": "array"}]}


@dataclass(frozen=True)
class StateTypes:
    """The JSON Schemas of a state, or of all states of a job.

    Parameters:
        name: prefix of the names of its operations, unique in the document.
        shape: the shape of its rows.
        schemas: by the name that stands for them in declarations of routes.
        is_json: a key in a path is JSON.
    """

    name: str
    shape: str
    schemas: Mapping[str, JsonSchema]
    is_json: bool = False

    def key_in_path(self, description: str) -> Part:
        """Return the parameter for a key in the path. Some kinds of keys are JSON there."""
        schema = {"schema": self.schemas["key"]}
        own = {"content": {JSON: schema}} if self.is_json else schema
        return {"name": "key", "in": "path", "required": True, "description": description, **own}


class JobTypes:
    """Adds the JSON Schemas of the states of a job to the components of a document.

    Parameters:
        alias: its name in addresses.
        components: by name.
    """

    def __init__(self, alias: str, components: dict[str, JsonSchema]) -> None:
        self._alias, self._components = alias, components
        self._keys: dict[str, JsonSchema] = {}
        self._counted: JsonSchema | None = None
        # Operators have no names that begin with a dot.
        self._types = JsonSchemas(components, f"{alias}..", "#/components/schemas/{}".format)

    def of(self, operator: OperatorRecord, state: StateRecord) -> StateTypes:
        """Return the JSON Schemas of a state."""
        key = self._keys.get(operator.name)
        if key is None:
            shown = self._types.of_key(key_schema(operator))
            key = self._added(f"{self._alias}.{operator.name}.Key", shown)
            self._keys[operator.name] = key
        name = f"{self._alias}.{operator.name}.{state.name}"
        one = self._one(state)
        map_key = self._map_key(state)
        value = self._added(name, self._whole(state, one))
        part = _any_part(state.shape, value, one, map_key)
        answer = self._added(f"{name}.Answer", with_facts(part))
        items = {"type": "array", "items": array_of([key, value])}
        page = object_of({"items": items, "cursor": or_null({"type": "string"})})
        keys: JsonSchema = {"type": "array", "items": key, "maxItems": KEYS_MAX}
        read = object_of(
            {"operator": {"const": operator.name}, "state": {"const": state.name}, "keys": keys}
        )
        schemas = {
            "key": key,
            "keys": keys,
            "answer": answer,
            "page": self._added(f"{name}.Page", with_facts(page)),
            "values": with_facts({"type": "array", "items": or_null(value)}),
            "read": self._added(f"{name}.Read", read),
            "count": self._count(),
            "index": _INDEX,
            "prefix": _PREFIX,
            **({} if map_key is None else {"map_key": map_key}),
        }
        own_id = value["$ref"].rpartition("/")[2]
        is_json = key_schema(operator).kind in _JSON_IN_PATHS
        return StateTypes(own_id, state.shape.value, schemas, is_json)

    def _added(self, plain: str, schema: JsonSchema) -> JsonSchema:
        """Add a component, and return the reference to it.

        Parameters:
            plain: its name. It gets a number if it is taken: "b" of "a.b" is "b.b" of "a".
        """
        name = free_name(self._components, plain)
        self._components[name] = schema
        return reference("schemas", name)

    def _count(self) -> JsonSchema:
        """Return the JSON Schema of the answer with a number of rows. All states share it."""
        if self._counted is None:
            self._counted = self._added(f"{self._alias}.Count", with_facts(_COUNT))
        return self._counted

    def _one(self, state: StateRecord) -> JsonSchema:
        """Return the JSON Schema of one value, entry or element: of the present generation, or of
        an earlier one.
        """
        past = [rows[-1].types["value"] for rows in state.past_generations.values()]
        trees = [state.types["value"], *past]
        shown = [self._types.of_value(Schema.from_json(tree)) for tree in trees]
        return shown[0] if len(shown) == 1 else {"anyOf": shown}

    def _map_key(self, state: StateRecord) -> JsonSchema | None:
        if state.shape is not RowShape.ENTRIES:
            return None
        return self._types.of_key(Schema.from_json(state.types["key"]))

    def _whole(self, state: StateRecord, one: JsonSchema) -> JsonSchema:
        """Return the JSON Schema of the value of the state for a key."""
        match state.shape:
            case RowShape.ENTRIES:
                return self._types.of_map(Schema.from_json(state.types["key"]), one)
            case RowShape.ELEMENTS:
                return {"type": "array", "items": one}
        return one


def _any_part(
    shape: RowShape, value: JsonSchema, one: JsonSchema, map_key: JsonSchema | None
) -> JsonSchema:
    """Return the JSON Schema of the answer for one key: its value, a part of a map, or the number
    of entries or elements.
    """
    if shape is RowShape.VALUE:
        return value
    if map_key is None:
        return {"anyOf": [value, _COUNT]}
    pairs = {"type": "array", "items": array_of([map_key, one])}
    return {"anyOf": [value, one, pairs, _COUNT]}


def is_shown(operator: OperatorRecord, state: StateRecord) -> bool:
    """Return whether a state can be read over HTTP: its values are not pickled, and it does not
    belong to shards.
    """
    codecs = {state.codec, *(past.codec for past in state.past)}
    return bool(operator.key) and not state.is_local and PickleCodec.name not in codecs
