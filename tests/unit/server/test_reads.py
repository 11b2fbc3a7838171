"""Reads over HTTP: the values, the epoch that they are of, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from statekit.clock import sleep_s
from tests.support.served import Row, Sale, sell, server

RECORDS = [
    Sale("rome", "tea", 400),
    Sale("oslo", "cup", 900),
    Sale("rome", "pot", 2100),
    Sale("a/b c.d", "tea", 1),
    Sale("", "tea", 2),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, RECORDS)
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[httpx.Client]:
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        yield client


def value(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    return answer.status_code, body["kind"]


# ---------------------------------------------------------------------------------- single keys


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/shop/sales/total/rome", 2500),
        ("/shop/sales/last/rome", {"item": "pot", "cents": 2100}),
        ("/shop/sales/items/rome", {"tea": 400, "pot": 2100}),
        ("/shop/sales/log/rome", [400, 2100]),
        ("/shop/sales/total/a%2Fb%20c.d", 1),
        ("/shop/sales/items/a%2Fb%20c.d", {"tea": 1}),
        ("/shop/sales/total/", 2),
        ('/shop/sales/total?key="rome"', 2500),
        ('/shop/sales/total?key=""', 2),
        ('/shop/sales/items/rome?entry="pot"', 2100),
        ('/shop/sales/items?key="rome"&entry="pot"', 2100),
        ("/shop/sales/items/rome?limit=1", [["pot", 2100]]),
        ("/shop/sales/items/rome?reverse=true&limit=1", [["tea", 400]]),
        ('/shop/sales/items/rome?start="q"', [["tea", 400]]),
        ('/shop/sales/items/rome?end="q"', [["pot", 2100]]),
        ("/shop/sales/log/rome?start=1", [2100]),
        ("/shop/sales/log/rome?end=1", [400]),
        ("/shop/sales/log/rome?start=5", []),
    ],
)
def test_a_key_has_its_value_or_a_part_of_it(
    client: httpx.Client, path: str, expected: Any
) -> None:
    assert value(client.get(path)) == expected


def test_an_answer_says_its_epoch_and_how_old_that_is(client: httpx.Client) -> None:
    found = client.get("/shop/sales/total/rome").json()
    assert found["epoch"] == 4
    assert found["oldest_epoch"] == 4
    assert found["watermark"] is None
    assert dt.datetime.fromisoformat(found["processing_time"]).tzinfo is not None
    assert found["lag_ms"] >= 0


@pytest.mark.parametrize(
    "path",
    [
        "/shop/sales/total/nice",
        "/shop/sales/items/nice",
        "/shop/sales/log/nice",
        '/shop/sales/items/rome?entry="cup"',
    ],
)
def test_an_absent_key_is_404_and_says_the_epoch(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert problem(answer) == (404, "absent")
    assert answer.json()["epoch"] == 4


def test_a_client_that_has_the_value_gets_304_until_it_changes(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:2])
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        for path in ("/shop/sales/total/rome", "/shop/sales/items/rome"):
            tag = client.get(path).headers["etag"]
            assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
            assert value(client.get(path, headers={"If-None-Match": '"other"'}))
        tag = client.get("/shop/sales/total/rome").headers["etag"]
        sell(home, [*RECORDS[:2], Sale("oslo", "tea", 1)])
        given = {"min_epoch": 2, "wait": 20}
        same = client.get("/shop/sales/total/rome", params=given, headers={"If-None-Match": tag})
        assert same.status_code == 304
        sell(home, [*RECORDS[:2], Sale("oslo", "tea", 1), Sale("rome", "tea", 1)])
        given = {"min_epoch": 3, "wait": 20}
        assert value(client.get("/shop/sales/total/rome", params=given)) == 401


def test_head_has_the_headers_of_get(client: httpx.Client) -> None:
    for path in ("/shop/sales/total/rome", "/shop/sales/total.parquet"):
        head, get = client.head(path), client.get(path)
        assert head.status_code == 200
        assert head.content == b""
        for name in ("content-length", "etag", "content-type"):
            if name != "content-length" or "lag_ms" not in get.text:
                assert head.headers[name] == get.headers[name]


# ------------------------------------------------------------------------------------ many keys


def test_many_keys_are_answered_in_their_order_with_null_for_absent_ones(
    client: httpx.Client,
) -> None:
    body = {"keys": ["rome", "nice", "oslo", "rome", ""]}
    answer = client.post("/shop/sales/total/query", json=body)
    assert value(answer) == [2500, None, 900, 2500, 2]
    assert value(client.post("/shop/sales/items/query", json=body))[1] is None
    assert value(client.post("/shop/sales/total/query", json={"keys": []})) == []


def test_several_states_are_read_after_one_epoch(client: httpx.Client) -> None:
    reads = [
        {"operator": "sales", "state": "total", "keys": ["rome"]},
        {"operator": "sales", "state": "log", "keys": ["rome", "nice"]},
    ]
    answer = client.post("/shop/query", json={"reads": reads})
    assert value(answer) == [[2500], [[400, 2100], None]]
    assert answer.json()["epoch"] == 4


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "bad_request")),
        (b"{", (400, "bad_request")),
        (b'{"keys": 5}', (400, "bad_request")),
        (b'{"keys": [], "more": 1}', (400, "bad_request")),
        (b'{"keys": [5]}', (400, "state_type")),
        (b'{"keys": [{"a": []}]}', (400, "state_type")),
        (b"[" * 100_000, (400, "bad_request")),
        (b'{"keys": [' + b",".join([b'"k"'] * 10_001) + b"]}", (413, "too_large")),
        (b'{"keys": ["' + b"k" * 9_000_000 + b'"]}', (413, "too_large")),
    ],
    ids=["empty", "cut", "no list", "unknown", "int", "object", "nested", "many", "large"],
)
def test_a_body_that_is_none_is_refused(
    client: httpx.Client, body: bytes, expected: tuple[int, str]
) -> None:
    assert problem(client.post("/shop/sales/total/query", content=body)) == expected


# --------------------------------------------------------------------------------------- ranges


def test_pages_of_a_range_follow_each_other_and_are_of_one_epoch(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    records = [Sale(f"shop {number:02}", "tea", number) for number in range(25)]
    sell(home, records, epoch_size=25)
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        found, cursor = [], None
        while True:
            given: dict[str, Any] = {"start": '"shop 03"', "end": '"shop 20"', "limit": 7}
            page = client.get(
                "/shop/sales/total", params=given | ({"cursor": cursor} if cursor else {})
            )
            assert page.json()["epoch"] == 0
            found += value(page)["items"]
            cursor = value(page)["cursor"]
            if cursor is None:
                break
            records.append(Sale("shop 05", "tea", 1000))
            sell(home, records)
            client.get("/shop", params={"min_epoch": len(records) - 25, "wait": 20})
        assert found == [[f"shop {number:02}", number] for number in range(3, 20)]
        backwards = client.get("/shop/sales/total", params={"reverse": True, "limit": 2})
        assert [key for key, _ in value(backwards)["items"]] == ["shop 24", "shop 23"]


def test_a_cursor_of_an_epoch_that_is_gone_is_410(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS)
    with (
        server({"shop": home}, epochs=1) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        cursor = value(client.get("/shop/sales/total?limit=1"))["cursor"]
        sell(home, [*RECORDS, Sale("rome", "tea", 5)])
        assert client.get("/shop?min_epoch=5&wait=20").status_code == 200
        gone = client.get("/shop/sales/total", params={"cursor": cursor})
        assert problem(gone) == (410, "gone")
        assert gone.json()["oldest_epoch"] == 5


# --------------------------------------------------------------------------------------- epochs


@contextmanager
def replaced(tmp_path: Path) -> Iterator[tuple[httpx.Client, dict[str, Any], Callable[[], None]]]:
    """A client, the first page of a checkpoint, and what replaces that by a backup, whose job goes
    on to an epoch of the same number.
    """
    home, backup = tmp_path / "sales", tmp_path / "backup"
    sell(home, RECORDS[:2])
    shutil.copytree(home, backup)
    sell(home, RECORDS[:3])
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, timeout=20, follow_redirects=True) as client,
    ):
        first = client.get("/shop/sales/total?limit=1").json()
        assert first["epoch"] == 2

        def replace() -> None:
            home.rename(tmp_path / "before")
            backup.rename(home)
            sell(home, [*RECORDS[:2], Sale("bonn", "cup", 5)])
            while client.get("/shop").json()["manifest"] == first["manifest"]:
                sleep_s(0.05)

        yield client, first, replace


def test_an_epoch_of_a_replaced_checkpoint_is_another_one_of_the_same_number(
    tmp_path: Path,
) -> None:
    with replaced(tmp_path) as (client, first, replace):
        known = client.get("/shop/epochs").json()
        replace()
        exactly = {"epoch": 2, "manifest": first["manifest"]}
        cursor = {"cursor": first["value"]["cursor"]}
        assert problem(client.get("/shop/sales/total", params={**cursor, "key": "x"}))[0] == 400
        for gone in (cursor, exactly, {**cursor, "epoch": 2}, {**cursor, "min_epoch": 1}):
            answer = client.get("/shop/sales/total", params=gone)
            assert problem(answer) == (410, "gone")
            assert "was replaced" in answer.json()["detail"]
        for place in ("/shop/sales/total/rome", "/shop", "/shop/types", "/shop/sales/total.csv"):
            assert problem(client.get(place, params=exactly)) == (410, "gone")
        assert client.get("/shop/sales/total/bonn?epoch=2").json()["manifest"] != first["manifest"]
        one = {"operator": "sales", "state": "total", "key": '"rome"'}
        assert client.get("/shop/history", params=one).json()["value"][-1]["value"] == 400
        news = client.get("/shop/epochs", params={"after": 2, "manifest": known["manifest"]}).json()
        assert not news["is_continued"]
        assert [each["epoch"] for each in news["value"]] == [0, 1, 2]
        same = client.get("/shop/epochs", params={"after": 2, "manifest": news["manifest"]}).json()
        assert (same["is_continued"], same["value"]) == (True, [])
        assert problem(client.get("/shop", params={"manifest": "0" * 32})) == (400, "bad_request")


@pytest.mark.parametrize("epochs", [2, 4])
def test_cursors_are_refused_whatever_number_the_other_version_has_reached(
    tmp_path: Path, epochs: int
) -> None:
    home, backup = tmp_path / "sales", tmp_path / "backup"
    sell(home, RECORDS[:1])
    shutil.copytree(home, backup)
    sell(home, RECORDS[:3])
    with server({"shop": home}) as address, httpx.Client(base_url=address, timeout=20) as client:
        first = client.get("/shop/sales/total?limit=1").json()
        home.rename(tmp_path / "before")
        backup.rename(home)
        sell(home, [RECORDS[0], *[Sale("bonn", "cup", 5)] * (epochs - 1)])
        while client.get("/shop").json()["manifest"] == first["manifest"]:
            sleep_s(0.05)
        assert client.get("/shop").json()["epoch"] == epochs - 1
        cursor = {"cursor": first["value"]["cursor"]}
        assert problem(client.get("/shop/sales/total", params=cursor)) == (410, "gone")
        exactly = {"epoch": 2, "manifest": first["manifest"]}
        assert problem(client.get("/shop/sales/total.csv", params=exactly)) == (410, "gone")


@pytest.mark.slow
def test_processes_read_the_version_of_the_epoch_that_an_answer_names(tmp_path: Path) -> None:
    ranking = {"operator": "sales", "state": "total"}
    sql = {"job": "shop", "sql": "select sum(value) v from sales.total", "epoch": 2}
    with replaced(tmp_path) as (client, first, replace):
        assert len(client.get("/shop/top", params=ranking).json()["value"]["keys"]) == 2
        replace()
        exactly = client.post("/sql", json=sql | {"manifest": first["manifest"]})
        assert problem(exactly) == (410, "gone")
        last = client.post("/sql", json=sql).json()
        assert last["value"]["rows"] == [[1305]]
        assert last["manifest"] != first["manifest"]
        ranked = client.get("/shop/top", params=ranking).json()["value"]["keys"]
        assert {own["key"] for own in ranked} == {"rome", "oslo", "bonn"}


def test_an_epoch_can_be_asked_for_by_number_and_by_time(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, RECORDS[:1])
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        first = client.get("/shop/sales/total/rome").json()
        sell(home, RECORDS[:3])
        last = client.get("/shop/sales/total/rome?min_epoch=2&wait=20").json()
        assert (first["value"], last["value"], last["oldest_epoch"]) == (400, 2500, 0)
        assert client.get("/shop/sales/total/rome?epoch=0").json()["value"] == 400
        given = {"as_of": first["processing_time"]}
        assert client.get("/shop/sales/total/rome", params=given).json()["epoch"] == 0
        given = {"as_of": last["processing_time"]}
        assert client.get("/shop/sales/total/rome", params=given).json()["epoch"] == 2
        before = {"as_of": "2001-01-01T00:00:00Z"}
        assert problem(client.get("/shop/sales/total/rome", params=before)) == (410, "gone")


def test_a_request_waits_for_an_epoch_up_to_its_limit(client: httpx.Client) -> None:
    answer = client.get("/shop/sales/total/rome?min_epoch=9&wait=0.2")
    assert problem(answer) == (409, "behind")
    assert answer.json()["epoch"] == 4
    assert problem(client.get("/shop/sales/total/rome?epoch=9")) == (409, "behind")


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("epoch=-1", "bad_request"),
        ("epcoh=1", "bad_request"),
        ("=1", "bad_request"),
        ("epoch=x", "bad_request"),
        ("epoch=99999999999999999999", "bad_request"),
        ("epoch=1&min_epoch=1", "bad_request"),
        ("as_of=yesterday", "bad_request"),
        ("as_of=2026-01-01T00:00:00", "bad_request"),
        ("min_epoch=9&wait=61", "bad_request"),
        ("min_epoch=9&wait=nan", "bad_request"),
        ("limit=0", "bad_request"),
        ("limit=10001", "bad_request"),
        ("start=rome", "bad_request"),
        ("key=rome", "bad_request"),
        ("key=5", "state_type"),
        ('entry="x"', "bad_request"),
        ("cursor=x", "bad_request"),
        ("cursor=eyJlcG9jaCI6SW5maW5pdHksImFmdGVyIjoiIn0=", "bad_request"),
    ],
)
def test_a_parameter_that_is_none_is_refused(client: httpx.Client, query: str, kind: str) -> None:
    assert problem(client.get(f"/shop/sales/total?{query}")) == (400, kind)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/none", (404, "not_found")),
        ("/none/sales/total/rome", (404, "not_found")),
        ("/shop/none/total/rome", (404, "query")),
        ("/shop/sales/none/rome", (404, "query")),
        ("/shop/sales/none", (404, "query")),
        ("/shop/sales/none.parquet", (404, "query")),
        ("/shop/sales/total/%FF", (400, "bad_request")),
        ("/shop/sales/total/%FF?wait=0", (400, "bad_request")),
    ],
)
def test_what_does_not_exist_is_a_problem(
    client: httpx.Client, path: str, expected: tuple[int, str]
) -> None:
    assert problem(client.get(path)) == expected


# --------------------------------------------------------------------------------------- tables


def test_a_whole_state_is_a_file_of_arrow_parquet_or_csv(client: httpx.Client) -> None:
    expected = {"rome": 2500, "oslo": 900, "a/b c.d": 1, "": 2}
    parquet = pq.read_table(pa.BufferReader(client.get("/shop/sales/total.parquet").content))
    assert dict(zip(*parquet.to_pydict().values(), strict=True)) == expected
    arrow = pa.ipc.open_file(client.get("/shop/sales/total.arrow").content).read_all()
    assert arrow.equals(parquet)
    given = {"Accept": "application/vnd.apache.parquet"}
    accepted = client.get("/shop/sales/total", headers=given)
    assert accepted.headers["content-type"] == "application/vnd.apache.parquet"
    csv = client.get("/shop/sales/total.csv").content
    assert pyarrow.csv.read_csv(pa.BufferReader(csv)).num_rows == 4
    part = client.get("/shop/sales/total.parquet", headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"PAR1")


def test_many_tables_at_once_are_all_answered(client: httpx.Client) -> None:
    names = ("total", "last", "items", "log")
    paths = [f"/shop/sales/{name}.{to}" for name in names for to in ("parquet", "arrow", "csv")]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(client.get, paths * 3))
    assert [answer.status_code for answer in answers] == [200] * len(answers)


def test_a_file_has_all_keys_and_json_is_preferred(client: httpx.Client) -> None:
    assert problem(client.get('/shop/sales/total.parquet?key="rome"')) == (400, "bad_request")
    accept = {"Accept": "text/csv, application/json"}
    assert value(client.get('/shop/sales/total?key="rome"', headers=accept)) == 2500


def test_one_request_has_no_more_rows_than_one_answer(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale("rome", "tea", 1)] * 6_000, epoch_size=6_000)
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        once = client.post("/shop/sales/log/query", json={"keys": ["rome"]})
        assert len(value(once)[0]) == 6_000
        twice = client.post("/shop/sales/log/query", json={"keys": ["rome", "rome"]})
        assert problem(twice) == (404, "query")


def test_the_answers_of_single_reads_and_of_the_routes_are_the_same(client: httpx.Client) -> None:
    for key in ("rome", "nice", "a%2Fb%20c.d", "%FF"):
        single = client.get(f"/shop/sales/total/{key}")
        routed = client.get(f"/shop/sales/total/{key}?wait=0")
        assert single.status_code == routed.status_code
        ours, theirs = single.json(), routed.json()
        assert ours.pop("lag_ms", 0) <= theirs.pop("lag_ms", 0)
        assert ours == theirs
        assert single.headers.get("etag") == routed.headers.get("etag")


def test_the_stored_rows_of_direct_reads_and_of_the_routes_are_the_same(
    client: httpx.Client,
) -> None:
    keys = [b"rome\0", b"nice\0", b"nowhere\0"]
    bodies = [
        msgspec.msgpack.encode({"keys": keys}),
        msgspec.msgpack.encode({"keys": [b"\xff"]}),
        msgspec.msgpack.encode({"keys": [1]}),
        b"",
    ]
    places = ["sales/total", "sales/log", "sales/nothing", "sales/%FF", "nobody/total"]
    for place, body in itertools.product(places, bodies):
        path = f"/shop/{place}/stored"
        direct, routed = (
            client.post(path + parameters, content=body) for parameters in ("", "?wait=0")
        )
        assert direct.status_code == routed.status_code
        assert direct.headers["content-type"] == routed.headers["content-type"]
        decode = msgspec.msgpack.decode if direct.status_code == 200 else msgspec.json.decode
        ours, theirs = decode(direct.content), decode(routed.content)
        assert ours.pop("lag_ms", 0) <= theirs.pop("lag_ms", 0)
        assert ours == theirs


def test_records_have_their_fields(client: httpx.Client) -> None:
    assert Row(**value(client.get("/shop/sales/last/oslo"))) == Row("cup", 900)
