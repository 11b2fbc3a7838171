"""Known aggregates on Spark: combined in each partition, and then the same as in one process."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import statekit as sk
from statekit.records.output_type import OutputType
from tests.support.key_types import KEY_TYPES, Place, record_of, records_of
from tests.support.spark_runs import Runs, pieces
from tests.unit.job.test_built_in_aggregates import AGGREGATES, Order, Sale, sale

SCHEMA = (
    "shop string, number long, cents long, euros decimal(20, 4), weight double, name string, "
    "at timestamp, day date, took interval day to second"
)


def _sales() -> list[Sale]:
    hours = [dt.timedelta(hours=n) for n in range(40)]
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    return [
        sale(
            (None, "a", "b", "c")[n % 4],
            n % 2,
            cents=n * n,
            euros=None if n % 5 == 0 else decimal.Decimal(n).scaleb(-2),
            weight=None if n % 3 == 0 else n / 2,
            name=None if n % 7 == 0 else f"name {n}",
            at=noon - hour,
            day=(noon - hour).date(),
            took=hour,
        )
        for n, hour in enumerate(hours)
    ]


def _job(*key: str) -> sk.Job:
    job = sk.Job("shop")
    source: Any = job.source("sales", Sale)
    source.aggregate(key=key, **AGGREGATES).sink("out")
    return job


def _by_key(results: list[Any]) -> list[tuple[Any, ...]]:
    rows = [tuple(map(_as_parquet_has_it, result)) for result in results]
    return sorted(rows, key=lambda row: (row[0] or "", row[1]))


def _as_parquet_has_it(value: Any) -> Any:
    """Spark writes intervals as their microseconds."""
    return value // dt.timedelta(microseconds=1) if isinstance(value, dt.timedelta) else value


@pytest.mark.soak
def test_results_and_states_are_those_of_a_run_in_one_process(runs: Runs) -> None:
    given, sink = _sales(), sk.sinks.parquet(runs.home / "out")
    for piece in pieces(given, 20):
        frame = runs.spark.createDataFrame(list(map(tuple, piece)), SCHEMA).repartition(3)
        query = runs.start(_job("shop", "number"), {"sales": frame}, outputs={"out": sink})
        assert query.last_progress is not None
        assert query.last_progress.records_in == len(piece)
    expected = _job("shop", "number").run({"sales": given}, epoch_size=20).outputs["out"]
    found = [tuple(row.values()) for row in runs.parquet("out")]
    assert _by_key(found) == _by_key(expected)
    held = runs.state("aggregate_by_shop_number", "cents")
    last = {(result.shop, result.number): result.cents for result in expected}
    assert held == last


class Entry(NamedTuple):
    shop: str
    cents: int


@pytest.mark.parametrize("record", [Order, Entry])
def test_few_records_are_combined_as_many_are(runs: Runs, record: type[Any]) -> None:
    """Those of later epochs without a shuffle, and models by the keys that they give themselves."""
    job = sk.Job("shop")
    source: Any = job.source("orders", record)
    source.aggregate(key="shop", cents=sk.Sum("cents"), orders=sk.Count()).sink("out")
    for cents in (1, 10, 100):
        orders = [{"shop": shop, "cents": cents} for shop in ("Ada", "ada", "BOB", "Ada")]
        runs.feed("orders", orders)
    inputs = {"orders": runs.stream("orders", "shop string, cents bigint")}
    runs.finish(job, inputs, outputs={"out": sk.sinks.parquet(runs.home / "out")}, parallelism=3)
    found = runs.state("aggregate_by_shop", "cents")
    expected = {"ada": 333, "bob": 111}
    assert found == (expected if record is Order else {"Ada": 222, "ada": 111, "BOB": 111})


# ------------------------------------------------------------------------------------ types of keys


def _by(stream: Any, name: str) -> None:
    """Aggregate records by their key, alone and in windows."""
    stream.aggregate(key="key", number=sk.Count(), total=sk.Sum("n"), name=f"all_{name}").map(
        repr, into=str, name=f"shown_{name}"
    ).sink(f"{name}_all")
    for kind, window in (("hours", sk.tumbling("1 hour")), ("sessions", sk.session("1 hour"))):
        windows = stream.window(window, key="key", event_time="at")
        windows.sum("n", name=f"{kind}_{name}").map(
            repr, into=str, name=f"{kind}_shown_{name}"
        ).sink(f"{name}_{kind}")


def _found(runs: Runs, job: sk.Job, inputs: dict[str, Any]) -> dict[str, list[str]]:
    """Return the outputs of a run on Spark."""
    found = dict[str, list[str]]()

    def collect(name: str) -> Callable[[Any, int], None]:
        return lambda out, epoch: found.setdefault(name, []).extend(row[0] for row in out.collect())

    outputs = {sink.name: collect(sink.name) for sink in job.plan.sinks}
    runs.finish(job, inputs, outputs=outputs, parallelism=2)
    return {name: sorted(rows) for name, rows in found.items()}


def test_keys_of_several_parts_are_grouped_as_in_one_process(runs: Runs) -> None:
    """Also if records of an operator arrive, and not those of a frame."""
    names = {"nested": "nested", "optional": "NamedTuple | None"}

    def job_of() -> Any:
        job: Any = sk.Job("keys")
        nested, optional = (
            job.source(name, record_of(KEY_TYPES[kind][0])) for name, kind in names.items()
        )
        _by(nested, "nested")
        _by(optional.filter(bool, name="again"), "optional")
        return job

    given = {name: records_of(*KEY_TYPES[kind]) for name, kind in names.items()}
    inputs = {}
    for name, records in given.items():
        batch = OutputType(type(records[0]), where=name).to_batch(records)
        schema = from_arrow_schema(batch.schema)
        inputs[name] = runs.spark.createDataFrame(batch.to_pylist(), schema).repartition(3)
    expected = job_of().run(given).outputs
    found = _found(runs, job_of(), inputs)
    assert found == {name: sorted(rows) for name, rows in expected.items()}
    assert all(found.values())


def test_one_key_is_one_group_however_a_column_has_it(runs: Runs) -> None:
    """A UUID has several spellings, and a struct may have further fields in any order."""
    job: Any = sk.Job("keys")
    _by(job.source("ids", record_of(uuid.UUID)), "ids")
    _by(job.source("places", record_of(Place)), "places")
    one, day = uuid.UUID(int=171), dt.date(2024, 1, 1)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    texts = [str(one), str(one).upper(), one.hex, f"{{{one}}}", one.urn]
    ids = [(text, number, start) for number, text in enumerate(texts)]
    places = [((number, day, "oslo"), number, start) for number in range(5)]
    times = "n bigint, at timestamp"
    struct = "struct<zip: bigint, day: date, city: string>"
    inputs = {
        "ids": runs.spark.createDataFrame(ids, f"key string, {times}").repartition(2),
        "places": runs.spark.createDataFrame(places, f"key {struct}, {times}").repartition(2),
    }
    found = _found(runs, job, inputs)
    assert found["ids_all"] == [f"AggregateByKey(key={one!r}, number=5, total=10)"]
    place = Place("oslo", day)
    assert found["places_all"] == [f"AggregateByKey(key={place!r}, number=5, total=10)"]
    assert [len(rows) for rows in found.values()] == [1] * len(found)
