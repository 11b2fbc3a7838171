"""Files of whole states: each is of one epoch, which its address names, in all of its parts."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.server.jobs import tables
from statekit.testing import JobHarness
from tests.support.served import Sale, open_requests, sell, server
from tests.support.waiting import until
from tests.unit.server.test_rankings import fork_servers
from tests.unit.server.test_reads import problem, replaced

RECORDS = [Sale("rome", "tea", 400), Sale("oslo", "cup", 900), Sale("rome", "pot", 2100)]
FILE = "/shop/sales/total.parquet"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, RECORDS)
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[httpx.Client]:
    with server({"shop": home}) as address, httpx.Client(base_url=address, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def file(client: httpx.Client) -> httpx.Response:
    """A file, at the address of its epoch."""
    answer = client.get(FILE, follow_redirects=True)
    assert answer.status_code == 200
    return answer


@pytest.mark.parametrize(
    ("path", "params", "epoch", "left"),
    [
        (FILE, {}, 2, {}),
        (FILE, {"min_epoch": "1", "wait": "1"}, 2, {}),
        (FILE, {"wide_ints": "text"}, 2, {"wide_ints": ["text"]}),
        ("/shop/sales/total.csv", {"as_of": "2999-01-01T00:00:00Z"}, 2, {}),
        ("/shop/sales/total", {}, 2, {}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_address_without_an_epoch_leads_to_that_of_an_epoch(
    client: httpx.Client,
    home: Path,
    method: str,
    path: str,
    params: dict[str, str],
    epoch: int,
    left: dict[str, list[str]],
) -> None:
    headers = {"Accept": "text/csv", "If-None-Match": "*", "Range": "bytes=0-3"}
    answer = client.request(method, path, params=params, headers=headers)
    assert answer.status_code == 307
    to = urlsplit(answer.headers["location"])
    assert (to.scheme, to.netloc, to.path) == ("", "", path)
    manifest = Repository(home).manifest(epoch).id.manifest
    assert parse_qs(to.query) == {"epoch": [str(epoch)], "manifest": [manifest], **left}
    found = client.request(method, path, params=params, follow_redirects=True)
    assert found.status_code == 200
    assert client.get(path, params={"epoch": epoch}, headers={"Accept": "text/csv"}).is_success


def test_a_client_that_does_not_follow_has_a_small_file_at_once(
    client: httpx.Client, file: httpx.Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.get(FILE)
    assert (answer.status_code, answer.content) == (307, file.content)
    assert answer.headers["content-type"] == file.headers["content-type"]
    assert not client.get(FILE, headers={"Range": "bytes=0-3"}).content
    monkeypatch.setattr(tables, "_SMALL_BYTES", len(file.content) - 1)
    assert not client.get(FILE).content


def test_what_is_not_there_leads_nowhere(client: httpx.Client) -> None:
    assert problem(client.get("/shop/sales/none.csv")) == (404, "query")
    assert problem(client.get("/shop/none/total.csv")) == (404, "query")
    assert problem(client.get("/none/sales/total.csv")) == (404, "not_found")
    assert problem(client.get(FILE, params={"epoch": 9})) == (409, "behind")
    gone = client.get(FILE, params={"epoch": 1, "manifest": "0" * 32})
    assert problem(gone) == (410, "gone")


def test_all_parts_are_of_the_epoch_that_the_first_one_led_to(tmp_path: Path) -> None:
    """Also after the epoch cannot be read otherwise any more."""
    home = tmp_path / "sales"
    records = [Sale(f"shop {number:03}", "tea", number) for number in range(300)]
    sell(home, records, epoch_size=300)
    with (
        server({"shop": home}, epochs=1) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        head = client.head(FILE, follow_redirects=True)
        size, found = int(head.headers["content-length"]), b""
        tags = {head.headers["etag"]}
        while len(found) < size:
            part = client.get(head.url, headers={"Range": f"bytes={len(found)}-{len(found) + 999}"})
            assert (part.status_code, part.headers["statekit-epoch"]) == (206, "0")
            tags.add(part.headers["etag"])
            found += part.content
            records.append(Sale("rome", "tea", 7919))
            sell(home, records, epoch_size=1)
        client.get("/shop", params={"min_epoch": len(records) - 300, "wait": 20})
        assert problem(client.get("/shop/sales/total?epoch=0")) == (410, "gone")
        table = pq.read_table(io.BytesIO(found)).to_pydict()
        assert table == {
            "shop": list(table["shop"]),
            "value": [int(own.removeprefix("shop ")) for own in table["shop"]],
        }
        assert (len(table["shop"]), len(tags)) == (300, 1)
        newest = client.get(FILE, headers={"If-Match": head.headers["etag"]}, follow_redirects=True)
        assert problem(newest) == (412, "precondition")
        other = {"If-Range": head.headers["etag"], "Range": "bytes=0-3"}
        whole = client.get(FILE, headers=other, follow_redirects=True)
        assert whole.status_code == 200
        assert pq.read_table(io.BytesIO(whole.content)).num_rows == 301


def test_the_file_of_a_replaced_checkpoint_is_not_that_of_another_one(tmp_path: Path) -> None:
    with replaced(tmp_path) as (client, _, replace):
        before = client.get(FILE, follow_redirects=True)
        replace()
        after = client.get(FILE, follow_redirects=True)
        assert before.headers["etag"] != after.headers["etag"]
        assert "bonn" in pq.read_table(io.BytesIO(after.content))["shop"].to_pylist()
        assert client.get(before.url).content == before.content  # as long as it is there
        other = str(before.url).replace(".parquet", ".csv")
        assert problem(client.get(other)) == (410, "gone")


# ------------------------------------------------------------------------ conditions and ranges


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Match": "{tag}"}, 200),
        ({"If-Match": '"x", {tag}'}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": '"x"'}, 412),
        ({"If-Match": "W/{tag}"}, 412),  # it asks for the same bytes
        ({"If-Match": '"x"', "If-None-Match": "{tag}"}, 412),
        ({"If-None-Match": "{tag}"}, 304),
        ({"If-None-Match": 'W/{tag}, "x"'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"x"'}, 200),
        ({"If-None-Match": '"x"', "If-Modified-Since": "{modified}"}, 200),
        ({"If-Modified-Since": "{modified}"}, 304),
        ({"If-Modified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Unmodified-Since": "{modified}"}, 200),
        ({"If-Unmodified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"}, 412),
        ({"If-Match": "{tag}", "If-Unmodified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"}, 200),
    ],
)
def test_conditions_of_requests_are_those_of_rfc_9110(
    client: httpx.Client, file: httpx.Response, method: str, headers: dict[str, str], status: int
) -> None:
    own = {"tag": file.headers["etag"], "modified": file.headers["last-modified"]}
    given = {name: of.format(**own) for name, of in headers.items()}
    answer = client.request(method, file.url, headers=given)
    assert answer.status_code == status
    assert answer.headers["etag"] == file.headers["etag"]
    if status == 412:
        assert answer.headers["content-type"] == "application/problem+json"
    if status != 200 or method == "HEAD":
        assert status == 412 or not answer.content


@pytest.mark.parametrize(
    ("asked", "status", "parts"),
    [
        ("bytes=0-3", 206, [(0, 3)]),
        ("BYTES=4-", 206, [(4, -1)]),
        ("bytes=-4", 206, [(-4, -1)]),
        ("bytes=-99999999999", 206, [(0, -1)]),
        ("bytes=0-99999999999999999999999", 206, [(0, -1)]),
        ("bytes=0-3,8-11", 206, [(0, 3), (8, 11)]),
        ("bytes=0-3, 99999999-", 206, [(0, 3)]),
        ("bytes=9999999-", 416, []),
        ("bytes=9999999-10000000,8888888-9999999", 416, []),
        ("bytes=-0", 416, []),
        ("bytes=9-1", 200, []),
        ("bytes=a-b", 200, []),
        ("bytes=", 200, []),
        ("bytes=-", 200, []),
        ("bytes", 200, []),
        ("rows=0-3", 200, []),
        ("bytes=" + "0-1," * 200, 200, []),
    ],
)
def test_ranges_are_those_of_rfc_9110(
    client: httpx.Client,
    file: httpx.Response,
    asked: str,
    status: int,
    parts: list[tuple[int, int]],
) -> None:
    answer = client.get(file.url, headers={"Range": asked})
    size = len(file.content)
    assert answer.status_code == status
    if status == 416:
        assert problem(answer) == (416, "range")
        assert answer.headers["content-range"] == f"bytes */{size}"
    elif status == 200:
        assert answer.content == file.content
    elif len(parts) == 1:
        first, last = (place % size for place in parts[0])
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{size}"
        assert answer.content == file.content[first : last + 1]
    else:
        assert answer.headers["content-type"].startswith("multipart/byteranges")
        for first, last in parts:
            assert f"Content-Range: bytes {first}-{last}/{size}".encode() in answer.content
            assert file.content[first : last + 1] in answer.content
    head = client.head(file.url, headers={"Range": asked})  # ranges are of GET
    assert (head.status_code, head.headers["content-length"]) == (200, str(size))


@pytest.mark.parametrize(("given", "status"), [("{tag}", 206), ("W/{tag}", 200), ('"x"', 200)])
def test_parts_of_another_file_are_not_sent(
    client: httpx.Client, file: httpx.Response, given: str, status: int
) -> None:
    headers = {"Range": "bytes=0-3", "If-Range": given.format(tag=file.headers["etag"])}
    assert client.get(file.url, headers=headers).status_code == status
    headers["If-Range"] = file.headers["last-modified"]
    assert client.get(file.url, headers=headers).status_code == 206
    headers |= {"If-Range": '"x"', "Range": "bytes=9999999-"}
    assert client.get(file.url, headers=headers).status_code == 200


# ------------------------------------------------------------------------------------ wide ints


@sk.process(key="k")
def wide(record: dict[str, Any], n: sk.ValueState[int], of: sk.MapState[str, list[int]]) -> None:
    n.update(record["n"])
    of["x"] = [record["n"], 1]


def write_wide(home: Path) -> None:
    job = sk.Job("wide")
    job.source("records", dict).process(wide)
    JobHarness(job, checkpoint=home).send(records=[{"k": "a", "n": 2**64 - 1}, {"k": "b", "n": -5}])


@pytest.fixture(scope="module")
def wide_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("wide") / "c"
    write_wide(home)
    with (
        server({"w": home}) as address,
        httpx.Client(base_url=address, timeout=30, follow_redirects=True) as client,
    ):
        yield client


@pytest.mark.parametrize("state", ["n", "of"])
@pytest.mark.parametrize("to", ["parquet", "arrow", "csv"])
def test_ints_beyond_64_bits_are_text_or_decimals_if_the_request_says_so(
    wide_client: httpx.Client, state: str, to: str
) -> None:
    path = f"/w/wide/{state}.{to}"
    refused = wide_client.get(path)
    assert problem(refused) == (400, "wide_ints")
    assert "over HTTP wide_ints=text" in refused.json()["detail"]
    for option, of in (("text", str), ("decimal", int)):
        answer = wide_client.get(path, params={"wide_ints": option})
        assert answer.status_code == 200, answer.text
        if to == "csv":
            assert str(2**64 - 1) in answer.text
            continue
        source = io.BytesIO(answer.content)
        table = pq.read_table(source) if to == "parquet" else pa.ipc.open_file(source).read_all()
        found = [row["value"] for row in table.to_pylist()]
        expected = [[2**64 - 1, 1], [-5, 1]] if state == "of" else [2**64 - 1, -5]
        shown = [[*map(of, own)] if isinstance(own, list) else of(own) for own in expected]
        assert sorted(found, key=str) == sorted(shown, key=str)
    assert problem(wide_client.get(path, params={"wide_ints": "other"})) == (400, "bad_request")
    no_file = wide_client.get(f"/w/wide/{state}", params={"wide_ints": "text"})
    assert problem(no_file) == (400, "bad_request")


@pytest.mark.slow
def test_sql_reads_ints_beyond_64_bits_if_the_request_says_so(wide_client: httpx.Client) -> None:
    body: dict[str, Any] = {"job": "w", "sql": "select n.value v from wide.n n order by k"}
    refused = wide_client.post("/sql", json=body)
    assert problem(refused) == (400, "query")
    assert "wide_ints=text" in refused.json()["detail"]
    for option, expected in (("text", [str(2**64 - 1), "-5"]), ("decimal", [2**64 - 1, -5])):
        answer = wide_client.post("/sql", json=body | {"wide_ints": option})
        assert [row[0] for row in answer.json()["value"]["rows"]] == expected


# --------------------------------------------------------------------- in a process of their own


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All states count as large ones."""
    monkeypatch.setattr(tables, "_HERE_BYTES_MAX", 0)


