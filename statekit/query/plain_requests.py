"""Plain requests: requests of `Client` to addresses that begin with http://, over sockets and
httptools.

httpx takes several times as long for each request: more than the server needs for a thousand keys.
It still handles streams, TLS and proxies. Errors are those of httpx, so that callers see one kind.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

import httptools
import httpx
import msgspec

_PART = 64 * 1024
_DEFAULT_PORT = 80


class HttpAnswer(NamedTuple):
    """An answer of a server.

    Parameters:
        path: of the request.
        headers: by their names in lower case.
    """

    path: str
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the content, decoded as JSON.

        Raises:
            ValueError: it is not JSON.
        """
        return msgspec.json.decode(self.content)


class PlainRequests:
    """Sends requests to one server, and keeps connections for later ones. Threads may share it.

    Parameters:
        base: the address of the server.
        headers: of all requests.
        timeout_s: the longest wait, in seconds.
    """

    def __init__(self, base: httpx.URL, headers: Mapping[str, str], timeout_s: float) -> None:
        self._address = base.host, base.port or _DEFAULT_PORT
        self._timeout_s = timeout_s
        self._idle: deque[socket.socket] = deque()
        lines = [b"", b"host: " + base.netloc, b"accept: */*", b"user-agent: statekit"]
        lines += [f"{name}: {of}".encode() for name, of in headers.items()]
        self._headers = b"\r\n".join(lines)

    def send(self, method: str, target: bytes, content: bytes | None) -> HttpAnswer:
        """Send a request, and return the answer.

        Parameters:
            target: path and parameters, as they are sent.

        Raises:
            httpx.TransportError: the server cannot be reached, or the connection broke.
        """
        body = content or b""
        head = b"%b %b HTTP/1.1%b\r\n" % (method.encode(), target, self._headers)
        # In one part: the server has to wake up once.
        request = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
        with _errors_of_httpx():
            answer = self._answered(request)
        return HttpAnswer(target.partition(b"?")[0].decode(), *answer)

    def _answered(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        kept = self._kept()
        if kept is not None:
            # The server may just have closed it. Requests only read: they may be sent twice.
            with contextlib.suppress(ConnectionError):
                return self._exchanged(kept, request)
        return self._exchanged(self._connected(), request)

    def _kept(self) -> socket.socket | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                is_readable = select.poll()
                is_readable.register(connection, select.POLLIN)
                if not is_readable.poll(0):
                    return connection
                connection.close()
        return None

    def _exchanged(
        self, connection: socket.socket, request: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        is_kept = False
        try:
            connection.sendall(request)
            parsed = _Parsed()
            while not parsed.is_complete:
                parsed.feed(connection.recv(_PART))
            is_kept = parsed.goes_on
        finally:
            if is_kept:
                self._idle.append(connection)
            else:
                connection.close()
        return parsed.status, parsed.headers, b"".join(parsed.body)

    def _connected(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, self._timeout_s)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


class _Parsed:
    """An answer that is being read. httptools calls the methods that begin with `on_`.

    Attributes:
        is_complete: True after all of it was read.
        goes_on: True if its connection may be used again.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.is_complete = False
        self.on_message_begin()

    def feed(self, data: bytes) -> None:
        """Parse the next bytes; no bytes mean that the connection has ended.

        Raises:
            ConnectionError: it ended before the answer.
            httpx.RemoteProtocolError: it ended within the answer.
            httptools.HttpParserError: the bytes are not an answer.
        """
        if data:
            self._parser.feed_data(data)
        elif self._ends_with_connection:
            self.is_complete, self.goes_on = True, False
        elif self.status:
            raise httpx.RemoteProtocolError("the server closed the connection within its answer")
        else:
            raise ConnectionResetError("the server closed the connection before its answer")

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("two answers to one request")
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.goes_on = self._ends_with_connection = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._ends_with_connection = not self.headers.keys() & _LENGTHS

    def on_body(self, part: bytes) -> None:
        self.body.append(part)

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200  # others only announce one
        self.goes_on = self._parser.should_keep_alive()


_LENGTHS = {"content-length", "transfer-encoding"}


def is_plain(url: str) -> bool:
    """Return whether requests to an address need neither TLS nor a proxy.

    >>> is_plain("https://state.example.com")
    False
    """
    parsed = httpx.URL(url)
    proxies = getproxies()
    has_proxy = "http" in proxies or "all" in proxies
    return parsed.scheme == "http" and not (has_proxy and not proxy_bypass(parsed.host))


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Convert the errors of a broken connection to the errors that httpx would raise."""
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except httptools.HttpParserError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
