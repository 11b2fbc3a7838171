from __future__ import annotations

import io
import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochNote, ShardState
from statekit.checkpoint.paths import epoch_path, job_number, job_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import unique_id
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RestoreError,
    StatekitError,
    StorageError,
)
from tests.support.killable_processes import as_nobody, exit_code, open_to_all, start
from tests.support.manual_checkpoints import change_file, manifest
from tests.support.mutations import Put, batch_of, written
from tests.support.small_disk import small_disk
from tests.support.timeouts import PATIENCE_S

JOB = JobFile(id="0" * 32, name="tally", key_groups=4, operators=())


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
    assert repository.newest_job_file() is None
    assert not repository.is_committed(0)


def test_committed_manifest_reads_as_it_was(repository: Repository) -> None:
    for epoch, previous in ((0, None), (1, 0), (10, 1)):
        made = manifest(epoch).model_copy(update={"previous": previous})
        repository.commit(made)
        assert repository.manifest(epoch) == made
        assert repository.is_committed(epoch)
    assert repository.epochs() == [0, 1, 10]


def test_newest_job_file_is_in_force_and_older_ones_can_be_read(repository: Repository) -> None:
    references = []
    for number in (1, 2, 10):
        made = JOB.model_copy(update={"name": f"job-{number}"})
        references.append(repository.create_job_file(made, number))
    found = repository.newest_job_file()
    assert found is not None
    assert (found[0].name, found[1]) == ("job-10", references[-1])
    assert repository.job_file(references[1].path).name == "job-2"
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


def test_a_note_that_another_run_removes_at_once_fences_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it happens to a process that was stopped there while another one committed the epoch."""
    slow, fast = Repository(tmp_path), Repository(tmp_path)
    link = os.link

    def stopped_behind(draft: str, name: str, **folders: Any) -> None:
        link(draft, name, **folders)
        fast.remove_note(0)

    monkeypatch.setattr(os, "link", stopped_behind)
    note = EpochNote(epoch=0, what="records", processing_time_us=0)
    with pytest.raises(FencedError, match=r"begun/0+\.json was removed as soon as it was there"):
        slow.write_note(note)


def test_of_two_repositories_racing_in_threads_exactly_one_wins_each_epoch(tmp_path: Path) -> None:
    writers, epochs = 4, 40
    barrier = Barrier(writers)

    def race(writer: int) -> list[int]:
        repository, won = Repository(tmp_path), []
        for epoch in range(epochs):
            barrier.wait(PATIENCE_S)
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
        racer.join(PATIENCE_S)
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
    repository._objects.put(epoch_path(0), manifest(0).to_bytes())
    repository.create(epoch_path(0), manifest(0).to_bytes())
    with pytest.raises(FencedError):
        repository.commit(manifest(0, writer="other"))


def test_failure_between_draft_and_name_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(os, "link", fail)
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
    assert repository.newest_job_file() == Repository(tmp_path).newest_job_file()
    found = repository.newest_job_file()
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


def test_large_file_that_is_altered_leaves_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.checkpoint.store._SPOOL_BYTES_MAX", 10)
    repository = Repository(tmp_path)
    ref = repository.put_changes("tally", io.BytesIO(bytes(1000)), 1)
    (tmp_path / ref.path).write_bytes(bytes(999))
    with pytest.raises(CorruptCheckpointError):  # an open file would be a ResourceWarning
        repository.open_verified(ref)


def test_replay_leaves_out_states_that_the_backend_does_not_have(repository: Repository) -> None:
    batch = batch_of([Put("s", b"\0\0k", b"1"), Put("dropped", b"\0\0k", b"2")])
    file = io.BytesIO(written(["s", "dropped"], batch))
    backend = MemoryBackend(["s"])
    repository.replay(backend, [repository.put_changes("tally", file, 2)], 0, 3)
    assert list(backend.scan("s", b"", b"\xff")) == [(b"\0\0k", b"1")]


def test_a_copy_of_a_checkpoint_has_the_same_state_and_is_independent(
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


def test_after_a_kill_at_any_instant_the_latest_epoch_is_complete(tmp_path: Path) -> None:
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


def test_all_errors_of_the_repository_give_advice(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(manifest(0))
    with pytest.raises(StatekitError) as fenced:
        repository.commit(manifest(0, writer="x"))
    assert fenced.value.__cause__ is None  # what a store raises may have more in it than we tell
    assert "start the other again" in str(fenced.value)
