"""Plain transport: requests of `Client` to addresses that begin with http://, over `http.client`.

httpx's own transport parses answers in Python, and takes three times as long as this: more than the
server needs for a thousand keys.
"""

from __future__ import annotations

import contextlib
import http.client
from collections import deque
from collections.abc import Iterator
from urllib.request import getproxies, proxy_bypass

import httpx

_PART = 64 * 1024


class PlainTransport(httpx.BaseTransport):
    """Sends requests without TLS and proxies, and keeps connections for the next ones. Threads may
    share it.
    """

    def __init__(self) -> None:
        self._idle: deque[http.client.HTTPConnection] = deque()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the answer whose body is still to be read.

        Raises:
            httpx.TransportError: the server cannot be reached, or the connection broke.
        """
        limits = request.extensions["timeout"]
        try:
            # A server may have closed a connection that was kept. Requests only read: they may be
            # sent twice.
            with contextlib.suppress(IndexError, ConnectionError):
                return self._answer(self._idle.pop(), request, limits["read"])
            connection = _connected(request.url, limits["connect"])
            return self._answer(connection, request, limits["read"])
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error) from error

    def _answer(
        self, connection: http.client.HTTPConnection, request: httpx.Request, timeout_s: float
    ) -> httpx.Response:
        target = request.url.raw_path.decode("ascii")
        try:
            connection.sock.settimeout(timeout_s)
            connection.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.raw:
                connection.putheader(name.decode("ascii"), value)
            connection.endheaders(request.read() or None)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        body = _Body(self, connection, answer)
        return httpx.Response(answer.status, headers=answer.getheaders(), stream=body)

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


class _Body(httpx.SyncByteStream):
    """The body of an answer. Its connection is kept if the body was read to its end."""

    def __init__(
        self,
        transport: PlainTransport,
        connection: http.client.HTTPConnection,
        answer: http.client.HTTPResponse,
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            if self._answer.length is not None:
                yield self._answer.read()
                return
            while part := self._answer.read1(_PART):
                yield part
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error) from error

    def close(self) -> None:
        if self._answer.isclosed() and self._connection.sock is not None:
            self._transport.keep(self._connection)
        else:
            self._connection.close()


def is_plain(url: str) -> bool:
    """Return whether requests to an address need neither TLS nor a proxy.

    >>> is_plain("https://state.example.com")
    False
    """
    parsed = httpx.URL(url)
    proxies = getproxies()
    has_proxy = "http" in proxies or "all" in proxies
    return parsed.scheme == "http" and not (has_proxy and not proxy_bypass(parsed.host))


def _connected(url: httpx.URL, timeout_s: float | None) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(url.host, url.port, timeout=timeout_s)
    try:
        connection.connect()
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error
    return connection


def _broken(error: Exception) -> httpx.TransportError:
    """Return the error of httpx for a connection that broke."""
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error))
    if isinstance(error, http.client.HTTPException):
        return httpx.RemoteProtocolError(str(error) or type(error).__name__)
    return httpx.ReadError(str(error))
