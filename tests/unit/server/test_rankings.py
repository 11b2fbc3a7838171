"""Rankings and queries over HTTP: shared, limited per token and in memory, and ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import statekit as sk
from statekit.query.tables.top_in_child import TopRequest, top_as_json
from statekit.server.jobs import rankings
from tests.support.served import Sale, open_requests, sell, server
from tests.support.waiting import until
from tests.unit.server.test_access import kind, token_file
from tests.unit.server.test_waits import asked

SALES = [Sale(f"shop-{n % 5}", f"item-{n % 3}", n) for n in range(1, 31)]
ENDLESS = "select count(*) from range(10000000) a, range(10000000) b"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ranked") / "shop"
    sell(home, SALES, epoch_size=10)
    return home


def top(address: str, token: str = "", **parameters: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    given = {"operator": "sales", **parameters}
    return httpx.get(f"{address}/shop/top", params=given, headers=headers, timeout=60)


def all_of(requests: list[Mapping[str, Any]], address: str) -> list[httpx.Response]:
    """Send requests at once."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(lambda given: top(address, **given), requests))


def fork_servers() -> list[psutil.Process]:
    """Return the processes of this one that fork children."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has ended
            if any("serve_forks" in word for word in process.cmdline()):
                found.append(process)
    return found


def forked() -> list[psutil.Process]:
    """Return the children that work."""
    return [child for own in fork_servers() for child in own.children()]


def test_equal_rankings_are_counted_once_for_every_limit(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("one", "1", ["*"]))
    with server({"shop": home}, tokens=tokens) as address:
        found = all_of([{"token": "1", "limit": limit} for limit in (1, 2, 3, 4, 100)], address)
        assert [answer.status_code for answer in found] == [200] * 5
        keys = [answer.json()["value"]["keys"] for answer in found]
        assert [len(each) for each in keys] == [1, 2, 3, 4, 20]
        assert all(each == keys[-1][: len(each)] for each in keys)
        again = top(address, "1", limit=2)
        assert again.json()["value"]["keys"] == keys[1]
        tag = {"If-None-Match": again.headers["etag"], "Authorization": "Bearer 1"}
        path = f"{address}/shop/top?operator=sales&limit=2"
        assert httpx.get(path, headers=tag).status_code == 304


def test_a_token_holds_two_places_of_the_queue(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("one", "1", ["*"]), ("two", "2", ["*"]))
    asked = [{"token": "1", "by": by, "state": "log"} for by in ("size", "rows", "writes")]
    with server({"shop": home}, tokens=tokens) as address:
        found = all_of([*asked, {"token": "2", "state": "total"}], address)
        statuses = Counter(answer.status_code for answer in found)
        assert statuses == {200: 3, 503: 1}
        assert found[-1].status_code == 200
        (refused,) = [answer for answer in found if answer.status_code == 503]
        assert kind(refused) == (503, "too_many")
        assert refused.headers["retry-after"] == "5"


def test_a_ranking_that_nobody_waits_for_is_not_begun(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[TopRequest] = []

    def counted(wanted: TopRequest, **given: Any) -> bytes:
        begun.append(wanted)
        return top_as_json(wanted, **given)

    monkeypatch.setattr(rankings, "top_as_json", counted)
    with server({"shop": home}) as address:
        with ExitStack() as leaving:
            for state in ("log", "items", "total", "last"):
                path = f"/shop/top?operator=sales&state={state}"
                leaving.enter_context(asked(address, path))
            until(lambda: bool(begun))
        until(lambda: open_requests(address) == 0)
        assert len(begun) == 1
        assert top(address, state="log").status_code == 200


def test_a_token_ranks_the_states_that_it_may_read(home: Path, tmp_path: Path) -> None:
    tokens = token_file(
        tmp_path / "tokens.json",
        ("two", "1", ["shop/sales/total", "shop/sales/log"]),
        ("none", "2", ["shop/sales/nothing"]),
    )
    with server({"shop": home}, tokens=tokens) as address:
        answer = top(address, "1", limit=100)
        assert answer.status_code == 200, answer.text
        found = answer.json()["value"]
        assert {key["state"] for key in found["keys"]} == {"total", "log"}
        assert sum(rows for _, rows in found["key_groups"]) == 5 + 30
        assert kind(top(address, "1", state="items")) == (403, "forbidden")
        assert kind(top(address, "2")) == (403, "forbidden")


def test_an_epoch_that_the_checkpoint_no_longer_has_is_gone(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    sell(home, SALES[:3])
    with server({"shop": home}) as address:
        sell(home, SALES[:12], retention=sk.Retention(epochs=2))
        httpx.get(f"{address}/shop", params={"min_epoch": 11, "wait": 20})
        assert httpx.get(f"{address}/shop/sales/total?epoch=2").status_code == 200
        answers = [
            top(address, epoch=2),
            httpx.get(f"{address}/shop/sales/total.csv?epoch=2"),
            httpx.post(
                f"{address}/sql",
                json={"job": "shop", "epoch": 2, "sql": "from sales.total"},
                timeout=30,
            ),
        ]
        for answer in answers:
            assert kind(answer) == (410, "gone"), answer.text
            assert str(tmp_path) not in answer.text
            assert answer.json()["oldest_epoch"] > 2


@pytest.mark.parametrize("work", ["rankings", "queries"])
def test_a_server_that_ends_ends_what_takes_long(
    home: Path, work: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[httpx.Response] = []
    # One client: a new one takes too long to be ready before the first ranking is found.
    client = httpx.Client(timeout=60)
    with server({"shop": home}) as address:

        def ask(state: str) -> None:
            if work == "rankings":
                given = {"operator": "sales", "state": state}
                answers.append(client.get(f"{address}/shop/top", params=given))
            else:
                body = {"job": "shop", "sql": ENDLESS}
                answers.append(client.post(f"{address}/sql", json=body))

        asking = [
            threading.Thread(target=ask, args=(state,))
            for state in ("last", "items", "log", "total")
        ]
        for thread in asking:
            thread.start()
        # A ranking of this size takes less time than the start of the process that forks.
        until(lambda: bool(fork_servers() if work == "rankings" else forked()))
        until(lambda: open_requests(address) + len(answers) == len(asking))
        began = time.monotonic()
    assert time.monotonic() - began < 3
    for thread in asking:
        thread.join(10)
    client.close()
    unanswered = [answer for answer in answers if answer.status_code != 200]
    assert len(unanswered) >= 2  # the first rankings may have been found
    assert {kind(answer) for answer in unanswered} == {(503, "closing")}
    assert fork_servers() == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
