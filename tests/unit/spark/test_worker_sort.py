"""Rows of a shard come by key group, key and arrival, however they came within a key group."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statekit.errors import UnsortedError
from statekit.spark.worker import rows as module
from statekit.spark.worker.rows import in_order

Row = tuple[Any, ...]
"""The key group, the fields of the key, and the arrival."""

LEAST, LARGEST = -(2**63), 2**63 - 1
NOON = dt.datetime(1969, 12, 31, 12, tzinfo=dt.UTC)

KEYS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [LEAST, -1, 0, 1, LARGEST],
    pa.int8(): [-128, -1, 0, 127],
    pa.string(): ["", "a", "a\0", "ab", "b", "é", "\ud7ff", "\uffff", "\U0001f600"],
    pa.binary(): [b"", b"\0", b"a", b"\xff", b"\xff\xff"],
    pa.bool_(): [False, True],
    pa.date32(): [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    pa.timestamp("us", tz="UTC"): [NOON, NOON.replace(year=1), NOON.replace(year=2026)],
}


def _batches(rows: Sequence[Row], kinds: Sequence[pa.DataType], size: int) -> list[pa.RecordBatch]:
    """With the key group first and the arrival last, and between them the key and one column more.

    That has the arrival as well, in a list.
    """
    fields = [(f"key_{n}", kind) for n, kind in enumerate(kinds)]
    more = ("more", pa.list_(pa.int64()))
    schema = pa.schema([("group", pa.int32()), *fields, more, ("at", pa.int64())])
    given = [(*row[:-1], [row[-1]], row[-1]) for row in rows]
    made = []
    for start in range(0, len(given), size):
        columns = zip(*given[start : start + size], strict=True)
        arrays = [pa.array(c, of) for c, of in zip(columns, schema.types, strict=True)]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return made


def _ordered(batches: Sequence[pa.RecordBatch], keys: int, enough: int = 50_000) -> list[Row]:
    """What comes of batches, if pieces of so many rows are sorted at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ENOUGH_ROWS", enough)
        names = [f"key_{n}" for n in range(keys)]
        found = list(in_order(iter(batches), names, "count"))
    assert all(0 < len(batch) <= max(map(len, batches)) for batch in found)
    rows = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert all(more == [at] for *_, more, at in rows)
    return [(*before, at) for *before, _, at in rows]


def _place(row: Row) -> tuple[Any, ...]:
    """Null comes before everything else, and texts by their bytes."""
    return tuple(
        (value is not None, value.encode("utf-8") if isinstance(value, str) else value)
        for value in row
    )


@st.composite
def _rows(draw: st.DrawFn) -> tuple[list[pa.DataType], list[Row]]:
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), max_size=2))
    keys = [st.sampled_from([None, *KEYS[kind]]) for kind in kinds]
    row = st.tuples(st.integers(0, 2), *keys)
    drawn = draw(st.lists(row, max_size=12))
    arrivals = draw(st.permutations(range(len(drawn))))
    return kinds, [(*row, at) for row, at in zip(drawn, arrivals, strict=True)]


@settings(deadline=None)  # Arrow loads its functions with the first call
@given(_rows(), st.booleans(), st.integers(1, 5), st.integers(1, 5))
@example(([pa.int64()], [(0, None, 1), (0, LEAST, 0), (0, None, 2)]), False, 2, 1)
@example(([pa.int64()], [(0, 1, 5), (1, 0, 0)]), False, 1, 1)
@example(([pa.string()], [(0, None, 1), (0, None, 0)]), False, 1, 1)
def test_rows_that_came_by_key_group_come_by_key_and_arrival(
    given: tuple[list[pa.DataType], list[Row]], is_sorted: bool, size: int, enough: int
) -> None:
    kinds, rows = given
    rows = sorted(rows, key=_place if is_sorted else lambda row: row[0])
    found = _ordered(_batches(rows, kinds, size), len(kinds), enough)
    assert found == sorted(rows, key=_place)


def test_rows_that_are_in_order_are_not_copied() -> None:
    batches = _batches([(0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 0, 0)], [pa.int64()], 2)
    found = list(in_order(iter(batches), ["key_0"], "count"))
    assert found == batches
    assert [of.column(0).buffers()[1].address for of in found] == [
        of.column(0).buffers()[1].address for of in batches
    ]


