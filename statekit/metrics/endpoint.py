"""HTTP endpoint of a run: metrics for Prometheus, and its health for probes."""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from statekit.errors import StateTypeError, StorageError
from statekit.metrics.address import Address
from statekit.metrics.families import SampleCollector
from statekit.metrics.run_metrics import RunMetrics

_log = logging.getLogger("statekit.metrics")

_STOP_S = 0.1
"""Seconds between two checks of the server whether it was closed."""


class Endpoint:
    """Serves the metrics and the health of one run, in threads of this process.

    It is bound when it is created, so that a used port raises an error before the run starts. Each
    endpoint has a registry of its own.

    Parameters:
        address: the address to listen on.

    Attributes:
        url: the URL for Prometheus.
        is_closed: True once the port is free again.

    Raises:
        StateTypeError: the name of the host is not valid.
        StorageError: the machine has no such address, or another process uses the port.
    """

    def __init__(self, address: Address) -> None:
        self._registry = CollectorRegistry()
        try:
            family, where = _resolved(address)
            self._server = _Server(family, where, _Handler.factory(self._registry))
        except OSError as error:
            raise StorageError(
                f"the metrics cannot be served at {address} ({error}). Nothing was started: give "
                "metrics= another port, 0 for a free one, or an address of this machine"
            ) from error
        bound = Address(address.host, self._server.server_address[1])
        self.url = f"http://{bound!r}/metrics"
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self.is_closed = False

    def serve(self, job: str, metrics: RunMetrics) -> None:
        """Start to answer requests.

        Parameters:
            job: the name of the job, for the log.
            metrics: of the run.
        """
        self._registry.register(SampleCollector(metrics.samples))
        self._server.run = metrics
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_S,), name="statekit metrics", daemon=True
        )
        self._thread.start()
        _log.info("metrics of job %r: %s", job, self.url)

    def close(self) -> None:
        """Stop answering, and free the port. It is free after any call has returned."""
        with self._closing:
            if self._thread is not None:
                self._server.shutdown()
            self._server.server_close()
            self.is_closed = True


def _resolved(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the family and the IP address of a host.

    Raises:
        StateTypeError: the name is not a valid name of a host.
        OSError: no host has this name.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:
        raise StateTypeError(
            f"metrics={str(address)!r}: {address.host!r} is not the name of a host ({error}). "
            "Nothing was started: give a name or an IP address of this machine"
        ) from error
    family, _, _, _, where = found[0]
    return family, (str(where[0]), int(where[1]))


class _Server(ThreadingHTTPServer):
    """HTTP server with a thread for each connection.

    Parameters:
        family: of the address.
        where: the IP address and the port.
        handler: the class that answers a request.
    """

    def __init__(
        self, family: socket.AddressFamily, where: tuple[str, int], handler: type[MetricsHandler]
    ) -> None:
        self.address_family = family
        self.run: RunMetrics | None = None
        super().__init__(where, handler)

    def server_bind(self) -> None:
        # HTTPServer asks the name server for the name of this host, which can take seconds.
        socketserver.TCPServer.server_bind(self)


class _Handler(MetricsHandler):
    """Answers `/healthz` with the health, and other requests with all metrics. A silent client is
    disconnected after 10 seconds.
    """

    timeout = 10.0
    server: _Server

    def do_GET(self) -> None:  # noqa: N802 - the name is that of http.server
        parts = urlsplit(self.path)
        if parts.path == "/healthz":
            self._answer(*_health(self.server.run, parse_qs(parts.query)))
        else:
            super().do_GET()

    def _answer(self, status: HTTPStatus, facts: dict[str, object]) -> None:
        body = json.dumps(facts).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _health(
    run: RunMetrics | None, options: dict[str, list[str]]
) -> tuple[HTTPStatus, dict[str, object]]:
    """Return the answer to a probe.

    Parameters:
        run: answers once the start of the job has succeeded.
        options: with `longest`, an epoch that takes longer than so many seconds is a fault.
    """
    seconds = 0.0 if run is None else run.epoch_seconds
    facts: dict[str, object] = {"status": "ok", "epoch_seconds": round(seconds, 3)}
    try:
        longest = min(float(each) for each in options.get("longest", ["inf"]))
    except ValueError:
        return HTTPStatus.BAD_REQUEST, {"status": "longest= is a number of seconds"}
    if seconds > longest:
        return HTTPStatus.SERVICE_UNAVAILABLE, {**facts, "status": "the epoch takes too long"}
    return HTTPStatus.OK, facts
