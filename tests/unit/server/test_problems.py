"""Every error is a problem, also below the routes, and HEAD is answered wherever GET is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from statekit.server.app import ROUTES
from statekit.server.routes.route_table import PATH_NAME
from tests.support.served import Sale, sell, server

KEY = {"operator": "sales", "state": "total", "key": '"rome"'}
PARAMETERS: dict[str, dict[str, str]] = {
    "/{job}/shards": {"operator": "sales"},
    "/{job}/top": {"operator": "sales"},
    "/{job}/key": {"operator": "sales", "key": '"rome"'},
    "/{job}/history": KEY,
}
OF_PATHS = {"path": "page.js", "format": "csv"}
SLOW = "/{job}/top"
"""Takes a process, and is answered as the others are."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    with server({"shop": home}, allow_origin=["https://board.example"], connections=8) as address:
        yield address


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    return answer.status_code, body["kind"]


def of_get() -> list[str]:
    """The paths of all routes that answer GET."""
    found = [route.path for route in ROUTES.routes if route.method == "GET"]
    return ["/openapi.json", *(path for path in found if path != SLOW)]


@pytest.mark.parametrize("path", of_get())
def test_head_is_answered_as_get_without_content(address: str, path: str) -> None:
    names = {"job": "shop", "operator": "sales", "state": "total", "key": "rome"}
    place = PATH_NAME.sub(lambda own: (names | OF_PATHS)[own[1]], path)
    params = PARAMETERS.get(path, {})
    got = httpx.get(address + place, params=params, follow_redirects=True)
    head = httpx.head(address + place, params=params, follow_redirects=True)
    assert got.status_code == head.status_code == 200
    assert not head.content
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # which count the requests
        is_json = path.startswith("/{job}") and "format" not in path
        lag = got.json().get("lag_ms") if is_json else None
        assert lag is not None or head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/jobs", (405, "method_not_allowed")),
        ("PUT", "/shop/sales/total/rome", (405, "method_not_allowed")),
        ("GET", "/assets/none.js", (404, "not_found")),
        ("GET", "/a/b/c/d/e/f", (404, "not_found")),
        ("POST", "/sql", (400, "bad_request")),
    ],
)
def test_what_no_route_answers_is_a_problem(
    address: str, method: str, path: str, expected: tuple[int, str]
) -> None:
    answer = httpx.request(method, address + path)
    assert problem(answer) == expected
    if answer.status_code == 405:
        assert answer.headers["allow"] == "GET, HEAD"


def test_a_preflight_of_another_site_is_a_problem(address: str) -> None:
    given = {"Access-Control-Request-Method": "GET"}
    refused = httpx.options(f"{address}/jobs", headers={**given, "Origin": "https://a.example"})
    assert problem(refused) == (400, "forbidden_origin")
    own = httpx.options(f"{address}/jobs", headers={**given, "Origin": "https://board.example"})
    assert own.status_code == 200


def raw(address: str, request: bytes) -> tuple[bytes, Any]:
    """The head of the answer to bytes that are sent, and its body as JSON."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, json.loads(body)


@pytest.mark.parametrize(
    "request_",
    [b"nonsense\r\n\r\n", b"GET /jobs HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\na b: c\r\n\r\n"],
)
def test_what_is_no_request_is_a_problem(address: str, request_: bytes) -> None:
    head, body = raw(address, request_)
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    assert (body["status"], body["kind"]) == (400, "bad_request")


def test_connections_beyond_the_limit_have_a_problem(address: str) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    others = [socket.create_connection((host, int(port))) for _ in range(10)]
    try:
        answer = httpx.get(f"{address}/jobs")
        assert problem(answer) == (503, "too_many")
        assert answer.headers["retry-after"] == "5"
    finally:
        for other in others:
            other.close()
