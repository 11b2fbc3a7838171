"""Sinks on Spark, whose process is killed with its JVM, and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

import statekit as sk
from statekit.testing import check_sink

pytestmark = pytest.mark.soak


class Order(NamedTuple):
    customer: str
    cents: int


ORDERS = [Order("ada", 5), Order("bob", 1), Order("ada", 7), Order("ada", 5)]


def reading(place: Path) -> Callable[[], list[Order]]:
    def read() -> list[Order]:
        files = place.glob("*.parquet")
        return [Order(**row) for file in files for row in pq.read_table(file).to_pylist()]

    return read


def parquet(place: Path) -> tuple[Any, Callable[[], list[Order]]]:
    return sk.sinks.parquet(place), reading(place)


def appending(place: Path) -> tuple[Any, Callable[[], list[Order]]]:
    def appended(df: DataFrame, epoch: int) -> None:
        df.coalesce(1).write.mode("append").parquet(str(place))

    return sk.sinks.callback(appended), reading(place)


def test_the_parquet_sink_leaves_one_copy() -> None:
    check_sink(parquet, ORDERS, depth="quick")


def test_a_callback_that_appends_leaves_an_epoch_twice() -> None:
    with pytest.raises(AssertionError, match="appended: an epoch that runs again") as error:
        check_sink(appending, ORDERS, depth="quick")
    assert "after the sink had returned and before the commit" in str(error.value)
    assert "records are there twice" in " ".join(str(error.value).split())
