"""OpenAPI description of the states of a job: addresses, with the types of keys and values.

It depends only on the job file. A state that cannot be read over HTTP, since its values are pickled
or it belongs to shards, has no addresses.
"""

from __future__ import annotations

from collections.abc import Mapping

from statekit.checkpoint.job_file import JobFile, OperatorRecord, StateRecord
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
from statekit.server.openapi_parts import (
    EPOCH_PARAMETERS,
    OF_A_JOB,
    PART_TYPES,
    Part,
    answered,
    in_path,
    json_in_query,
    problems,
    reference,
    with_facts,
)
from statekit.server.reads import KEYS_MAX
from statekit.server.tables import MEDIA_TYPES
from statekit.server.watch import EVENT_STREAM
from statekit.stored_types import key_schema

_IF_NONE_MATCH = reference("parameters", "if_none_match")
_JSON = "application/json"
_JSON_IN_PATHS = frozenset({"optional", "tuple", "dynamic"})
"""Kinds of keys that are JSON in an address."""


class JobPaths:
    """Adds the part of the document for one job.

    Parameters:
        alias: its name in addresses.
        paths: the addresses of the document, to which those of the job are added.
        schemas: the components of the document by name, to which those of the job are added.
    """

    def __init__(self, alias: str, paths: dict[str, Part], schemas: dict[str, JsonSchema]) -> None:
        self.alias = alias
        self.paths = paths
        self._schemas = schemas
        # Operators have no names that begin with a dot.
        self.types = JsonSchemas(schemas, f"{alias}..", "#/components/schemas/{}".format)

    def add(self, job: JobFile) -> None:
        """Add the states of a job file."""
        reads = []
        for operator in job.operators:
            states = [state for state in operator.states if is_shown(operator, state)]
            if states:
                key = self.component(
                    f"{self.alias}.{operator.name}.Key", self.types.of_key(key_schema(operator))
                )
                parts = [_StatePart(self, operator, state, key) for state in states]
                reads += [part.added() for part in parts]
        if reads:
            self.paths[f"/{self.alias}/query"] = {"post": self._query(reads)}

    def component(self, plain: str, schema: JsonSchema) -> JsonSchema:
        """Add a component, and return the reference to it.

        Parameters:
            plain: its name. It gets a number if it is taken: "b" of "a.b" is "b.b" of "a".
        """
        name = free_name(self._schemas, plain)
        self._schemas[name] = schema
        return reference("schemas", name)

    def _query(self, reads: list[JsonSchema]) -> Part:
        """Return the operation that reads several states after one epoch."""
        asked = {"type": "array", "items": reads[0] if len(reads) == 1 else {"anyOf": reads}}
        value = {"type": "array", "items": {"type": "array"}}
        return {
            "operationId": f"{self.alias}..query",
            "summary": f"Read keys of several states of {self.alias} after one epoch.",
            "tags": [self.alias],
            "parameters": EPOCH_PARAMETERS,
            "requestBody": _body({"reads": asked}),
            "responses": {
                "200": answered(
                    "For each read the values in the order of its keys; null for absent ones.",
                    {_JSON: with_facts(value=value)},
                    ["ETag"],
                ),
                **problems(*OF_A_JOB, 413),
            },
        }


def is_shown(operator: OperatorRecord, state: StateRecord) -> bool:
    """Return whether a state can be read over HTTP."""
    codecs = {state.codec, *(past.codec for past in state.past)}
    return bool(operator.key) and not state.is_local and PickleCodec.name not in codecs


