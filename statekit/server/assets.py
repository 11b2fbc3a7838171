"""Assets of the dashboard: its style, its script and its logo, served from memory to everyone."""

from __future__ import annotations

import gzip
import mimetypes
from importlib.resources import files
from typing import NamedTuple

import xxhash
from starlette.responses import RedirectResponse, Response

from statekit.server.answers import is_known
from statekit.server.call import RouteCall
from statekit.server.callers import PAGES
from statekit.server.problems import Problem
from statekit.server.route_table import RouteTable

routes = RouteTable()


class _Asset(NamedTuple):
    body: bytes
    packed: bytes
    media_type: str
    tag: str


def _read() -> dict[str, _Asset]:
    """Read all files, by their names, so that no request reads the file system."""
    found = {}
    for file in (files("statekit.server.dashboard") / "assets").iterdir():
        body = file.read_bytes()
        media_type = mimetypes.types_map[f".{file.name.rpartition('.')[2]}"]
        tag = f'W/"{xxhash.xxh3_128_hexdigest(body)}"'
        found[file.name] = _Asset(body, gzip.compress(body), media_type, tag)
    return found


_ASSETS = _read()


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
    is_packed = "gzip" in call.headers.get("accept-encoding", "")
    headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if is_known(found.tag, call.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    body = found.packed if is_packed else found.body
    return Response(body, 200, headers, found.media_type)
