"""Plain requests: real connections that stay, break, end and never answer."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from statekit.clock import sleep_s
from statekit.query.plain_requests import PlainRequests, is_plain

CHUNKED = b"encoding: chunked\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextmanager
def listening(serve: Callable[[socket.socket], bool]) -> Iterator[tuple[str, list[int]]]:
    """A server that answers each request with a function, which returns whether the connection goes
    on; its address; and how many requests each connection has sent.
    """
    requests: list[int] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            number = len(requests)
            requests.append(0)
            while line := self.rfile.readline():
                size = 0
                while line != b"\r\n":
                    name, _, of = line.partition(b": ")
                    size = int(of) if name.lower() == b"content-length" else size
                    line = self.rfile.readline()
                self.rfile.read(size)
                requests[number] += 1
                if not serve(self.connection):
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as it:
        threading.Thread(target=it.serve_forever, args=[0.05], daemon=True).start()
        try:
            yield f"http://127.0.0.1:{it.server_address[1]}", requests
        finally:
            it.shutdown()


def sends(answer: bytes, *, goes_on: bool = True) -> Callable[[socket.socket], bool]:
    """Answers each request with the same bytes."""

    def serve(connection: socket.socket) -> bool:
        connection.sendall(answer)
        return goes_on

    return serve


@contextmanager
def client_of(address: str, timeout_s: float = 5) -> Iterator[Callable[..., str]]:
    """Sends a request, and returns what is answered."""
    requests = PlainRequests(httpx.URL(address), {}, timeout_s)

    def text(method: str = "GET", content: bytes | None = None) -> str:
        return requests.send(method, b"/", content).content.decode()

    try:
        yield text
    finally:
        requests.close()


def test_a_connection_serves_one_request_after_the_other() -> None:
    with listening(sends(OK)) as (address, requests), client_of(address) as text:
        for _ in range(3):
            assert text("POST", b"body") == "ok"
            assert text() == "ok"
    assert requests == [6]


def test_a_request_has_the_headers_of_all_and_an_answer_its_own() -> None:
    seen: list[bytes] = []
    answer = b"HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\ncontent-length: 4\r\n\r\nbusy"
    with socket.create_server(("127.0.0.1", 0)) as listens:

        def serve() -> None:
            connection, _ = listens.accept()
            with connection:
                while not b"".join(seen).endswith(b"{}"):
                    seen.append(connection.recv(10_000))
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        base = httpx.URL(f"http://127.0.0.1:{listens.getsockname()[1]}")
        requests = PlainRequests(base, {"Authorization": "Bearer key"}, 5)
        found = requests.send("POST", b"/shop/get?epoch=1", b"{}")
        requests.close()
    head, _, body = b"".join(seen).partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert (first, body) == ("POST /shop/get?epoch=1 HTTP/1.1", b"{}")
    found_headers = {name.lower(): of for name, of in (line.split(": ") for line in headers)}
    expected = {"host": base.netloc.decode(), "authorization": "Bearer key", "content-length": "2"}
    assert expected.items() <= found_headers.items()
    assert found.headers["retry-after"] == "2"
    assert (found.path, found.status, found.content) == ("/shop/get", 429, b"busy")


def test_a_connection_that_the_server_has_closed_is_made_again() -> None:
    with listening(sends(OK, goes_on=False)) as (address, requests), client_of(address) as text:
        assert [text() for _ in range(3)] == ["ok"] * 3
    assert requests == [1, 1, 1]


LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"


def test_what_a_server_says_without_being_asked_is_no_answer() -> None:
    is_answered, is_late = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> bool:
        connection.sendall(OK)
        if not is_late.is_set():  # the first connection
            is_answered.wait(5)
            connection.sendall(LATE)
            is_late.set()
        return True

    with listening(serve) as (address, requests), client_of(address) as text:
        assert text() == "ok"
        is_answered.set()
        assert is_late.wait(5)
        assert text() == "ok"
    assert requests == [1, 1]


def test_an_answer_that_ends_the_connection_is_read() -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall there is"
    serve = sends(answer, goes_on=False)
    with listening(serve) as (address, requests), client_of(address) as text:
        assert [text() for _ in range(2)] == ["all there is"] * 2
    assert requests == [1, 1]


def test_an_answer_in_parts_is_put_together() -> None:
    def serve(connection: socket.socket) -> bool:
        for part in (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-", CHUNKED):
            connection.sendall(part)
            sleep_s(0.01)
        return True

    with listening(serve) as (address, requests), client_of(address) as text:
        assert [text(), text()] == ["one\ntwo\n"] * 2
    assert requests == [2]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.ReadError),
        (b"no HTTP at all\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", httpx.RemoteProtocolError),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nshort",
            httpx.RemoteProtocolError,
        ),
    ],
)
def test_an_answer_that_breaks_is_an_error(answer: bytes, error: type[Exception]) -> None:
    serve = sends(answer, goes_on=False)
    with listening(serve) as (address, _), client_of(address) as text, pytest.raises(error):
        text()


def test_a_server_that_does_not_answer_is_left_after_the_timeout() -> None:
    with (
        listening(sends(b"")) as (address, _),
        client_of(address, 0.2) as text,
        pytest.raises(httpx.ReadTimeout),
    ):
        text()


def test_nobody_who_listens_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with client_of(f"http://127.0.0.1:{port}") as text, pytest.raises(httpx.ConnectError):
        text()


def test_threads_have_connections_of_their_own() -> None:
    barrier = threading.Barrier(4)

    def serve(connection: socket.socket) -> bool:
        barrier.wait(5)
        connection.sendall(OK)
        return True

    with (
        listening(serve) as (address, requests),
        client_of(address) as text,
        ThreadPoolExecutor(4) as pool,
    ):
        assert set(pool.map(text, ["GET"] * 8)) == {"ok"}
    assert len(requests) == 4


def test_tls_and_proxies_are_left_to_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert is_plain("http://state.example.com:8080")
    assert not is_plain("https://state.example.com")
    monkeypatch.setenv("http_proxy", "http://proxy.example.com:3128")
    assert not is_plain("http://state.example.com:8080")
    monkeypatch.setenv("no_proxy", "state.example.com")
    assert is_plain("http://state.example.com:8080")
