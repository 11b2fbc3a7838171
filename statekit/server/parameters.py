"""Parameters: refuses requests with a parameter that their route does not know.

Otherwise, the answer to a misspelt `epoch=` would be of another epoch than the requested one.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from statekit.server.problems import bad_request


def check_parameters(request: Request) -> None:
    """Check that the route of a request knows its parameters.

    Raises:
        Problem: it does not know a parameter.
    """
    given = request.query_params.keys()
    route = request.scope.get("route")
    if not given or not isinstance(route, APIRoute):
        return
    known = set(_names(route.dependant))
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        names = ", ".join(sorted(known)) or "none"
        raise bad_request(f"there is no parameter {unknown!r:.50} here: there are {names}")


def _names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the parameters of a route and of its dependencies."""
    yield from (field.alias for field in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _names(dependency)
