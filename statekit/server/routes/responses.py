"""Responses of routes, as the OpenAPI document shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statekit.codec.json_schema import JsonSchema

Part = dict[str, Any]
"""A part of the document, as JSON-able data."""

JSON = "application/json"
TEXT: JsonSchema = {"type": "string"}
BINARY: JsonSchema = {"type": "string", "format": "binary"}

TYPE = "x-type"
"""Member that stands for a JSON Schema of a state, such as that of its keys."""

HEADERS: Mapping[str, Part] = {
    name: {"description": description, "schema": schema}
    for name, description, schema in (
        ("ETag", "Stands for the value.", TEXT),
        ("Last-Modified", "The time of the epoch's commit.", TEXT),
        ("Location", "The address of the file of one epoch.", TEXT),
        ("Retry-After", "Seconds to wait.", TEXT),
        ("Statekit-Epoch", "The epoch of the file.", TEXT),
        ("Statekit-Is-Cut", "True if there are more rows.", {"enum": ["true", "false"]}),
    )
}


def reference(kind: str, name: str) -> Part:
    """Return the reference to a component.

    >>> reference("schemas", "Facts")
    {'$ref': '#/components/schemas/Facts'}
    """
    return {"$ref": f"#/components/{kind}/{name}"}


def answered(description: str, content: Mapping[str, Any], *headers: str) -> Part:
    """Return the description of an answer.

    Parameters:
        content: for each media type the JSON Schema, or the type that pydantic describes.
        headers: names of its headers.
    """
    found: Part = {
        "description": description,
        "content": {media_type: {"schema": schema} for media_type, schema in content.items()},
    }
    if headers:
        found["headers"] = {name: reference("headers", name) for name in headers}
    return found


def with_facts(value: Any) -> Part:
    """Return the JSON Schema of an answer: its value, and the facts of its epoch."""
    own = {"type": "object", "properties": {"value": value}, "required": ["value"]}
    return {"allOf": [reference("schemas", "Facts"), own]}


NOT_MODIFIED = {"304": reference("responses", "NotModified")}
OF_AN_EPOCH = {"307": reference("responses", "OfAnEpoch")}

SHARED: Mapping[str, Part] = {
    "NotModified": {
        "description": "The client has the value.",
        "headers": {"ETag": reference("headers", "ETag")},
    },
    "OfAnEpoch": {
        "description": "The file is at the address of the last epoch.",
        "headers": {name: reference("headers", name) for name in ("Location", "Statekit-Epoch")},
    },
}
"""Responses of several routes, by name."""

INSIGHT = {"200": answered("The status of the job.", {JSON: {}}), **NOT_MODIFIED}
"""Responses of a route for the dashboard."""

OF_A_JOB = (400, 404, 409, 410)
"""Statuses of the problems of routes that read an epoch of a job."""
