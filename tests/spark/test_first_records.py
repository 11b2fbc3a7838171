"""First, last and collected records on Spark: of partitions and epochs, as in one process."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest

import statekit as sk
from tests.support.instants import at
from tests.support.spark_runs import Runs, pieces


class Bid(NamedTuple):
    auction: str
    at: dt.datetime
    price: Annotated[decimal.Decimal, sk.Decimals(12, 2)] | None
    tags: list[str]
    seen: dict[str, int]


@dataclasses.dataclass
class Changing:
    auction: str
    at: dt.datetime
    price: decimal.Decimal | None
    tags: list[str]
    seen: dict[str, int]


class Model(pydantic.BaseModel):
    auction: str
    at: dt.datetime
    price: decimal.Decimal | None
    tags: list[str]
    seen: dict[str, int]


SCHEMA = (
    "auction string, at timestamp, price decimal(12, 2), tags array<string>, seen map<string, int>"
)
BIDS = [
    Bid(
        "abc"[n % 3],
        at(n),
        None if n % 5 == 0 else decimal.Decimal(n * 7 % 11).scaleb(-2),
        [f"tag {n}"],
        {"n": n},
    )
    for n in range(48)
]


def _job(record: Any) -> sk.Job:
    job = sk.Job("bids")
    bids = job.source("bids", record)
    newest: Any = bids.aggregate(
        key="auction", best=sk.Top(3, by=("-price", "at")), at=sk.Last("at", by="at")
    )
    newest.sink("newest")
    if record is not Model:
        windows = bids.window(
            sk.sliding("20 s", "10 s"), key="auction", event_time="at", lateness="5 s"
        )
        windows.top(2, by="-price", ties=True, name="dear").sink("dear")
        windows.last(name="latest").sink("latest")
        windows.collect(name="whole").sink("whole")
        windows.collect("price", name="prices").sink("prices")
    return job


def _of(record: Any) -> list[Any]:
    return [record(**bid._asdict()) for bid in BIDS]


def _rows(found: list[Any]) -> list[str]:
    return sorted(repr(_plain(row)) for row in found)


def _plain(value: Any) -> Any:
    """Whatever the classes are, and whoever has read it."""
    if isinstance(value, pydantic.BaseModel):
        return _plain(dict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return [[_plain(key), _plain(of)] for key, of in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return str(value.normalize()) if isinstance(value, decimal.Decimal) else value


@pytest.mark.soak
@pytest.mark.parametrize("record", [Bid, Changing, Model])
def test_they_are_those_of_a_run_in_one_process(runs: Runs, record: Any) -> None:
    given = _of(record)
    names = [sink.name for sink in _job(record).plan.sinks]
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in names}
    parts = list(pieces(list(map(tuple, BIDS)), 16))
    for piece in parts:
        frame = runs.spark.createDataFrame(piece, SCHEMA).repartition(3)
        is_last = piece is parts[-1]
        runs.start(_job(record), {"bids": frame}, outputs=sinks, drain=is_last)
    expected = _job(record).run({"bids": given}, epoch_size=16)
    for name in names:
        found = [list(row.values()) for row in runs.parquet(name)]
        wanted = [list(_plain(row)) for row in expected.outputs[name]]
        assert _rows(found) == sorted(repr([of for _, of in row]) for row in wanted), name
        assert found, name


def test_all_records_of_a_key_are_collected_in_the_order_of_arrival(runs: Runs) -> None:
    """Of a key that is in many batches of Arrow, too: there is one result."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = runs.spark.conf.get(name) or ""
    job = sk.Job("bids")
    lists: Any = job.source("bids", Bid).aggregate(
        key="auction", bids=sk.Collect(), prices=sk.Collect("price"), count=sk.Count()
    )
    lists.sink("lists")
    sinks = {"lists": sk.sinks.parquet(runs.home / "lists")}
    runs.spark.conf.set(name, "4")
    try:
        for piece in pieces(list(map(tuple, BIDS)), 24):
            rows = runs.spark.sparkContext.parallelize(piece, 3)
            frame = runs.spark.createDataFrame(rows, SCHEMA)
            runs.start(job, {"bids": frame}, outputs=sinks)
    finally:
        runs.spark.conf.set(name, before)
    expected = job.run({"bids": BIDS}, epoch_size=24).outputs["lists"]
    assert [out.count for out in expected] == [8, 8, 8, 16, 16, 16]
    found = [list(row.values()) for row in runs.parquet("lists")]
    wanted = [[_plain(value) for value in row] for row in expected]
    assert _rows(found) == sorted(map(repr, wanted))
