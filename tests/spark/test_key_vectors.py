"""The key group that the JVM computes is the one that Python computes, for every kind of key."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import statekit as sk
from statekit.keygroup import key_group
from statekit.records.output_type import OutputType
from statekit.spark.frames.key_columns import key_columns
from tests.support.key_types import KEY_TYPES, record_of, records_of
from tests.support.key_vectors import GROUPS, VECTORS

INTS = ("tinyint", "smallint", "int", "bigint")
EDGES: dict[str, list[Any]] = {
    "tinyint": [-128, -1, 0, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "string": ["", "\0", "a\0", "\0a", "𝄞", "\U0010ffff", "naïve ☃", "\ufeff", "e\u0301"],
    "binary": [b"", b"\0", b"\x00\xff", bytes(range(256))],
    "boolean": [True, False],
    "date": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1582, 10, 4, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ],
}


def _values(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTS:
        bits = 8 << INTS.index(kind)
        found: st.SearchStrategy[Any] = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    else:
        found = {
            "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
            "binary": st.binary(max_size=40),
            "boolean": st.booleans(),
            "date": st.dates(),
            "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
        }[kind]
    return st.one_of(st.none(), st.sampled_from(EDGES[kind]), found)


def _groups(df: DataFrame, columns: list[str], kinds: list[str]) -> list[int]:
    keys = [
        F.col(column).cast("bigint") if kind in INTS else F.col(column)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return [row[0] for row in df.select(F.pmod(F.xxhash64(*keys), F.lit(GROUPS))).collect()]


def test_every_vector_has_the_same_key_group_in_spark_sql(spark: SparkSession) -> None:
    columns = ", ".join(
        f"pmod(xxhash64({sql}), {GROUPS}) as v{number}"
        for number, (_, sql, _) in enumerate(VECTORS)
    )
    found = list(spark.sql(f"select {columns}").collect()[0])
    assert found == [group for _, _, group in VECTORS]
    assert found == [key_group(key, GROUPS) for key, _, _ in VECTORS]


def test_random_keys_of_every_type_have_the_same_key_group_in_the_jvm(spark: SparkSession) -> None:
    # One frame with all examples: a job per example would take minutes.
    kinds = list(EDGES)
    row = st.tuples(*(_values(kind) for kind in kinds))
    rows: list[tuple[Any, ...]] = []

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(row, min_size=1, max_size=10))
    def generate(some: list[tuple[Any, ...]]) -> None:
        rows.extend(some)

    generate()
    rows += [tuple(values[n % len(values)] for values in EDGES.values()) for n in range(12)]
    arrow = {
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    table = pa.table(
        [
            pa.array(column, arrow[kind])
            for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
        ],
        names=kinds,
    )
    df = spark.createDataFrame(table).coalesce(1).cache()
    pairs = [(first, second) for first in kinds for second in ("string", "int", "timestamp")]
    for names in [*((kind,) for kind in kinds), *pairs, tuple(kinds)]:
        found = _groups(df, list(names), list(names))
        positions = [kinds.index(name) for name in names]
        keys = [tuple(row[position] for position in positions) for row in rows]
        assert found == [key_group(key, GROUPS) for key in keys], names
    df.unpersist()


@pytest.mark.parametrize("name", KEY_TYPES)
def test_key_fields_of_every_type_are_routed_as_in_python(spark: SparkSession, name: str) -> None:
    annotation, values = KEY_TYPES[name]
    records = records_of(annotation, values)
    cls = type(records[0])

    def take(record: Any, seen: Any) -> None:
        seen.update(1)

    take.__annotations__ = {"record": cls, "seen": sk.ValueState[int], "return": None}
    job = sk.Job("keys")
    job.source("records", cls).process(sk.process(key="key")(take))
    batch = OutputType(cls, where="records").to_batch(records)
    frame = spark.createDataFrame(batch.to_pylist(), from_arrow_schema(batch.schema))
    (operator,) = job.plan.operators
    hashed = ", ".join(part for key in key_columns(frame, operator) for part in key.hashed)
    found = frame.selectExpr("n", f"pmod(xxhash64({hashed}), {GROUPS})").collect()
    assert dict(map(tuple, found)) == {of.n: key_group(of.key, GROUPS) for of in records}


def test_spellings_of_a_uuid_have_one_key_group(spark: SparkSession) -> None:
    one = uuid.UUID("12345678-1234-5678-1234-56781234abcd")
    cls = record_of(uuid.UUID)

    def take(record: Any, seen: Any) -> None:
        seen.update(1)

    take.__annotations__ = {"record": cls, "seen": sk.ValueState[int], "return": None}
    job = sk.Job("keys")
    job.source("records", cls).process(sk.process(key="key")(take))
    spelled = [str(one), str(one).upper(), one.hex, f"{{{one}}}", one.urn]
    frame = spark.createDataFrame([(text,) for text in spelled], "key string")
    ((key,),) = (key_columns(frame, operator) for operator in job.plan.operators)
    found = frame.selectExpr(f"pmod(xxhash64({key.expression}), {GROUPS})").distinct().collect()
    assert [row[0] for row in found] == [key_group(one, GROUPS)]
