"""Assets of the dashboard: its style, its script and its logo, served from memory to everyone."""

from __future__ import annotations

import mimetypes
from importlib.resources import files

from starlette.responses import RedirectResponse, Response

from statekit.server.admission.callers import PAGES
from statekit.server.answers.problems import Problem
from statekit.server.answers.values import Zipped
from statekit.server.routes.call import RouteCall
from statekit.server.routes.route_table import RouteTable

routes = RouteTable()

_ASSETS = {
    file.name: Zipped.of(file.read_bytes(), mimetypes.types_map[f".{file.name.rpartition('.')[2]}"])
    for file in (files("statekit.server.dashboard") / "assets").iterdir()
}
"""All files, by their names, so that no request reads the file system."""


@routes.get("/", {}, is_open=True, is_shown=False)
async def dashboard_page(_: RouteCall) -> Response:
    """Redirect to the dashboard. The address is relative: a proxy may serve it below a path."""
    return RedirectResponse(PAGES.removeprefix("/"))


@routes.get("/assets/{path:rest}", {}, is_open=True, is_shown=False)
async def asset(call: RouteCall, path: str) -> Response:
    """Return a file of the dashboard."""
    found = _ASSETS.get(path)
    if found is None:
        raise Problem(404, "not_found", f"the dashboard has no file {path!r:.100}")
    return found.answer(call.headers)
