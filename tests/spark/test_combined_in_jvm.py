"""Records that Spark combines in the JVM: the rows are those of Arrow, whatever the values are."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import statekit as sk
from statekit.errors import ProcessError
from statekit.job.windows.window_operator import Windowing
from statekit.job.windows.window_options import WindowOptions
from statekit.records.panes import Panes, SlidingPanes
from statekit.records.partial_aggregate import PartialAggregate
from statekit.records.preaggregate import Combiner
from statekit.records.record_type import RecordType
from statekit.spark.failures import translated
from statekit.spark.frames.combined_frames import AggregatesInJvm, first_step
from statekit.timestamp import MAX_MICROS, MIN_MICROS
from statekit.watermark import BEGINNING
from tests.support.effort import SOAK

pytestmark = pytest.mark.slow

INT64 = st.integers(-(2**63), 2**63 - 1)
DAYS = st.dates(dt.date(1500, 1, 1), dt.date(2500, 1, 1))


class Reading(NamedTuple):
    name: str | None
    number: int
    at: dt.datetime
    total: int | None
    small: int
    day: dt.date | None
    seen: dt.datetime | None
    weight: float | None
    text: str | None


SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "number": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "total": pa.int64(),
        "small": pa.int16(),
        "day": pa.date32(),
        "seen": pa.timestamp("us", "UTC"),
        "weight": pa.float64(),
        "text": pa.string(),
    }
)
RECORD = RecordType.of(Reading, where="source 'readings'")
PARTS = [
    PartialAggregate("sum", "total"),
    PartialAggregate("count", "total"),
    PartialAggregate("count", None),
    PartialAggregate("sum", "small"),
    PartialAggregate("sum", "total"),
    *(PartialAggregate("min", name) for name in ("total", "small", "day", "seen")),
    *(PartialAggregate("max", name) for name in ("total", "small", "day", "seen", "number")),
    PartialAggregate("count", "weight"),
    PartialAggregate("count", "text"),
]
PANES = [
    None,
    SlidingPanes("at", 10_000_000, 10_000_000, 0),
    SlidingPanes("at", 25_000_000, 10_000_000, 3),
    SlidingPanes("at", 7, 10, -4),
    *(
        sk.tumbling(size, zone=zone).panes("at")
        for size, zone in [
            ("1 day", "Europe/Berlin"),
            ("1 month", "America/St_Johns"),
            ("1 hour", "Asia/Gaza"),
        ]
    ),
]


def micros(least: int = MIN_MICROS, most: int = MAX_MICROS) -> st.SearchStrategy[int]:
    near = st.integers(-50_000_000, 50_000_000)
    return near | st.integers(0, 2**52) | st.integers(least, most) | st.sampled_from([least, most])


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    return pa.table(
        [pa.array(column, of.type) for column, of in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows, from_arrow_schema(SCHEMA)).coalesce(1)


def in_jvm(combiner: Combiner, df: DataFrame, late_us: int = BEGINNING) -> list[dict[str, Any]]:
    read = df.select(*combiner.read(df.columns).field_names)
    assert AggregatesInJvm.gives_the_same(combiner, read)
    combined = AggregatesInJvm(combiner, read.schema, "readings").frame(read, late_us)
    assert combined is not None
    return sorted_rows(combined.toArrow(), combiner)


def in_arrow(combiner: Combiner, rows: pa.Table, late_us: int = BEGINNING) -> list[dict[str, Any]]:
    read = rows.select(list(combiner.read(rows.column_names).field_names))
    return sorted_rows(combiner.rows(read, late_us), combiner)


def sorted_rows(rows: pa.Table, combiner: Combiner) -> list[dict[str, Any]]:
    """The rows, with instants as numbers: those of the years 1 and 9999 have no other zone."""
    for place, name in enumerate(rows.column_names):
        if pa.types.is_timestamp(rows.column(place).type):
            rows = rows.set_column(place, name, rows.column(place).cast(pa.int64()))
    assert tuple(rows.column_names) == combiner.combined.field_names
    return sorted(rows.to_pylist(), key=repr)


READINGS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "A", "b", "ä"]),
        st.sampled_from([-(2**63), -1, 0, 7, 2**63 - 1]),
        micros(),
        st.none() | st.integers(-(2**56), 2**56),
        st.integers(-(2**15), 2**15 - 1),
        st.none() | DAYS,
        st.none() | micros(),
        st.none() | st.floats(),
        st.none() | st.text(max_size=3),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=20 if SOAK else 6)
@given(
    rows=READINGS,
    key=st.sampled_from([("name",), ("number",), ("name", "number"), ("day",), ("seen",)]),
    panes=st.sampled_from(PANES),
    late_us=st.sampled_from([BEGINNING, -1, 0, 10_000_000, MAX_MICROS]),
)
def test_rows_are_those_of_arrow(
    spark: SparkSession,
    rows: list[tuple[Any, ...]],
    key: tuple[str, ...],
    panes: Panes | None,
    late_us: int,
) -> None:
    combiner, readings = Combiner(RECORD, key, PARTS, panes), table(rows)
    found = in_jvm(combiner, frame(spark, readings), late_us)
    assert found == in_arrow(combiner, readings, late_us)


def with_totals(*totals: int) -> pa.Table:
    return table([("a", 1, 0, total, 1, None, None, None, None) for total in totals])


@settings(max_examples=15 if SOAK else 5)
@given(totals=st.lists(INT64, min_size=1, max_size=6))
def test_a_sum_fits_if_it_does_at_the_end(spark: SparkSession, totals: list[int]) -> None:
    """And not also after each value, whose order Spark may choose."""
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "total")])
    readings = with_totals(*totals)
    if -(2**63) <= sum(totals) < 2**63:
        (row,) = in_jvm(combiner, frame(spark, readings))
        assert row == {"name": "a", "number": len(totals), "part_1": sum(totals)}
        return
    with pytest.raises(ProcessError, match="does not fit int64"):
        in_arrow(combiner, readings)
    with pytest.raises(Exception, match="does not fit int64") as raised:
        in_jvm(combiner, frame(spark, readings))
    error = translated(raised.value)
    assert isinstance(error, ProcessError)
    assert str(error) == (
        "operator 'readings': source 'readings': a sum of bigint values, that of the key "
        '{"name":"a"}, does not fit int64: sum a field of Decimal, or of float'
    )


def test_a_sum_does_not_wrap_around_where_sparks_own_would(spark: SparkSession) -> None:
    lenient = spark.newSession()
    lenient.conf.set("spark.sql.ansi.enabled", "false")
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "total")])
    with pytest.raises(Exception, match="does not fit int64"):
        in_jvm(combiner, frame(lenient, with_totals(2**63 - 1, 1)))
    (row,) = in_jvm(combiner, frame(lenient, with_totals(2**63 - 1, 1, -1)))
    assert row["part_1"] == 2**63 - 1


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("number", '"number":null,.* does not fit Reading: Reading.number is null'),
        ("small", '"small":null.* does not fit Reading: Reading.small is null'),
        ("at", "event time 'at' of .*\"at\":null.* is no instant: give each record one"),
    ],
)
def test_a_null_that_is_not_declared_is_an_error_with_its_record(
    spark: SparkSession, column: str, said: str
) -> None:
    parts = [PartialAggregate("sum", "small")]
    combiner = Combiner(RECORD, ("number",), parts, PANES[1])
    readings = with_totals(1, 2)
    place = SCHEMA.get_field_index(column)
    nothing = pa.nulls(2, SCHEMA.field(column).type)
    readings = readings.set_column(place, SCHEMA.field(column), nothing)
    with pytest.raises(Exception, match="null") as raised:
        in_jvm(combiner, frame(spark, readings))
    error = translated(raised.value)
    assert isinstance(error, ProcessError)
    with pytest.raises(ProcessError, match=said):
        raise error


@pytest.mark.parametrize(
    "part",
    [
        PartialAggregate("sum", "weight"),
        PartialAggregate("max", "weight"),
        PartialAggregate("min", "text"),
    ],
)
def test_what_spark_may_find_otherwise_is_left_to_arrow(
    spark: SparkSession, part: PartialAggregate
) -> None:
    df = frame(spark, with_totals(1))
    assert not AggregatesInJvm.gives_the_same(Combiner(RECORD, ("name",), [part]), df)


def test_texts_that_a_collation_takes_for_one_are_left_to_arrow(spark: SparkSession) -> None:
    df = frame(spark, with_totals(1)).selectExpr("name collate UTF8_LCASE as name", "total")
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "total")])
    assert not AggregatesInJvm.gives_the_same(combiner, df)


def test_integers_for_a_field_of_floats_are_left_to_arrow(spark: SparkSession) -> None:
    df = frame(spark, with_totals(1)).selectExpr("name", "cast(weight as bigint) as weight")
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "weight")])
    assert not AggregatesInJvm.gives_the_same(combiner, df)


def test_sessions_and_records_that_a_class_completes_are_left_to_arrow(spark: SparkSession) -> None:
    options: Any = {"key": "number", "event_time": "at"}
    sessions = Windowing(RECORD, sk.session("10 s"), WindowOptions(**options)).operator(
        {"count": sk.Count()}, None
    )
    df = frame(spark, with_totals(1)).select("number", "at")
    assert sessions.traits.combiner is not None
    assert not AggregatesInJvm.gives_the_same(sessions.traits.combiner, df)
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "total")])
    assert not AggregatesInJvm.gives_the_same(combiner, df.selectExpr("number as total"))


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("broadcast_bytes", ["10MB", "-1"])
def test_a_frame_may_join_and_shuffle_before_its_records_are_combined(
    spark: SparkSession, adaptive: str, broadcast_bytes: str
) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", adaptive)
    own.conf.set("spark.sql.autoBroadcastJoinThreshold", broadcast_bytes)
    readings = own.createDataFrame(with_totals(*range(100)), from_arrow_schema(SCHEMA))
    names = own.createDataFrame([("a", "joined")], "name string, other string").distinct()
    df = readings.repartition(3).join(names, "name").drop("name").withColumnRenamed("other", "name")
    combiner = Combiner(RECORD, ("name",), [PartialAggregate("sum", "total")])
    rows = in_jvm(combiner, df)
    assert {row["name"] for row in rows} == {"joined"}
    assert sum(row["number"] for row in rows) == 100
    assert sum(row["part_1"] for row in rows) == sum(range(100))


def test_a_frame_that_spark_knows_to_be_empty_has_no_first_step(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "name string, total bigint").where("false")
    assert first_step(nothing.groupBy("name").count()) is None
