from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.clock import now_us
from statekit.errors import CorruptCheckpointError
from statekit.working_copy.base_snapshot import (
    Finished,
    Staged,
    StagedSnapshot,
    WantedDatabase,
    fetch_databases,
)
from statekit.working_copy.lock import DirectoryLock
from statekit.working_copy.uploaded_tables import note_stored, read_stored, tables_in
from tests.support.killable_processes import die, exit_code, start
from tests.support.mutations import Put, batch_of

STATES = ("count", "seen")


def never() -> None:
    """Go on."""


def rows_of(number: int, count: int = 500) -> Batch:
    chosen = random.Random(number)
    puts = [
        Put("count", b"\0\1%06d" % (n * 7 + number), chosen.randbytes(60)) for n in range(count)
    ]
    return batch_of([*puts, Put("seen", b"\0\1only", b"%d" % number)])


def database(path: Path, *numbers: int) -> RocksBackend:
    backend = RocksBackend(path, STATES)
    for number in numbers:
        backend.write(rows_of(number))
        backend.flush()
    return backend


def staged(backend: RocksBackend, place: Path, **changes: object) -> StagedSnapshot:
    """A snapshot of what the database holds, as `base_keeping` leaves it."""
    made = StagedSnapshot(place)
    place.mkdir(parents=True)
    backend.flush()
    backend.snapshot([made.database(0)])
    note_stored(made.database(0), None, {})
    note = Staged(
        operator="tally",
        shard=(0, 7),
        attempt="a" * 32,
        epoch=3,
        states=STATES,
        follows="data/tally/x.changes.arrow",
        databases=((0, 7),),
        begun_us=now_us(),
    )
    made.seal(note.model_copy(update=changes))
    return made


def uploaded(snapshot: StagedSnapshot, repository: Repository) -> Finished:
    finished = snapshot.upload(repository, RocksOptions(), never)
    assert finished is not None
    return finished


def fetched(
    repository: Repository, finished: Finished, place: Path, beside: Path | None = None
) -> dict[str, list[tuple[bytes, bytes]]]:
    """The rows of a base that another host fetched."""
    base = repository.sealed(BaseSnapshot, finished.base)
    (database,) = base.databases
    fetch_databases(repository, [WantedDatabase(database, finished.base.path, place)], beside)
    return rows_in(place)


def rows_in(place: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    backend = RocksBackend(place, STATES, create=False)
    rows = {state: list(backend.scan(state, b"", b"\xff")) for state in STATES}
    backend.close()
    return rows


@pytest.fixture(params=["disk", "memory"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return Repository(tmp_path / "c") if request.param == "disk" else Repository.in_memory()


def test_a_base_that_is_fetched_has_the_rows_of_the_database(
    tmp_path: Path, repository: Repository
) -> None:
    backend = database(tmp_path / "db", 1, 2, 3)
    snapshot = staged(backend, tmp_path / "snapshots" / "a")
    backend.write(rows_of(4))  # what comes later is not in it
    backend.close()
    finished = uploaded(snapshot, repository)
    assert snapshot.finished == finished
    rows = fetched(repository, finished, tmp_path / "other")
    expected = database(tmp_path / "expected", 1, 2, 3)
    assert rows["count"] == list(expected.scan("count", b"", b"\xff"))
    assert rows["seen"] == [(b"\0\1only", b"3")]
    expected.close()


def test_only_tables_that_are_new_are_uploaded(tmp_path: Path, repository: Repository) -> None:
    backend = database(tmp_path / "db", 1, 2)
    first = staged(backend, tmp_path / "snapshots" / "a")
    begun = uploaded(first, repository)
    names = set(repository.tree("data"))
    backend.write(rows_of(9, 20))
    second = staged(backend, tmp_path / "snapshots" / "b")
    backend.close()
    known = read_stored(first.database(0), None)
    note_stored(second.database(0), begun.base.path, known)
    second.seal(
        second.staged.model_copy(  # type: ignore[union-attr]
            update={
                "relies_on": begun.base.path,
                "relied": tuple(ref.path for ref in known.values()),
            }
        )
    )
    went_on = uploaded(second, repository)
    added = set(repository.tree("data")) - names
    tables = [name for name in added if name.endswith(".sst")]
    assert len(tables) == 2  # one of each state
    assert went_on.uploaded < begun.uploaded / 3
    old, new = (repository.sealed(BaseSnapshot, one.base) for one in (begun, went_on))
    held = {ref.path for ref in old.databases[0].files.values()}
    assert len(held & {ref.path for ref in new.databases[0].files.values()}) == len(known)
    rows = fetched(repository, went_on, tmp_path / "other")
    assert rows == rows_in(tmp_path / "db")


def test_a_host_with_an_older_copy_fetches_only_missing_files(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "c")
    backend = database(tmp_path / "db", 1, 2)
    finished = uploaded(staged(backend, tmp_path / "snapshots" / "a"), repository)
    backend.close()
    fetched(repository, finished, tmp_path / "home" / "db")
    for table in (tmp_path / "c" / "data" / "tally").glob("*.sst"):
        table.unlink()  # whoever fetches one now fails
    rows = fetched(repository, finished, tmp_path / "again", tmp_path / "home")
    assert rows == rows_in(tmp_path / "home" / "db")
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        fetched(repository, finished, tmp_path / "elsewhere")


def test_the_checkpoint_and_the_copy_share_tables_on_one_disk(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "c")
    backend = database(tmp_path / "db", 1)
    finished = uploaded(staged(backend, tmp_path / "snapshots" / "a"), repository)
    backend.close()
    fetched(repository, finished, tmp_path / "other")
    inodes = {path.stat().st_ino for path in (tmp_path / "db").glob("*.sst")}
    assert {path.stat().st_ino for path in (tmp_path / "c").rglob("*.sst")} == inodes
    assert {path.stat().st_ino for path in (tmp_path / "other").glob("*.sst")} == inodes


def test_a_merged_base_has_each_row_once(tmp_path: Path, repository: Repository) -> None:
    backend = database(tmp_path / "db", *[1] * 6)  # the same rows again and again
    grown = sum(tables_in(tmp_path / "db").values())
    snapshot = staged(backend, tmp_path / "snapshots" / "a", merged=True)
    backend.close()
    before = rows_in(tmp_path / "db")
    finished = uploaded(snapshot, repository)
    assert finished.uploaded < grown / 3
    assert fetched(repository, finished, tmp_path / "other") == before


Damage = Callable[[Path], object]


@pytest.mark.parametrize("kind", ["sst", "rocksdb", "base.json"])
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: os.truncate(path, 5), "truncated or altered"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "truncated or altered"),
    ],
    ids=["missing", "truncated", "altered"],
)
def test_a_damaged_file_of_a_base_is_named(
    tmp_path: Path, kind: str, damage: Damage, told: str
) -> None:
    repository = Repository(tmp_path / "c")
    backend = database(tmp_path / "db", 1)
    finished = uploaded(staged(backend, tmp_path / "snapshots" / "a"), repository)
    backend.close()
    file = sorted((tmp_path / "c" / "data" / "tally").glob(f"*.{kind}"))[0]
    damage(file)
    with pytest.raises(CorruptCheckpointError, match=told) as raised:
        fetched(repository, finished, tmp_path / "other")
    assert file.name in str(raised.value)


