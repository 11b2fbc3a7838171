"""An S3 server on loopback, and what goes wrong between it and its clients.

The server is a process of its own. The proxy is threads of this one: it passes requests on, notes
them, and does to some of them what networks and busy servers do, by a seed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.support.ports import free_port
from tests.support.timeouts import PATIENCE_S

__all__ = ["ANSWER_LOST", "FAULTS", "FaultyProxy", "environment", "s3_server"]

FAULTS = ("503", "500", "reset before", "reset after", "500 after", "hang", "torn", "slow")
"""What can go wrong and pass. "after" is behind what was asked for: only the answer is lost."""

ANSWER_LOST = ("reset after", "500 after")
_HANG_SECONDS = 1.5
_TO_PASS_ON = ("host", "connection", "transfer-encoding", "content-length")


def environment(port: int) -> dict[str, str]:
    """What leads obstore to a server on loopback, and lets it in."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIASENTINELSENTINEL",
        "AWS_SECRET_ACCESS_KEY": "sentinel/of+the/secret",
        "AWS_SESSION_TOKEN": "sentinel-of-the-token",
        "STATEKIT_STORE_PAUSE_SECONDS": "0.01",
        "STATEKIT_STORE_TIMEOUT_SECONDS": "1",
        "STATEKIT_STORE_RETRY_SECONDS": "20",
    }


@contextlib.contextmanager
def s3_server(log: Path) -> Iterator[int]:
    """A server with a bucket `bucket`; gives its port."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as told:
        server = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        try:
            _wait_for(server, port, log)
            made = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
            urllib.request.urlopen(made, timeout=30).close()
            yield port
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
            return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not start: {log.read_text()}")


class FaultyProxy:
    """Passes requests on to a server, and some of them not, or half.

    Parameters:
        target: the port of the server.
        rate: which part of the requests goes wrong.
        kinds: how.
        wanted: which requests may, by method and path.

    Attributes:
        requests: what was asked for, in order.
        done: what went wrong with which of them.
    """

    def __init__(
        self,
        target: int,
        *,
        seed: int = 0,
        rate: float = 0.0,
        kinds: Sequence[str] = FAULTS,
        wanted: Callable[[str, str], bool] = lambda method, path: True,
    ) -> None:
        self.target = target
        self.rate = rate
        self.kinds = kinds
        self.wanted = wanted
        self.requests: list[tuple[str, str]] = []
        self.done: list[tuple[str, str, str]] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # cut on purpose
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fault(self, method: str, path: str) -> str | None:
        """What is to go wrong with a request."""
        with self._lock:
            self.requests.append((method, path))
            if not self.wanted(method, path) or self._random.random() >= self.rate:
                return None
            kind = self._random.choice(self.kinds)
            self.done.append((kind, method, path))
            return kind


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nothing: the proxy keeps notes."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        kind = self.proxy.fault(self.command, self.path)
        if kind == "hang":
            time.sleep(_HANG_SECONDS)
        if kind in ("hang", "reset before"):
            return self._reset()
        if kind in ("503", "500", "403"):
            return self._answer(int(kind), {}, b"<Error><Code>SlowDown</Code></Error>")
        status, headers, answer = self._asked(body)
        if kind == "reset after":
            return self._reset()
        if kind == "500 after":
            return self._answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        if kind == "flip" and answer:
            middle = len(answer) // 2
            answer = answer[:middle] + bytes([answer[middle] ^ 1]) + answer[middle + 1 :]
        return self._answer(status, headers, answer, kind)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.target, timeout=60)
        try:
            given = {k: v for k, v in self.headers.items() if k.lower() not in _TO_PASS_ON}
            given["Host"] = f"127.0.0.1:{self.proxy.target}"
            given["Content-Length"] = str(len(body))
            connection.request(self.command, self.path, body, given)
            answer = connection.getresponse()
            content = answer.read()
            headers = dict(answer.getheaders())
            return answer.status, headers, content
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, kind: str | None = None
    ) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", str(len(body)))
        for name, value in headers.items():
            if name.lower() not in _TO_PASS_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if kind == "torn" and body:
            self.wfile.write(body[: len(body) // 2])
            return self._reset()
        step = max(1, len(body) // 4) if kind == "slow" else max(1, len(body))
        for start in range(0, len(body), step):
            self.wfile.write(body[start : start + step])
            if kind == "slow":
                time.sleep(0.02)
        return None

    def _reset(self) -> None:
        """Cut the connection, so that the client is told that it was reset."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def set_environment(monkeypatch: Any, port: int) -> None:
    """Let this test, and what it starts, ask the server at a port."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
