from __future__ import annotations

import io
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.exceptions import AlreadyExistsError

from statekit import rescale
from statekit.backend import MemoryBackend
from statekit.clock import unique_id
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StorageError,
)
from statekit.job_file import JobFile
from statekit.keygroup import group_range
from statekit.manifest import EpochManifest, OperatorEpoch, ShardState, epoch_path
from statekit.mutation import Batch, ChangeFileWriter, Delete, DeleteRange, Mutation, Put
from statekit.repository import Repository, group_bounds, job_number, job_path
from statekit.sealed import FileRef, checksum_of
from tests.children import as_nobody, exit_code, start
from tests.small_disk import small_disk

REF = FileRef(path="job.json", size=0, checksum=checksum_of(b""))
JOB = JobFile(id="0" * 32, name="tally", key_groups=4, operators=())


def standing(
    repository: Repository, operator: str, first: int, last: int, epoch: int | None
) -> ShardState:
    """Where key groups stand after an epoch, or before the first."""
    if epoch is None:
        return ShardState(first_group=first, last_group=last)
    return rescale.standing(repository.manifest(epoch), operator, first, last)


def manifest(epoch: int, *shards: ShardState, writer: str = "w", groups: int = 4) -> EpochManifest:
    blank = ShardState(first_group=0, last_group=groups - 1)
    return EpochManifest(
        job="tally",
        job_file=REF,
        epoch=epoch,
        previous=epoch - 1 if epoch else None,
        parallelism=len(shards) or 1,
        key_groups=groups,
        writer=writer,
        processing_time_us=0,
        committed_at_us=0,
        operators={"tally": OperatorEpoch(shards=shards or (blank,))},
    )


