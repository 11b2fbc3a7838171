"""The records of an epoch that were read from sources, before conditions and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.progress import Progress
from tests.support.log_source import LogSource


class Sale(NamedTuple):
    shop: str
    cents: int
    at_s: int = 0


class Amount(NamedTuple):
    shop: str
    cents: int


SALES = [Sale("a", 5), Sale("b", 6), Sale("a", 7), Sale("c", 0), Sale("a", 9), Sale("b", 1)]


@sk.process(key="shop")
def total(sale: Sale, seen: sk.ValueState[int]) -> Iterator[Amount]:
    seen.update((seen.get() or 0) + sale.cents)
    yield Amount(sale.shop, seen.get() or 0)


@sk.process(key="shop")
def largest(amount: Amount, seen: sk.ValueState[int]) -> Iterator[int]:
    seen.update(max(seen.get() or 0, amount.cents))
    yield seen.get() or 0


def is_large(sale: Sale) -> bool:
    return sale.cents > 5


def as_amount(sale: Sale) -> Amount:
    return Amount(sale.shop, sale.cents)


def twice(sale: Sale) -> Iterator[Amount]:
    yield Amount(sale.shop, sale.cents)
    yield Amount(sale.shop, sale.cents)


Sales = sk.Stream[Sale]


def filtered_twice(sales: Sales) -> None:
    sales.filter("cents > 5", name="many").process(total, name="large").sink("large")
    sales.filter("cents <= 5", name="few").process(total, name="small").sink("small")


SHAPES: dict[str, Callable[[Sales], Any]] = {
    "no transform": lambda sales: sales.process(total).sink("out"),
    "a condition": lambda sales: sales.filter("cents > 5").process(total).sink("out"),
    "a condition that nothing fits": lambda s: s.filter("cents > 99").process(total).sink("out"),
    "a function": lambda sales: sales.filter(is_large).process(total).sink("out"),
    "conditions in a row": lambda sales: (
        sales.filter("cents > 1").filter(is_large).process(total).sink("out")
    ),
    "map": lambda sales: sales.map(as_amount).process(largest).sink("out"),
    "flat_map": lambda sales: sales.flat_map(twice).process(largest).sink("out"),
    "select": lambda sales: (
        sales.select(Amount, shop="shop", cents="cents").process(largest).sink("out")
    ),
    "two conditions": filtered_twice,
    "one operator after another": lambda sales: (
        sales.filter("cents > 5").process(total).process(largest).sink("out")
    ),
    "an aggregate": lambda s: s.aggregate(key="shop", sales=sk.Count()).sink("out"),
    "a condition before an aggregate": lambda sales: (
        sales.filter("cents > 5").aggregate(key="shop", sales=sk.Count()).sink("out")
    ),
    "a join of two halves": lambda sales: (
        sales.filter("cents > 5", name="many")
        .union(sales.filter("cents <= 5", name="few"))
        .process(total)
        .sink("out")
    ),
}


def progress_of(job: sk.Job, *inputs: Any, **options: Any) -> list[Progress]:
    reported: list[Progress] = []
    job.run(*inputs, on_epoch=reported.append, **options)
    return reported


@pytest.mark.parametrize("given", ["a list", "a source"])
@pytest.mark.parametrize("shape", SHAPES)
def test_records_are_those_read_from_the_source(shape: str, given: str, tmp_path: Path) -> None:
    job = sk.Job("shop")
    SHAPES[shape](job.source("sales", Sale))
    inputs: Any = SALES
    if given == "a source":
        (tmp_path / "log").mkdir()
        inputs = LogSource(tmp_path / "log")
        inputs.append("a", [sale._asdict() for sale in SALES])
    epochs = progress_of(job, {"sales": inputs}, epoch_size=4)
    assert sum(each.records_in for each in epochs) == len(SALES)
    assert epochs[0].records_in == 4
    assert epochs[0].events_per_second > 0
    last = epochs[-1].metrics['statekit_source_records_total{source="sales"}']
    assert last == len(SALES)


def test_records_of_several_sources_are_added_and_each_is_in_the_manifest(tmp_path: Path) -> None:
    job = sk.Job("shop")
    one, other = job.source("one", Sale), job.source("other", Sale)
    one.filter("cents > 5").union(other).process(total).sink("out")
    (epoch,) = progress_of(job, {"one": SALES, "other": SALES[:2]}, checkpoint=tmp_path)
    assert epoch.records_in == 8
    assert Repository(tmp_path).manifest(0).records_by_source == {"one": 6, "other": 2}


@pytest.mark.parametrize("on_error", ["drop", "collect"])
def test_bad_records_are_not_counted_as_read(tmp_path: Path, on_error: Any) -> None:
    log = LogSource(tmp_path)
    log.append("a", [{"shop": "a", "cents": None, "at_s": 0}, *(s._asdict() for s in SALES)])
    job = sk.Job("shop")
    sales = job.source("sales", Sale, log, on_error=on_error)
    sales.filter("cents > 5").process(total).sink("out")
    if on_error == "collect":
        sales.errors.sink("errors")
    (epoch,) = progress_of(job)
    assert (epoch.records_in, epoch.bad_records) == (len(SALES), 1)


def test_an_epoch_of_a_command_has_read_nothing(tmp_path: Path) -> None:
    job = sk.Job("shop")
    job.source("sales", Sale).filter("cents > 5").process(total).sink("out")
    job.run({"sales": SALES}, checkpoint=tmp_path)
    manifest = Repository(tmp_path).manifest(0)
    assert manifest.records_by_source == {"sales": 6}
    assert manifest.followed_by(cause="rescale").records_by_source == {}