class _StatePart:
    """The part of the document for one state.

    Parameters:
        job: the part of the job, to which it is added.
        key: the JSON Schema of keys.
    """

    def __init__(
        self, job: JobPaths, operator: OperatorRecord, state: StateRecord, key: JsonSchema
    ) -> None:
        self._job, self._operator, self._state, self._key = job, operator, state, key
        self._name = f"{job.alias}.{operator.name}.{state.name}"
        self._one = self._shown()
        self._value = job.component(self._name, self._whole())
        self._id = self._value["$ref"].rpartition("/")[2]
        """Prefix of the names of its operations, unique in the document."""

    def added(self) -> JsonSchema:
        """Add the addresses, and return the JSON Schema of keys of the state in a request for
        several states.
        """
        job, place = self._job, f"/{self._job.alias}/{self._operator.name}/{self._state.name}"
        answer = job.component(f"{self._name}.Answer", self._answer())
        job.paths[f"{place}/{{key}}"] = {"get": self._of_key(answer)}
        job.paths[place] = {"get": self._of_range(answer)}
        job.paths[f"{place}/query"] = {"post": self._of_keys()}
        read = object_of(
            {
                "operator": {"const": self._operator.name},
                "state": {"const": self._state.name},
                "keys": self._keys,
            }
        )
        return job.component(f"{self._name}.Read", read)

    # -------------------------------------------------------------------------------- the types

    def _shown(self) -> JsonSchema:
        """Return the JSON Schema of one value, entry or element: of the present generation, or of
        an earlier one.
        """
        past = [rows[-1].types["value"] for rows in self._state.past_generations.values()]
        trees = [self._state.types["value"], *past]
        shown = [self._job.types.of_value(Schema.from_json(tree)) for tree in trees]
        return shown[0] if len(shown) == 1 else {"anyOf": shown}

    def _whole(self) -> JsonSchema:
        """Return the JSON Schema of the value of the state for a key."""
        match self._state.shape:
            case RowShape.ENTRIES:
                return self._job.types.of_map(self._map_key, self._one)
            case RowShape.ELEMENTS:
                return {"type": "array", "items": self._one}
        return self._one

    @property
    def _map_key(self) -> Schema:
        return Schema.from_json(self._state.types["key"])

    def _answer(self) -> JsonSchema:
        """Return the JSON Schema of the answer for one key: its value, or a part of a map."""
        if self._state.shape is not RowShape.ENTRIES:
            return with_facts(value=self._value)
        pair = array_of([self._job.types.of_key(self._map_key), self._one])
        return with_facts(
            value={"anyOf": [self._value, self._one, {"type": "array", "items": pair}]}
        )

    @property
    def _keys(self) -> JsonSchema:
        return {"type": "array", "items": self._key, "maxItems": KEYS_MAX}

    # --------------------------------------------------------------------------- the operations

    def _operation(self, name: str, summary: str, parameters: list[Part]) -> Part:
        return {
            "operationId": f"{self._id}.{name}",
            "summary": summary,
            "tags": [f"{self._job.alias}.{self._operator.name}"],
            "parameters": parameters,
        }

    def _of_key(self, answer: JsonSchema) -> Part:
        """Return the operation that reads one key, in text form."""
        parameters = [self._key_in_path(), *self._of_part(), *EPOCH_PARAMETERS, _IF_NONE_MATCH]
        answers = {_JSON: answer, EVENT_STREAM: {"type": "string"}}
        return {
            **self._operation("get", f"Read one key of {self._state.name}.", parameters),
            "responses": {
                "200": answered("What the state has for the key.", answers, ["ETag"]),
                "304": reference("responses", "NotModified"),
                **problems(*OF_A_JOB),
            },
        }

    def _key_in_path(self) -> Part:
        """Return the parameter for a key in the path. Some kinds of keys are JSON there."""
        key = in_path("key", self._key, "As text. Percent-encode it.")
        if key_schema(self._operator).kind in _JSON_IN_PATHS:
            del key["schema"]
            key["content"] = {_JSON: {"schema": self._key}}
        return key

    def _of_part(self) -> list[Part]:
        """Return the parameters for a part of a list or a map."""
        limit, reverse = reference("parameters", "limit"), reference("parameters", "reverse")
        match self._state.shape:
            case RowShape.ELEMENTS:
                names = ("first_index", "last_index")
                return [*(reference("parameters", name) for name in names), limit]
            case RowShape.ENTRIES:
                key = self._job.types.of_key(self._map_key)
                return [
                    json_in_query("entry", key, "The one entry with this map key."),
                    json_in_query("start", key, "The first map key."),
                    json_in_query("end", key, "The map key after the last one."),
                    limit,
                    reverse,
                ]
        return []

    def _of_range(self, answer: JsonSchema) -> Part:
        """Return the operation that reads a range of keys, one key, or all rows as a file."""
        parameters = [
            json_in_query("key", self._key, "One key. An int may be text, too."),
            json_in_query("start", self._key, "The first key."),
            json_in_query("end", self._key, "The key after the last one."),
            *(reference("parameters", name) for name in ("limit", "reverse", "cursor", "prefix")),
            *EPOCH_PARAMETERS,
            _IF_NONE_MATCH,
            reference("parameters", "wide_ints"),
        ]
        items = {"type": "array", "items": array_of([self._key, self._value])}
        value = object_of({"items": items, "cursor": or_null({"type": "string"})})
        page = self._job.component(f"{self._name}.Page", with_facts(value=value))
        answers: dict[str, JsonSchema] = {
            _JSON: {"anyOf": [page, answer]},
            **{media_type: {} for media_type in MEDIA_TYPES.values()},
            EVENT_STREAM: {"type": "string"},
        }
        summary = f"Read keys of {self._state.name} in their order, or one key given as JSON."
        return {
            **self._operation("scan", summary, parameters),
            "responses": {
                "200": answered("A page of keys, or what the state has for the key.", answers),
                "206": answered("Parts of a file.", {media_type: {} for media_type in PART_TYPES}),
                "304": reference("responses", "NotModified"),
                "307": reference("responses", "OfAnEpoch"),
                **problems(*OF_A_JOB, 412, 413, 416),
            },
        }

    def _of_keys(self) -> Part:
        values = with_facts(value={"type": "array", "items": or_null(self._value)})
        summary = f"Read many keys of {self._state.name}."
        return {
            **self._operation("query", summary, EPOCH_PARAMETERS),
            "requestBody": _body({"keys": self._keys}),
            "responses": {
                "200": answered(
                    "In the order of the keys; null for absent ones.", {_JSON: values}, ["ETag"]
                ),
                **problems(*OF_A_JOB, 413),
            },
        }


def _body(members: Mapping[str, JsonSchema]) -> Part:
    return {"required": True, "content": {_JSON: {"schema": object_of(members)}}}