def test_rows_that_came_twice_are_not_taken() -> None:
    rows = [(0, 1, 7), (0, 1, 7)]
    for size, enough in ((5, 5), (1, 5), (1, 1)):
        with pytest.raises(
            UnsortedError, match=r"rows of a shard are not in the order.* \[operator count\]$"
        ):
            _ordered(_batches(rows, [pa.int64()], size), 1, enough)


def test_a_key_group_that_comes_again_is_not_taken() -> None:
    rows = [(0, "a", 0), (1, "b", 1), (0, "c", 2), (2, "d", 3)]
    with pytest.raises(UnsortedError):
        _ordered(_batches(rows, [pa.string()], 1), 1, enough=1)
    assert _ordered(_batches(rows, [pa.string()], 1), 1, enough=9) == sorted(rows)


def test_empty_batches_say_nothing() -> None:
    first, second = _batches([(0, 1, 1), (0, 2, 1)], [pa.int64()], 1)
    batches = [first.slice(0, 0), first, first.slice(1), second, first.slice(0, 0)]
    assert list(in_order(iter(batches), ["key_0"], "count")) == [first, second]
    assert list(in_order(iter([first.slice(0, 0)]), ["key_0"], "count")) == []


def test_a_key_group_that_does_not_fit_into_memory_is_taken_if_it_is_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ENOUGH_ROWS", 2)
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    rows = [(0, f"{at // 3:04}", at) for at in range(300)]
    taken = 0

    def counted(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    batches = _batches([*rows, (1, "", 0)], [pa.string()], 2)
    found = in_order(counted(batches), ["key_0"], "count")
    assert next(found).num_rows == 2
    assert taken < len(batches) // 4
    assert sum(batch.num_rows for batch in found) == len(rows) - 1
    mixed = [*rows[3:], *rows[:3], (1, "", 0)]
    with pytest.raises(UnsortedError):
        list(in_order(iter(_batches(mixed, [pa.string()], 2)), ["key_0"], "count"))


def test_a_large_key_group_is_taken_only_as_long_as_its_pieces_follow_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    first = [(0, "a", 0), (0, "c", 2), (0, "b", 1)]
    for follows, is_taken in (("d", True), ("c", False), ("bb", False), ("a", False)):
        rows = [*first, (0, follows, 2)]
        batches = _batches(rows, [pa.string()], 3)
        if is_taken:
            assert _ordered(batches, 1, enough=3) == sorted(rows)
            continue
        with pytest.raises(UnsortedError):
            _ordered(batches, 1, enough=3)


def test_pieces_have_a_bounded_size_and_sorted_batches_the_size_of_the_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ENOUGH_BYTES", 3000)
    rows = [(at // 2, "ab"[at % 2 - 1], at, "x" * 1000) for at in range(40)]
    schema = pa.schema([("group", pa.int32()), ("key", pa.string()), ("at", pa.int64())])
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, row[:3], strict=True)) for row in rows], schema
    ).add_column(1, "text", [[row[3] for row in rows]])
    taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in table.to_batches(2):
            taken += 1
            yield batch

    lasts = []
    for batch in in_order(counted(), ["key"], "count"):
        lasts.append(taken)
        assert batch.num_rows <= 2
    assert lasts == sorted(lasts)
    assert lasts[0] < 4
    assert max(after - before for before, after in pairwise(lasts)) < 4


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_that_are_none_are_left_to_who_reads_records(kind: pa.DataType) -> None:
    for wrong in (b"\xff", b"a"):
        keys = pa.array([b"b", wrong], pa.large_binary()).cast(pa.binary()).view(pa.string())
        keys = keys if kind == pa.string() else pa.chunked_array([keys]).cast(kind).combine_chunks()
        batch = pa.record_batch({"group": [0, 0], "key": keys, "at": [0, 1]})
        (found,) = in_order(iter([batch]), ["key"], "count")
        assert found.column("at").to_pylist() == ([0, 1] if wrong == b"\xff" else [1, 0])
