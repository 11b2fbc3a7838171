"""The values of a key over time, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from tests.support.served import Sale, sales, sell, server

KEY = '"rome"'


@sk.process(key="shop")
def counts(sale: Sale, count: sk.ValueState[int], names: sk.ValueState[str]) -> None:
    count.update((count.get() or 0) + 1)
    names.update(str(sale.cents) * (300_000 if sale.item == "large" else 1))


def grow(home: Path, records: list[Sale], *, with_counts: bool = True) -> None:
    job = sk.Job("sales")
    source = job.source("records", Sale)
    source.process(sales)
    if with_counts:
        source.process(counts)
    job.run({"records": records}, checkpoint=home, epoch_size=1, drain=False)


def history(address: str, operator: str, state: str) -> Any:
    place = {"operator": operator, "state": state, "key": KEY}
    answer = httpx.get(f"{address}/shop/history", params=place)
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(found: Any) -> list[tuple[int, Any]]:
    return [(entry["epoch"], entry["value"]) for entry in found["value"]]


def test_a_history_has_changes_and_no_epochs_that_were_rolled_back(tmp_path: Path) -> None:
    home, rome = tmp_path / "shop", [Sale("rome", "tea", cents) for cents in range(1, 7)]
    sell(home, rome[:1])
    with server({"shop": home}) as address:
        sell(home, [*rome[:2], Sale("oslo", "tea", 1), rome[2]])
        httpx.get(f"{address}/shop", params={"min_epoch": 3, "wait": 20})
        plan(Repository(home), 1).carry_out()
        found = httpx.get(f"{address}/shop", params={"min_epoch": 4, "wait": 20}).json()
        assert found["readable_epochs"] == [0, 1, 4]
        first = history(address, "sales", "total")
        assert (values(first), first["is_cut"]) == ([(0, 1), (1, 3)], False)
        assert first["epoch"] == 4
        assert httpx.get(f"{address}/shop/sales/total/rome?epoch=3").json()["value"] == 6


def test_a_history_has_no_value_before_there_was_the_operator(tmp_path: Path) -> None:
    home, rome = tmp_path / "shop", [Sale("rome", "tea", cents) for cents in range(1, 4)]
    grow(home, rome[:1], with_counts=False)
    with server({"shop": home}) as address:
        grow(home, rome[:2])
        httpx.get(f"{address}/shop", params={"min_epoch": 1, "wait": 20})
        assert values(history(address, "counts", "count")) == [(0, None), (1, 1)]


def test_a_history_has_the_newest_values_that_fit(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    large = [Sale("rome", "large", cents) for cents in range(10, 15)]
    grow(home, large[:1])
    with server({"shop": home}) as address:
        grow(home, [*large, Sale("rome", "tea", 5)])
        httpx.get(f"{address}/shop", params={"min_epoch": 5, "wait": 20})
        found = history(address, "counts", "names")
        assert found["is_cut"] is True
        assert [epoch for epoch, _ in values(found)] == [2, 3, 4, 5]
        assert values(found)[-1] == (5, "5")
        assert sum(len(value) for _, value in values(found)) < 2_000_000
        assert history(address, "counts", "count")["is_cut"] is False
