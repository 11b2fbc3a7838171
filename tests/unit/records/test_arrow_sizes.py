"""What an Arrow file takes unpacked is known before any of it is unpacked."""

from __future__ import annotations

import contextlib
import io
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.change_file import read_changes, read_keys
from statekit.errors import CorruptCheckpointError
from statekit.records.arrow_sizes import UNPACKED_BYTES_MAX, check_unpacked
from tests.support.mutations import Put, batch_of, written


def change_file(batches: int = 1, size: int = 1_000) -> bytes:
    """A change file of rows whose values are compressed well."""
    return written(
        ["visits", "other"],
        *(
            batch_of(
                Put("visits", b"k%06d" % row, bytes(size)) for row in range(number, number + 20)
            )
            for number in range(batches)
        ),
    )


def claiming(data: bytes, unpacked: int, claimed: int) -> bytes:
    """A file in which the buffer of a known unpacked length claims to have another."""
    before, after = struct.pack("<q", unpacked), struct.pack("<q", claimed)
    assert data.count(before) >= 1
    return data.replace(before, after)


@pytest.mark.parametrize("claimed", [UNPACKED_BYTES_MAX, 2**40, 2**62])
def test_a_buffer_that_unpacks_to_too_much_memory_is_refused_before_it_is_unpacked(
    claimed: int,
) -> None:
    bomb = claiming(change_file(3, size=54_321), 20 * 54_321, claimed)
    with pytest.raises(ValueError, match="bytes unpacked, more than"):
        check_unpacked(io.BytesIO(bomb))
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptCheckpointError, match="bytes unpacked, more than"):
        list(read_changes(bomb, "bomb"))
    with pytest.raises(CorruptCheckpointError, match="bytes unpacked, more than"):
        list(read_keys(io.BytesIO(bomb), "bomb"))
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_a_buffer_that_claims_less_than_it_has_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match="bomb is not a readable change file"):
        list(read_changes(claiming(change_file(size=54_321), 20 * 54_321, 10), "bomb"))


def test_files_that_statekit_writes_are_within_the_limit_and_read_from_their_start() -> None:
    data = change_file(5)
    for file in (io.BytesIO(data), pa.BufferReader(data)):
        check_unpacked(file)
        assert file.tell() == 0
    assert sum(len(batch) for batch in read_changes(data, "fine")) == 100


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_bytes_are_refused_or_read(data: st.DataObject) -> None:
    changed = bytearray(change_file(2, size=data.draw(st.sampled_from([0, 10, 1_000]))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with contextlib.suppress(CorruptCheckpointError):
        for batch in read_changes(bytes(changed), "changed"):
            list(batch.rows())
