"""While a job commits: each answer is of one epoch, and of the one that it says."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from statekit.errors import StatekitError
from tests.support.effort import SOAK
from tests.support.served import Sale, sell, server

RECORDS = 3_000 if SOAK else 500
COLLECTED = ("query", "gone", "corrupt_checkpoint")
SHOPS = ("rome", "oslo", "nice")
SALES = [Sale(SHOPS[n % 3], "tea", n + 1) for n in range(RECORDS)]


def totals_after(epoch: int) -> dict[str, int]:
    """The oracle: an epoch has one more record than the one before."""
    found: dict[str, int] = {}
    for sale in SALES[: epoch + 1]:
        found[sale.shop] = found.get(sale.shop, 0) + sale.cents
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, SALES[:3])
    failed: list[StatekitError] = []

    def run() -> None:
        try:
            sell(home, SALES)
        except StatekitError as error:
            failed.append(error)

    job = threading.Thread(target=run)
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, timeout=30, follow_redirects=True) as client,
    ):
        job.start()
        yield client
        job.join(300)
        assert failed == []
        last = client.get(f"/shop?min_epoch={RECORDS - 1}&wait=30").json()
        assert last["epoch"] == RECORDS - 1


def one_key(client: httpx.Client) -> None:
    for path in ("/shop/sales/total/rome", "/shop/sales/total/rome?wait=0"):
        found = client.get(path).json()
        assert found["value"] == totals_after(found["epoch"])["rome"]


def several_states(client: httpx.Client) -> None:
    keys = list(SHOPS)
    reads = [
        {"operator": "sales", "state": state, "keys": keys} for state in ("total", "log", "items")
    ]
    found = client.post("/shop/query", json={"reads": reads}).json()
    total, log, items = found["value"]
    expected = totals_after(found["epoch"])
    assert total == [expected[shop] for shop in SHOPS]
    assert [sum(elements) for elements in log] == total
    assert [entries["tea"] for entries in items] == total


def pages(client: httpx.Client) -> None:
    found, cursor, epochs = [], None, set()
    while True:
        given = {"limit": 1} | ({"cursor": cursor} if cursor else {})
        answer = client.get("/shop/sales/total", params=given)
        if answer.status_code == 410:
            return  # the job went on by 16 epochs
        page = answer.json()
        epochs.add(page["epoch"])
        found += page["value"]["items"]
        cursor = page["value"]["cursor"]
        if cursor is None:
            break
    assert len(epochs) == 1
    assert dict(found) == totals_after(epochs.pop())


def a_file(client: httpx.Client) -> None:
    answer = client.get("/shop/sales/total.parquet")
    if answer.status_code != 200:  # the job has collected the epoch meanwhile
        assert answer.json()["kind"] in COLLECTED, answer.text
        return
    table = pq.read_table(io.BytesIO(answer.content)).to_pydict()
    found = dict(zip(table["shop"], table["value"], strict=True))
    assert found == totals_after(int(answer.headers["statekit-epoch"]))


def sizes(client: httpx.Client) -> None:
    found = client.get("/shop").json()
    states = {state["state"]: state["rows"] for state in found["operators"][0]["states"]}
    assert states["log"] == found["epoch"] + 1


def an_earlier_epoch(client: httpx.Client) -> None:
    epoch = client.get("/shop/sales/total/rome").json()["epoch"] - 3
    answer = client.get(f"/shop/sales/total/rome?epoch={epoch}")
    if epoch >= 0 and answer.status_code == 200:
        assert answer.json()["epoch"] == epoch
        assert answer.json()["value"] == totals_after(epoch)["rome"]
    else:
        assert answer.status_code in (400, 410)


def events(client: httpx.Client) -> None:
    """Watch some epochs: after each of them, what was given is the state of that epoch."""
    rows: dict[str, int] = {}
    name, seen = "", 0
    accept = {"Accept": "text/event-stream"}
    with client.stream("GET", "/shop/sales/total", headers=accept) as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                if name == "reset":
                    rows.clear()
                elif name in ("row", "change"):
                    rows[data["key"]] = data["value"]
                elif name == "epoch":
                    assert rows == totals_after(data["epoch"])
                    seen += 1
            if seen == 3 or (seen and data_is_last(name, line)):
                return


def data_is_last(name: str, line: str) -> bool:
    return name == "epoch" and f'"epoch":{RECORDS - 1}' in line


def sql(client: httpx.Client) -> None:
    text = "select (select sum(value) from sales.total), (select sum(value) from sales.log)"
    answer = client.post("/sql", json={"job": "shop", "sql": text})
    if answer.status_code == 200:
        found = answer.json()
        (row,) = found["value"]["rows"]
        assert row == [sum(totals_after(found["epoch"]).values())] * 2
    else:  # the job has collected the epoch meanwhile
        assert answer.json()["kind"] in COLLECTED, answer.text


WAYS: list[tuple[Callable[[httpx.Client], Any], int]] = [
    (one_key, 20),
    (several_states, 20),
    (pages, 10),
    (sizes, 10),
    (an_earlier_epoch, 10),
    (a_file, 3),
    (sql, 2),
    (events, 1),
]


@pytest.mark.parametrize(("way", "times"), WAYS, ids=[way.__name__ for way, _ in WAYS])
def test_an_answer_is_of_the_epoch_that_it_says(
    client: httpx.Client, way: Callable[[httpx.Client], Any], times: int
) -> None:
    for _ in range(times * (10 if RECORDS > 1000 else 1)):
        way(client)
