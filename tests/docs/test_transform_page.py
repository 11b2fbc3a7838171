"""The page about transforms is true: its examples run, and write what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import statekit as sk
from tests.support.places import DOCS

PAGE = (DOCS / "operate" / "transform.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(example: str, **names: Any) -> dict[str, Any]:
    given = {"__name__": "page", **names}
    exec(compile(example, "transform.md", "exec", dont_inherit=True), given)
    return given


def values(at: Path, operator: str, state: str) -> dict[str, Any]:
    rows = sk.read(at, operator, state).read_all().to_pylist()
    return {row["customer"]: row["value"] for row in rows}


def test_the_first_example_sums_orders_by_customer(tmp_path: Path) -> None:
    names = run(EXAMPLES[0])
    order = names["Order"]

    def per_order(order: Any, last: Any) -> None:
        last.update(order)

    state: Any = sk.ValueState
    per_order.__annotations__ = {"order": order, "last": state[order], "return": None}
    job = sk.Job("shop")
    job.source("orders", order).process(sk.process(key="order")(per_order))
    orders = [order("1", "ada", 5), order("2", "ada", 7), order("3", "bob", 1)]
    job.run({"orders": orders}, checkpoint=tmp_path / "old", drain=False)
    names["by_customer"].run(tmp_path / "old", into=tmp_path / "new")
    assert values(tmp_path / "new", "per_customer", "total") == {"ada": 12, "bob": 1}
    orders.append(order("4", "bob", 100))
    names["job"].run({"orders": orders}, checkpoint=tmp_path / "new", drain=False)
    assert values(tmp_path / "new", "per_customer", "total") == {"ada": 12, "bob": 101}


def test_the_second_example_joins_two_states(tmp_path: Path) -> None:
    names = run(EXAMPLES[1], **run(EXAMPLES[0]))
    order = names["Order"]
    sums = Annotated[sk.ReducingState[int], sk.Reduce(sum)]

    def counts(order: Any, total: Any, orders: Any) -> None:
        total.add(order.cents)
        orders.add(1)

    counts.__annotations__ = {"order": order, "total": sums, "orders": sums, "return": None}
    job = sk.Job("shop")
    job.source("orders", order).process(sk.process(key="customer")(counts))
    orders = [order("1", "ada", 5), order("2", "ada", 7), order("3", "bob", 1)]
    job.run({"orders": orders}, checkpoint=tmp_path / "old", drain=False)
    names["joined"].run(tmp_path / "old", into=tmp_path / "new")
    rows = sk.read(tmp_path / "new", "summary", "all").read_all().to_pylist()
    assert {row["customer"]: tuple(row["value"].values()) for row in rows} == {
        "ada": (12, 2),
        "bob": (1, 1),
    }
