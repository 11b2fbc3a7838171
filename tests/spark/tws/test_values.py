"""Values that a processor puts into state become in statekit what they become on Spark."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy
import pandas
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as sql

from statekit.errors import StateTypeError
from statekit.spark.tws.sql_values import SqlValues
from tests.support.effort import SOAK
from tests.support.tws_engines import Case, Engines
from tests.support.tws_processors import CALLS, TOLD
from tests.support.tws_value_matrix import (
    TYPES,
    VALUES,
    Converts,
    Failed,
    Level,
    OfSpark,
    Point,
    Text,
    shown,
)


def schema_of(of: str) -> sql.StructType:
    return cast(sql.StructType, sql.StructType.fromDDL(f"v {of}"))


def of_statekit(values: SqlValues, value: Any) -> Any:
    try:
        return values.given(values.stored((value,)))
    except StateTypeError as error:
        return Failed(str(error))


# ------------------------------------------------------------------ differences that are documented


def is_shown_by_java(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark stores a text in which Java shows an object, often with its address."""
    return "stores how Java shows" in getattr(ours, "error", "")


def is_null_key(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark reads 0 for the key of a map that its conversion made null."""
    return "is no key of the map" in getattr(ours, "error", "") and not isinstance(spark, Failed)


def is_of_another_class(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark stores null, or what it finds in its attributes, for an instance of another class."""
    others = (type, Point, sql.VariantVal, type(pandas.NaT), type(pandas.NA), Text, Level)
    return type(value) in others and isinstance(ours, Failed)


def has_too_many_parts(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark drops them where Python converts one of the struct's fields."""
    return "values, and there are" in getattr(ours, "error", "") and "struct" in of


def is_taken_by_statekit(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark cannot pickle NumPy's arrays, nor classes that are derived from those it knows."""
    return isinstance(value, numpy.ndarray | Text) and isinstance(spark, Failed)


def is_not_looked_into(of: str, value: Any, spark: Any, ours: Any) -> bool:
    """Spark cannot pickle a list with a row or a time zone in it, where it would store null."""
    return isinstance(value, list | tuple) and "PickleException" in getattr(spark, "error", "")


DOCUMENTED: tuple[Callable[[str, Any, Any, Any], bool], ...] = (
    is_shown_by_java,
    is_null_key,
    is_of_another_class,
    has_too_many_parts,
    is_taken_by_statekit,
    is_not_looked_into,
)


EVERY = 1 if SOAK else 3
"""Of so many values each type is compared with one, and with others than the next type."""


def test_each_value_is_converted_as_by_sparks_own_functions(spark: SparkSession) -> None:
    """Or both refuse it. Differences are those that docs/guide/from-spark.md names."""
    strange, met = [], set()
    for number, of in enumerate(TYPES):
        convert, values = OfSpark(spark, schema_of(of)), SqlValues(schema_of(of), "state", "held")
        for value in VALUES[number % EVERY :: EVERY]:
            expected, found = convert(value), of_statekit(values, value)
            if isinstance(expected, Failed) and isinstance(found, Failed):
                continue
            if shown(expected) == shown(found):
                continue
            known = [kind.__name__ for kind in DOCUMENTED if kind(of, value, expected, found)]
            met.update(known)
            if not known:
                strange.append((of, value, expected, found))
    assert not strange
    if SOAK:
        assert met == {kind.__name__ for kind in DOCUMENTED}


PLACES = {"list": 2, "value": 4, "map value": 4, "map key": 4}
"""Kinds of state, and which part of them; and of how many values each takes one: a call is slow."""


def cases_of(place: str) -> dict[str, list[Any]]:
    """The values that statekit stores, without those that it is known to take alone."""
    cases: dict[str, list[Any]] = {}
    is_key, step = place == "map key", PLACES[place]
    for number, of in enumerate(TYPES):
        if of.startswith("map") and (is_key or not of.startswith("map<string")):
            continue  # a map state of statekit has no such keys, and Spark's state no such values
        values = SqlValues(schema_of(of), "state", "held", as_key=is_key)
        some = VALUES[number % step :: step]
        stored = [(value, of_statekit(values, value)) for value in some]
        cases[of] = [
            value
            for value, found in stored
            if not isinstance(found, Failed) and not _is_left_out(value, is_key=is_key)
        ]
    return cases


def _is_left_out(value: Any, *, is_key: bool) -> bool:
    if isinstance(value, numpy.ndarray | Text):
        return True  # taken by statekit alone
    if isinstance(value, list | tuple):
        return any(isinstance(one, tuple) or getattr(one, "tzinfo", None) for one in value)
    if is_key and isinstance(value, float | Decimal):
        return value != value or not value  # NaN is no key, and -0.0 is that of 0.0
    return False


@pytest.mark.parametrize("place", PLACES)
def test_each_value_is_converted_as_in_a_state_on_spark(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    engines = Engines(spark, tmp_path)
    engines.feed([("a", 1, 0)], CALLS)
    (told,) = engines.assert_same(
        Case(CALLS, ["shop"], Converts(place, cases_of(place)), TOLD), parallelism=1
    ).values()
    assert len(told) > 2_500 // PLACES[place]
