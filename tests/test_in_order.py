"""Rows of a shard are taken only if they come by key group, key and arrival."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statekit.errors import UnsortedError
from statekit.spark.in_order import in_order

Row = tuple[int, int | None, int]

SCHEMA = pa.schema([("group", pa.int32()), ("page", pa.int64()), ("arrival", pa.int64())])
LEAST, LARGEST = -(2**63), 2**63 - 1


def _batches(rows: list[Row], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        columns = zip(*rows[start : start + size], strict=True)
        arrays = [pa.array(c, of) for c, of in zip(columns, SCHEMA.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _are_taken(rows: list[Row], size: int, *key: str) -> bool:
    batches = list(_batches(rows, size))
    try:
        assert list(in_order(iter(batches), key, "count")) == batches
    except UnsortedError:
        return False
    return True


def _by_key(row: Row) -> tuple[int, bool, int, int]:
    group, page, arrival = row
    return group, page is not None, page or 0, arrival


def _by_arrival(row: Row) -> tuple[int, int]:
    return row[0], row[2]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from((None, LEAST, -1, 0, 1, LARGEST)),
        st.integers(0, 5),
    ),
    unique=True,
    max_size=12,
)


@settings(deadline=None)  # Arrow loads its functions with the first call
@given(ROWS, st.booleans(), st.integers(1, 5))
@example([(0, None, 1), (0, LEAST, 0), (0, None, 2)], False, 2)
@example([(0, 1, 5), (1, 0, 0)], False, 1)
def test_rows_are_taken_if_each_is_above_the_one_before(
    rows: list[Row], is_sorted: bool, size: int
) -> None:
    rows = sorted(rows, key=_by_key) if is_sorted else rows
    assert _are_taken(rows, size, "page") == (rows == sorted(rows, key=_by_key))


@settings(deadline=None)
@given(ROWS, st.booleans(), st.integers(1, 5))
def test_rows_without_a_key_are_taken_if_they_come_by_arrival(
    rows: list[Row], is_sorted: bool, size: int
) -> None:
    rows = list({_by_arrival(row): row for row in rows}.values())
    rows = sorted(rows, key=_by_arrival) if is_sorted else rows
    assert _are_taken(rows, size) == (rows == sorted(rows, key=_by_arrival))


def test_rows_that_came_twice_are_not_taken() -> None:
    assert not _are_taken([(0, 1, 7), (0, 1, 7)], 5, "page")
    assert not _are_taken([(0, 1, 7), (0, 1, 7)], 1, "page")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_keys_of_fewer_bits_are_looked_at_too(kind: pa.DataType) -> None:
    rows = pa.record_batch({"group": [0, 0], "page": pa.array([2, 1], kind), "arrival": [0, 1]})
    with pytest.raises(UnsortedError, match=r"^count: the rows of a shard"):
        list(in_order(iter([rows]), ["page"], "count"))


def test_keys_that_are_no_single_integer_are_sorted_by_all_columns_and_not_looked_at() -> None:
    texts = pa.record_batch({"group": [0, 0], "page": ["b", "a"], "arrival": [0, 1]})
    assert list(in_order(iter([texts]), ["page"], "count")) == [texts]
    pairs = pa.record_batch({"group": [0, 0], "page": [2, 1], "line": [0, 0], "arrival": [0, 1]})
    assert list(in_order(iter([pairs]), ["page", "line"], "count")) == [pairs]


def test_empty_batches_say_nothing() -> None:
    first, second = _batches([(0, 1, 1), (0, 2, 1)], 1)
    batches = [first.slice(0, 0), first, first.slice(1), second, first.slice(0, 0)]
    assert list(in_order(iter(batches), ["page"], "count")) == batches
    with pytest.raises(UnsortedError):
        list(in_order(iter([second, first.slice(1), first]), ["page"], "count"))