def test_a_table_whose_number_was_given_again_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "c")
    backend = database(tmp_path / "db", 1)
    snapshot = staged(backend, tmp_path / "snapshots" / "a")
    backend.close()
    uploaded(snapshot, repository)
    known = read_stored(snapshot.database(0), None)
    (name, *_) = sorted(known)
    table = snapshot.database(0) / name
    content = table.read_bytes()
    table.unlink()
    table.write_bytes(content[::-1])
    assert name not in read_stored(snapshot.database(0), None)
    note = snapshot.database(0) / "stored.json"
    note.write_bytes(note.read_bytes()[:-9])
    assert read_stored(snapshot.database(0), None) == {}


# ---------------------------------------------------------------------------------------- killed


def upload_until_killed(root: str, place: str, calls: int) -> None:
    """Die at the `calls`th time that the upload looks whether to go on."""
    left = [calls]

    def going() -> None:
        left[0] -= 1
        if not left[0]:
            die()

    StagedSnapshot(Path(place)).upload(Repository(root), RocksOptions(), going)


@pytest.mark.parametrize("merged", [False, True])
def test_an_upload_that_is_killed_anywhere_is_resumed(tmp_path: Path, merged: bool) -> None:
    backend = database(tmp_path / "db", 1, 2, 3)
    snapshot = staged(backend, tmp_path / "snapshots" / "a", merged=merged)
    backend.close()
    expected = rows_in(tmp_path / "db")
    root, place, kills = tmp_path / "c", snapshot.place, 0
    for calls in (1, 2, 4, 7, 11, 1000):
        code = exit_code(upload_until_killed, str(root), str(place), calls)
        kills += code == -9
    assert kills >= 3
    repository = Repository(root)
    finished = uploaded(snapshot, repository)
    assert fetched(repository, finished, tmp_path / "other") == expected


def hold(place: str, told: str) -> None:
    with DirectoryLock.held(Path(place)) as lock:
        assert lock is not None
        Path(told).touch()
        time.sleep(60)


def test_two_processes_do_not_upload_the_same_snapshot(tmp_path: Path) -> None:
    backend = database(tmp_path / "db", 1)
    snapshot = staged(backend, tmp_path / "snapshots" / "a")
    backend.close()
    process = start(hold, str(snapshot.place), str(tmp_path / "told"))
    deadline = time.monotonic() + 60
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    repository = Repository(tmp_path / "c")
    assert snapshot.upload(repository, RocksOptions(), never) is None
    snapshot.remove()
    assert snapshot.staged is not None
    process.kill()
    process.join()
    assert snapshot.upload(repository, RocksOptions(), never) is not None
    snapshot.remove()
    assert not snapshot.place.exists()
