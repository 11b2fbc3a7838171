"""Who may read what: tokens, names of the server, limits of requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import statekit as sk
from statekit.server.admission.access import digest_of
from statekit.server.admission.options import ServerOptions
from statekit.server.serve import named_checkpoints, uvicorn_config
from tests.support.served import Sale, sell, server

SECRET = "a secret that nobody guesses"


def token_file(path: Path, *tokens: tuple[str, str, list[str]]) -> Path:
    listed = [
        {"name": name, "sha256": digest_of(secret), "read": read} for name, secret, read in tokens
    ]
    path.write_text(json.dumps({"tokens": listed}))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["kind"]


PATHS = [
    "/jobs",
    "/shop",
    "/shop/sales/total",
    "/shop/sales/total.parquet",
    "/shop/sales/total/rome",
    '/shop/sales/total?key="rome"',
]


def test_nothing_is_read_without_a_token(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("all", SECRET, ["*"]))
    with server({"shop": home}, tokens=tokens) as address:
        for given in (None, "", "Bearer", "Bearer x", f"Basic {SECRET}", f"Bearer {SECRET}x"):
            headers = {} if given is None else {"Authorization": given}
            for path in PATHS:
                answer = httpx.get(address + path, headers=headers)
                assert kind(answer) == (401, "unauthorized"), (given, path)
                assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("/shop/query", "/shop/sales/total/query"):
                answer = httpx.post(address + path, headers=headers, json={})
                assert kind(answer) == (401, "unauthorized")
        for path in PATHS:
            headers = {"Authorization": f"Bearer {SECRET}"}
            answer = httpx.get(address + path, headers=headers, follow_redirects=True)
            assert answer.status_code == 200
        assert httpx.get(f"{address}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("read", "allowed"),
    [
        (["*"], PATHS),
        (["shop"], PATHS),
        (["shop/sales"], PATHS),
        (["shop/sales/total"], PATHS),
        (["shop/sales/last"], ["/jobs", "/shop"]),
        (["shop/sales/tot", "shop/sale"], ["/jobs", "/shop"]),
        (["sho", "shopping", "sales/total", ""], ["/jobs"]),
        ([], ["/jobs"]),
    ],
)
def test_a_token_reads_what_it_names_and_nothing_else(
    home: Path, tmp_path: Path, read: list[str], allowed: list[str]
) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("some", SECRET, read))
    headers = {"Authorization": f"Bearer {SECRET}"}
    with server({"shop": home}, tokens=tokens) as address:
        for path in PATHS:
            answer = httpx.get(address + path, headers=headers, follow_redirects=True)
            expected = 200 if path in allowed else 403
            assert answer.status_code == expected, path
        listed = httpx.get(f"{address}/jobs", headers=headers).json()
        assert [job["job"] for job in listed] == (["shop"] if "/shop" in allowed else [])
        if "/shop" in allowed:
            operators = httpx.get(f"{address}/shop", headers=headers).json()["operators"]
            named = {state["state"] for operator in operators for state in operator["states"]}
            assert ("total" in named) == (allowed == PATHS)
            assert named <= {"total"} or read != ["shop/sales/total"]
        reads = [{"operator": "sales", "state": "total", "keys": ["rome"]}]
        answer = httpx.post(f"{address}/shop/query", headers=headers, json={"reads": reads})
        assert answer.status_code == (200 if allowed == PATHS else 403)


def test_an_empty_name_is_no_wider_place(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("some", SECRET, ["shop/sales/last"]))
    headers = {"Authorization": f"Bearer {SECRET}"}
    reads = [{"operator": "sales", "state": "", "keys": []}]
    with server({"shop": home}, tokens=tokens) as address:
        for path in ("/shop/sales//x", "/shop/sales/.parquet", "/shop//total/x"):
            answer = httpx.get(address + path, headers=headers)
            assert kind(answer) == (403, "forbidden"), path
        answer = httpx.post(f"{address}/shop/query", headers=headers, json={"reads": reads})
        assert kind(answer) == (403, "forbidden")


def test_what_a_token_may_not_read_is_not_said_to_exist(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("some", SECRET, ["shop/sales/last"]))
    headers = {"Authorization": f"Bearer {SECRET}"}
    with server({"shop": home}, tokens=tokens) as address:
        for state in ("total", "none"):
            answer = httpx.get(f"{address}/shop/sales/{state}/rome", headers=headers)
            assert kind(answer) == (403, "forbidden")
        for job in ("other", "none"):
            assert kind(httpx.get(f"{address}/{job}", headers=headers)) == (403, "forbidden")


def test_the_file_of_tokens_is_read_again_when_it_changes(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = token_file(path, ("all", SECRET, ["*"]))
    headers = {"Authorization": f"Bearer {SECRET}"}
    with server({"shop": home}, tokens=tokens) as address:
        assert httpx.get(f"{address}/jobs", headers=headers).status_code == 200
        token_file(path, ("all", "another secret", ["*"]))
        assert kind(httpx.get(f"{address}/jobs", headers=headers)) == (401, "unauthorized")
        path.write_text("{")  # half written: nobody is let in
        assert kind(httpx.get(f"{address}/jobs", headers=headers)) == (401, "unauthorized")
        token_file(path, ("all", SECRET, ["*"]))
        assert httpx.get(f"{address}/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"tokens": [{"name": "a"}]}', '{"tokens": [{"name": "a", "x": 1}]}']
)
def test_a_file_that_is_none_of_tokens_is_refused_at_the_start(
    home: Path, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(sk.StateTypeError, match="cannot be read"):
        uvicorn_config({"shop": str(home)}, ServerOptions(tokens=path))
    with pytest.raises(sk.StateTypeError, match="cannot be read"):
        uvicorn_config({"shop": str(home)}, ServerOptions(tokens=tmp_path / "absent.json"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_a_server_without_tokens_listens_on_loopback_alone(home: Path, host: str) -> None:
    with pytest.raises(sk.StateTypeError, match="could read all state: give --tokens FILE"):
        uvicorn_config({"shop": str(home)}, ServerOptions(host=host))


def test_a_page_of_another_site_cannot_read_a_server_without_tokens(home: Path) -> None:
    with server({"shop": home}, allow_host=["state.local"]) as address:
        port = address.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            answer = httpx.get(f"{address}/shop/sales/total/rome", headers={"Host": host})
            assert answer.status_code in (400, 421), host
        for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "State.Local"):
            answer = httpx.get(f"{address}/shop/sales/total/rome", headers={"Host": host})
            assert answer.status_code == 200, host
        origin = {"Origin": "https://evil.example"}
        answer = httpx.get(f"{address}/shop/sales/total/rome", headers=origin)
        assert "access-control-allow-origin" not in answer.headers


def test_a_token_that_asks_too_often_waits(home: Path) -> None:
    with server({"shop": home}, rate=2) as address:
        answers = [httpx.get(f"{address}/shop/sales/total/rome") for _ in range(8)]
        assert [answer.status_code for answer in answers[:4]] == [200] * 4
        late = answers[-1]
        assert kind(late) == (429, "too_many")
        assert int(late.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a=x", "a=y"], "two checkpoints would be served as 'a'"),
        (["/x/a", "/y/a/"], "two checkpoints would be served as 'a'"),
    ],
)
def test_two_checkpoints_need_two_names(given: list[str], why: str) -> None:
    with pytest.raises(sk.StateTypeError, match=why):
        named_checkpoints(given)


@pytest.mark.parametrize("alias", ["", "jobs", "a/b", "..", "a b", "é", "x" * 200])
def test_a_name_that_cannot_be_in_an_address_is_refused(home: Path, alias: str) -> None:
    with pytest.raises(sk.StateTypeError, match="a job cannot be served as"):
        uvicorn_config({alias: str(home)}, ServerOptions())


def test_a_checkpoint_that_does_not_exist_is_refused_and_leaves_nothing_open(
    home: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"shop": str(home), "none": str(tmp_path / "none")}
    with pytest.raises(sk.RestoreError):
        uvicorn_config(given, ServerOptions(directory=tmp_path / "copies"))
    with sk.Replica(home, directory=tmp_path / "copies" / "shop") as replica:  # is free again
        assert replica.epoch == 0
