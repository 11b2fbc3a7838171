"""OpenAPI document: the routes, and the addresses of all readable states with their types.

It follows from the declarations of the routes. A route that is declared with `is_typed` has an
address for each state or job that the token may read, with the types of the last epoch's job file.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from statekit.checkpoint.job_file import JobFile
from statekit.codec.json_schema import JsonSchema, free_name
from statekit.names import NAME_PATTERN
from statekit.server.answers.problems import MEDIA_TYPE as PROBLEM_TYPE
from statekit.server.answers.problems import PROBLEMS, ProblemBody
from statekit.server.jobs.served_job import Facts
from statekit.server.routes.openapi_states import JobTypes, StateTypes, is_shown
from statekit.server.routes.parameters import SHAPES
from statekit.server.routes.responses import HEADERS, JSON, SHARED, TYPE, Part, answered, reference
from statekit.server.routes.route_table import PATH_NAME, HttpRoute, RouteTable

_ABOUT = (
    "Committed state of stream processing jobs. Each answer is of one epoch. See "
    "docs/operate/serving.md for keys and epochs, and docs/operate/serving-clients.md for streams "
    "of events and SQL."
)
_OF_ALL, _OF_TOKENS = (421, 500, 503), (401, 403, 429)
"""Statuses of the problems of all routes, and of those that need a token."""

_NAMES = {
    "job": "The name of the job.",
    "operator": "The name of the operator.",
    "state": "The name of the state.",
    "key": "As text. Percent-encode it.",
    "format": "Of the file.",
    "name": "The name of the submitted job.",
}
"""Descriptions of the names in paths."""

_REQUEST_HEADERS = {
    "If-None-Match": ("304", "The tag of the value that the client has."),
    "If-Match": ("412", "The tag of the file that is meant."),
    "If-Range": ("206", "The tag of the file that the parts are of; otherwise all of it is sent."),
    "Range": ("206", "Which parts of the file."),
}
"""Headers of requests: the status of the answer that depends on them, and their descriptions."""


class _Parameter(NamedTuple):
    """A parameter in the document.

    Parameters:
        part: for states without types.
        shapes: as `SHAPES` in its JSON Schema; None if it does not depend on the state.
    """

    part: Part
    shapes: Mapping[str, str | None] | None = None

    def of(self, types: StateTypes | None) -> Part | None:
        """Return the parameter of a state; None if the state does not have it."""
        if self.shapes is None:
            return self.part
        shape = "any" if types is None or "any" in self.shapes else types.shape
        if shape not in self.shapes:
            return None
        kind = self.shapes[shape]
        if kind is None:
            return self.part
        own = {name: of for name, of in self.part.items() if name != "schema"}
        schema = {} if types is None else types.schemas[kind]
        return own | {"content": {JSON: {"schema": schema}}}


class Document:
    """Creates the OpenAPI documents of a route table.

    Parameters:
        table: the routes.
    """

    def __init__(self, table: RouteTable) -> None:
        self._routes = [route for route in table.routes if route.is_shown]
        self._parameters: dict[str, Part] = {}
        self._of_query = {id(route): self._query(route) for route in self._routes}
        self._of_headers = {id(route): self._headers(route) for route in self._routes}
        bodies = [(route.body, route.is_typed) for route in self._routes if route.body]
        self._bodies = _schemas_of(body for body, is_typed in bodies if is_typed)
        answers = {own for route in self._routes for own in _types(route.answers)}
        others = {body for body, is_typed in bodies if not is_typed}
        self._schemas = _schemas_of({Facts, ProblemBody} | answers | others)

    def made(self, jobs: Mapping[str, JobFile | None], hidden: tuple[str, ...] = ()) -> Part:
        """Return the document of some jobs.

        Parameters:
            jobs: the job files with the states to show, by alias; None before the first epoch.
            hidden: paths of routes that are left out.
        """
        paths: dict[str, Part] = {}
        for route in self._routes:
            is_shown = not route.is_typed and route.path not in hidden
            if is_shown and (jobs or "job" not in route.names):
                path = PATH_NAME.sub(r"{\1}", route.path)
                paths.setdefault(path, {})[route.method.lower()] = self._generic(route, list(jobs))
        schemas = dict(self._schemas)
        for alias, job in jobs.items():
            if job is not None:
                self.add(alias, job, paths, schemas)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "statekit",
                "version": importlib.metadata.version("statekit"),
                "description": _ABOUT,
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "parameters": self._parameters,
                "headers": HEADERS,
                "responses": {**SHARED, **_PROBLEM_RESPONSES},
            },
        }

    def add(
        self, alias: str, job: JobFile, paths: dict[str, Part], schemas: dict[str, JsonSchema]
    ) -> None:
        """Add the states of a job to the paths and components of a document.

        Parameters:
            alias: its name in addresses.
        """
        typed = [route for route in self._routes if route.is_typed]
        of_job, reads = JobTypes(alias, schemas), []
        for operator in job.operators:
            for state in operator.states:
                if not is_shown(operator, state):
                    continue
                types = of_job.of(operator, state)
                reads.append(types.schemas["read"])
                for route in typed:
                    if "state" in route.names:
                        given = {"job": alias, "operator": operator.name, "state": state.name}
                        self._add_typed(route, given, types, paths)
        if reads:
            shown = reads[0] if len(reads) == 1 else {"anyOf": reads}
            types = StateTypes(f"{alias}.", "", {"read": shown})
            for route in typed:
                if "state" not in route.names:
                    self._add_typed(route, {"job": alias}, types, paths)

    def _add_typed(
        self, route: HttpRoute, names: Mapping[str, str], types: StateTypes, paths: dict[str, Part]
    ) -> None:
        path = PATH_NAME.sub(lambda own: names.get(own[1], f"{{{own[1]}}}"), route.path)
        parameters = [types.key_in_path(_NAMES["key"]) for name in route.names if name not in names]
        operation = self._operation(route, parameters, types)
        operation["operationId"] = f"{types.name}.{route.name}"
        operation["tags"] = [".".join([*names.values()][:2])]
        paths.setdefault(path, {})[route.method.lower()] = operation

    def _generic(self, route: HttpRoute, aliases: list[str]) -> Part:
        """Return the operation of a route that is the same for all states."""
        parameters = []
        for name, choices in route.names.items():
            listed = aliases if name == "job" else choices.split("|") if choices else []
            schema: Part = {"enum": listed} if listed else {"type": "string"}
            if name == "name":  # of a submitted job
                schema["pattern"] = f"^{NAME_PATTERN}$"
            parameters.append(_in("path", name, schema, _NAMES[name], is_needed=True))
        operation = self._operation(route, parameters, None)
        return operation | ({"security": []} if route.is_open else {})

    def _operation(
        self, route: HttpRoute, in_path: list[Part], types: StateTypes | None
    ) -> dict[str, Any]:
        query = (own.of(types) for own in self._of_query[id(route)])
        schemas: Mapping[str, Any] = {} if types is None else types.schemas
        found: dict[str, Any] = {
            "operationId": route.name,
            "summary": (route.handler.__doc__ or "").partition("\n")[0],
            "tags": ["server"],
            "parameters": [*in_path, *filter(None, query), *self._of_headers[id(route)]],
            "responses": _filled(dict(route.answers), schemas) | _problems(route),
        }
        if route.body is not None:
            body = reference("schemas", route.body.__name__)
            if route.is_typed:
                body = _filled(self._bodies[route.body.__name__], schemas)
            content = {route.body_type: {"schema": body}}
            found["requestBody"] = {"required": True, "content": content}
        return found

    # --------------------------------------------------------------------------- parameters

    def _query(self, route: HttpRoute) -> list[_Parameter]:
        if route.query is None:
            return []
        schema = route.query.model_json_schema()
        needed = schema.get("required", ())
        found = []
        for name, own in schema["properties"].items():
            text = own.pop("description", "")
            shapes = own.pop(SHAPES, None)
            part = _in("query", name, _plain(own), text, is_needed=name in needed)
            is_same = shapes is None or None in shapes.values()
            found.append(_Parameter(self._shared(part) if is_same else part, shapes))
        return found

    def _headers(self, route: HttpRoute) -> list[Part]:
        statuses = {*route.answers, *map(str, route.problems)}
        return [
            self._shared(_in("header", name, {"type": "string"}, text))
            for name, (status, text) in _REQUEST_HEADERS.items()
            if status in statuses
        ]

    def _shared(self, part: Part) -> Part:
        """Add a parameter to the components once, and return the reference to it."""
        for name, own in self._parameters.items():
            if own == part:
                return reference("parameters", name)
        name = free_name(self._parameters, part["name"])
        self._parameters[name] = part
        return reference("parameters", name)


def _in(place: str, name: str, schema: JsonSchema, text: str, *, is_needed: bool = False) -> Part:
    """Return a parameter in the path, the query or the headers."""
    part: Part = {"name": name, "in": place, "schema": schema}
    return (
        part | ({"description": text} if text else {}) | ({"required": True} if is_needed else {})
    )


def _plain(schema: JsonSchema) -> JsonSchema:
    """Return the JSON Schema of a parameter without its title, and without null if it is absent."""
    own = {name: of for name, of in schema.items() if name not in ("title", "anyOf")}
    if own.get("default", 0) is None:
        del own["default"]
    for member in schema.get("anyOf", ()):
        if member != {"type": "null"}:
            own |= member
    return own


def _schemas_of(types: Iterable[Any]) -> dict[str, JsonSchema]:
    """Return the JSON Schemas of bodies and answers, by name."""
    template = "#/components/schemas/{name}"
    found = msgspec.json.schema_components(types, ref_template=template)[1]
    for own in found.values():
        own["description"] = own["description"].partition("\n")[0]
    return found


def _types(part: Any) -> list[Any]:
    """Return the types in a part of the document."""
    if isinstance(part, Mapping):
        return [own for each in part.values() for own in _types(each)]
    if isinstance(part, list):
        return [own for each in part for own in _types(each)]
    return [part] if isinstance(part, type) else []


def _filled(part: Any, schemas: Mapping[str, JsonSchema]) -> Any:
    """Return a part of the document with references to types, and the schemas of a state."""
    if isinstance(part, type):
        return reference("schemas", part.__name__)
    if isinstance(part, list):
        return [_filled(each, schemas) for each in part]
    if not isinstance(part, Mapping):
        return part
    if TYPE in part:
        return schemas[part[TYPE]]
    return {name: _filled(own, schemas) for name, own in part.items()}


# ------------------------------------------------------------------------------------ problems


def _problem(status: int) -> Part:
    text, kinds = PROBLEMS[status]
    of_kind = {"type": "object", "properties": {"kind": {"enum": list(kinds)}}}
    schema = {"allOf": [reference("schemas", ProblemBody.__name__), of_kind]}
    return answered(text, {PROBLEM_TYPE: schema}, *(["Retry-After"] if status == 429 else []))


_PROBLEM_RESPONSES = {f"Problem{status}": _problem(status) for status in PROBLEMS}


def _problems(route: HttpRoute) -> Part:
    """Return the problems of a route, by status."""
    found = {*route.problems, *_OF_ALL, *(() if route.is_open else _OF_TOKENS)}
    return {str(status): reference("responses", f"Problem{status}") for status in sorted(found)}
