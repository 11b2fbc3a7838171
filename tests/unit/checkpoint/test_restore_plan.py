"""Restore plans of key-group ranges over any sequence of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.references import FILES_MAX, HISTORY_FILES_MAX, Following, changed_contents
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import (
    RestorePlan,
    last_file,
    missed_files,
    shard_restore_plan,
)
from statekit.checkpoint.sealed_json import FileRef, checksum_of
from statekit.checkpoint.shard_contents import History
from statekit.clock import unique_id
from statekit.job.options import RunOptions
from statekit.keygroup import group_range
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import MemoryCopies
from tests.support.counting_job import STATES, entries, plain_state, rows_of, tally_job
from tests.support.loaded_rows import load
from tests.support.manual_checkpoints import change_file, manifest, standing
from tests.support.mutations import Delete, DeleteRange, Mutation, Put, batch_of

Model = dict[bytes, bytes]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, list[Mutation]]]]:
    """A number of key groups, and epochs: how many numbers to skip, parallelism, mutations."""
    groups = draw(st.integers(1, 6))
    keys = st.builds(
        lambda group, rest: group.to_bytes(2, "big") + rest,
        st.integers(0, groups - 1),
        st.sampled_from([b"a", b"b", b"c"]),
    )
    mutations: st.SearchStrategy[Mutation] = st.one_of(
        st.builds(Put, st.just("s"), keys, st.binary(max_size=2)),
        st.builds(Delete, st.just("s"), keys),
        st.builds(lambda key: DeleteRange("s", key, key[:2] + b"c"), keys),
    )
    epochs = st.tuples(
        st.integers(0, 2), st.integers(1, min(5, groups)), st.lists(mutations, max_size=4)
    )
    return groups, draw(st.lists(epochs, min_size=1, max_size=8))


def apply(model: Model, mutation: Mutation) -> None:
    match mutation:
        case Put(_, key, value):
            model[key] = value
        case Delete(_, key):
            model.pop(key, None)
        case DeleteRange(_, first, end):
            for key in [key for key in model if first <= key < end]:
                del model[key]


def group_of(mutation: Mutation) -> int:
    return int.from_bytes(mutation[1][:2], "big")


def commit_epoch(
    repository: Repository,
    groups: int,
    epoch: int,
    previous: int | None,
    parallelism: int,
    mutations: list[Mutation],
) -> None:
    """Commit an epoch as coordinator and shards do: only shards that change write files."""
    shards = []
    for number in range(parallelism):
        first, last = group_range(number, parallelism, groups)
        shard = standing(repository, "tally", first, last, previous)
        own = [m for m in mutations if first <= group_of(m) <= last]
        update: dict[str, Any] = {}
        if own:
            parts = [own[:1], own[1:]]
            files = [
                repository.put_changes("tally", change_file(*part), len(part))
                for part in parts
                if part
            ]
            update = changed_contents(repository, "tally", shard, dict.fromkeys(files, 0))
            update |= {"attempt": unique_id(), "changed": epoch}
        shards.append(shard.model_copy(update=update))
    made = manifest(epoch, *shards, groups=groups)
    repository.commit(made.model_copy(update={"previous": previous}))


def built(
    groups: int, history: list[tuple[int, int, list[Mutation]]]
) -> tuple[Repository, dict[int, Model]]:
    repository, model, models = Repository.in_memory(), Model(), dict[int, Model]()
    epoch, previous = -1, None
    for skipped, parallelism, mutations in history:
        epoch += 1 + skipped
        commit_epoch(repository, groups, epoch, previous, parallelism, mutations)
        for mutation in mutations:
            apply(model, mutation)
        models[epoch] = dict(model)
        previous = epoch
    return repository, models


def within(model: Model, first: int, last: int) -> Model:
    start_key, end_key = group_bounds(first, last)
    return {key: value for key, value in model.items() if start_key <= key < end_key}


def loaded(repository: Repository, first: int, last: int, epoch: int) -> Model:
    backend = MemoryBackend(["s"])
    load(repository, backend, "tally", first, last, epoch)
    return dict(backend.scan("s", b"", b"\xff" * 3))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(histories())
def test_any_range_at_any_epoch_replays_to_its_rows(
    made: tuple[int, list[tuple[int, int, list[Mutation]]]],
) -> None:
    groups, history = made
    repository, models = built(groups, history)
    for epoch, model in models.items():
        for first in range(groups):
            for last in range(first, groups):
                assert loaded(repository, first, last, epoch) == within(model, first, last)


def standings(
    repository: Repository, epochs: list[int], groups: int
) -> Iterator[tuple[int, int, ShardState]]:
    """Every shard after every epoch, for every parallelism: `(index, parallelism, shard)`."""
    for index, epoch in enumerate(epochs):
        for parallelism in range(1, min(5, groups) + 1):
            for number in range(parallelism):
                bounds = group_range(number, parallelism, groups)
                yield index, parallelism, standing(repository, "tally", *bounds, epoch)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(histories())
def test_a_copy_of_an_older_epoch_catches_up_with_the_changes_after_it(
    made: tuple[int, list[tuple[int, int, list[Mutation]]]],
) -> None:
    groups, history = made
    repository, models = built(groups, history)
    epochs = list(models)
    for index, parallelism, shard in standings(repository, epochs, groups):
        held = within(models[epochs[index]], *shard.groups)
        if shard.attempt is None:
            assert held == {}
            continue
        stood_at = last_file(shard)
        for later in {index, min(index + 2, len(epochs) - 1), len(epochs) - 1}:
            now = standing(repository, "tally", *shard.groups, epochs[later])
            missed = missed_files(repository, "tally", now, epochs[later], stood_at)
            if missed is None:
                between = {parallelism_ for _, parallelism_, _ in history[index : later + 1]}
                assert stood_at is None or between != {parallelism}
                continue
            backend = MemoryBackend(["s"])
            backend.write(batch_of([Put("s", key, value) for key, value in held.items()]))
            repository.replay(backend, missed, *shard.groups)
            found = dict(backend.scan("s", b"", b"\xff" * 3))
            assert found == within(models[epochs[later]], *shard.groups)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(histories())
def test_shards_have_one_name_exactly_if_they_have_the_same_history(
    made: tuple[int, list[tuple[int, int, list[Mutation]]]],
) -> None:
    groups, history = made
    repository, models = built(groups, history)
    seen: dict[tuple[tuple[int, int], str | None], Model] = {}
    epochs = list(models)
    for index, _, shard in standings(repository, epochs, groups):
        held = within(models[epochs[index]], *shard.groups)
        assert seen.setdefault((shard.groups, shard.attempt), held) == held


def test_range_cut_from_other_shards_has_another_name_after_a_rollback(tmp_path: Path) -> None:
    # An epoch that is made again, with other content, must not be taken for the first one.
    names = set()
    for value in (b"1", b"2"):
        repository = Repository(tmp_path / value.decode())
        commit_epoch(repository, 4, 0, None, 2, [Put("s", b"\0\0k", value)])
        names.add(standing(repository, "tally", 0, 3, 0).attempt)
        assert standing(repository, "tally", 0, 3, 0) == standing(repository, "tally", 0, 3, 0)
    assert len(names) == 2


@pytest.fixture
def repository() -> Repository:
    return Repository.in_memory()


def test_a_copy_at_an_unknown_file_starts_from_nothing(repository: Repository) -> None:
    commit_epoch(repository, 4, 0, None, 1, [Put("s", b"\0\0k", b"v")])
    shard = standing(repository, "tally", 0, 3, 0)
    assert missed_files(repository, "tally", shard, 0, "data/tally/never.changes.arrow") is None
    assert missed_files(repository, "tally", shard, 0, None) is None
    assert missed_files(repository, "tally", shard, 0, last_file(shard)) == ()


def test_an_operator_without_history_is_empty(repository: Repository) -> None:
    commit_epoch(repository, 4, 0, None, 1, [Put("s", b"\0\0k", b"v")])
    blank = ShardState(first_group=0, last_group=3)
    assert standing(repository, "new", 0, 3, 0) == blank
    assert standing(repository, "tally", 0, 3, None) == blank
    assert shard_restore_plan(repository, "new", blank, 0).change_files == []
    assert loaded(repository, 0, 3, 0) == {b"\0\0k": b"v"}


def test_one_manifest_is_enough(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for epoch in range(30):
        put = Put("s", b"\0\0%02d" % epoch, b"v")
        previous = epoch - 1 if epoch else None
        commit_epoch(repository, 4, epoch, previous, 1 + epoch // 10, [put])
    for epoch in range(29):
        (tmp_path / epoch_path(epoch)).unlink()
    assert len(loaded(repository, 0, 3, 29)) == 30


def test_a_manifest_names_few_files_however_long_the_history(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    shard = ShardState(first_group=0, last_group=3)
    epochs = HISTORY_FILES_MAX * 2 + 3 * FILES_MAX
    for epoch in range(epochs):
        files = [repository.put_changes("tally", change_file(Put("s", b"\0\0k", b"%d" % epoch)), 1)]
        update = changed_contents(repository, "tally", shard, dict.fromkeys(files, 0))
        update |= {"attempt": unique_id(), "changed": epoch}
        shard = shard.model_copy(update=update)
        assert len(shard.files) <= FILES_MAX
    found = shard_restore_plan(repository, "tally", shard, epochs - 1)
    assert len(found.change_files) == epochs
    lengths, older = list[int](), shard.history
    while older is not None:
        listed = repository.sealed(History, older)
        lengths.append(len(listed.files))
        older = listed.before
    assert max(lengths) <= HISTORY_FILES_MAX + FILES_MAX
    assert len(lengths) == 3
    assert len({file.ref.path for file in Following(repository).of_shard(shard)}) == epochs + len(
        lengths
    )


@pytest.mark.parametrize("changes", [5, 20])
def test_reads_grow_with_the_number_of_changes_of_parallelism_and_not_faster(
    monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    repository = Repository.in_memory()
    for epoch in range(changes + 1):
        parallelism = (1, 3, 2, 4)[epoch % 4]
        made = LocalRunner(
            tally_job(8).plan, repository, MemoryCopies(), RunOptions(parallelism=parallelism)
        )
        made.epoch({"records": entries(epoch, 40)})
    reads: list[str] = []

    def counted(repository: Repository, ref: FileRef, inner: Any = Repository.open_verified) -> Any:
        reads.append(ref.path)
        return inner(repository, ref)

    monkeypatch.setattr(Repository, "open_verified", counted)
    backend = MemoryBackend(STATES)
    load(repository, backend, "tally", 0, 7, changes)
    histories = [path for path in reads if path.endswith(".history.json")]
    shards = 4
    assert changes <= len(histories) <= 2 * shards * changes
    assert len(reads) <= 4 * shards * changes
    records = [record for epoch in range(changes + 1) for record in entries(epoch, 40)]
    assert len(rows_of(backend)["total"]) == len(plain_state(records))


def test_files_of_a_part_from_before_a_merge_come_before_shared_ones() -> None:
    def files(*names: str) -> tuple[FileRef, ...]:
        return tuple(FileRef(path=name, size=0, checksum=checksum_of(b"")) for name in names)

    whole = RestorePlan(0, 7, files=files("once"))
    halves = {"one": (0, 3), "other": (4, 7)}
    parts = [
        RestorePlan(*half, below=(whole.within(*half),), files=files(name))
        for name, half in halves.items()
    ]
    joined = RestorePlan(0, 7, below=tuple(parts), files=files("joined"))
    again = [
        RestorePlan(*half, below=(joined.within(*half),), files=files(f"{name} again"))
        for name, half in halves.items()
    ]
    last = RestorePlan(0, 7, below=tuple(again), files=files("last"))
    first, *order = (ref.path for ref in last.change_files)
    assert first == "once"
    assert sorted(order) == sorted({*order})
    assert max(map(order.index, ("one", "other"))) < order.index("joined")
    assert order.index("joined") < min(map(order.index, ("one again", "other again")))
    assert order[-1] == "last"
