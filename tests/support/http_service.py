"""A service over HTTP on a free port of this host, which counts what it is asked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.timeouts import PATIENCE_S

__all__ = ["Service", "service"]


class Service:
    """What a service was asked, and how it behaves.

    Attributes:
        url: of the service. `GET url/name` answers with the name in capitals.
        asked: how often each name was asked for.
        answered: how often each name was answered.
        most_open: the largest number of requests at one time.
        connections: how many connections were opened.
        fails: how often each name is answered with an error before it is answered.
        hangs: the names that are answered when the service ends.
        held: if set, answers wait until `released` is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.most_open = 0
        self.connections = 0
        self.fails: Counter[str] = Counter()
        self.hangs: set[str] = set()
        self.held = False
        self.released = threading.Event()
        self.lock = threading.Lock()
        self._open = 0

    def begin(self, name: str) -> None:
        """Count a request."""
        with self.lock:
            self.asked[name] += 1
            self._open += 1
            self.most_open = max(self.most_open, self._open)

    def end(self) -> None:
        """Count the end of a request."""
        with self.lock:
            self._open -= 1

    def status(self, name: str) -> int:
        """Return the status of the answer."""
        if name in self.hangs or self.held:
            self.released.wait(PATIENCE_S)
        with self.lock:
            if self.asked[name] <= self.fails[name]:
                return 503
            self.answered[name] += 1
        return 200


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def setup(self) -> None:
        super().setup()
        with self.service.lock:
            self.service.connections += 1

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        self.service.begin(name)
        status = self.service.status(name)
        self.service.end()  # before the client can have the answer, and asks the next question
        text = name.upper().encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:  # the client did not wait for the answer
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Write nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


@contextmanager
def service() -> Iterator[Service]:
    """Run a service, and end it."""
    served = Service()
    handler = type("Handler", (_Handler,), {"service": served})
    with _Server(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            server.shutdown()
            thread.join(PATIENCE_S)
