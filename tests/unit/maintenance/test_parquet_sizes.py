"""What a Parquet file takes unpacked is known before any of it is unpacked."""

from __future__ import annotations

import contextlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.errors import CorruptCheckpointError
from statekit.maintenance.savepoint import parquet_sizes
from statekit.maintenance.savepoint.format import EXACT, saved_rows
from statekit.maintenance.savepoint.parquet_sizes import batch_rows


def table(rows: list[bytes], **options: object) -> bytes:
    """The exact columns of a savepoint's table."""
    file = io.BytesIO()
    keys = [b"%04d" % number for number in range(len(rows))]
    columns = dict(zip(EXACT, (keys, [b""] * len(rows), rows), strict=True))
    schema = pa.schema([(name, pa.binary()) for name in columns])
    pq.write_table(pa.table(columns, schema), file, compression="zstd", **options)
    return file.getvalue()


def rows_at_a_time(data: bytes) -> int:
    return batch_rows(io.BytesIO(data), pq.ParquetFile(io.BytesIO(data)).metadata)


def test_files_of_small_values_are_read_in_large_batches() -> None:
    data = table([b"%d" % (number % 7) for number in range(1_000)])
    assert rows_at_a_time(data) == 65_536
    assert len(list(saved_rows(io.BytesIO(data), "fine"))) == 1_000


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that tests need little memory to pass."""
    limit = 20_000_000
    monkeypatch.setattr(parquet_sizes, "UNPACKED_BYTES_MAX", limit)
    return limit


def test_a_large_value_of_a_dictionary_is_not_repeated_without_end(small_limit: int) -> None:
    """A megabyte that many rows share takes as much for each of them once they are read."""
    data = table([bytes(1_000_000)] * 100)
    assert len(data) < 10_000
    assert rows_at_a_time(data) == small_limit // 1_000_004
    assert all(len(row.row) == 1_000_000 for row in saved_rows(io.BytesIO(data), "fine"))


def test_pages_that_take_too_much_memory_are_refused_before_they_are_unpacked(
    small_limit: int,
) -> None:
    data = table([bytes(1_000_000)] * 25, use_dictionary=False, data_page_size=1)
    assert len(data) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptCheckpointError, match=r"bomb .* bytes unpacked, more than"):
        list(saved_rows(io.BytesIO(data), "bomb"))
    assert pa.total_allocated_bytes() - before < 1_000_000


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_refused_or_read(data: st.DataObject) -> None:
    rows = [b"%d" % (number % 7) for number in range(50)]
    changed = bytearray(table(rows, use_dictionary=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with contextlib.suppress(CorruptCheckpointError):
        list(saved_rows(io.BytesIO(changed), "changed"))
