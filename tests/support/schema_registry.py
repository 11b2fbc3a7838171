"""A schema registry over HTTP on loopback, as small as tests need it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro


@dataclass
class Registry:
    """The schemas that a registry has.

    Parameters:
        port: of the server.
        credentials: `user:password` that requests must have; None if they need none.
    """

    port: int = 0
    credentials: str | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failures: int = 0

    @property
    def url(self) -> str:
        user = f"{self.credentials}@" if self.credentials else ""
        return f"http://{user}127.0.0.1:{self.port}"

    def encoded(self, schema: dict[str, Any], record: dict[str, Any]) -> bytes:
        """Return a record as producers write it. The schema is registered."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        data = io.BytesIO()
        fastavro.schemaless_writer(data, fastavro.parse_schema(schema), record)
        return b"\0" + self.schemas.index(schema).to_bytes(4, "big") + data.getvalue()

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        """Return the status and the content of the answer to a request."""
        self.requests.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {}
        wanted = self.credentials and base64.b64encode(self.credentials.encode()).decode()
        if wanted and authorization != f"Basic {wanted}":
            return 401, {}
        number = int(path.rpartition("/")[2])
        if not path.startswith("/schemas/ids/") or number >= len(self.schemas):
            return 404, {"error_code": 40403}
        return 200, {"schema": json.dumps(self.schemas[number])}


@contextlib.contextmanager
def schema_registry(credentials: str | None = None) -> Iterator[Registry]:
    """Give a registry that answers requests within this block."""
    registry = Registry(credentials=credentials)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = registry.answer(self.path, self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
