"""Filters of a query that select one key."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, IsNull

from statekit.checkpoint.job_file import KeyFieldRecord, OperatorRecord
from statekit.codec.key_codec import key_codec
from statekit.codec.schema import schema_of
from statekit.spark.sources.state_source import encoded_key

NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


def operator(**types: Any) -> OperatorRecord:
    fields = [KeyFieldRecord(name=name, type=schema_of(of).to_json()) for name, of in types.items()]
    return OperatorRecord.model_construct(name="o", key=tuple(fields))


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (str, "a"),
        (int, 5),
        (bool, True),
        (bytes, b"x"),
        (dt.date, NOON.date()),
        (dt.datetime, NOON),
    ],
)
def test_equality_selects_a_key_of_a_type_that_columns_keep(of: Any, value: Any) -> None:
    found = encoded_key(operator(k=of), ["key_k"], [EqualTo(("KEY_K",), value)])
    assert found == key_codec(of).encode(value)


def test_all_fields_of_a_key_have_to_be_given() -> None:
    composite, names = operator(a=str, b=int | None), ["a", "b"]
    assert encoded_key(composite, names, [EqualTo(("a",), "x")]) is None
    expected = key_codec(tuple[str, int | None]).encode(("x", None))
    assert encoded_key(composite, names, [EqualNullSafe(("a",), "x"), IsNull(("b",))]) == expected


@pytest.mark.parametrize(
    ("of", "given"),
    [
        (str, GreaterThan(("k",), "a")),
        (str, EqualTo(("k", "inner"), "a")),
        (str, EqualTo(("other",), "a")),
        (int, EqualTo(("k",), True)),
        (int, EqualTo(("k",), 1 << 70)),
        (float, EqualTo(("k",), 1.5)),
        (dt.datetime, EqualTo(("k",), NOON.replace(tzinfo=None))),
    ],
)
def test_other_filters_are_left_to_spark(of: Any, given: Any) -> None:
    assert encoded_key(operator(k=of), ["k"], [given]) is None
