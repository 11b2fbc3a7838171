from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from statekit.backend.interface import MemoryBackend
from statekit.backend.mutation import Batch, ChangeFileWriter, Delete, DeleteRange, Mutation, Put
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import now_us
from statekit.working_copy.change_file_merge import (
    MERGED_AT_A_TIME,
    Merge,
    StagedMerge,
    merged,
    worth_merging,
)
from tests.support.killable_processes import die, exit_code

STATES = ("one", "other")

states = st.sampled_from(STATES)
keys = st.binary(min_size=1, max_size=2).map(lambda key: b"\0\0" + key)
mutations: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, states, keys, st.binary(max_size=3)),
    st.builds(Delete, states, keys),
    st.builds(lambda state, a, b: DeleteRange(state, min(a, b), max(a, b)), states, keys, keys),
)
batches = st.lists(st.lists(mutations, max_size=12).map(Batch), max_size=6)


def rows_of(backend: MemoryBackend) -> dict[str, list[tuple[bytes, bytes]]]:
    return {state: list(backend.scan(state, b"", b"\xff")) for state in STATES}


@given(before=batches, given_batches=batches)
def test_what_is_merged_does_to_any_rows_what_the_files_did(
    before: list[Batch], given_batches: list[Batch]
) -> None:
    plain, other = MemoryBackend(STATES), MemoryBackend(STATES)
    for batch in before:
        plain.write(batch)
        other.write(batch)
    for batch in given_batches:
        plain.write(batch)
    made = list(merged(given_batches))
    for batch in made:
        other.write(batch)
    assert rows_of(plain) == rows_of(other)
    named = [(m.state, m.key) for batch in made for m in batch if not isinstance(m, DeleteRange)]
    assert len(named) == len(set(named))


def ref(number: int, size: int = 2000) -> FileRef:
    return FileRef(path=f"data/o/{number}.changes.arrow", size=size, checksum="0" * 32, rows=1)


def test_the_oldest_files_of_one_size_are_merged_and_large_ones_left_alone() -> None:
    few = [ref(n) for n in range(MERGED_AT_A_TIME - 1)]
    assert worth_merging(few) == ()
    assert worth_merging([*few, ref(99)]) == (*few, ref(99))
    assert worth_merging([*few, ref(98, 10**6), ref(99)]) == ()
    grown = [ref(n, 5000) for n in range(3)]
    assert worth_merging([*grown, *few, ref(99)]) == (*few, ref(99))
    assert worth_merging([ref(n, 9000) for n in range(40)]) == ()


def test_a_row_is_written_once_per_size() -> None:
    files: list[FileRef] = []
    written = 0
    for number in range(5000):
        files.append(ref(number, 1600))  # 100 bytes of rows
        while chosen := worth_merging(files):
            start = files.index(chosen[0])
            made = ref(10**6 + number, sum(file.size - 1500 for file in chosen) + 1500)
            written += made.size
            files[start : start + len(chosen)] = [made]
    assert len(files) < 3 * MERGED_AT_A_TIME
    assert written < 5000 * 1600 * 0.2


def stored(repository: Repository, number: int) -> Sequence[FileRef]:
    made = []
    for local in (False, True):
        file = BytesIO()
        writer = ChangeFileWriter(file, STATES)
        state, key = STATES[local], b"\0\0%d" % (number % 7)
        writer.append(Batch([Put(state, key, b"%d" % number), Delete(state, b"\0\0gone")]))
        writer.close()
        made.append(repository.put_changes("o", file, writer.rows, local=local))
    return made


def merge_until_killed(root: str, place: str, calls: int) -> None:
    left = [calls]

    def going() -> None:
        left[0] -= 1
        if not left[0]:
            die()

    StagedMerge(Path(place)).upload(Repository(root), going)


def test_a_merge_that_is_killed_is_made_by_the_next_one(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "c")
    files = [ref for number in range(16) for ref in stored(repository, number)]
    staged = StagedMerge(tmp_path / "merge")
    staged.place.mkdir()
    merge = Merge(operator="o", states=STATES, files=tuple(files), epoch=0, begun_us=now_us())
    staged.seal(merge)
    for calls in (1, 9, 18):
        assert exit_code(merge_until_killed, str(tmp_path / "c"), str(staged.place), calls) == -9
        assert staged.finished is None
    made = staged.upload(repository, lambda: None)
    assert made is not None
    assert made == staged.finished
    assert [file.local for file in made.files] == [False, True]
    one, other = MemoryBackend(STATES), MemoryBackend(STATES)
    before, after = [ref(1)], [ref(2)]
    within = made.within([*before, *files, *after])
    assert within == (*before, *made.files, *after)
    assert made.within(files[1:]) is None
    repository.replay(one, files, 0, 7)
    repository.replay(other, list(made.files), 0, 7)
    assert rows_of(one) == rows_of(other)
