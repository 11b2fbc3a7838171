"""Keys with many rows, over HTTP: a part of everything about a key, and pages that end early."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import httpx
import pytest

import statekit as sk
from tests.support.served import server


class Load(NamedTuple):
    """So many rows of a key."""

    name: str
    rows: int
    at: dt.datetime


@sk.process(key="name", event_time="at")
def loads(
    load: Load,
    ctx: sk.Context,
    log: sk.ListState[int],
    by_number: Annotated[sk.MapState[int, int], sk.TTL("1 day", clock="event")],
    rows: sk.ValueState[int],
    csv: sk.ListState[int],
) -> None:
    log.extend(range(load.rows))
    csv.append(load.rows)
    for number in range(load.rows):
        by_number[number] = number
        if load.name == "d":
            ctx.timers.set(load.at + dt.timedelta(minutes=1 + number), name=str(number))
    rows.update(load.rows)


@loads.on_timer
def nothing(timer: sk.Timer, ctx: sk.Context) -> None:
    return None


@sk.process()
def counted(load: Load, total: sk.OperatorState[int]) -> None:
    total.update((total.get() or 0) + 1)


AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROWS = {"a": 6_000, "b": 4_000, "c": 1, "d": 1_001, "e": 10_001, "f": 2}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("large") / "loads"
    job = sk.Job("loads")
    source = job.source("records", Load)
    source.process(loads)
    source.process(counted)
    records = [Load(name, rows, AT) for name, rows in ROWS.items()]
    job.run({"records": records}, checkpoint=home, drain=False)
    with server({"loads": home}) as found:
        yield found


def everything(address: str, key: str) -> Any:
    given = {"operator": "loads", "key": f'"{key}"'}
    answer = httpx.get(f"{address}/loads/key", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


def test_everything_about_a_key_has_the_first_rows_of_each_state(address: str) -> None:
    found = everything(address, "e")["states"]
    assert found["rows"] == {"value": 10_001, "is_cut": False, "expires": None}
    assert found["log"] == {"value": [*range(1_000)], "is_cut": True, "expires": None}
    assert found["by_number"] == {
        "value": {str(number): number for number in range(1_000)},
        "is_cut": True,
        "expires": "2026-01-02T00:00:00+00:00",
    }
    assert everything(address, "c")["states"]["log"]["is_cut"] is False


def test_everything_about_a_key_has_its_first_timers(address: str) -> None:
    found = everything(address, "d")
    assert [timer["name"] for timer in found["timers"]] == [str(n) for n in range(1_000)]
    assert found["timers_cut"] is True
    assert everything(address, "c")["timers_cut"] is False


@pytest.mark.parametrize("state", ["log", "by_number"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_page_ends_before_it_has_too_many_rows(address: str, state: str, reverse: bool) -> None:
    parameters: dict[str, Any] = {"reverse": reverse, "limit": 3}
    pages, too_large = [], []
    with httpx.Client(base_url=address, timeout=30) as client:
        while True:
            answer = client.get(f"/loads/loads/{state}", params=parameters)
            found = answer.json()
            if answer.status_code == 200:
                found = found["value"]
                pages.append({key: len(rows) for key, rows in found["items"]})
            else:
                assert (answer.status_code, found["kind"]) == (413, "too_large"), answer.text
                too_large.append(found["key"])
                assert "'e'" in found["detail"]
                parts = client.get(f"/loads/loads/{state}", params={"key": '"e"', "limit": 10_000})
                assert len(parts.json()["value"]) == 10_000
            if found["cursor"] is None:
                break
            parameters["cursor"] = found["cursor"]
    expected = [{"a": 6_000, "b": 4_000}, {"c": 1, "d": 1_001}, {"f": 2}]
    if reverse:
        expected = [{"f": 2}, {"d": 1_001, "c": 1, "b": 4_000}, {"a": 6_000}]
    assert pages == expected
    assert too_large == ["e"]


def test_a_state_may_have_the_name_of_a_format(address: str) -> None:
    found = httpx.get(f"{address}/loads/loads/csv", params={"limit": 1}).json()
    assert found["value"]["items"] == [["a", [6_000]]]
    text = httpx.get(f"{address}/loads/loads/csv.csv", follow_redirects=True).text
    assert text.splitlines()[0].startswith('"name"')


@pytest.mark.parametrize(
    "path",
    [
        "loads/key?operator=counted&key=1",
        "loads/counted/total/x",
        "loads/counted/total?key=1",
        "loads/counted/total",
        "loads/history?operator=counted&state=total&key=1",
    ],
)
def test_an_operator_without_keys_is_named(address: str, path: str) -> None:
    answer = httpx.get(f"{address}/{path}")
    assert (answer.status_code, answer.json()["kind"]) in ((404, "query"), (400, "bad_request"))
    assert "counted" in answer.json()["detail"]


def test_a_duration_of_days_is_short(address: str) -> None:
    (operator, _) = httpx.get(f"{address}/loads").json()["operators"]
    types = {state["state"]: state["type"] for state in operator["states"]}
    expected = "map[int → int], expires 1 day after the last write in event time"
    assert types["by_number"] == expected
