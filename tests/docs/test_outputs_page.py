"""The page about outputs is true: its examples run, and find what it says they find."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import statekit as sk
from tests.support.places import DOCS

PAGE = (DOCS / "guide" / "outputs.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(example: str, **names: Any) -> dict[str, Any]:
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "__name__": "page", **names}
    exec(compile(example, "outputs.md", "exec", dont_inherit=True), given)
    return given


def test_the_types_of_the_page_are_streams_of_their_own() -> None:
    job = sk.Job("page")
    names = run(EXAMPLES[0], job=job)
    order, total, alert = names["Order"], names["Total"], names["Alert"]
    done = job.run({"orders": [order("ada", 500), order("ada", 200_000)]})
    assert done["totals"] == [total("ada", 500), total("ada", 200_500)]
    assert done["alerts"] == [alert("ada", "large order")]


class Line(NamedTuple):
    customer: str
    item: str


class Order(NamedTuple):
    customer: str
    cents: int
    items: tuple[str, ...]


@sk.process(key="item")
def count(line: Line, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    seen.update((seen.get() or 0) + 1)
    yield line.item, seen.get() or 0


def test_the_functions_of_the_page_change_records() -> None:
    job = sk.Job("page")
    run(
        EXAMPLES[1],
        job=job,
        orders=job.source("orders", Order),
        count=count,
        Order=Order,
        Line=Line,
    )
    given = [Order("ada", 500, ("tea", "tea")), Order("bob", 50, ("ink",))]
    done = job.run({"orders": given})
    assert done["counts"] == [("tea", 1), ("tea", 2)]
    assert done["customers"] == ["ada", "bob"]
    assert len(EXAMPLES) == 2
