"""Assets of the dashboard: one page, its style and its JavaScript modules, served from memory.

The files are in the folder `dashboard` beside this one. The modules run in the browser unchanged,
without a build step. `dashboard/vendor` has third-party modules, pinned in
`dashboard/vendor/pins.json`. The page gets all data from the routes, with the token that its user
enters.
"""

from __future__ import annotations

import gzip
import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

import xxhash
from starlette.responses import Response

from statekit.server.answers import is_known
from statekit.server.call import RouteCall
from statekit.server.problems import Problem
from statekit.server.route_table import RouteTable

routes = RouteTable()

PAGE = "page.html"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Policy of the page: it may load scripts and styles of this server, and ask it for data."""

_SUFFIXES = (".html", ".css", ".js", ".svg")


class _Asset(NamedTuple):
    body: bytes
    packed: bytes
    media_type: str
    tag: str


def _read() -> dict[str, _Asset]:
    """Read all files of the dashboard, by their paths, so that no request reads the file system."""
    found = {}

    def add(folder: Traversable, path: str) -> None:
        for file in folder.iterdir():
            if file.is_dir():
                add(file, f"{path}{file.name}/")
            elif file.name.endswith(_SUFFIXES):
                body = file.read_bytes()
                media_type = mimetypes.types_map[f".{file.name.rpartition('.')[2]}"]
                tag = f'W/"{xxhash.xxh3_128_hexdigest(body)}"'
                found[path + file.name] = _Asset(body, gzip.compress(body), media_type, tag)

    add(files("statekit.server") / "dashboard", "")
    return found


_ASSETS = _read()


@routes.get("/", {}, is_open=True, is_shown=False)
async def dashboard_page(request: RouteCall) -> Response:
    """Return the dashboard."""
    return _answer(request, PAGE)


@routes.get("/assets/{path:rest}", {}, is_open=True, is_shown=False)
async def asset(request: RouteCall, path: str) -> Response:
    """Return a file of the dashboard."""
    return _answer(request, path)


def _answer(request: RouteCall, path: str) -> Response:
    found = _ASSETS.get(path)
    if found is None:
        raise Problem(404, "not_found", f"the dashboard has no file {path!r:.100}")
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        "ETag": found.tag,
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "Content-Security-Policy": POLICY,
    }
    if is_known(found.tag, request.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    body = found.packed if is_packed else found.body
    return Response(body, 200, headers, found.media_type)
