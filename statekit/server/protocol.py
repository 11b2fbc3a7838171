"""HTTP protocol: answers requests that cannot be parsed, or are too many, with a problem."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from statekit.server.answers.problems import MEDIA_TYPE, bad_request, response_of, too_many


class ProblemProtocol(HttpToolsProtocol):
    """The HTTP connection of one client."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn would answer with text.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._application, self.app = self.app, self._limited

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._most is not None and len(self.connections) > self._most:
            problem = too_many("too many connections are open: try again", retry_s=5)
            await response_of(problem)(scope, receive, send)
            return
        await self._application(scope, receive, send)

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not an HTTP request with a problem, and close the connection."""
        body = bad_request(f"this is no HTTP request ({msg.rstrip('.')}): check the client").body
        status = HTTPStatus.BAD_REQUEST
        headers = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in headers]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()
