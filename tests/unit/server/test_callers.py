"""Callers: guessed tokens in all spellings and at all routes, and addresses behind proxies."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

import statekit as sk
from statekit.server.admission.access import Access
from statekit.server.admission.callers import OPEN_PAGES, Callers, address_of
from statekit.server.admission.options import ServerOptions
from statekit.server.admission.proxies import client_behind, trusted_networks
from statekit.server.app import ROUTES
from statekit.server.dashboard import pages
from statekit.server.serve import uvicorn_config
from tests.support.served import Sale, sell, server
from tests.unit.server.test_access import kind, token_file

READ = "/shop/sales/total/rome"
AT_ONCE = 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    return token_file(
        path,
        ("own", "own", ["*"]),
        ("new", "new", ["*"]),
        ("some", "some", ["shop/sales/total"]),
        ("empty", "", ["*"]),
    )


@pytest.fixture(scope="module")
def address(home: Path, tokens: Path) -> Iterator[str]:
    trusted = ["127.0.0.1"]  # so that each test has an address of its own
    with server(
        {"shop": home}, tokens=tokens, refusals=AT_ONCE / 10, trusted_proxy=trusted
    ) as address:
        yield address


ADDRESSES = itertools.count(1)


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    own = {"X-Forwarded-For": f"192.0.2.{next(ADDRESSES)}"}
    with httpx.Client(base_url=address, headers=own, timeout=30) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def statuses(client: httpx.Client, path: str, tokens: list[str]) -> list[int]:
    return [client.get(path, headers=bearer(token)).status_code for token in tokens]


def raw_statuses(client: httpx.Client, given: list[list[bytes]]) -> list[int]:
    """Send requests with `Authorization` headers that httpx would not send."""
    host, port = client.base_url.host, client.base_url.port
    found = []
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=20)) as connection:
        for headers in given:
            connection.putrequest("GET", READ)
            connection.putheader("X-Forwarded-For", client.headers["X-Forwarded-For"])
            for header in headers:
                connection.putheader("Authorization", header)
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
    return found


GUESSES = [f"guess{n}" for n in range(20)]
LIMITED = [401] * AT_ONCE + [429] * (len(GUESSES) - AT_ONCE)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/assets/page.js"),
        ("GET", "/assets/none.js"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("HEAD", "/"),
        ("OPTIONS", "/"),
        ("DELETE", "/"),
        ("POST", "/healthz"),
    ],
)
def test_a_request_for_an_open_page_makes_no_guess_known(
    client: httpx.Client, method: str, path: str
) -> None:
    for guess in GUESSES:
        assert client.request(method, path, headers=bearer(guess)).status_code < 500
    found = statuses(client, "/jobs", GUESSES)
    assert found == LIMITED
    assert client.get("/healthz").status_code == 200  # open pages are answered, also then


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing/at/all/here/too"),
        ("GET", "/favicon.ico"),
        ("GET", "/docs"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/shop/sales/total/%FF"),
        ("GET", "/shop/sales/total?limit=none"),
        ("GET", "/shop/sales/total.parquet"),
        ("HEAD", READ),
        ("OPTIONS", READ),
        ("DELETE", "/jobs"),
        ("POST", "/jobs"),
        ("POST", "/sql"),
        ("POST", "/shop/sales/total/stored"),
        ("POST", "/shop/sales/total/query"),
    ],
)
def test_a_guess_at_any_route_counts_and_makes_it_not_known(
    client: httpx.Client, method: str, path: str
) -> None:
    first = [client.request(method, path, headers=bearer(guess)) for guess in GUESSES]
    assert all(answer.status_code == 429 for answer in first[AT_ONCE:])
    assert statuses(client, "/jobs", [*GUESSES, "new"]) == [429] * (len(GUESSES) + 1)


def test_a_guess_that_watches_counts(client: httpx.Client) -> None:
    headers = {"Accept": "text/event-stream"}
    found = [
        client.get("/shop/sales/total", headers={**headers, **bearer(guess)}).status_code
        for guess in GUESSES
    ]
    assert found == LIMITED


SPELLINGS = [
    b"Bearer %b",
    b"bearer %b",
    b"BEARER %b",
    b"Bearer  %b",
    b"Bearer %b \t ",
    b"Bearer \t%b",
    b"Bearer %b\xa0",
    b"Bearer\t%b",
    b"Basic %b",
    b"Token %b",
    b"%b",
    b"Bearer %b,",
    b"Bearer %b, Bearer own",
    b"Bearer \xc3\xa9%b",
    b"Bearer \xff%b",
    b"Bearer " + b"x" * 20_000 + b"%b",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_guess_counts_in_any_spelling(client: httpx.Client, spelling: bytes) -> None:
    given = [[spelling % guess.encode()] for guess in GUESSES]
    assert raw_statuses(client, given) == LIMITED


@pytest.mark.parametrize("token", [b"", b" ", b"\t", b"Bearer", b"Bearer ", b"Bearer  \t "])
def test_an_empty_token_is_none(client: httpx.Client, token: bytes) -> None:
    assert raw_statuses(client, [[token]]) == [401]  # also if the file has its digest


def test_the_same_guess_in_many_spellings_is_refused_as_often(client: httpx.Client) -> None:
    given = [[b"Bearer" + b" " * n + b"guess"] for n in range(1, 21)]
    assert raw_statuses(client, given) == LIMITED


@pytest.mark.parametrize("right_one", [0, 1])
def test_several_authorization_headers_are_no_token(client: httpx.Client, right_one: int) -> None:
    given = [[b"Bearer " + guess.encode()] for guess in GUESSES]
    for headers in given:
        headers.insert(right_one, b"Bearer own")
    assert raw_statuses(client, given) == LIMITED


@pytest.mark.parametrize("path", [READ + "?token=own", "/jobs?access_token=own", READ])
def test_a_token_in_the_address_or_a_cookie_is_none(client: httpx.Client, path: str) -> None:
    answer = client.get(path, headers={"Cookie": "token=own; Authorization=Bearer own"})
    assert kind(answer) == (401, "unauthorized")


def test_each_spelling_of_a_right_token_is_one_caller(client: httpx.Client) -> None:
    assert client.get(READ, headers=bearer("own")).status_code == 200
    statuses(client, READ, GUESSES)
    spellings = [b"bearer own", b"BEARER own", b"Bearer    own", b"Bearer \t own  "]
    assert raw_statuses(client, [[spelling] for spelling in spellings]) == [200] * 4


def test_a_right_token_between_guesses_makes_none_of_them_known(client: httpx.Client) -> None:
    found = []
    for guess in GUESSES:
        assert client.get(READ, headers=bearer("own")).status_code == 200
        found += statuses(client, READ, [guess])
    assert found == LIMITED
    assert statuses(client, READ, ["new", "own"]) == [429, 200]


def test_scopes_cannot_be_guessed_between_right_requests(client: httpx.Client) -> None:
    found = []
    for n in range(20):
        found += statuses(client, READ, ["some"])
        found += statuses(client, f"/shop/sales/s{n}/x", ["some"])
    assert found == [200, 403] * AT_ONCE + [429] * (len(found) - 2 * AT_ONCE)


def test_guesses_that_are_sent_at_once_are_counted_at_once(client: httpx.Client) -> None:
    host, port = client.base_url.host, client.base_url.port
    sent = "".join(
        f"POST /sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {guess}\r\n"
        f"X-Forwarded-For: {client.headers['X-Forwarded-For']}\r\nContent-Length: 0\r\n"
        f"{'Connection: close' if guess == GUESSES[-1] else 'Accept: */*'}\r\n\r\n"
        for guess in GUESSES
    )
    with socket.create_connection((host, port or 80), timeout=20) as connection:
        connection.sendall(sent.encode())
        with connection.makefile("rb") as answers:
            found = re.findall(rb"HTTP/1.1 (\d+)", answers.read())
    assert list(map(int, found)) == LIMITED


def test_every_route_but_open_pages_checks_the_token() -> None:
    every = [*ROUTES.routes, *pages.routes.routes]
    without = {f"{route.method} {route.path}" for route in every if route.is_open}
    signs_in = "POST /-/"
    assert without == {signs_in, *(f"GET {path}" for path in (*OPEN_PAGES, "/assets/{path:rest}"))}


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": []})
    await send({"type": "http.response.body"})


async def _none() -> Message:
    return {"type": "http.request"}


async def _dropped(_: Message) -> None: ...


@pytest.mark.parametrize("kinds", ["addresses", "tokens", "networks"])
def test_the_limit_remembers_a_bounded_number_of_callers(tokens: Path, kinds: str) -> None:
    callers = Callers(refusing, Access(tokens), per_s=10)
    for n in range(10_500):
        token = f"guess{n}" if kinds == "tokens" else "guess"
        host = {
            "addresses": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}",
            "tokens": "10.0.0.1",
            "networks": f"2001:db8:0:{n:x}::1",
        }[kinds]
        scope = {
            "type": "http",
            "path": "/jobs",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
            "client": (host, 1),
        }
        with pytest.raises(StopIteration):
            callers(scope, _none, _dropped).send(None)
    assert callers.remembered <= 10_000


# ------------------------------------------------------------------------------------- proxies

PROXIES = trusted_networks(["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", ["6.6.6.6"], "192.0.2.1"),  # the peer is no proxy
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["6.6.6.6, 192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["6.6.6.6,192.0.2.7 , 10.1.2.3"], "192.0.2.7"),  # two proxies
        ("127.0.0.1", ["6.6.6.6", "192.0.2.7", "10.1.2.3"], "192.0.2.7"),  # several headers
        ("127.0.0.1", ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),  # a client among the proxies
        ("127.0.0.1", ["192.0.2.7:4711"], "192.0.2.7"),
        ("127.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("127.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("127.0.0.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("127.0.0.1", ["2001:DB8:0::7"], "2001:db8::7"),
        ("127.0.0.1", ["fe80::7%eth0"], "fe80::7"),
        ("127.0.0.1", ["::ffff:192.0.2.7"], "192.0.2.7"),
        ("::ffff:127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("::1", ["192.0.2.7, fd00::9"], "192.0.2.7"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", ["6.6.6.6, unknown"], "127.0.0.1"),
        ("127.0.0.1", ["6.6.6.6, _hidden, 10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["192.0.2.7,"], "127.0.0.1"),
        ("127.0.0.1", ["192.0.2.300"], "127.0.0.1"),
        ("127.0.0.1", ["192.0.2.07"], "127.0.0.1"),
        ("127.0.0.1", ["[2001:db8::7"], "2001:db8::7"),
        ("127.0.0.1", ["\x00\xff\n"], "127.0.0.1"),
        ("127.0.0.1", ["6.6.6.6" + ",10.0.0.1" * 100_000], "10.0.0.1"),
        ("/run/socket", ["192.0.2.7"], "/run/socket"),
    ],
)
def test_a_client_behind_proxies_is_the_last_address_that_is_not_trusted(
    peer: str, forwarded: list[str], expected: str
) -> None:
    headers = [each.encode("latin-1") for each in forwarded]
    assert client_behind(peer, headers, PROXIES) == expected


def test_addresses_that_a_client_invents_are_not_counted_apart(home: Path, tokens: Path) -> None:
    def guessed(address: str) -> list[int]:
        with httpx.Client(base_url=address, timeout=30) as client:
            return [
                client.get(
                    READ, headers={"X-Forwarded-For": f"6.6.6.{n}", **bearer(guess)}
                ).status_code
                for n, guess in enumerate(GUESSES)
            ]

    with server({"shop": home}, tokens=tokens, refusals=AT_ONCE / 10) as address:
        assert guessed(address) == LIMITED  # no proxy is trusted, on loopback neither
    trusting = {"tokens": tokens, "refusals": AT_ONCE / 10, "trusted_proxy": ["10.0.0.0/8"]}
    with server({"shop": home}, **trusting) as address:
        assert guessed(address) == LIMITED
    trusting["trusted_proxy"] = ["127.0.0.0/8"]
    with server({"shop": home}, **trusting) as address:
        assert guessed(address) == [401] * len(GUESSES)  # what the proxy says


@pytest.mark.parametrize("given", ["", "proxy.example", "10.0.0.0/33", "300.1.1.1", "10.0.0.1:80"])
def test_a_proxy_is_an_address_or_a_network(home: Path, given: str) -> None:
    with pytest.raises(sk.StateTypeError, match="is not the address of a proxy"):
        uvicorn_config({"shop": str(home)}, ServerOptions(trusted_proxy=[given]))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
    ],
)
def test_addresses_of_one_network_are_one_caller(one: str, other: str, is_same: bool) -> None:
    assert (address_of((one, 1)) == address_of((other, 2))) == is_same
