"""Many values and keys are checked and encoded at once as they are one by one."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekit.codec.key_codec import key_codec
from statekit.codec.value_codec import value_codec
from statekit.errors import StateTypeError


class Bid(NamedTuple):
    price: int
    bidder: str | None
    at: dt.datetime


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
RIGHT = st.builds(Bid, st.integers(0, 9), st.none() | st.text(max_size=2), st.just(NOON))
WRONG: list[Any] = [
    Bid(True, "a", NOON),
    Bid(2**70, "a", NOON),
    Bid(1, "\ud800", NOON),
    Bid(1, "a", NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))),
    Bid(1, "a", NOON.replace(fold=1)),
    Bid(1, "a", NOON.replace(tzinfo=None)),
    (1, "a", NOON),
    None,
]
LISTS: Any = value_codec(tuple[Bid, ...])


@given(st.lists(st.lists(RIGHT, max_size=3).map(tuple), max_size=30))
def test_values_that_are_exact_are_so_together(values: list[tuple[Bid, ...]]) -> None:
    assert all(map(LISTS.exact, values))
    assert LISTS.exact_all(values)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("count", [0, 40])
def test_one_value_that_is_not_exact_is_found(wrong: Any, count: int) -> None:
    values = [(Bid(1, "a", NOON),)] * count
    assert not LISTS.exact((wrong,))
    assert not LISTS.exact_all([*values, (wrong,)])
    assert not LISTS.exact_all([*values, wrong])
    assert not LISTS.exact_all([*values, [Bid(1, "a", NOON)]])


PAIRS: Any = key_codec(tuple[str, int])
OPTIONAL: Any = key_codec(tuple[str, int | None])


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1)), max_size=8))
def test_keys_are_encoded_together_as_one_by_one(keys: list[tuple[str, int]]) -> None:
    for codec in (PAIRS, OPTIONAL):
        assert codec.encode_all(keys) == list(map(codec.encode, keys))


@pytest.mark.parametrize("wrong", [("a",), ("a", True), ["a", 1], ("a", 2**63), ("a", 1, 2), "a"])
def test_one_key_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(StateTypeError):
        PAIRS.encode_all([("a", 1), wrong])
