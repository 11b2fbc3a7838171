"""Records of every kind go through a real job and come out as they are declared."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
from pyspark.sql import DataFrame, SparkSession

import statekit as sk
from tests.support.spark_runs import Runs

AT = dt.datetime(2013, 3, 10, 7, 30, 0, 123456, tzinfo=dt.UTC)  # New York skips an hour here
BEFORE = dt.datetime(1883, 11, 18, 12, 3, 58, tzinfo=dt.UTC)  # New York leaves its local time


class Place(NamedTuple):
    code: str
    height: int | None


@dataclasses.dataclass
class DataFlight:
    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None
    raw: bytes = b"default"


class ModelFlight(pydantic.BaseModel):
    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None
    raw: bytes = b"default"


class TupleFlight(NamedTuple):
    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None
    raw: bytes = b"default"


class StructFlight(msgspec.Struct, frozen=True, kw_only=True):
    raw: bytes = b"default"
    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None


class DictFlight(TypedDict):
    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None
    raw: bytes


class Seen(NamedTuple):
    """What the state keeps of a flight, whatever the flight's own type is."""

    tail: str | None
    at: dt.datetime
    day: dt.date
    price: Decimal
    stops: list[Place]
    names: dict[str, int]
    place: Place | None
    raw: bytes


PLACE = pa.struct([("code", pa.string()), ("height", pa.int64())])
SCHEMA = pa.schema(
    [
        ("tail", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(38, 18)),
        ("stops", pa.list_(PLACE)),
        ("names", pa.map_(pa.string(), pa.int64())),
        ("place", PLACE),
        ("raw", pa.binary()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "tail": "N1",
        "at": AT,
        "day": dt.date(2013, 3, 10),
        "price": Decimal("12.340000000000000001"),
        "stops": [{"code": "JFK", "height": 4}, {"code": "𝄞", "height": None}],
        "names": {"a": 1, "": 2},
        "place": {"code": "LGA", "height": None},
        "raw": b"\x00\xff",
    },
    {
        "tail": None,
        "at": BEFORE,
        "day": dt.date(1, 1, 1),
        "price": Decimal("-1"),
        "stops": [],
        "names": {},
        "place": None,
        "raw": b"",
    },
]


def _expected(row: dict[str, Any]) -> Seen:
    place = row["place"]
    return Seen(
        **{
            **row,
            "stops": [Place(**stop) for stop in row["stops"]],
            "place": None if place is None else Place(**place),
        }
    )


@sk.process(key="tail")
def through_dataclass(flight: DataFlight, last: sk.ValueState[Seen]) -> Iterator[DataFlight]:
    last.update(Seen(**{name: getattr(flight, name) for name in Seen._fields}))
    assert last.value is not None
    yield DataFlight(**last.value._asdict())


@sk.process(key="tail")
def through_model(flight: ModelFlight, last: sk.ValueState[Seen]) -> Iterator[ModelFlight]:
    last.update(Seen(**{name: getattr(flight, name) for name in Seen._fields}))
    assert last.value is not None
    yield ModelFlight(**last.value._asdict())


@sk.process(key="tail")
def through_tuple(flight: TupleFlight, last: sk.ValueState[Seen]) -> Iterator[TupleFlight]:
    last.update(Seen(*flight))
    assert last.value is not None
    yield TupleFlight(*last.value)


@sk.process(key="tail")
def through_struct(flight: StructFlight, last: sk.ValueState[Seen]) -> Iterator[StructFlight]:
    last.update(Seen(**{name: getattr(flight, name) for name in Seen._fields}))
    assert last.value is not None
    yield StructFlight(**last.value._asdict())


@sk.process(key="tail")
def through_typed_dict(flight: DictFlight, last: sk.ValueState[Seen]) -> Iterator[DictFlight]:
    last.update(Seen(**flight))
    assert last.value is not None
    yield DictFlight(**last.value._asdict())  # type: ignore[typeddict-item]


@sk.process(key="tail")
def through_dict(flight: dict[str, Any], last: sk.ValueState[Seen]) -> Iterator[Seen]:
    stops = [Place(**stop) for stop in flight["stops"]]
    place = flight["place"] and Place(**flight["place"])
    last.update(Seen(**{**flight, "stops": stops, "place": place}))
    assert last.value is not None
    yield last.value


FLAVOURS: list[tuple[Any, sk.Process[Any, Any, Any]]] = [
    (DataFlight, through_dataclass),
    (ModelFlight, through_model),
    (TupleFlight, through_tuple),
    (StructFlight, through_struct),
    (DictFlight, through_typed_dict),
    (dict, through_dict),
]


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone") or ""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(("record", "declared"), FLAVOURS, ids=lambda v: getattr(v, "name", ""))
def test_records_of_every_kind_go_in_and_come_out_unchanged(
    runs: Runs, zone: str, record: Any, declared: sk.Process[Any, Any, Any]
) -> None:
    job = sk.Job("records")
    job.source("flights", record).process(declared, name="through").sink("out")
    table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    # createDataFrame(arrow) reads timestamps in the session's zone; a file does not.
    runs.feed("flights", table)
    df = runs.spark.read.parquet(str(runs.home / "flights"))
    runs.finish(job, {"flights": df}, outputs={"out": sk.sinks.parquet(runs.home / "out")})

    written = sorted(runs.parquet("out"), key=lambda row: row["tail"] or "")
    expected = [{**row, "names": list(row["names"].items())} for row in reversed(ROWS)]
    assert [{name: row[name] for name in SCHEMA.names} for row in written] == expected
    held = runs.state("through", "last")
    assert set(held) == {"N1", None}


class Key(NamedTuple):
    flag: bool | None
    day: dt.date
    at: dt.datetime
    raw: bytes
    small: int
    text: str


@sk.process(key=("flag", "day", "at", "raw", "small", "text"))
def by_everything(key: Key, seen: sk.ValueState[int], ctx: sk.Context) -> Iterator[tuple[str, int]]:
    seen.update((seen.get() or 0) + 1)
    yield repr(ctx.key), seen.get() or 0


def _by(name: str) -> sk.Process[Any, Any, Any]:
    @sk.process(key=name)
    def count(key: Key, seen: sk.ValueState[int], ctx: sk.Context) -> Iterator[tuple[str, int]]:
        seen.update((seen.get() or 0) + 1)
        yield repr(ctx.key), seen.get() or 0

    return count


def _keys() -> list[Key]:
    keys = [
        Key(True, dt.date(2013, 1, 1), AT, b"\0", 1, "a"),
        Key(False, dt.date(1, 1, 1), BEFORE, b"\0\0", -128, "a\0"),
        Key(None, dt.date(9999, 12, 31), BEFORE, b"", 127, "𝄞"),
    ]
    return keys + keys[:2] + keys[:1]


KEY_SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("small", pa.int8()),
        ("text", pa.string()),
    ]
)


