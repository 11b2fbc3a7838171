"""Route of the OpenAPI document, and its cache."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from statekit.checkpoint.job_file import JobFile
from statekit.server.admission.access import Token
from statekit.server.answers.problems import Problem, bad_request
from statekit.server.answers.values import Zipped, encode
from statekit.server.routes.call import RouteCall, Served
from statekit.server.routes.described import readable_types
from statekit.server.routes.openapi import Document
from statekit.server.routes.responses import JSON, NOT_MODIFIED, answered
from statekit.server.routes.route_table import RouteTable

_KEPT = 16
"""Number of cached documents: tokens that may read different states have different ones."""


class _DocumentParameters(BaseModel, extra="forbid"):
    job: str | None = Field(None, description="Of this job alone.")
    operator: str | None = Field(None, description="Of this operator of the job alone.")


def documents_of(table: RouteTable, served: Served) -> RouteTable:
    """Return the route of the document of a table, which the document has, too."""
    routes = RouteTable()
    answers = {"200": answered("The document.", {JSON: {"type": "object"}}, "ETag")}

    @routes.get("/openapi.json", answers | NOT_MODIFIED, problems=(400, 404))
    async def openapi(call: RouteCall, asked: _DocumentParameters) -> Response:
        """Return this document, with the states that the token may read."""
        if asked.job is not None:
            served.job(call.token, asked.job)
        elif asked.operator is not None:
            raise bad_request("operator= is of one job: give job=, too")
        found = await run_in_threadpool(documents.of, call.token, asked.job, asked.operator)
        return found.answer(call.headers, "Authorization, Accept-Encoding")

    complete = RouteTable(routes, table)
    documents = _Documents(Document(complete), served)
    return complete


class _Documents:
    """Creates the documents of a server, and caches the last ones. With gzip they take a fiftieth,
    since the parts of states are alike.
    """

    def __init__(self, document: Document, served: Served) -> None:
        self._document, self._served = document, served
        self._kept: OrderedDict[object, Zipped] = OrderedDict()
        self._making = threading.Lock()

    def of(self, token: Token, job: str | None, operator: str | None) -> Zipped:
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
                made = self._document.made(files, () if token.may_read_all else ("/metrics",))
                if not self._served.access.is_open:
                    scheme = {"token": {"type": "http", "scheme": "bearer"}}
                    made["components"] = {**made["components"], "securitySchemes": scheme}
                    made["security"] = [{"token": []}]
                document = Zipped.of(encode(made), JSON)
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
