"""Pages of the dashboard: tokens in a cookie, what each token may see, escapes and sizes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from statekit.server.dashboard.charts import chart, heat_map
from statekit.server.dashboard.job_facts import FAILURE_MAX
from statekit.server.dashboard.plan import picture_of
from statekit.server.dashboard.template import html
from tests.support.served import Sale, sell, server
from tests.unit.server.test_access import token_file

AT_ONCE = 5
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

PAGES = [
    "",
    "shop",
    "shop/sales",
    "shop/sales?key=%22rome%22&history=total&history=items",
    "shop/sales/total",
    "shop/sales/total?view=live",
    "shop/sales/total?view=growth",
    "shop/sales/total?view=skew",
    "shop/sales/total?view=read",
    "sql",
]

WORK = [
    "shop/sales?count=1",
    "shop/sales/total?view=skew&count=1",
    "sql?job=shop&sql=" + quote("select * from states"),
]
"""Pages that start a process of their own."""

HIDDEN = [
    "shop/sales/items",
    "shop/sales/items?view=skew",
    "warehouse",
    "warehouse/sales",
    "sql?job=warehouse",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400), Sale("oslo", "<script>alert(1)</script>", 5)])
    return home


@pytest.fixture(scope="module")
def address(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    tokens = token_file(file, ("own", "own", ["*"]), ("one", "one", ["shop/sales/total"]))
    options = {"tokens": tokens, "refusals": AT_ONCE / 10, "trusted_proxy": ["127.0.0.1"]}
    with server({"shop": home, "warehouse": home}, **options) as address:
        yield address


@pytest.fixture(scope="module")
def open_address(home: Path) -> Iterator[str]:
    with server({"shop": home}) as address:
        yield address


ADDRESSES = itertools.count(1)


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    own = {"X-Forwarded-For": f"198.51.100.{next(ADDRESSES)}"}
    with httpx.Client(base_url=address, headers=own, timeout=60) as client:
        yield client


def sign_in(client: httpx.Client, token: str, **form: str) -> httpx.Response:
    return client.post("/-/", data={"token": token, **form})


# ------------------------------------------------------------------------------------- tokens


def test_a_typed_token_is_kept_in_a_cookie_that_counts_for_reads_of_pages_alone(
    client: httpx.Client,
) -> None:
    assert client.get("/-/shop").status_code == 401
    answer = sign_in(client, "own", next="shop?x=%20")
    assert (answer.status_code, answer.headers["location"]) == (303, "./shop?x=%20")
    cookie = answer.headers["set-cookie"]
    port = client.base_url.port
    assert cookie == f"statekit-token-{port}=own; HttpOnly; SameSite=Strict"
    assert client.get("/-/shop").status_code == 200
    own = {"Cookie": cookie.partition(";")[0]}
    for method, path in (("GET", "/jobs"), ("GET", "/shop/sales/total/rome"), ("POST", "/sql")):
        assert client.request(method, path, headers=own).status_code == 401, path


def test_signing_out_removes_the_cookie(client: httpx.Client) -> None:
    sign_in(client, "own")
    assert client.get("/-/shop").status_code == 200
    answer = client.post("/-/")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert client.get("/-/shop").status_code == 401


@pytest.mark.parametrize("origin", ["https://state.example", "http://state.example"])
def test_the_cookie_is_for_https_alone_if_the_browser_uses_it(
    client: httpx.Client, origin: str
) -> None:
    answer = client.post("/-/", data={"token": "own"}, headers={"Origin": origin})
    assert ("; Secure" in answer.headers["set-cookie"]) == origin.startswith("https:")


def test_wrong_tokens_that_are_typed_or_in_a_cookie_are_refused_requests(
    client: httpx.Client,
) -> None:
    for _ in range(3 * AT_ONCE):  # they ask for a token, and guess none
        assert client.get("/-/").status_code == 401
    found = [sign_in(client, f"guess{n}").status_code for n in range(AT_ONCE - 1)]
    cookie = {"Cookie": f"statekit-token-{client.base_url.port}=guess"}
    found += [client.get("/-/", headers=cookie).status_code]
    assert found == [401] * AT_ONCE
    assert sign_in(client, "own").status_code == 429  # the right one, too
    assert client.get("/-/", headers=cookie).status_code == 429
    assert client.get("/jobs", headers={"Authorization": "Bearer own"}).status_code == 429


def test_a_form_of_another_site_signs_nobody_in_or_out(client: httpx.Client) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site}
        answer = client.post("/-/", data={"token": "own"}, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("following", ["//evil.example", "https://evil.example", "\\\\evil", "/x"])
def test_after_signing_in_a_page_of_this_site_follows(client: httpx.Client, following: str) -> None:
    location = sign_in(client, "own", next=following).headers["location"]
    found = httpx.URL("https://state.example/a/-/").join(location)
    assert (found.host, found.path.startswith("/a/-/")) == ("state.example", True)


# ------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize("path", PAGES)
def test_a_token_of_one_state_sees_no_other_name(client: httpx.Client, path: str) -> None:
    _check_names(client, path)


@pytest.mark.parametrize("path", WORK)
def test_rankings_and_queries_of_a_token_of_one_state_have_no_other_name(
    client: httpx.Client, path: str
) -> None:
    _check_names(client, path)


def _check_names(client: httpx.Client, path: str) -> None:
    sign_in(client, "one")
    answer = client.get(f"/-/{path}")
    assert answer.status_code == 200
    seen = set(re.findall(r"\w+", unescape(answer.text.partition("<main")[2])))
    asked = set(re.findall(r"\w+", path))  # the page may repeat what was asked for
    assert not {"warehouse", "items", "log", "tea"} & (seen - asked)


@pytest.mark.parametrize("path", HIDDEN)
def test_pages_of_hidden_and_of_absent_names_are_refused_alike(
    client: httpx.Client, path: str
) -> None:
    sign_in(client, "one")
    assert client.get(f"/-/{path}").status_code == 403
    absent = path.replace("warehouse", "none").replace("items", "none")
    assert client.get(f"/-/{absent}").status_code == 403


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_relative_addresses_and_escape_values(open_address: str, path: str) -> None:
    answer = httpx.get(f"{open_address}/-/{path}", timeout=60)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "unsafe" not in answer.headers["content-security-policy"]
    for name, own in re.findall(r'(href|src|action|data-load|data-stream)="([^"]*)"', answer.text):
        assert own.startswith(("./", "../")) or own == "#main", (name, own)


def test_links_of_other_sites_run_no_query_and_count_nothing(open_address: str) -> None:
    sql = f"{open_address}/-/sql?job=shop&sql=select+7+as+seven"
    ranking = f"{open_address}/-/shop/sales?count=1"
    for site, is_run in (("none", True), ("cross-site", False)):
        headers = {"Sec-Fetch-Site": site}
        page = httpx.get(sql, headers=headers, timeout=60).text
        assert ("1 row" in page, "select 7 as seven" in page) == (is_run, True)
        assert ("times the mean" in httpx.get(ranking, headers=headers, timeout=60).text) == is_run


def test_problems_of_pages_are_pages(open_address: str) -> None:
    for path, status in (
        ("none", 404),
        ("shop/none", 404),
        ("shop/sales/none", 404),
        ("a/b/c/d", 404),
    ):
        answer = httpx.get(f"{open_address}/-/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (
            status,
            "text/html; charset=utf-8",
        )
        assert 'role="alert"' in answer.text
    assert httpx.get(f"{open_address}/-/shop?epochs=5").status_code == 400


def test_a_page_waits_for_another_epoch_than_the_one_that_is_known(tmp_path: Path) -> None:
    home, records = tmp_path / "sales", [Sale("rome", "tea", 400)]
    sell(home, records)
    with server({"shop": home}) as address:
        known = re.search('data-known="([^"]+)"', httpx.get(f"{address}/-/shop").text)
        assert known is not None
        with httpx.Client(timeout=60) as client:
            sell(home, [*records, Sale("rome", "tea", 5)])
            page = client.get(f"{address}/-/shop", headers={"Statekit-Known": known[1]}).text
    assert 'data-known="1-' in page or 'data-known="2-' in page


# ------------------------------------------------------------------------------ how it is drawn


def operator(name: str, *inputs: str) -> dict[str, object]:
    key = [{"name": "id", "type": "str"}]
    return {
        "operator": name,
        "inputs": list(inputs),
        "broadcasts": [],
        "key": key,
        "states": [],
        "has_timers": False,
    }


def test_a_plan_has_layers_and_no_boxes_on_top_of_each_other() -> None:
    operators = [
        operator("a", "records", "rates"),
        operator("b", "a"),
        operator("c", "a", "late"),
        operator("d", "b", "c", "a"),
        operator("e", "d", "records"),
    ]
    plan = picture_of(operators, {})
    layer = {node.name: node.layer for node in plan.nodes if node.kind == "operator"}
    assert layer == {"a": 1, "b": 2, "c": 2, "d": 3, "e": 4}
    for one, other in itertools.combinations(plan.nodes, 2):
        beside = one.x + one.width < other.x or other.x + other.width < one.x
        below = one.y + one.height < other.y or other.y + other.height < one.y
        assert beside or below, (one.lines, other.lines)
    assert all(node.x >= 0 and node.x + node.width <= plan.width for node in plan.nodes)
    assert all(node.y >= 0 and node.y + node.height <= plan.height for node in plan.nodes)
    assert len(plan.curves) == 10


def test_lines_have_gaps_and_single_points_and_axes_of_counts_have_whole_numbers() -> None:
    own = chart("Rows", [0, 1, 2, 3], [("rows", [1, None, 2, 3])])
    assert own.lines[0].path.count("M") == 2
    assert [tick.text for tick in own.top] == ["0", "1", "2", "3"]
    assert own.area == ""
    assert chart("Rows", [5.0], [("rows", [0])]).lines[0].path == "M500 140h0"
    assert chart("Rows", [], [("rows", [])]).lines[0].last == "–"


def test_a_heat_map_of_many_key_groups_has_a_cell_for_several() -> None:
    own = heat_map([(0, 5), (4095, 10)], 4096)
    assert (own.per, len(own.rows), own.rows[0], own.rows[-1]) == (2, 2048, 5, 10)


def failed(error: str, message: str) -> dict[str, Any]:
    """The last failure of a job."""
    at = "2026-01-31T12:00:00.000000Z"
    return {"at": at, "epoch": 7, "error": error, "message": message, "is_over": False}


def mirrored(name: str) -> dict[str, Any]:
    """A row of the table of mirrors."""
    texts = dict.fromkeys(("name", "state", "mode", "place", "status", "kind"), name)
    return {**texts, "epoch": 3, "lag": 1}


def test_hostile_names_are_text() -> None:
    class Tags(HTMLParser):
        found: list[str]

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.append(tag)

    evil = '"><script>alert(1)</script>'
    plan = picture_of([operator(evil, evil)], {})
    own = chart(evil, [1, 2], [(evil, [1, 2])])
    page = html(
        "job",
        root="./",
        assets="../assets/",
        to=lambda *place, **_: "./" + "/".join(place),
        place=[evil],
        is_sql=False,
        is_submitted=False,
        has_service=True,
        is_signed_in=False,
        facts=type("Facts", (), {"quiet_s": None, "operators": []}),
        numbers=[(evil, evil, False)],
        plan=plan,
        charts=[own],
        mirrors=[mirrored(evil)],
        failure=failed(evil, evil),
        known=evil,
        pause=evil,
    )
    parser = Tags()
    parser.found = []
    parser.feed(page)
    assert parser.found.count("script") == 1  # the one of the head
    assert json.dumps(parser.found).count("alert") == 0


def test_a_page_of_a_large_job_is_below_100_kb_with_its_style_and_script() -> None:
    x = [1_790_000_000 + 0.4 * n for n in range(120)]
    names = [f"operator-{n}-of-many" for n in range(6)]
    lines = [(name, [(n * 7919 % 1_000_003) * 997 for n in range(120)]) for name in names]
    operators = [operator(name, names[n - 1] if n else "records") for n, name in enumerate(names)]
    page = html(
        "job",
        root="./",
        assets="../assets/",
        to=lambda *place, **_: "./" + "/".join(place),
        place=["job"],
        is_sql=False,
        is_submitted=False,
        has_service=True,
        is_signed_in=True,
        facts=type("Facts", (), {"quiet_s": None, "operators": []}),
        numbers=[],
        plan=picture_of(operators, {}),
        charts=[chart("Bytes written, by operator", x, lines, "bytes") for _ in range(6)],
        mirrors=[mirrored(name) for name in names],
        failure=failed("ProcessError", "a" * FAILURE_MAX),
        known="1",
        pause=1000,
    )
    assets = files("statekit.server.dashboard") / "assets"
    sizes = [len((assets / name).read_bytes()) for name in ("style.css", "page.js", "logo.svg")]
    assert len(page.encode()) + sum(sizes) < 100_000
    assert (assets / "page.js").read_text().count("\n") < 250
