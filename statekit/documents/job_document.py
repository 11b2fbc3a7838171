"""Jobs as documents: the calls that declared a job, as JSON with a version and a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json

from statekit.checkpoint.sealed_json import faults_of
from statekit.declared_call import DECLARABLE
from statekit.documents.signatures import arguments_type, called
from statekit.documents.values import Reading, value_to_json
from statekit.errors import StateTypeError
from statekit.job.declarations import RECORDED, Declaration
from statekit.job.job import Job
from statekit.job.stream import Stream, Windowed
from statekit.keygroup import MAX_GROUPS
from statekit.kv.store import KVStore
from statekit.shown import shown, type_name

VERSION = 1
"""The version of documents that this release writes and reads."""

BYTES_MAX = 8 << 20
"""The size of the largest document that is read, in bytes."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class WindowDocument(_Strict):
    """The windows that a call belongs to: a call of `Stream.window`."""

    of: list[str]
    arguments: dict[str, JsonValue] = Field(alias="with", default_factory=dict)


class StepDocument(_Strict):
    """A call that adds to a job.

    Parameters:
        call: such as "stream.join".
        of: for a call of a stream, its names; of a store, the name; of windows, their own call.
        arguments: by parameter.
    """

    call: str
    of: list[str] | str | WindowDocument | None = None
    arguments: dict[str, JsonValue] = Field(alias="with", default_factory=dict)


class JobDocument(_Strict):
    """A job as a document.

    Parameters:
        statekit: the kind of the document.
        version: of its form.
        name, key_groups: of the job.
        steps: the calls, each after those whose streams it takes.
    """

    statekit: Literal["job"]
    version: Literal[1]
    name: str
    key_groups: int | None = Field(default=None, ge=1, le=MAX_GROUPS)
    steps: list[StepDocument]


def job_to_json(job: Job, indent: int | None = None) -> str:
    """Return a job as a JSON document. `Job.to_json` describes it."""
    document: dict[str, Any] = {"statekit": "job", "version": VERSION, "name": job.name}
    if job.key_groups is not None:
        document["key_groups"] = job.key_groups
    document["steps"] = [_step(number, each) for number, each in enumerate(job.plan.declarations)]
    return json.dumps(document, indent=indent, ensure_ascii=False)


def job_from_json(
    text: str | bytes,
    modules: Sequence[str] | None = None,
    *,
    changed: bool = False,
    digests: bool = False,
) -> Job:
    """Return the job of a document. `Job.from_json` describes it.

    Parameters:
        digests: refuse functions without their digests.
    """
    document = read_document(text)
    job = Job(document.name, key_groups=document.key_groups)
    builder = _Builder(job, modules, changed=changed, digests=digests)
    for number, step in enumerate(document.steps):
        builder.add(step, f"steps.{number}")
    return job


