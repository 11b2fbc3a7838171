"""Values of arguments are the same after they were written to a document and read."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import pickle
import re
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.declared_call import declared_call_of
from statekit.documents.values import Reading, value_to_json
from tests.support.document_jobs import Order


def without_fold(of: Any) -> Any:
    """ISO 8601 has no form of the second of two equal local times."""
    return of.replace(fold=0)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | (st.times() | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))).map(without_fold)
    | st.timedeltas()
)

NAMES = st.sampled_from(["a", "$a", "$tuple", "", "with"]) | st.text()

VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(NAMES, inner),
    max_leaves=20,
)


def read_back(value: Any) -> Any:
    reading = Reading(None, lambda names: names)
    return reading.value(json.loads(json.dumps(value_to_json(value, "job"))), "job")


@given(VALUES)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    again = read_back(value)
    assert again == value
    assert repr(again) == repr(value)  # -0.0, the zone of an instant, tuples within lists


def test_numbers_that_json_does_not_have_are_read_as_they_were_written() -> None:
    assert [str(read_back(value)) for value in (math.nan, math.inf, -math.inf)] == [
        "nan",
        "inf",
        "-inf",
    ]


def test_a_pattern_is_read_as_it_was_written() -> None:
    assert read_back(re.compile("(?i)orders-.*")) == re.compile("(?i)orders-.*")


@pytest.mark.parametrize("value", [re.compile(b"a"), re.compile("a", re.IGNORECASE), {1: 2}, {3}])
def test_a_value_without_a_form_is_refused(value: Any) -> None:
    with pytest.raises(sk.StateTypeError, match=r"^job: "):
        value_to_json(value, "job")


ANNOTATIONS: list[Any] = [
    int,
    dict,
    Any,
    None,
    dt.datetime,
    Order,
    list[int],
    dict[str, list[Order]],
    tuple[str, int],
    tuple[int, ...],
    int | None,
    Optional[Order],  # noqa: UP045
    str | int | None,
    Literal["a", 1, None, True],
    Annotated[decimal.Decimal, sk.Decimals(10, 2)],
    typing.List[int],  # noqa: UP006
    frozenset[str],
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_a_type_is_read_as_it_was_written(annotation: Any) -> None:
    form = value_to_json(annotation, "job") if annotation is not None else {"$type": "None"}
    again = Reading(None, lambda names: names).value(json.loads(json.dumps(form)), "job")
    expected = type(None) if annotation is None else annotation
    assert again == expected or again == list[int] == list[int] or str(again) == "list[int]"


@dataclass(frozen=True)
class Palette:
    """An object of a user."""

    colours: tuple[str, ...]
    shades: dict[str, int] = field(default_factory=dict)


def test_an_object_of_a_dataclass_is_read_as_it_was_written() -> None:
    for palette in (Palette(("red",)), Palette((), {"dark": 3})):
        assert read_back(palette) == palette
    assert value_to_json(Palette(()), "job")["with"] == {"colours": {"$tuple": []}}


def test_conditions_are_sql() -> None:
    condition = (sk.col("cents") > 100) & ~sk.col("city").is_in(["Rome", "Oslo"])
    assert value_to_json(condition, "job") == {
        "$sql": "cents > 100 AND city NOT IN ('Rome', 'Oslo')"
    }
    assert read_back(condition).equals(condition)


def test_an_object_is_sent_to_another_process_without_the_arguments_of_its_call() -> None:
    sink = sk.sinks.callback(print)
    source = sk.sources.kafka("kafka:9092", "orders", options=Unpicklable({"fetch.max.bytes": 9}))
    for each in (sink, source):
        again = pickle.loads(pickle.dumps(each))
        assert type(again) is type(each)
        assert declared_call_of(each) is not None
        assert declared_call_of(again) is None


class Unpicklable(dict[str, Any]):
    """Options that only this process has."""

    def __reduce__(self) -> Any:
        raise AssertionError("it was pickled")
