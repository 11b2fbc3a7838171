"""What a job is doing, over HTTP: epochs, shards, rankings, everything about a key, its history."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rescale.offline import rescale_offline
from tests.support.served import Sale, open_requests, sell, server
from tests.support.waiting import until

SALES = [Sale(f"shop-{n % 5}", f"item-{n % 3}", n) for n in range(1, 31)]


class Ping(NamedTuple):
    host: str
    port: int
    at: dt.datetime


@sk.process(key=("host", "port"), event_time="at")
def pings(
    ping: Ping,
    ctx: sk.Context,
    seen: Annotated[sk.ValueState[int], sk.TTL("1 hour", clock="event")],
    by_day: Annotated[sk.MapState[str, int], sk.TTL("2 hours", clock="event")],
) -> None:
    seen.update((seen.get() or 0) + 1)
    by_day[str(ping.at.date())] = 1
    ctx.timers.replace(ping.at + dt.timedelta(minutes=5), name="silent")


@pings.on_timer
def silent(timer: sk.Timer, ctx: sk.Context) -> None:
    return None


AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("insight")
    sell(base / "shop", SALES, epoch_size=10)
    job = sk.Job("pings")
    job.source("records", Ping).process(pings)
    records = [Ping("a", 80, AT), Ping("a", 443, AT + dt.timedelta(minutes=1))]
    job.run({"records": records}, checkpoint=base / "pings", epoch_size=1, drain=False)
    return base / "shop", base / "pings"


@pytest.fixture(scope="module")
def address(homes: tuple[Path, Path]) -> Iterator[str]:
    with server({"shop": homes[0], "pings": homes[1]}) as found:
        yield found


def read(address: str, path: str, **parameters: Any) -> Any:
    answer = httpx.get(f"{address}/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_epochs_have_the_records_and_sizes_of_each(address: str) -> None:
    found = read(address, "shop/epochs", operator="sales")
    assert [each["epoch"] for each in found["value"]] == [0, 1, 2]
    operators = [each["operators"]["sales"] for each in found["value"]]
    assert [of["records_in"] for of in operators] == [10, 10, 10]
    assert operators[0]["records_by_input"] == {"records": 10}
    assert [of["states"]["log"]["rows"] for of in operators] == [10, 20, 30]
    assert operators[2]["rows"] == sum(of["rows"] for of in operators[2]["states"].values())
    last = found["value"][-1]
    assert last["processing_time"] <= last["committed_at"]
    assert "states" not in read(address, "shop/epochs")["value"][0]["operators"]["sales"]


def test_epochs_after_one_are_those_that_are_new(address: str) -> None:
    assert [each["epoch"] for each in read(address, "shop/epochs", after=1)["value"]] == [2]
    assert [each["epoch"] for each in read(address, "shop/epochs", limit=1)["value"]] == [2]
    assert read(address, "shop/epochs", after=2, wait=0.05)["value"] == []
    assert len(read(address, "shop/epochs", after=99)["value"]) == 3


def test_a_wait_for_epochs_ends_with_the_next_one(tmp_path: Path) -> None:
    sell(tmp_path / "shop", SALES[:1])
    with server({"shop": tmp_path / "shop"}) as address:
        found: list[Any] = []

        def wait() -> None:
            found.extend(read(address, "shop/epochs", after=0, wait=30)["value"])

        waiting = threading.Thread(target=wait)
        waiting.start()
        sell(tmp_path / "shop", SALES[:2])
        waiting.join(20)
        assert [each["epoch"] for each in found] == [1]


def test_a_server_that_ends_answers_those_who_wait(tmp_path: Path) -> None:
    sell(tmp_path / "shop", SALES[:1])
    found: list[Any] = []
    with server({"shop": tmp_path / "shop"}) as address:
        read(address, "shop/epochs")
        waiting = threading.Thread(
            target=lambda: found.append(read(address, "shop/epochs", after=0, wait=60)["value"])
        )
        waiting.start()
        until(lambda: open_requests(address) == 1)
    waiting.join(10)
    assert found == [[]]


def test_epochs_that_the_checkpoint_has_removed_stay_known(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    sell(home, SALES[:3])
    with server({"shop": home}) as address:
        read(address, "shop/epochs")
        sell(home, SALES[:20], retention=sk.Retention(epochs=2))
        read(address, "shop", min_epoch=19, wait=20)
        found = read(address, "shop/epochs")["value"]
        assert {0, 1, 2, 19} <= {each["epoch"] for each in found}


def test_shards_have_their_key_groups_and_rows(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    sell(home, SALES, epoch_size=10)
    rescale_offline(Repository(home), 3)
    with server({"shop": home}) as address:
        divided = read(address, "shop/shards", operator="sales")["value"]
        assert [shard["rows"] for shard in divided["shards"]] == [None, None, None]
        assert divided["key_groups"] == 128
        groups = [tuple(shard["key_groups"]) for shard in divided["shards"]]
        assert groups[0][0] == 0
        assert groups[-1][1] == 127
    sell(tmp_path / "other", SALES, epoch_size=10)
    with server({"shop": tmp_path / "other"}) as address:
        (shard,) = read(address, "shop/shards", operator="sales")["value"]["shards"]
        assert shard["rows"] == 5 + 15 + 30 + 5
        (shard,) = read(address, "shop/shards", operator="sales", state="log")["value"]["shards"]
        assert shard["rows"] == 30


def test_rankings_name_the_largest_keys_and_all_key_groups(address: str) -> None:
    found = read(address, "shop/top", operator="sales", state="log", by="rows", limit=2)["value"]
    assert [key["rows"] for key in found["keys"]] == [6, 6]
    assert sum(rows for _, rows in found["key_groups"]) == 30
    written = read(address, "shop/top", operator="sales", state="total", by="writes")["value"]
    assert written["epochs"] == [0, 2]
    assert {key["writes"] for key in written["keys"]} == {3}
    assert written["key_groups"] == []


def test_everything_about_a_key_has_states_expiry_and_timers(address: str) -> None:
    found = read(address, "pings/key", operator="pings", key='["a", 443]')["value"]
    assert found["key"] == ["a", 443]
    assert found["states"] == {
        "seen": {"value": 1, "is_cut": False, "expires": "2026-01-01T01:01:00+00:00"},
        "by_day": {
            "value": {"2026-01-01": 1},
            "is_cut": False,
            "expires": "2026-01-01T02:01:00+00:00",
        },
    }
    timer = {"at": "2026-01-01T00:06:00+00:00", "name": "silent", "clock": "event"}
    assert found["timers"] == [timer]
    none = read(address, "pings/key", operator="pings", key='["b", 1]')["value"]
    assert none["states"]["seen"] == {"value": None, "is_cut": False, "expires": None}
    assert none["timers"] == []
    assert read(address, "shop/key", operator="sales", key='"shop-1"')["value"]["timers"] is None


def test_the_history_of_a_key_has_a_value_per_epoch_that_can_be_read(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    sell(home, SALES[:1])
    with server({"shop": home}) as address:
        for count in (6, 11):
            sell(home, SALES[:count], epoch_size=5)
            read(address, "shop", min_epoch=count // 5, wait=20)
        key = '"shop-1"'
        found = read(address, "shop/history", operator="sales", state="total", key=key)["value"]
        assert [(each["epoch"], each["value"]) for each in found] == [(0, 1), (1, 7), (2, 18)]
        place = {"operator": "sales", "state": "items", "key": key}
        items = read(address, "shop/history", **place, entry='"item-0"')["value"]
        assert [each["value"] for each in items] == [None, 6]
        past = read(address, "shop/key", operator="sales", key=key, epoch=1)
        assert (past["epoch"], past["value"]["states"]["total"]["value"]) == (1, 7)
        shards = read(address, "shop/shards", operator="sales", epoch=0)["value"]["shards"]
        assert shards[0]["rows"] == 4


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("shop/epochs?limit=0", 400, "bad_request"),
        ("shop/epochs?wait=61", 400, "bad_request"),
        ("nothing/epochs", 404, "not_found"),
        ("shop/shards", 400, "bad_request"),
        ("shop/shards?operator=nothing", 404, "query"),
        ("shop/shards?operator=sales&state=nothing", 404, "query"),
        ("shop/top?operator=sales&by=colour", 400, "bad_request"),
        ("shop/top?operator=nothing", 404, "query"),
        ("shop/top?operator=sales&state=nothing", 404, "query"),
        ("shop/key?operator=sales&key=rome", 400, "bad_request"),
        ("shop/key?operator=sales&key=[1,2]", 400, "state_type"),
        ("shop/key?operator=nothing&key=1", 404, "query"),
        ("shop/history?operator=sales&state=total&key={}", 400, "state_type"),
        ("shop/history?operator=sales&state=total&key=%22a%22&entry=1", 404, "query"),
        ("shop/history?operator=sales&state=nothing&key=%22a%22", 404, "query"),
    ],
)
def test_a_request_that_cannot_be_answered_is_a_problem(
    address: str, path: str, status: int, kind: str
) -> None:
    answer = httpx.get(f"{address}/{path}")
    assert (answer.status_code, answer.json()["kind"]) == (status, kind), answer.text


def test_a_token_sees_no_state_that_it_may_not_read(
    homes: tuple[Path, Path], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    digest = hashlib.sha256(b"secret").hexdigest()
    read_only = {"name": "one", "sha256": digest, "read": ["shop/sales/total"]}
    tokens.write_text(json.dumps({"tokens": [read_only]}))
    with (
        server({"shop": homes[0], "pings": homes[1]}, tokens=tokens) as address,
        httpx.Client(
            base_url=address, headers={"Authorization": "Bearer secret"}, timeout=30
        ) as client,
    ):
        epochs = client.get("/shop/epochs?operator=sales").json()["value"]
        assert [*epochs[0]["operators"]["sales"]["states"]] == ["total"]
        assert epochs[2]["operators"]["sales"]["rows"] == 5
        for path in ("/shop/shards?operator=sales", "/shop/shards?operator=sales&state=total"):
            (shard,) = client.get(path).json()["value"]["shards"]
            assert shard["rows"] == 5
        found = client.get('/shop/key?operator=sales&key="shop-1"').json()["value"]
        assert [*found["states"]] == ["total"]
        assert client.get("/shop/top?operator=sales&state=total").status_code == 200
        for path in (
            "/shop/top?operator=sales&state=log",
            '/shop/history?operator=sales&state=log&key="shop-1"',
            "/shop/shards?operator=nothing",
            "/shop/shards?operator=sales&state=log",
            "/shop/shards?operator=sales&state=nothing",
            "/pings/epochs",
            '/pings/key?operator=pings&key=["a",80]',
        ):
            assert client.get(path).status_code == 403, path
        assert httpx.get(f"{address}/shop/epochs").status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "epochs",
        "shards?operator=sales",
        "top?operator=sales&state=total",
        "key?operator=sales&key=%22shop-1%22",
        "history?operator=sales&state=total&key=%22shop-1%22",
    ],
)
def test_a_client_that_has_the_value_gets_no_other(address: str, path: str) -> None:
    tag = httpx.get(f"{address}/shop/{path}").headers["etag"]
    again = httpx.get(f"{address}/shop/{path}", headers={"If-None-Match": tag})
    assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")


@pytest.mark.parametrize(
    "path",
    [
        "shop/top?operator=sales&state=nothing",
        "shop/sales/nothing",
        "shop/sales/nothing/key",
        "shop/sales/total?epoch=99",
    ],
)
def test_no_answer_names_a_place_of_the_server(
    address: str, homes: tuple[Path, Path], path: str
) -> None:
    answer = httpx.get(f"{address}/{path}")
    assert answer.status_code >= 400
    assert str(homes[0].parent) not in answer.text


def test_files_of_the_dashboard_are_served_without_a_token_and_nothing_else_is(
    address: str,
) -> None:
    assert httpx.get(address).headers["location"] == "-/"
    page = httpx.get(f"{address}/-/")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    script = httpx.get(f"{address}/assets/page.js")
    assert script.headers["content-type"].partition(";")[0].endswith("javascript")
    tag = {"If-None-Match": script.headers["etag"]}
    assert httpx.get(f"{address}/assets/page.js", headers=tag).status_code == 304
    for path in ("assets/", "assets/../app.py", "assets/%2e%2e/app.py", "assets/page.html"):
        assert httpx.get(f"{address}/{path}").status_code == 404, path
