"""What a terminal and a notebook show of a job, a stream, a run and a query."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.job.notebook import progress_html
from statekit.job.progress import Progress, Run


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


class Payment(NamedTuple):
    customer: str
    cents: int


@dataclass
class Account:
    balance_by_currency: dict[str, list[tuple[int, str]]]
    payments_by_currency: dict[str, list[tuple[int, str]]]
    remarks: dict[str, tuple[int, str] | None]


@sk.process(key="customer")
def total(order: Order, account: sk.ValueState[Account]) -> Iterator[tuple[str, int]]:
    yield order.customer, order.cents


@sk.process(key="customer")
def watch(order: Order, seen: sk.ValueState[Literal["a\nb", "c"]]) -> None: ...


@pytest.fixture
def job() -> sk.Job:
    return sk.Job("shop")


def test_a_job_names_its_sources_and_operators(job: sk.Job) -> None:
    assert repr(job) == "<Job 'shop': sources none; operators none>"
    orders = job.source("orders", Order)
    job.source("payments", Payment)
    orders.process(total)
    orders.process(watch, name="watcher")
    assert repr(job) == "<Job 'shop': sources orders, payments; operators total, watcher>"


def test_a_stream_names_the_type_of_its_records(job: sk.Job) -> None:
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    assert repr(orders) == "<Stream 'orders' of Order>"
    assert repr(orders.union(payments)) == "<Stream 'orders | payments' of Order | Payment>"
    assert repr(orders.process(total)) == "<Stream 'total' of tuple[str, int]>"
    assert repr(orders.process(watch)) == "<Stream 'watch' of no records>"
    assert repr(job.source("either", Order, Payment)) == "<Stream 'either' of Order | Payment>"
    plain = job.source("others", Order).union(job.source("more", Order))
    assert repr(plain) == "<Stream 'others | more' of Order>"


def test_windows_name_their_stream_and_key(job: sk.Job) -> None:
    windows = job.source("orders", Order).window(
        sk.tumbling("1 hour"), key="customer", event_time="at"
    )
    assert repr(windows) == "<Windowed 'orders': tumbling 1:00:00 by customer>"


def test_a_run_counts_its_outputs_and_does_not_show_them(job: sk.Job) -> None:
    job.source("orders", Order).process(total).sink("totals")
    assert repr(job.run({"orders": []})) == "<Run: 0 epochs, last epoch none, 0 records for totals>"
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    run = job.run({"orders": [Order("ada", number, now) for number in range(3)]}, epoch_size=2)
    assert repr(run) == "<Run: 2 epochs, last epoch 1, 3 records for totals>"


def test_a_line_of_the_tree_has_a_complete_type(job: sk.Job) -> None:
    orders = job.source("orders", Order)
    orders.process(total)
    orders.process(watch)
    lines = str(job).splitlines()
    assert all(re.match(r"[│ ]*[├└]── (source|operator|state) ", line) for line in lines[1:])
    (account,) = (line for line in lines if "state account" in line)
    assert account.endswith("remarks: dict[str, tuple[int, str] | None]}]")
    (seen,) = (line for line in lines if "state seen" in line)
    assert seen.count("[") == seen.count("]")


# -------------------------------------------------------------------------------------- HTML

EVIL = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The tags and attributes of a text, and what is in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += f" {data} "


def html_of(shown: Any) -> Tags:
    """The HTML of an object, which has no script, no style of its own and no address."""
    found = Tags(shown._repr_html_())
    assert not found.tags & {"script", "style", "img", "a", "link", "iframe"}
    assert not {name for name in found.attributes if name.startswith("on") or name == "href"}
    return found


def test_a_job_and_a_stream_show_the_plan(job: sk.Job) -> None:
    orders = job.source("orders", Order)
    orders.process(total).sink("totals")
    for found in (html_of(job), html_of(orders)):
        assert "svg" in found.tags
        for name in ("orders", "total", "by customer", "account: value", "totals"):
            assert f" {name} " in found.text
    assert "Stream 'orders' of Order" in html_of(orders).text
    assert html_of(sk.Job("empty")).text.strip() == "Job empty"


def test_a_run_shows_its_first_records_by_field(job: sk.Job) -> None:
    job.source("orders", Order).sink("orders").process(total).sink("totals")
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    run = job.run({"orders": [Order(f"c{n}", n, now) for n in range(12)]})
    found = html_of(run)
    for text in ("1 epochs, last epoch 0", "sink totals: 12 records, the first 10", "customer"):
        assert text in found.text
    assert " c9 " in found.text
    assert " c10 " not in found.text
    written = job.run(
        {"orders": []}, outputs={"totals": lambda records, epoch: None, "orders": print}
    )
    assert "sink totals: in its target" in html_of(written).text


def test_records_and_names_are_text_whatever_they_contain() -> None:
    class Loud:
        def __repr__(self) -> str:
            return EVIL

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError(EVIL)

    outputs: dict[str, list[Any]] = {
        EVIL: [Payment(EVIL, 1), {EVIL: EVIL, "b": Loud()}, Broken()],
        "values": [Loud(), EVIL, 5, None, ("$x$", b"\xff")],
        "long": ["a" * 1_000_000],
    }
    run = Run(outputs=outputs)
    found = html_of(run)
    assert found.text.count(EVIL) >= 4
    assert len(run._repr_html_()) < 20_000
    assert "$" not in run._repr_html_().replace("&#36;", "")


def test_a_name_that_is_wrong_says_which_one_is_close(job: sk.Job) -> None:
    job.source("orders", Order).process(total).sink("totals")
    run = job.run({"orders": []})
    with pytest.raises(sk.StateTypeError, match="did you mean 'totals'"):
        run["total"]
    with pytest.raises(sk.StateTypeError, match="it has those of totals; use one of these names"):
        run["alerts"]


def test_the_progress_of_a_query_is_a_table_of_its_last_epochs() -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    epochs = [
        Progress(n, n, 1000 * n, 10, 0.5, now, state_rows={EVIL: 7}, source_lags={EVIL: 3})
        for n in range(8)
    ]
    found = Tags(progress_html(f"Query of job '{EVIL}': running, last epoch 7", epochs))
    assert not found.tags & {"script", "img"}
    assert " 14,000 " in found.text
    assert " 2 " not in found.text
    assert f"source {EVIL}: 3 records behind" in found.text
    assert "table" not in Tags(progress_html("Query", [])).tags