def change_file(*mutations: Mutation) -> io.BytesIO:
    file = io.BytesIO()
    writer = ChangeFileWriter(file, ["s"])
    writer.append(Batch(mutations))
    writer.close()
    return file


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture(params=["memory", "local"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return Repository.in_memory() if request.param == "memory" else Repository(tmp_path / "c")


# --------------------------------------------------------------------------------------- opening


def test_checkpoint_that_must_exist_and_does_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="there is no checkpoint at"):
        Repository(tmp_path / "nope", create=False)
    assert not (tmp_path / "nope").exists()


def test_url_and_path_name_the_same_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "with space ☃"
    first = Repository(path)
    first.commit(manifest(0))
    assert Repository(first.url).latest_epoch() == 0
    assert Repository(str(path)).root == path


def test_new_checkpoint_has_neither_epochs_nor_a_job_file(repository: Repository) -> None:
    assert repository.epochs() == []
    assert repository.latest_epoch() is None
    assert repository.job_file() is None
    assert not repository.is_committed(0)


def test_committed_manifest_reads_as_it_was(repository: Repository) -> None:
    for epoch in (0, 1, 10):
        repository.commit(manifest(epoch))
        assert repository.manifest(epoch) == manifest(epoch)
        assert repository.is_committed(epoch)
    assert repository.epochs() == [0, 1, 10]


def test_newest_job_file_is_in_force_and_older_ones_can_be_read(repository: Repository) -> None:
    references = []
    for number in (1, 2, 10):
        made = JOB.model_copy(update={"name": f"job {number}"})
        references.append(repository.create_job_file(made, number))
    found = repository.job_file()
    assert found is not None
    assert (found[0].name, found[1]) == ("job 10", references[-1])
    older = repository.job_file(references[1].path)
    assert older is not None
    assert (older[0].name, older[1]) == ("job 2", references[1])
    assert [job_number(job_path(number)) for number in (1, 2, 10)] == [1, 2, 10]


# ---------------------------------------------------------------------------------------- commit


def test_name_that_is_taken_fences_the_writer_and_keeps_the_first_content(
    repository: Repository,
) -> None:
    repository.commit(manifest(0, writer="first"))
    with pytest.raises(FencedError, match=r"00000\.json exists: another run"):
        repository.commit(manifest(0, writer="second"))
    assert repository.manifest(0).writer == "first"
    repository.create_job_file(JOB, 1)
    with pytest.raises(FencedError, match=r"job\.json exists"):
        repository.create_job_file(JOB.model_copy(update={"id": "1" * 32}), 1)


def test_of_two_repositories_racing_in_threads_exactly_one_wins_each_epoch(tmp_path: Path) -> None:
    writers, epochs = 4, 40
    barrier = Barrier(writers)

    def race(writer: int) -> list[int]:
        repository, won = Repository(tmp_path), []
        for epoch in range(epochs):
            barrier.wait(30)
            try:
                repository.commit(manifest(epoch, writer=str(writer)))
                won.append(epoch)
            except FencedError:
                pass
        return won

    with ThreadPoolExecutor(writers) as pool:
        wins = list(pool.map(race, range(writers)))
    assert sorted(chain(*wins)) == list(range(epochs))
    repository = Repository(tmp_path)
    for writer, won in enumerate(wins):
        assert all(repository.manifest(epoch).writer == str(writer) for epoch in won)
    assert list(repository.names("tmp")) == []


def race_for_epochs(root: str, writer: str, epochs: int) -> None:
    """Commit each epoch, or be fenced; note what was won."""
    repository, won = Repository(root), []
    for epoch in range(epochs):
        try:
            repository.commit(manifest(epoch, writer=writer))
            won.append(epoch)
        except FencedError:
            pass
    Path(root, f"won-{writer}").write_text(" ".join(map(str, won)))


def test_of_two_processes_racing_exactly_one_wins_each_epoch(tmp_path: Path) -> None:
    racers = [start(race_for_epochs, str(tmp_path), name, 150) for name in ("one", "two")]
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    repository = Repository(tmp_path)
    won = {
        name: [int(epoch) for epoch in (tmp_path / f"won-{name}").read_text().split()]
        for name in ("one", "two")
    }
    assert sorted(won["one"] + won["two"]) == list(range(150))
    for name, epochs in won.items():
        assert all(repository.manifest(epoch).writer == name for epoch in epochs)


def test_answer_lost_on_the_way_does_not_fence_the_writer_that_made_the_file() -> None:
    # Clients of object stores try again after a timeout, and find what their first try wrote.
    repository = Repository.in_memory()
    repository._store.put(epoch_path(0), manifest(0).to_bytes())
    repository.commit(manifest(0))
    with pytest.raises(FencedError):
        repository.commit(manifest(0, writer="other"))


def test_failure_between_draft_and_name_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr("obstore.rename", fail)
    with pytest.raises(StorageError, match=r"cannot write .*disk on fire"):
        repository.commit(manifest(0))
    assert repository.latest_epoch() is None
    monkeypatch.undo()
    repository.commit(manifest(0))


def test_leftovers_of_killed_processes_are_not_seen(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.create_job_file(JOB, 1)
    repository.commit(manifest(0))
    (tmp_path / "tmp").mkdir(exist_ok=True)
    for name in (
        "tmp/0123",
        "epochs/00000000000000000001.json#1",
        "epochs/00000000000000000002.jso",
        "epochs/3.json",
        "epochs/00000000000000000004.json.bak",
        "job-2.json#1",
        "job-x.json",
        "job.json~",
    ):
        (tmp_path / name).write_bytes(b"half of a fi")
    assert repository.epochs() == [0]
    assert repository.job_file() == Repository(tmp_path).job_file()
    found = repository.job_file()
    assert found is not None
    assert found[0] == JOB
    repository.commit(manifest(1))
    assert repository.latest_epoch() == 1


def test_manifest_under_another_number_is_corrupt(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(manifest(0))
    shutil.copy(tmp_path / epoch_path(0), tmp_path / epoch_path(1))
    with pytest.raises(CorruptCheckpointError, match=r"0001\.json is the manifest of epoch 0"):
        repository.manifest(1)


def test_missing_manifest_is_corrupt_and_named(repository: Repository) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"00007\.json is missing"):
        repository.manifest(7)


# ------------------------------------------------------------------------------------ data files


def test_data_file_reads_as_it_was_stored(repository: Repository) -> None:
    content = os.urandom(12_000_000)  # more than one part of an upload
    ref = repository.put_changes("tally", io.BytesIO(content), 3)
    assert (ref.size, ref.rows) == (len(content), 3)
    with repository.open_verified(ref) as file:
        assert file.read() == content


def test_data_files_of_equal_content_have_different_names(repository: Repository) -> None:
    refs = [repository.put_changes("tally", io.BytesIO(b"same"), 1) for _ in range(2)]
    assert refs[0].path != refs[1].path


@pytest.mark.parametrize("damage", ["missing", "truncated", "longer", "altered", "emptied"])
def test_damaged_data_file_is_corrupt_and_named(tmp_path: Path, damage: str) -> None:
    repository = Repository(tmp_path)
    ref = repository.put_changes("tally", change_file(Put("s", b"\0\0k", b"v")), 1)
    path = tmp_path / ref.path
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        altered = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        contents = {"truncated": data[:-1], "longer": data + b"\0", "altered": altered}
        path.write_bytes(contents.get(damage, b""))
    with pytest.raises(CorruptCheckpointError, match=ref.path):
        repository.open_verified(ref)
    with pytest.raises(CorruptCheckpointError, match=ref.path):
        repository.replay(MemoryBackend(["s"]), [ref], 0, 3)


def test_large_file_that_is_altered_leaves_no_open_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.store._SPOOL_BYTES_MAX", 10)
    repository = Repository(tmp_path)
    ref = repository.put_changes("tally", io.BytesIO(bytes(1000)), 1)
    (tmp_path / ref.path).write_bytes(bytes(999))
    with pytest.raises(CorruptCheckpointError):  # an open file would be a ResourceWarning
        repository.open_verified(ref)


def test_replay_leaves_out_states_that_the_backend_does_not_have(repository: Repository) -> None:
    file = io.BytesIO()
    writer = ChangeFileWriter(file, ["s", "dropped"])
    writer.append(Batch([Put("s", b"\0\0k", b"1"), Put("dropped", b"\0\0k", b"2")]))
    writer.close()
    backend = MemoryBackend(["s"])
    repository.replay(backend, [repository.put_changes("tally", file, 2)], 0, 3)
    assert list(backend.scan("s", b"", b"\xff")) == [(b"\0\0k", b"1")]


def test_copy_of_a_checkpoint_holds_the_same_and_is_independent(
    repository: Repository, tmp_path: Path
) -> None:
    repository.create_job_file(JOB, 1)
    ref = repository.put_changes("tally", change_file(Put("s", b"\0\0k", b"v")), 1)
    shard = ShardState(first_group=0, last_group=3, attempt="a", changed=0, files=(ref,))
    repository.commit(manifest(0, shard))
    target = Repository(tmp_path / "copy")
    repository.copy_to(target)
    repository.commit(manifest(1))
    assert target.epochs() == [0]
    assert target.manifest(0) == repository.manifest(0)
    target.open_verified(ref).close()


# ----------------------------------------------------------------------------- disks that fail


def every_write_fails(root: str) -> None:
    repository = Repository(root)
    calls: list[Callable[[], object]] = [
        lambda: repository.commit(manifest(0)),
        lambda: repository.create_job_file(JOB, 1),
        lambda: repository.put_changes("tally", io.BytesIO(b"data"), 1),
        lambda: Repository(Path(root, "below")),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="Nothing committed is lost"):
            call()
    assert repository.latest_epoch() is None


def test_directory_that_may_not_be_written_is_a_storage_error(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    root = tmp_path / "c"
    root.mkdir()
    root.chmod(0o555)
    try:
        assert exit_code(as_nobody, every_write_fails, str(root)) == 0
    finally:
        root.chmod(0o755)
    assert files_of(root) == set()


def every_read_fails(root: str, ref: FileRef) -> None:
    repository = Repository(root)
    calls: list[Callable[[], object]] = [
        lambda: repository.manifest(0),
        lambda: repository.open_verified(ref),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="cannot read"):
            call()


def test_files_that_may_not_be_read_are_a_storage_error(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    repository = Repository(tmp_path / "c")
    ref = repository.put_changes("tally", io.BytesIO(b"data"), 1)
    repository.commit(manifest(0))
    for path in files_of(tmp_path / "c"):
        (tmp_path / "c" / path).chmod(0o000)
    assert exit_code(as_nobody, every_read_fails, str(tmp_path / "c"), ref) == 0


def open_to_all(path: Path) -> None:
    """Let others pass through the directories that pytest keeps to their owner."""
    for directory in (path, *path.parents[:2]):
        directory.chmod(0o755)


def test_full_disk_is_a_storage_error_and_commits_nothing_by_halves(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        repository = Repository(disk.path / "c")
        repository.create_job_file(JOB, 1)
        ref = repository.put_changes("tally", change_file(Put("s", b"\0\0k", b"v")), 1)
        shard = ShardState(first_group=0, last_group=3, attempt="a", changed=0, files=(ref,))
        repository.commit(manifest(0, shard))
        disk.fill()
        calls: list[Callable[[], object]] = [
            lambda: repository.commit(manifest(1)),
            lambda: repository.create_job_file(JOB, 2),
            lambda: repository.put_changes("tally", io.BytesIO(bytes(6 << 20)), 1),
        ]
        for call in calls:
            with pytest.raises(StorageError, match=r"cannot write .*has space"):
                call()
        assert repository.epochs() == [0]
        assert repository.manifest(0) == manifest(0, shard)
        repository.open_verified(ref).close()
        disk.make_space()
        repository.commit(manifest(1))
        repository.create_job_file(JOB, 2)
        assert repository.epochs() == [0, 1]


# ------------------------------------------------------------------------------------------ kill


def commit_epochs(root: str) -> None:
    """Commit epochs, each with a data file, until killed."""
    repository = Repository(root)
    while True:
        latest = repository.latest_epoch()
        epoch = 0 if latest is None else latest + 1
        content = change_file(*(Put("s", b"\0\0%d" % i, b"%d" % epoch) for i in range(200)))
        ref = repository.put_changes("tally", content, 200)
        attempt = unique_id()
        shard = ShardState(
            first_group=0, last_group=3, attempt=attempt, changed=epoch, files=(ref,)
        )
        repository.commit(manifest(epoch, shard))


def test_after_a_kill_at_any_instant_the_latest_epoch_is_whole(tmp_path: Path) -> None:
    chosen, seen = random.Random(20), -1
    for _ in range(20):
        process = start(commit_epochs, str(tmp_path))
        deadline = time.monotonic() + 60
        while not (tmp_path / epoch_path(seen + 1)).exists():
            assert time.monotonic() < deadline, "no epoch was committed"
            time.sleep(0.002)
        time.sleep(chosen.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -9
        repository = Repository(tmp_path)
        epochs = repository.epochs()
        assert epochs == list(range(len(epochs)))
        for epoch in epochs[max(0, seen - 1) :]:
            (shard,) = repository.manifest(epoch).operators["tally"].shards
            backend = MemoryBackend(["s"])
            repository.replay(backend, list(shard.files), 0, 3)
            assert (
                backend.get_many("s", [b"\0\0%d" % i for i in range(200)]) == [b"%d" % epoch] * 200
            )
        seen = epochs[-1]


# --------------------------------------------------------------------------------------- history

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
    """As coordinator and shards do it: a shard that changes writes files, others stand still."""
    shards = []
    for number in range(parallelism):
        first, last = group_range(number, parallelism, groups)
        shard = standing(repository, "tally", first, last, previous)
        own = [m for m in mutations if first <= group_of(m) <= last]
        update: dict[str, Any] = {"files": ()}
        if own:
            parts = [own[:1], own[1:]]
            update = {
                "attempt": unique_id(),
                "changed": epoch,
                "slices": (),
                "files": tuple(
                    repository.put_changes("tally", change_file(*part), len(part))
                    for part in parts
                    if part
                ),
            }
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


def replayed(
    repository: Repository, refs: list[FileRef], first: int, last: int, base: Model
) -> Model:
    backend = MemoryBackend(["s"])
    backend.write(Batch([Put("s", key, value) for key, value in base.items()]))
    repository.replay(backend, refs, first, last)
    return dict(backend.scan("s", b"", b"\xff" * 3))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(histories())
def test_any_range_at_any_epoch_replays_to_what_was_put_there(
    made: tuple[int, list[tuple[int, int, list[Mutation]]]],
) -> None:
    groups, history = made
    repository, models = built(groups, history)
    for epoch, model in models.items():
        for first in range(groups):
            for last in range(first, groups):
                refs, found = repository.changes("tally", first, last, epoch)
                assert not found
                expected = within(model, first, last)
                assert replayed(repository, refs, first, last, {}) == expected


def standings(
    repository: Repository, epochs: list[int], groups: int
) -> Iterator[tuple[int, int, ShardState]]:
    """Every shard after every epoch, for every parallelism: `(index, parallelism, shard)`."""
    for index, epoch in enumerate(epochs):
        for parallelism in range(1, min(5, groups) + 1):
            for number in range(parallelism):
                bounds = group_range(number, parallelism, groups)
                yield index, parallelism, standing(repository, "tally", *bounds, epoch)


@settings(deadline=None, derandomize=True, max_examples=30)
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
        for later in {index, min(index + 2, len(epochs) - 1), len(epochs) - 1}:
            refs, found = repository.changes(
                "tally", *shard.groups, epochs[later], after=shard.attempt
            )
            base = held if found else {}
            expected = within(models[epochs[later]], *shard.groups)
            assert replayed(repository, refs, *shard.groups, base) == expected
            between = {parallelism_ for _, parallelism_, _ in history[index : later + 1]}
            assert found or between != {parallelism}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(histories())
def test_shards_stand_under_one_name_exactly_if_they_hold_the_same_history(
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


def test_unknown_attempt_means_to_start_from_nothing(repository: Repository) -> None:
    commit_epoch(repository, 4, 0, None, 1, [Put("s", b"\0\0k", b"v")])
    refs, found = repository.changes("tally", 0, 3, 0, after="never heard of")
    assert (len(refs), found) == (1, False)


def test_operator_without_history_stands_blank(repository: Repository) -> None:
    commit_epoch(repository, 4, 0, None, 1, [Put("s", b"\0\0k", b"v")])
    blank = ShardState(first_group=0, last_group=3)
    assert standing(repository, "new", 0, 3, 0) == blank
    assert standing(repository, "tally", 0, 3, None) == blank
    assert repository.changes("new", 0, 3, 0) == ([], False)


def test_gap_in_the_chain_of_manifests_is_corrupt_and_never_less_state(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for epoch in range(3):
        put = Put("s", b"\0\0%d" % epoch, b"v")
        commit_epoch(repository, 4, epoch, epoch - 1 if epoch else None, 1, [put])
    (tmp_path / epoch_path(1)).unlink()
    with pytest.raises(CorruptCheckpointError, match=r"0001\.json is missing"):
        repository.changes("tally", 0, 3, 2)


def test_errors_of_the_repository_all_say_what_to_do(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(manifest(0))
    with pytest.raises(StatekitError) as fenced:
        repository.commit(manifest(0, writer="x"))
    assert isinstance(fenced.value.__cause__, AlreadyExistsError)
    assert "start the other again" in str(fenced.value)
