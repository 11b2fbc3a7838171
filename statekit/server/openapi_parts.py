"""OpenAPI parts that many routes share: parameters, answers and problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from statekit.codec.json_schema import JsonSchema, or_null
from statekit.server.problems import MEDIA_TYPE as PROBLEM_TYPE
from statekit.server.reads import KEYS_MAX, ROWS_MAX
from statekit.server.routes import WAIT_MAX_S
from statekit.server.tables import MEDIA_TYPES
from statekit.sql.run import ROWS_MAX as SQL_ROWS_MAX

Part = dict[str, Any]
"""A part of the document, as JSON-able data."""

_EPOCH = {"type": "integer", "minimum": 0, "maximum": 2**62}
_CHECKSUM = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_INSTANT = {"type": "string", "format": "date-time"}


def reference(kind: str, name: str) -> Part:
    """Return the reference to a component.

    >>> reference("schemas", "Facts")
    {'$ref': '#/components/schemas/Facts'}
    """
    return {"$ref": f"#/components/{kind}/{name}"}


# ---------------------------------------------------------------------------------- parameters


def in_query(name: str, schema: JsonSchema, description: str) -> Part:
    """Return an optional parameter of the query."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def json_in_query(name: str, schema: JsonSchema, description: str) -> Part:
    """Return an optional parameter of the query whose text is JSON."""
    content = {"application/json": {"schema": schema}}
    return {"name": name, "in": "query", "description": description, "content": content}


