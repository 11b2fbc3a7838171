"""OpenAPI document: the addresses of all readable states, with the types of keys and values.

The routes of FastAPI are the same for all jobs, and have no types of keys and values. So the
document has addresses for each state, from the job file of the last epoch. Of the generic routes it
has only those that are not about one state. For a route that `openapi_routes` does not describe,
FastAPI's description is used, with the problems and the security of all routes.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from statekit.checkpoint.job_file import JobFile
from statekit.server.access import Token
from statekit.server.answers import encode, is_known, tag_of
from statekit.server.described import readable_types
from statekit.server.openapi_parts import HEADERS, PARAMETERS, RESPONSES, SCHEMAS, Part
from statekit.server.openapi_routes import PATHS, of_jobs, others
from statekit.server.openapi_states import JobPaths
from statekit.server.problems import Problem, bad_request
from statekit.server.routes import Allowed, Jobs, Served

_KEPT = 16
"""Number of cached documents: tokens that may read different states have different ones."""

_COMPRESSION = 4

_TITLE = "statekit"
_ABOUT = (
    "Committed state of stream processing jobs. Each answer is of one epoch. See "
    "docs/operate/serving.md for keys, epochs, streams of events and SQL."
)

router = APIRouter()


@router.get("/openapi.json")
async def openapi(
    request: Request,
    served: Jobs,
    token: Allowed,
    job: str | None = None,
    operator: str | None = None,
) -> Response:
    """Return the OpenAPI document of the states that the token may read; with `job` or `operator`,
    only of that one.
    """
    documents: Documents = request.app.state.documents
    if job is not None:
        served.job(token, job)
    elif operator is not None:
        raise bad_request("operator= is of one job: give job=, too")
    document = await run_in_threadpool(lambda: documents.document(token, job, operator))
    headers = {
        "ETag": document.tag,
        "Cache-Control": "no-cache",
        "Vary": "Authorization, Accept-Encoding",
    }
    if is_known(document.tag, request.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(document.zipped), 200, headers, "application/json")
    headers["Content-Encoding"] = "gzip"
    return Response(document.zipped, 200, headers, "application/json")


class Document(NamedTuple):
    """An OpenAPI document.

    Parameters:
        zipped: the JSON with gzip. It takes a fiftieth, since the parts of states are alike.
        tag: its weak tag.
    """

    zipped: bytes
    tag: str


class Documents:
    """Creates the documents of a server, and caches the last ones.

    Parameters:
        app: the application with the routes.
        served: the jobs of the server.
    """

    def __init__(self, app: FastAPI, served: Served) -> None:
        self._served = served
        self._others = others(app.routes)
        self._kept: OrderedDict[object, Document] = OrderedDict()
        self._making = threading.Lock()

    def document(
        self, token: Token, job: str | None = None, operator: str | None = None
    ) -> Document:
        """Return the document of the states that a token may read.

        Parameters:
            job: the only job in it; None for all.
            operator: the only operator in it; None for all.
        """
        found: dict[str, tuple[str, JobFile] | None] = {}
        for alias in self._served.jobs:
            if token.sees(alias) and job in (None, alias):
                found[alias] = self._job_file(alias, token, operator)
        versions = tuple((alias, own and own[0]) for alias, own in found.items())
        identity = (token.read, versions, operator)
        with self._making:  # one at a time: a document of many states takes a second
            document = self._kept.pop(identity, None)
            if document is None:
                files = {alias: None if own is None else own[1] for alias, own in found.items()}
                body = encode(self._made(token, files))
                document = Document(gzip.compress(body, _COMPRESSION), tag_of(body))
            self._kept[identity] = document
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return document

    def _job_file(
        self, alias: str, token: Token, operator: str | None
    ) -> tuple[str, JobFile] | None:
        """Return the checksum of the job file of the last epoch, and the file with only the states
        of the document; None before the first epoch.

        Raises:
            Problem: the operator has no state that the token may read.
        """
        try:
            view = self._served.jobs[alias].last()
        except Problem:
            return None

        def may_read(own: str, state: str) -> bool:
            return operator in (None, own) and token.may_read(alias, own, state)

        readable = readable_types(view.job_file, may_read)
        if operator is not None and not readable.operators:
            raise Problem(
                404, "not_found", f"job {alias!r} has no operator {operator!r:.100} to be read"
            )
        return view.job_file_checksum, readable

    def _made(self, token: Token, jobs: Mapping[str, JobFile | None]) -> Part:
        paths = {**PATHS, **self._others.paths, **(of_jobs(list(jobs)) if jobs else {})}
        if not token.may_read_all:
            del paths["/metrics"]
        schemas = {**SCHEMAS, **self._others.schemas}
        for alias, job in jobs.items():
            if job is not None:
                JobPaths(alias, paths, schemas).add(job)
        components: dict[str, Any] = {
            "schemas": schemas,
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": RESPONSES,
        }
        version = importlib.metadata.version("statekit")
        document: Part = {
            "openapi": "3.1.0",
            "info": {"title": _TITLE, "version": version, "description": _ABOUT},
            "paths": paths,
            "components": components,
        }
        if not self._served.access.is_open:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        return document
