"""Plain requests: requests of `Client` to addresses that begin with http://, with http.client.

httpx takes several times as long for each request: more than the server needs for a thousand keys.
It still handles streams, TLS and proxies. Errors are those of httpx, so that callers see one kind.
"""

from __future__ import annotations

import contextlib
import http.client
import select
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec


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
        self._base, self._timeout_s = base, timeout_s
        self._headers = {"User-Agent": "statekit", **headers}
        self._idle: deque[_Connection] = deque()

    def send(self, method: str, target: bytes, content: bytes | None) -> HttpAnswer:
        """Send a request, and return the answer.

        Parameters:
            target: path and parameters, as they are sent.

        Raises:
            httpx.TransportError: the server cannot be reached, or the connection broke.
        """
        request = method, target.decode(), content
        with _errors_of_httpx():
            kept = self._kept()
            if kept is not None:
                # The server may just have closed it. Requests only read: they may be sent twice.
                with contextlib.suppress(ConnectionError):
                    return self._exchanged(kept, *request)
            return self._exchanged(self._connected(), *request)

    def _kept(self) -> _Connection | None:
        """Return an idle connection that the server has not closed; None if there is none."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                is_readable = select.poll()
                is_readable.register(connection.sock, select.POLLIN)
                if not is_readable.poll(0):
                    return connection
                connection.close()
        return None

    def _exchanged(
        self, connection: _Connection, method: str, target: str, body: bytes | None
    ) -> HttpAnswer:
        is_kept = False
        try:
            connection.request(method, target, body, self._headers)
            answer = connection.getresponse()
            content = answer.read()
            is_kept = not answer.will_close
        finally:
            if is_kept:
                self._idle.append(connection)
            else:
                connection.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return HttpAnswer(target.partition("?")[0], answer.status, headers, content)

    def _connected(self) -> _Connection:
        connection = _Connection(self._base.host, self._base.port, timeout=self._timeout_s)
        try:
            connection.connect()
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


class _Connection(http.client.HTTPConnection):
    """A connection that sends head and body of a request together, so that the server wakes up once
    for both.
    """

    _unsent = b""

    def send(self, data: Any) -> None:
        self._unsent += data

    def getresponse(self) -> http.client.HTTPResponse:
        """Send the request, and read the head of the answer."""
        unsent, self._unsent = self._unsent, b""
        super().send(unsent)
        return super().getresponse()


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
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
    except http.client.HTTPException as error:
        raise httpx.RemoteProtocolError(repr(error)) from error
