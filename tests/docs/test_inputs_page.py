"""The page about inputs is true: its examples run, and find what it says they find."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness
from tests.support.instants import after, at
from tests.support.places import DOCS

PAGE = DOCS / "guide" / "inputs.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


class Balance(NamedTuple):
    account: str
    cents: int


class Shown(NamedTuple):
    ad: str
    at: dt.datetime


class Clicked(NamedTuple):
    ad: str
    at: dt.datetime


class Match(NamedTuple):
    shown: Shown
    clicked: Clicked | None


class Reading(NamedTuple):
    sensor: str
    value: float


class Difference(NamedTuple):
    sensor: str
    value: float


class Price(NamedTuple):
    item: str
    amount: float
    currency: str


class Rate(NamedTuple):
    currency: str
    dollars: float


class Dollars(NamedTuple):
    item: str
    amount: float


@pytest.fixture
def names() -> dict[str, Any]:
    """What the examples are run with, and what they define."""
    job = sk.Job("page")
    classes = (Balance, Reading, Difference, Shown, Clicked, Match, Price, Rate, Dollars)
    names: dict[str, Any] = {
        **{cls.__name__: cls for cls in classes},
        "sk": sk,
        "dt": dt,
        "Iterator": Iterator,
        "NamedTuple": NamedTuple,
        "job": job,
        "prices": job.source("prices", Price),
        "rates": job.source("rates", Rate),
        "WITHIN": after(60),
        "__name__": "page",
    }
    for example in EXAMPLES:
        # That of idle inputs declares a source once more.
        names["job"] = sk.Job("idle") if "idle_after" in example else job
        exec(compile(example, "inputs.md", "exec", dont_inherit=True), names)
    return names


def test_every_example_of_the_page_runs(names: dict[str, Any]) -> None:
    assert len(EXAMPLES) == 5
    order, payment = names["Order"], names["Payment"]
    done = names["job"].run(
        {
            "orders": [order("ada", 500, at(1))],
            "payments": [payment("ada", 200, at(2))],
            "prices": [Price("tea", 2.0, "EUR")],
            "rates": [Rate("EUR", 1.5)],
            "inside": [Reading("s", 20.5)],
            "outside": [Reading("s", 3.0)],
        }
    )
    assert done["differences"] == [Difference("s", 17.5)]
    assert done["balances"] == [Balance("ada", 500), Balance("ada", 300)]
    assert done["dollars"] == [Dollars("tea", 3.0)]


def test_the_join_of_the_page_pairs_and_gives_up(names: dict[str, Any]) -> None:
    harness = Harness(names["clicks_of"], parallelism=2)
    shown = [Shown("a", at(0)), Shown("a", at(30)), Shown("b", at(30))]
    clicked = Clicked("a", at(60))
    found = harness.send(*shown, clicked)
    assert found == [Match(shown[0], clicked), Match(shown[1], clicked)]
    assert harness.advance_watermark(at(90)) == [Match(shown[2], None)]
    assert harness.state("shown", "a") == {}
