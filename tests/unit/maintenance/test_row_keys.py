"""Row keys taken apart and put together in other key groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.job_file import EXPIRY, OperatorRecord
from statekit.checkpoint.repository import group_bounds
from statekit.errors import CorruptCheckpointError
from statekit.keygroup import group_of_row, key_group
from statekit.maintenance.row_keys import KeyedRows, RowKeyParts
from statekit.state.timers import DUE
from statekit.testing import Harness
from tests.support.all_row_kinds import KEYS, PROCESSES, Step, epochs, keep, run
from tests.support.loaded_rows import load

GROUPS = st.sampled_from([1, 2, 3, 16, 128, 32768])


def operator_of(harness: Harness) -> OperatorRecord:
    (operator,) = harness._runner.coordinator.job_file.operators
    return operator


def rows_of(harness: Harness) -> list[tuple[str, bytes, bytes]]:
    """All rows of a harness with one shard, indexes too."""
    backend = MemoryBackend(harness.process.families)
    repository, last = harness._repository, harness.key_groups - 1
    load(repository, backend, harness.process.name, 0, last, harness.epoch)
    return [
        (family, *found)
        for family in harness.process.families
        for found in backend.scan(family, *group_bounds(0, last))
    ]


@settings(max_examples=30, deadline=None)
@given(process=st.sampled_from(PROCESSES), given_epochs=epochs(), first=GROUPS, second=GROUPS)
def test_converting_a_row_key_and_back_gives_the_same_row_key(
    process: Any, given_epochs: list[list[Step]], first: int, second: int
) -> None:
    harness = Harness(process, key_groups=first)
    for number, records in enumerate(given_epochs):
        run(harness, number, records)
    here, there = (KeyedRows(operator_of(harness), groups) for groups in (first, second))
    for family, row_key, _ in rows_of(harness):
        if family not in here.families:
            continue
        parts = here.parts(family, row_key)
        moved = there.row_key(parts)
        assert moved[2:] == row_key[2:]
        assert group_of_row(moved) == key_group(process.key_codec.decode(parts.key)[0], second)
        assert here.row_key(there.parts(family, moved)) == row_key
        assert RowKeyParts.of_subkey(family, parts.key, parts.subkey) == parts


@settings(max_examples=30, deadline=None)
@given(given_epochs=epochs())
def test_rebuilt_indexes_contain_all_due_rows_and_no_others(given_epochs: list[list[Step]]) -> None:
    harness = Harness(keep, key_groups=8)
    for number, records in enumerate(given_epochs):
        run(harness, number, records)
    rows = KeyedRows(operator_of(harness), 8)
    stored: dict[str, set[bytes]] = {DUE: set(), EXPIRY: set()}
    made: dict[str, set[bytes]] = {DUE: set(), EXPIRY: set()}
    for family, row_key, row in rows_of(harness):
        if family in stored:
            stored[family].add(row_key)
            continue
        entry = rows.entry(family, rows.parts(family, row_key), row_key, row)
        if entry is not None and entry.family is not None:
            made[entry.family].add(entry.row_key)
    assert made[DUE] == stored[DUE]
    # Of a row that was written again, the stored index still has an older time.
    assert set(map(_indexed, made[EXPIRY])) <= set(map(_indexed, stored[EXPIRY]))


def _indexed(entry: bytes) -> bytes:
    """Key group, state and rest of the row key that an entry of `_expiry` is for."""
    state, _, rest = entry[2:].partition(b"\x00")
    return entry[:2] + state + b"\x00" + rest[9:]


@pytest.mark.parametrize("row_key", [b"\x00\x01", b"\x00\x01no end", b"\x00\x01\xff\xff\x00\x00"])
def test_a_row_key_without_a_key_is_corrupt(row_key: bytes) -> None:
    rows = KeyedRows(operator_of(Harness(keep)), 128)
    with pytest.raises(CorruptCheckpointError, match="is not a key of type"):
        rows.parts("last", row_key)


def test_rows_of_one_key_need_no_second_look_and_are_not_taken_for_those_of_another() -> None:
    rows = KeyedRows(operator_of(Harness(keep)), 128)
    codec = keep.key_codec
    for key in [*KEYS, *reversed(KEYS)]:
        for subkey in (b"", b"\x00", b"\xff"):
            encoded = codec.encode(key)
            parts = rows.parts("by_n", b"\x00\x00" + encoded + subkey)
            assert (parts.key, parts.after) == (encoded, subkey)
