"""Rows that several operators read, in memory and beyond it."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.spark.worker.replayed_rows import ReplayedRows

ROWS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), max_size=8)


def batches(lists: list[list[int]]) -> list[pa.RecordBatch]:
    schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
    return [
        pa.record_batch([pa.array(some, pa.int64()), pa.array(map(str, some))], schema=schema)
        for some in lists
    ]


@settings(max_examples=100, deadline=None)
@given(lists=ROWS, in_memory_bytes=st.integers(0, 2_000), readers=st.integers(1, 4))
def test_every_reader_gets_all_batches_in_order(
    lists: list[list[int]],
    in_memory_bytes: int,
    readers: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.getbasetemp() / "not" / "yet"
    expected = batches(lists)
    with ReplayedRows(iter(expected), str(directory), in_memory_bytes) as replayed:
        for _ in range(readers):
            assert list(replayed) == expected


def test_the_first_reader_does_not_wait_for_all_rows(tmp_path: Path) -> None:
    taken: list[int] = []

    def rows() -> object:
        for number, batch in enumerate(batches([[1], [2], [3]])):
            taken.append(number)
            yield batch

    with ReplayedRows(rows(), str(tmp_path)) as replayed:  # type: ignore[arg-type]
        next(iter(replayed))
        assert taken == [0]


def test_what_does_not_fit_into_memory_is_in_a_file_that_leaves_nothing(tmp_path: Path) -> None:
    given = batches([list(range(10_000))] * 4)
    size = given[0].nbytes
    expected = [batch.slice(0) for batch in given]
    before = pa.total_allocated_bytes()
    with ReplayedRows(iter(given), str(tmp_path), size) as replayed:
        assert list(replayed) == expected
        assert list(replayed) == expected
        gc.collect()
        assert pa.total_allocated_bytes() - before < size
        assert list(tmp_path.iterdir()) == []  # it has no name
    assert list(tmp_path.iterdir()) == []