def in_path(name: str, schema: JsonSchema, description: str) -> Part:
    """Return a parameter in the path of the address."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


PARAMETERS: Mapping[str, Part] = {
    "epoch": in_query("epoch", _EPOCH, "The answer is of this epoch."),
    "manifest": in_query(
        "manifest",
        _CHECKSUM,
        "With epoch: the checksum of its manifest. If the checkpoint was replaced since, such as "
        "by a backup, the answer is 410, and not another epoch of the same number.",
    ),
    "as_of": in_query(
        "as_of", _INSTANT, "The answer is of the last epoch that was not processed later."
    ),
    "min_epoch": in_query("min_epoch", _EPOCH, "The answer is of this epoch or of a later one."),
    "min_watermark": in_query(
        "min_watermark", _INSTANT, "The answer is of an epoch whose watermark reached this time."
    ),
    "wait": in_query(
        "wait",
        {"type": "number", "minimum": 0, "maximum": WAIT_MAX_S, "default": 0},
        "How many seconds to wait for min_epoch and min_watermark.",
    ),
    "wide_ints": in_query(
        "wide_ints",
        {"enum": ["decimal", "text"]},
        "Of a file: how ints are written if some are 2^63 or more.",
    ),
    "limit": in_query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": ROWS_MAX},
        "How many keys, entries or elements at most.",
    ),
    "reverse": in_query(
        "reverse", {"type": "boolean", "default": False}, "From the last to the first."
    ),
    "cursor": in_query(
        "cursor", {"type": "string"}, "Of the page before. The next page is of the same epoch."
    ),
    "prefix": json_in_query(
        "prefix",
        {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "Of a stream of events: keys that begin with this text, or with these parts.",
    ),
    "first_index": in_query(
        "start", {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}, "The first index."
    ),
    "last_index": in_query(
        "end",
        {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        "The index after the last one.",
    ),
    "if_none_match": {
        "name": "If-None-Match",
        "in": "header",
        "description": "The tag of the value that the client has.",
        "schema": {"type": "string"},
    },
}

EPOCH_PARAMETERS = [
    reference("parameters", name)
    for name in ("epoch", "manifest", "as_of", "min_epoch", "min_watermark", "wait")
]
"""Parameters that choose the epoch of an answer."""

# ------------------------------------------------------------------------------------- answers

_COUNT = {"type": "integer", "minimum": 0}
_FACTS: JsonSchema = {
    "type": "object",
    "description": "What an answer is of.",
    "properties": {
        "epoch": {**_COUNT, "description": "The epoch that the answer is of."},
        "manifest": {
            **_CHECKSUM,
            "description": "The checksum of its manifest, which identifies it: after a checkpoint "
            "was replaced, such as by a backup, another epoch may have the same number.",
        },
        "watermark": {
            "anyOf": [_INSTANT, {"type": "null"}],
            "description": "Of the operator, after that epoch.",
        },
        "processing_time": {**_INSTANT, "description": "When the epoch began."},
        "lag_ms": {**_COUNT, "description": "The time since then, by the clock of the server."},
        "oldest_epoch": {**_COUNT, "description": "The oldest epoch that can be read."},
    },
    "required": ["epoch", "manifest", "watermark", "processing_time", "lag_ms", "oldest_epoch"],
}
_SUMMARY: JsonSchema = {
    "type": "object",
    "properties": {
        "job": {"type": "string"},
        "epoch": {"anyOf": [_COUNT, {"type": "null"}]},
        "latest_epoch": {"anyOf": [_COUNT, {"type": "null"}]},
        "is_rebuilding": {"type": "boolean"},
        "has_error": {"type": "boolean"},
    },
    "required": ["job", "epoch", "latest_epoch", "is_rebuilding", "has_error"],
}
_STATE: JsonSchema = {
    "type": "object",
    "properties": {
        "state": {"type": "string"},
        "kind": {"type": "string"},
        "types": {"type": "object"},
        "rows": _COUNT,
        "bytes": _COUNT,
    },
    "required": ["state", "kind", "types", "rows", "bytes"],
}
_WAITS_FOR: JsonSchema = {
    "type": "object",
    "properties": {
        "source": {"type": "string"},
        "input": {"type": "string"},
        "at": {"anyOf": [_INSTANT, {"type": "null"}]},
        "since": _INSTANT,
    },
    "required": ["source", "input", "at", "since"],
}
_OPERATOR: JsonSchema = {
    "type": "object",
    "properties": {
        "operator": {"type": "string"},
        "inputs": {"type": "array", "items": {"type": "string"}},
        "key": {"type": "array", "items": {"type": "object"}},
        "watermark": {"anyOf": [_INSTANT, {"type": "null"}]},
        "waits_for": {
            "description": "The source that its event time waits for.",
            "anyOf": [_WAITS_FOR, {"type": "null"}],
        },
        "states": {"type": "array", "items": _STATE},
    },
    "required": ["operator", "inputs", "key", "watermark", "states"],
}
_PROBLEM: JsonSchema = {
    "type": "object",
    "description": "What a client gets in place of an answer (RFC 9457).",
    "properties": {
        "type": {"const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "kind": {"type": "string", "description": "What went wrong, for programs."},
        "detail": {"type": "string", "description": "What went wrong and what to do."},
    },
    "required": ["type", "title", "status", "kind", "detail"],
}
_SQL_RESULT: JsonSchema = {
    "type": "object",
    "properties": {
        "columns": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "type": {"type": "string"}},
                "required": ["name", "type"],
            },
        },
        "rows": {"type": "array", "items": {"type": "array"}},
        "is_cut": {"type": "boolean", "description": "Whether there are more rows."},
    },
    "required": ["columns", "rows", "is_cut"],
}

SQL_QUERY: JsonSchema = {
    "type": "object",
    "properties": {
        "job": {"type": "string"},
        "sql": {"type": "string", "description": "One statement that reads."},
        "epoch": or_null(_EPOCH),
        "manifest": or_null(_CHECKSUM),
        "rows": {"type": "integer", "minimum": 1, "maximum": SQL_ROWS_MAX},
        "wide_ints": {"enum": ["decimal", "text", None]},
    },
    "required": ["job", "sql"],
    "additionalProperties": False,
}
"""JSON Schema of the body of a request that runs SQL."""


def with_facts(**members: JsonSchema) -> JsonSchema:
    """Return the JSON Schema of an answer: its members, and the facts of its epoch."""
    own = {"type": "object", "properties": members, "required": list(members)}
    return {"allOf": [reference("schemas", "Facts"), own]}


SCHEMAS: Mapping[str, JsonSchema] = {
    "Facts": _FACTS,
    "JobSummary": _SUMMARY,
    "Job": with_facts(operators={"type": "array", "items": _OPERATOR}),
    "Problem": _PROBLEM,
    "SqlAnswer": with_facts(value=_SQL_RESULT),
}

HEADERS: Mapping[str, Part] = {
    "ETag": {"description": "Stands for the value.", "schema": {"type": "string"}},
    "Last-Modified": {"description": "When the epoch was committed.", "schema": {"type": "string"}},
    "Location": {
        "description": "The address of the file of one epoch.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "How many seconds to wait.", "schema": {"type": "string"}},
    "Statekit-Epoch": {"description": "The epoch of the file.", "schema": {"type": "string"}},
    "Statekit-Is-Cut": {
        "description": "Whether there are more rows.",
        "schema": {"enum": ["true", "false"]},
    },
}

_TAG = {"ETag": reference("headers", "ETag")}


def answered(
    description: str, content: Mapping[str, JsonSchema], headers: Iterable[str] = ()
) -> Part:
    """Return the description of an answer.

    Parameters:
        content: the schema of each media type.
        headers: names of its headers.
    """
    found: Part = {
        "description": description,
        "content": {media_type: {"schema": schema} for media_type, schema in content.items()},
    }
    if headers:
        found["headers"] = {name: reference("headers", name) for name in headers}
    return found


# ------------------------------------------------------------------------------------ problems


def _problem(description: str, *kinds: str, retry: bool = False) -> Part:
    schema = {
        "allOf": [
            reference("schemas", "Problem"),
            {"type": "object", "properties": {"kind": {"enum": list(kinds)}}},
        ]
    }
    return answered(description, {PROBLEM_TYPE: schema}, ["Retry-After"] if retry else [])


_PROBLEMS: Mapping[int, tuple[str, Part]] = {
    400: (
        "BadRequest",
        _problem(
            "The request cannot be understood.", "bad_request", "state_type", "query", "wide_ints"
        ),
    ),
    401: ("Unauthorized", _problem("The request has no known token.", "unauthorized")),
    403: ("Forbidden", _problem("The token may not read this.", "forbidden")),
    404: (
        "NotFound",
        _problem("There is no such thing, or nothing for the key.", "absent", "not_found", "query"),
    ),
    405: ("NotAllowed", _problem("The address has no such method.", "method_not_allowed")),
    409: ("Behind", _problem("The epoch is not reached.", "behind")),
    410: ("Gone", _problem("The epoch can no longer be read.", "gone")),
    412: ("OtherFile", _problem("The file is not the one that is meant.", "precondition")),
    416: ("NoSuchPart", _problem("The file has no such part.", "range")),
    413: ("TooLarge", _problem(f"More than {KEYS_MAX:,} keys, or too many bytes.", "too_large")),
    421: ("UnknownHost", _problem("The server does not have this name.", "unknown_host")),
    429: ("TooMany", _problem("Too many requests.", "too_many", retry=True)),
    500: ("Internal", _problem("The server failed.", "internal", "state_schema")),
    503: (
        "Unavailable",
        _problem(
            "Nothing can be read now.",
            *("not_ready", "too_many", "timeout", "disk_full", "closing"),
            *("storage", "corrupt_checkpoint", "statekit"),
        ),
    ),
}

RESPONSES: Mapping[str, Part] = {
    "NotModified": {"description": "The client has the value.", "headers": _TAG},
    "OfAnEpoch": {
        "description": "The file is at the address of the last epoch.",
        "headers": {name: reference("headers", name) for name in ("Location", "Statekit-Epoch")},
    },
    **dict(_PROBLEMS.values()),
}
"""Answers that many routes share, by name."""

PART_TYPES = (*MEDIA_TYPES.values(), "multipart/byteranges")
"""Media types of answers with one part of a file, and with several."""

FILE_HEADERS = ("ETag", "Last-Modified", "Statekit-Epoch")

FILE_CONDITIONS = [
    {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("If-Match", "The tag of the file that is meant."),
        (
            "If-Range",
            "The tag of the file that the parts are of; otherwise the answer is all of it.",
        ),
        ("Range", "Which parts of the file."),
    )
]
"""Header parameters of requests for files."""

OF_A_JOB = (400, 404, 409, 410)
"""Statuses of the problems of routes that read an epoch of a job."""

_OF_ALL = (421, 500, 503)
_OF_TOKENS = (401, 403, 429)


def problems(*statuses: int, is_open: bool = False) -> Part:
    """Return the problems of a route, by status.

    Parameters:
        statuses: those in addition to the problems of all routes.
        is_open: True if the route needs no token.

    >>> problems(400)["400"]
    {'$ref': '#/components/responses/BadRequest'}
    """
    found = {*statuses, *_OF_ALL, *(() if is_open else _OF_TOKENS)}
    return {str(status): reference("responses", _PROBLEMS[status][0]) for status in sorted(found)}
