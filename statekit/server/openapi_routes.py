"""OpenAPI description of the routes that are not about one state.

FastAPI knows neither their bodies, which msgspec decodes, nor their answers. FastAPI describes all
routes that are not described here: give them `responses=` for their answers, or
`include_in_schema=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from statekit.codec.json_schema import JsonSchema
from statekit.server.metrics import MEDIA_TYPE as METRICS_TYPE
from statekit.server.openapi_parts import (
    EPOCH_PARAMETERS,
    FILE_CONDITIONS,
    FILE_HEADERS,
    OF_A_JOB,
    PART_TYPES,
    SQL_QUERY,
    Part,
    answered,
    in_path,
    in_query,
    problems,
    reference,
)
from statekit.server.sql_queries import FORMATS
from statekit.server.tables import MEDIA_TYPES

_JSON, _MSGPACK = "application/json", "application/vnd.msgpack"
_OK: JsonSchema = {
    "type": "object",
    "properties": {"status": {"enum": ["ok", "disk_full"]}},
    "required": ["status"],
}


def _get(name: str, summary: str, parameters: list[Part], responses: Part) -> Part:
    operation = {
        "operationId": name,
        "summary": summary,
        "tags": ["server"],
        "parameters": parameters,
        "responses": responses,
    }
    return {"get": operation}


def _probe(name: str, summary: str) -> Part:
    responses = {"200": answered("It is.", {_JSON: _OK}), **problems(is_open=True)}
    probe = _get(name, summary, [], responses)
    probe["get"]["security"] = []
    return probe


def _sql() -> Part:
    formats = {media_type: JsonSchema() for media_type in FORMATS.values()}
    formats[_JSON] = reference("schemas", "SqlAnswer")
    headers = ["Statekit-Epoch", "Statekit-Is-Cut"]
    operation = {
        "operationId": "sql",
        "summary": "Run a query over the states of one epoch of a job.",
        "tags": ["server"],
        "parameters": [in_query("format", {"enum": list(FORMATS)}, "Of the result.")],
        "requestBody": {"required": True, "content": {_JSON: {"schema": SQL_QUERY}}},
        "responses": {"200": answered("The result.", formats, headers), **problems(*OF_A_JOB, 413)},
    }
    return {"post": operation}


PATHS: dict[str, Part] = {
    "/healthz": _probe("healthz", "Whether the server runs."),
    "/readyz": _probe("readyz", "Whether every job has an epoch that can be read."),
    "/metrics": _get(
        "metrics",
        "Metrics for Prometheus, for a token that may read everything.",
        [],
        {"200": answered("All metrics.", {METRICS_TYPE: {"type": "string"}}), **problems()},
    ),
    "/openapi.json": _get(
        "openapi",
        "This document, with the states that the token may read.",
        [
            in_query("job", {"type": "string"}, "Of this job alone."),
            in_query("operator", {"type": "string"}, "Of this operator of the job alone."),
            reference("parameters", "if_none_match"),
        ],
        {
            "200": answered("The document.", {_JSON: {"type": "object"}}, ["ETag"]),
            "304": reference("responses", "NotModified"),
            **problems(400, 404),
        },
    ),
    "/jobs": _get(
        "jobs",
        "The jobs that the token may read something of.",
        [],
        {
            "200": answered(
                "The jobs.", {_JSON: {"type": "array", "items": reference("schemas", "JobSummary")}}
            ),
            **problems(),
        },
    ),
    "/sql": _sql(),
}
"""Addresses that do not belong to a job."""


def of_jobs(aliases: Sequence[str]) -> dict[str, Part]:
    """Return the addresses of jobs that are the same for all states.

    Parameters:
        aliases: the names of the jobs in addresses.
    """
    job = in_path("job", {"enum": list(aliases)}, "The name of the job.")
    place = [
        job,
        in_path("operator", {"type": "string"}, "The name of the operator."),
        in_path("state", {"type": "string"}, "The name of the state."),
    ]
    ends = in_path("format", {"enum": list(MEDIA_TYPES)}, "Of the file.")
    files = {media_type: JsonSchema() for media_type in MEDIA_TYPES.values()}
    return {
        "/{job}": _get(
            "describe",
            "The operators and states of a job, with their types and sizes.",
            [job, *EPOCH_PARAMETERS],
            {
                "200": answered("The job.", {_JSON: reference("schemas", "Job")}),
                **problems(*OF_A_JOB),
            },
        ),
        "/{job}/types": _get(
            "types",
            "The types of a job, for clients that decode stored rows.",
            [job, *EPOCH_PARAMETERS],
            {"200": answered("The job file.", {_JSON: {"type": "object"}}), **problems(*OF_A_JOB)},
        ),
        "/{job}/{operator}/{state}.{format}": _get(
            "file",
            "All rows of a state, as a file, of which parts can be asked for.",
            [
                *place,
                ends,
                *EPOCH_PARAMETERS,
                reference("parameters", "wide_ints"),
                reference("parameters", "if_none_match"),
                *FILE_CONDITIONS,
            ],
            {
                "200": answered("The file.", files, FILE_HEADERS),
                "206": answered(
                    "Parts of it.", {kind: JsonSchema() for kind in PART_TYPES}, FILE_HEADERS
                ),
                "304": reference("responses", "NotModified"),
                "307": reference("responses", "OfAnEpoch"),
                **problems(*OF_A_JOB, 412, 416),
            },
        ),
        "/{job}/{operator}/{state}/stored": {"post": _stored(place)},
    }


def _stored(place: list[Part]) -> Part:
    binary: JsonSchema = {"type": "string", "format": "binary"}
    return {
        "operationId": "stored",
        "summary": "Rows of many keys as they are stored, in MessagePack.",
        "tags": ["server"],
        "parameters": [*place, *EPOCH_PARAMETERS],
        "requestBody": {"required": True, "content": {_MSGPACK: {"schema": binary}}},
        "responses": {
            "200": answered("The rows, and the facts of the epoch.", {_MSGPACK: binary}),
            **problems(*OF_A_JOB, 413),
        },
    }


class Others(NamedTuple):
    """FastAPI's description of the other routes.

    Parameters:
        paths: their addresses.
        schemas: components, by name.
    """

    paths: dict[str, Part]
    schemas: dict[str, JsonSchema]


_OF_STATES = {
    f"/{{job}}{place}"
    for place in (
        *("", "/query", "/types", "/{operator}/{state}", "/{operator}/{state}/query"),
        *("/{operator}/{state}/stored", "/{operator}/{state}/{key}"),
    )
}
"""Routes that `of_jobs` describes, or `openapi_states` for each state."""


def others(routes: Sequence[BaseRoute]) -> Others:
    """Return FastAPI's description of the routes that are not described here."""
    found = get_openapi(title="", version="", routes=routes)
    paths = {
        path: item
        for path, item in found["paths"].items()
        if path not in _OF_STATES and path not in PATHS
    }
    for item in paths.values():
        for operation in item.values():
            operation["responses"].pop("422", None)  # faults of parameters are problems, too
            operation["responses"] |= {
                "304": reference("responses", "NotModified"),
                **problems(*OF_A_JOB, 413),
            }
    return Others(paths, found.get("components", {}).get("schemas", {}))
