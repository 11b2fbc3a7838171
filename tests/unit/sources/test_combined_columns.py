"""Records of a source that only an operator reads that combines them stay columns."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.sources.decoding.decoder import ColumnDecoder
from tests.support.instants import at


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


Row = tuple[str, int | None, int]
"""A customer, cents, and a time in seconds."""

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-5, 5) | st.none(), st.integers(0, 30)),
    min_size=1,
    max_size=6,
)
FILES = st.lists(st.tuples(ROWS, st.sampled_from([pa.int64(), pa.int32()])), min_size=1, max_size=4)


def aggregating() -> sk.Job:
    job = sk.Job("totals")
    orders = job.source("orders", Order, on_error="collect")
    orders.aggregate(key="customer", orders=sk.Count(), cents=sk.Sum("cents")).sink("out")
    orders.errors.sink("bad")
    return job


def windowed() -> sk.Job:
    job = sk.Job("totals")
    orders = job.source("orders", Order, on_error="collect")
    windows = orders.window(sk.tumbling("10 seconds"), key="customer", event_time="at")
    windows.aggregate(orders=sk.Count(), cents=sk.Sum("cents")).sink("out")
    orders.errors.sink("bad")
    return job


def write(directory: Path, files: list[tuple[list[Row], pa.DataType]]) -> None:
    directory.mkdir()
    for number, (rows, type_) in enumerate(files):
        customers, cents, times = zip(*rows, strict=True)
        table = pa.table(
            {
                "customer": customers,
                "cents": pa.array(cents, type_),
                "at": pa.array(map(at, times), pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, directory / f"{number}.parquet")


def run(job: sk.Job, directory: Path, shards: int = 2) -> Any:
    return job.run({"orders": sk.sources.parquet(directory)}, parallelism=shards, drain=True)


@given(FILES, st.integers(1, 3))
def test_totals_and_bad_records_are_those_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[list[Row], pa.DataType]],
    shards: int,
) -> None:
    directory = tmp_path_factory.mktemp("orders") / "files"
    write(directory, files)
    rows = [row for of_file, _ in files for row in of_file]
    counts, sums = Counter[str](), Counter[str]()
    for customer, cents, _ in rows:
        if cents is not None:
            counts[customer] += 1
            sums[customer] += cents
    done = run(aggregating(), directory, shards)
    found = {result.customer: (result.orders, result.cents) for result in done["out"]}
    assert found == {customer: (counts[customer], sums[customer]) for customer in counts}
    assert len(done["bad"]) == sum(cents is None for _, cents, _ in rows)


@given(FILES, st.integers(1, 3))
def test_windows_are_those_of_records(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[list[Row], pa.DataType]],
    shards: int,
) -> None:
    directory = tmp_path_factory.mktemp("orders") / "files"
    write(directory, files)
    records = [
        Order(customer, cents, at(second))
        for of_file, _ in files
        for customer, cents, second in of_file
        if cents is not None
    ]
    of_records: Any = windowed().run({"orders": records}, parallelism=shards, drain=True)
    found = run(windowed(), directory, shards)["out"]
    assert sorted(found) == sorted(of_records["out"])


@pytest.mark.parametrize("job", [aggregating, windowed])
def test_no_record_is_made(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "files", [([("a", 5, 1), ("b", 1, 2)], pa.int64())])
    monkeypatch.delattr(ColumnDecoder, "__call__")
    assert sorted(result.cents for result in run(job(), tmp_path / "files")["out"]) == [1, 5]


def test_records_that_another_reader_needs_are_made(tmp_path: Path) -> None:
    write(tmp_path / "files", [([("a", 5, 1)], pa.int64())])
    job = sk.Job("totals")
    orders = job.source("orders", Order)
    orders.aggregate(key="customer", orders=sk.Count(), cents=sk.Sum("cents")).sink("out")
    orders.sink("all")
    done = run(job, tmp_path / "files")
    assert done["all"] == [Order("a", 5, at(1))]
    assert [result.cents for result in done["out"]] == [5]