def test_keys_of_every_type_and_all_of_them_at_once(runs: Runs, zone: str) -> None:
    # One job with an operator per type of key.
    job = sk.Job("keys", key_groups=8)
    source = job.source("keys", Key)
    source.process(by_everything).sink("by_everything")
    for name in Key._fields:
        source.process(_by(name), name=f"by_{name}").sink(f"by_{name}")
    rows = [key._asdict() for key in _keys()]
    runs.feed("keys", pa.Table.from_pylist(rows, schema=KEY_SCHEMA))
    df = runs.spark.read.parquet(str(runs.home / "keys"))
    found: dict[str, list[tuple[str, int]]] = {}

    def collect(name: str) -> Any:
        def write(out: DataFrame, epoch: int) -> None:
            found[name] = [(row[0], row[1]) for row in out.collect()]

        return write

    outputs = {sink.name: collect(sink.name) for sink in job.plan.sinks}
    runs.finish(job, {"keys": df}, outputs=outputs, parallelism=3)

    expected = job.run({"keys": _keys()}, parallelism=3)
    for name in found:
        assert sorted(found[name]) == sorted(expected.outputs[name]), name
    assert sorted(count for _, count in found["by_everything"]) == [1, 1, 1, 2, 2, 3]


class Word(NamedTuple):
    word: str


