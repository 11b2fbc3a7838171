"""Requests that wait for an epoch: how many may, and that they end with their client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.served import Sale, sell, server
from tests.support.waiting import until
from tests.unit.server.test_access import kind, token_file

WAITS = ("/shop/epochs?after=0&wait=60", "/shop/sales/total?min_epoch=9&wait=60")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


@contextmanager
def asked(address: str, path: str, token: str = "") -> Iterator[None]:
    """Send a request, and leave without its answer at the end."""
    url = httpx.URL(address)
    with socket.create_connection((url.host, url.port or 80)) as connection:
        given = f"Authorization: Bearer {token}\r\n" if token else ""
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\n{given}\r\n".encode())
        yield


def wait(address: str, token: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{address}/shop/epochs?after=0&wait=0.01", headers=headers)


def test_only_so_many_requests_wait_and_each_as_long_as_its_client_is_there(home: Path) -> None:
    with server({"shop": home}, waits=4) as address:
        with ExitStack() as waiting:
            for path in WAITS * 2:
                waiting.enter_context(asked(address, path))
            until(lambda: wait(address).status_code == 503)
            refused = wait(address)
            assert kind(refused) == (503, "too_many")
            assert refused.headers["retry-after"] == "5"
            assert httpx.get(f"{address}/shop/sales/total/rome").status_code == 200
            assert httpx.get(f"{address}/shop/epochs?after=0").json()["value"] == []
        until(lambda: wait(address).status_code == 200)


def test_clients_that_left_take_no_connections(home: Path) -> None:
    with server({"shop": home}, connections=40) as address:
        for _ in range(5):
            with ExitStack() as waiting:
                for path in WAITS * 10:
                    waiting.enter_context(asked(address, path))
            until(lambda: httpx.get(f"{address}/healthz").status_code == 200, seconds=5)


def test_the_requests_of_one_token_leave_places_for_others(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("one", "1", ["*"]), ("two", "2", ["*"]))
    with server({"shop": home}, tokens=tokens, waits_of_token=2) as address, ExitStack() as waiting:
        for path in WAITS:
            waiting.enter_context(asked(address, path, "1"))
        until(lambda: wait(address, "1").status_code == 503)
        assert wait(address, "2").status_code == 200