def test_a_large_state_is_written_by_a_process_with_the_same_rows(
    home: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"/shop/sales/total.{to}" for to in ("csv", "arrow", "parquet")]
    small = {path: client.get(path, follow_redirects=True).content for path in paths}
    monkeypatch.setattr(tables, "_HERE_BYTES_MAX", 0)
    with server({"shop": home}) as address, httpx.Client(base_url=address, timeout=30) as asking:
        for path in paths:
            assert asking.get(path, follow_redirects=True).content == small[path]
        assert len(fork_servers()) == 1
    assert fork_servers() == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("state", ["n", "of"])
def test_its_errors_are_those_of_a_small_one(tmp_path: Path, state: str) -> None:
    write_wide(tmp_path / "c")
    with (
        server({"w": tmp_path / "c"}) as address,
        httpx.Client(base_url=address, timeout=30, follow_redirects=True) as client,
    ):
        refused = client.get(f"/w/wide/{state}.parquet")
        assert problem(refused) == (400, "wide_ints")
        shutil.rmtree(tmp_path / "c" / "data")
        lost = client.get(f"/w/wide/{state}.parquet", params={"wide_ints": "text"})
        assert problem(lost) == (503, "corrupt_checkpoint")


@pytest.mark.usefixtures("large")
def test_a_server_that_ends_ends_a_process_that_writes_a_file(home: Path) -> None:
    answers: list[httpx.Response] = []
    client = httpx.Client(timeout=30)
    with server({"shop": home}) as address:
        client.base_url = httpx.URL(address)
        answered = client.get("/shop/sales/total.csv", follow_redirects=True)
        assert answered.status_code == 200
        (forking,) = fork_servers()
        forking.suspend()

        def ask() -> None:
            address = answered.url.copy_with(path="/shop/sales/total.arrow")  # of this epoch
            answers.append(client.get(address))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: open_requests(address) == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    asking.join(10)
    client.close()
    assert problem(answers[0]) == (503, "closing")
    assert fork_servers() == []
