"""Random requests: each has an answer or a problem that says what is wrong, and none is a fault."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.effort import SOAK
from tests.support.random_sql import QUERIES
from tests.support.served import Sale, sell, server

EXAMPLES = 5_000 if SOAK else 80
RECORDS = [Sale("rome", "tea", 400), Sale("oslo", "cup", 900), Sale("rome", "pot", 2100)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, RECORDS)
    with (
        server({"shop": home, "again": home}) as address,
        httpx.Client(base_url=address, timeout=20, follow_redirects=False) as client,
    ):
        yield client


_SEGMENTS = st.text(max_size=5) | st.sampled_from(
    [
        *("shop", "sales", "total", "items", "log", "last", "rome", "query", "jobs", "_timers"),
        *("total.parquet", "total.arrow", "total.csv", "total.exe"),
        *("%2F", "%FF", "%00", "", ".", "..", "é", "a b"),
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
_VALUES = (
    st.text(max_size=8)
    | _JSON.map(json.dumps)
    | st.sampled_from(['"rome"', "0", "1", "2", "-1", "9" * 30, "nan", "2026-11-25T00:00:00Z"])
    | st.sampled_from(["eyJlcG9jaCI6IDIsICJhZnRlciI6ICIifQ==", "[" * 2_000, "true", "\x00"])
    | st.sampled_from(["left", "right", "both", "none"])
)
_NAMES = st.sampled_from(
    [
        *("key", "entry", "start", "end", "limit", "reverse", "cursor", "prefix"),
        *("closed", "offset", "count"),
        *("epoch", "manifest", "as_of", "min_epoch", "min_watermark", "wide_ints", "other"),
    ]
)
_HEADERS = st.dictionaries(
    st.sampled_from(
        [
            *("If-None-Match", "If-Match", "If-Modified-Since", "If-Range", "If-Unmodified-Since"),
            *("Accept", "Range", "Last-Event-ID", "Authorization", "Origin"),
        ]
    ),
    st.sampled_from(
        [
            *("*", 'W/"x"', "bytes=0-3", "bytes=9-1", "bytes=99999-", "text/csv", "Bearer x", ""),
            *("1-1", f"1-{'0' * 32}-end", "Mon, 01 Jan 2001 00:00:00 GMT", "nonsense"),
        ]
    ),
    max_size=2,
)


def check(answer: httpx.Response) -> None:
    """An answer is one, or a problem."""
    if answer.status_code in (200, 206, 304, 307):
        return
    assert 400 <= answer.status_code < 500, (answer.request.url, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    if answer.request.method != "HEAD":
        body = answer.json()
        assert body["status"] == answer.status_code
        assert re.fullmatch("[a-z_]+", body["kind"])
        assert "Traceback" not in answer.text
        assert str(Path.home()) not in answer.text


@given(
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]),
    segments=st.lists(_SEGMENTS, max_size=6),
    params=st.lists(st.tuples(_NAMES, _VALUES), max_size=3),
    headers=_HEADERS,
    body=st.binary(max_size=20) | _JSON.map(lambda data: json.dumps(data).encode()),
)
@settings(max_examples=EXAMPLES, deadline=5_000)
def test_no_request_is_a_fault_of_the_server(
    client: httpx.Client,
    method: str,
    segments: list[str],
    params: list[tuple[str, str]],
    headers: dict[str, str],
    body: bytes,
) -> None:
    try:
        request = client.build_request(
            method,
            "/" + "/".join(segments),
            params=httpx.QueryParams(tuple(params)),
            headers=headers,
            content=body,
        )
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
        return  # the client cannot send it
    check(client.send(request))


@given(
    keys=st.lists(_JSON, max_size=5),
    state=st.sampled_from(["total", "items", "log", "last", "none"]),
)
@settings(max_examples=EXAMPLES, deadline=5_000)
def test_no_query_is_a_fault_of_the_server(
    client: httpx.Client, keys: list[Any], state: str
) -> None:
    body = json.dumps({"keys": keys}).encode()
    answer = client.post(f"/shop/sales/{state}/query", content=body)
    check(answer)
    if answer.status_code == 200:
        assert len(answer.json()["value"]) == len(keys)
        assert all(isinstance(key, str) for key in keys)


@given(key=st.text(max_size=20))
@settings(max_examples=EXAMPLES, deadline=5_000)
def test_every_text_is_a_key_in_a_path_as_json_and_in_a_query(
    client: httpx.Client, key: str
) -> None:
    as_json = client.get("/shop/sales/total", params={"key": json.dumps(key)})
    listed = client.post("/shop/sales/total/query", json={"keys": [key]})
    assert as_json.status_code == (200 if key in ("rome", "oslo") else 404)
    assert listed.status_code == 200
    assert (listed.json()["value"] == [None]) == (as_json.status_code == 404)


def _cursor(data: Any) -> str:
    """What a server would take for a cursor, if it has the right members."""
    return base64.urlsafe_b64encode(json.dumps(data).encode()).decode()


_EPOCHS = st.integers(-2, 5).map(lambda epoch: f"{epoch}-{'0' * 32}") | st.sampled_from(
    [2, 2**62, 2.5, "2", f"2-{'0' * 31}", f"{10**30}-{'0' * 32}", None, True, float("inf")]
)
_AFTER = (
    st.binary(max_size=12).map(bytes.hex)
    | st.sampled_from(["", "726f6d650000", "ff" * 40, "zz", "0", "ROME", "7 2", 5, None, ["72"]])
    | st.text(max_size=4)
)
_CURSORS = st.one_of(
    st.builds(lambda epoch, after: _cursor({"epoch": epoch, "after": after}), _EPOCHS, _AFTER),
    _JSON.map(_cursor),
    st.text(max_size=12),
    st.binary(max_size=12).map(lambda data: base64.b64encode(data).decode()),
)


@given(
    state=st.sampled_from(["total", "log", "items", "last"]),
    of=st.sampled_from(["shop/sales/total", "again/sales/total", "shop/sales/items"]),
    random=st.none() | _CURSORS,
    cut=st.none() | st.integers(0, 60),
    put=st.tuples(st.integers(0, 60), st.sampled_from("=A_-+/ é")) | st.none(),
    reverse=st.booleans(),
    start=st.none() | st.sampled_from(['"oslo"', '"p"', '""']),
)
@settings(max_examples=2 * EXAMPLES, deadline=5_000)
def test_a_cursor_of_anything_gives_keys_of_the_state_in_order_or_a_problem(
    client: httpx.Client,
    state: str,
    of: str,
    random: str | None,
    cut: int | None,
    put: tuple[int, str] | None,
    reverse: bool,
    start: str | None,
) -> None:
    cursor = random
    if cursor is None:
        cursor = str(client.get(f"/{of}?limit=1").json()["value"]["cursor"])
    if cut is not None:
        cursor = cursor[:cut]
    if put is not None:
        cursor = cursor[: put[0]] + put[1] + cursor[put[0] + 1 :]
    given = {"cursor": cursor, "reverse": str(reverse).lower()} | (
        {"start": start} if start else {}
    )
    answer = client.get(f"/shop/sales/{state}", params=given)
    check(answer)
    if answer.status_code == 200:
        assert answer.json()["epoch"] == 2
        everything = dict(client.get(f"/shop/sales/{state}").json()["value"]["items"])
        found = answer.json()["value"]["items"]
        keys = [key for key, _ in found]
        assert keys == sorted(keys, reverse=reverse)
        assert all(everything[key] == value for key, value in found)
        assert start is None or all(key >= json.loads(start) for key in keys)


@given(sql=QUERIES | st.just("select " + "(" * 2_000), to=st.sampled_from(["json", "csv", "arrow"]))
@settings(
    max_examples=max(8, EXAMPLES // 25),
    derandomize=not SOAK,
    deadline=None,
    phases=[Phase.generate],
)
def test_no_sql_is_a_fault_of_the_server(client: httpx.Client, sql: str, to: str) -> None:
    try:
        body = json.dumps({"job": "shop", "sql": sql.replace("{}", "/outside")}).encode()
    except UnicodeEncodeError:
        return
    answer = client.post(f"/sql?format={to}", content=body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        check(answer)


@given(body=st.dictionaries(st.sampled_from(["job", "sql", "epoch", "rows", "x"]), _JSON))
@settings(max_examples=EXAMPLES, deadline=5_000)
def test_no_body_of_sql_is_a_fault_of_the_server(
    client: httpx.Client, body: dict[str, Any]
) -> None:
    check(client.post("/sql", content=json.dumps(body).encode()))