@sk.process(key="word")
def scalars(word: Word, seen: sk.ValueState[int]) -> Iterator[int | None]:
    seen.update((seen.get() or 0) + 1)
    yield seen.get()
    yield None


@sk.process(key="word")
def tuples(word: Word, seen: sk.ValueState[int]) -> Iterator[tuple[str, list[int]]]:
    seen.update((seen.get() or 0) + 1)
    yield word.word, [seen.get() or 0]


@sk.process(key="word")
def instants(word: Word) -> Iterator[dt.datetime]:
    yield AT
    yield BEFORE


@sk.process(key="word")
def nothing(word: Word, seen: sk.ValueState[int]) -> None:
    seen.update((seen.get() or 0) + 1)


def test_scalars_tuples_and_no_outputs_have_the_columns_that_are_promised(
    runs: Runs, zone: str
) -> None:
    job = sk.Job("shapes")
    words = job.source("words", Word)
    words.process(nothing)
    shapes: list[sk.Process[Any, Any, Any]] = [scalars, tuples, instants]
    for declared in shapes:
        words.process(declared).sink(declared.name)
    rows = runs.spark.createDataFrame([("a",), ("a",)], "word string")
    outputs = {d.name: sk.sinks.parquet(runs.home / d.name) for d in shapes}
    runs.finish(job, {"words": rows}, outputs=outputs)
    assert [row["value"] for row in runs.parquet("scalars")] == [1, None, 2, None]
    assert runs.parquet("tuples") == [{"_1": "a", "_2": [1]}, {"_1": "a", "_2": [2]}]
    assert [row["value"] for row in runs.parquet("instants")] == [AT, BEFORE, AT, BEFORE]
    assert runs.state("nothing", "seen") == {"a": 2}


def test_a_job_without_any_output_keeps_its_state(runs: Runs) -> None:
    job = sk.Job("silent")
    job.source("words", Word).process(nothing)
    rows = runs.spark.createDataFrame([("a",), ("b",), ("a",)], "word string")
    query = runs.finish(job, {"words": rows})
    assert runs.state("nothing", "seen") == {"a": 2, "b": 1}
    assert query.last_progress is not None
    assert (query.last_progress.records_in, query.last_progress.records_out) == (3, 0)


class Delay(pydantic.BaseModel):
    tail: str
    minutes: float = pydantic.Field(default=0.0, ge=0)

    @pydantic.field_validator("minutes")
    @classmethod
    def rounded(cls, value: float) -> float:
        return round(value)


@sk.process(key="tail")
def delays(delay: Delay, total: sk.ValueState[float]) -> Iterator[float]:
    total.update((total.get() or 0.0) + delay.minutes)
    yield total.get() or 0.0


def test_validators_of_models_run_on_the_workers(runs: Runs) -> None:
    job = sk.Job("delays")
    job.source("reported", Delay).process(delays).sink("out")
    df = runs.spark.createDataFrame([("N1", 1.4), ("N1", 2.6)], "tail string, minutes double")
    runs.finish(job, {"reported": df}, outputs={"out": sk.sinks.parquet(runs.home / "out")})
    assert [row["value"] for row in runs.parquet("out")] == [1.0, 4.0]
    bad = runs.spark.createDataFrame([("N1", -1.0)], "tail string, minutes double")
    with pytest.raises(sk.ProcessError, match=r"(?s)Delay.*greater than or equal to 0"):
        runs.finish(job, {"reported": bad}, outputs={"out": sk.sinks.parquet(runs.home / "out")})
    assert runs.state("delays", "total") == {"N1": 4.0}
