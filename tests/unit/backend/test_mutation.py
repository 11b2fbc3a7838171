from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.change_file import Changes, read_changes
from statekit.backend.mutation import BATCH_BYTES_MAX, BATCH_ROWS_MAX, Batch
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError
from tests.support.mutations import Delete, DeleteRange, Mutation, Put, batch_of, mutations_of
from tests.support.mutations import written as written_file

UNHURRIED = settings(deadline=None, derandomize=True)
STATES = ["visits", "seen", "naïve ☃"]
KEYS = st.binary(max_size=12)
MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, st.sampled_from(STATES), KEYS, st.binary(max_size=50)),
    st.builds(Delete, st.sampled_from(STATES), KEYS),
    st.builds(DeleteRange, st.sampled_from(STATES), KEYS, KEYS),
)
SMALL = [
    batch_of([Put("visits", b"k", b"v"), Put("visits", b"l", b""), Delete("seen", b"k")]),
    batch_of([DeleteRange("seen", b"a", b"b")]),
]


def written(*batches: Batch, states: list[str] = STATES) -> bytes:
    return written_file(states, *batches)


def read(data: bytes) -> list[list[Mutation]]:
    return [mutations_of(batch) for batch in read_changes(data, "changes")]


# -------------------------------------------------------------------------------------- batches


@UNHURRIED
@given(st.lists(MUTATIONS))
def test_batch_gives_mutations_back_in_the_order_they_were_added(mutations: list[Mutation]) -> None:
    batch = batch_of(mutations)
    assert mutations_of(batch) == mutations
    assert len(batch) == len(mutations)
    assert batch.size_bytes == Batch(batch.rows()).size_bytes


def test_cleared_batch_is_empty_and_can_be_used_again() -> None:
    batch = batch_of([Put("visits", b"k", b"v")])
    batch.clear()
    assert (len(batch), batch.size_bytes, batch.full) == (0, 0, False)
    batch.delete("visits", b"k")
    assert mutations_of(batch) == [Delete("visits", b"k")]


def test_batch_is_full_by_rows_or_by_bytes() -> None:
    by_rows, by_bytes = Batch(), Batch()
    for _ in range(BATCH_ROWS_MAX - 1):
        by_rows.delete("visits", b"")
    by_bytes.put("visits", b"", bytes(BATCH_BYTES_MAX - 1))
    assert [by_rows.full, by_bytes.full] == [False, False]
    by_rows.delete("visits", b"")
    by_bytes.delete("visits", b"k")
    assert [by_rows.full, by_bytes.full] == [True, True]


def test_within_keeps_only_the_mutations_of_a_key_range_and_of_known_states() -> None:
    batch = batch_of(
        [
            Put("visits", b"a", b"1"),
            Put("visits", b"b", b"22"),
            Delete("dropped", b"b"),
            DeleteRange("seen", b"b", b"c"),
            Delete("seen", b"c"),
        ]
    )
    inner = batch.within(b"b", b"c", {"visits", "seen"})
    assert mutations_of(inner) == [Put("visits", b"b", b"22"), DeleteRange("seen", b"b", b"c")]
    assert inner.size_bytes == 5


# --------------------------------------------------------------------------------- change files


@UNHURRIED
@given(st.lists(st.lists(MUTATIONS), max_size=4))
def test_change_file_gives_back_every_batch_that_is_not_empty(
    batches: list[list[Mutation]],
) -> None:
    data = written(*map(batch_of, batches), *SMALL)
    kept = [batch for batch in batches if batch]
    assert read(data) == kept + list(map(mutations_of, SMALL))


def test_no_change_file_is_written_without_mutations() -> None:
    changes = Changes(STATES)
    changes.append(Batch())
    assert changes.finish() is None


def test_change_file_reads_from_a_file_as_from_bytes() -> None:
    data = written(*SMALL)
    assert [mutations_of(batch) for batch in read_changes(io.BytesIO(data), "changes")] == read(
        data
    )


def test_change_file_is_readable_by_any_arrow_tool() -> None:
    table = pa.ipc.open_file(written(*SMALL)).read_all()
    assert table.schema.field("state").type == pa.dictionary(pa.int16(), pa.string())
    assert table.to_pylist() == [
        {"state": "visits", "op": 0, "key": b"k", "value": b"v"},
        {"state": "visits", "op": 0, "key": b"l", "value": b""},
        {"state": "seen", "op": 1, "key": b"k", "value": None},
        {"state": "seen", "op": 2, "key": b"a", "value": b"b"},
    ]


def test_a_row_of_64_mb_survives_the_round_trip() -> None:
    value = bytes(range(256)) * (64 * 1024 * 4)
    (batch,) = read_changes(written(batch_of([Put("visits", b"k", value)])), "changes")
    assert list(batch.rows()) == [("visits", 0, b"k", value)]
    assert batch.size_bytes == len(value) + 1


def test_repository_detects_every_truncation_of_a_change_file() -> None:
    data = written(*SMALL)
    repository, ref = stored(data)
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match=ref.path):
            replace(repository, ref, data[:length]).open_verified(ref)


def test_repository_detects_every_flipped_byte_of_a_change_file() -> None:
    data = written(*SMALL)
    repository, ref = stored(data)
    for at in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match=ref.path):
            replace(repository, ref, flipped(data, at, 0xFF)).open_verified(ref)


def test_unverified_damage_never_ends_the_process_or_raises_anything_else() -> None:
    # Behind the checksum this cannot happen; here it is the reader alone.
    data = written(*SMALL)
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match="changes is not a readable"):
            read(data[:length])
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            try:
                read(flipped(data, at, mask))
            except CorruptCheckpointError as error:
                assert "changes is not a readable" in str(error)  # noqa: PT017 - it may also read


@pytest.mark.parametrize(
    "columns",
    [
        {"something": pa.array([1])},
        {"state": pa.array(["a"]), "op": pa.array([0]), "key": pa.array([b"k"])},
    ],
    ids=["other columns", "other types"],
)
def test_arrow_file_of_another_kind_is_corrupt(columns: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpointError, match="changes is not a readable"):
        read(arrow_file(pa.table(columns)))


def test_mutation_of_an_unknown_kind_is_corrupt() -> None:
    table = pa.ipc.open_file(written(*SMALL)).read_all()
    table = table.set_column(1, table.schema.field("op"), pa.array([0, 3, 0, 0], pa.uint8()))
    with pytest.raises(CorruptCheckpointError, match="unknown operation"):
        read(arrow_file(table))


def test_mutation_without_a_key_is_corrupt() -> None:
    table = pa.ipc.open_file(written(*SMALL)).read_all()
    keys = pa.array([b"k", None, b"k", b"k"], pa.binary())
    table = table.set_column(2, table.schema.field("key"), keys)
    with pytest.raises(CorruptCheckpointError, match="lacks its state, operation or key"):
        read(arrow_file(table))


def arrow_file(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def stored(data: bytes) -> tuple[Repository, FileRef]:
    repository = Repository.in_memory()
    return repository, repository.put_changes("count", io.BytesIO(data), 4)


def replace(repository: Repository, ref: FileRef, data: bytes) -> Repository:
    """Put other content in the place of a stored file, behind the repository's back."""
    repository._objects.put(ref.path, data)
    return repository
