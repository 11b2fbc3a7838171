"""Rows that are divided on the local disk by a thread, while others are added."""

from __future__ import annotations

from contextlib import closing
from unittest import mock

import pyarrow as pa
import pytest

from statekit.backend import divided_rows
from statekit.backend.divided_rows import DividedRows
from statekit.errors import StorageError
from tests.support.small_disk import files_of_at_most

ENDS = [0, 2, 5]


def put(rows: DividedRows, first: int, count: int) -> None:
    numbers = range(first, first + count)
    keys = pa.array([bytes([0, number % 6]) + b"%d" % number for number in numbers], pa.binary())
    rows.add("f", keys, pa.array([b"%d" % number for number in numbers], pa.binary()))


def put_many(rows: DividedRows) -> None:
    for first in range(0, 100_000, 1_000):
        put(rows, first, 1_000)


def numbers_of(rows: DividedRows, range_: int) -> list[int]:
    batches = rows.of("f", range_)
    return sorted(int(row) for batch in batches for row in batch["value"].to_pylist())


@pytest.mark.parametrize("gathered_bytes", [1, 3_000, 1 << 20])
def test_each_row_is_in_the_range_of_its_group_and_those_of_the_last_part_too(
    gathered_bytes: int,
) -> None:
    with (
        mock.patch.object(divided_rows, "_GATHERED_BYTES", gathered_bytes),
        closing(DividedRows(["f", "empty"], ENDS)) as rows,
    ):
        for first in range(0, 1000, 50):
            put(rows, first, 50)
        for range_, groups in enumerate([[0], [1, 2], [3, 4, 5]]):
            expected = [number for number in range(1000) if number % 6 in groups]
            assert numbers_of(rows, range_) == expected
            assert not sum(batch.num_rows for batch in rows.of("empty", range_))


def test_a_full_disk_is_told_while_rows_are_added_or_when_they_are_read() -> None:
    with (
        mock.patch.object(divided_rows, "_GATHERED_BYTES", 100_000),
        closing(DividedRows(["f"], ENDS)) as rows,
        files_of_at_most(300_000),
        pytest.raises(StorageError, match="make space there or set TMPDIR"),
    ):
        put_many(rows)
    with (
        mock.patch.object(divided_rows, "_GATHERED_BYTES", 400_000),
        closing(DividedRows(["f"], ENDS)) as rows,
        files_of_at_most(300_000),
    ):
        while not rows._gathered_bytes or rows._thread is None:
            put(rows, 0, 1_000)
        with pytest.raises(StorageError, match="make space there or set TMPDIR"):
            numbers_of(rows, 0)
