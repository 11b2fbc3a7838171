"""The rows of a Spark partition, told apart by shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.spark.worker.rows import FIRST_MARK, GROUP, INPUT, shards_in_turn


class Rows(NamedTuple):
    """What a shard has: how many broadcast rows, and the key groups of its records."""

    news: int
    groups: list[int]


SHARDS = st.lists(
    st.builds(Rows, st.integers(0, 3), st.lists(st.integers(0, 9), max_size=6)), max_size=6
)


def batches(shards: list[Rows], cuts: list[int]) -> Iterator[pa.RecordBatch]:
    """All rows of some shards, numbered, cut anywhere into batches."""
    groups: list[int] = []
    inputs: list[int | None] = []
    for shard, rows in enumerate(shards):
        mark = FIRST_MARK - shard
        groups += [mark, *[mark] * rows.news, *rows.groups]
        inputs += [None, *[1] * rows.news, *[0] * len(rows.groups)]
    columns = {GROUP: groups, INPUT: inputs, "row": range(len(groups))}
    table = pa.table({name: pa.array(held, pa.int32()) for name, held in columns.items()})
    ends = sorted({min(cut, len(groups)) for cut in cuts} | {len(groups)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield from table.slice(start, end - start).combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], schema=table.schema)
        ]


@given(SHARDS, st.lists(st.integers(0, 40), max_size=8))
def test_each_shard_gets_all_of_its_rows_wherever_batches_end(
    shards: list[Rows], cuts: list[int]
) -> None:
    found = [
        (shard, [row for rows in own for row in rows.column("row").to_pylist()])
        for shard, own in shards_in_turn(batches(shards, cuts))
    ]
    expected, row = [], 0
    for shard, rows in enumerate(shards):
        size = rows.news + len(rows.groups)
        expected.append((shard, list(range(row + 1, row + 1 + size))))
        row += 1 + size
    assert found == expected


@given(SHARDS, st.lists(st.integers(0, 40), max_size=8))
def test_rows_that_a_shard_does_not_take_are_skipped(shards: list[Rows], cuts: list[int]) -> None:
    found = [shard for shard, _ in shards_in_turn(batches(shards, cuts))]
    assert found == list(range(len(shards)))


def test_rows_without_a_mark_before_them_are_refused() -> None:
    (batch,) = batches([Rows(0, [1, 2])], [])
    with pytest.raises(sk.IncompleteEpochError, match="do not start with its mark"):
        list(shards_in_turn(iter([batch.slice(1)])))
