"""The pages about sources are true: their examples run, and print what they should."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statekit as sk
from tests.support import sinks
from tests.support.places import DOCS
from tests.unit.sources.test_protocol import Rate as Discount
from tests.unit.sources.test_protocol import discounted


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "guide" / page).read_text(), re.DOTALL)


def run(example: str, **names: Any) -> tuple[dict[str, Any], list[Any]]:
    """The names that an example defines, and what it prints."""
    printed: list[Any] = []
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "print": printed.append}
    given |= {"__name__": "page", "dt": dt, "pa": pa, **names}
    exec(compile(example, "page", "exec", dont_inherit=True), given)
    return given, printed


class Order(NamedTuple):
    customer: str
    cents: int


class Rate(NamedTuple):
    currency: str
    per_euro: float


def test_the_examples_about_sources_run(tmp_path: Path) -> None:
    ticks, errors, _, numbers = examples("sources.md")
    _, (counts,) = run(ticks, place=tmp_path)
    assert counts[0][1] == 1
    job = sk.Job("page")
    run(errors, place=tmp_path, job=job, Order=Order)
    assert "orders.errors" in repr(job)
    names, _ = run(numbers)
    source = names["Numbers"]()
    (batch,) = source.read("all", None, source.latest(source.earliest(), 3, 0.0)["all"])
    assert batch.column("number").to_pylist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_about_formats_of_spark_runs(spark: SparkSession, tmp_path: Path) -> None:
    _, _, formats, _ = examples("sources.md")
    for name in ("orders", "rates"):
        (tmp_path / name).mkdir()
    (tmp_path / "orders" / "a.json").write_text('{"customer": "ada", "cents": 500}\n')
    rates = pa.table({"customer": ["ada"], "percent": [50]})
    pq.write_table(rates, tmp_path / "rates" / "a.parquet")
    named = {"Order": sinks.Order, "Rate": Discount, "discounted": discounted}
    run(formats, place=tmp_path, spark=spark, **named)
    (spent,) = (tmp_path / "spent").glob("*.parquet")
    assert pq.read_table(spent).to_pylist() == [{"customer": "ada", "cents": 250}]


def test_the_examples_about_files_run(tmp_path: Path) -> None:
    orders, tail, table = examples("sources-files.md")
    names, printed = run(orders, place=tmp_path)
    order = names["Order"]
    assert printed == [[order("ada", 500)], [order("ada", 700)]]
    assert run(tail)[0]["lines"].tail
    run(table, job=sk.Job("page"), Rate=Rate)
