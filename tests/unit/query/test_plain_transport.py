"""The plain transport: real connections that stay, break, end and never answer."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from statekit.query.plain_transport import PlainTransport, is_plain

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


def client_of(address: str, timeout_s: float = 5) -> httpx.Client:
    return httpx.Client(transport=PlainTransport(), base_url=address, timeout=timeout_s)


def test_a_connection_serves_one_request_after_the_other() -> None:
    with listening(sends(OK)) as (address, requests), client_of(address) as client:
        for _ in range(3):
            assert client.post("/", content=b"body").text == "ok"
            assert client.get("/").text == "ok"
    assert requests == [6]


def test_a_connection_that_the_server_has_closed_is_made_again() -> None:
    with listening(sends(OK, goes_on=False)) as (address, requests), client_of(address) as client:
        assert [client.get("/").text for _ in range(3)] == ["ok"] * 3
    assert requests == [1, 1, 1]


def test_an_answer_that_ends_the_connection_is_read() -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall there is"
    with (
        listening(sends(answer, goes_on=False)) as (address, requests),
        client_of(address) as client,
    ):
        assert [client.get("/").text for _ in range(2)] == ["all there is"] * 2
    assert requests == [1, 1]


def test_lines_of_a_stream_arrive_one_by_one() -> None:
    more = threading.Event()

    def serve(connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\none\n\r\n")
        more.wait(5)
        connection.sendall(b"4\r\ntwo\n\r\n0\r\n\r\n")
        return True

    with (
        listening(serve) as (address, requests),
        client_of(address) as client,
        client.stream("GET", "/") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "one"
        more.set()
        assert list(lines) == ["two"]
        assert client.get("/").text == "one\ntwo\n"
    assert requests == [2]


def test_a_stream_that_is_left_ends_its_connection() -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegins")
        if not connection.recv(1):
            ended.set()
        return False

    with listening(serve) as (address, _), client_of(address) as client:
        with client.stream("GET", "/"):
            pass
        assert ended.wait(5)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.RemoteProtocolError),
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
    with listening(serve) as (address, _), client_of(address) as client, pytest.raises(error):
        client.get("/")


def test_a_server_that_does_not_answer_is_left_after_the_timeout() -> None:
    with (
        listening(sends(b"")) as (address, _),
        client_of(address, 0.2) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        client.get("/")


def test_nobody_who_listens_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with client_of(f"http://127.0.0.1:{port}") as client, pytest.raises(httpx.ConnectError):
        client.get("/")


def test_threads_have_connections_of_their_own() -> None:
    barrier = threading.Barrier(4)

    def serve(connection: socket.socket) -> bool:
        barrier.wait(5)
        connection.sendall(OK)
        return True

    with (
        listening(serve) as (address, requests),
        client_of(address) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        assert {each.text for each in pool.map(client.get, ["/"] * 8)} == {"ok"}
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
