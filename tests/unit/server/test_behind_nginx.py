"""The server behind a real nginx, with the configuration of docs/operate/serving-production.md."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.served import Sale, sell, server
from tests.unit.server.test_access import kind, token_file

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="needs nginx (Debian, Ubuntu: apt-get install nginx-light)"
)

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "serving-production.md"
READ = "/shop/sales/total/rome"
AT_ONCE = 5

GLOBAL = """
daemon off;
{user}
pid {home}/pid;
error_log {home}/error.log;
events {{ worker_connections 100; }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    {server}
}}
"""


def configured(home: Path, address: str, port: int) -> str:
    """Return the page's configuration, without TLS, and with the ports of this test."""
    (found,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = found.replace("http://127.0.0.1:8321", address)
    found = found.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    found = re.sub(r"ssl_certificate.*\n", "\n", found)
    user = "user root;" if os.geteuid() == 0 else ""
    return GLOBAL.format(home=home, server=found, user=user)


@contextmanager
def nginx(home: Path, address: str) -> Iterator[str]:
    """Run nginx before a server, and yield its address."""
    assert NGINX is not None
    port = free_port()
    home.mkdir()
    (home / "nginx.conf").write_text(configured(home, address, port))
    command = [NGINX, "-p", str(home), "-e", str(home / "error.log"), "-c", "nginx.conf"]
    with subprocess.Popen(command) as process:
        try:
            ends = time.monotonic() + 20
            while not listens(port):
                assert process.poll() is None, (home / "error.log").read_text()
                assert time.monotonic() < ends, "nginx did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("proxied")
    sell(home / "sales", [Sale("rome", "tea", 400), Sale("a/b c", "tea", 7)])
    tokens = token_file(home / "tokens.json", ("own", "own", ["*"]), ("new", "new", ["*"]))
    options = {"tokens": tokens, "refusals": AT_ONCE / 10, "trusted_proxy": ["127.0.0.1"]}
    with (
        server({"shop": home / "sales"}, **options) as direct,
        nginx(home / "nginx", direct) as address,
    ):
        yield address


def client(address: str, own: str, token: str = "own") -> httpx.Client:
    """Return a client with an address of its own, all of which are of this machine."""
    transport = httpx.HTTPTransport(local_address=own)
    given = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=address, transport=transport, headers=given, timeout=20)


@pytest.mark.parametrize("invented", ["none", "one", "of its own", "several", "no address"])
def test_guesses_behind_a_proxy_count_for_their_own_address(address: str, invented: str) -> None:
    kinds = ["none", "one", "of its own", "several", "no address"]
    guesser, other = (f"127.0.{kinds.index(invented)}.{n}" for n in (8, 9))
    found = []
    with client(address, guesser) as guessing:
        for n in range(20):
            headers = {
                "one": {"X-Forwarded-For": f"6.6.6.{n}"},
                "of its own": {"X-Forwarded-For": f"{guesser}, 127.0.0.1"},
                "several": {"X-Forwarded-For": f"6.6.6.{n}, 127.0.0.1, 127.0.0.1"},
                "no address": {"X-Forwarded-For": f"guess{n}, unknown"},
            }.get(invented, {})
            headers["Authorization"] = f"Bearer guess{n}"
            found.append(guessing.get(READ, headers=headers).status_code)
    assert found == [401] * AT_ONCE + [429] * (20 - AT_ONCE)
    with client(address, guesser, "new") as same, client(address, other, "new") as another:
        assert kind(same.get(READ)) == (429, "too_many")
        assert another.get(READ).status_code == 200


def test_keys_bodies_and_streams_pass_the_proxy(address: str) -> None:
    with client(address, "127.0.0.7") as through:
        assert through.get(f"/shop/sales/total/{quote('a/b c', safe='')}").json()["value"] == 7
        body = {"keys": ["rome", "x" * 5_000_000]}
        found = through.post("/shop/sales/total/query", json=body)
        assert found.json()["value"] == [400, None]
        accept = {"Accept": "text/event-stream"}
        with through.stream("GET", "/shop/sales/total", headers=accept) as stream:
            lines = stream.iter_lines()
            assert "event: reset" in [next(lines) for _ in range(5)]