def read_document(text: str | bytes) -> JobDocument:
    """Return a document with its structure checked. Nothing is imported.

    Raises:
        StateTypeError: it is no text, too large, no JSON, of another version, or has unknown,
            missing or repeated parts.
    """
    if not isinstance(text, str | bytes):
        raise StateTypeError(
            f"the document of the job is of type {type_name(text)}: give the text of to_json(), as "
            "str or bytes"
        )
    size = len(text)
    if size > BYTES_MAX:
        raise StateTypeError(
            f"the document has {size:,} characters, and at most {BYTES_MAX:,} are read: is it the "
            "document of a job?"
        )
    try:
        from_json(text)  # refuses a document that is too deep
        parts = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        raise StateTypeError(f"the document of the job is no JSON: {error}") from error
    version = parts.get("version") if isinstance(parts, dict) else None
    if version is not None and (type(version) is not int or version != VERSION):
        raise StateTypeError(
            f"version: the document has version {shown(version)}, and this release reads "
            f"{VERSION}: write it again with this release, or read it with the one that wrote it"
        )
    try:
        document = JobDocument.model_validate(parts)
    except ValidationError as error:
        raise StateTypeError(f"the document of the job is not valid: {faults_of(error)}") from error
    for number, step in enumerate(document.steps):
        _check_arguments(step, f"steps.{number}")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON.

    Raises:
        ValueError: it has a name twice, so that readers of the document may differ.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has {shown(name, 100)} twice: remove one of them")
        found[name] = value
    return found


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of documents: an object per call, with its parameters.

    >>> step = job_schema()["$defs"]["stream.sink"]
    >>> sorted(step["properties"])
    ['call', 'of', 'with']
    """
    schema = JobDocument.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    del definitions["StepDocument"]
    for call, method in sorted(RECORDED.items()):
        definitions[call] = _step_schema(
            call, arguments_type(method, call, of_method=True).json_schema()
        )
    for name, made in sorted(DECLARABLE.items()):
        arguments = arguments_type(made, name, of_method=False).json_schema()
        definitions[name] = {
            "type": "object",
            "properties": {"$call": {"const": name}, "with": _without_definitions(arguments)},
            "required": ["$call"],
            "additionalProperties": False,
        }
    steps = [{"$ref": f"#/$defs/{call}"} for call in sorted(RECORDED) if call != "stream.window"]
    schema["properties"]["steps"]["items"] = {"oneOf": steps}
    definitions.setdefault("JsonValue", {})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# -------------------------------------------------------------------------------------- writing


def _step(number: int, declaration: Declaration) -> dict[str, Any]:
    at = f"steps.{number}"
    of = _receiver(declaration.receiver, f"{at}.of")
    step: dict[str, Any] = {"call": declaration.call}
    if of is not None:
        step["of"] = of
    if arguments := _with(declaration, at):
        step["with"] = arguments
    return step


def _with(declaration: Declaration, at: str) -> dict[str, Any]:
    return {
        name: value_to_json(value, f"{at}.with.{name}")
        for name, value in declaration.arguments.items()
    }


def _receiver(receiver: Any, at: str) -> Any:
    if isinstance(receiver, Windowed):
        window = receiver.declaration
        return {"of": list(window.receiver.names), "with": _with(window, at)}
    if isinstance(receiver, Stream):
        return list(receiver.names)
    return None if isinstance(receiver, Job) else receiver.name


# -------------------------------------------------------------------------------------- reading


def _check_arguments(step: StepDocument, at: str) -> None:
    method = RECORDED.get(step.call)
    if method is None or step.call == "stream.window":
        calls = ", ".join(sorted(RECORDED.keys() - {"stream.window"}))
        raise StateTypeError(f"{at}.call: there is no {shown(step.call, 100)}: calls are {calls}")
    _validated(step.call, step.arguments, f"{at}.with")
    if isinstance(step.of, WindowDocument):
        _validated("stream.window", step.of.arguments, f"{at}.of.with")


def _validated(call: str, arguments: dict[str, Any], at: str) -> None:
    try:
        arguments_type(RECORDED[call], call, of_method=True).validate_python(arguments)
    except ValidationError as error:
        raise StateTypeError(
            f"the document of the job is not valid: {faults_of(error, at)}"
        ) from error


class _Builder:
    """Makes the calls of a document.

    Parameters:
        job: to which they add.
        modules, changed, digests: as for `job_from_json`.
    """

    def __init__(
        self, job: Job, modules: Sequence[str] | None, *, changed: bool, digests: bool
    ) -> None:
        self._job = job
        self._stores: dict[str, KVStore[Any, Any]] = {}
        self._reading = Reading(modules, self._stream, changed, digests)

    def add(self, step: StepDocument, at: str) -> None:
        """Make one call.

        Raises:
            StateTypeError: it is not valid. The message begins with its place.
        """
        receiver = self._receiver(step, f"{at}.of")
        arguments = self._reading.arguments(step.arguments, f"{at}.with")
        made = called(RECORDED[step.call], arguments, f"{at} ({step.call})", receiver)
        if isinstance(made, KVStore):
            self._stores[made.name] = made

    def _receiver(self, step: StepDocument, at: str) -> Any:
        kind = step.call.partition(".")[0]
        if kind == "job" and step.of is None:
            return self._job
        if kind == "stream" and isinstance(step.of, list):
            return self._stream(step.of, at)
        if kind == "window" and isinstance(step.of, WindowDocument):
            stream = self._stream(step.of.of, f"{at}.of")
            arguments = self._reading.arguments(step.of.arguments, f"{at}.with")
            return called(RECORDED["stream.window"], arguments, at, stream)
        if kind == "store" and isinstance(step.of, str) and step.of in self._stores:
            return self._stores[step.of]
        raise StateTypeError(f"{at}: {shown(step.of, 100)} is not what {step.call} is called of")

    def _stream(self, names: Any, at: str = "") -> Stream[Any]:
        if not isinstance(names, list) or not names:
            raise StateTypeError(f"{at}: {shown(names, 100)} is no list of names of streams")
        for name in names:
            if not (isinstance(name, str) and self._job.plan.has_stream(name)):
                raise StateTypeError(
                    f"{at}: there is no stream {shown(name, 100)} before this step"
                )
        return Stream(self._job.plan, *names)


# --------------------------------------------------------------------------------------- schema


def _step_schema(call: str, arguments: dict[str, Any]) -> dict[str, Any]:
    kind = call.partition(".")[0]
    names = {"type": "array", "items": {"type": "string"}}
    of: Mapping[str, Any] = {
        "stream": names,
        "window": {"$ref": "#/$defs/WindowDocument"},
        "store": {"type": "string"},
    }
    properties: dict[str, Any] = {"call": {"const": call}}
    if kind != "job":
        properties["of"] = of[kind]
    properties["with"] = _without_definitions(arguments)
    needed = ("call", "of", "with") if arguments.get("required") else ("call", "of")
    required = [name for name in needed if name in properties]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _without_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the definitions of a schema that is put into another one, which has them."""
    schema.pop("$defs", None)
    return schema
