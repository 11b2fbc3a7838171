"""SQL over HTTP and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from statekit.server.admission.access import digest_of
from tests.support.invoked import invoked
from tests.support.served import Sale, sell, server

RECORDS = [Sale("rome", "tea", 400), Sale("oslo", "cup", 900), Sale("rome", "pot", 2100)]
QUERY = "select shop, value from sales.total order by shop"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, RECORDS)
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[httpx.Client]:
    with server({"shop": home}) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def test_a_result_is_json_csv_or_arrow(client: httpx.Client) -> None:
    body = {"job": "shop", "sql": QUERY}
    answer = client.post("/sql", json=body)
    assert answer.json()["epoch"] == 2
    assert answer.json()["value"] == {
        "columns": [{"name": "shop", "type": "string"}, {"name": "value", "type": "int64"}],
        "rows": [["oslo", 900], ["rome", 2500]],
        "is_cut": False,
    }
    csv = client.post("/sql?format=csv", json=body | {"rows": 1})
    assert csv.text == '"shop","value"\n"oslo",900\n'
    assert csv.headers["statekit-is-cut"] == "true"
    accept = {"Accept": "application/vnd.apache.arrow.stream"}
    arrow = client.post("/sql", json=body, headers=accept)
    assert pa.ipc.open_stream(arrow.content).read_all().num_rows == 2
    assert client.post("/sql", json=body | {"epoch": 2}).json()["value"] == answer.json()["value"]
    assert client.post("/sql", json=body | {"epoch": 0}).status_code == 410


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"job": "shop"}, (400, "bad_request")),
        ({"job": "shop", "sql": "select 1", "more": 1}, (400, "bad_request")),
        ({"job": "none", "sql": "select 1"}, (404, "not_found")),
        ({"job": "shop", "sql": "select * from read_csv('/etc/passwd')"}, (400, "query")),
        ({"job": "shop", "sql": "drop view x"}, (400, "query")),
        ({"job": "shop", "sql": "select 1", "rows": 0}, (400, "bad_request")),
        ({"job": "shop", "sql": "select 1", "epoch": 99}, (409, "behind")),
        (
            {"job": "shop", "sql": "select 1", "epoch": 0, "manifest": "0" * 32 + "\n"},
            (400, "bad_request"),
        ),
    ],
)
def test_what_is_no_query_is_a_problem(
    client: httpx.Client, body: dict[str, object], expected: tuple[int, str]
) -> None:
    answer = client.post("/sql", json=body)
    assert (answer.status_code, answer.json()["kind"]) == expected


def test_a_token_queries_the_states_that_it_may_read(home: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    listed = [{"name": "some", "sha256": digest_of("some"), "read": ["shop/sales/total"]}]
    tokens.write_text(json.dumps({"tokens": listed}))
    headers = {"Authorization": "Bearer some"}
    with server({"shop": home}, tokens=tokens) as address:

        def ask(sql: str) -> httpx.Response:
            body = {"job": "shop", "sql": sql}
            return httpx.post(f"{address}/sql", json=body, headers=headers, timeout=60)

        assert ask(QUERY).status_code == 200
        assert ask("select state from states").json()["value"]["rows"] == [["total"]]
        refused = ask("select * from sales.last")
        assert refused.status_code == 400
        assert "last" not in refused.json()["detail"].partition("Tables are states")[2]
        assert httpx.post(f"{address}/sql", json={}).status_code == 401


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select 0.5 as n, 3.0 as m", [["0.5", "3.0"]]),
        ("select 1 as a, 2 as a", [[1, 2]]),
        (
            "select sum(value) * 1.19, sum(value) * 1.191 from sales.total",
            [["4046.00", "4049.400"]],
        ),
        ("select '2026-01-01'::timestamptz = '2026-01-01 00:00:00Z'::timestamptz", [[True]]),
    ],
)
def test_values_of_a_result_are_whole(client: httpx.Client, sql: str, rows: object) -> None:
    assert client.post("/sql", json={"job": "shop", "sql": sql}).json()["value"]["rows"] == rows


@pytest.mark.parametrize("to", ["json", "csv"])
@pytest.mark.parametrize(
    "value",
    ["'infinity'::timestamp", "'infinity'::date", "'290000-01-01'::timestamp", "interval 1 month"],
)
def test_a_value_that_a_format_cannot_show_is_a_problem_or_shown(
    client: httpx.Client, value: str, to: str
) -> None:
    body = {"job": "shop", "sql": f"select {value} as n"}
    answer = client.post(f"/sql?format={to}", json=body)
    assert answer.status_code in (200, 400), answer.text


def test_a_query_whose_client_has_left_is_ended(client: httpx.Client) -> None:
    slow = {"job": "shop", "sql": "select count(*) from range(100000000) a, range(1000000) b"}
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/sql", json=slow, timeout=0.3)
    answer = client.post("/sql", json={"job": "shop", "sql": "select 1 as n"}, timeout=20)
    assert answer.json()["value"]["rows"] == [[1]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "json"], '{"shop":"oslo","value":900}\n{"shop":"rome","value":2500}\n'),
        (["--to", "csv"], '"shop","value"\n"oslo",900\n"rome",2500\n'),
        (["--to", "json", "--epoch", "0"], '{"shop":"rome","value":400}\n'),
    ],
)
def test_the_command_prints_a_result(home: Path, options: list[str], expected: str) -> None:
    done = invoked("sql", home, QUERY, *options)
    assert done.exit_code == 0, done.output
    assert done.stdout == expected


def test_the_command_prints_a_table_and_says_if_there_is_more(home: Path) -> None:
    done = invoked("sql", home, QUERY, "--limit", 1)
    assert "oslo" in done.stdout
    assert "rome" not in done.stdout
    assert "there are more rows than 1" in done.output
